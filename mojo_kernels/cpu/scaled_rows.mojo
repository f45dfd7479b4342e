"""Where blocks of activations under float scales, or under tensor scales, come from.

The scale of all that share it is known before the first of them is encoded.
"""

from layout import Coord

from ..layouts import Plain
from ..numbers.formats import BlockShape, Format
from ..numbers.rounding import Rounding
from ..operands import Matrix, Operand
from .encode import FloatScaledBlock, float_scale_of, float_scaled_block
from .vectors import BLOCK


trait ScaledRows(TrivialRegisterPassable):
    """Rows of blocks under float scales."""

    comptime format: Format

    def shape(self) -> BlockShape:
        """Returns what shares a scale."""
        ...

    def scale(self, row: Int, first: Int, last: Int) -> Float32:
        """Returns the scale of the elements from `first` to `last` of a row, which share it."""
        ...

    def block(self, row: Int, block: Int, scale: Float32) -> FloatScaledBlock[Self.format]:
        """Returns the elements of a block under their scale."""
        ...


@fieldwise_init
struct QuantizedScaledRows[left: Format, dtype: DType](ScaledRows):
    """Floats that are rounded to a format, whose blocks have a row each."""

    comptime format = Self.left

    var x: Matrix[Self.dtype]
    """[M, k]."""
    var rounding: Rounding
    var blocks: BlockShape

    @always_inline
    def shape(self) -> BlockShape:
        return self.blocks

    @always_inline
    def scale(self, row: Int, first: Int, last: Int) -> Float32:
        return float_scale_of[Self.left](self.x, row, row + 1, first, last, self.rounding)

    @always_inline
    def block(self, row: Int, block: Int, scale: Float32) -> FloatScaledBlock[Self.format]:
        var x = self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK))
        comptime Floats = SIMD[DType.float32, Self.format.block_k]
        var floats = rebind[Floats](x.cast[DType.float32]())
        return FloatScaledBlock[Self.format].of(floats, scale)


@fieldwise_init
struct EncodedScaledRows[left: Format](ScaledRows):
    """Codes and scales."""

    comptime format = Self.left

    var operand: Operand[Plain, Self.left]
    """[M, k]."""

    @always_inline
    def shape(self) -> BlockShape:
        return self.operand.block

    @always_inline
    def scale(self, row: Int, first: Int, last: Int) -> Float32:
        return self.operand.float_scale(row, first)

    @always_inline
    def block(self, row: Int, block: Int, scale: Float32) -> FloatScaledBlock[Self.format]:
        return float_scaled_block(self.operand, row, block)
