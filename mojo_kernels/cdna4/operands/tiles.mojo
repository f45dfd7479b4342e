"""Tiles of activations, floats or codes, on their way from memory through LDS.

They go straight from memory to LDS, 16-byte pieces coalesced along the rows, a tile of
16 rows x 128 at a time. Lane l then reads row l % 16, block l / 16. Pieces are
exchanged within their row, so that the 16 lanes which LDS serves together find all 64
banks; for 16-bit floats, rows of 256 bytes:

    LDS piece    0 .. 15 of row r
    holds        piece ^ f(r) of the row, f(r) = (r & 3) | (r & 4) << 1

Rows of eight-bit codes are a line of memory, 128 bytes, of which 16 lanes read one piece each:

    LDS piece    0 .. 7 of row r
    holds        piece ^ (r / 2) % 8 of the row

and of codes of four bits half of a line:

    LDS piece    0 .. 3 of row r
    holds        piece ^ f(r / 4) of the row, f(i) = i ^ (i & 1) << 1
"""

from layout import Coord, Idx
from layout.swizzle import Swizzle
from std.bit import log2_floor
from std.memory import bitcast
from std.sys import size_of

from ..chip import BLOCK, LANES, PIECE_BYTES, TILE, TILE_BLOCKS, TILE_K
from ..instructions.lds import PIECE_WORDS, SharedPieces, place_of, read_piece
from .memory import View, quotient, remainder


struct FloatTile[dtype: DType, packed: Int = 1]:
    """A tile of activations, 16 rows x 128, on its way through LDS.

    `packed`: Elements in a number of the type.
    """

    comptime ELEMENT_BYTES = size_of[Self.dtype]()
    comptime ROW_PIECES = TILE_K * Self.ELEMENT_BYTES // Self.packed // PIECE_BYTES
    comptime PIECES = TILE * Self.ROW_PIECES
    comptime BLOCK_PIECES = Self.ROW_PIECES // TILE_BLOCKS
    comptime LOADS = Self.PIECES // LANES
    """Loads of a tile: each is a piece for every lane, one lane behind another."""

    @staticmethod
    @always_inline
    def exchanged(piece: Int32) -> Int32:
        """Returns which piece of the tile stands in the place of `piece`; its own inverse."""
        comptime if Self.ROW_PIECES == 16:
            comptime LOW = Swizzle(2, 0, 4)  # Bits 4 and 5, row & 3, meet bits 0 and 1.
            comptime HIGH = Swizzle(1, 3, 3)  # Bit 6, row & 4, meets bit 3.
            return HIGH(LOW(piece))
        elif Self.ROW_PIECES == 8:
            comptime ROW_PAIR = Swizzle(3, 0, 4)  # Bits 4 .. 6, row / 2 % 8, meet bits 0 .. 2.
            return ROW_PAIR(piece)
        elif Self.ROW_PIECES == 4:
            comptime LOW = Swizzle(2, 0, 4)  # Bits 4 and 5, row / 4, meet bits 0 and 1.
            comptime HIGH = Swizzle(1, 1, 3)  # Bit 4 meets bit 1 too.
            return HIGH(LOW(piece))
        else:
            comptime LOW = Swizzle(3, 0, log2_floor(Self.ROW_PIECES))  # row & 7 meets bits 0 .. 2.
            return LOW(piece)

    @staticmethod
    @always_inline
    def source[load: Int](lane: Int32) -> Tuple[Int32, Int32]:
        """Returns the row and the byte of the row that a lane fetches in load `load`."""
        comptime ROWS = LANES // Self.ROW_PIECES
        var row = Int32(load * ROWS) + quotient[Self.ROW_PIECES](lane)
        var piece = remainder[Self.ROW_PIECES](Self.exchanged(Int32(load * LANES) + lane))
        return (row, piece * Int32(PIECE_BYTES))

    @staticmethod
    @always_inline
    def fetch[load: Int](memory: View, offset: Int32, tile: SharedPieces[Self.PIECES]):
        """Starts load `load` of the tile at `tile`; `offset` is the lane's in memory."""
        memory.load_to_lds[PIECE_BYTES](offset, place_of(tile, Coord(Idx[load * LANES])))

    @staticmethod
    @always_inline
    def first_piece(lane: Int32) -> Int32:
        """Returns the first piece of the block of a lane: row `lane % 16`, block `lane / 16`.

        The exchange of a block is that of its first piece: number i of its pieces is this ^ i.
        """
        var row = lane % TILE * Int32(Self.ROW_PIECES)
        return Self.exchanged(row + quotient[TILE](lane) * Int32(Self.BLOCK_PIECES))

    @staticmethod
    @always_inline
    def block(tile: SharedPieces[Self.PIECES], first_piece: Int32) -> SIMD[Self.dtype, BLOCK]:
        var words = SIMD[DType.uint32, Self.BLOCK_PIECES * PIECE_WORDS]()
        comptime for i in range(Self.BLOCK_PIECES):
            var piece = read_piece(tile, Coord(first_piece ^ Int32(i)))
            words = words.insert[offset=PIECE_WORDS * i](piece)
        return bitcast[Self.dtype, BLOCK](words)


@always_inline
def exchanged[row_pieces: Int](piece: Int32) -> Int32:
    """Returns which piece of activations stands in the place of `piece`; its own inverse."""
    comptime if row_pieces == FloatTile[DType.bfloat16].ROW_PIECES:
        return FloatTile[DType.bfloat16].exchanged(piece)
    else:
        comptime assert row_pieces == 8, "a row is a line of memory or two"
        return FloatTile[DType.uint8].exchanged(piece)


@always_inline
def tiled_block[rows: Int](row: Int32, block: Int32, k_tiles: Int32) -> Int32:
    """Returns the number of a block of codes that lie by tiles, `rows` rows x 128 each."""
    var tile = quotient[rows](row) * k_tiles + quotient[TILE_BLOCKS](block)
    var in_column = tile * Int32(rows) + remainder[rows](row)
    return in_column * Int32(TILE_BLOCKS) + remainder[TILE_BLOCKS](block)
