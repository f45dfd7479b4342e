"""Measures the CDNA4 dispatch table against other cuts, on the timing model.

    python -m bench.simulated.tune 16,4096,4096 64,7168,2048    ranks all cuts for shapes
    python -m bench.simulated.tune --table                      every class of shapes, to a CSV file

The rows of `CHOICES` in cdna4/host/choices.mojo come from what this prints; the CSV file shows
for each class what the table chooses, what would have been fastest, and by how much. Cuts
that spill registers are left out. As for shapes with many workgroups, only those of one compute
unit are executed, except where K is split: then all are, so cuts with much work are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import mx_kernels as mx
from bench import device
from bench.rows import write_csv
from bench.shapes import NAMED_SHAPES, Shape
from bench.simulated import kernels, launches
from bench.simulated.catalogue import Catalogue
from bench.simulated.launches import Operands
from bench.simulated.systems import chosen, our_quantizer

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
    Shape(1024, 2304, 16384),
)  # fmt: skip
"""For `matmul` only, which has a kernel for each size of a tile."""
SHOWN = 8
STAGE_K = 256
"""Of K that is no multiple all kernels of the table are timed, in their instances with a tail."""
MIDDLE = "matmul_middle"
"""Kernels that multiply codes, of floats those that a launch has made before."""
MOST_SHARED_WORK = 2e10
"""Multiplications and additions of a cut that splits K: all its workgroups are executed."""


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
        row = mx.explain(*shape, device="gfx950", op=op).row
        fastest_us, fastest = ranked[0]
        yield TunedRow(
            op, *shape, row=row, chosen=cut, chosen_us=times[cut],
            fastest=fastest, fastest_us=fastest_us, times_fastest=times[cut] / fastest_us,
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
    for shape, op in product(shapes, OPS):
        cut = _cut_of(chosen(shape, op)[1])
        print(f"{op} {shape}, model; the dispatch chooses {cut}")
        for place, (time_us, name) in enumerate(rank(op, Operands(shape))):
            if place < SHOWN or name == cut:
                print(f"    {time_us:7.2f} us  {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
