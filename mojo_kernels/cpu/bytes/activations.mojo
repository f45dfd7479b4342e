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

Beside E4M3 scales, of either side, a block has two of each: a correction and a float32, its scale
times the unit, for each sixteen elements. The window is then that of the row's tensor scale, if it
has one, which multiplies its sums in the end.

Blocks lie in the order that `block_order` pictures.
"""

from layout import Coord
from std.collections import Array
from std.math import ceildiv
from std.memory import bitcast

from ...layouts import OperandShape, Plain
from ...numbers.decode import decode
from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import E4M3_BLOCK, Format
from ...numbers.rounding import Rounding
from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ...operands import Bytes, Flat, Matrix, Operand, beyond
from ..block_order import BlockOrder, RowGroups, RowLimits
from ..e4m3_scales import BYTE_HALVINGS, products_by_word
from ..encode import (
    DIGIT_BITS,
    Digits,
    E4M3Scales,
    E4M3_SCALES,
    EncodedBlock,
    FloatScaledBlock,
    carry_of,
    encode_block,
    encode_digits,
)
from ..limits import GUESS
from ..quantize import groups_per_task
from ..ranges import RangeWork, RowRange, RowSources
from ..scaled_rows import ScaledRows
from ..scratch import Scratch, padded
from ..vectors import BLOCK, LANES
from ..window import RowWindows, ScaleWindow, float_scale_ends
from .dot import Reach, correction_of
from .integers import (
    ScaleKinds,
    ScaleProduct,
    in_order_of,
    integers_of,
    largest_integer,
    unit_shift,
)

comptime LIMITS = GUESS.bytes
"""What kernels are compiled for: the most rows of groups."""
comptime STRETCH_BLOCKS = 16
"""Blocks of K that are multiplied at a time: the weights of a stretch, decoded,
fit the first-level cache."""
comptime FEW_ROWS = 4
"""Rows of a product whose scales are not looked up: memory is slower than products of floats."""
comptime DOUBLED = bitcast[DType.float32](
    UInt32(
        (F32_EXPONENT_BIAS + BYTE_HALVINGS - 2 * unit_shift[Element.E2M1]()) << F32_MANTISSA_BITS
    )
)
"""What scales of rows are multiplied by then: both units, and what scales of columns lack."""
comptime HALVED_DOUBLINGS = BYTE_HALVINGS - unit_shift[Element.E2M1]()
"""What exponents of rows have more, beside scales of columns that lack it and the unit."""
comptime _NUM_TABLES = 256


def _table_words(scales: ScaleKinds) -> Int:
    return _NUM_TABLES * LANES if scales.product() == ScaleProduct.LOOKED_UP else 0


@fieldwise_init
struct ExpandedRows(TrivialRegisterPassable):
    """All rows of the left operand, expanded."""

    var shape: OperandShape
    """M and k."""
    var limits: RowLimits
    """How rows are cut."""
    var digits: Int
    """Blocks of bytes that stand for a block, one after the other, see `encode_digits`."""
    var groups: RowGroups
    """How the rows are cut, those of one range."""
    var values: Flat[DType.int8]
    """The elements as integers, 32 for each block."""
    var exponents: Flat[DType.uint32]
    """The exponent of each block's scale times the unit, or the bits of that as a float, or where
    its table begins; of zeros the exponent 0."""
    var tables: Flat[DType.uint32]
    """What makes products of each scale and those of columns, if they are looked up."""
    var corrections: Flat[DType.int32]
    """What undoes the weights' offset in the sums of each block, see `correction_of`."""
    var per_block: Int
    """Exponents and corrections of a block."""
    var tensor_scales: Flat[DType.float32]
    """What the sums of each row are to be multiplied by; nothing where that is one."""
    var scales: Bytes
    """The scale byte of each block."""
    var windows: RowWindows
    """The scale window of each row."""
    var unit_shift: Int
    """How many times the unit of the integers is halved from one."""

    @staticmethod
    def num_bytes(shape: OperandShape, digits: Int, scales: ScaleKinds) -> Int:
        """Returns the scratch memory that `carve` takes."""
        var blocks = shape.rows * (shape.k // BLOCK) * digits
        return (
            padded[DType.int8](blocks * BLOCK)
            + 2 * padded[DType.uint32](blocks * scales.per_block())
            + padded[DType.float32](shape.rows if scales.left else 0)
            + padded[DType.uint8](blocks)
            + RowWindows.num_bytes(shape.rows)
            + padded[DType.uint32](_table_words(scales))
        )

    @staticmethod
    def carve(
        shape: OperandShape,
        limits: RowLimits,
        digits: Int,
        unit_shift: Int,
        scales: ScaleKinds,
        mut scratch: Scratch,
    ) -> Self:
        """Takes room for `shape` from `scratch`."""
        var blocks = shape.rows * (shape.k // BLOCK) * digits
        return Self(
            shape,
            limits,
            digits,
            limits.cut(shape.rows),
            scratch.carve[DType.int8](blocks * BLOCK),
            scratch.carve[DType.uint32](blocks * scales.per_block()),
            scratch.carve[DType.uint32](_table_words(scales)),
            scratch.carve[DType.int32](blocks * scales.per_block()),
            scales.per_block(),
            scratch.carve[DType.float32](shape.rows if scales.left else 0),
            scratch.carve[DType.uint8](blocks),
            RowWindows.carve(shape.rows, scratch),
            unit_shift,
        )

    @no_inline
    def of_range(self, rows: RowRange) -> Self:
        """Returns a range of the rows, cut for itself."""
        var first_block = rows.first * (self.shape.k // BLOCK) * self.digits
        return Self(
            OperandShape(rows.count, self.shape.k),
            self.limits,
            self.digits,
            self.limits.cut(rows.count),
            beyond(self.values, first_block * BLOCK),
            beyond(self.exponents, first_block * self.per_block),
            self.tables,
            beyond(self.corrections, first_block * self.per_block),
            self.per_block,
            beyond(self.tensor_scales, rows.first),
            beyond(self.scales, first_block),
            self.windows.beyond(rows.first),
            self.unit_shift,
        )

    @always_inline
    def order(self) -> BlockOrder[STRETCH_BLOCKS]:
        """Returns the place of every block, in every array of blocks."""
        return BlockOrder[STRETCH_BLOCKS](self.groups, self.shape.k // BLOCK)

    @always_inline
    def put[
        left: Format, right: Element, scales: ScaleKinds, doublings: Int
    ](self, index: Int, encoded: EncodedBlock[left]):
        """Stores one encoded block at its place, its unit doubled some times."""
        var codes = rebind[SIMD[DType.uint8, BLOCK]](encoded.codes)
        self.put_codes[left.element, right, scales](index, codes)

        # A block of zeros may have any scale; the product must only be finite.
        comptime BESIDE_HALVED = scales.product() == ScaleProduct.BESIDE_POWERS
        comptime DOUBLINGS = HALVED_DOUBLINGS if BESIDE_HALVED else 0
        comptime UNIT_BIAS = UInt32(E8M0_BIAS + unit_shift[left.element]() - DOUBLINGS - doublings)
        var field = (encoded.scale.cast[DType.uint32]() - UNIT_BIAS) << F32_MANTISSA_BITS
        comptime OF_ONE = UInt32(DOUBLINGS << F32_MANTISSA_BITS)
        var exponent = field if encoded.any() else OF_ONE
        comptime for i in range(scales.per_block()):
            self.exponents.store(Coord(index * scales.per_block() + i), exponent)
        self.scales.store(Coord(index), encoded.scale)

    @always_inline
    def put_scaled[
        left: Format, right: Element, scales: ScaleKinds
    ](self, index: Int, encoded: FloatScaledBlock[left]):
        """Stores one block under E4M3 scales at its place."""
        # What zero multiplies becomes zeros under one.
        comptime ONE = E4M3Scales(Element.E4M3.bias << Element.E4M3.mantissa_bits)
        var is_zero = (encoded.scales & UInt8(Element.E4M3.magnitude_mask())).eq(0)
        var kept = is_zero.select(E4M3Scales(0), E4M3Scales(255))
        var codes = rebind[SIMD[DType.uint8, BLOCK]](encoded.codes)
        comptime for i in range(E4M3_SCALES):
            var part = codes.slice[E4M3_BLOCK, offset=i * E4M3_BLOCK]() & kept[i]
            codes = codes.insert[offset=i * E4M3_BLOCK](part)
        self.put_codes[left.element, right, scales](index, codes)

        var words = is_zero.select(ONE, encoded.scales).cast[DType.uint32]()
        if self.are_looked_up[scales]():
            words *= LANES
        else:
            comptime UNIT = Float32(1) / Float32(1 << unit_shift[left.element]())
            comptime FACTOR = DOUBLED if scales.product() == ScaleProduct.LOOKED_UP else UNIT
            words = bitcast[DType.uint32, E4M3_SCALES](decode[Element.E4M3](words) * FACTOR)
            comptime if scales.product() == ScaleProduct.OF_EXPONENTS:
                words -= UInt32(F32_EXPONENT_BIAS << F32_MANTISSA_BITS)
        self.exponents.store[alignment=4](Coord(index * E4M3_SCALES), words)

    @always_inline
    def scale_of[left: Element, scales: ScaleKinds](self, index: Int) -> Float32:
        """Returns an E4M3 scale times the unit."""
        var word = self.exponents.load[width=1](Coord(index))
        comptime UNIT = Float32(1) / Float32(1 << unit_shift[left]())
        if self.are_looked_up[scales]():
            return decode[Element.E4M3](word // LANES) * UNIT
        comptime if scales.product() == ScaleProduct.LOOKED_UP:
            return bitcast[DType.float32](word) * (UNIT / DOUBLED)
        elif scales.product() == ScaleProduct.OF_EXPONENTS:
            word += UInt32(F32_EXPONENT_BIAS << F32_MANTISSA_BITS)
        return bitcast[DType.float32](word)

    @always_inline
    def takes_bytes(self) -> Bool:
        """Says whether all rows are so few that scales of columns stay bytes."""
        return self.groups.in_registers and self.groups.rows <= FEW_ROWS

    @always_inline
    def are_looked_up[scales: ScaleKinds](self) -> Bool:
        """Says whether products of scales are in tables."""
        comptime if scales.product() == ScaleProduct.LOOKED_UP:
            return not self.takes_bytes()
        else:
            return False

    def make_tables[left: Element, right: Element](self):
        """Fills the tables of all scales: of products with the units of both sides."""
        comptime UNITS = Float32(1) / Float32(1 << (unit_shift[left]() + unit_shift[right]()))
        for code in range(_NUM_TABLES):
            var factor = decode[Element.E4M3](UInt32(code)) * UNITS
            self.tables.store(Coord(code * LANES), products_by_word(factor))

    @always_inline
    def put_codes[
        left: Element, right: Element, scales: ScaleKinds
    ](self, index: Int, block: SIMD[DType.uint8, BLOCK]):
        """Stores the integers of a block, and their corrections."""
        comptime LARGEST = largest_integer[left]()
        comptime WEIGHT_OFFSET = largest_integer[right]()
        comptime PARTS = scales.per_block()
        # In this order: of codes that are known to be below 16 a look-up becomes scalar code.
        var codes = in_order_of[right](block)
        var values = integers_of[left](codes)
        self.values.store[alignment=BLOCK](Coord(index * BLOCK), values)

        # Vectors of even places come first, then odd ones: a part of K is a part of each half.
        comptime REACH = Reach.of(LARGEST, WEIGHT_OFFSET)
        comptime WIDTH = BLOCK // 2 // PARTS
        comptime for i in range(PARTS):
            var even = values.slice[WIDTH, offset=i * WIDTH]()
            var odd = values.slice[WIDTH, offset=BLOCK // 2 + i * WIDTH]()
            var correction = correction_of[REACH, WEIGHT_OFFSET](even.join(odd))
            self.corrections.store(Coord(index * PARTS + i), correction)


trait BlockSource(TrivialRegisterPassable):
    """Where encoded blocks of activations come from."""

    comptime format: Format
    comptime DIGITS: Int
    """Blocks that stand for one."""

    def digits(self, row: Int, block: Int) -> Array[EncodedBlock[Self.format], Self.DIGITS]:
        """Returns one encoded block, or its digits, high ones first."""
        ...


@fieldwise_init
struct QuantizedOnTheFly[left: Format, dtype: DType](BlockSource):
    """Floats that are encoded block by block: the fused quantizer."""

    comptime format = Self.left
    comptime DIGITS = 1

    var x: Matrix[Self.dtype]
    """The activations, [M, k]."""
    var rounding: Rounding
    """The scale rule."""

    @always_inline
    def digits(self, row: Int, block: Int) -> Array[EncodedBlock[Self.format], 1]:
        """Returns one encoded block."""
        comptime K = Self.left.block_k
        return Array[EncodedBlock[Self.format], 1](
            fill=encode_block[Self.left, Self.dtype](
                self.x.load[width=K, alignment=1](Coord(row, block * K)),
                carry_of[Self.left, Self.dtype](self.rounding),
            )
        )


@fieldwise_init
struct IntegersOnTheFly[dtype: DType](BlockSource):
    """Floats that are rounded to 16-bit integers, block by block."""

    comptime format = Format.MXINT8
    comptime DIGITS = 2

    var x: Matrix[Self.dtype]
    """The activations, [M, k]."""

    @always_inline
    def digits(self, row: Int, block: Int) -> Digits:
        """Returns the digits of one block."""
        return encode_digits(self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK)))


@fieldwise_init
struct Prequantized[left: Format](BlockSource):
    """An operand that is already encoded."""

    comptime format = Self.left
    comptime DIGITS = 1

    var operand: Operand[Plain, Self.left]
    """The operand, [M, k]."""

    @always_inline
    def digits(self, row: Int, block: Int) -> Array[EncodedBlock[Self.format], 1]:
        """Returns one encoded block."""
        comptime BYTES = Self.left.block_bytes()
        return Array[EncodedBlock[Self.format], 1](
            fill=EncodedBlock[Self.left].of_packed(
                self.operand.codes_of[BYTES](row, block * BYTES), self.operand.scale(row, block)
            )
        )


@fieldwise_init
struct ExpandGroups[Source: BlockSource, right: Format](RangeWork):
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
                comptime LEFT = Self.Source.format
                comptime SCALES = ScaleKinds.of(LEFT, Self.right)
                comptime DIGITS = Self.Source.DIGITS
                var digits = self.source.digits(sources[row], block)
                comptime for i in range(DIGITS):
                    comptime DOUBLINGS = (DIGITS - 1 - i) * DIGIT_BITS
                    part.put[LEFT, Self.right.element, SCALES, DOUBLINGS](
                        index * DIGITS + i, digits[i]
                    )
                    if digits[i].any() or digits[i].is_nan():
                        windows[row] = windows[row].including(_half_scale(digits[i]))
                index += 1
        for row in range(num_rows):
            part.windows.put(first_row + row, windows[row])


@fieldwise_init
struct ExpandScaledRows[Source: ScaledRows, right: Format](RangeWork):
    """The same from a source with tensor scales, row by row."""

    var source: Self.Source
    var sources: RowSources
    """Which of its rows."""
    var out: ExpandedRows

    def num_tasks(self, rows: RowRange) -> Int:
        """Returns how many tasks the groups of a range are."""
        var groups = self.out.of_range(rows).groups
        return ceildiv(groups.count, groups_per_task(self.out.shape.k, groups.largest()))

    def run(self, rows: RowRange, task: Int):
        """Expands the groups of a task."""
        var part = self.out.of_range(rows)
        var count = groups_per_task(part.shape.k, part.groups.largest())
        var last = min((task + 1) * count, part.groups.count)
        for row in range(part.groups.start(task * count), part.groups.start(last)):
            part.windows.put(row, self._expand(self.sources.of(rows.first + row), row, part))

    def _expand(self, source_row: Int, row: Int, part: ExpandedRows) -> ScaleWindow:
        """Expands a row, and returns the window of its tensor scale."""
        comptime LEFT = Self.Source.format
        comptime SCALES = ScaleKinds.of(LEFT, Self.right)
        comptime NAN = UInt8(Element.E4M3.nan_code)
        var order = part.order()
        var scale = self.source.scale(source_row, 0, part.shape.k)
        part.tensor_scales.store(Coord(row), scale)
        var index, group_rows = 0, order.groups.size(order.groups.group_of(row))
        var used, has_nan = SIMD[DType.uint8, LEFT.block_k](0), False
        for block in range(order.k_blocks):
            index = order.index(row, block) if block % STRETCH_BLOCKS == 0 else index + group_rows
            var encoded = self.source.block(source_row, block, scale)
            part.put_scaled[LEFT, Self.right.element, SCALES](index, encoded)
            used |= encoded.codes & UInt8(LEFT.element.magnitude_mask())
            has_nan |= (encoded.scales & UInt8(Element.E4M3.magnitude_mask())).eq(NAN).reduce_or()
        var field = (bitcast[DType.uint32](scale) >> F32_MANTISSA_BITS) & 255
        var ends = float_scale_ends[1](field)
        if has_nan or Int(ends[1]) == E8M0_NAN:
            return ScaleWindow(0, E8M0_NAN)
        if used.eq(0).reduce_and():
            return ScaleWindow.EMPTY
        return ScaleWindow(Int(ends[0]), Int(ends[1]))


@always_inline
def _half_scale[format: Format](encoded: EncodedBlock[format]) -> Int:
    """Returns the scale byte whose half is the block's scale times its unit, NaN for NaN."""
    comptime HALVINGS = unit_shift[format.element]() - 1
    var scale = Int(encoded.scale)
    return scale if encoded.is_nan() else max(scale - HALVINGS, 0)
