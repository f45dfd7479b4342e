"""One matrix product, its operands in every form that a competitor wants.

All competitors multiply the same numbers: weights are rounded to MXFP4 first,
and what a float or int8 or Q4_0 system gets is those MXFP4 weights dequantized.
Activations are bfloat16 numbers, handed over as bfloat16 or as float32.
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


class Problem:
    """Operands of `x @ w.T` for one shape, made once and shared by all competitors."""

    def __init__(self, shape: Shape, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.x_bf16 = torch.randn(shape.m, shape.k, generator=generator).bfloat16()
        self.x_f32 = self.x_bf16.float()
        self.weight_mx = mx.quantize(torch.randn(shape.n, shape.k, generator=generator))
        self.weight_f32 = self.weight_mx.dequantize(torch.float32)

    @cached_property
    def reference(self) -> torch.Tensor:
        """The product in float32, [M, N]."""
        return self.x_f32 @ self.weight_f32.T

    @cached_property
    def weight_q4(self) -> Q4Weights:
        """The weights in GGUF's Q4_0: the largest of a block becomes code 0 (that is -8)."""
        blocks = self.weight_f32.view(self.shape.n, -1, Q4_0_BLOCK)
        largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        scales = (largest / -8).half()
        inverse = scales.float().reciprocal().nan_to_num(posinf=0.0, neginf=0.0)
        codes = (blocks * inverse).add_(8.5).clamp_(0, 15).to(torch.uint8)
        return Q4Weights(codes, scales[..., 0])
