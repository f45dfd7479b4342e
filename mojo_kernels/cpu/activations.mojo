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

from ..codec import (
    DOUBLED_VALUES,
    F32_MANTISSA_BITS,
    FloatBits,
    MAX_DOUBLED,
    Rounding,
)
from ..formats import BLOCK, BLOCK_BYTES, FORMAT
from ..layouts import OperandShape, Plain
from ..operands import Bytes, Flat, Matrix, Operand, allocate
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


@fieldwise_init
struct Activations(TrivialRegisterPassable):
    """All rows of the left operand, expanded."""

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
    var windows: Bytes
    """Low and high end of each row's scale window, [M, 2]."""

    @staticmethod
    def allocate(shape: OperandShape) -> Self:
        """Allocates room for `shape`; `free` gives it back."""
        var blocks = shape.rows * shape.k_blocks()
        return Self(
            shape,
            allocate[DType.int8](shape.rows * shape.k),
            allocate[DType.float32](blocks),
            allocate[DType.int32](blocks),
            allocate[DType.uint8](blocks),
            allocate[DType.uint8](2 * shape.rows),
        )

    def free(self):
        """Frees the memory."""
        self.values.ptr.unsafe_free()
        self.factors.ptr.unsafe_free()
        self.corrections.ptr.unsafe_free()
        self.scales.ptr.unsafe_free()
        self.windows.ptr.unsafe_free()

    @always_inline
    def put(self, row: Int, block: Int, encoded: EncodedBlock):
        """Stores one encoded block."""
        var index = row * self.shape.k_blocks() + block
        var even = DOUBLED_VALUES._dynamic_shuffle(encoded.even)
        var odd = DOUBLED_VALUES._dynamic_shuffle(encoded.odd)
        self.values.store[alignment=1](Coord(index * BLOCK), even)
        self.values.store[alignment=1](Coord(index * BLOCK + HALF), odd)

        var sums = even.cast[DType.int16]() + odd.cast[DType.int16]()
        var correction = -MAX_DOUBLED * sums.reduce_add().cast[DType.int32]()
        self.corrections.store(Coord(index), correction)

        # Half the scale; at the two smallest scales the row's window decides.
        var exponent = max(encoded.scale.cast[DType.uint32](), 1) - 1
        var factor = bitcast[DType.float32](exponent << F32_MANTISSA_BITS)
        self.factors.store(Coord(index), factor if encoded.any() else 0)
        self.scales.store(Coord(index), encoded.scale)

    @always_inline
    def put_window(self, row: Int, window: ScaleWindow):
        """Stores the scale window of a row."""
        self.windows.store(Coord(2 * row), UInt8(window.low))
        self.windows.store(Coord(2 * row + 1), UInt8(window.high))

    @always_inline
    def window(self, row: Int) -> ScaleWindow:
        """Returns the scale window of a row."""
        return ScaleWindow(
            Int(self.windows.load[width=1](Coord(2 * row))),
            Int(self.windows.load[width=1](Coord(2 * row + 1))),
        )


trait BlockSource(TrivialRegisterPassable):
    """Where encoded blocks of activations come from."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def block(self, row: Int, block: Int) -> EncodedBlock:
        """Returns one encoded block."""
        ...


@fieldwise_init
struct QuantizedOnTheFly[dtype: DType](BlockSource):
    """Floats that are encoded block by block: the fused quantizer."""

    var x: Matrix[Self.dtype]
    """The activations, [M, k]."""
    var rounding: Rounding
    """The scale rule."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return OperandShape(Int(self.x.dim[0]()), Int(self.x.dim[1]()))

    @always_inline
    def block(self, row: Int, block: Int) -> EncodedBlock:
        """Returns one encoded block."""
        comptime source = FloatBits[Self.dtype]
        var carry = Scalar[source.bits](self.rounding.carry[source.MANTISSA_BITS]())
        return encode_block[Self.dtype](
            self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK)), carry
        )


@fieldwise_init
struct Prequantized(BlockSource):
    """An operand that is already encoded."""

    var operand: Operand[Plain]
    """The operand, [M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.operand.shape

    @always_inline
    def block(self, row: Int, block: Int) -> EncodedBlock:
        """Returns one encoded block."""
        var bytes = self.operand.codes_of[BLOCK_BYTES](row, block * BLOCK_BYTES)
        return EncodedBlock(bytes & 0xF, bytes >> 4, self.operand.scale(row, block))


@fieldwise_init
struct ExpandRows[Source: BlockSource](Work):
    """Fills `Activations` from a source, a chunk of rows a task."""

    var source: Self.Source
    """Where the blocks come from."""
    var out: Activations
    """What is filled."""
    var rows_per_task: Int
    """Rows of a task."""

    def run(self, task: Int):
        """Expands the rows of task `task`."""
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.out.shape.rows)):
            var window = ScaleWindow.EMPTY
            for block in range(self.out.shape.k_blocks()):
                var encoded = self.source.block(row, block)
                self.out.put(row, block, encoded)
                if encoded.any() or Int(encoded.scale) == FORMAT.scale_nan:
                    window = window.including(Int(encoded.scale))
            self.out.put_window(row, window)
