"""Activations as bfloat16, in the order in which the product of floats reads them.

Whatever the left side is, a block becomes 32 bfloat16 and the words of its steps, see `dot`:

    kept         floats, rounded to bfloat16 to nearest even
    quantized    floats, rounded to a format: its elements times their scale
    encoded      the same from codes

Elements and their products with powers of two are exact in bfloat16 as long as they stay in its
range. A row that leaves it keeps its elements and its scales apart, and is summed in float64.
Other scales are always apart: a float32 factor for each block, see `scaled_rows`.

Blocks lie in the order that `block_order` pictures. A row knows the window of its exponent
fields, zeros left out: with the window of a weight tile it tells whether float32 can take their
sums, see `panel`.
"""

from layout import Coord
from std.math import ceildiv
from std.memory import bitcast

from ...layouts import OperandShape, Plain
from ...numbers.decode import decode
from ...numbers.elements import Element
from ...numbers.floats import FloatBits, round_to
from ...numbers.formats import Format, has_float_scales
from ...numbers.rounding import Rounding
from ...numbers.scales import E8M0_BIAS, E8M0_NAN, decode_scale
from ...operands import Bytes, Flat, Matrix, Operand, beyond
from ...problem import Left, LeftKind
from ..block_order import BlockOrder, RowGroups, RowLimits
from ..encode import EncodedBlock, carry_of, encode_block
from ..limits import GUESS
from ..quantize import groups_per_task
from ..ranges import RangeWork, RowRange, RowSources
from ..scratch import Scratch, padded
from ..vectors import BLOCK
from ..window import RowWindows, ScaleWindow
from .dot import STEPS, activation_words

comptime LIMITS = GUESS.floats
"""What kernels are compiled for: the most rows of groups."""
comptime STRETCH_BLOCKS = 8
"""Blocks of K that are multiplied at a time: the weights of a stretch, decoded,
fit the first-level cache."""
comptime Block = SIMD[DType.bfloat16, BLOCK]
comptime bf16 = FloatBits[DType.bfloat16]
comptime Magnitudes = SIMD[bf16.bits, BLOCK]
comptime LARGEST_FIELD = 254
"""The exponent field of the largest finite numbers."""


@fieldwise_init
struct ScaledBlock(TrivialRegisterPassable):
    """A block of numbers, and the scale byte that they are to be multiplied by."""

    var numbers: Block
    var scale: UInt8


trait RowBlocks(TrivialRegisterPassable):
    """Where blocks of activations come from."""

    comptime HAS_SCALES: Bool
    """Whether scales may be other than one."""

    def shape(self) -> OperandShape:
        """Returns M and k."""
        ...

    def block(self, row: Int, block: Int) -> ScaledBlock:
        """Returns one block."""
        ...


@fieldwise_init
struct KeptRows[dtype: DType](RowBlocks):
    """Floats that stay floats."""

    comptime HAS_SCALES = False

    var x: Matrix[Self.dtype]
    """[M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        return OperandShape(Int(self.x.dim[0]()), Int(self.x.dim[1]()))

    @always_inline
    def block(self, row: Int, block: Int) -> ScaledBlock:
        var floats = self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK))
        comptime if Self.dtype == DType.bfloat16:
            return ScaledBlock(rebind[Block](floats), UInt8(E8M0_BIAS))
        else:
            return ScaledBlock(
                round_to[DType.bfloat16](floats.cast[DType.float32]()), UInt8(E8M0_BIAS)
            )


@fieldwise_init
struct RoundedRows[format: Format, dtype: DType](RowBlocks):
    """Floats that are rounded to a format, block by block: the fused quantizer."""

    comptime HAS_SCALES = True

    var x: Matrix[Self.dtype]
    """[M, k]."""
    var rounding: Rounding

    @always_inline
    def shape(self) -> OperandShape:
        return OperandShape(Int(self.x.dim[0]()), Int(self.x.dim[1]()))

    @always_inline
    def block(self, row: Int, block: Int) -> ScaledBlock:
        comptime K = Self.format.block_k
        var floats = self.x.load[width=K, alignment=1](Coord(row, block * K))
        var carry = carry_of[Self.format, Self.dtype](self.rounding)
        return elements_of(encode_block[Self.format, Self.dtype](floats, carry))


@fieldwise_init
struct CodedRows[format: Format](RowBlocks):
    """Codes and scales."""

    comptime HAS_SCALES = True

    var operand: Operand[Plain, Self.format]
    """[M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        return self.operand.shape

    @always_inline
    def block(self, row: Int, block: Int) -> ScaledBlock:
        comptime BYTES = Self.format.block_bytes()
        var bytes = self.operand.codes_of[BYTES](row, block * BYTES)
        return elements_of(
            EncodedBlock[Self.format].of_packed(bytes, self.operand.scale(row, block))
        )


@always_inline
def elements_of[format: Format](block: EncodedBlock[format]) -> ScaledBlock:
    """Returns the elements of a block, which bfloat16 holds."""
    return ScaledBlock(
        numbers_of[format.element](rebind[SIMD[DType.uint8, BLOCK]](block.codes)), block.scale
    )


@always_inline
def numbers_of[element: Element](codes: SIMD[DType.uint8, BLOCK]) -> Block:
    """Returns the numbers of codes, which bfloat16 holds."""
    return exact_bf16(decode[element](codes.cast[DType.uint32]()))


@always_inline
def exact_bf16(numbers: SIMD[DType.float32, BLOCK]) -> Block:
    """Returns numbers that bfloat16 holds as such."""
    var upper_halves = (bitcast[DType.uint32, BLOCK](numbers) >> 16).cast[DType.uint16]()
    return bitcast[DType.bfloat16, BLOCK](upper_halves)


@fieldwise_init
struct LeftScales(TrivialRegisterPassable):
    """Which scales there are beside the words of a left side."""

    var bytes: Bool
    """Powers of two, of rows whose words cannot take them."""
    var factors: Bool
    """Floats, of all rows."""

    @staticmethod
    def of(left: Left) -> Self:
        """Returns those of a left side."""
        var factors = left.kind != LeftKind.KEPT and has_float_scales(left.format)
        return Self(left.kind != LeftKind.KEPT and not factors, factors)


@fieldwise_init
struct FloatActivations(TrivialRegisterPassable):
    """All rows of the left side."""

    var shape: OperandShape
    """M and k."""
    var limits: RowLimits
    """How rows are cut."""
    var groups: RowGroups
    """How the rows are cut, those of one range."""
    var has_scales: Bool
    """Whether scales may be other than one."""
    var words: Flat[DType.uint32]
    """`STEPS` words for each block."""
    var windows: RowWindows
    """The exponent window of each row."""
    var apart: Bytes
    """Whether the scales of a row are apart from its words; nothing where there are no scales."""
    var scales: Bytes
    """The scale byte of each block of such rows."""
    var has_factors: Bool
    """Whether blocks have factors."""
    var factors: Flat[DType.float32]
    """What the sums of a block are to be multiplied by; 0 for a block of zeros."""

    @staticmethod
    def num_bytes(shape: OperandShape, scales: LeftScales) -> Int:
        """Returns the scratch memory that `carve` takes."""
        var blocks = shape.rows * (shape.k // BLOCK)
        return (
            padded[DType.uint32](blocks * STEPS)
            + RowWindows.num_bytes(shape.rows)
            + padded[DType.uint8](shape.rows if scales.bytes else 0)
            + padded[DType.uint8](blocks if scales.bytes else 0)
            + padded[DType.float32](blocks if scales.factors else 0)
        )

    @staticmethod
    def carve(
        shape: OperandShape, limits: RowLimits, scales: LeftScales, mut scratch: Scratch
    ) -> Self:
        """Takes room for `shape` from `scratch`."""
        var blocks = shape.rows * (shape.k // BLOCK)
        return Self(
            shape,
            limits,
            limits.cut(shape.rows),
            scales.bytes,
            scratch.carve[DType.uint32](blocks * STEPS),
            RowWindows.carve(shape.rows, scratch),
            scratch.carve[DType.uint8](shape.rows if scales.bytes else 0),
            scratch.carve[DType.uint8](blocks if scales.bytes else 0),
            scales.factors,
            scratch.carve[DType.float32](blocks if scales.factors else 0),
        )

    @no_inline
    def of_range(self, rows: RowRange) -> Self:
        """Returns a range of the rows, cut for itself."""
        var first_block = rows.first * (self.shape.k // BLOCK)
        return Self(
            OperandShape(rows.count, self.shape.k),
            self.limits,
            self.limits.cut(rows.count),
            self.has_scales,
            beyond(self.words, first_block * STEPS),
            self.windows.beyond(rows.first),
            beyond(self.apart, rows.first),
            beyond(self.scales, first_block),
            self.has_factors,
            beyond(self.factors, first_block),
        )

    @always_inline
    def order(self) -> BlockOrder[STRETCH_BLOCKS]:
        """Returns the place of every block."""
        return BlockOrder[STRETCH_BLOCKS](self.groups, self.shape.k // BLOCK)

    def scale(self, row: Int, block: Int) -> Float64:
        """Returns what the words of a block are still to be multiplied by."""
        if self.has_factors:
            var factor = self.factors.load[width=1](Coord(self.order().index(row, block)))
            return factor.cast[DType.float64]()
        if self.has_scales and self.apart.load[width=1](Coord(row)) != 0:
            return decode_scale(self.scales.load[width=1](Coord(self.order().index(row, block))))
        return 1


@fieldwise_init
struct FillRows[Source: RowBlocks](RangeWork):
    """Fills `FloatActivations`, some groups of rows a task."""

    var source: Self.Source
    var sources: RowSources
    """Which rows of the source."""
    var out: FloatActivations

    def num_tasks(self, rows: RowRange) -> Int:
        """Returns how many tasks the groups of a range are."""
        var groups = self.out.of_range(rows).groups
        return ceildiv(groups.count, groups_per_task(self.out.shape.k, groups.largest()))

    def run(self, rows: RowRange, task: Int):
        """Fills the groups of a task."""
        var part = self.out.of_range(rows)
        var groups = part.groups
        var count = groups_per_task(part.shape.k, groups.largest())
        var last = min((task + 1) * count, groups.count)
        for row in range(groups.start(task * count), groups.start(last)):
            var source_row = self.sources.of(rows.first + row)
            var window = self._fill(source_row, row, part)
            comptime if Self.Source.HAS_SCALES:
                var stays = window.low >= 1 and window.high <= LARGEST_FIELD
                part.apart.store(Coord(row), UInt8(0 if stays else 1))
                if not stays:
                    self._fill_apart(source_row, row, part)
                    # Such rows are never summed in float32.
                    window = ScaleWindow(0, LARGEST_FIELD + 1)
            part.windows.put(row, window)

    def _fill(self, source_row: Int, row: Int, part: FloatActivations) -> ScaleWindow:
        """Writes the words of a row, under their scales, and returns its window."""
        var order = part.order()
        var least_less_1 = Magnitudes(Magnitudes.MAX)
        var largest = Magnitudes(0)
        var window = ScaleWindow.EMPTY
        var index = 0
        var group_rows = order.groups.size(order.groups.group_of(row))
        for block in range(order.k_blocks):
            index = order.index(row, block) if block % STRETCH_BLOCKS == 0 else index + group_rows
            var scaled = self.source.block(source_row, block)
            var numbers = scaled.numbers
            comptime if Self.Source.HAS_SCALES:
                var ends = window_of(numbers)
                var shift = Int(scaled.scale) - E8M0_BIAS
                if ends.high > 0:
                    window.low = min(window.low, ends.low + shift)
                    window.high = max(window.high, ends.high + shift)
                # NaN and infinity reach the window, a NaN scale even above zeros.
                if ends.high > LARGEST_FIELD or Int(scaled.scale) == E8M0_NAN:
                    window.high = LARGEST_FIELD + 1
                numbers = _shifted(numbers, shift)
            else:
                var magnitudes = bf16.of(numbers) & Magnitudes(bf16.MAGNITUDE)
                largest = max(largest, magnitudes)
                # One less than zero wraps around to more than any magnitude.
                least_less_1 = min(least_less_1, magnitudes - 1)
            part.words.store[alignment=4](Coord(index * STEPS), activation_words(numbers))

        comptime if not Self.Source.HAS_SCALES:
            var least = Int(least_less_1.reduce_min()) + 1
            window.low = min(least >> bf16.MANTISSA_BITS, ScaleWindow.EMPTY.low)
            window.high = Int(largest.reduce_max()) >> bf16.MANTISSA_BITS
        return window

    def _fill_apart(self, source_row: Int, row: Int, part: FloatActivations):
        """Writes the words of a row without their scales, and those."""
        var order = part.order()
        for block in range(order.k_blocks):
            var scaled = self.source.block(source_row, block)
            var index = order.index(row, block)
            var words = activation_words(scaled.numbers)
            part.words.store[alignment=4](Coord(index * STEPS), words)
            part.scales.store(Coord(index), scaled.scale)


@always_inline
def window_of(numbers: Block) -> ScaleWindow:
    """Returns the exponent fields that occur, zeros left out: high is 0 if all are zeros."""
    var magnitudes = bf16.of(numbers) & Magnitudes(bf16.MAGNITUDE)
    var least = Int((magnitudes - 1).reduce_min()) + 1
    return ScaleWindow(
        least >> bf16.MANTISSA_BITS, Int(magnitudes.reduce_max()) >> bf16.MANTISSA_BITS
    )


@always_inline
def _shifted(numbers: Block, shift: Int) -> Block:
    """Multiplies by 2**shift, for numbers that stay regular or are zero; signs of zeros go."""
    var bits = bf16.of(numbers)
    var is_zero = (bits & Magnitudes(bf16.MAGNITUDE)).eq(0)
    var shifted = bits + Magnitudes(UInt16(shift << bf16.MANTISSA_BITS))
    return bitcast[DType.bfloat16, BLOCK](is_zero.select(Magnitudes(0), shifted))
