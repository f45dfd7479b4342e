"""AITER's hand-written kernels run in the simulator; only where AITER_HSA names their folder.

Two emulators that know nothing of each other agree on what is written here about these kernels.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import gfx950
from bench.simulated import aiter
from tests import oracle

pytestmark = pytest.mark.skipif(aiter.folder() is None, reason="AITER_HSA names no folder")
RACES = {aiter.Tile(160, 256): 6, aiter.Tile(192, 256): 2, aiter.Tile(224, 256): 4}
"""Loads that overwrite LDS which other waves may still read, by tile."""
OVERWRITES = [aiter.Tile(*t) for t in ((256, 256), (192, 256), (224, 256), (128, 512))]
"""Tiles whose last column, if it is not whole, writes zeros into the next row."""
FAMILIES = ("f4gemm", "fp8gemm_blockscale", "fmoe", "fmoe_2stages", "i8gemm", "bf16gemm")
UNKNOWN = re.compile(r"unknown (instruction|operand|modifier)")


def operand(rng, rows: int, k: int, layout: str):
    """Returns codes and scales as drawn, and as stored."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    scales = rng.integers(118, 127, (rows, k // 32)).astype(np.uint8)
    stored_codes, stored_scales = oracle.LAYOUTS["preshuffled_cdna4"].store(codes, scales)
    return (codes, scales), (codes if layout == "plain" else stored_codes, stored_scales)


def multiply(tile, m: int, n: int, k: int, **options):
    """Runs a kernel on random operands; returns D, float64 and the reference, and the result."""
    rng = np.random.default_rng(11)
    a, stored_a = operand(rng, m, k, "plain")
    b, stored_b = operand(rng, n, k, "preshuffled")
    d = np.zeros((m, n), ml_dtypes.bfloat16)
    args = aiter.arguments(stored_a, stored_b, d, (m, n, k))
    result = gfx950.run(tile.kernel(), tile.grid(m, n), aiter.THREADS, args, **options)
    return d.astype(np.float64), oracle.dequantize(*a) @ oracle.dequantize(*b).T, result


def close(d, reference) -> bool:
    return bool(np.allclose(d, reference, rtol=2.0**-8, atol=1e-3 * np.abs(reference).max()))


@pytest.mark.parametrize("tile", aiter.tiles(), ids=str)
def test_a_tile_is_computed_and_only_known_races_are_found(tile):
    d, reference, result = multiply(tile, tile.rows, tile.columns, 1024)
    assert close(d, reference)
    assert {hazard.kind for hazard in result.hazards} <= {"race"}
    assert len(result.hazards) == RACES.get(tile, 0), result.hazards


@pytest.mark.parametrize("tile", OVERWRITES, ids=str)
def test_a_partial_last_column_spoils_the_next_row(tile):
    d, reference, _ = multiply(tile, tile.rows, tile.columns + 32, 512, check=False)
    assert not close(d, reference)
