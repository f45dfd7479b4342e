"""Quantized activations in the form that the byte dot product wants.

A block of a row becomes 32 signed bytes, twice the element values, the even
elements first, which is how the nibbles of a weight byte come apart:

    byte         0   1   2  ...  15    16  17  18  ...  31
    element      0   2   4  ...  30     1   3   5  ...  31

Next to them stand the block's factor, half its scale as a float32 (zero
where all codes are zero), and the correction that undoes the offset of the
weight bytes. A row also knows the window of its scales: with the window of
a weight tile it tells whether every product of factors is a regular float32.
"""

from layout import Coord
from std.memory import bitcast
from std.memory.alloc import unsafe_alloc

from ..codec import (
    DOUBLED_VALUES,
    F32_MANTISSA_BITS,
    FloatBits,
    MAGNITUDE_CODE,
    MAX_DOUBLED,
    Rounding,
)
from ..formats import BLOCK, BLOCK_BYTES, FORMAT
from ..layouts import OperandShape, Plain
from ..operands import Bytes, Flat, Matrix, Operand, flat
from .quantize import EncodedBlock, HALF, encode_block
from .threads import Work


@fieldwise_init
struct ScaleWindow(TrivialRegisterPassable):
    """The smallest and the largest scale byte of the blocks that are not zero."""

    var low: Int
    """The smallest scale byte."""
    var high: Int
    """The largest scale byte; a NaN block counts even if its codes are zero."""

    comptime EMPTY = Self(FORMAT.scale_nan, 0)
    """The window of no blocks."""

    @always_inline
    def including(self, scale: Int) -> Self:
        """Returns the window widened to hold one more scale."""
        return Self(min(self.low, scale), max(self.high, scale))

    def multiplies_regularly(self, other: Self) -> Bool:
        """Says whether float32 holds every product of factors from two windows.

        A factor is 2**(scale - 128), so regular for scales from 2 on; the
        product's exponent must lie within -126 .. 127.
        """
        comptime TWICE_UNIT = 2 * (FORMAT.scale_bias + 1)
        var low = min(self.low, other.low)
        var high = max(self.high, other.high)
        return (
            low >= 2
            and high < FORMAT.scale_nan
            and self.low + other.low - TWICE_UNIT >= -126
            and self.high + other.high - TWICE_UNIT <= 127
        )


struct Activations(Copyable):
    """All rows of the left operand, expanded; owns its memory."""

    var shape: OperandShape
    """M and k."""
    var values: Flat[DType.int8]
    """Twice the element values, [M, k], in the order above."""
    var factors: Flat[DType.float32]
    """Half the scale of each block, [M, k / 32]."""
    var corrections: Flat[DType.int32]
    """Minus the sum of a block's values times the weights' offset, [M, k / 32]."""
    var scales: Bytes
    """The scale bytes, [M, k / 32]."""
    var windows: Flat[DType.uint8]
    """Low and high end of each row's scale window, [M, 2]."""

    def __init__(out self, shape: OperandShape):
        """Allocates room for `shape`."""
        comptime CACHE_LINE = 64
        var count = shape.rows * shape.k_blocks()
        var values = unsafe_alloc[Int8](shape.rows * shape.k, alignment=CACHE_LINE)
        var factors = unsafe_alloc[Float32](count, alignment=CACHE_LINE)
        var corrections = unsafe_alloc[Int32](count, alignment=CACHE_LINE)
        var scales = unsafe_alloc[UInt8](count, alignment=CACHE_LINE)
        var windows = unsafe_alloc[UInt8](2 * shape.rows, alignment=CACHE_LINE)
        self.shape = shape
        self.values = flat[DType.int8](Int(values), shape.rows * shape.k)
        self.factors = flat[DType.float32](Int(factors), count)
        self.corrections = flat[DType.int32](Int(corrections), count)
        self.scales = flat[DType.uint8](Int(scales), count)
        self.windows = flat[DType.uint8](Int(windows), 2 * shape.rows)
