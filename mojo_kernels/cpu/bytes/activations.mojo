"""Quantized activations in the form that the byte dot product wants.

A block of a row becomes 32 signed bytes, its elements as integers, in the order of the
weights' vectors, see `integers`; for four-bit weights the even elements first:

    byte         0   1   2  ...  15    16  17  18  ...  31
    element      0   2   4  ...  30     1   3   5  ...  31

Next to the values stand the block's exponent, that of its scale times the unit of the
integers in the place of float32's exponent field, and the correction that undoes the
offset of the weight bytes. Added to the bits of a weight scale times its unit, the exponent
gives the bits of the product. A row also knows the window of its scales: with the window
of a weight tile it tells whether all products are regular float32.

Blocks lie in the order that `block_order` pictures.
"""

from layout import Coord
from std.collections import Array
from std.math import ceildiv
from std.memory import bitcast
from std.sys import CompilationTarget

from ...layouts import OperandShape, Plain
from ...numbers.elements import Element
from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ...numbers.scales import E8M0_BIAS
from ...operands import Bytes, Flat, Matrix, Operand, beyond
from ..block_order import BlockOrder, Decoding, GroupLimits, RowGroups
from ..encode import EncodedBlock, carry_of, encode_block
from ..quantize import groups_per_task
from ..ranges import RangeWork, RowRange, RowSources
from ..scratch import Scratch, padded
from ..vectors import BLOCK
from ..window import RowWindows, ScaleWindow
from .integers import in_order_of, integers_of, largest_integer, unit_shift

comptime LIMITS = GroupLimits(12, 36, 36, 6) if CompilationTarget.has_avx512f() else GroupLimits(
    3, 6, 6, 2
)
"""How many rows are multiplied together: the fastest of those tried on a Zen 4, its AVX-512 and its
AVX2, N = K = 2880, one thread, 2026-11-22."""
comptime STRETCH_BLOCKS = 16
"""Blocks of K that are multiplied at a time: the weights of a stretch, decoded,
fit the first-level cache."""


@fieldwise_init
struct ExpandedRows(TrivialRegisterPassable):
    """All rows of the left operand, expanded."""

    var shape: OperandShape
    """M and k."""
    var decoding: Decoding
    """What it takes to decode the weights, which decides how rows are cut."""
    var groups: RowGroups
    """How the rows are cut, those of one range."""
    var values: Flat[DType.int8]
    """The elements as integers, 32 for each block."""
    var exponents: Flat[DType.uint32]
    """The exponent of each block's scale times the unit; 0 where all codes are zero."""
    var corrections: Flat[DType.int32]
    """Minus the sum of each block's values times the weights' offset."""
    var scales: Bytes
    """The scale byte of each block."""
    var windows: RowWindows
    """The scale window of each row."""
    var unit_shift: Int
    """How many times the unit of the integers is halved from one."""

    @staticmethod
    def num_bytes(shape: OperandShape) -> Int:
        """Returns the scratch memory that `carve` takes."""
        var blocks = shape.rows * (shape.k // BLOCK)
        return (
            padded[DType.int8](blocks * BLOCK)
            + 2 * padded[DType.uint32](blocks)
            + padded[DType.uint8](blocks)
            + RowWindows.num_bytes(shape.rows)
        )

    @staticmethod
    def carve(
        shape: OperandShape, decoding: Decoding, unit_shift: Int, mut scratch: Scratch
    ) -> Self:
        """Takes room for `shape` from `scratch`."""
        var blocks = shape.rows * (shape.k // BLOCK)
        return Self(
            shape,
            decoding,
            LIMITS.cut(shape.rows, decoding),
            scratch.carve[DType.int8](blocks * BLOCK),
            scratch.carve[DType.uint32](blocks),
            scratch.carve[DType.int32](blocks),
            scratch.carve[DType.uint8](blocks),
            RowWindows.carve(shape.rows, scratch),
            unit_shift,
        )

    @no_inline
    def of_range(self, rows: RowRange) -> Self:
        """Returns a range of the rows, cut for itself."""
        var first_block = rows.first * (self.shape.k // BLOCK)
        return Self(
            OperandShape(rows.count, self.shape.k),
            self.decoding,
            LIMITS.cut(rows.count, self.decoding),
            beyond(self.values, first_block * BLOCK),
            beyond(self.exponents, first_block),
            beyond(self.corrections, first_block),
            beyond(self.scales, first_block),
            self.windows.beyond(rows.first),
            self.unit_shift,
        )

    @always_inline
    def order(self) -> BlockOrder[STRETCH_BLOCKS]:
        """Returns the place of every block, in every array of blocks."""
        return BlockOrder[STRETCH_BLOCKS](self.groups, self.shape.k // BLOCK)

    @always_inline
    def put[left: Format, right: Element](self, index: Int, encoded: EncodedBlock[left]):
        """Stores one encoded block at its place."""
        comptime LARGEST = largest_integer[left.element]()
        comptime WEIGHT_OFFSET = largest_integer[right]()
        # In this order: of codes that are known to be below 16 a look-up becomes scalar code.
        var codes = in_order_of[right](rebind[SIMD[DType.uint8, BLOCK]](encoded.codes))
        var values = integers_of[left.element](codes)
        self.values.store[alignment=BLOCK](Coord(index * BLOCK), values)

        # Unsigned bytes, whose sum is one instruction.
        var unsigned = bitcast[DType.uint8, BLOCK](values) + UInt8(LARGEST)
        var sum = Int(unsigned.cast[DType.uint32]().reduce_add()) - BLOCK * LARGEST
        self.corrections.store(Coord(index), Int32(-WEIGHT_OFFSET * sum))

        # A block of zeros may have any scale; the product must only be finite.
        comptime UNIT_BIAS = UInt32(E8M0_BIAS + unit_shift[left.element]())
        var exponent = encoded.scale.cast[DType.uint32]() - UNIT_BIAS
        var field = exponent << F32_MANTISSA_BITS
        self.exponents.store(Coord(index), field if encoded.any() else 0)
        self.scales.store(Coord(index), encoded.scale)


trait BlockSource(TrivialRegisterPassable):
    """Where encoded blocks of activations come from."""

    comptime format: Format

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def block(self, row: Int, block: Int) -> EncodedBlock[Self.format]:
        """Returns one encoded block."""
        ...


@fieldwise_init
struct QuantizedOnTheFly[left: Format, dtype: DType](BlockSource):
    """Floats that are encoded block by block: the fused quantizer."""

    comptime format = Self.left

    var x: Matrix[Self.dtype]
    """The activations, [M, k]."""
    var rounding: Rounding
    """The scale rule."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return OperandShape(Int(self.x.dim[0]()), Int(self.x.dim[1]()))

    @always_inline
    def block(self, row: Int, block: Int) -> EncodedBlock[Self.format]:
        """Returns one encoded block."""
        comptime K = Self.left.block_k
        return encode_block[Self.left, Self.dtype](
            self.x.load[width=K, alignment=1](Coord(row, block * K)),
            carry_of[Self.left, Self.dtype](self.rounding),
        )


@fieldwise_init
struct Prequantized[left: Format](BlockSource):
    """An operand that is already encoded."""

    comptime format = Self.left

    var operand: Operand[Plain, Self.left]
    """The operand, [M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.operand.shape

    @always_inline
    def block(self, row: Int, block: Int) -> EncodedBlock[Self.format]:
        """Returns one encoded block."""
        comptime BYTES = Self.left.block_bytes()
        return EncodedBlock[Self.left].of_packed(
            self.operand.codes_of[BYTES](row, block * BYTES), self.operand.scale(row, block)
        )


@fieldwise_init
struct ExpandGroups[Source: BlockSource, right: Element](RangeWork):
    """Fills `ExpandedRows` from a source, some groups of rows a task.

    Within a group, blocks are made in the order in which they are stored.
    """

    var source: Self.Source
    """Where the blocks come from."""
    var sources: RowSources
    """Which of its rows."""
    var out: ExpandedRows
    """What is filled."""

    def num_tasks(self, rows: RowRange) -> Int:
        """Returns how many tasks the groups of a range are."""
        var groups = self.out.of_range(rows).groups
        return ceildiv(groups.count, groups_per_task(self.out.shape.k, groups.largest()))

    def run(self, rows: RowRange, task: Int):
        """Expands the groups of a task."""
        var part = self.out.of_range(rows)
        var count = groups_per_task(part.shape.k, part.groups.largest())
        for group in range(task * count, min((task + 1) * count, part.groups.count)):
            self._expand_group(rows.first, group, part)

    def _expand_group(self, first_of_range: Int, group: Int, part: ExpandedRows):
        var order = part.order()
        var first_row = part.groups.start(group)
        var num_rows = part.groups.size(group)
        var sources = Array[Int, LIMITS.largest()](fill=0)
        for row in range(num_rows):
            sources[row] = self.sources.of(first_of_range + first_row + row)
        var windows = Array[ScaleWindow, LIMITS.largest()](fill=ScaleWindow.EMPTY)
        var index = 0
        for block in range(part.shape.k // BLOCK):
            if block % STRETCH_BLOCKS == 0:
                index = order.of_group(group, block)
            for row in range(num_rows):
                var encoded = self.source.block(sources[row], block)
                part.put[Self.Source.format, Self.right](index, encoded)
                if encoded.any() or encoded.is_nan():
                    windows[row] = windows[row].including(_half_scale(encoded))
                index += 1
        for row in range(num_rows):
            part.windows.put(first_row + row, windows[row])


@always_inline
def _half_scale[format: Format](encoded: EncodedBlock[format]) -> Int:
    """Returns the scale byte whose half is the block's scale times its unit, NaN for NaN."""
    comptime HALVINGS = unit_shift[format.element]() - 1
    var scale = Int(encoded.scale)
    return scale if encoded.is_nan() else max(scale - HALVINGS, 0)
