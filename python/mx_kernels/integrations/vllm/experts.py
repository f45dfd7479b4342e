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


FIRST_WEIGHTS, SECOND_WEIGHT = ("gate_up_proj", "up_proj"), "down_proj"
"""What our files call weights: the first ones of gates and ups, or of ups alone."""


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
            f"activation: got {config.activation} with {given} and swiglu_beta {added}, expected "
            f"one of {known}, with its own numbers"
        )
    gate = {"activation": name} | {ours: given[theirs] for ours, theirs in numbers.items()}
    if name == "situ" and gate["linear_beta"] is None:
        gate["linear_beta"] = math.inf
    return gate


def weight_names(config: FusedMoEConfig) -> tuple[str, str]:
    """Returns what our files call the weights of such experts."""
    is_gated = facts().gates[gate_of(config)["activation"]].is_gated
    return FIRST_WEIGHTS[0 if is_gated else 1], SECOND_WEIGHT


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
    """Experts as our files have them: codes and scales of all experts in one tensor each."""

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
        rows, names = facts().gates[self.gate["activation"]].sums(inner), weight_names(self.moe)
        shapes = (num_experts, rows, hidden_size), (num_experts, hidden_size, inner)
        for name, shape in zip(names, shapes, strict=True):
            codes, scales = storage_of(shape, fmt, facts().plain)
            own = partial(_own_part, layer, is_down=shape is shapes[1])
            for part, size, dtype in (
                ("codes", codes, torch.uint8),
                ("scales", scales, fmt.scale_dtype),
            ):
                p = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
                set_weight_attrs(p, {"weight_loader": partial(_load, own=own)})
                layer.register_parameter(f"{part}_of_{name}", p)
        if self.moe.has_bias:
            for name, size in (("w13_bias", rows), ("w2_bias", hidden_size)):
                bias = torch.zeros(num_experts, size, dtype=params_dtype)
                layer.register_parameter(name, nn.Parameter(bias, requires_grad=False))
                set_weight_attrs(getattr(layer, name), extra_weight_attrs)
        # Not all models ask a parameter; the others ask the layer for what it knows by name.
        layer.load_weights = partial(_load_by_name, layer)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins codes and scales."""
        names = zip(("w13_weight", "w2_weight"), weight_names(self.moe), strict=True)
        self._join(layer, {ours: (f"codes_of_{name}", f"scales_of_{name}") for ours, name in names})


def _own_part(layer: RoutedExperts, whole: Tensor, *, is_down: bool) -> Tensor:
    """Returns this rank's part of all experts' codes or scales."""
    if layer.expert_map is not None:
        # By their places on this rank, behind all that are elsewhere.
        whole = whole[layer.expert_map.cpu().argsort()[-layer.local_num_experts :]]
    config = layer.moe_config
    axis = 2 if is_down else 1
    if whole.shape[axis] == 1:
        # The scale of a whole row.
        return whole
    row = facts().gates[gate_of(config)["activation"]]
    halves = not is_down and row.is_gated and not row.is_interleaved
    folds = whole.chunk(2, axis) if halves else (whole,)
    return torch.cat([fold.chunk(config.tp_size, axis)[config.tp_rank] for fold in folds], axis)


def _load(param: nn.Parameter, whole: Tensor, *, own: partial) -> None:
    """Copies this rank's part of a tensor of a checkpoint."""
    part = own(whole)
    if part.shape != param.shape or part.dtype != param.dtype:
        raise ValueError(
            f"experts: got {show(whole.shape)} of {whole.dtype}, of which this rank has "
            f"{show(part.shape)}, expected {show(param.shape)} of {param.dtype}"
        )
    param.data.copy_(part)


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
