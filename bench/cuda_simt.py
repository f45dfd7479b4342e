"""The portable kernels beside cuBLAS on an NVIDIA GPU: `python -m bench.cuda_simt`.

    cuBLAS bf16    bfloat16 on both sides
    A x W          our `matmul` of codes, plain weights, by the portable kernels
    bf16 x W       our `linear` with activations that stay bfloat16

A GPU that has kernels of its own, Hopper, leaves the products to the portable ones for this. The
table has microseconds of a call in a CUDA graph, median, weights cold, and in brackets how many
times cuBLAS's. It is printed, and nothing is written.
"""

from __future__ import annotations

import torch

import mx_kernels as mx
from bench.cuda_tune import COLD_BYTES
from bench.graph_timing import cold_copies, median_us, print_table
from mx_kernels._core.cuda import CUDA, PORTABLE

SHAPES = (
    (8192, 8192, 8192), (4096, 4096, 4096), (2048, 4096, 14336), (3000, 704, 4096),
    (1024, 4096, 4096), (512, 4096, 4096), (256, 7168, 2048), (128, 4096, 4096), (64, 4096, 4096),
    (32, 4096, 4096), (17, 4096, 4096), (16, 4096, 4096),
)  # fmt: skip
PAIRS = (
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("mxint8", "mxint8"),
    ("fp8", "fp8"),
    ("fp8_block", "fp8_block_2d"),
)
KEPT = ("mxfp4", "mxfp8", "fp8")
"""Weights of bfloat16 activations."""
CUBLAS = "cuBLAS bf16"


def times(m: int, n: int, k: int) -> dict[str, float]:
    """Returns the microseconds of each system."""
    x, w, work = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16() / 50, m * n * k
    dense = cold_copies(w, COLD_BYTES)
    found = {CUBLAS: median_us(lambda w: torch.mm(x, w.T), dense, work)}
    del dense
    for left, right in PAIRS:
        a, coded = mx.quantize(x, format=left), mx.quantize(w, format=right)
        ours = cold_copies(coded, COLD_BYTES)
        found[f"{left} x {right}"] = median_us(lambda w, a=a: mx.matmul(a, w), ours, work)
    for right in KEPT:
        ours = cold_copies(mx.quantize(w, format=right), COLD_BYTES)
        found[f"bf16 x {right}"] = median_us(
            lambda w: mx.linear(x, w, activations="bf16"), ours, work
        )
    ours = cold_copies(mx.quantize(w), COLD_BYTES)
    found["linear mxfp4"] = median_us(lambda w: mx.linear(x, w, activations="mxfp4"), ours, work)
    return found


def _cell(name: str, found: dict[str, float]) -> str:
    """Returns a time, and how many times cuBLAS's it is."""
    text = f"{found[name]:.4g}"
    return text if name == CUBLAS else f"{text} ({found[name] / found[CUBLAS]:.2f})"


def main() -> None:
    """Prints the table."""
    torch.set_default_device("cuda")
    torch.manual_seed(0)
    CUDA.plan = PORTABLE
    print_table(SHAPES, times, _cell)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
