"""Measures the CDNA4 dispatch table against other cuts, on the timing model.

    python -m bench.simulated.tune 16,4096,4096 64,7168,2048    ranks all cuts for shapes
    python -m bench.simulated.tune --table                      every class of shapes, to a CSV file
    python -m bench.simulated.tune --fit                        constants of costs, to its times

The rows of `CHOICES` in cdna4/host/table.mojo come from what this prints; the CSV file shows
for each class what the table chooses, what would have been fastest, and by how much. Cuts
that spill registers are left out. As for shapes with many workgroups, only those of one compute
unit are executed, except where K is split: then all are, so cuts with much work are left out.

`--fit` asks `Costs` (cdna4/host/costs.mojo) for what it expects of every time in the file, moves
one constant after the other for as long as that leads nearer, and prints both. Constants are
changed by hand: where a choice would change, the table has to be measured again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import expm1, log
from statistics import fmean, median

from bench import device
from bench.rows import read_csv, write_csv
from bench.shapes import NAMED_SHAPES, Shape
from bench.simulated import kernels, launches
from bench.simulated.catalogue import Catalogue
from bench.simulated.launches import Operands
from bench.simulated.systems import chosen, our_quantizer
from mx_kernels._core.native import gpu_plans

RESULT = device.REPOSITORY / "bench" / "results" / "gfx950_tune.csv"
OPS = ("linear", "matmul")
ROWS = (16, 64, 256)
WEIGHTS = (
    (512, 4096), (512, 16384), (2880, 512), (3072, 1536), (4096, 256), (4096, 4096),
    (14336, 4096), (28672, 8192),
)  # fmt: skip
"""N and K."""
MORE = (
    Shape(48, 2560, 4096), Shape(128, 4096, 4096), Shape(1024, 2880, 512),
    Shape(1024, 4096, 4096), Shape(4096, 4096, 4096), Shape(8192, 8192, 8192),
    Shape(512, 3072, 1536), Shape(2048, 4096, 4096),
)  # fmt: skip
MORE_OF_CODES = (
    Shape(2, 24576, 1536), Shape(224, 12288, 1024), Shape(160, 18432, 1024),
    Shape(768, 2880, 512), Shape(640, 9216, 1024), Shape(1280, 2560, 512),
    Shape(448, 12288, 512), Shape(512, 13312, 512), Shape(512, 18432, 1024),
    Shape(640, 18432, 512), Shape(1152, 13312, 1024), Shape(896, 5120, 512),
    Shape(1280, 6144, 512), Shape(1600, 6144, 512), Shape(2048, 2560, 512),
    Shape(1600, 5120, 1024), Shape(1536, 8192, 512), Shape(640, 10240, 512),
    Shape(896, 12288, 512), Shape(1280, 10240, 512), Shape(384, 12288, 512),
    Shape(256, 2880, 4096), Shape(224, 2304, 12288), Shape(128, 1280, 8192),
    Shape(64, 2304, 12288), Shape(320, 3584, 8192), Shape(77, 6144, 16384),
    Shape(256, 6144, 12288), Shape(77, 3584, 18944), Shape(1024, 2880, 384),
    Shape(2, 10240, 8192), Shape(4, 7168, 8192), Shape(64, 8192, 4096),
    Shape(256, 8192, 8192), Shape(64, 18432, 7168), Shape(128, 6144, 16384),
    Shape(288, 9216, 16384), Shape(256, 5120, 25600), Shape(512, 8192, 28672),
    Shape(1024, 2304, 16384), Shape(2048, 6400, 5120), Shape(1024, 6144, 3072),
    Shape(1600, 5120, 6400), Shape(1600, 4608, 16384),
)  # fmt: skip
"""For `matmul` only, which has a kernel for each size of a tile."""
SHOWN = 8
STAGE_K = 256
"""Of K that is no multiple all kernels of the table are timed, in their instances with a tail."""
MIDDLE = "matmul_middle"
"""Kernels that multiply codes, of floats those that a launch has made before."""
TILE, SHORT_K = 16, 2048
"""Of table.mojo: rows, and K of codes, up to which decode kernels are not compared."""
STEPS = (0.2, 0.05, 0.01)
"""Parts of a constant by which it is moved."""
PULL = 1e-3
"""What a constant costs that is e times another, beside a mean squared error."""
MOST_SHARED_WORK = 2e10
"""Multiplications and additions of a cut that splits K: all its workgroups are executed."""


@dataclass(frozen=True)
class TunedRow:
    """What the table chooses for one shape, and what would have been fastest."""

    op: str
    m: int
    n: int
    k: int
    chosen: str
    chosen_us: float
    fastest: str
    fastest_us: float
    times_fastest: float
    cuts: int
    """How many were timed."""
    source: str
    """Always `model`."""
    commit: str
    date: str

    @property
    def shape(self) -> Shape:
        """(M, N, K)."""
        return Shape(self.m, self.n, self.k)


def classes() -> list[tuple[str, Shape]]:
    """Returns an operation and a shape of each class, and the named shapes."""
    grid = (Shape(m, n, k) for m, (n, k) in product(ROWS, WEIGHTS))
    shapes = dict.fromkeys([*NAMED_SHAPES, *MORE, *grid])
    of_both = [(op, shape) for shape in shapes for op in OPS]
    return of_both + [("matmul", shape) for shape in MORE_OF_CODES]


def rank(op: str, operands: Operands) -> list[tuple[float, str]]:
    """Returns the time in microseconds and the name of every cut that could pay, fastest first.

    Those of `linear` with a middle kernel quantize by a launch before, which counts.
    """
    own, chosen_label = chosen(operands.shape, op)
    has_tail = operands.shape.k % STAGE_K != 0
    candidates = kernels.ours(op, k_tail=True) if has_tail else kernels.catalogue_of("candidates")
    timed = {chosen_label: _time_us(own, chosen_label, operands)}
    beginnings = ("linear_", MIDDLE) if op == "linear" else ("matmul_",)
    for label, kernel in candidates.kernels.items():
        if not label.startswith(beginnings) or label in timed or kernel.scratch_bytes:
            continue
        launch = candidates.launch(label, *operands.shape)
        if launch and (launch.grid[2] == 1 or operands.shape.flops <= MOST_SHARED_WORK):
            timed[label] = _time_us(candidates, label, operands)
    before_us = our_quantizer(operands).launches[0].profile(whole_grid=False).time_us
    return sorted(
        (time_us + (0 if label.startswith(op) else before_us), _cut_of(label))
        for label, time_us in timed.items()
    )


def _cut_of(label: str) -> str:
    """Returns the name of a cut without its operation."""
    return label.partition("_")[2]


def _time_us(catalogue: Catalogue, label: str, operands: Operands) -> float:
    return launches.ours(catalogue, label, operands).profile(whole_grid=False).time_us


def tune(cases: Sequence[tuple[str, Shape]]) -> Iterator[TunedRow]:
    """Yields what the table chooses and what would have been fastest, for each case."""
    commit, date = device.describe_commit(), device.today()
    for op, shape in cases:
        ranked = rank(op, Operands(shape))
        times = {name: time_us for time_us, name in ranked}
        cut = _cut_of(chosen(shape, op)[1])
        fastest_us, fastest = ranked[0]
        yield TunedRow(
            op, *shape, chosen=cut, chosen_us=times[cut],
            fastest=fastest, fastest_us=fastest_us, times_fastest=times[cut] / fastest_us,
            cuts=len(ranked), source="model", commit=commit, date=date,
        )  # fmt: skip


def is_compared(row: TunedRow, cut: str) -> bool:
    """Says whether costs decide: a decode kernel may be first for a tile of rows, or a short K."""
    is_decode = not cut.startswith(("middle", "prefill"))
    return not is_decode or (row.m > TILE and (row.op == "linear" or row.k > SHORT_K))


class Fit:
    """How near constants come to times of the model, of plans that are compared by their cost.

    A factor of all is free: costs are compared with each other, and rows have several clocks.
    """

    def __init__(self, rows: Sequence[TunedRow]):
        self.plans = gpu_plans()
        self.samples = {
            (cut, (*row.shape, int(row.op == "matmul"))): us
            for row in rows
            for cut, us in ((row.chosen, row.chosen_us), (row.fastest, row.fastest_us))
            if is_compared(row, cut)
        }
        self.begin = dict(self.plans.costs_gfx950(()))

    def errors(self, costs: Mapping[str, int]) -> list[float]:
        """Returns the logarithms of expected by measured times, but for what all have in common."""
        values = tuple(costs.values())
        logs = [
            log(self.plans.cycles_gfx950(cut, (*asked, *values)) / us)
            for (cut, asked), us in self.samples.items()
        ]
        middle = median(logs)
        return [found - middle for found in logs]

    def loss(self, costs: Mapping[str, int]) -> float:
        """Returns the mean of their squares, and a pull to constants that no time tells about."""
        far = sum(log(costs[name] / value) ** 2 for name, value in self.begin.items())
        return fmean(error**2 for error in self.errors(costs)) + PULL * far

    def fitted(self) -> dict[str, int]:
        """Returns constants from which no step of a few per cent leads nearer."""
        best, least = self.begin, self.loss(self.begin)
        for step in STEPS:
            is_nearer = True
            while is_nearer:
                is_nearer = False
                for name, sign in product(best, (1, -1)):
                    moved = best[name] + sign * max(1, round(step * best[name]))
                    if moved > 0 and (loss := self.loss({**best, name: moved})) < least:
                        best, least, is_nearer = {**best, name: moved}, loss, True
        return best


def print_fit() -> None:
    """Prints how near the constants come, and what others would."""
    fit = Fit(read_csv(RESULT, TunedRow))
    best = fit.fitted()
    for title, costs in (("Costs.TABLE", fit.begin), ("fitted", best)):
        off = sorted(map(abs, fit.errors(costs)))
        half, most = (expm1(off[len(off) * part // 10]) for part in (5, 9))
        print(f"{title:13} {len(off)} times: half within {half:.1%}, nine of ten within {most:.1%}")
    for name, value in fit.begin.items():
        print(f"    {name:16} {value:6} {best[name]:6}")


def main(arguments: list[str]) -> None:
    """Ranks the cuts of each shape on the command line, measures the whole table, or fits costs."""
    if arguments == ["--fit"]:
        print_fit()
        return
    if arguments == ["--table"]:
        rows = []
        for row in tune(classes()):
            rows.append(row)
            print(f"{row.op} {row.shape}: {row.chosen} {row.chosen_us:.2f} us, "
                  f"{row.times_fastest:.2f} x {row.fastest}", flush=True)  # fmt: skip
        write_csv(RESULT, rows)
        return
    shapes = [Shape(*map(int, text.split(","))) for text in arguments]
    for shape, op in product(shapes, OPS):
        cut = _cut_of(chosen(shape, op)[1])
        print(f"{op} {shape}, model; the dispatch chooses {cut}")
        for place, (time_us, name) in enumerate(rank(op, Operands(shape))):
            if place < SHOWN or name == cut:
                print(f"    {time_us:7.2f} us  {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
