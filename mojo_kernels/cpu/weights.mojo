"""Tiles of weights, from any layout and of any format, as vectors of words.

A tile is 16 rows. Its codes of one block are vectors of 16 words, four for four-bit codes, six for
six-bit and eight for eight-bit ones: word n of vector j holds bytes 4j .. 4j + 3 of row n. Of a
four-bit format the low nibbles of a vector are the even elements 8j .. 8j + 6, the high nibbles the
odd; of the others `four_codes` gives neighbours, a byte each.
"""

from layout import Coord
from std.collections import Array
from std.math import iota
from std.memory import bitcast
from std.sys.intrinsics import PrefetchOptions, prefetch
from std.utils import IndexList

from ..layouts import (
    GRANULE_BYTES,
    OperandLayout,
    OperandShape,
    PreshuffledCpu,
    RUN_BYTES,
)
from ..numbers.elements import Element
from ..numbers.floats import F32_MANTISSA_BITS
from ..numbers.formats import E4M3_BLOCK, Format
from ..numbers.packing import ROOM, spread_sixes
from ..numbers.scales import E8M0_BIAS, Scale, decode_scale
from ..operands import Bytes, Operand
from .block_order import Decoding
from .vectors import LANES, STEP_BYTES, Sums, Words
from .window import ScaleWindow, float_scale_ends

comptime GRANULE_RUNS = GRANULE_BYTES // RUN_BYTES
"""Vectors of the codes of a granule: what GPU layouts keep together."""


@always_inline
def scale_bits[halvings: Int](scales: Words) -> Words:
    """Returns the float32 bits of each scale, halved some times.

    Scales that are then no longer regular become one: blocks that are not all zero
    and have such a scale are never multiplied in float32.
    """
    var regular = scales.gt(UInt32(halvings)).select(scales, Words(E8M0_BIAS))
    return (regular - UInt32(halvings)) << F32_MANTISSA_BITS


@always_inline
def half_scales[scale: Scale](scales: Words) -> Sums:
    """Returns half of each scale, from its byte or its float32 bits."""
    comptime if scale.has_float():
        return bitcast[DType.float32, LANES](scales) * 0.5
    else:
        return bitcast[DType.float32, LANES](scale_bits[1](scales))


@always_inline
def float64_scales[scale: Scale](scales: Words) -> SIMD[DType.float64, LANES]:
    """Returns each scale, from its byte or its float32 bits."""
    comptime if scale.has_float():
        return bitcast[DType.float32, LANES](scales).cast[DType.float64]()
    else:
        return decode_scale(scales.cast[DType.uint8]())


@always_inline
def infinite_or_one[width: SIMDLength](scales: SIMD[DType.float64, width]) -> type_of(scales):
    """Returns infinity where a scale is infinite, else one."""
    comptime INFINITY = bitcast[DType.float64](UInt64(0x7FF0000000000000))
    var magnitudes = bitcast[DType.uint64, width](scales) << 1
    var is_infinite = magnitudes.eq(SIMD[DType.uint64, width](0xFFE0000000000000))
    return is_infinite.select(type_of(scales)(INFINITY), type_of(scales)(1))


@always_inline
def float_scales[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], tile: Int, block: Int) -> Words:
    """Returns the float32 bits of a tile's scales: one for all rows, or one each."""
    comptime LANE_BITS = 4
    comptime assert LANES == 1 << LANE_BITS, "a tile in one block of rows"
    var first, element = tile * LANES, block * format.block_k
    if operand.block.row_bits >= LANE_BITS:
        return Words(bitcast[DType.uint32](operand.float_scale(first, element)))
    var last = operand.shape.rows - 1
    var words = Words(0)
    comptime for lane in range(LANES):
        var scale = operand.float_scale(min(first + lane, last), element)
        words[lane] = bitcast[DType.uint32](scale)
    return words


comptime E4M3_COLUMNS = 16
"""E4M3 scales of a row that are loaded at once."""


@always_inline
def e4m3_words[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], tile: Int, block: Int) -> Words:
    """Returns the E4M3 scales of a tile in one block, the first of each row in the lowest byte."""
    comptime COUNT = format.block_k // E4M3_BLOCK
    var last, words = operand.shape.rows - 1, Words(0)
    comptime for lane in range(LANES):
        var row = min(tile * LANES + lane, last)
        var bytes = operand.e4m3_scales[COUNT](row, block * format.block_k)
        words[lane] = bitcast[DType.uint16, 1](bytes)[0].cast[DType.uint32]()
    return words


comptime E4M3Square = SIMD[DType.uint8, E4M3_COLUMNS * LANES]
"""Sixteen columns of a byte a row."""


@always_inline
def e4m3_columns[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], tile: Int, block: Int) -> E4M3Square:
    """Returns the E4M3 scales of a tile from some block on: rows of bytes, turned to columns."""
    comptime assert E4M3_COLUMNS == LANES, "a square"
    var last = operand.shape.rows - 1
    var rows = Array[SIMD[DType.uint8, STEP_BYTES], 4](fill=0)
    comptime for row in range(LANES):
        var of_row = min(tile * LANES + row, last)
        var bytes = operand.e4m3_scales[E4M3_COLUMNS](of_row, block * format.block_k)
        rows[row % 4] = rows[row % 4].insert[offset=row // 4 * E4M3_COLUMNS](bytes)
    # Pairs of rows, then four; what is left is to turn words of four rows.
    var columns = E4M3Square(0)
    comptime for half in range(2):
        var lower = bitcast[DType.uint16, STEP_BYTES // 2](_zip_quarters[half](rows[0], rows[1]))
        var upper = bitcast[DType.uint16, STEP_BYTES // 2](_zip_quarters[half](rows[2], rows[3]))
        comptime for quarter in range(2):
            var four = _zip_quarters[quarter](lower, upper)
            var words = bitcast[DType.uint32, LANES](four).shuffle[_turned()]()
            comptime at = (2 * half + quarter) * STEP_BYTES
            columns = columns.insert[offset=at](bitcast[DType.uint8, STEP_BYTES](words))
    return columns


@always_inline
def _zip_quarters[
    dtype: DType, width: SIMDLength, //, half: Int
](a: SIMD[dtype, width], b: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """Returns elements of `a` and `b` by turns: a half of each quarter, which is an instruction."""
    return a.shuffle[_zipped[width, half]()](b)


def _zipped[width: Int, half: Int]() -> IndexList[width]:
    var source = IndexList[width]()
    for i in range(width):
        var quarter, place = divmod(i, width // 4)
        source[i] = quarter * (width // 4) + half * (width // 8) + place // 2 + i % 2 * width
    return source


def _turned() -> IndexList[LANES]:
    """Returns where the words of a square of four by four come from."""
    var source = IndexList[LANES]()
    for i in range(LANES):
        source[i] = i % 4 * 4 + i // 4
    return source


comptime GranuleWords = SIMD[DType.uint32, GRANULE_RUNS * LANES]
"""The codes of one granule of a tile: its vectors, one after the other."""
comptime runs_of[format: Format] = format.block_bytes() // RUN_BYTES
"""Vectors of a tile's codes in one block."""
comptime TileWords[format: Format] = SIMD[DType.uint32, ROOM[runs_of[format] * LANES]]
"""The codes of one block of a tile."""


@always_inline
def prefetch_line(bytes: Bytes, offset: Int):
    """Asks for the cache line of a byte."""
    comptime READ = PrefetchOptions().for_read().high_locality().to_data_cache()
    var address = Int(bytes.ptr) + offset
    prefetch[READ](MutPointer[UInt8, MutUntrackedOrigin](unsafe_from_address=address))


@always_inline
def prefetch_tile[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], tile: Int, block: Int):
    """Asks for one block of a tile whose codes are contiguous; scales, one byte to sixteen of
    codes, come by themselves."""
    var codes = operand.code_offset(tile * LANES, block * format.block_bytes())
    comptime for j in range(runs_of[format]):
        prefetch_line(operand.codes, codes + j * STEP_BYTES)


@always_inline
def prefetch_e4m3[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], tile: Int, block: Int):
    """Asks for a part of the E4M3 scales of a tile: rows follow each other, so parts need not be
    those of a block."""
    comptime BYTES = format.block_k // E4M3_BLOCK * LANES
    prefetch_line(operand.scales, operand.e4m3_offset(tile * LANES, 0) + block * BYTES)


trait WeightTiles(TrivialRegisterPassable):
    """Reads tiles of an operand; what lies beyond its last row is arbitrary."""

    comptime Layout: OperandLayout
    """The layout that this reads."""
    comptime format: Format
    """The format that this reads."""
    comptime Codes: TrivialRegisterPassable
    """What stands for the codes of one block of a tile."""
    comptime IS_FAST: Bool
    """Whether loading costs little."""

    @staticmethod
    def of(operand: Operand[Self.Layout, Self.format]) -> Self:
        """Reads `operand`."""
        ...

    def shape(self) -> OperandShape:
        """Returns N and k."""
        ...

    def codes(self, tile: Int, block: Int) -> Self.Codes:
        """Returns the codes of a tile in one block."""
        ...

    def vector[j: Int](self, codes: Self.Codes) -> Words:
        """Returns vector `j` of the codes."""
        ...

    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block, or the bits of float32 scales."""
        ...

    def e4m3_scales(self, tile: Int, block: Int) -> Words:
        """Returns the E4M3 scales of a tile in one block, of formats that have such."""
        ...

    def e4m3_columns(self, tile: Int, block: Int) -> E4M3Square:
        """Returns those of so many scales of each row, from a block on that is not near the end."""
        ...

    def scale_stride(self) -> Int:
        """Returns how many blocks follow each other that share their scales, or more."""
        ...

    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        ...

    def prefetch(self, tile: Int, block: Int):
        """Asks for the codes of a tile in one block; past the tile's last, for what follows it."""
        ...

    def prefetch_e4m3(self, tile: Int, block: Int):
        """Asks for a part of the E4M3 scales of a tile, as many as a block has."""
        ...


def decoding_of[Tiles: WeightTiles]() -> Decoding:
    """Returns what it takes to decode weights each time they are loaded."""
    comptime element = Tiles.format.element
    if Tiles.IS_FAST and element == Element.E2M1:
        return Decoding.OF_NIBBLES
    if Tiles.IS_FAST and (element.is_integer() or element == Element.E2M3):
        return Decoding.OF_BYTES
    return Decoding.DEAR


@fieldwise_init
struct CpuTiles[weight_format: Format](WeightTiles):
    """Tiles of an operand in the CPU's own layout: vectors as they lie in memory."""

    comptime Layout = PreshuffledCpu
    comptime format = Self.weight_format
    comptime IS_FAST = True
    comptime Codes = Int
    """The offset of the vectors."""

    var operand: Operand[PreshuffledCpu, Self.format]
    """The weights."""

    @staticmethod
    def of(operand: Operand[PreshuffledCpu, Self.format]) -> Self:
        """Reads `operand`."""
        return Self(operand)

    @always_inline
    def shape(self) -> OperandShape:
        """Returns N and k."""
        return self.operand.shape

    @always_inline
    def codes(self, tile: Int, block: Int) -> Int:
        """Returns where the codes of a tile in one block are."""
        return self.operand.code_offset(tile * LANES, block * Self.format.block_bytes())

    @always_inline
    def vector[j: Int](self, codes: Int) -> Words:
        """Loads vector `j`."""
        var bytes = self.operand.codes.load[width=STEP_BYTES, alignment=1](
            Coord(codes + j * STEP_BYTES)
        )
        return bitcast[DType.uint32, LANES](bytes)

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scales of a tile in one block."""
        comptime if Self.format.scale.has_float():
            return float_scales(self.operand, tile, block)
        else:
            var at = self.operand.scale_offset(tile * LANES, block)
            var bytes = self.operand.scales.load[width=LANES, alignment=1](Coord(at))
            return bytes.cast[DType.uint32]()

    @always_inline
    def e4m3_scales(self, tile: Int, block: Int) -> Words:
        """Returns the E4M3 scales of a tile in one block."""
        return e4m3_words(self.operand, tile, block)

    @always_inline
    def e4m3_columns(self, tile: Int, block: Int) -> E4M3Square:
        """Returns those of so many scales of each row."""
        return e4m3_columns(self.operand, tile, block)

    @always_inline
    def scale_stride(self) -> Int:
        """Returns how many blocks share their scales."""
        return _scale_stride(self.operand)

    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        comptime ARE_BYTES = Self.format.scale == Scale.E8M0
        if not ARE_BYTES or (tile + 1) * LANES > self.operand.shape.rows:
            return _scale_range_by_blocks(self, tile)

        # The scales of a full tile are contiguous, and their order is of no interest.
        comptime WIDTH = 4 * LANES
        comptime NEUTRAL = UInt8(E8M0_BIAS)
        var first = self.operand.scale_offset(tile * LANES, 0)
        var count = self.operand.shape.k_blocks[Self.format]() * LANES
        var low = SIMD[DType.uint8, WIDTH](NEUTRAL)
        var high = low
        var i = 0
        while i + WIDTH <= count:
            var scales = self.operand.scales.load[width=WIDTH, alignment=1](Coord(first + i))
            low = min(low, scales)
            high = max(high, scales)
            i += WIDTH
        var window = ScaleWindow(Int(low.reduce_min()), Int(high.reduce_max()))
        while i < count:
            window = window.including(Int(self.operand.scales.load[width=1](Coord(first + i))))
            i += 1
        return window

    @always_inline
    def prefetch(self, tile: Int, block: Int):
        """Asks for the codes of a tile in one block."""
        prefetch_tile(self.operand, tile, block)

    @always_inline
    def prefetch_e4m3(self, tile: Int, block: Int):
        """Asks for a part of the E4M3 scales of a tile."""
        prefetch_e4m3(self.operand, tile, block)


@always_inline
def four_codes[Tiles: WeightTiles, //, quad: Int](tiles: Tiles, codes: Tiles.Codes) -> Words:
    """Returns the codes of elements 4 * quad .. 4 * quad + 3 of each row, a byte each."""
    comptime if Tiles.format.element.bits == 8:
        return tiles.vector[quad](codes)
    else:
        return spread_sixes(four_sixes[quad](tiles, codes))


@always_inline
def four_sixes[Tiles: WeightTiles, //, quad: Int](tiles: Tiles, codes: Tiles.Codes) -> Words:
    """Returns the same six-bit codes in 24 bits; what lies above does not matter."""
    comptime assert Tiles.format.element.bits == 6, "others are bytes, or nibbles"
    comptime BYTES = 3
    comptime word, byte = divmod(BYTES * quad, RUN_BYTES)
    var packed = tiles.vector[word](codes) >> UInt32(8 * byte)
    comptime if byte + BYTES > RUN_BYTES:
        packed |= tiles.vector[word + 1](codes) << UInt32(8 * (RUN_BYTES - byte))
    return packed


trait GranuleReader:
    """How a layout that is not the CPU's own gives up a tile."""

    comptime Layout: OperandLayout

    @staticmethod
    def codes[
        format: Format
    ](operand: Operand[Self.Layout, format], tile: Int, block: Int) -> TileWords[format]:
        """Returns the vectors of a tile's codes in one block."""
        ...

    @staticmethod
    def scales[
        format: Format
    ](operand: Operand[Self.Layout, format], tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        ...

    @staticmethod
    def prefetch[format: Format](operand: Operand[Self.Layout, format], tile: Int, block: Int):
        """Asks for the codes of a tile in one block."""
        ...


@fieldwise_init
struct GranuleTiles[Reader: GranuleReader, weight_format: Format](WeightTiles):
    """Tiles of an operand in a layout that a reader takes apart."""

    comptime Layout = Self.Reader.Layout
    comptime format = Self.weight_format
    comptime IS_FAST = False
    comptime Codes = TileWords[Self.format]

    var operand: Operand[Self.Layout, Self.format]

    @staticmethod
    def of(operand: Operand[Self.Layout, Self.format]) -> Self:
        return Self(operand)

    @always_inline
    def shape(self) -> OperandShape:
        return self.operand.shape

    @always_inline
    def codes(self, tile: Int, block: Int) -> TileWords[Self.format]:
        return Self.Reader.codes(self.operand, tile, block)

    @always_inline
    def vector[j: Int](self, codes: TileWords[Self.format]) -> Words:
        return codes.slice[LANES, offset=j * LANES]()

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        comptime if Self.format.scale.has_float():
            return float_scales(self.operand, tile, block)
        else:
            return Self.Reader.scales(self.operand, tile, block)

    @always_inline
    def e4m3_scales(self, tile: Int, block: Int) -> Words:
        return e4m3_words(self.operand, tile, block)

    @always_inline
    def e4m3_columns(self, tile: Int, block: Int) -> E4M3Square:
        return e4m3_columns(self.operand, tile, block)

    @always_inline
    def scale_stride(self) -> Int:
        return _scale_stride(self.operand)

    @always_inline
    def scale_range(self, tile: Int) -> ScaleWindow:
        return _scale_range_by_blocks(self, tile)

    @always_inline
    def prefetch(self, tile: Int, block: Int):
        Self.Reader.prefetch(self.operand, tile, block)

    @always_inline
    def prefetch_e4m3(self, tile: Int, block: Int):
        prefetch_e4m3(self.operand, tile, block)


def tile_window[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> ScaleWindow:
    """Returns the scale window of a tile; padding rows do not count.

    Only a tile that holds a scale below 2 is looked at closely: those are
    mostly the scales of blocks whose codes are all zero.
    """
    comptime SMALLEST_REGULAR = 2
    var window = tiles.scale_range(tile)
    if window.low < SMALLEST_REGULAR:
        window.low = _lowest_used_scale(tiles, tile)
    return window


@always_inline
def _scale_stride[Layout: OperandLayout, format: Format](operand: Operand[Layout, format]) -> Int:
    """Returns how many blocks share their scales."""
    comptime if format.scale == Scale.E4M3:
        return operand.shape.k_blocks[format]()
    elif format.scale.has_float():
        return 1 << (operand.block.k_bits - format.block().k_bits)
    else:
        return 1


@always_inline
def _scale_ends[scale: Scale](scales: Words) -> Tuple[Words, Words]:
    """Returns the scale bytes that a scale is a multiple of, and at most as large as."""
    comptime if scale.has_float():
        var fields = (scales >> F32_MANTISSA_BITS) & 255
        return float_scale_ends(fields)
    else:
        return (scales, scales)


@always_inline
def _is_padding[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> SIMD[DType.bool, LANES]:
    """Says which lanes of a tile lie beyond the operand."""
    var num_rows = min(tiles.shape().rows - tile * LANES, LANES)
    return iota[DType.uint32, LANES]().ge(UInt32(num_rows))


def _scale_range_by_blocks[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> ScaleWindow:
    """Returns the range of a tile's scales, padding rows left out."""
    comptime NEUTRAL = Words(E8M0_BIAS)
    var padding = _is_padding(tiles, tile)
    var low = NEUTRAL
    var high = NEUTRAL
    for block in range(0, tiles.shape().k_blocks[Tiles.format](), tiles.scale_stride()):
        var ends = _scale_ends[Tiles.format.scale](tiles.scales(tile, block))
        low = min(low, padding.select(NEUTRAL, ends[0]))
        high = max(high, padding.select(NEUTRAL, ends[1]))
    return ScaleWindow(Int(low.reduce_min()), Int(high.reduce_max()))


def _magnitudes_of[format: Format, vector: Int]() -> UInt32:
    """Returns the bits of the words of a vector that are set where a number is not zero."""
    comptime element = format.element
    comptime mask = (1 << element.bits) - 1 if element.is_integer() else element.magnitude_mask()
    comptime WORD_BITS = 8 * RUN_BYTES
    var word = 0
    for bit in range(WORD_BITS):
        word |= (mask >> ((WORD_BITS * vector + bit) % element.bits) & 1) << bit
    return UInt32(word)


def _lowest_used_scale[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> Int:
    """Returns the lowest scale of the blocks that are not all zero."""
    comptime NEUTRAL = Words(E8M0_BIAS)
    var padding = _is_padding(tiles, tile)
    var low = NEUTRAL
    for block in range(tiles.shape().k_blocks[Tiles.format]()):
        var codes = tiles.codes(tile, block)
        var used = Words(0)
        comptime for j in range(runs_of[Tiles.format]):
            comptime MAGNITUDES = _magnitudes_of[Tiles.format, j]()
            used |= tiles.vector[j](codes) & MAGNITUDES
        var counts = used.ne(0) & ~padding
        var ends = _scale_ends[Tiles.format.scale](tiles.scales(tile, block))
        low = min(low, counts.select(ends[0], NEUTRAL))
    return Int(low.reduce_min())
