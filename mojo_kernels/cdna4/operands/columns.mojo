"""Eight-bit codes that lie column by column, [K, rows], on their way to LDS and out of it.

They stay so in LDS: a line there is one k, 16 bytes of it are the codes of a tile's 16 rows. A
transposing read turns eight lines into what lanes multiply; its 16 lanes point at 8 bytes each:

    ds_read_b64_tr_b8    lane i of 16 points at bytes 8 * (i % 2) .. + 7 of the tile in line i / 2
                         and receives the codes of row i in lines 0 .. 7, neighbours along K

Of a fragment lane group g = lane / 16 feeds lines 16 * g .. + 15 and 64 + 16 * g .. + 15, in four
reads. The pieces of a line are exchanged, so that the 32 lanes that LDS serves together, those of
two groups, find all 64 banks whatever their tile is; for lines of 16 pieces, and of 8:

    piece    holds tile    piece ^ (k % 8 | k / 16 % 2 << 3)       of its line k
                           piece ^ (k / 2 % 4 | k / 16 % 2 << 2)

Rows are whole pieces: their number is a multiple of 16. Lines beyond K are beyond the end of the
tensor and read as zeros; rows beyond the last one read as anything, and make no result.
"""

from layout.swizzle import Swizzle
from max.gpu.intrinsics import AMDBufferResource
from std.bit import log2_floor
from std.memory import bitcast
from std.sys._assembly import inlined_assembly

from ...numbers.formats import Format
from ..chip import BLOCK, LANES, LOAD_BYTES, PIECE_BYTES, TILE, TILE_K
from ..instructions.lds import Lds
from ..instructions.matrix import BlockCodes, CODE_WORDS, PIECES
from ..instructions.memory import load_to_lds
from ..instructions.vector import here
from .memory import Span, quotient, remainder
from .shared import OperandRows, SharedRightSide

comptime TRANSPOSED_BYTES = 8
"""What a lane points at, and receives, in a transposing read."""
comptime READS = PIECE_BYTES // TRANSPOSED_BYTES
"""Transposing reads of a piece of a fragment."""
comptime POINTERS = TILE // TRANSPOSED_BYTES
"""Lanes that point at a line of a tile."""


@always_inline
def exchanged_in_line[line_pieces: Int](piece: Int32) -> Int32:
    """Returns which piece stands in the place of `piece`; its own inverse."""
    comptime BITS = log2_floor(line_pieces) - 1
    comptime LOW = Swizzle(BITS, 0, 4)  # Two lines of 8 pieces pass all banks, or one of 16.
    comptime HIGH = Swizzle(1, BITS, 5)  # The line's 16s meet the last bit of a piece in it.
    return HIGH(LOW(piece))


@fieldwise_init
struct SharedColumns[line_pieces: Int, waves: Int, rooms: Int, parts: Int](SharedRightSide):
    """The codes of a workgroup's rows, 128 along K a place.

    `rooms`: Rooms of a place in LDS, each with lines of rows that are fetched together.
    `parts`: Parts in which a place is fetched: of rooms, then of lines.
    """

    comptime LINE_BYTES = Self.line_pieces * PIECE_BYTES
    comptime ROOM_BYTES = TILE_K * Self.LINE_BYTES
    comptime ROUND_LINES = Self.waves * LANES // Self.line_pieces
    """Lines that all waves load at once."""
    comptime LOADS = TILE_K // Self.ROUND_LINES * Self.rooms // Self.parts

    var codes: Span
    var rows: Int32
    """Rows of the operand, bytes of a line in memory."""
    var k_blocks: Int32
    var offset: Int32
    """Where the lane's piece of the first load lies."""
    var wave: Int32
    var at: AMDBufferResource

    @staticmethod
    @always_inline
    def of(rows: OperandRows, wave: Int32, lane: Int32) -> Self:
        comptime assert Self.ROUND_LINES % 32 == 0, "an exchange is the same in all loads"
        var at = exchanged_in_line[Self.line_pieces](wave * Int32(LANES) + lane)
        var line, piece = quotient[Self.line_pieces](at), remainder[Self.line_pieces](at)
        var offset = line * rows.count + piece * Int32(PIECE_BYTES)
        var num_bytes = rows.count * rows.k_blocks * Int32(BLOCK)
        var span = Span.of(rows.bytes, num_bytes).from_offset(rows.first)
        return Self(span, rows.count, rows.k_blocks, offset, wave, span.after(0))

    @always_inline
    def seek(mut self, place: Int32):
        var line = place * Int32(TILE_K)
        self.at = self.codes.after_if(line * self.rows, line < self.k_blocks * Int32(BLOCK))

    @always_inline
    def fetch[part: Int](self, place: Lds):
        comptime line_part, room = divmod(part, Self.rooms)
        var of_wave = Int32(room * Self.ROOM_BYTES) + self.wave * Int32(LOAD_BYTES)
        comptime for load in range(Self.LOADS):
            comptime line = (line_part * Self.LOADS + load) * Self.ROUND_LINES
            load_to_lds[PIECE_BYTES](
                self.at,
                self.offset,
                place.unsafe_offset(Int(of_wave + Int32(line * Self.LINE_BYTES))),
                Int32(line) * self.rows + Int32(room * Self.LINE_BYTES),
            )


@always_inline
def first_pointer[line_pieces: Int](first_tile: Int32, lane: Int32) -> Int32:
    """Returns the byte that a lane points at for a tile whose number four divides."""
    var line = quotient[TILE](lane) * Int32(TILE) + quotient[POINTERS](lane % Int32(TILE))
    var piece = exchanged_in_line[line_pieces](line * Int32(line_pieces) + first_tile)
    return piece * Int32(PIECE_BYTES) + lane % Int32(POINTERS) * Int32(TRANSPOSED_BYTES)


@always_inline
def read_transposed[
    format: Format, line_pieces: Int, tile: Int
](room: Lds, first: Int32) -> BlockCodes[format]:
    """Starts reading what a lane feeds of tile `tile` behind the one of `first`.

    The compiler knows nothing of these reads: a wait for all of LDS, and `settled`, come before
    any use.
    """
    comptime LINE_BYTES = line_pieces * PIECE_BYTES
    comptime HALF_K = TILE_K // PIECES[format]
    var pointer = Int32(Int(room)) + (first ^ Int32(tile * PIECE_BYTES))
    var codes = SIMD[DType.uint64, PIECES[format] * READS]()
    comptime for i in range(PIECES[format] * READS):
        comptime piece, half = divmod(i, READS)
        comptime line = piece * HALF_K + half * TRANSPOSED_BYTES
        codes[i] = inlined_assembly[
            "ds_read_b64_tr_b8 $0, $1 offset:$2", UInt64, constraints="=v,v,n", has_side_effect=True
        ](pointer, Int32(line * LINE_BYTES))
    return bitcast[DType.uint32, CODE_WORDS[format]](codes)


@always_inline
def settled[format: Format](codes: BlockCodes[format]) -> BlockCodes[format]:
    """Returns what `read_transposed` has read, behind the wait for it."""
    var pairs = bitcast[DType.uint64, PIECES[format] * READS](codes)
    comptime for i in range(PIECES[format] * READS):
        pairs[i] = here(pairs[i])
    return bitcast[DType.uint32, CODE_WORDS[format]](pairs)
