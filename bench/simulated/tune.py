"""Measures the CDNA4 dispatch table against other cuts, on the timing model.

    python -m bench.simulated.tune 16,4096,4096 64,7168,2048    ranks all cuts for shapes
    python -m bench.simulated.tune --table                      every class of shapes, to a CSV file

The rows of `CHOICES` in mojo_kernels/cdna4/dispatch.mojo come from what this prints; the CSV file
shows for each class what the table chooses, what would have been fastest, and by how much. Cuts
that spill registers are left out. As for shapes with many workgroups, only those of one compute
unit are executed, except where K is split.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import mx_kernels as mx
from bench import device
from bench.rows import write_csv
from bench.shapes import NAMED_SHAPES, Shape
from bench.simulated import kernels, launches
from bench.simulated.launches import Cut, Operands
from bench.simulated.systems import cut_for

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
)  # fmt: skip
SHOWN = 8


@dataclass(frozen=True)
class TunedRow:
    """What the table chooses for one shape, and what would have been fastest."""

    op: str
    m: int
    n: int
    k: int
    row: int
    """The row of `CHOICES`."""
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


def classes() -> list[Shape]:
    """Returns a shape of each class, and the named ones."""
    grid = (Shape(m, n, k) for m, (n, k) in product(ROWS, WEIGHTS))
    return list(dict.fromkeys([*NAMED_SHAPES, *MORE, *grid]))


class Candidates:
    """Every cut that could pay for some shapes, compiled once."""

    def __init__(self, shapes: Sequence[Shape]):
        texts = [",".join(map(str, shape)) for shape in shapes]
        emitted = kernels.run_program("candidates.mojo", {}, texts)
        self._kernels = kernels.kernels_of(emitted)
        self._cuts: dict[tuple[str, Shape], list[Cut]] = defaultdict(list)
        for op, name, text, *numbers in kernels.launches_of(emitted):
            x, y, z, *rest = map(int, numbers)
            self._cuts[op, Shape(*map(int, text.split(",")))].append(
                Cut(op, name, (x, y, z), *rest)
            )

    def rank(self, op: str, operands: Operands) -> list[tuple[float, str]]:
        """Returns the time in microseconds and the name of every cut, fastest first."""
        kernel, chosen = cut_for(operands.shape, op)
        timed = {chosen.name: _time_us(kernel, chosen, operands)}
        for cut in self._cuts[op, operands.shape]:
            kernel = self._kernels[cut.label]
            if cut.name not in timed and not kernel.scratch_bytes:
                timed[cut.name] = _time_us(kernel, cut, operands)
        return sorted((time_us, name) for name, time_us in timed.items())


def _time_us(kernel, cut: Cut, operands: Operands) -> float:
    return launches.ours(kernel, cut, operands).profile(whole_grid=False).time_us


def tune(shapes: Sequence[Shape]) -> Iterator[TunedRow]:
    """Yields what the table chooses and what would have been fastest, for each operation."""
    candidates = Candidates(shapes)
    commit, date = device.describe_commit(), device.today()
    for shape in shapes:
        operands = Operands(shape)
        for op in OPS:
            ranked = candidates.rank(op, operands)
            times = {name: time_us for time_us, name in ranked}
            chosen = cut_for(shape, op)[1].name
            row = mx.explain(*shape, device="gfx950", op=op).row
            fastest_us, fastest = ranked[0]
            yield TunedRow(
                op, *shape, row=row, chosen=chosen, chosen_us=times[chosen],
                fastest=fastest, fastest_us=fastest_us, times_fastest=times[chosen] / fastest_us,
                cuts=len(ranked), source="model", commit=commit, date=date,
            )  # fmt: skip


def main(arguments: list[str]) -> None:
    """Ranks the cuts of each shape on the command line, or measures the whole table."""
    if arguments == ["--table"]:
        rows = []
        for row in tune(classes()):
            rows.append(row)
            print(f"{row.op} {row.shape}: {row.chosen} {row.chosen_us:.2f} us, row {row.row}, "
                  f"{row.times_fastest:.2f} x {row.fastest}", flush=True)  # fmt: skip
        write_csv(RESULT, rows)
        return
    shapes = [Shape(*map(int, text.split(","))) for text in arguments]
    candidates = Candidates(shapes)
    for shape, op in product(shapes, OPS):
        chosen = cut_for(shape, op)[1].name
        print(f"{op} {shape}, model; the dispatch chooses {chosen}")
        for place, (time_us, name) in enumerate(candidates.rank(op, Operands(shape))):
            if place < SHOWN or name == chosen:
                print(f"    {time_us:7.2f} us  {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
