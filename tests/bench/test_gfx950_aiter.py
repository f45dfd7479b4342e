"""Products of MXFP4 codes beside AITER's tuned tiles: where we stand, and what is said of it."""

import pytest

from bench import targets
from bench.rows import Origin
from bench.simulated import tuned_tiles
from bench.simulated.tuned_tiles import TileRow
from tests.tiers import deep

ORIGIN = Origin("gfx950, simulated", "abc1234", "2026-11-23")
ROW = TileRow(
    512, 12288, 6144, "128x256", "middle128x192", 28.7, 28.8, 25.2, 32.0, "model", "abc1234",
    "2026-11-23",
)  # fmt: skip
CHEAP = [(512, 12288, 6144), (3000, 3072, 1536), (640, 16384, 4096), (2, 24576, 1536)]
"""Shapes with one or two workgroups on the compute unit that is timed."""
LEAST_RATIO = 0.98
"""AITER's time over ours, in either reading."""


@deep
@pytest.mark.parametrize("shape", CHEAP, ids=str)
def test_products_are_ahead_of_tuned_tiles_or_close(shape):
    found = next(row for row in tuned_tiles.tuned() if (row.m, row.n, row.k) == shape)
    row = tuned_tiles.timed(found, ORIGIN)
    assert min(row.ratios) >= LEAST_RATIO, row


def test_tuned_tiles_are_a_target_of_their_own():
    page = targets.load(targets.SIMULATED_AITER).text([ROW])
    assert "*simulated*" in page and "0.90 .. 1.14" in page and "middle128x192" in page
    assert "clock reading 1.139, worst 1.139, 0 below 1; latency reading 0.900" in page
