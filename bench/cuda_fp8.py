"""Products of eight bits on an NVIDIA GPU beside cuBLAS: `python -m bench.cuda_fp8`.

    system             what a call does
    bf16               cuBLAS, bfloat16 weights
    scaled_mm rowwise  cuBLAS, E4M3 codes, a float32 scale a row
    the same, fast     sums stay in the tensor cores, which keep 14 bits of them
    scaled_mm 128      cuBLAS, E4M3 codes, 1 x 128 by 128 x 128
    DeepGEMM           the same, where `sgl-deep-gemm` is installed
    A x W              our `matmul` of codes
    linear mxfp4       our `linear`: bfloat16 activations become MXFP4 in the call

Microseconds of a call in a CUDA graph, median, weights cold. cuBLAS gets random codes and scales of
one: its time does not depend on them. It prints a table, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import mx_kernels as mx
from bench.cuda_tune import COLD_BYTES
from bench.graph_timing import cold_copies, median_us, print_table

SHAPES = (
    (8192, 8192, 8192), (4096, 4096, 4096), (1024, 8192, 8192), (2048, 4096, 14336),
    (1024, 4096, 4096), (512, 4096, 4096), (256, 7168, 2048), (256, 3072, 1536),
    (128, 4096, 4096), (64, 7168, 2048), (1, 4096, 4096),
)  # fmt: skip
PAIRS = (
    ("fp8", "fp8"),
    ("fp8_block", "fp8_block_2d"),
    ("mxfp8", "mxfp8"),
    ("mxfp8", "mxfp4"),
)
CODES = torch.float8_e4m3fn
BLOCK = 128


def peers(x: torch.Tensor, w: torch.Tensor) -> dict[str, tuple[Callable, torch.Tensor]]:
    """Returns cuBLAS's calls, and the weights that each takes."""
    from torch.nn.functional import ScalingType, scaled_mm  # noqa: PLC0415  not in every torch

    (m, k), n = x.shape, len(w)
    codes, weights = x.to(CODES), (50 * w).to(CODES)
    rows, columns = torch.ones(m, 1), torch.ones(1, n)
    # Scales along K have a stride of four blocks' multiples.
    blocks = torch.ones(k // BLOCK, m).t()
    squares = torch.ones(-(-n // BLOCK), -(-k // BLOCK // 4) * 4)[:, : k // BLOCK].t()
    kinds = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    out = {"out_dtype": torch.bfloat16}

    def rowwise(w: torch.Tensor, *, is_fast: bool) -> torch.Tensor:
        scales = {"scale_a": rows, "scale_b": columns}
        return torch._scaled_mm(codes, w.t(), **scales, **out, use_fast_accum=is_fast)

    return {
        "bf16": (lambda w: torch.mm(x, w.T), w),
        "scaled_mm rowwise": (partial(rowwise, is_fast=False), weights),
        "the same, fast": (partial(rowwise, is_fast=True), weights),
        "scaled_mm 128": (
            lambda w: scaled_mm(
                codes, w.t(), blocks, kinds[0], squares, kinds[1], output_dtype=torch.bfloat16
            ),
            weights,
        ),
        **deep_gemm(codes, weights),
    }


def deep_gemm(codes: torch.Tensor, weights: torch.Tensor) -> dict[str, tuple]:
    """Returns DeepGEMM's call, if it is installed; its kernels are compiled at their first use."""
    try:
        from deep_gemm import fp8_gemm_nt  # noqa: PLC0415  an optional package
        from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor  # noqa: PLC0415
    except ImportError:
        return {}
    (m, k), n = codes.shape, len(weights)
    blocks = get_mn_major_tma_aligned_tensor(torch.ones(m, k // BLOCK))
    squares = torch.ones(-(-n // BLOCK), k // BLOCK)
    d = torch.empty(m, n, dtype=torch.bfloat16)
    return {"DeepGEMM": (lambda w: fp8_gemm_nt((codes, blocks), (w, squares), d), weights)}


def times(m: int, n: int, k: int) -> dict[str, float]:
    """Returns the microseconds of each system; one that refuses a shape has none."""
    x, w = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16() / 50
    found = {}
    for name, (call, weights) in peers(x, w).items():
        try:
            call(weights)
        except RuntimeError:
            continue
        found[name] = median_us(call, cold_copies(weights, COLD_BYTES), m * n * k)
    for left, right in PAIRS:
        a = mx.quantize(x, format=left)
        ours = cold_copies(mx.quantize(w, format=right).preshuffle(), COLD_BYTES)
        found[f"{left} x {right}"] = median_us(lambda w, a=a: mx.matmul(a, w), ours, m * n * k)
    ours = cold_copies(mx.quantize(w).preshuffle(), COLD_BYTES)
    found["linear mxfp4"] = median_us(
        lambda w: mx.linear(x, w, activations="mxfp4"), ours, m * n * k
    )
    return found


def _cell(name: str, found: dict[str, float]) -> str:
    """Returns a time, or nothing for a system that refuses the shape."""
    return f"{found[name]:.4g}" if name in found else ""


def main() -> None:
    """Prints the table."""
    torch.set_default_device("cuda")
    torch.manual_seed(0)
    print_table(SHAPES, times, _cell)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
