"""Linear layers of vLLM: the CPU's kernel for MXFP4, and what it shares with our own checkpoints.

vLLM loads codes and scales into parameters of bytes, each rank its part. Afterwards they become one
MXTensor in the layout of their device, and the bytes are let go.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from vllm.model_executor.kernels.linear import MxFp4LinearKernel
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Dynamic
from vllm.platforms import current_platform

from mx_kernels import ops
from mx_kernels._core.checks import check_mode
from mx_kernels._core.facts import DEFAULT_FORMAT, DEFAULT_ROUNDING, activations_for
from mx_kernels.hints import ActivationsName, FormatName
from mx_kernels.integrations import ACTIVATIONS
from mx_kernels.modules import arranged, parameter
from mx_kernels.tensor import MXTensor


def activations_of(
    said: ActivationsName | None, device: torch.device, weights: FormatName = DEFAULT_FORMAT
) -> ActivationsName:
    """Returns what activations are multiplied as.

    Args:
        said: what the checkpoint says; None where it leaves them alone.
        device: where they are.
        weights: the format of what they are multiplied by.
    """
    chosen = os.environ.get(ACTIVATIONS) or said or activations_for(device, weights)
    check_mode(chosen, DEFAULT_ROUNDING)
    return chosen


def packed(codes: Tensor, scales: Tensor, format: FormatName, dtype: torch.dtype) -> nn.Parameter:
    """Returns weights in the layout of their device."""
    weight = MXTensor(codes.contiguous(), scales.contiguous(), format=format, dtype=dtype)
    return parameter(arranged(weight))


def multiply(
    layer: nn.Module, x: Tensor, bias: Tensor | None, activations: ActivationsName
) -> Tensor:
    """Returns what a layer makes of x."""
    return ops.linear(x, layer.weight, bias=bias, activations=activations)


class MXLinearKernel(MxFp4LinearKernel):
    """MXFP4 of AMD Quark and compressed-tensors on a CPU."""

    activations: ActivationsName

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Says whether this platform is a CPU."""
        return current_platform.is_cpu(), "only CPUs lack a kernel of vLLM's own"

    @classmethod
    def can_implement(cls, config) -> tuple[bool, str | None]:
        """Says whether activations are left alone or quantized to MXFP4."""
        fits = config.activation_quant_key in (None, kMxfp4Dynamic)
        return fits, "only activations that are kept or quantized to MXFP4"

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Joins codes and scales."""
        said = None if self.config.activation_quant_key is None else DEFAULT_FORMAT
        self.activations = activations_of(said, layer.weight.device)
        dtype = getattr(layer, "params_dtype", torch.bfloat16)
        layer.weight = packed(layer.weight.data, layer.weight_scale.data, DEFAULT_FORMAT, dtype)
        del layer.weight_scale

    def apply_weights(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies."""
        return multiply(layer, x, bias, self.activations)
