"""Quantized activations in the form that the byte dot product wants.

A block of a row becomes 32 signed bytes, twice the element values, the even
elements first, which is how the nibbles of a weight byte come apart:

    byte         0   1   2  ...  15    16  17  18  ...  31
    element      0   2   4  ...  30     1   3   5  ...  31

Next to the values stand the block's exponent, that of half its scale in the
place of float32's exponent field, and the correction that undoes the offset
of the weight bytes. Added to the bits of half a weight scale, the exponent
gives the bits of the product. A row also knows the window of its scales: with
the window of a weight tile it tells whether all products are regular float32.

Blocks lie in the order that `block_order` pictures.
"""

from layout import Coord
from std.collections import Array
from std.memory import bitcast
from std.sys import CompilationTarget

from ...layouts import OperandShape, Plain
from ...numbers.e2m1 import DOUBLED_VALUES, MAX_DOUBLED
from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ...numbers.scales import E8M0_BIAS
from ...operands import Bytes, Flat, Matrix, Operand
from ..block_order import BlockOrder
from ..encode import EncodedBlock, carry_of, encode_block
from ..scratch import Scratch, padded
from ..threads import Work
from ..window import ScaleWindow

comptime LEFT = Format.MXFP4
"""The format of the activations."""
comptime BLOCK = LEFT.block_k
"""Elements of a block."""
comptime GROUP_ROWS = 6 if CompilationTarget.has_avx512f() else 2
"""Rows whose sums fit in the vector registers together."""


comptime STRETCH_BLOCKS = 16
"""Blocks of K that are multiplied at a time: the weights of a stretch, decoded,
fit the first-level cache."""


@fieldwise_init
struct Activations(TrivialRegisterPassable):
    """All rows of the left operand, expanded."""

    var shape: OperandShape
    """M and k."""
    var values: Flat[DType.int8]
    """Twice the element values, 32 for each block."""
    var exponents: Flat[DType.uint32]
    """The exponent of half the scale of each block; 0 for one where all codes are zero."""
    var corrections: Flat[DType.int32]
    """Minus the sum of each block's values times the weights' offset."""
    var scales: Bytes
    """The scale byte of each block."""
    var lows: Bytes
    """The low end of each row's scale window."""
    var highs: Bytes
    """The high end of each row's scale window."""

    @staticmethod
    def num_bytes(shape: OperandShape) -> Int:
        """Returns the scratch memory that `carve` takes."""
        var blocks = shape.rows * shape.k_blocks[LEFT]()
        return (
            padded[DType.int8](blocks * BLOCK)
            + 2 * padded[DType.uint32](blocks)
            + padded[DType.uint8](blocks)
            + 2 * padded[DType.uint8](shape.rows)
        )

    @staticmethod
    def carve(shape: OperandShape, mut scratch: Scratch) -> Self:
        """Takes room for `shape` from `scratch`."""
        var blocks = shape.rows * shape.k_blocks[LEFT]()
        return Self(
            shape,
            scratch.carve[DType.int8](blocks * BLOCK),
            scratch.carve[DType.uint32](blocks),
            scratch.carve[DType.int32](blocks),
            scratch.carve[DType.uint8](blocks),
            scratch.carve[DType.uint8](shape.rows),
            scratch.carve[DType.uint8](shape.rows),
        )

    @always_inline
    def order(self) -> BlockOrder[GROUP_ROWS, STRETCH_BLOCKS]:
        """Returns the place of every block, in every array of blocks."""
        return BlockOrder[GROUP_ROWS, STRETCH_BLOCKS](self.shape.rows, self.shape.k_blocks[LEFT]())

    @always_inline
    def put(self, index: Int, encoded: EncodedBlock[LEFT]):
        """Stores one encoded block at its place."""
        var halves = encoded.codes.deinterleave()
        var codes = rebind[SIMD[DType.uint8, BLOCK]](halves[0].join(halves[1]))
        var values = DOUBLED_VALUES._dynamic_shuffle(codes & 0xF)
        self.values.store[alignment=BLOCK](Coord(index * BLOCK), values)

        # Unsigned bytes, whose sum is one instruction.
        comptime OFFSET = BLOCK * MAX_DOUBLED
        var unsigned = bitcast[DType.uint8, BLOCK](values + MAX_DOUBLED)
        var sum = Int(unsigned.cast[DType.uint32]().reduce_add()) - OFFSET
        self.corrections.store(Coord(index), Int32(-MAX_DOUBLED * sum))

        # A block of zeros may have any scale; the product must only be finite.
        comptime HALF_BIAS = UInt32(E8M0_BIAS + 1)
        var exponent = encoded.scale.cast[DType.uint32]() - HALF_BIAS
        var field = exponent << F32_MANTISSA_BITS
        self.exponents.store(Coord(index), field if encoded.any() else 0)
        self.scales.store(Coord(index), encoded.scale)

    @always_inline
    def put_window(self, row: Int, window: ScaleWindow):
        """Stores the scale window of a row."""
        self.lows.store(Coord(row), UInt8(window.low))
        self.highs.store(Coord(row), UInt8(window.high))

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the scale window of some rows."""
        var window = ScaleWindow.EMPTY
        for row in range(first_row, first_row + num_rows):
            window.low = min(window.low, Int(self.lows.load[width=1](Coord(row))))
            window.high = max(window.high, Int(self.highs.load[width=1](Coord(row))))
        return window


trait BlockSource(TrivialRegisterPassable):
    """Where encoded blocks of activations come from."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def block(self, row: Int, block: Int) -> EncodedBlock[LEFT]:
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
    def block(self, row: Int, block: Int) -> EncodedBlock[LEFT]:
        """Returns one encoded block."""
        return encode_block[LEFT, Self.dtype](
            self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK)),
            carry_of[LEFT, Self.dtype](self.rounding),
        )


@fieldwise_init
struct Prequantized(BlockSource):
    """An operand that is already encoded."""

    var operand: Operand[Plain, LEFT]
    """The operand, [M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.operand.shape

    @always_inline
    def block(self, row: Int, block: Int) -> EncodedBlock[LEFT]:
        """Returns one encoded block."""
        comptime BYTES = LEFT.block_bytes()
        return EncodedBlock[LEFT].of_packed(
            self.operand.codes_of[BYTES](row, block * BYTES), self.operand.scale(row, block)
        )


@fieldwise_init
struct ExpandGroups[Source: BlockSource](Work):
    """Fills `Activations` from a source, some groups of rows a task.

    Within a group, blocks are made in the order in which they are stored.
    """

    var source: Self.Source
    """Where the blocks come from."""
    var out: Activations
    """What is filled."""
    var groups_per_task: Int
    """Groups of rows of a task."""

    def run(self, task: Int):
        """Expands the groups of task `task`."""
        var rows_per_task = self.groups_per_task * GROUP_ROWS
        var first = task * rows_per_task
        for first_row in range(first, min(first + rows_per_task, self.out.shape.rows), GROUP_ROWS):
            self._expand_group(first_row)

    def _expand_group(self, first_row: Int):
        var order = self.out.order()
        var num_rows = order.rows_of_group(first_row)
        var windows = Array[ScaleWindow, GROUP_ROWS](fill=ScaleWindow.EMPTY)
        var index = 0
        for block in range(self.out.shape.k_blocks[LEFT]()):
            if block % STRETCH_BLOCKS == 0:
                index = order.index(first_row, block)
            for row in range(num_rows):
                var encoded = self.source.block(first_row + row, block)
                self.out.put(index, encoded)
                if encoded.any() or encoded.is_nan():
                    windows[row] = windows[row].including(Int(encoded.scale))
                index += 1
        for row in range(num_rows):
            self.out.put_window(first_row + row, windows[row])
