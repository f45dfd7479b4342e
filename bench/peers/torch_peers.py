"""What torch itself offers: float32, bfloat16 and dynamically quantized int8.

All three get the MXFP4 weights dequantized. The int8 linear quantizes its float
activations inside the call, one scale for the whole tensor, as ours does per
block; its weights have eight bits and one scale for the whole matrix.
"""

from __future__ import annotations

import warnings

import torch
from torch.nn.functional import linear

from bench.peers import Peer, Prepared
from bench.problem import Problem

INT8_MAX = 127


def prepare_f32(problem: Problem) -> Prepared:
    """Float32 activations and weights."""
    return _prepared(lambda: linear(problem.x_f32, problem.weight_f32))


def prepare_bf16(problem: Problem) -> Prepared:
    """Bfloat16 activations and weights."""
    weight = problem.weight_f32.bfloat16()
    return _prepared(lambda: linear(problem.x_bf16, weight))


def prepare_int8_dynamic(problem: Problem) -> Prepared:
    """Float32 activations, quantized in the call, times int8 weights."""
    scale = float(problem.weight_f32.abs().max()) / INT8_MAX
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor.*deprecated")
        weight = torch.quantize_per_tensor(problem.weight_f32, scale, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
    int8_linear = torch.ops.quantized.linear_dynamic
    # reduce_range: int8 activations of 7 bits, which keeps AVX2 from saturating.
    return _prepared(lambda: int8_linear(problem.x_f32, packed, True))


def _prepared(call) -> Prepared:
    return Prepared(call=call, output=call)


PEERS = [
    Peer("torch f32", "float32 on dequantized weights", prepare_f32, quantizes_activations=False),
    Peer(
        "torch bf16", "bfloat16 on dequantized weights", prepare_bf16, quantizes_activations=False
    ),
    Peer(
        "torch int8",
        "int8 weights with one scale a matrix, int8 activations with one scale a tensor",
        prepare_int8_dynamic,
    ),
]
