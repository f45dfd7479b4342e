"""Products of eight-bit codes on the simulator's timing model, beside what AITER publishes.

`matmul` of activations and weights that are encoded: scales of 1 x 128 and 128 x 128 (fp8_block,
which AITER calls blockscale), of rows (fp8), and of blocks of 32 (mxfp8). Each is the launch that
the dispatch chooses, timed as `bench.simulated.systems` times those of four bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import ml_dtypes
import numpy as np

import mx_kernels as mx
from bench.report import Table
from bench.rows import Origin
from bench.shapes import Shape
from bench.simulated import kernels, launches
from bench.simulated.launches import BLOCK, Launch, zeros
from bench.simulated.peaks import floors_us
from bench.simulated.systems import executes_whole_grid
from gfx950.timing.parameters import Machine

RIGHT = {"fp8_block": "fp8_block_2d", "fp8": "fp8", "mxfp8": "mxfp8"}
"""The weights' format, by that of the activations."""
WEIGHTS = ((7168, 2048), (2112, 7168), (3072, 1536))
"""N and K."""
ROWS = (1, 16, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096)
PUBLISHED = {
    Shape(1, 7168, 2048): 7.5, Shape(64, 7168, 2048): 8.3, Shape(256, 7168, 2048): 12.2,
    Shape(1024, 7168, 2048): 27, Shape(4096, 7168, 2048): 85,
    Shape(1, 2112, 7168): 20, Shape(64, 2112, 7168): 16.7, Shape(256, 2112, 7168): 19.3,
    Shape(4096, 2112, 7168): 91,
    Shape(1, 3072, 1536): 5.4, Shape(256, 3072, 1536): 7.3, Shape(4096, 3072, 1536): 32.9,
}  # fmt: skip
"""What AITER publishes for its blockscale kernels on gfx950, us: measured there, not modelled."""
FLOPS_PER_CYCLE = 2048
"""Of a SIMD, eight-bit operands."""
SCALE_BLOCK = 128
"""Elements along K of a float scale of a block, and rows of weights."""


@dataclass(frozen=True)
class ProductRow:
    """One product."""

    format: str
    """Of activations; `RIGHT` has the weights'."""
    m: int
    n: int
    k: int
    cut: str
    """What the dispatch chooses."""
    time_us: float
    latency_us: float
    """The same in the other reading of the machine (timing.parameters)."""
    floor_us: float
    """Reading operands and writing C at the peak, or the products at theirs."""
    aiter_us: float | None
    """What AITER publishes for hardware."""
    source: str
    commit: str
    date: str

    @property
    def shape(self) -> Shape:
        """(M, N, K)."""
        return Shape(self.m, self.n, self.k)

    @property
    def slowest_us(self) -> float:
        """The longer of both readings."""
        return max(self.time_us, self.latency_us)


class EightBitOperands:
    """Arrays of one shape, zeros, with the names that `launches.ours` asks for."""

    def __init__(self, shape: Shape, left: str):
        m, n, k = shape
        self.shape = shape
        self.x_codes = zeros(m, k)
        self.c = zeros(m, n, np.dtype(ml_dtypes.bfloat16))
        codes = zeros(-(-n // launches.TILE) * launches.TILE, k)
        if left == "mxfp8":
            self.x_scales = zeros(m, k // BLOCK)
            scales = zeros(-(-n // 32) * 32, -(-k // 256) * 8)
        else:
            row, columns = (n, 1) if left == "fp8" else (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
            self.x_scales = zeros(m, columns, np.float32)
            scales = zeros(row, columns, np.float32)
        self.preshuffled = codes, scales

    def floor_us(self, machine: Machine) -> float:
        """Returns the larger of bytes over bandwidth and operations over their peak."""
        arrays = self.x_codes, self.x_scales, *self.preshuffled, self.c
        num_bytes = sum(array.nbytes for array in arrays)
        return max(floors_us(machine, num_bytes, self.shape.flops, FLOPS_PER_CYCLE))


def chosen(left: str, shape: Shape) -> tuple[str, Launch]:
    """Returns what the dispatch chooses, and its launch."""
    plan = mx.explain(*shape, device="gfx950", op=mx.matmul, activations=left, format=RIGHT[left])
    operands, catalogue = EightBitOperands(shape, left), kernels.catalogue_of("eight_bits")
    return plan.cut, launches.ours(catalogue, f"matmul_{left}_{plan.cut}", operands)


def timed(left: str, shape: Shape, origin: Origin) -> ProductRow:
    """Returns what the model says of the launch that the dispatch chooses."""
    operands = EightBitOperands(shape, left)
    cut, launch = chosen(left, shape)
    found = launch.profile(executes_whole_grid(shape))
    published = PUBLISHED.get(shape) if left == "fp8_block" else None
    return ProductRow(
        left, *shape, cut, found.time_us, found.variants["latency"],
        operands.floor_us(found.machine), published, "model", origin.commit, origin.date,
    )  # fmt: skip


def rows(
    origin: Origin, progress: Callable[[str], None], counts: Sequence[int]
) -> Iterator[ProductRow]:
    """Yields a row for each format and shape with so many rows of activations."""
    for left, (n, k), m in product(RIGHT, WEIGHTS, counts):
        shape = Shape(m, n, k)
        progress(f"{left} {shape}: compiling, executing and timing on the model")
        yield timed(left, shape, origin)


def tables(found: Sequence[ProductRow]) -> list[Table]:
    """Returns one table."""
    headings = ["format", "M x N x K", "cut", "us", "x floor", "AITER, published, us", "AITER / us"]
    cells = [
        [
            row.format, str(row.shape), row.cut,
            f"{min(row.time_us, row.latency_us):.2f} .. {row.slowest_us:.2f}",
            f"{row.slowest_us / row.floor_us:.2f}",
            "" if row.aiter_us is None else f"{row.aiter_us:g}",
            "" if row.aiter_us is None else f"{row.aiter_us / row.slowest_us:.2f}",
        ]
        for row in found
    ]  # fmt: skip
    return [Table("Products of eight-bit codes, *simulated*", headings, cells)]


def text(found: Sequence[ProductRow]) -> str:
    """Returns the table as a document."""
    title = (
        "Products of eight-bit codes, both operands encoded, *simulated*: a timing model of "
        "gfx950, no number of ours was measured on a GPU. A range is between the two readings of "
        "what the model was fitted to, launch cost included; the slower one is compared. AITER: "
        "published for its blockscale kernels on hardware, so the last column compares a model "
        f"with a measurement. Commit {found[0].commit}, {found[0].date}."
    )
    return "\n\n".join([title, tables(found)[0].to_markdown()]) + "\n"
