"""Tensor parallel as transformers plans it, with our layers cut at blocks.

    from_pretrained(path, tp_plan="auto", ...)     under torchrun, on every rank

A model's plan names a style for each of its layers. Those of our layers are taken out of it before
transformers makes DTensors of their parameters; once the weights are there, each rank keeps its
part of them, as `mx_kernels.integrations.distributed` cuts it. Heads of attention stay whole.
"""

from __future__ import annotations

import math
import re

from torch import nn

from mx_kernels._core.facts import facts
from mx_kernels.experts import MXExperts
from mx_kernels.modules import MXLinear, MXModule

COLUMNS = {"colwise": False, "colwise_rep": True, "colwise_gather_output": True}
"""Styles of transformers that cut rows of weights, and whether each rank gets all columns."""
ROWS = {"rowwise": False, "rowwise_rep": True, "rowwise_split_input": True}
"""Styles that cut K, and whether each rank has all of x."""
EXPERTS = "moe_tp_experts"
"""The style of experts of which each rank has a part."""


def take(model: nn.Module, plan: dict[str, str]) -> dict[str, str]:
    """Takes the styles of our layers out of a plan; returns them by the layers' names.

    Every model has a plan, whether it is asked for or not.

    Raises:
        ValueError: for a style that linear layers of ours do not have, if they are to be cut.
    """
    found, ours = {}, set()
    is_asked = getattr(model.config, "distributed_config", None) is not None
    for name, module in model.named_modules():
        if not isinstance(module, MXModule):
            continue
        generic = _generic(name)
        ours |= {generic, *(f"{generic}.{of}" for of, _ in module.named_parameters())}
        style = plan.get(generic)
        is_known = style in (None, *COLUMNS, *ROWS)
        if is_asked and isinstance(module, MXLinear) and not is_known:
            known = " or ".join((*COLUMNS, *ROWS))
            raise ValueError(f"{name}: got the style {style!r}, expected {known}")
        if style in (EXPERTS, *COLUMNS, *ROWS):
            found[name] = style
    for key in ours & plan.keys():
        del plan[key]
    return found


def _generic(name: str) -> str:
    """Returns what plans call a layer: the same in every block."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)


def shard(model: nn.Module, styles: dict[str, str]) -> None:
    """Leaves each rank its part of our layers.

    Raises:
        NotImplementedError: for plans that were not seen before transformers cut by them.
    """
    # Who is alone on a machine may have a torch without it.
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import parallelize_module  # noqa: PLC0415

    from mx_kernels.integrations.distributed import Colwise, Experts, Rowwise  # noqa: PLC0415

    asked = model.config.distributed_config
    if asked.ep_size > 1 and any(isinstance(m, MXExperts) for m in model.modules()):
        raise NotImplementedError(
            f"ep_size: got {asked.ep_size} for MXExperts, expected 1: load whole experts, and give "
            "parallelize_module mx_kernels.integrations.distributed.ExpertParallel()"
        )
    _check_own_plan(model, asked.tp_plan)
    mesh = model._mesh_manager.get_mesh("tp")
    for name, style in styles.items():
        module = model.get_submodule(name)
        if isinstance(module, MXExperts):
            parallelize_module(module, mesh, Experts())
            continue
        above = model.get_submodule(name.rpartition(".")[0])
        unit = math.lcm(facts().formats[module.format].cut, getattr(above, "head_dim", 1))
        if style in COLUMNS:
            output = Replicate() if COLUMNS[style] else Shard(-1)
            parallelize_module(module, mesh, Colwise(output_layouts=output, unit=unit))
        else:
            given = Replicate() if ROWS[style] else Shard(-1)
            parallelize_module(module, mesh, Rowwise(input_layouts=given, unit=unit))


def _check_own_plan(model: nn.Module, plan: dict[str, str] | str | None) -> None:
    """Raises if a plan of the caller's has layers of ours: transformers adds it too late."""
    names = plan if isinstance(plan, dict) else ()
    for name, module in model.named_modules():
        if not isinstance(module, MXModule):
            continue
        named = {name, _generic(name)}
        if found := [key for key in names if named & {key, key.rpartition(".")[0]}]:
            raise NotImplementedError(
                f"tp_plan: got {found[0]!r}, which is {type(module).__name__}, expected 'auto' or "
                "other layers: load the whole model, and give parallelize_module the styles of "
                'mx_kernels.integrations.distributed: {"model.layers.*.mlp.experts": Experts()}'
            )


def check_whole(model: nn.Module) -> None:
    """Raises if a rank has parts of our layers.

    Raises:
        NotImplementedError: because what would be saved is a part of the model.
    """
    for name, module in model.named_modules():
        if isinstance(module, MXModule) and hasattr(module, "sharding"):
            raise NotImplementedError(
                f"{name}: got a part of a layer to save, expected whole ones: load the model "
                "without a tp_plan"
            )
