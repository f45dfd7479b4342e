"""What each weight of a model is made of: the parameters of a checkpoint, by the model's names.

    checkpoint                                 model
    mlp.up_proj.weight, .weight_scale          mlp.up_proj.weight
    mlp.experts.gate_up_proj_blocks, _scales   mlp.experts.gate_up_proj
    mlp.experts.0.gate_proj.weight, ...        mlp.experts.gate_up_proj    of all experts
    mlp.experts.0.up_proj.weight, ...

Which parts make a weight, and in which order, the renamings and conversions of transformers say;
where it has none, experts are joined as `checkpoints.joining` does it. A class may do more to its
weights than join them, as turn or cut them, which codes do not allow: that is refused by name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    dot_natural_key,
)
from transformers.modeling_utils import PreTrainedModel

from mx_kernels._core.arrays import show
from mx_kernels.checkpoints.files import Checkpoint, open_model
from mx_kernels.checkpoints.forms import Parameter, plan
from mx_kernels.checkpoints.joining import BY_ROWS, OF_ROWS, by_rows, join, joined
from mx_kernels.checkpoints.targets import WEIGHT
from mx_kernels.integrations.transformers.names import Names, names_in, split

JOINING = {
    (MergeModulelist, Concatenate): (0, 1),
    (MergeModulelist,): (0,),
    (Concatenate,): (0,),
}
"""What transformers may do to the weights of a layer that codes allow, and along which axes."""


class Sources:
    """The parameters of files that make the quantized weights of a model, and others in two files.

    Attributes:
        names: what the model calls the parameters of the checkpoint.
        weights: what each quantized weight of the model is made of, by its name.
        matrices: tensors of rotations, which are no parameters.
        halves: weights of experts whose rows of gate and up are halves, whatever the class has.
        own: weights that `save_pretrained` wrote, whose rows lie as `moe` reads them.

    Raises:
        ValueError: if there are no quantized weights, or the model has not those that there are.
    """

    def __init__(self, model: PreTrainedModel, files: Iterable[str | Path], *, are_saved: bool):
        self.checkpoint: Checkpoint = open_model(files)
        parameters = plan(self.checkpoint, takes_rotations=True)
        known = {part.name for p in parameters for part in p.parts}
        self.matrices: list[str] = [n for n in self.checkpoint.parts if n not in known]
        self.names: Names = names_in(model, (p.name for p in parameters), are_saved=are_saved)
        self.weights: dict[str, Parameter] = {}
        self.halves: set[str] = set()
        self._floats = {self.names.homes.get(p.name, ""): p for p in parameters if not p.meaning}
        twice = self.checkpoint.twice
        quantized = [p for p in parameters if p.meaning or p.parts[0].name in twice]
        self._converters = _by_pattern(model)
        pieces, left = {}, []
        for p in quantized:
            if p.name in self.names.joined:
                key, pattern = self.names.joined[p.name]
                pieces.setdefault(key, {}).setdefault(pattern, []).append(p)
            elif p.name in self.names.homes:
                self.weights[self.names.homes[p.name]] = p
            else:
                left.append(p)
        for key, by_pattern in pieces.items():
            self.weights[key] = self._joined(key, by_pattern, model)
        self._take(model, left)
        self._even()
        own = {p.name for p in quantized if are_saved and all(part.is_own for part in p.parts)}
        self.own: set[str] = {key for key, p in self.weights.items() if p.name in own}
        if not any(it.meaning or it.format for it in self.weights.values()):
            where = self.checkpoint.where
            raise ValueError(
                f"{where}: got no quantized weights of {type(model).__name__}, expected some: "
                "floats are quantized by AutoModelForCausalLM.from_pretrained(path, "
                "quantization_config=MXConfig())"
            )

    def rotations(self) -> dict[str, int]:
        """Returns what layers rotate, by their names."""
        found = {key: it.hadamard for key, it in self.weights.items() if it.hadamard}
        return {key.rpartition(".")[0]: block for key, block in found.items()}

    def _joined(
        self, key: str, by_pattern: Mapping[str, list[Parameter]], model: PreTrainedModel
    ) -> Parameter:
        """Returns the weight that pieces make as transformers would join them."""
        converter = self._converters[next(iter(by_pattern))]
        kinds = tuple(map(type, converter.operations))
        first = next(iter(by_pattern.values()))[0]
        axes = tuple(op.dim for op in converter.operations) if kinds in JOINING else None
        if axes is None or axes != JOINING[kinds] or len(converter.target_patterns) > 1:
            done = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(
                f"{first.name}: got quantized weights that {type(model).__name__} makes {key} of "
                f"by {done}, expected rows to join: load the floats with "
                "quantization_config=MXConfig()"
            )
        order = [pattern for pattern in converter.source_patterns if pattern in by_pattern]
        lists = [sorted(by_pattern[p], key=lambda it: dot_natural_key(it.name)) for p in order]
        are_experts = MergeModulelist in kinds
        pieces = list(zip(*lists, strict=False)) if are_experts else [[*itertools.chain(*lists)]]
        is_whole = len(order) == len(converter.source_patterns)
        is_whole &= len({len(of_pattern) for of_pattern in lists}) == 1
        whole = join(key, pieces, are_experts=are_experts) if is_whole else None
        if whole is None:
            raise ValueError(_apart(key, [it for of_one in by_pattern.values() for it in of_one]))
        return whole

    def _take(self, model: PreTrainedModel, left: list[Parameter]) -> None:
        """Finds weights for parameters whose names transformers does not know.

        Raises:
            ValueError: if the model is the one that was saved, and has not one of them.
        """
        apart = {it.name for it in left}
        for it in joined(self.checkpoint, left):
            names = dict.fromkeys((it.name, it.name.removesuffix(f".{WEIGHT}")))
            found = names_in(model, names, are_saved=self.names.are_own).homes
            key = next((found[name] for name in names if name in found), None)
            if key is None:
                _check_unexpected(model, it.name)
            elif key not in self.weights:
                self.weights[key] = it
                self.halves |= set() if it.name in apart else {key}

    def reorder(self, orders: Iterable[str]) -> None:
        """Makes weights and biases ready to be given another order of rows, each with its scale."""
        for key in orders:
            if key in self._floats:
                self.weights[key] = self._floats[key]
            elif key in self.weights and self.weights[key].format == OF_ROWS:
                self.weights[key] = by_rows(self.weights[key])
        self._even()

    def _even(self) -> None:
        """Gives weights of a layer of experts one format, where one has a scale for each row."""
        layers: dict[str, list[str]] = {}
        for key, it in self.weights.items():
            if it.format in (BY_ROWS, OF_ROWS) and len(it.shape) > 2:
                layers.setdefault(key.rpartition(".")[0], []).append(key)
        for keys in layers.values():
            if BY_ROWS in {self.weights[key].format for key in keys}:
                self.weights |= {key: by_rows(self.weights[key]) for key in keys}


def _by_pattern(model: PreTrainedModel) -> dict[str, WeightConverter]:
    """Returns the conversions of a class by what they match."""
    _, converters = split(get_model_conversion_mapping(model))
    return {pattern: converter for converter in converters for pattern in converter.source_patterns}


def _apart(key: str, pieces: list[Parameter]) -> str:
    """Says why pieces make no weight."""
    kinds = {f"{it.format or it.dtype} {show(it.shape)}": it.name for it in pieces}
    got = ", ".join(f"{name} in {kind}" for kind, name in list(kinds.items())[:3])
    return (
        f"{key}: got {len(pieces)} parts ({got}), expected those of all experts, of one shape and "
        "in one format"
    )


def _check_unexpected(model: PreTrainedModel, name: str) -> None:
    """Raises if the class that was saved has no place for a quantized weight."""
    optional = [re.compile(it) for it in model._keys_to_ignore_on_load_unexpected or ()]
    is_expected = any(it.search(name) for it in optional) or _is_beyond(name, model)
    if is_saved_class(model) and not is_expected:
        raise ValueError(
            f"{name}: got quantized weights that {type(model).__name__} does not have, expected "
            "those of its own layers"
        )


def _is_beyond(name: str, model: PreTrainedModel) -> bool:
    """Says whether a name is of a layer behind the last one, as of a model with more layers."""
    module: nn.Module = model.base_model
    for part in name.removeprefix(f"{model.base_model_prefix}.").split("."):
        if isinstance(module, nn.ModuleList) and part.isdigit() and int(part) >= len(module):
            return True
        module = module._modules.get(part)
        if module is None:
            return False
    return False


def is_saved_class(model: PreTrainedModel) -> bool:
    """Says whether the checkpoint was one of this very class."""
    return type(model).__name__ in (model.config.architectures or ())
