"""A wave's preshuffled weights, straight from memory to registers.

A load of 16 bytes a lane is a tile of 16 rows x 128, or half of one of eight-bit codes. Of six-bit
ones a lane feeds one and a half of the layout's 16 bytes of a row: it loads three halves. A word
of scales a lane covers 32 rows x 256, a group:

    byte of the word     0               1                2               3
    scale of             row l % 16      row 16 + l % 16  row l % 16      row 16 + l % 16
                         block l / 16    block l / 16     block 4 + l/16  block 4 + l/16

Of E4M3 scales, of sixteen, two lie in the place of a byte, and the word of a lane is two, one for
each 128 along K. Float scales are plain: a word for a wave's rows, or a pair of tiles of them, and
128 along K; or none in the loop.
"""

from std.math import ceildiv
from std.memory import bitcast

from ...numbers.formats import Format
from ...numbers.scales import Scale
from ..chip import GROUP_BLOCKS, GROUP_TILES, LANES, LANE_BYTES, LANE_SCALES, PAIR, PIECE_BYTES
from ..chip import SCALE_GROUP_BYTES, SCALE_GROUP_ROWS, TILE, TILE_BLOCKS, WORD_BYTES
from ..instructions.lds import PIECE_WORDS
from ..instructions.matrix import BlockCodes, PIECES
from ..instructions.vector import chosen_bytes
from .memory import OUT_OF_RANGE, View, quotient, remainder


comptime HALF_BYTES = PIECE_BYTES // 2
"""Bytes of half a piece."""
comptime HALF_WORDS = PIECE_WORDS // 2
comptime HALVES = 3
"""Of a block of six-bit codes."""


@always_inline
def half_of_sixes[half: Int](lane: Int32) -> Int32:
    """Returns where in a tile of six-bit codes is a half piece of what a lane feeds."""
    var number = quotient[TILE](lane) * Int32(HALVES) + Int32(half)
    var row_byte = lane % Int32(TILE) * Int32(PIECE_BYTES)
    var piece = quotient[2](number) * Int32(TILE * PIECE_BYTES)
    return piece + row_byte + remainder[2](number) * Int32(HALF_BYTES)


@always_inline
def scale_row_bytes[format: Format](k_blocks: Int32) -> Int32:
    """Returns the bytes from the preshuffled scales of 32 rows to the next: with tensor scales."""
    var groups = quotient[GROUP_BLOCKS](k_blocks + Int32(GROUP_BLOCKS - 1))
    comptime TENSOR_SCALES = SCALE_GROUP_ROWS * format.scale.row_bytes
    return groups * Int32(SCALE_GROUP_BYTES * LANE_SCALES[format]) + Int32(TENSOR_SCALES)


@fieldwise_init
struct WeightCursor(TrivialRegisterPassable):
    """A chunk of a wave's weights, the same for all lanes."""

    var codes: View
    """From the chunk's first tile on."""
    var scales: View
    """From the first word of the chunk's group on."""
    var first_block: Int32


@fieldwise_init
struct WeightFragments[format: Format, n_tiles: Int, k_tiles: Int, k_tail: Bool](
    TrivialRegisterPassable
):
    """A wave's rows of preshuffled weights, some tiles of 16.

    `n_tiles`: Tiles of rows; even or one for scales that are floats.
    `k_tiles`: Tiles of a chunk, one or two.
    """

    comptime CODE_BYTES = LANE_BYTES[Self.format]
    comptime TILE_BYTES = TILE * TILE_BLOCKS * Self.CODE_BYTES
    comptime HAS_BYTES = Self.format.scale != Scale.FLOAT32
    """Whether scales are bytes in the preshuffled order."""
    comptime HAS_PAIRS = LANE_SCALES[Self.format] > 1
    """Whether two of them lie in the place of one."""
    comptime WORD_TILES = _word_tiles(Self.format, Self.n_tiles)
    """Tiles of rows that share a word of scales."""
    comptime SPANS = ceildiv(Self.n_tiles, Self.WORD_TILES)
    comptime WORDS = _words(Self.format, Self.SPANS, Self.k_tiles)
    comptime TILE_LOADS = HALVES if Self.format.element.bits == 6 else PIECES[Self.format]
    """Loads of a tile of codes."""
    comptime LOAD_WORDS = Self.k_tiles if Self.HAS_PAIRS else 1
    """Words of a load of scales."""
    comptime SCALE_LOADS = Self.WORDS // Self.LOAD_WORDS
    comptime LOADS = Self.SCALE_LOADS + Self.k_tiles * Self.n_tiles * Self.TILE_LOADS
    comptime CHUNK_BLOCKS = Self.k_tiles * TILE_BLOCKS

    var codes: View
    """The codes from the wave's first tile on."""
    var scales: View
    """The scales from the pair of the wave's first tile on."""
    var k_blocks: Int32
    var first_tile: Int32

    @staticmethod
    @always_inline
    def of(
        codes: ImmPointer[UInt8, _],
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_tile: Int32,
    ) -> Self:
        """Describes the weights from tile `first_tile` on."""
        comptime IS_WHOLE = Self.n_tiles == 1 or Self.n_tiles % PAIR == 0
        comptime CAN_BE_ODD = Self.HAS_BYTES and not Self.HAS_PAIRS
        comptime assert CAN_BE_ODD or IS_WHOLE, "tiles share scale words"
        var none = View.of(codes, 0)
        var self = Self(none, none, k_blocks, first_tile)
        var tiles = quotient[TILE](rows + Int32(TILE - 1))
        self.codes = View.of(codes, tiles * self._tile_row_bytes()).moved(
            first_tile * self._tile_row_bytes()
        )
        comptime if Self.HAS_BYTES:
            var pairs = quotient[PAIR * TILE](rows + Int32(PAIR * TILE - 1))
            var row_bytes = scale_row_bytes[Self.format](k_blocks)
            self.scales = View.of(scales, pairs * row_bytes).moved(
                quotient[PAIR](first_tile) * row_bytes
            )
        elif Self.WORDS > 0:
            comptime ROWS = Self.format.block_rows
            var row_blocks = quotient[ROWS](rows + Int32(ROWS - 1))
            self.scales = View.of(scales, row_blocks * self._float_row_bytes())
        return self

    @always_inline
    def _tile_row_bytes(self) -> Int32:
        return self.k_blocks * Int32(TILE * Self.CODE_BYTES)

    @always_inline
    def _float_row_bytes(self) -> Int32:
        var scales = quotient[TILE_BLOCKS](self.k_blocks + Int32(TILE_BLOCKS - 1))
        return scales * Int32(Scale.FLOAT32.bytes)

    @always_inline
    def cursor(self, chunk: Int32) -> WeightCursor:
        """Returns the place of a chunk; one beyond K reads as zeros."""
        var block = chunk * Int32(Self.CHUNK_BLOCKS)
        var is_inside = block < self.k_blocks
        comptime GROUP_BYTES = SCALE_GROUP_BYTES * LANE_SCALES[Self.format]
        var scale = quotient[GROUP_BLOCKS](block) * Int32(GROUP_BYTES)
        comptime if Self.HAS_PAIRS and Self.k_tiles == 1:
            scale += quotient[TILE_BLOCKS](block) % Int32(GROUP_TILES) * Int32(WORD_BYTES)
        comptime if not Self.HAS_BYTES:
            scale = quotient[TILE_BLOCKS](block) * Int32(Scale.FLOAT32.bytes)
        return WeightCursor(
            self.codes.moved_if(block * Int32(TILE * Self.CODE_BYTES), is_inside),
            self.scales.moved_if(scale, is_inside),
            block,
        )

    @always_inline
    def fetch_codes[
        k_tile: Int, n_tile: Int
    ](self, at: WeightCursor, lane: Int32) -> BlockCodes[Self.format]:
        """Loads what a lane feeds of a tile, of row `lane % 16`."""
        comptime LANE_PIECES = PIECES[Self.format]
        var codes = BlockCodes[Self.format]()
        var tile = at.codes
        comptime if Self.k_tail:
            # Lanes beyond K have another offset: one register for all tiles is enough.
            tile = tile.moved(Int32(n_tile) * self._tile_row_bytes())
        comptime if Self.format.element.bits == 6:
            comptime for half in range(HALVES):
                var offset = half_of_sixes[half](lane) + Int32(k_tile * Self.TILE_BYTES)
                comptime if not Self.k_tail:
                    offset += Int32(n_tile) * self._tile_row_bytes()
                else:
                    var block = at.first_block + Int32(k_tile * TILE_BLOCKS)
                    block += quotient[TILE](lane)
                    offset = offset if block < self.k_blocks else OUT_OF_RANGE
                var words = bitcast[DType.uint32, HALF_WORDS](tile.load[HALF_BYTES](offset))
                codes = codes.insert[offset=half * HALF_WORDS](words)
            return codes
        comptime for i in range(LANE_PIECES):
            var offset = lane * Int32(PIECE_BYTES)
            offset += Int32(k_tile * Self.TILE_BYTES + i * LANES * PIECE_BYTES)
            comptime if not Self.k_tail:
                offset += Int32(n_tile) * self._tile_row_bytes()
            else:
                var piece = quotient[TILE](lane) + Int32(i * TILE_BLOCKS)
                var block = Int32(k_tile * TILE_BLOCKS) + quotient[LANE_PIECES](piece)
                offset = offset if at.first_block + block < self.k_blocks else OUT_OF_RANGE
            var piece = bitcast[DType.uint32, PIECE_WORDS](tile.load[PIECE_BYTES](offset))
            codes = codes.insert[offset=i * PIECE_WORDS](piece)
        return codes

    @always_inline
    def fetch_scales[
        word: Int
    ](self, at: WeightCursor, lane: Int32) -> SIMD[DType.uint32, Self.LOAD_WORDS]:
        """Loads the scales of a pair of tiles for the chunk's whole group, or what is for 128."""
        var offset = lane * Int32(WORD_BYTES * LANE_SCALES[Self.format])
        offset += Int32(word) * scale_row_bytes[Self.format](self.k_blocks)
        comptime if not Self.HAS_BYTES:
            comptime k_tile, span = divmod(word, Self.SPANS)
            var row = (self.first_tile + Int32(Self.WORD_TILES * span)) * Int32(TILE)
            offset = quotient[Self.format.block_rows](row) * self._float_row_bytes()
            offset += Int32(k_tile * Scale.FLOAT32.bytes)
            comptime if Self.k_tail:
                var block = at.first_block + Int32(k_tile * TILE_BLOCKS)
                offset = offset if block < self.k_blocks else OUT_OF_RANGE
        comptime BYTES = Self.LOAD_WORDS * WORD_BYTES
        return bitcast[DType.uint32, Self.LOAD_WORDS](at.scales.load[BYTES](offset))

    @always_inline
    def chosen_scales[
        k_tile: Int = 0
    ](self, word: UInt32, next: UInt32, first_block: Int32, lane: Int32) -> UInt32:
        """Returns a word without what is beyond K, a chunk's first scale in byte 0; or a float.

        Parameters:
            k_tile: Which of a chunk's, if a word is for one tile along K.

        Args:
            word: What was loaded for a pair of tiles.
            next: The word behind it: an odd number of tiles may begin in the middle of a pair.
            first_block: The chunk's first block along K.
            lane: The lane.
        """
        comptime if not Self.HAS_BYTES:
            return word
        comptime HALF_BITS = UInt32(16)
        comptime LOW_HALF = UInt32(0x0000FFFF)
        var scales = word
        comptime if Self.n_tiles == 1:
            comptime BITS = UInt32(8 * LANE_SCALES[Self.format])
            scales >>= (self.first_tile % Int32(PAIR)).cast[DType.uint32]() * BITS
        elif Self.n_tiles % PAIR != 0:
            comptime AS_LOADED, MIDDLE_OF_PAIR = UInt32(0x03020100), UInt32(0x06030401)
            var is_whole = self.first_tile % Int32(PAIR) == 0
            scales = chosen_bytes([word, next], AS_LOADED if is_whole else MIDDLE_OF_PAIR)
        comptime if Self.HAS_PAIRS:
            comptime if Self.k_tail:
                var block = first_block + Int32(k_tile * TILE_BLOCKS) + quotient[TILE](lane)
                scales = scales if block < self.k_blocks else 0
            return scales
        comptime if Self.k_tiles == 1:
            var half = quotient[TILE_BLOCKS](first_block) % Int32(GROUP_TILES)
            scales >>= half.cast[DType.uint32]() * HALF_BITS
        comptime if Self.k_tail:
            var block = first_block + quotient[TILE](lane)
            var low = LOW_HALF if block < self.k_blocks else 0
            var high = ~LOW_HALF if block + Int32(TILE_BLOCKS) < self.k_blocks else 0
            scales &= low | high
        return scales

    @staticmethod
    def scale_word[k_tile: Int, n_tile: Int]() -> Int:
        """Returns which word holds the scale of a tile."""
        comptime span = n_tile // Self.WORD_TILES
        comptime if Self.HAS_BYTES:
            return span * Self.LOAD_WORDS + k_tile % Self.LOAD_WORDS
        return (k_tile * Self.SPANS + span) % max(Self.WORDS, 1)

    @staticmethod
    def scale_byte[k_tile: Int, n_tile: Int]() -> Int:
        """Returns which byte, or half, of the chosen word holds the scale of a tile."""
        return n_tile % PAIR + (0 if Self.HAS_PAIRS else PAIR * k_tile)


def _word_tiles(format: Format, n_tiles: Int) -> Int:
    """Returns the tiles of rows that share a word: a pair, or all if a block of floats has them.

    The compiler would load such a word once, however often it is asked for.
    """
    if format.scale == Scale.E8M0 or format.has_row_scales():
        return PAIR
    return n_tiles if format.block_rows % (n_tiles * TILE) == 0 else PAIR


def _words(format: Format, spans: Int, k_tiles: Int) -> Int:
    """Returns the words of scales for a chunk."""
    if format.scale == Scale.E8M0:
        return spans
    var is_in_loop = format.scale == Scale.E4M3 or not format.has_row_scales()
    return spans * k_tiles if is_in_loop else 0
