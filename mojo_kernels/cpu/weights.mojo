"""Tiles of weights, from any layout, in the form that the byte dot product wants.

A tile is 16 rows. Its codes of one block are four vectors of 16 words: word
n of vector j holds bytes 4j .. 4j + 3 of row n. The low nibbles of a vector
are the even elements 8j .. 8j + 6, the high nibbles the odd ones, and a byte
shuffle turns each nibble into twice its value plus `MAX_DOUBLED`.
"""

from layout import Coord
from std.math import iota
from std.memory import bitcast
from std.sys.intrinsics import PrefetchOptions, prefetch

from ..codec import DOUBLED_VALUES, F32_MANTISSA_BITS, MAGNITUDE_CODE, MAX_DOUBLED
from ..formats import BLOCK_BYTES, FORMAT
from ..layouts import (
    OperandLayout,
    OperandShape,
    Plain,
    PreshuffledCdna4,
    PreshuffledCpu,
    PreshuffledCuda,
    RUN_BYTES,
)
from ..operands import Bytes, Operand
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
def half_scale_bits(scales: Words) -> Words:
    """Returns the float32 bits of half of each scale.

    The two smallest, whose half is not regular, become one half: blocks that
    are not all zero and have such a scale are never multiplied in float32.
    """
    var regular = scales.gt(1).select(scales, Words(FORMAT.scale_bias))
    return (regular - 1) << F32_MANTISSA_BITS


comptime TileWords = SIMD[DType.uint32, RUNS * LANES]
"""The codes of one block of a tile: its vectors, one after the other."""
comptime TilePairs = SIMD[DType.uint64, RUNS * LANES // 2]
"""The same, two words at a time."""


@always_inline
def _transposed(rows: TileWords) -> TileWords:
    """Turns 16 rows of four words into four vectors of 16 words."""
    var halves = rows.deinterleave()
    var even = halves[0].deinterleave()
    var odd = halves[1].deinterleave()
    var first = rebind[Words](even[0]).join(rebind[Words](odd[0]))
    var last = rebind[Words](even[1]).join(rebind[Words](odd[1]))
    return rebind[TileWords](first.join(last))


@always_inline
def _prefetch(bytes: Bytes, offset: Int):
    comptime READ = PrefetchOptions().for_read().high_locality().to_data_cache()
    var address = Int(bytes.ptr) + offset
    prefetch[READ](MutPointer[UInt8, MutUntrackedOrigin](unsafe_from_address=address))


@always_inline
def _prefetch_tile[Layout: OperandLayout](operand: Operand[Layout], tile: Int, block: Int):
    """Asks for one block of a tile whose codes are contiguous, and for its scales."""
    var codes = operand.code_offset(tile * LANES, block * BLOCK_BYTES)
    comptime for j in range(RUNS):
        _prefetch(operand.codes, codes + j * STEP_BYTES)
    _prefetch(operand.scales, operand.scale_offset(tile * LANES, block))


trait WeightTiles(TrivialRegisterPassable):
    """Reads tiles of an operand; what lies beyond its last row is arbitrary."""

    comptime Layout: OperandLayout
    """The layout that this reads."""
    comptime Codes: TrivialRegisterPassable
    """What stands for the codes of one block of a tile."""

    @staticmethod
    def of(operand: Operand[Self.Layout]) -> Self:
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
        """Returns the scale bytes of a tile in one block."""
        ...

    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        ...

    def prefetch(self, tile: Int, block: Int):
        """Asks for the codes of a tile in one block, which may lie beyond the operand."""
        ...


@fieldwise_init
struct CpuTiles(WeightTiles):
    """Tiles of an operand in the CPU's own layout: vectors as they lie in memory."""

    comptime Layout = PreshuffledCpu
    """The layout that this reads."""
    comptime Codes = Int
    """The offset of the vectors."""

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
    def codes(self, tile: Int, block: Int) -> Int:
        """Returns where the codes of a tile in one block are."""
        return self.operand.code_offset(tile * LANES, block * BLOCK_BYTES)

    @always_inline
    def vector[j: Int](self, codes: Int) -> Words:
        """Loads vector `j`."""
        var bytes = self.operand.codes.load[width=STEP_BYTES, alignment=1](
            Coord(codes + j * STEP_BYTES)
        )
        return bitcast[DType.uint32, LANES](bytes)

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        var at = self.operand.scale_offset(tile * LANES, block)
        var bytes = self.operand.scales.load[width=LANES, alignment=1](Coord(at))
        return bytes.cast[DType.uint32]()

    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        if (tile + 1) * LANES > self.operand.shape.rows:
            return _scale_range_by_blocks(self, tile)

        # The scales of a full tile are contiguous, and their order is of no interest.
        comptime WIDTH = 4 * LANES
        comptime NEUTRAL = UInt8(FORMAT.scale_bias)
        var first = self.operand.scale_offset(tile * LANES, 0)
        var count = self.operand.shape.k_blocks() * LANES
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
        """Asks for the codes and scales of a tile in one block."""
        _prefetch_tile(self.operand, tile, block)


@fieldwise_init
struct Cdna4Tiles(WeightTiles):
    """Tiles of an operand preshuffled for CDNA4: contiguous, but row by row."""

    comptime Layout = PreshuffledCdna4
    """The layout that this reads."""
    comptime Codes = TileWords
    """The vectors."""

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
    def codes(self, tile: Int, block: Int) -> TileWords:
        """Returns the codes of a tile in one block."""
        comptime COUNT = LANES * BLOCK_BYTES
        var bytes = self.operand.codes_of[COUNT](tile * LANES, block * BLOCK_BYTES)
        return _transposed(bitcast[DType.uint32, RUNS * LANES](bytes))

    @always_inline
    def vector[j: Int](self, codes: TileWords) -> Words:
        """Returns vector `j`."""
        return codes.slice[LANES, offset=j * LANES]()

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        # The tile's scales are one byte of each of 16 neighbouring words.
        comptime WORD_BYTES = 4
        var word, byte = divmod(self.operand.scale_offset(tile * LANES, block), WORD_BYTES)
        var bytes = self.operand.scales.load[width=LANES * WORD_BYTES, alignment=1](
            Coord(word * WORD_BYTES)
        )
        return (bitcast[DType.uint32, LANES](bytes) >> UInt32(8 * byte)) & 0xFF

    @always_inline
    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        return _scale_range_by_blocks(self, tile)

    @always_inline
    def prefetch(self, tile: Int, block: Int):
        """Asks for the codes and scales of a tile in one block."""
        _prefetch_tile(self.operand, tile, block)


@fieldwise_init
struct CudaTiles(WeightTiles):
    """Tiles of an operand preshuffled for CUDA: halves of its tiles, pairs of rows side by side."""

    comptime Layout = PreshuffledCuda
    """The layout that this reads."""
    comptime Codes = TileWords
    """The vectors."""
    comptime HALVES = PreshuffledCuda.ROW_MULTIPLE // LANES
    """Tiles of 16 rows in a tile of the layout."""

    var operand: Operand[PreshuffledCuda]
    """The weights."""

    @staticmethod
    def of(operand: Operand[PreshuffledCuda]) -> Self:
        """Reads `operand`."""
        return Self(operand)

    @always_inline
    def shape(self) -> OperandShape:
        """Returns N and k."""
        return self.operand.shape

    @always_inline
    def codes(self, tile: Int, block: Int) -> TileWords:
        """Returns the codes of a tile in one block."""
        comptime COUNT = PreshuffledCuda.TILE_BYTES
        var both, half = divmod(tile, Self.HALVES)
        var at = self.operand.code_offset(both * Self.HALVES * LANES, block * BLOCK_BYTES)
        var bytes = self.operand.codes.load[width=COUNT, alignment=1](Coord(at))
        # A lane's four words are rows r, r + 8 | r + 16, r + 24: two words for each half.
        var halves = bitcast[DType.uint64, RUNS * LANES](bytes).deinterleave()
        var pairs = rebind[TilePairs](halves[1] if half == 1 else halves[0])
        var rows = bitcast[DType.uint32, RUNS * LANES](pairs).deinterleave()
        return _transposed(rebind[TileWords](rows[0].join(rows[1])))

    @always_inline
    def vector[j: Int](self, codes: TileWords) -> Words:
        """Returns vector `j`."""
        return codes.slice[LANES, offset=j * LANES]()

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        var both, half = divmod(tile, Self.HALVES)
        var at = self.operand.scale_offset(both * Self.HALVES * LANES, block)
        var bytes = self.operand.scales.load[width=Self.HALVES * LANES, alignment=1](Coord(at))
        var halves = bitcast[DType.uint16, LANES](bytes).deinterleave()
        var pairs = rebind[SIMD[DType.uint16, LANES // 2]](halves[1] if half == 1 else halves[0])
        var rows = bitcast[DType.uint8, LANES](pairs).deinterleave()
        return rebind[SIMD[DType.uint8, LANES]](rows[0].join(rows[1])).cast[DType.uint32]()

    @always_inline
    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        return _scale_range_by_blocks(self, tile)

    @always_inline
    def prefetch(self, tile: Int, block: Int):
        """Asks for half of the codes, and the scales, of both halves in one block."""
        var both, half = divmod(tile, Self.HALVES)
        var codes = self.operand.code_offset(both * Self.HALVES * LANES, block * BLOCK_BYTES)
        comptime for j in range(RUNS):
            _prefetch(self.operand.codes, codes + (half * RUNS + j) * STEP_BYTES)
        _prefetch(self.operand.scales, self.operand.scale_offset(tile * LANES, block))


@fieldwise_init
struct PlainTiles(WeightTiles):
    """Tiles of a row-major operand: gathered from 16 rows, the last one repeated."""

    comptime Layout = Plain
    """The layout that this reads."""
    comptime Codes = TileWords
    """The vectors."""

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
    def codes(self, tile: Int, block: Int) -> TileWords:
        """Returns the codes of a tile in one block."""
        var last = self.operand.shape.rows - 1
        var rows = TileWords(0)
        comptime for lane in range(LANES):
            var row = min(tile * LANES + lane, last)
            var bytes = self.operand.codes_of[BLOCK_BYTES](row, block * BLOCK_BYTES)
            rows = rows.insert[offset=lane * RUNS](bitcast[DType.uint32, RUNS](bytes))
        return _transposed(rows)

    @always_inline
    def vector[j: Int](self, codes: TileWords) -> Words:
        """Returns vector `j`."""
        return codes.slice[LANES, offset=j * LANES]()

    @always_inline
    def scales(self, tile: Int, block: Int) -> Words:
        """Returns the scale bytes of a tile in one block."""
        var last = self.operand.shape.rows - 1
        var scales = SIMD[DType.uint8, LANES](0)
        comptime for lane in range(LANES):
            scales[lane] = self.operand.scale(min(tile * LANES + lane, last), block)
        return scales.cast[DType.uint32]()

    @always_inline
    def scale_range(self, tile: Int) -> ScaleWindow:
        """Returns the range of a tile's scales, padding rows left out."""
        return _scale_range_by_blocks(self, tile)

    @always_inline
    def prefetch(self, tile: Int, block: Int):
        """Asks for the codes of a tile in one block, once for each cache line."""
        if block % (STEP_BYTES // BLOCK_BYTES) == 0:
            comptime for lane in range(LANES):
                var row = min(tile * LANES + lane, self.operand.shape.rows - 1)
                _prefetch(self.operand.codes, self.operand.code_offset(row, block * BLOCK_BYTES))


comptime _List[*Tiles: WeightTiles] = Tiles
comptime CPU_TILES = _List[PlainTiles, Cdna4Tiles, CpuTiles, CudaTiles]
"""The reader of every layout, in the order of `LAYOUTS`."""


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
def _is_padding[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> SIMD[DType.bool, LANES]:
    """Says which lanes of a tile lie beyond the operand."""
    var num_rows = min(tiles.shape().rows - tile * LANES, LANES)
    return iota[DType.uint32, LANES]().ge(UInt32(num_rows))


def _scale_range_by_blocks[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> ScaleWindow:
    """Returns the range of a tile's scales, padding rows left out."""
    comptime NEUTRAL = Words(FORMAT.scale_bias)
    var padding = _is_padding(tiles, tile)
    var low = NEUTRAL
    var high = NEUTRAL
    for block in range(tiles.shape().k_blocks()):
        var scales = padding.select(NEUTRAL, tiles.scales(tile, block))
        low = min(low, scales)
        high = max(high, scales)
    return ScaleWindow(Int(low.reduce_min()), Int(high.reduce_max()))


def _lowest_used_scale[Tiles: WeightTiles](tiles: Tiles, tile: Int) -> Int:
    """Returns the lowest scale of the blocks that are not all zero."""
    comptime NEUTRAL = Words(FORMAT.scale_bias)
    comptime MAGNITUDES = UInt32(0x11111111 * MAGNITUDE_CODE)
    var padding = _is_padding(tiles, tile)
    var low = NEUTRAL
    for block in range(tiles.shape().k_blocks()):
        var codes = tiles.codes(tile, block)
        var used = Words(0)
        comptime for j in range(RUNS):
            used |= tiles.vector[j](codes) & MAGNITUDES
        var counts = used.ne(0) & ~padding
        low = min(low, counts.select(tiles.scales(tile, block), NEUTRAL))
    return Int(low.reduce_min())
