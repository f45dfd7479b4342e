"""Experts of gpt-oss in vLLM on a CPU: one call of `moe` for the layer, on the checkpoint's bits.

vLLM's own method for this checkpoint asks for a backend that the CPU has with AMX alone. What it
calls its parameters, and how they are loaded, stays: w13 [E, 2I, H], gates and ups in turn, w2
[E, H, I]. On several ranks each has some of the experts or a part of each, and vLLM adds up.
"""

# ruff: noqa: PLR0917  vLLM calls methods with its own arguments

from __future__ import annotations

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, GptOssMxfp4MoEMethod

from mx_kernels._facts import DEFAULT_FORMAT
from mx_kernels.experts import moe
from mx_kernels.vllm.linear import activations_of, packed

GPT_OSS = "gpt_oss_mxfp4"
"""What vLLM calls the method of gpt-oss' checkpoints."""


class GptOssConfig(GptOssMxfp4Config):
    """vLLM's config of these checkpoints, with our experts."""

    def _make_moe_method(self, moe):
        return GptOssExperts(moe)


class GptOssExperts(GptOssMxfp4MoEMethod):
    """Creates and loads weights as vLLM's method, and computes with ours."""

    def __init__(self, moe):
        # Not its own: it looks for a backend.
        FusedMoEMethodBase.__init__(self, moe)
        self.weight_dtype = GPT_OSS
        if moe.activation is not MoEActivation.SWIGLUOAI:
            raise NotImplementedError(
                f"activation: got {moe.activation}, expected {MoEActivation.SWIGLUOAI}, that of "
                "gpt-oss"
            )

    @property
    def skip_forward_padding(self) -> bool:
        """Says that tokens come as wide as the weights are."""
        return False

    @property
    def has_unpadded_output(self) -> bool:
        """Says the same of results."""
        return False

    def maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, *args, **kwargs):
        """Returns sizes as they are; every multiple of a block does."""
        return hidden_size, intermediate_size_per_partition

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        """Returns nothing: no kernel of vLLM's is asked."""
        return None

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins codes and scales."""
        self.activations = activations_of(None, layer.w13_weight.device)
        for name in ("w13", "w2"):
            codes, scales = f"{name}_weight", f"{name}_weight_scale"
            parts = getattr(layer, codes).data, getattr(layer, scales).data
            weight = packed(*parts, DEFAULT_FORMAT, layer.params_dtype)
            delattr(layer, scales)
            setattr(layer, codes, weight)

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts,
        shared_experts_input,
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
            activations=self.activations,
        )
