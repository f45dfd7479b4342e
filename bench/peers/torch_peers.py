"""What torch itself offers: float32, bfloat16 and dynamically quantized int8.

The int8 linear is fbgemm's. It quantizes its float activations inside the call, one scale for
the whole tensor; its weights have eight bits and a scale a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.peers import LIKE_FLOAT, Peer, Prepared
from bench.problem import Problem

AVOID_SATURATION = not torch.cpu._is_vnni_supported()
"""Whether activations must have seven bits, or AVX2 instructions would saturate."""


def prepare_f32(problem: Problem) -> Prepared:
    """Float32 activations and weights."""
    return prepared(lambda: linear(problem.x_f32, problem.weight), lambda: problem.weight)


def prepare_bf16(problem: Problem) -> Prepared:
    """Bfloat16 activations and weights."""
    weight = problem.weight.bfloat16()
    return prepared(lambda: linear(problem.x_bf16, weight), lambda: weight)


def prepare_int8_dynamic(problem: Problem) -> Prepared:
    """Float32 activations, quantized in the call, times int8 weights."""
    codes, scales = problem.weight_int8
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor.*deprecated")
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        weight = torch._make_per_channel_quantized_tensor(codes, scales.double(), zeros, 0)
        packed = torch.ops.quantized.linear_prepack(weight, None)
    int8_linear = torch.ops.quantized.linear_dynamic
    return prepared(
        lambda: int8_linear(problem.x_f32, packed, AVOID_SATURATION),
        problem.weight_int8.dequantize,
    )


def prepared(call: Callable[[], Tensor], weights: Callable[[], Tensor]) -> Prepared:
    """Returns a competitor whose call returns its product."""
    return Prepared(call=call, output=call, weights=weights)


PEERS = [
    Peer("torch f32", "float32 weights and activations", prepare_f32, like=LIKE_FLOAT),
    Peer("torch bf16", "bfloat16 weights and activations", prepare_bf16, like=LIKE_FLOAT),
    Peer(
        "torch int8",
        "int8 weights with a scale a row, int8 activations with one scale a tensor",
        prepare_int8_dynamic,
    ),
]
