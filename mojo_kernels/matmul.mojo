"""Host entry for matmul and linear: prepare the activations, launch the panels.

A left operand decides the arithmetic of the product:

    Encoded    blocks of MXFP4, read (matmul) or quantized on the fly (linear)
    Kept       floats rounded to bfloat16: linear with quantized weights only

Both kinds of `Encoded` share everything but their source of blocks, so
linear(x, w) equals matmul(quantize(x), w) to the bit.
"""

from std.math import ceildiv

from .cpu.activations import Activations, BlockSource, ExpandGroups
from .cpu.byte_panel import ByteProduct
from .cpu.float_activations import FloatActivations, KeepGroups
from .cpu.float_panel import FloatProduct
from .cpu.matmul import MatmulPanels
from .cpu.panel import PanelProduct
from .cpu.scratch import Scratch
from .cpu.threads import Team
from .cpu.weights import WeightTiles
from .layouts import OperandShape
from .operands import Flat, Matrix
from .quantize import rows_per_task

comptime MIN_SHARED_PRODUCTS = 1 << 22
"""Fewer products than this take some 10 us on one thread (AVX-512), less than waking a team
that sleeps, which takes 40 us and more. Measured on one machine, 2026-11-21."""


trait LeftOperand(TrivialRegisterPassable):
    """Activations as a caller has them."""

    comptime Product: PanelProduct
    """The arithmetic that multiplies them."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def num_scratch_bytes(self) -> Int:
        """Returns the scratch memory that `prepare` takes."""
        ...

    def prepare[T: Team](self, mut scratch: Scratch, team: T) -> Self.Product:
        """Brings them into the form of the product."""
        ...


@fieldwise_init
struct Encoded[Source: BlockSource](LeftOperand):
    """Activations in MXFP4, whether they came so or are quantized now."""

    comptime Product = ByteProduct
    """Integer dot products."""

    var source: Self.Source
    """Where the blocks come from."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.source.shape()

    def num_scratch_bytes(self) -> Int:
        """Returns the scratch memory that `prepare` takes."""
        return Activations.num_bytes(self.shape())

    def prepare[T: Team](self, mut scratch: Scratch, team: T) -> ByteProduct:
        """Expands the blocks."""
        var activations = Activations.carve(self.shape(), scratch)
        var groups = _groups_per_task[ByteProduct](self.shape())
        var num_tasks = ceildiv(
            self.shape().rows, groups * ByteProduct.GROUP_ROWS
        )
        team.run_all(ExpandGroups(self.source, activations, groups), num_tasks)
        return ByteProduct(activations)


@fieldwise_init
struct Kept[dtype: DType](LeftOperand):
    """Activations that stay floats, rounded to bfloat16 where they are not bfloat16 yet.
    """

    comptime Product = FloatProduct
    """Products of floats."""

    var x: Matrix[Self.dtype]
    """The activations, [M, k]."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        return OperandShape(Int(self.x.dim[0]()), Int(self.x.dim[1]()))

    def num_scratch_bytes(self) -> Int:
        """Returns the scratch memory that `prepare` takes."""
        return FloatActivations.num_bytes(self.shape())

    def prepare[T: Team](self, mut scratch: Scratch, team: T) -> FloatProduct:
        """Rounds and reorders the rows."""
        var activations = FloatActivations.carve(self.shape(), scratch)
        var groups = _groups_per_task[FloatProduct](self.shape())
        var num_tasks = ceildiv(
            self.shape().rows, groups * FloatProduct.GROUP_ROWS
        )
        team.run_all(KeepGroups(self.x, activations, groups), num_tasks)
        return FloatProduct(activations)


def _groups_per_task[Product: PanelProduct](shape: OperandShape) -> Int:
    """Returns how many groups of rows are worth a task of their own."""
    return rows_per_task(shape.k, Product.GROUP_ROWS) // Product.GROUP_ROWS


def matmul[
    Left: LeftOperand, Tiles: WeightTiles, dtype: DType, T: Team
](
    left: Left,
    weights: Tiles,
    bias: Flat[DType.float32],
    result: Matrix[dtype],
    team: T,
):
    """Computes result[M, N] = left[M, k] @ weights[N, k].T + bias[N]; empty bias for none.
    """
    var shape = left.shape()
    if shape.rows == 0:
        return

    var scratch = Scratch(left.num_scratch_bytes())
    var panels = MatmulPanels(
        left.prepare(scratch, team), weights, bias, result
    )
    var num_tasks = panels.num_tasks()
    if shape.rows * weights.shape().rows * shape.k < MIN_SHARED_PRODUCTS:
        for task in range(num_tasks):
            panels.run(task)
    else:
        team.run_all(panels^, num_tasks)
    _ = scratch^
