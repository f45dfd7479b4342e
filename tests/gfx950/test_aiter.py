"""AITER's hand-written kernels run in the simulator; only where AITER_HSA names their folder.

Two emulators that know nothing of each other agree on what is written here about these kernels.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gfx950
from bench.simulated import aiter
from gfx950.isa.code_object import code_objects
from gfx950.machine.decode import decode_kernel
from tests import oracle
from tests.gfx950.encodings import instructions

pytestmark = pytest.mark.skipif(aiter.folder() is None, reason="AITER_HSA names no folder")
RACES = {aiter.Tile(160, 256): 6, aiter.Tile(192, 256): 2, aiter.Tile(224, 256): 4}
"""Loads that overwrite LDS which other waves may still read, by tile."""
OVERWRITES = [aiter.Tile(*t) for t in ((256, 256), (192, 256), (224, 256), (128, 512))]
"""Tiles whose last column, if it is not whole, writes zeros into the next row."""
FAMILIES = ("f4gemm", "fp8gemm_blockscale", "fmoe", "fmoe_2stages", "i8gemm", "bf16gemm")
FP8_ROWS = (32, 48, 64, 80, 96, 128)
FP8_BLOCK = aiter.SCALE_BLOCK
FP8 = ml_dtypes.float8_e4m3fn


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


@pytest.mark.parametrize("rows", FP8_ROWS)
def test_block_scaled_fp8_is_truncated_to_bfloat16(rows):
    m, n, k = rows, FP8_BLOCK, 512
    rng = np.random.default_rng(12)
    a, b = (rng.standard_normal((count, k)).astype(FP8) for count in (m, n))
    a_scales = rng.uniform(0.5, 2, (k // FP8_BLOCK, m)).astype(np.float32)
    b_scales = rng.uniform(0.5, 2, (n // FP8_BLOCK, k // FP8_BLOCK)).astype(np.float32)
    shuffled = b.view(np.uint8).reshape(n // 16, 16, k // 32, 2, 16).transpose(0, 2, 3, 1, 4)
    c = np.zeros((m, n), ml_dtypes.bfloat16)
    stored = (a.view(np.uint8), a_scales), (np.ascontiguousarray(shuffled), b_scales)
    args = aiter.blockscale_arguments(*stored, c, (m, n, k))
    grid = aiter.blockscale_grid(rows, m, n)
    result = gfx950.run(aiter.blockscale(rows), grid, aiter.THREADS, args)
    blocks = [x.astype(np.float64).reshape(len(x), -1, FP8_BLOCK) for x in (a, b)]
    weights = np.repeat(b_scales.astype(np.float64), FP8_BLOCK, 0)
    reference = np.einsum("mbk,nbk,bm,nb->mn", *blocks, a_scales.astype(np.float64), weights)
    assert result.hazards == []
    assert {warning.kind for warning in result.warnings} == {"wait states"}
    found = c.astype(np.float64)
    tiny = 1e-4 * np.abs(reference).max()
    assert (np.abs(found) <= np.abs(reference) * (1 + 1e-4) + tiny).all(), "rounded up"
    assert (np.abs(found) >= np.abs(reference) * (1 - 2.0**-7) - tiny).all()


@cache
def instructions_of_families() -> dict[Path, set[tuple]]:
    """Returns what the kernels of all families have, by their files."""
    files = (path for family in FAMILIES for path in (aiter.folder() / family).rglob("*.co"))
    return {
        path: set().union(*(instructions(code.code) for code in code_objects(path.read_bytes())))
        for path in sorted(files)
    }


def test_every_instruction_of_every_family_decodes():
    """In the fewest files that have all of them, of a thousand."""
    files = instructions_of_families()
    missing = set().union(*files.values())
    assert {path.relative_to(aiter.folder()).parts[0] for path in files} == set(FAMILIES)
    assert len(missing) > 100
    while missing:
        path = max(files, key=lambda path: len(files[path] & missing))
        assert decode_kernel(gfx950.load(path)), path
        missing -= files[path]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kernel_of_every_family_decodes(family):
    path = min((aiter.folder() / family).rglob("*.co"), key=lambda path: path.stat().st_size)
    assert decode_kernel(gfx950.load(path)), path
