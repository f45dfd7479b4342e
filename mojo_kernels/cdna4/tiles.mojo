"""Tiles between memory, LDS and registers, as one wave moves them.

Activations go straight from memory to LDS, 16-byte pieces coalesced along the
rows, a tile of 16 rows x 128 at a time. Lane l then reads row l % 16, block
l / 16. Pieces are exchanged within their row, so that the 16 lanes which LDS
serves together find all 64 banks; for 16-bit floats, rows of 256 bytes:

    LDS piece    0 .. 15 of row r
    holds        piece ^ f(r) of the row, f(r) = (r & 3) | (r & 4) << 1

Weights and their scales go straight to registers from the preshuffled layout.
A load of 16 bytes a lane is a tile of 16 rows x 128. A word of scales a lane
covers 32 rows x 256, a group:

    byte of the word     0               1                2               3
    scale of             row l % 16      row 16 + l % 16  row l % 16      row 16 + l % 16
                         block l / 16    block l / 16     block 4 + l/16  block 4 + l/16

Every access goes through a descriptor that ends where the tensor ends: what
lies beyond reads as zero, and so does a row beyond the last one. The loops run
along K in chunks of one or two tiles; where K may end within a chunk, lanes
beyond it are moved out of range.
"""

from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of
from structured_kernels.amd_tile_io import _load_from_lds

from ..formats import BLOCK, BLOCK_BYTES
from ..layouts import PreshuffledCdna4
from .mma import BlockCodes, CODE_WORDS, LANES, Mma16, SharedBytes, load_to_lds

comptime TILE = Mma16.TILE
"""Rows of a tile."""
comptime TILE_BLOCKS = Mma16.K_BLOCKS
"""Blocks of a tile along K."""
comptime TILE_K = TILE_BLOCKS * BLOCK
"""Elements of a tile along K."""
comptime GROUP_BLOCKS = PreshuffledCdna4.SCALE_K_MULTIPLE
"""Blocks along K whose scales share words: those of two tiles."""
comptime GROUP_TILES = GROUP_BLOCKS // TILE_BLOCKS
"""Tiles along K whose scales share words."""
comptime PAIR = PreshuffledCdna4.SCALE_ROW_MULTIPLE // TILE
"""Tiles along the rows whose scales share a word."""
comptime PIECE_BYTES = 16
"""What a lane moves at once."""
comptime CODE_TILE_BYTES = TILE * TILE_BLOCKS * BLOCK_BYTES
"""Bytes of the codes of a tile."""
comptime OUT_OF_RANGE = Int32.MIN
"""An offset beyond the end of every tensor, which has less than 2 GiB."""


@fieldwise_init
struct Span(TrivialRegisterPassable):
    """A tensor of less than 2 GiB, from a place that is the same for all lanes."""

    var start: ImmPointer[UInt8, ImmUntrackedOrigin]
    """The first byte."""
    var num_bytes: Int32
    """Bytes up to the end of the tensor."""

    @staticmethod
    @always_inline
    def of[dtype: DType](tensor: ImmPointer[Scalar[dtype], _], count: Int32) -> Self:
        """Spans `count` elements."""
        return Self(
            ImmPointer[UInt8, ImmUntrackedOrigin](unsafe_from_address=Int(tensor)),
            count * Int32(size_of[dtype]()),
        )

    @always_inline
    def from_offset(self, offset: Int32) -> Self:
        """Returns what lies behind `offset`; if nothing does, `num_bytes` is negative."""
        return Self(self.start.unsafe_offset(Int(offset)), self.num_bytes - offset)

    @always_inline
    def after(self, offset: Int32) -> AMDBufferResource:
        """Returns a descriptor of what lies behind `offset`: empty if nothing does."""
        var rest = self.from_offset(offset)
        return AMDBufferResource(rest.start, Int(max(rest.num_bytes, 0)))

    @always_inline
    def after_if(self, offset: Int32, condition: Bool) -> AMDBufferResource:
        """Returns a descriptor of what lies behind `offset`: empty unless `condition`."""
        var rest = self.from_offset(offset)
        var num_bytes = rest.num_bytes if condition else 0
        return AMDBufferResource(rest.start, Int(max(num_bytes, 0)))


@fieldwise_init
struct View(TrivialRegisterPassable):
    """A tensor of less than 2 GiB, as seen from a place that is the same for all lanes.

    One descriptor serves all places: the hardware adds the place to the offset of a
    lane, and checks the sum against the end of the tensor.
    """

    var tensor: AMDBufferResource
    """The whole tensor."""
    var place: Int32
    """Bytes from its beginning."""

    @staticmethod
    @always_inline
    def of[dtype: DType](tensor: ImmPointer[Scalar[dtype], _], count: Int32) -> Self:
        """Views `count` elements from the first one."""
        return Self(AMDBufferResource(tensor, Int(count)), 0)

    @always_inline
    def moved(self, offset: Int32) -> Self:
        """Returns the view from `offset` bytes further on, within the tensor."""
        return Self(self.tensor, self.place + offset)

    @always_inline
    def moved_if(self, offset: Int32, condition: Bool) -> Self:
        """Returns the view from further on; from the end, where all is zero, if not `condition`."""
        var end = self.tensor.desc[2].cast[DType.int32]()
        return Self(self.tensor, self.place + offset if condition else end)

    @always_inline
    def load[num_bytes: Int](self, offset: Int32) -> SIMD[DType.uint8, num_bytes]:
        """Loads the bytes at a lane's `offset`."""
        return self.tensor.load[DType.uint8, num_bytes](offset, scalar_offset=self.place)

    @always_inline
    def load_to_lds[num_bytes: Int](self, offset: Int32, target: SharedBytes):
        """Starts loading the bytes at a lane's `offset` to LDS, one lane behind another."""
        load_to_lds[num_bytes](self.tensor, offset, target, self.place)


@always_inline
def quotient[divisor: Int](x: Int32) -> Int32:
    """Divides a number that is not negative: one shift where the divisor is a power of two."""
    return (x.cast[DType.uint32]() // UInt32(divisor)).cast[DType.int32]()


struct FloatTile[dtype: DType]:
    """A tile of activations, 16 rows x 128, on its way through LDS."""

    comptime ELEMENT_BYTES = size_of[Self.dtype]()
    """Bytes of a float."""
    comptime PIECES = TILE_K * Self.ELEMENT_BYTES // PIECE_BYTES
    """Pieces of a row."""
    comptime BYTES = TILE * Self.PIECES * PIECE_BYTES
    """Bytes of the tile."""
    comptime ROWS_PER_LOAD = LANES // Self.PIECES
    """Rows that the lanes of a wave load at once."""
    comptime LOADS = TILE // Self.ROWS_PER_LOAD
    """Loads of a tile."""
    comptime BLOCK_PIECES = BLOCK * Self.ELEMENT_BYTES // PIECE_BYTES
    """Pieces of a block."""

    @staticmethod
    @always_inline
    def exchanged(row: Int32, piece: Int32) -> Int32:
        """Returns which piece of a row stands in the place of `piece`; its own inverse."""
        comptime if Self.PIECES == 16:
            return piece ^ ((row & 3) | ((row & 4) << 1))
        else:
            return piece ^ (row & 7)

    @staticmethod
    @always_inline
    def source[load: Int](lane: Int32) -> Tuple[Int32, Int32]:
        """Returns the row and the byte of the row that a lane fetches in load `load`."""
        var row = Int32(load * Self.ROWS_PER_LOAD) + quotient[Self.PIECES](lane)
        var piece = Self.exchanged(row, lane % Int32(Self.PIECES))
        return (row, piece * Int32(PIECE_BYTES))

    @staticmethod
    @always_inline
    def fetch[load: Int](memory: View, offset: Int32, tile: SharedBytes):
        """Starts load `load` of the tile at `tile`; `offset` is the lane's in memory."""
        comptime LOAD_ELEMENTS = LANES * PIECE_BYTES // 2
        memory.load_to_lds[PIECE_BYTES](offset, tile.unsafe_offset(load * LOAD_ELEMENTS))

    @staticmethod
    @always_inline
    def block(tile: SharedBytes, lane: Int32) -> SIMD[Self.dtype, BLOCK]:
        """Reads the block of a lane: row `lane % 16`, block `lane / 16`."""
        var row = lane % TILE
        var words = SIMD[DType.uint32, BLOCK * Self.ELEMENT_BYTES // 4]()
        comptime for i in range(Self.BLOCK_PIECES):
            var first = quotient[TILE](lane) * Int32(Self.BLOCK_PIECES)
            var piece = row * Int32(Self.PIECES) + Self.exchanged(row, first + Int32(i))
            var read = _load_from_lds[width=PIECE_BYTES // 2](
                tile.unsafe_offset(Int(piece) * PIECE_BYTES // 2)
            )
            words = words.insert[offset=4 * i](bitcast[DType.uint32, 4](read))
        return bitcast[Self.dtype, BLOCK](words)


@fieldwise_init
struct WeightCursor(TrivialRegisterPassable):
    """A chunk of a wave's weights, the same for all lanes."""

    var codes: View
    """From the chunk's first tile on."""
    var scales: View
    """From the first word of the chunk's group on."""
    var first_block: Int32
    """The chunk's first block along K."""


@fieldwise_init
struct WeightTiles[n_tiles: Int, k_tiles: Int, k_tail: Bool](TrivialRegisterPassable):
    """A wave's rows of preshuffled weights, some tiles of 16.

    Parameters:
        n_tiles: Tiles of rows, even or one.
        k_tiles: Tiles of a chunk, one or two.
        k_tail: Whether K may end within a chunk.
    """

    comptime WORDS = ceildiv(Self.n_tiles, PAIR)
    """Words of scales for a chunk."""
    comptime CHUNK_BLOCKS = Self.k_tiles * TILE_BLOCKS
    """Blocks of a chunk along K."""
    comptime GROUP_BYTES = Int32(GROUP_BLOCKS * PAIR * TILE)
    """Bytes of the scales of a group."""

    var codes: View
    """The codes from the wave's first tile on."""
    var scales: View
    """The scales from the pair of the wave's first tile on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var first_tile: Int32
    """The wave's first tile of rows."""

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
        comptime assert Self.n_tiles == 1 or Self.n_tiles % PAIR == 0, "tiles share scale words"
        var none = View.of(codes, 0)
        var self = Self(none, none, k_blocks, first_tile)
        var tiles = quotient[TILE](rows + Int32(TILE - 1))
        var pairs = quotient[PAIR * TILE](rows + Int32(PAIR * TILE - 1))
        self.codes = View.of(codes, tiles * self._tile_row_bytes()).moved(
            first_tile * self._tile_row_bytes()
        )
        self.scales = View.of(scales, pairs * self._pair_row_bytes()).moved(
            quotient[PAIR](first_tile) * self._pair_row_bytes()
        )
        return self

    @always_inline
    def _tile_row_bytes(self) -> Int32:
        """Returns the bytes from one tile of rows to the next."""
        return self.k_blocks * Int32(TILE * BLOCK_BYTES)

    @always_inline
    def _pair_row_bytes(self) -> Int32:
        """Returns the bytes from the scales of one pair of tiles to the next."""
        return quotient[GROUP_BLOCKS](self.k_blocks + Int32(GROUP_BLOCKS - 1)) * Self.GROUP_BYTES

    @always_inline
    def cursor(self, chunk: Int32) -> WeightCursor:
        """Returns the place of a chunk; one beyond K reads as zeros."""
        var block = chunk * Int32(Self.CHUNK_BLOCKS)
        var is_inside = block < self.k_blocks
        var group = quotient[GROUP_BLOCKS](block)
        return WeightCursor(
            self.codes.moved_if(block * Int32(TILE * BLOCK_BYTES), is_inside),
            self.scales.moved_if(group * Self.GROUP_BYTES, is_inside),
            block,
        )

    @always_inline
    def fetch_codes[k_tile: Int, n_tile: Int](self, at: WeightCursor, lane: Int32) -> BlockCodes:
        """Loads the codes of a tile: row `lane % 16`, block `lane / 16`."""
        var offset = lane * Int32(BLOCK_BYTES) + Int32(k_tile * CODE_TILE_BYTES)
        offset += Int32(n_tile) * self._tile_row_bytes()
        comptime if Self.k_tail:
            var block = at.first_block + Int32(k_tile * TILE_BLOCKS) + quotient[TILE](lane)
            offset = offset if block < self.k_blocks else OUT_OF_RANGE
        return bitcast[DType.uint32, CODE_WORDS](at.codes.load[BLOCK_BYTES](offset))

    @always_inline
    def fetch_scales[word: Int](self, at: WeightCursor, lane: Int32) -> UInt32:
        """Loads the scales of a pair of tiles for the chunk's whole group."""
        var offset = lane * 4 + Int32(word) * self._pair_row_bytes()
        return bitcast[DType.uint32, 1](at.scales.load[4](offset))

    @always_inline
    def chosen_scales(self, word: UInt32, first_block: Int32, lane: Int32) -> UInt32:
        """Returns a word without what lies beyond K, the chunk's first scale in byte 0."""
        comptime HALF_BITS = UInt32(16)
        comptime LOW_HALF = UInt32(0x0000FFFF)
        var scales = word
        comptime if Self.k_tiles == 1:
            var half = quotient[TILE_BLOCKS](first_block) % Int32(GROUP_TILES)
            scales >>= half.cast[DType.uint32]() * HALF_BITS
        comptime if Self.n_tiles == 1:
            scales >>= (self.first_tile % Int32(PAIR)).cast[DType.uint32]() * 8
        comptime if Self.k_tail:
            var block = first_block + quotient[TILE](lane)
            var low = LOW_HALF if block < self.k_blocks else 0
            var high = ~LOW_HALF if block + Int32(TILE_BLOCKS) < self.k_blocks else 0
            scales &= low | high
        return scales

    @staticmethod
    def scale_byte[k_tile: Int, n_tile: Int]() -> Int:
        """Returns which byte of the chosen word holds the scale of a tile."""
        return PAIR * k_tile + n_tile % PAIR
