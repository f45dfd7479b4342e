"""Tiles of activations that are floats, on their way from memory through LDS.

They go straight from memory to LDS, 16-byte pieces coalesced along the rows, a tile of
16 rows x 128 at a time. Lane l then reads row l % 16, block l / 16. Pieces are
exchanged within their row, so that the 16 lanes which LDS serves together find all 64
banks; for 16-bit floats, rows of 256 bytes:

    LDS piece    0 .. 15 of row r
    holds        piece ^ f(r) of the row, f(r) = (r & 3) | (r & 4) << 1
"""

from std.memory import bitcast
from std.sys import size_of

from ...layouts import PreshuffledCdna4
from ..instructions.lds import PIECE_BYTES, SharedBytes, read_piece
from ..instructions.matrix import BLOCK, LANES, TILE, TILE_BLOCKS, TILE_K
from .memory import View, quotient

comptime GROUP_BLOCKS = PreshuffledCdna4.SCALE_K_MULTIPLE
"""Blocks along K whose scales share words: those of two tiles."""
comptime GROUP_TILES = GROUP_BLOCKS // TILE_BLOCKS
"""Tiles along K whose scales share words."""
comptime PAIR = PreshuffledCdna4.SCALE_ROW_MULTIPLE // TILE
"""Tiles along the rows whose scales share a word."""
comptime WORD_SCALES = PAIR * GROUP_TILES
"""Scales of a word."""


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
            words = words.insert[offset=4 * i](
                read_piece(tile.unsafe_offset(Int(piece) * PIECE_BYTES // 2))
            )
        return bitcast[Self.dtype, BLOCK](words)
