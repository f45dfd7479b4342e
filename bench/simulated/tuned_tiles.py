"""Our `matmul` of codes beside AITER's tuned tiles, both on the timing model.

    AITER_HSA=.../hsa/gfx950 python -m bench.simulated.tuned_tiles .../aiter/configs

The shapes of MXFP4 are the cold ones of bench/results/gfx950-calibration.csv: every eighth of those
that AITER's table tunes, spread by their time, and 60 of many rows that no list of ours has, drawn
by a seed; those of blockscale FP8 every tenth for which its tables name an assembly kernel, and
three with few tiles. What AITER's kernels take on the model is kept, of FP8 and of the 60 by the
command above, so that they need not be here. Workgroups of one compute unit are
executed, of both alike, but for cuts of ours that split K, of which all are. What zeroes C before
AITER's splits is not counted.
"""

from __future__ import annotations

import csv
import itertools
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.device import REPOSITORY
from bench.report import Table
from bench.rows import Origin, read_csv, write_csv
from bench.shapes import Shape
from bench.simulated import aiter, calibrate, eight_bits, launches, tune
from bench.simulated.launches import Operands
from bench.simulated.systems import chosen
from gfx950.timing import profile

READINGS = ("clock", "latency")
"""What the model was fitted to leaves two of them open."""
MANY_ROWS = 128
HELD_OUT = REPOSITORY / "bench" / "results" / "gfx950-held-out.csv"
HELD_OUT_ROWS, SEED = 60, 48
MXFP4_TABLE = "a4w4_blockscale_tuned_gemm.csv"
BLOCKSCALE = REPOSITORY / "bench" / "results" / "gfx950-blockscale.csv"
EVERY, FIRST = 10, 5
"""Of the blockscale rows in the order of their time: which are kept."""
FEW_TILES = (Shape(288, 128, 7168), Shape(768, 128, 7168), Shape(1856, 128, 7168))
"""Shapes that are kept beside these."""


@dataclass(frozen=True)
class BlockscaleRow:
    """A shape, AITER's FP8 kernel for it, what it takes as measured by AITER and on the model."""

    m: int
    n: int
    k: int
    rows: int
    """Of a tile, which has 128 columns."""
    splits: int
    measured_us: float
    clock_us: float
    latency_us: float

    @property
    def shape(self) -> Shape:
        """(M, N, K)."""
        return Shape(self.m, self.n, self.k)


def blockscale_tables(folder: Path) -> list[tuple[float, Shape, int, int]]:
    """Returns times, shapes, rows of a tile and splits of AITER's tables, by time."""
    fastest: dict[Shape, tuple[float, Shape, int, int]] = {}
    for path in sorted(folder.rglob("*blockscale*_tuned_gemm*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                tile = re.search(r"blockscale_BpreShuffle_(\d+)x128", row["kernelName"])
                if tile and row["gfx"] == "gfx950":
                    shape = Shape(*(int(row[name]) for name in "MNK"))
                    found = float(row["us"]), shape, int(tile[1]), int(row["splitK"])
                    fastest[shape] = min(fastest.get(shape, found), found)
    return sorted(fastest.values())


def keep_blockscale(folder: Path) -> None:
    """Times AITER's FP8 kernels on the model and keeps what they take."""
    found, every = [], blockscale_tables(folder)
    few = [row for row in every if row[1] in FEW_TILES]
    for us, shape, rows, splits in dict.fromkeys([*few, *every[FIRST::EVERY]]):
        m, n, k = shape
        blocks = k // aiter.SCALE_BLOCK
        args = aiter.blockscale_arguments(
            (np.zeros((m, k), np.uint8), np.zeros((blocks, m), np.float32)),
            (np.zeros((n, k), np.uint8), np.zeros((n // aiter.SCALE_BLOCK, blocks), np.float32)),
            np.zeros((m, n), np.uint16), shape, splits,
        )  # fmt: skip
        grid = aiter.blockscale_grid(rows, m, n, splits)
        took = profile(aiter.blockscale(rows), grid, aiter.THREADS, args, with_variants=True)
        clock_us, latency_us = (round(took.variants[name], 3) for name in READINGS)
        found.append(BlockscaleRow(*shape, rows, splits, round(us, 3), clock_us, latency_us))
    write_csv(BLOCKSCALE, found)


@dataclass(frozen=True)
class TileRow:
    """A shape, what computes it, and both times in both readings."""

    format: str
    """Of activations."""
    m: int
    n: int
    k: int
    aiter_tile: str
    cut: str
    aiter_clock_us: float
    aiter_latency_us: float
    clock_us: float
    latency_us: float
    source: str
    """Always `model`."""
    commit: str
    date: str

    @property
    def shape(self) -> Shape:
        """(M, N, K)."""
        return Shape(self.m, self.n, self.k)

    @property
    def ratios(self) -> tuple[float, float]:
        """AITER's time over ours."""
        return self.aiter_clock_us / self.clock_us, self.aiter_latency_us / self.latency_us


def held_out(measured: Sequence[calibrate.Measured]) -> list[calibrate.Measured]:
    """Draws cold rows of `MANY_ROWS` and more that no list of ours has.

    One of each of `HELD_OUT_ROWS` equal parts in the order of M, then of the weights' size.
    """
    listed = {shape for _, shape in tune.classes()}
    listed |= {Shape(row.m, row.n, row.k) for row in calibrate.read()}
    rows = {Shape(row.m, row.n, row.k): row for row in reversed(measured) if not row.is_warm}
    left = sorted(
        (shape for shape in rows if shape.m >= MANY_ROWS and shape not in listed),
        key=lambda shape: (shape.m, shape.n * shape.k, shape.n),
    )
    draw, count = random.Random(SEED).randrange, len(left)
    ends = [part * count // HELD_OUT_ROWS for part in range(HELD_OUT_ROWS + 1)]
    return [rows[left[draw(*part)]] for part in itertools.pairwise(ends)]


def keep_held_out(folder: Path) -> None:
    """Times AITER's kernels for these rows of its table on the model and keeps what they take."""
    rows = calibrate.timed(held_out(calibrate.measured(folder / MXFP4_TABLE)))
    calibrate.write([replace(row, half="held out") for row in rows], HELD_OUT)


def tuned() -> list[calibrate.Row]:
    """Returns the shapes whose operands are in no cache."""
    return [row for row in calibrate.read() if not row.warm] + calibrate.read(HELD_OUT)


def timed(row: calibrate.Row | BlockscaleRow, origin: Origin) -> TileRow:
    """Returns what the model says of the launch that the dispatch chooses."""
    shape = Shape(row.m, row.n, row.k)
    if isinstance(row, BlockscaleRow):
        format, tile = "fp8_block", f"{row.rows}x128" + f" s{row.splits}" * (row.splits > 1)
        cut, launch = eight_bits.chosen(format, shape)
    else:
        format, tile = "mxfp4", row.tile
        catalogue, label = chosen(shape, "matmul")
        cut, launch = label.partition("_")[2], launches.ours(catalogue, label, Operands(shape))
    found = launch.profile(whole_grid=False).variants
    return TileRow(
        format, *shape, tile, cut, row.clock_us, row.latency_us,
        round(found["clock"], 3), round(found["latency"], 3), "model", origin.commit, origin.date,
    )  # fmt: skip


def rows(origin: Origin, progress: Callable[[str], None], every: int) -> Iterator[TileRow]:
    """Yields a row for one shape in so many."""
    for row in (*tuned()[::every], *read_csv(BLOCKSCALE, BlockscaleRow)[::every]):
        progress(f"{row.m} x {row.n} x {row.k}: executing and timing on the model")
        yield timed(row, origin)


def tables(found: Sequence[TileRow]) -> list[Table]:
    """Returns one table, those first with which we are behind most."""
    headings = ["format", "M x N x K", "AITER's tile", "cut", "AITER us", "us", "AITER / ours"]
    cells = [
        [
            row.format, str(row.shape), row.aiter_tile, row.cut,
            _range((row.aiter_clock_us, row.aiter_latency_us)),
            _range((row.clock_us, row.latency_us)), _range(row.ratios),
        ]
        for row in sorted(found, key=lambda row: min(row.ratios))
    ]  # fmt: skip
    return [Table("AITER's tuned tiles, *simulated*", headings, cells)]


def text(found: Sequence[TileRow]) -> str:
    """Returns the table as a document."""
    title = (
        "`matmul` of MXFP4 and FP8 codes beside AITER's tuned tiles, *simulated*: both on a timing "
        "model of gfx950, which was fitted to AITER's published times. A range is between its two "
        f"readings, launch cost included. Commit {found[0].commit}, {found[0].date}."
    )
    lines = []
    for format in dict.fromkeys(row.format for row in found):
        of_format = [row for row in found if row.format == format]
        many = [row for row in of_format if row.m >= MANY_ROWS]
        lines += [summary(format, of_format), summary(f"{MANY_ROWS} rows and more", many)]
    parts = [title, " ".join(line for line in lines if line), tables(found)[0].to_markdown()]
    return "\n\n".join(parts) + "\n"


def summary(name: str, found: Sequence[TileRow]) -> str:
    """Returns a sentence on AITER's time over ours in both readings; nothing of no rows."""
    if not found:
        return ""
    by_reading = list(zip(*(row.ratios for row in found), strict=True))
    means = [statistics.geometric_mean(ratios) for ratios in by_reading]
    worst = [min(ratios) for ratios in by_reading]
    behind = [sum(ratio < 1 for ratio in ratios) for ratios in by_reading]
    told = "; ".join(
        f"{reading} reading {mean:.3f}, worst {least:.3f}, {count} below 1"
        for reading, mean, least, count in zip(READINGS, means, worst, behind, strict=True)
    )
    return f"{name}, {len(found)} shapes, geometric mean of AITER / ours: {told}."


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} .. {high}"


if __name__ == "__main__":
    keep_blockscale(Path(sys.argv[1]))
    keep_held_out(Path(sys.argv[1]))
