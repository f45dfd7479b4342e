"""How far the timing model is from microseconds that others have measured.

    AITER_HSA=.../hsa/gfx950 python -m bench.simulated.calibrate .../a4w4_blockscale_tuned_gemm.csv

The table is AITER's: for each shape the fastest of its FP4 kernels and its time on an MI355X,
averaged over 101 launches, each with operands of its own. All of them together are larger than
the Infinity Cache, so that operands are cold, except for small ones: `warm`. Rows in the order of
their measured time are taken alternately to fit (parameters.py says what) and to judge. What is
kept is the model's time and its ratio to the measured one.

    python -m bench.simulated.calibrate     fits the clock of busy matrix pipes

`POINTS` are the rates that AMD publishes with its Gluon tutorials for gfx950, products of 4096 x
4096 x K, each with the busy share of the matrix pipes in its loop: how far the rate is below what
the share would give at the peak clock is the clock. Of each width of operands every other point,
by share, is fitted and the others judge.
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
from gfx950.timing.parameters import FP16_FLOPS_PER_CYCLE, Machine

RESULTS = REPOSITORY / "bench" / "results" / "gfx950-calibration.csv"
POINTS = REPOSITORY / "bench" / "results" / "gfx950-clock.csv"
LOOP_SHARE = 0.95
"""Of a launch of these points, as their source says."""
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


@dataclass(frozen=True)
class Point:
    """A published rate, and how busy matrix pipes were."""

    kernel: str
    operands: str
    """`fp4`, `fp8` or `fp16`."""
    k: int
    loop_share: float
    tflops: float

    @property
    def share(self) -> float:
        """Busy share of the pipes over the launch."""
        return self.loop_share * LOOP_SHARE

    @property
    def ghz(self) -> float:
        """The clock at which pipes as busy as these have that rate."""
        machine = Machine()
        pipes = machine.num_cus * machine.simds_per_cu * FLOPS_PER_CYCLE[self.operands]
        return self.tflops * 1e3 / (pipes * self.share)

    @property
    def modelled_ghz(self) -> float:
        """The same by the model."""
        machine = Machine(clock_ghz=Machine().peak_ghz)
        return machine.ghz_of(self.share, FLOPS_PER_CYCLE[self.operands])


FLOPS_PER_CYCLE = {
    name: FP16_FLOPS_PER_CYCLE * times for name, times in (("fp4", 4), ("fp8", 2), ("fp16", 1))
}


def points(path: Path = POINTS) -> dict[str, list[Point]]:
    """Returns the published rates by operands and share; those at even places are fitted."""
    with path.open() as file:
        found = [
            Point(r["kernel"], r["operands"], int(r["k"]), float(r["loop_share"]),
                  float(r["tflops"])) for r in csv.DictReader(file)
        ]  # fmt: skip
    found.sort(key=lambda point: (point.operands, point.loop_share, point.tflops))
    return {name: [p for p in found if p.operands == name] for name in FLOPS_PER_CYCLE}


def fitted_ghz(of: Sequence[Point]) -> float:
    """Returns the clock of pipes that are never idle, by least squares from the peak clock on."""
    share, ghz = (np.array([getattr(p, name) for p in of]) for name in ("share", "ghz"))
    peak = Machine().peak_ghz
    return peak - (share * (peak - ghz)).sum() / (share**2).sum()


def clock_table() -> str:
    """Returns published and modelled clocks."""
    lines = ["point                           K  share   GHz  model  time / published"]
    for name, of in points().items():
        for i, point in enumerate(of):
            lines.append(
                f"{point.kernel:28}{point.k:6} {point.share:6.1%} {point.ghz:5.2f} "
                f"{point.modelled_ghz:6.2f} {point.ghz / point.modelled_ghz:17.2f}"
                f" {'judges' if i % 2 else 'fitted'}"
            )
        lines.append(f"{name}: never idle {fitted_ghz(of[::2]):.2f} GHz")
    return "\n".join(lines)


def main(table: str = "") -> None:
    """Times, keeps and draws all chosen rows of a table; without one, fits the clock."""
    if not table:
        print(clock_table())
        return
    rows = list(timed(chosen(measured(Path(table)))))
    write(rows)
    draw(rows, PICTURE)
    print(summary(rows))
    for row in outliers(rows):
        print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
