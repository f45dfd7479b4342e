"""What torch itself offers: float32, bfloat16 and dynamically quantized int8.

The int8 linear is fbgemm's. It quantizes its float activations inside the call, one scale for
the whole tensor; its weights have eight bits and a scale a row. Where a processor has no VNNI,
AVX2 adds two of its products in 16 bits, which saturates: there fbgemm rounds activations to
seven bits, and its rows say so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.peers import LIKE_FLOAT, Peer, Prepared
from bench.problem import Problem

SEVEN_BITS = "seven bits of them, as this processor has no VNNI"


def prepare_f32(problem: Problem) -> Prepared:
    """Float32 activations and weights."""
    return prepared(lambda: linear(problem.x_f32, problem.weight), lambda: problem.weight)


def prepare_bf16(problem: Problem) -> Prepared:
    """Bfloat16 activations and weights."""
    weight = problem.weight.bfloat16()
    return prepared(lambda: linear(problem.x_bf16, weight), lambda: weight)


def int8_peer(seven_bits: bool) -> Peer:
    """Int8 weights times float32 activations, quantized in the call to eight bits or to seven."""

    def prepare(problem: Problem) -> Prepared:
        codes, scales = problem.weight_int8
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantized tensor.*deprecated")
            zeros = torch.zeros(len(scales), dtype=torch.int64)
            weight = torch._make_per_channel_quantized_tensor(codes, scales.double(), zeros, 0)
            packed = torch.ops.quantized.linear_prepack(weight, None)
        int8_linear = torch.ops.quantized.linear_dynamic
        return prepared(
            lambda: int8_linear(problem.x_f32, packed, seven_bits),
            problem.weight_int8.dequantize,
        )

    computes = "int8 weights with a scale a row, int8 activations with one scale a tensor"
    return Peer("torch int8", f"{computes} ({SEVEN_BITS})" if seven_bits else computes, prepare)


def prepared(call: Callable[[], Tensor], weights: Callable[[], Tensor]) -> Prepared:
    """Returns a competitor whose call returns its product."""
    return Prepared(call=call, output=call, weights=weights)


PEERS = [
    Peer("torch f32", "float32 weights and activations", prepare_f32, like=LIKE_FLOAT),
    Peer("torch bf16", "bfloat16 weights and activations", prepare_bf16, like=LIKE_FLOAT),
    int8_peer(seven_bits=not torch.cpu._is_vnni_supported()),
]
