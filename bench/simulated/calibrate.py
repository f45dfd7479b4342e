"""How far the timing model is from microseconds that others have measured.

    AITER_HSA=.../hsa/gfx950 python -m bench.simulated.calibrate .../a4w4_blockscale_tuned_gemm.csv

The table is AITER's: for each shape the fastest of its FP4 kernels and its time on an MI355X,
averaged over 101 launches, each with operands of its own. All of them together are larger than
the Infinity Cache, so that operands are cold, except for small ones: `warm`. Rows in the order of
their measured time are taken alternately to fit (parameters.py says what) and to judge. What is
kept is the model's time and its ratio to the measured one.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from bench.device import REPOSITORY
from bench.simulated import aiter
from gfx950.timing import profile
from gfx950.timing.parameters import Machine

RESULTS = REPOSITORY / "bench" / "results" / "gfx950-calibration.csv"
PICTURE = REPOSITORY / "python" / "gfx950" / "calibration.png"
LAUNCHES = 101
EVERY, EVERY_WARM = 8, 3
"""Of the rows of the table, one in so many is timed."""
LARGEST_BYTES = 150e6
"""Of operands and C: larger rows cost more memory here than they teach."""
STORED_BYTES = 17 / 32
"""Of an element: half a byte and its share of a scale."""


@dataclass(frozen=True)
class Row:
    """One shape: the model's times, and what they are of the measured one."""

    m: int
    n: int
    k: int
    tile: str
    warm: bool
    half: str
    """`fit` or `judge`."""
    clock_us: float
    latency_us: float
    clock_ratio: float
    latency_ratio: float


@dataclass(frozen=True)
class Measured:
    """A row of AITER's table."""

    m: int
    n: int
    k: int
    tile: aiter.Tile
    us: float

    @property
    def is_warm(self) -> bool:
        """Whether the Infinity Cache holds the operands of all launches."""
        return LAUNCHES * (self.m + self.n) * self.k * STORED_BYTES <= Machine().infinity_bytes


def measured(table: Path) -> list[Measured]:
    """Returns the rows of one of AITER's FP4 kernels on gfx950, by time."""
    found = []
    with table.open() as file:
        for row in csv.DictReader(file):
            tile = aiter.Tile.of(row["kernelName"])
            m, n, k = (int(row[name]) for name in "MNK")
            small = (m + n) * k / 2 + 2 * m * n <= LARGEST_BYTES
            if tile and small and row["gfx"] == "gfx950" and row["splitK"] == "0":
                found.append(Measured(m, n, k, tile, float(row["us"])))
    return sorted(found, key=lambda row: (row.us, row.m, row.n, row.k))


def chosen(rows: Sequence[Measured]) -> list[Measured]:
    """Returns the rows to be timed, by time."""
    warm = {id(row) for row in [row for row in rows if row.is_warm][::EVERY_WARM]}
    return [row for i, row in enumerate(rows) if i % EVERY == 0 or id(row) in warm]


def timed(rows: Sequence[Measured]) -> Iterator[Row]:
    """Yields what the model says."""
    for i, row in enumerate(rows):
        sizes = row.m, row.n, row.k
        grid, args = row.tile.grid(row.m, row.n), aiter.blank_arguments(*sizes)
        found = profile(row.tile.kernel(), grid, aiter.THREADS, args, warm=row.is_warm,
                        with_variants=True).variants  # fmt: skip
        clock, latency = found["clock"], found["latency"]
        yield Row(*sizes, str(row.tile), row.is_warm, "judge" if i % 2 else "fit",
                  round(clock, 3), round(latency, 3),
                  round(clock / row.us, 4), round(latency / row.us, 4))  # fmt: skip


def summary(rows: Sequence[Row]) -> str:
    """Returns medians and percentiles of each half and of warm rows."""
    lines = ["rows            reading   number  median  |error| median  |error| p90"]
    groups = {
        "cold, fit": [row for row in rows if not row.warm and row.half == "fit"],
        "cold, judge": [row for row in rows if not row.warm and row.half == "judge"],
        "warm": [row for row in rows if row.warm],
    }
    for name, group in groups.items():
        for reading in ("clock", "latency"):
            ratios = np.array([getattr(row, f"{reading}_ratio") for row in group] or [np.nan])
            error = np.abs(ratios - 1)
            lines.append(
                f"{name:15} {reading:8} {len(group):7} {np.median(ratios):7.2f} "
                f"{np.median(error):15.1%} {np.percentile(error, 90):12.1%}"
            )
    return "\n".join(lines)


def outliers(rows: Sequence[Row], beyond: float = 0.25) -> list[Row]:
    """Returns the rows that no reading comes near."""
    return [r for r in rows if min(abs(r.clock_ratio - 1), abs(r.latency_ratio - 1)) > beyond]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws the ratio by size and by tile."""
    import matplotlib  # noqa: PLC0415 (loads slowly)

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (by_size, by_tile) = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    cold = [row for row in rows if not row.warm]
    for reading, color in (("clock", "tab:blue"), ("latency", "tab:orange")):
        us = [getattr(r, f"{reading}_us") / getattr(r, f"{reading}_ratio") for r in cold]
        ratio = [getattr(r, f"{reading}_ratio") for r in cold]
        by_size.scatter(us, ratio, s=12, color=color, label=reading, alpha=0.7)
        names = sorted({r.tile for r in cold}, key=lambda t: tuple(map(int, t.split("x"))))
        shift = -0.12 if reading == "clock" else 0.12
        at = [names.index(r.tile) + shift for r in cold]
        by_tile.scatter(at, ratio, s=12, color=color, alpha=0.7)
    warm = [row for row in rows if row.warm]
    us, ratio = [r.clock_us / r.clock_ratio for r in warm], [r.clock_ratio for r in warm]
    rings = {"facecolors": "none", "edgecolors": "tab:green"}
    by_size.scatter(us, ratio, s=14, label="warm, clock", **rings)
    by_size.set(xscale="log", xlabel="measured, us", ylabel="model / measured", title="by size")
    by_tile.set(title="by AITER's tile")
    by_tile.set_xticks(range(len(names)), names, rotation=60, fontsize=8)
    for axis in (by_size, by_tile):
        axis.axhline(1, color="black", linewidth=0.8)
        axis.axhspan(0.88, 1.12, color="gray", alpha=0.15)
        axis.set_ylim(0.4, 1.7)
    by_size.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def read(path: Path = RESULTS) -> list[Row]:
    """Returns the rows that were kept."""
    kinds = {"int": int, "float": float, "str": str, "bool": lambda text: text == "True"}
    with path.open() as file:
        return [
            Row(**{f.name: kinds[f.type](row[f.name]) for f in fields(Row)})
            for row in csv.DictReader(file)
        ]


def write(rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Keeps rows."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def main(table: str) -> None:
    """Times, keeps and draws all chosen rows of a table."""
    rows = list(timed(chosen(measured(Path(table)))))
    write(rows)
    draw(rows, PICTURE)
    print(summary(rows))
    for row in outliers(rows):
        print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
