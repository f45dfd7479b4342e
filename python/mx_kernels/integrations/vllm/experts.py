"""Experts in vLLM: one call of `moe` for the layer, on the bits of the checkpoint.

    OwnExperts       of a checkpoint that `save_pretrained` wrote, in any format, on any device
    GptOssExperts    of gpt-oss' own, on a CPU: vLLM's method asks for a backend that needs AMX

    gate_up [E, 2I, H]     rows as the gate reads them: gates and ups in turn, or gates first
    down    [E, H, I]

On several ranks each has some of the experts or a part of each, and vLLM adds up.
"""

# ruff: noqa: PLR0917  vLLM calls methods with its own arguments

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import FusedMoEConfig, FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, GptOssMxfp4MoEMethod
from vllm.model_executor.utils import set_weight_attrs

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import DEFAULT_FORMAT, facts
from mx_kernels._core.storage import storage_of
from mx_kernels.experts import moe
from mx_kernels.hints import ActivationsName, FormatName
from mx_kernels.integrations.vllm.linear import activations_of, packed

GPT_OSS = "gpt_oss_mxfp4"
"""What vLLM calls the method of gpt-oss' checkpoints."""
_OAI = "swiglu_oai", {"limit": "swiglu_limit", "alpha": "swiglu_alpha"}
_SITU = {"beta": "activation_situ_beta", "linear_beta": "activation_situ_linear_beta"}
GATES = {
    MoEActivation.SWIGLUOAI: _OAI,
    MoEActivation.SWIGLUOAI_UNINTERLEAVE: _OAI,
    MoEActivation.SILU: ("silu", {"limit": "swiglu_limit"}),
    MoEActivation.SWIGLUSTEP: ("swiglu_step", {"limit": "swiglu_limit"}),
    MoEActivation.GELU_TANH: ("gelu_tanh", {}),
    MoEActivation.SITU: ("situ", _SITU),
    MoEActivation.RELU2_NO_MUL: ("relu2", {}),
}
"""What vLLM's activations are called here, and where its config has their numbers."""
NUMBERS = ("swiglu_limit", "swiglu_alpha", *_SITU.values())


WEIGHTS = {"gate_up_proj": "w13", "up_proj": "w13", "down_proj": "w2"}
"""What vLLM calls the weights of all experts that our files have as one tensor."""


def gate_of(config: FusedMoEConfig) -> dict[str, Any]:
    """Returns an activation as `moe` takes it; raises for one that it does not have.

    Rows lie as our files have them, whatever the order of a checkpoint that they were made of.
    """
    given = {name: getattr(config, name, None) for name in NUMBERS}
    added = getattr(config, "swiglu_beta", None)
    name, numbers = GATES.get(config.activation, (None, {}))
    unused = [other for other, value in given.items() if value is not None]
    unused = sorted(set(unused) - set(numbers.values()))
    if name is None or unused or added not in {None, 1.0 if name == "swiglu_oai" else 0.0}:
        known = ", ".join(str(known) for known in GATES)
        raise NotImplementedError(
            f"hidden_act: got {config.activation} with {given} and swiglu_beta {added}, expected "
            f"one of {known}, with its own numbers"
        )
    gate = {"hidden_act": name} | {ours: given[theirs] for ours, theirs in numbers.items()}
    if name == "situ" and gate["linear_beta"] is None:
        gate["linear_beta"] = math.inf
    return gate


class MXExpertsMethod(FusedMoEMethodBase):
    """What the experts of both kinds of checkpoints share, once weights are `w13_weight` and `w2`.

    Args:
        config: vLLM's, of the layer.
        format: of the weights.
        said: what the checkpoint says that activations are multiplied as.
    """

    activations: ActivationsName

    def __init__(
        self,
        config: FusedMoEConfig,
        format: FormatName = DEFAULT_FORMAT,
        said: ActivationsName | None = None,
    ):
        # Not that of a subclass of vLLM's: it looks for a backend.
        FusedMoEMethodBase.__init__(self, config)
        self.format: FormatName = format
        self.said: ActivationsName | None = said
        self.gate: dict[str, Any] = gate_of(config)

    @property
    def skip_forward_padding(self) -> bool:
        """Says that tokens come as wide as the weights are."""
        return False

    @property
    def has_unpadded_output(self) -> bool:
        """Says the same of results."""
        return False

    def maybe_roundup_sizes(
        self,
        hidden_size: int,
        intermediate_size_per_partition: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[int, int]:
        """Returns sizes as they are; every multiple of a block does."""
        return hidden_size, intermediate_size_per_partition

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        """Returns nothing: no kernel of vLLM's is asked."""
        return None

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: object,
        shared_experts_input: object,
    ) -> Tensor:
        """Returns the weighted sum of each token's experts."""
        ids = topk_ids if layer.expert_map is None else layer.expert_map[topk_ids.long()]
        return moe(
            x,
            layer.w13_weight,
            layer.w2_weight,
            ids.to(torch.int32),
            topk_weights,
            bias_gate_up=getattr(layer, "w13_bias", None),
            bias_down=getattr(layer, "w2_bias", None),
            apply_router_weight_on_input=layer.apply_router_weight_on_input,
            activations=self.activations,
            **self.gate,
        )

    def _join(self, layer: nn.Module, parts: dict[str, tuple[str, str]]) -> None:
        """Makes a weight of each pair of codes and scales, which are let go."""
        for name, pair in parts.items():
            codes, scales = (getattr(layer, part).data for part in pair)
            self.activations = activations_of(self.said, codes.device, self.format)
            weight = packed(codes, scales, self.format, layer.params_dtype)
            for part in pair:
                delattr(layer, part)
            setattr(layer, name, weight)


class GptOssConfig(GptOssMxfp4Config):
    """vLLM's config of these checkpoints, with our experts."""

    def _make_moe_method(self, moe):
        return GptOssExperts(moe)


class GptOssExperts(MXExpertsMethod, GptOssMxfp4MoEMethod):
    """Creates and loads weights as vLLM's method, and computes with ours."""

    weight_dtype = GPT_OSS

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins codes and scales."""
        names = ("w13_weight", "w2_weight")
        self._join(layer, {name: (name, f"{name}_scale") for name in names})


class OwnExperts(MXExpertsMethod):
    """Experts as our files have them: codes and scales, of all in one tensor or of each in its own.

    vLLM tells the tensors of one expert by the parameters `w13_...` and `w2_...`.
    """

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: object,
    ) -> None:
        """Makes room for codes and scales, under the names that the config gives them."""
        inner, fmt = intermediate_size_per_partition, format_named(self.format)
        if self.moe.tp_size > 1 and inner % fmt.cut:
            raise ValueError(
                f"experts: got {inner} of {self.moe.intermediate_size} hidden numbers on this "
                f"rank, expected a multiple of {fmt.cut}; choose another tensor parallel size, or "
                "enable_expert_parallel"
            )
        layer.params_dtype = params_dtype
        rows = facts().gates[self.gate["hidden_act"]].sums(inner)
        shapes = {"w13": (num_experts, rows, hidden_size), "w2": (num_experts, hidden_size, inner)}
        for name, shape in shapes.items():
            codes, scales = storage_of(shape, fmt, facts().plain)
            for part, size, dtype in (
                ("codes", codes, torch.uint8),
                ("scales", scales, fmt.scale_dtype),
            ):
                p = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
                loader = partial(_load, layer=layer, is_down=name == "w2")
                set_weight_attrs(p, {"weight_loader": loader})
                layer.register_parameter(f"{name}_{part}", p)
        if self.moe.has_bias:
            for name, size in (("w13_bias", rows), ("w2_bias", hidden_size)):
                bias = torch.zeros(num_experts, size, dtype=params_dtype)
                layer.register_parameter(name, nn.Parameter(bias, requires_grad=False))
                set_weight_attrs(getattr(layer, name), extra_weight_attrs)
        # Not all models ask a parameter; the others ask the layer for what it knows by name.
        layer.load_weights = partial(_load_by_name, layer)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins codes and scales."""
        names = ("w13", "w2")
        self._join(layer, {f"{name}_weight": (f"{name}_codes", f"{name}_scales") for name in names})


def _load(
    param: nn.Parameter,
    loaded_weight: Tensor,
    weight_name: str = "",
    shard_id: str | None = None,
    expert_id: int | None = None,
    return_success: bool = False,
    *,
    layer: RoutedExperts,
    is_down: bool,
) -> bool:
    """Copies this rank's part of codes or scales of a checkpoint.

    Args:
        param: where all experts of this rank are.
        loaded_weight: of all experts [E, ...]; or of one, if `expert_id` is given.
        weight_name: vLLM's name of it.
        shard_id: of one expert: "w1" are its gates, "w3" its ups, or its only rows.
        expert_id: which one, counted over all ranks.
        return_success: vLLM asks whether the expert is here; it always learns that.
        layer: the experts.
        is_down: whether they are those of the second weight, which has parts of its columns.
    """
    config, loaded, to = layer.moe_config, loaded_weight, param.data
    row = facts().gates[gate_of(config)["hidden_act"]]
    has_halves = row.is_gated and not is_down
    if expert_id is not None:
        place = expert_id if layer.expert_map is None else int(layer.expert_map[expert_id])
        if place < 0:
            return False
        loaded, to = loaded[None], to[place, None]
        if has_halves:
            half = int(shard_id == "w3")
            to = to[:, half::2] if row.is_interleaved else to.chunk(2, 1)[half]
    elif layer.expert_map is not None:
        # By their places on this rank, behind all that are elsewhere.
        loaded = loaded[layer.expert_map.cpu().argsort()[-layer.local_num_experts :]]
    axis = 2 if is_down else 1
    if loaded.shape[axis] > 1:  # Else the scale of a whole row.
        has_both = has_halves and expert_id is None and not row.is_interleaved
        folds = loaded.chunk(2, axis) if has_both else (loaded,)
        loaded = torch.cat(
            [fold.chunk(config.tp_size, axis)[config.tp_rank] for fold in folds], axis
        )
    if loaded.shape != to.shape or loaded.dtype != to.dtype:
        raise ValueError(
            f"experts: got {show(loaded.shape)} of {loaded.dtype} for this rank, expected "
            f"{show(to.shape)} of {to.dtype}{f' at {weight_name}' if weight_name else ''}"
        )
    to.copy_(loaded)
    return True


def _load_by_name(layer: RoutedExperts, weights: Iterable[tuple[str, Tensor]]) -> Iterable[str]:
    """Loads what is called as our parameters, and the rest as vLLM does; yields the names."""
    for name, tensor in weights:
        own = name.removeprefix("routed_experts.")
        if own in layer._parameters:
            param = layer._parameters[own]
            param.weight_loader(param, tensor)
            yield own
        else:
            yield from type(layer).load_weights(layer, [(name, tensor)])
