"""Weights of eight and of four bits as torch's other operators take them, oneDNN's among them.

    oneDNN int8     `onednn::qlinear_pointwise`, which torch.compile makes of a quantized linear;
                    activations are quantized before it, in the call
    torch W8A16     `_weight_int8pack_mm`: int8 weights with a scale a row, bfloat16 activations
    torch W4A16     `_weight_int4pack_mm_for_cpu`: 4-bit weights with a scale and a zero point
                    for 32, bfloat16 activations

Of torch 2.13 on x86 (measured on AMD EPYC family 25, 2026-11-22) these are left out:

    _dyn_quant_matmul_4bit          there is no kernel but a reference one: 77 ms at
                                    1 x 4096 x 4096, where W4A16 takes 0.9; with scales for 32
                                    it refuses bfloat16. Its kernels are KleidiAI's, for ARM
    qlinear_pointwise, signed x     oneDNN has a reference kernel alone: 700 ms at 1 x 4096 x 4096
    _weight_int8pack_mm, float32 x  likewise: 22 ms
    _scaled_mm of float8            likewise: 257 ms
    quantized::linear_dynamic       fbgemm's is `torch int8`; the engines onednn (1.0 to 1.5
                                    times as long) and qnnpack (7 to 10 times) are slower
    4-bit weights in oneDNN         torch has no operator for them on the CPU: oneDNN's f4_e2m1
                                    and int4 weights cannot be reached, nor by ONNX Runtime's wheel
"""

from __future__ import annotations

import torch

from bench.peers import LIKE_FLOAT, Peer, Prepared
from bench.peers.torch_peers import prepared
from bench.problem import Problem

W4_GROUP, W4_LEVELS, W4_MIDDLE = 32, 15, 8
INNER_K_TILES = 1
"""An argument for CUDA that the CPU's packing ignores."""
WITHOUT_POST_OPERATION = (None, 1.0, 0, torch.bfloat16, "none", [], "")
"""Of `qlinear_pointwise`: bias, scale, zero point and type of the result, what is done to it."""


def prepare_onednn_int8(problem: Problem) -> Prepared:
    """Float32 activations, quantized to unsigned bytes in the call, times int8 weights."""
    codes, scales = problem.weight_int8
    packed = torch.ops.onednn.qlinear_prepack(codes, [problem.shape.m, problem.shape.k])
    zeros = torch.zeros(len(scales), dtype=torch.int64)

    def call() -> torch.Tensor:
        x = torch.quantize_per_tensor_dynamic(problem.x_f32, torch.quint8, False)
        return torch.ops.onednn.qlinear_pointwise(
            x.int_repr(), x.q_scale(), x.q_zero_point(),
            packed, scales, zeros, *WITHOUT_POST_OPERATION,
        )  # fmt: skip

    return prepared(call, problem.weight_int8.dequantize)


def prepare_w8a16(problem: Problem) -> Prepared:
    """Bfloat16 activations times int8 weights."""
    codes, scales = problem.weight_int8
    scales = scales.bfloat16()
    return prepared(
        lambda: torch._weight_int8pack_mm(problem.x_bf16, codes, scales),
        lambda: codes.float() * scales.float().unsqueeze(-1),
    )


def prepare_w4a16(problem: Problem) -> Prepared:
    """Bfloat16 activations times 4-bit weights."""
    blocks = problem.weight.view(problem.shape.n, -1, W4_GROUP)
    low, high = blocks.aminmax(dim=-1, keepdim=True)
    scales = ((high - low) / W4_LEVELS).bfloat16()
    middles = (low + W4_MIDDLE * scales.float()).bfloat16()
    codes = (blocks - middles.float()).div(scales.float()).add(W4_MIDDLE).round()
    codes = codes.clamp(0, W4_LEVELS)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        codes.flatten(1).int(), INNER_K_TILES
    )
    groups = torch.cat([scales, middles], dim=-1).transpose(0, 1).contiguous()
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return prepared(
        lambda: multiply(problem.x_bf16, packed, W4_GROUP, groups),
        lambda: ((codes - W4_MIDDLE) * scales.float() + middles.float()).flatten(1),
    )


ONEDNN_INT8 = Peer(
    "oneDNN int8",
    "int8 weights with a scale a row, 8-bit activations with one scale a tensor",
    prepare_onednn_int8,
)
HAS_KERNEL = torch.cpu._is_avx512_supported()
"""Whether oneDNN has a kernel for it that is not its reference: 5.8 s at 16 x 2112 x 7168 on
AVX2 and on AVX2-VNNI, 1 ms on AVX-512."""
LEFT_OUT = [] if HAS_KERNEL else ["oneDNN int8: rows left out, it has no kernel without AVX-512"]

PEERS = [
    *([ONEDNN_INT8] if HAS_KERNEL else []),
    Peer(
        "torch W4A16",
        "integer 4-bit weights with a scale and a zero point per 32, bfloat16 activations",
        prepare_w4a16,
        like=LIKE_FLOAT,
    ),
    Peer(
        "torch W8A16",
        "int8 weights with a scale a row, bfloat16 activations",
        prepare_w8a16,
        like=LIKE_FLOAT,
    ),
]
