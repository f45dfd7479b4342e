"""AITER's FP4 and FP8 matrix products: hand-written code objects, launched as AITER launches them.

They are AMD's, found in AITER's repository under `hsa/gfx950`; this one has none of them. The
environment variable AITER_HSA names that folder:

    f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_<rows>x<columns>.co      a tile of C a workgroup
    fp8gemm_blockscale/fp8gemm_bf16_blockscale_BpreShuffle_<rows>x128.co

Arguments are slots of 16 bytes, by name. A is plain, B and scales of FP4 are preshuffled as our
`preshuffled_gfx950` layout stores them. With splits, bf16 atomics add to a D of zeros.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import gfx950

VARIABLE = "AITER_HSA"
THREADS = 256
BLOCK = 32
SCALE_COLUMNS = 8
"""Scales of a row are padded to a multiple."""
CUS = 256
TUNED = (
    (32, 128), (64, 128), (96, 128), (128, 128), (160, 128), (192, 128), (128, 256), (160, 256),
    (192, 256), (256, 256), (128, 384), (160, 384), (128, 512), (96, 256), (224, 256),
)  # fmt: skip
"""Tiles that AITER's tuned table picks for more than ten shapes."""
CANDIDATES = 5
EDGE = 32
"""Elements of area that cost as much as loading one row or column: a guess."""
SCALE_BLOCK = 128
"""Elements along K of a float scale of FP8, and rows of weights: the columns of a tile too."""
_NAME = re.compile(r"f4gemm_bf16_per1x32Fp4_BpreShuffle_(\d+)x(\d+)")


@dataclass(frozen=True, order=True)
class Tile:
    """The part of C that a workgroup of one of AITER's kernels computes."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @classmethod
    def of(cls, name: str) -> Tile | None:
        """Reads a name of a file or a symbol; None if it is of another kind."""
        match = _NAME.search(name)
        return cls(int(match[1]), int(match[2])) if match else None

    def kernel(self) -> gfx950.Kernel:
        """Returns the kernel."""
        return _load(folder() / f"f4gemm/f4gemm_bf16_per1x32Fp4_BpreShuffle_{self}.co")

    def grid(self, m: int, n: int, splits: int = 1) -> tuple[int, int, int]:
        """Returns the workgroups."""
        return -(-n // self.columns), -(-m // self.rows), splits


def folder() -> Path | None:
    """Returns where AITER's code objects for gfx950 lie, or None if nobody has said so."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


def tiles() -> list[Tile]:
    """Returns the tiles for which AITER has a kernel."""
    if folder() is None:
        return []
    found = (Tile.of(path.stem) for path in (folder() / "f4gemm").glob("*.co"))
    return sorted(tile for tile in found if tile)


@cache
def _load(path: Path) -> gfx950.Kernel:
    return gfx950.load(path)


def preferred(m: int, n: int) -> list[Tile]:
    """Returns the tiles worth trying for C [M, N]: those that leave fewest compute units idle.

    The cost of a tile is its area for each round of workgroups, plus what it loads for them.
    Tiles that do not divide N are left out where others do: some compute wrong results there.
    """

    def cost(tile: Tile) -> int:
        x, y, _ = tile.grid(m, n)
        return -(-x * y // CUS) * (tile.rows * tile.columns + EDGE * (tile.rows + tile.columns))

    tuned = [Tile(*tile) for tile in TUNED]
    whole = [tile for tile in tuned if n % tile.columns == 0]
    return sorted(whole or tuned, key=cost)[:CANDIDATES]


def padded_blocks(k: int) -> int:
    """Returns how many scales are stored for a row of K elements."""
    return -(-(k // BLOCK) // SCALE_COLUMNS) * SCALE_COLUMNS


def arguments(a, b, d: np.ndarray, sizes: tuple[int, int, int], log2_splits: int = 0) -> dict:
    """Returns the arguments of a launch.

    Args:
        a: codes and scales of A, stored.
        b: of B.
        d: receives A @ B^T, bfloat16 [M, N].
        sizes: M, N and K.
        log2_splits: into how many parts K is cut.
    """
    m, n, k = sizes
    return {
        "D": d, "A": a[0], "B": b[0], "ScaleA": a[1], "ScaleB": b[1],
        "alpha": np.float32(1), "beta": np.float32(0),
        "strideC0": np.uint32(n), "strideA0": np.uint32(k), "strideB0": np.uint32(k),
        "Mdim": np.uint32(m), "Ndim": np.uint32(n), "Kdim": np.uint32(k),
        "strideScaleA0": np.uint32(padded_blocks(k)),
        "strideScaleB0": np.uint32(padded_blocks(k)),
        "log2_k_split": np.uint32(log2_splits),
    }  # fmt: skip


def blank_arguments(m: int, n: int, k: int, log2_splits: int = 0) -> dict:
    """Returns arguments of zeros: time depends on no value."""

    def stored(rows: int):
        scale_rows = -(-rows // BLOCK) * BLOCK
        return np.zeros(rows * k // 2, np.uint8), np.zeros(scale_rows * padded_blocks(k), np.uint8)

    return arguments(stored(m), stored(n), np.zeros((m, n), np.uint16), (m, n, k), log2_splits)


def blockscale(rows: int) -> gfx950.Kernel:
    """Returns the FP8 kernel with tiles of so many rows."""
    name = f"fp8gemm_bf16_blockscale_BpreShuffle_{rows}x{SCALE_BLOCK}.co"
    return _load(folder() / "fp8gemm_blockscale" / name)


def blockscale_grid(rows: int, m: int, n: int, splits: int = 1) -> tuple[int, int]:
    """Returns its workgroups for tiles of so many rows."""
    return n // SCALE_BLOCK * splits, -(-m // rows)


def blockscale_arguments(a, b, c: np.ndarray, sizes: tuple[int, int, int], splits: int = 1) -> dict:
    """Returns the arguments of a launch of an FP8 kernel.

    Args:
        a: codes [M, K] and float32 scales [K / 128, M].
        b: codes, preshuffled, and float32 scales [N / 128, K / 128].
        c: receives A @ B^T, bfloat16 [M, N].
        sizes: M, N and K.
        splits: into how many parts K is cut.
    """
    m, n, k = sizes
    counts = {"M": m, "Ndim": n, "K": k, "PA": k, "PB": k, "PC": 2 * n, "KS": splits,
              "scale_m": m, "scale_n": n // SCALE_BLOCK, "scale_k": k // SCALE_BLOCK}  # fmt: skip
    arrays = {"C": c, "A": a[0], "B": b[0], "SA": a[1], "SB": b[1], "BIAS": np.zeros(n, np.float32)}
    return arrays | {name: np.uint32(count) for name, count in counts.items()}
