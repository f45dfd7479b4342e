"""Products of MXFP4 and FP8 codes beside AITER's tuned tiles: where we stand, and what it says."""

import pytest

from bench import targets
from bench.rows import Origin, read_csv
from bench.shapes import Shape
from bench.simulated import aiter, calibrate, tune, tuned_tiles
from bench.simulated.tuned_tiles import TileRow
from tests.tiers import deep

ORIGIN = Origin("gfx950, simulated", "abc1234", "2026-11-23")
ROW = TileRow(
    "mxfp4", 512, 12288, 6144, "128x256", "middle128x192", 28.7, 28.8, 25.2, 32.0, "model",
    "abc1234", "2026-11-23",
)  # fmt: skip
CHEAP = [(512, 12288, 6144), (3000, 3072, 1536), (640, 16384, 4096), (2, 24576, 1536)]
"""Shapes with one or two workgroups on the compute unit that is timed."""
LEAST_RATIO = 0.97
"""AITER's time over ours, in either reading."""
HELD_OUT = {(128, 8192, 2048): 1.01, (512, 13312, 16384): 1.0, (1024, 8192, 28672): 1.0,
            (1600, 5120, 1280): 1.06, (1600, 8192, 7168): 1.02, (3200, 8192, 3584): 1.2,
            (8192, 5120, 6400): 1.17}  # fmt: skip
"""Shapes of MXFP4 that no list of ours has, those with which we are behind most among them."""
FEW_TILES = [(32, 512, 7168), (288, 128, 7168), (64, 768, 7168), (704, 128, 7168)]
"""Shapes of FP8 with long K, which AITER splits by 6 to 8."""


def by_rows(shape: Shape) -> tuple[int, int, int]:
    return shape.m, shape.n * shape.k, shape.n


@deep
@pytest.mark.parametrize("shape", CHEAP, ids=str)
def test_products_are_ahead_of_tuned_tiles_or_close(shape):
    found = next(row for row in tuned_tiles.tuned() if (row.m, row.n, row.k) == shape)
    row = tuned_tiles.timed(found, ORIGIN)
    assert min(row.ratios) >= LEAST_RATIO, row


@deep
@pytest.mark.parametrize("shape", HELD_OUT, ids=str)
def test_products_of_shapes_that_nobody_tuned_are_ahead(shape):
    found = next(row for row in tuned_tiles.tuned() if (row.m, row.n, row.k) == shape)
    row = tuned_tiles.timed(found, ORIGIN)
    assert min(row.ratios) >= HELD_OUT[shape], row


def test_held_out_rows_are_drawn_from_all_parts_of_those_that_no_list_has():
    listed = {shape for _, shape in tune.classes()}
    kept = [Shape(row.m, row.n, row.k) for row in calibrate.read(tuned_tiles.HELD_OUT)]
    assert len(set(kept)) == tuned_tiles.HELD_OUT_ROWS and kept == sorted(kept, key=by_rows)
    assert not listed.intersection(kept)
    assert not {Shape(row.m, row.n, row.k) for row in calibrate.read()}.intersection(kept)
    tile = aiter.Tile(256, 256)
    every = [calibrate.Measured(m, 8208, 8192, tile, 9.0) for m in range(100, 128 + 5 * 60)]
    drawn = tuned_tiles.held_out(every)
    assert [(row.m - 128) // 5 for row in drawn] == list(range(60))


@deep
@pytest.mark.parametrize("shape", FEW_TILES, ids=str)
def test_products_of_few_tiles_split_a_long_k(shape):
    kept = read_csv(tuned_tiles.BLOCKSCALE, tuned_tiles.BlockscaleRow)
    row = tuned_tiles.timed(next(row for row in kept if row.shape == shape), ORIGIN)
    assert min(row.ratios) >= LEAST_RATIO, row


def test_blockscale_rows_are_those_of_aiters_tables_by_time(tmp_path):
    name = "_ZN5aiter42fp8gemm_bf16_blockscale_BpreShuffle_{}x128E"
    lines = [f"gfx950,{m},512,4096,{m % 8 + 1},{50.0 - m},{name.format(32)}" for m in range(1, 4)]
    lines += [f"gfx950,1,512,4096,1,9.0,{name.format(48)}", "gfx942,9,512,4096,1,1.0,x", ""]
    (tmp_path / "a8w8_blockscale_bpreshuffle_tuned_gemm.csv").write_text(
        "\n".join(["gfx,M,N,K,splitK,us,kernelName", *lines])
    )
    assert tuned_tiles.blockscale_tables(tmp_path) == [
        (9.0, (1, 512, 4096), 48, 1),
        (47.0, (3, 512, 4096), 32, 4),
        (48.0, (2, 512, 4096), 32, 3),
    ]


def test_tuned_tiles_are_a_target_of_their_own():
    page = targets.load(targets.SIMULATED_AITER).text([ROW])
    assert "*simulated*" in page and "0.90 .. 1.14" in page and "middle128x192" in page
    assert "clock reading 1.139, worst 1.139, 0 below 1; latency reading 0.900" in page
