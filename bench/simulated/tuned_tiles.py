"""Our `matmul` of MXFP4 codes beside AITER's tuned tiles, both on the timing model.

The shapes are the cold ones of bench/results/gfx950-calibration.csv: every eighth of those that
AITER's table tunes, spread by their time. What AITER's kernels take on the model is kept there, so
that they need not be here. Workgroups of one compute unit are executed, of both alike, but for
cuts of ours that split K, of which all are.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.report import Table
from bench.rows import Origin
from bench.shapes import Shape
from bench.simulated import calibrate, launches
from bench.simulated.launches import Operands
from bench.simulated.systems import chosen

READINGS = ("clock", "latency")
"""What the model was fitted to leaves two of them open."""
MANY_ROWS = 128


@dataclass(frozen=True)
class TileRow:
    """A shape, what computes it, and both times in both readings."""

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


def tuned() -> list[calibrate.Row]:
    """Returns the shapes whose operands are in no cache."""
    return [row for row in calibrate.read() if not row.warm]


def timed(row: calibrate.Row, origin: Origin) -> TileRow:
    """Returns what the model says of the launch that the dispatch chooses."""
    shape = Shape(row.m, row.n, row.k)
    catalogue, label = chosen(shape, "matmul")
    launch = launches.ours(catalogue, label, Operands(shape))
    found = launch.profile(whole_grid=False).variants
    return TileRow(
        *shape, row.tile, label.partition("_")[2], row.clock_us, row.latency_us,
        round(found["clock"], 3), round(found["latency"], 3), "model", origin.commit, origin.date,
    )  # fmt: skip


def rows(origin: Origin, progress: Callable[[str], None], every: int) -> Iterator[TileRow]:
    """Yields a row for one shape in so many."""
    for row in tuned()[::every]:
        progress(f"{row.m} x {row.n} x {row.k}: executing and timing on the model")
        yield timed(row, origin)


def tables(found: Sequence[TileRow]) -> list[Table]:
    """Returns one table, those first with which we are behind most."""
    headings = ["M x N x K", "AITER's tile", "cut", "AITER us", "us", "AITER / ours"]
    cells = [
        [
            str(row.shape), row.aiter_tile, row.cut,
            _range((row.aiter_clock_us, row.aiter_latency_us)),
            _range((row.clock_us, row.latency_us)), _range(row.ratios),
        ]
        for row in sorted(found, key=lambda row: min(row.ratios))
    ]  # fmt: skip
    return [Table("AITER's tuned tiles, *simulated*", headings, cells)]


def text(found: Sequence[TileRow]) -> str:
    """Returns the table as a document."""
    many = [row for row in found if row.m >= MANY_ROWS]
    title = (
        "`matmul` of MXFP4 codes beside AITER's tuned tiles, *simulated*: both on a timing model "
        "of gfx950, which was fitted to AITER's published times. A range is between its two "
        f"readings, launch cost included. Commit {found[0].commit}, {found[0].date}."
    )
    lines = [summary("All", found), summary(f"{MANY_ROWS} rows and more", many)]
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
