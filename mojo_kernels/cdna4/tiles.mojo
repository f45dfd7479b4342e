"""Tiles between memory, LDS and registers, as one wave moves them.

Activations go straight from memory to LDS, 16-byte pieces coalesced along the
rows, a tile of 16 rows x 128 at a time. Lane l then reads row l % 16, block
l / 16. Pieces are exchanged within their row, so that the 16 lanes which LDS
serves together find all 64 banks; for 16-bit floats, rows of 256 bytes:

    LDS piece    0 .. 15 of row r
    holds        piece ^ f(r) of the row, f(r) = (r & 3) | (r & 4) << 1

Weights and their scales go straight to registers from the preshuffled layout.
A load of 16 bytes a lane is a tile of 16 rows x 128. A word of scales a lane
covers 32 rows x 256, which is a chunk, the step of all loops along K:

    byte of the word     0               1                2               3
    scale of             row l % 16      row 16 + l % 16  row l % 16      row 16 + l % 16
                         block l / 16    block l / 16     block 4 + l/16  block 4 + l/16

Every access goes through a descriptor that ends where the tensor ends: what
lies beyond reads as zero, and so does a row beyond the last one. Where K is no
multiple of a chunk, lanes beyond K are moved out of range.
"""

from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import AddressSpace, bitcast
from std.sys import size_of
from structured_kernels.amd_tile_io import _load_from_lds, _load_to_lds

from ..formats import BLOCK, BLOCK_BYTES
from ..layouts import PreshuffledCdna4
from .mma import BlockCodes, CODE_WORDS, LANES, Mma16
from .quantize import BlockFloats

comptime TILE = Mma16.TILE
"""Rows of a tile."""
comptime TILE_BLOCKS = Mma16.K_BLOCKS
"""Blocks of a tile along K."""
comptime TILE_K = TILE_BLOCKS * BLOCK
"""Elements of a tile along K."""
comptime CHUNK_TILES = PreshuffledCdna4.SCALE_K_MULTIPLE // TILE_BLOCKS
"""Tiles of a chunk along K: those whose scales share a word."""
comptime CHUNK_BLOCKS = CHUNK_TILES * TILE_BLOCKS
"""Blocks of a chunk along K."""
comptime CHUNK_K = CHUNK_TILES * TILE_K
"""Elements of a chunk along K."""
comptime PAIR = PreshuffledCdna4.SCALE_ROW_MULTIPLE // TILE
"""Tiles along the rows whose scales share a word."""
comptime PIECE_BYTES = 16
"""What a lane moves at once."""
comptime CODE_TILE_BYTES = TILE * TILE_BLOCKS * BLOCK_BYTES
"""Bytes of the codes of a tile."""
comptime OUT_OF_RANGE = Int32.MIN
"""An offset beyond the end of every tensor, which has less than 2 GiB."""

comptime SharedBytes = MutPointer[
    BFloat16, MutUntrackedOrigin, address_space=AddressSpace.SHARED
]
"""A place in LDS. The element type is what the tile loads below insist on."""


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
        """Returns what lies behind `offset`: empty if nothing does."""
        return Self(
            self.start.unsafe_offset(Int(offset)), max(self.num_bytes - offset, 0)
        )

    @always_inline
    def after(self, offset: Int32) -> AMDBufferResource:
        """Returns a descriptor of what lies behind `offset`: empty if nothing does."""
        var rest = self.from_offset(offset)
        return AMDBufferResource(rest.start, Int(rest.num_bytes))


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
        var row = Int32(load * Self.ROWS_PER_LOAD) + lane // Int32(Self.PIECES)
        var piece = Self.exchanged(row, lane % Int32(Self.PIECES))
        return (row, piece * Int32(PIECE_BYTES))

    @staticmethod
    @always_inline
    def fetch[load: Int](memory: AMDBufferResource, offset: Int32, tile: SharedBytes):
        """Starts load `load` of the tile at `tile`; `offset` is the lane's in memory."""
        comptime LOAD_ELEMENTS = LANES * PIECE_BYTES // 2
        _load_to_lds[width = PIECE_BYTES // 2](
            memory, offset // 2, tile.unsafe_offset(load * LOAD_ELEMENTS)
        )

    @staticmethod
    @always_inline
    def block(tile: SharedBytes, lane: Int32) -> BlockFloats[Self.dtype]:
        """Reads the block of a lane: row `lane % 16`, block `lane / 16`."""
        var row = lane % TILE
        var words = SIMD[DType.uint32, BLOCK * Self.ELEMENT_BYTES // 4]()
        comptime for i in range(Self.BLOCK_PIECES):
            var first = lane // TILE * Int32(Self.BLOCK_PIECES)
            var piece = row * Int32(Self.PIECES) + Self.exchanged(row, first + Int32(i))
            var read = _load_from_lds[width = PIECE_BYTES // 2](
                tile.unsafe_offset(Int(piece) * PIECE_BYTES // 2)
            )
            words = words.insert[offset=4 * i](bitcast[DType.uint32, 4](read))
        return bitcast[Self.dtype, BLOCK](words)


@fieldwise_init
struct WeightCursor(TrivialRegisterPassable):
    """A chunk of a wave's weights, the same for all lanes."""

    var codes: AMDBufferResource
    """What lies behind the chunk's first tile."""
    var scales: AMDBufferResource
    """What lies behind the chunk's first word."""
    var blocks_left: Int32
    """Blocks from the chunk's beginning to K."""


struct WeightTiles[n_tiles: Int, k_tail: Bool](TrivialRegisterPassable):
    """A wave's rows of preshuffled weights, some tiles of 16.

    Parameters:
        n_tiles: Tiles, even or one.
        k_tail: Whether K may end within a chunk.
    """

    comptime WORDS = ceildiv(Self.n_tiles, PAIR)
    """Words of scales for a chunk."""

    var codes: Span
    """The codes from the wave's first tile on."""
    var scales: Span
    """The scales from the group of the wave's first tile on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var first_tile: Int32
    """The wave's first tile of rows."""

    @always_inline
    def __init__(out self, codes: Span, scales: Span, first_tile: Int32, k_blocks: Int32):
        comptime assert Self.n_tiles == 1 or Self.n_tiles % PAIR == 0, "tiles share scale words"
        self.k_blocks = k_blocks
        self.first_tile = first_tile
        self.codes = codes
        self.scales = scales
        self.codes = codes.from_offset(first_tile * self._tile_row_bytes())
        self.scales = scales.from_offset(first_tile // PAIR * self._group_row_bytes())

    @always_inline
    def _tile_row_bytes(self) -> Int32:
        """Returns the bytes from one tile of rows to the next."""
        return self.k_blocks * Int32(TILE * BLOCK_BYTES)

    @always_inline
    def _group_row_bytes(self) -> Int32:
        """Returns the bytes from the scales of one pair of tiles to the next."""
        var groups = (self.k_blocks + Int32(CHUNK_BLOCKS - 1)) // Int32(CHUNK_BLOCKS)
        return groups * Int32(CHUNK_BLOCKS * PAIR * TILE)

    @always_inline
    def cursor(self, chunk: Int32) -> WeightCursor:
        """Returns the place of a chunk; one beyond K reads as zeros."""
        comptime CODE_BYTES = Int32(CHUNK_TILES * CODE_TILE_BYTES)
        comptime SCALE_BYTES = Int32(CHUNK_BLOCKS * PAIR * TILE)
        var blocks_left = self.k_blocks - chunk * Int32(CHUNK_BLOCKS)
        var is_inside = blocks_left > 0
        return WeightCursor(
            self.codes.after(chunk * CODE_BYTES if is_inside else self.codes.num_bytes),
            self.scales.after(chunk * SCALE_BYTES if is_inside else self.scales.num_bytes),
            blocks_left,
        )

    @always_inline
    def fetch_codes[
        k_tile: Int, n_tile: Int
    ](self, at: WeightCursor, lane: Int32) -> BlockCodes:
        """Loads the codes of a tile: row `lane % 16`, block `lane / 16`."""
        var offset = lane * Int32(BLOCK_BYTES) + Int32(k_tile * CODE_TILE_BYTES)
        offset += Int32(n_tile) * self._tile_row_bytes()
        comptime if Self.k_tail:
            var is_inside = Int32(k_tile * TILE_BLOCKS) + lane // TILE < at.blocks_left
            offset = offset if is_inside else OUT_OF_RANGE
        return bitcast[DType.uint32, CODE_WORDS](
            at.codes.load[DType.uint8, BLOCK_BYTES](offset)
        )

    @always_inline
    def fetch_scales[word: Int](self, at: WeightCursor, lane: Int32) -> UInt32:
        """Loads the scales of a pair of tiles for the whole chunk."""
        var offset = lane * 4 + Int32(word) * self._group_row_bytes()
        return bitcast[DType.uint32, 1](at.scales.load[DType.uint8, 4](offset))

    @always_inline
    def scales_in_range(self, word: UInt32, blocks_left: Int32, lane: Int32) -> UInt32:
        """Returns a word of scales without those beyond K, the wave's first tile in byte 0."""
        var scales = word
        comptime if Self.k_tail:
            var block = lane // TILE
            var low = UInt32(0x0000FFFF) if block < blocks_left else 0
            var high = UInt32(0xFFFF0000) if block + TILE_BLOCKS < blocks_left else 0
            scales &= low | high
        comptime if Self.n_tiles == 1:
            scales >>= UInt32(8) * (self.first_tile % PAIR).cast[DType.uint32]()
        return scales

    @staticmethod
    def scale_byte[k_tile: Int, n_tile: Int]() -> Int:
        """Returns which byte of its word holds the scale of a tile."""
        return PAIR * k_tile + n_tile % PAIR
