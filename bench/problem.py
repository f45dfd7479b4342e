"""One matrix product, its operands in every form that a competitor wants.

All competitors get the same bfloat16 activations, as bfloat16 or as float32, and the same float32
weights, which each rounds to its own format. So a product has two errors (`Errors`): that of
the arithmetic and of rounded activations, and that of everything, rounded weights included.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

import mx_kernels as mx
from bench.shapes import Shape

Q4_0_BLOCK = 32
"""Elements that share a scale in GGUF's Q4_0, as in MXFP4."""
INT8_MAX = 127


class Q4Weights(NamedTuple):
    """Symmetric 4-bit weights: value = (code - 8) * scale."""

    codes: torch.Tensor
    """uint8 [N, K / 32, 32], one code a byte."""
    scales: torch.Tensor
    """float16 [N, K / 32]."""

    def to_gguf(self) -> np.ndarray:
        """Returns GGUF's bytes: per block a float16 scale, then 16 bytes of codes.

        Byte i of a block holds code i in its low half and code i + 16 in its high half.
        """
        low, high = self.codes.chunk(2, dim=-1)
        scale_bytes = self.scales.unsqueeze(-1).view(torch.uint8)
        return torch.cat([scale_bytes, low | high << 4], dim=-1).flatten(1).numpy()

    def dequantize(self) -> torch.Tensor:
        """Returns the values, float32 [N, K]."""
        return ((self.codes.float() - 8) * self.scales.float().unsqueeze(-1)).flatten(1)


class Int8Weights(NamedTuple):
    """8-bit weights with a scale a row: value = code * scale."""

    codes: torch.Tensor
    """int8 [N, K]."""
    scales: torch.Tensor
    """float32 [N]."""

    def dequantize(self) -> torch.Tensor:
        """Returns the values, float32 [N, K]."""
        return self.codes.float() * self.scales.unsqueeze(-1)


class Errors(NamedTuple):
    """How far a product is off, in the Frobenius norm, relative to that of the exact one."""

    own_weights: float
    """Against the product with the dequantized weights that the system uses."""
    float_weights: float
    """Against the product with the weights before they were rounded."""


class Problem:
    """Operands of `x @ w.T` for one shape, made once and shared by all competitors."""

    def __init__(self, shape: Shape, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.x_bf16 = torch.randn(shape.m, shape.k, generator=generator).bfloat16()
        self.x_f32 = self.x_bf16.float()
        self.weight = torch.randn(shape.n, shape.k, generator=generator)

    @cached_property
    def weight_mx(self) -> mx.MXTensor:
        """The weights in MXFP4."""
        return mx.quantize(self.weight)

    @cached_property
    def weight_nvfp4(self) -> mx.MXTensor:
        """The weights in NVFP4, a tensor scale for each row."""
        return mx.quantize(self.weight, format="nvfp4")

    @cached_property
    def weight_q4(self) -> Q4Weights:
        """The weights in GGUF's Q4_0: the largest of a block becomes code 0 (that is -8)."""
        blocks = self.weight.view(self.shape.n, -1, Q4_0_BLOCK)
        largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        scales = (largest / -8).half()
        inverse = scales.float().reciprocal().nan_to_num(posinf=0.0, neginf=0.0)
        codes = (blocks * inverse).add_(8.5).clamp_(0, 15).to(torch.uint8)
        return Q4Weights(codes, scales[..., 0])

    @cached_property
    def weight_int8(self) -> Int8Weights:
        """The weights in int8, the largest of a row is 127."""
        scales = self.weight.abs().amax(-1) / INT8_MAX
        codes = (self.weight / scales.unsqueeze(-1)).round().to(torch.int8)
        return Int8Weights(codes, scales)

    @cached_property
    def reference(self) -> torch.Tensor:
        """The product with the weights as they are, float32 [M, N]."""
        return self.x_f32 @ self.weight.T

    def errors(self, got: torch.Tensor, own_weights: torch.Tensor) -> Errors:
        """Returns the errors of a product that was computed with these weights, [N, K]."""
        own = self.x_f32 @ own_weights.float().T
        return Errors(_relative_error(got, own), _relative_error(got, self.reference))


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.norm(got.float() - expected) / torch.linalg.norm(expected))
