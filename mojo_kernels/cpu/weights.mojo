"""Tiles of weights, from any layout, in the form that the byte dot product wants.

A tile is 16 rows. Its codes of one block are four vectors of 16 words: word
n of vector j holds bytes 4j .. 4j + 3 of row n. The low nibbles of a vector
are the even elements 8j .. 8j + 6, the high nibbles the odd ones, and a byte
shuffle turns each nibble into twice its value plus `MAX_DOUBLED`.
"""

from layout import Coord
from std.math import iota
from std.memory import bitcast

from ..codec import DOUBLED_VALUES, F32_MANTISSA_BITS, MAGNITUDE_CODE, MAX_DOUBLED
from ..formats import BLOCK_BYTES, FORMAT
from ..layouts import OperandLayout, OperandShape, Plain, PreshuffledCdna4, PreshuffledCpu, RUN_BYTES
from ..operands import Operand
from .activations import ScaleWindow
from .dot import LANES, STEP_BYTES, WeightBytes

comptime RUNS = BLOCK_BYTES // RUN_BYTES
"""Vectors of a block's codes."""
comptime Words = SIMD[DType.uint32, LANES]
"""One word for each row of a tile."""

comptime _OFFSET_VALUES = (DOUBLED_VALUES + MAX_DOUBLED).cast[DType.uint8]()


@always_inline
def low_nibbles(words: Words) -> WeightBytes:
    """Returns the even elements of a vector, as offset values."""
    return _OFFSET_VALUES._dynamic_shuffle(bitcast[DType.uint8, STEP_BYTES](words) & 0xF)


@always_inline
def high_nibbles(words: Words) -> WeightBytes:
    """Returns the odd elements of a vector, as offset values."""
    return _OFFSET_VALUES._dynamic_shuffle(bitcast[DType.uint8, STEP_BYTES](words >> 4) & 0xF)


@always_inline
def factors_of(scales: Words) -> SIMD[DType.float32, LANES]:
    """Returns half of each scale as a float32; the two smallest become zero."""
    return bitcast[DType.float32, LANES]((max(scales, 1) - 1) << F32_MANTISSA_BITS)


struct TileCodes(TrivialRegisterPassable):
    """The codes of one block of a tile."""

    var words: SIMD[DType.uint32, RUNS * LANES]
    """The four vectors, one after the other."""

    @always_inline
    def __init__(out self, words: SIMD[DType.uint32, RUNS * LANES]):
        """Wraps vectors that are already in order."""
        self.words = words

    @staticmethod
    @always_inline
    def from_rows(rows: SIMD[DType.uint32, RUNS * LANES]) -> Self:
        """Reorders 16 rows of four words: a 16 x 4 transpose."""
        var halves = rows.deinterleave()
        var even = halves[0].deinterleave()
        var odd = halves[1].deinterleave()
        comptime Quarter = Words
        var result = Self(0)
        result.words = result.words.insert[offset=0](rebind[Quarter](even[0]))
        result.words = result.words.insert[offset=LANES](rebind[Quarter](odd[0]))
        result.words = result.words.insert[offset = 2 * LANES](rebind[Quarter](even[1]))
        result.words = result.words.insert[offset = 3 * LANES](rebind[Quarter](odd[1]))
        return result

    @always_inline
    def vector[j: Int](self) -> Words:
        """Returns vector `j`."""
        return self.words.slice[LANES, offset = j * LANES]()


trait WeightTiles(TrivialRegisterPassable):
    """Reads tiles of an operand; what lies beyond its last row is arbitrary."""

    comptime Layout: OperandLayout
    """The layout that this reads."""

    @staticmethod
    def of(operand: Operand[Self.Layout]) -> Self:
        """Reads `operand`."""
        ...

    def shape(self) -> OperandShape:
        """Returns N and k."""
        ...

    def codes(self, tile: Int, block: Int) -> TileCodes:
        """Returns the codes of a tile in one block."""
        ...

    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        ...


@fieldwise_init
struct CpuTiles(WeightTiles):
    """Tiles of an operand in the CPU's own layout: vectors as they lie in memory."""

    comptime Layout = PreshuffledCpu
    """The layout that this reads."""

    var operand: Operand[PreshuffledCpu]
    """The weights."""

    @staticmethod
    def of(operand: Operand[PreshuffledCpu]) -> Self:
        """Reads `operand`."""
        return Self(operand)

    @always_inline
    def shape(self) -> OperandShape:
        """Returns N and k."""
        return self.operand.shape

    @always_inline
    def codes(self, tile: Int, block: Int) -> TileCodes:
        """Returns the codes of a tile in one block."""
        comptime COUNT = LANES * BLOCK_BYTES
        var bytes = self.operand.codes_of[COUNT](tile * LANES, block * BLOCK_BYTES)
        return TileCodes(bitcast[DType.uint32, RUNS * LANES](bytes))

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        var at = self.operand.scale_offset(tile * LANES, block)
        var bytes = self.operand.scales.load[width=LANES, alignment=1](Coord(at))
        return bytes.cast[DType.uint32]()


@fieldwise_init
struct Cdna4Tiles(WeightTiles):
    """Tiles of an operand preshuffled for CDNA4: contiguous, but row by row."""

    comptime Layout = PreshuffledCdna4
    """The layout that this reads."""

    var operand: Operand[PreshuffledCdna4]
    """The weights."""

    @staticmethod
    def of(operand: Operand[PreshuffledCdna4]) -> Self:
        """Reads `operand`."""
        return Self(operand)

    @always_inline
    def shape(self) -> OperandShape:
        """Returns N and k."""
        return self.operand.shape

    @always_inline
    def codes(self, tile: Int, block: Int) -> TileCodes:
        """Returns the codes of a tile in one block."""
        comptime COUNT = LANES * BLOCK_BYTES
        var bytes = self.operand.codes_of[COUNT](tile * LANES, block * BLOCK_BYTES)
        return TileCodes.from_rows(bitcast[DType.uint32, RUNS * LANES](bytes))

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        # The tile's scales are one byte of each of 16 neighbouring words.
        comptime WORD_BYTES = 4
        var word, byte = divmod(self.operand.scale_offset(tile * LANES, block), WORD_BYTES)
        var bytes = self.operand.scales.load[width = LANES * WORD_BYTES, alignment=1](
            Coord(word * WORD_BYTES)
        )
        return (bitcast[DType.uint32, LANES](bytes) >> UInt32(8 * byte)) & 0xFF


@fieldwise_init
struct PlainTiles(WeightTiles):
    """Tiles of a row-major operand: gathered from 16 rows."""

    comptime Layout = Plain
    """The layout that this reads."""

    var operand: Operand[Plain]
    """The weights."""

    @staticmethod
    def of(operand: Operand[Plain]) -> Self:
        """Reads `operand`."""
        return Self(operand)

    @always_inline
    def shape(self) -> OperandShape:
        """Returns N and k."""
        return self.operand.shape

    @always_inline
    def codes(self, tile: Int, block: Int) -> TileCodes:
        """Returns the codes of a tile in one block."""
        var last = self.operand.shape.rows - 1
        var rows = SIMD[DType.uint32, RUNS * LANES](0)
        comptime for lane in range(LANES):
            var row = min(tile * LANES + lane, last)
            var bytes = self.operand.codes_of[BLOCK_BYTES](row, block * BLOCK_BYTES)
            rows = rows.insert[offset = lane * RUNS](bitcast[DType.uint32, RUNS](bytes))
        return TileCodes.from_rows(rows)

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        var last = self.operand.shape.rows - 1
        var scales = SIMD[DType.uint8, LANES](0)
        comptime for lane in range(LANES):
            scales[lane] = self.operand.scale(min(tile * LANES + lane, last), block)
        return scales.cast[DType.uint32]()


comptime _List[*Tiles: WeightTiles] = Tiles
comptime CPU_TILES = _List[PlainTiles, Cdna4Tiles, CpuTiles]
"""The reader of every layout, in the order of `LAYOUTS`."""


def tile_window[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> ScaleWindow:
    """Returns the scale window of a tile; padding rows do not count.

    Only a tile that holds a scale below 2 is looked at block by block: those
    are mostly the scales of blocks whose codes are all zero.
    """
    comptime NEUTRAL = Words(FORMAT.scale_bias)
    comptime REGULAR = 2
    var padding = iota[DType.uint32, LANES]().ge(
        UInt32(min(tiles.shape().rows - tile * LANES, LANES))
    )
    var low = NEUTRAL
    var high = NEUTRAL
    for block in range(tiles.shape().k_blocks()):
        var scales = padding.select(NEUTRAL, tiles.scales(tile, block))
        low = min(low, scales)
        high = max(high, scales)
    var window = ScaleWindow(Int(low.reduce_min()), Int(high.reduce_max()))
    if window.low >= REGULAR:
        return window

    comptime MAGNITUDES = UInt32(0x11111111 * MAGNITUDE_CODE)
    low = NEUTRAL
    for block in range(tiles.shape().k_blocks()):
        var codes = tiles.codes(tile, block)
        var used = Words(0)
        comptime for j in range(RUNS):
            used |= codes.vector[j]() & MAGNITUDES
        var counts = used.ne(0) & ~padding
        low = min(low, counts.select(tiles.scales(tile, block), NEUTRAL))
    window.low = Int(low.reduce_min())
    return window
