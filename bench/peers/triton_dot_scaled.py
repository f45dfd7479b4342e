"""bfloat16 activations times MXFP4 weights in Triton: the straightforward `dot_scaled` kernel.

One program a tile of C; operands come as they are stored, row-major codes and scales, and
Triton decodes what the hardware does not multiply. Each call uses the tiling that was fastest.
"""

# ruff: noqa: PLR0917  kernels are launched with positional arguments

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 32
TILINGS = ((16, 64, 128), (16, 128, 128), (32, 128, 128), (64, 128, 128), (128, 128, 64),
           (128, 256, 64))  # fmt: skip


@triton.jit
def _tile(
    x_ptr, codes_ptr, scales_ptr, out_ptr, m, n, k,
    M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(1) * M_TILE + tl.arange(0, M_TILE)
    columns = tl.program_id(0) * N_TILE + tl.arange(0, N_TILE)
    steps = tl.arange(0, K_TILE)
    packed = tl.arange(0, K_TILE // 2)
    blocks = tl.arange(0, K_TILE // 32)
    sums = tl.zeros((M_TILE, N_TILE), dtype=tl.float32)
    for start in range(0, k, K_TILE):
        x = tl.load(
            x_ptr + rows[:, None] * k + start + steps[None, :],
            mask=(rows[:, None] < m) & (start + steps[None, :] < k),
            other=0.0,
        )
        codes = tl.load(
            codes_ptr + columns[None, :] * (k // 2) + start // 2 + packed[:, None],
            mask=(columns[None, :] < n) & (start // 2 + packed[:, None] < k // 2),
            other=0,
        )
        scales = tl.load(
            scales_ptr + columns[:, None] * (k // 32) + start // 32 + blocks[None, :],
            mask=(columns[:, None] < n) & (start // 32 + blocks[None, :] < k // 32),
            other=127,
        )
        sums = tl.dot_scaled(x, None, "bf16", codes, scales, "e2m1", sums)
    tl.store(
        out_ptr + rows[:, None] * n + columns[None, :],
        sums.to(tl.bfloat16),
        mask=(rows[:, None] < m) & (columns[None, :] < n),
    )


def multiply(x, codes, scales, out, tiling) -> torch.Tensor:
    """Writes x @ dq(codes, scales).T to `out`."""
    (m, k), n = x.shape, codes.shape[0]
    grid = (triton.cdiv(n, tiling[1]), triton.cdiv(m, tiling[0]))
    _tile[grid](x, codes, scales, out, m, n, k, *tiling, num_warps=4 if tiling[1] < 256 else 8)
    return out


def tilings_for(m: int) -> tuple:
    """Returns the tilings worth trying for `m` rows."""
    return tuple(tiling for tiling in TILINGS if tiling[0] <= max(16, 2 * m))
