"""A workgroup's plain rows of activations on their way to LDS: codes and scales alike.

Memory that is read at once, 128 bytes of a row, is a row of LDS: codes of 256 along K,
or scales of 4096. Eight lanes load a row, a wave eight rows, all waves 32. Pieces of 16
bytes are exchanged within their row, see `operands/tiles.mojo`.
"""

from ..instructions.lds import Lds, PIECE_BYTES
from ..instructions.matrix import LANES, TILE
from ..operands.memory import View, quotient, remainder
from ..operands.tiles import exchanged
from .shape import LOAD_BYTES, ROUND_ROWS, ROW_PIECES, WAVES


@always_inline
def first_byte_of_lane(lane: Int32) -> Int32:
    """Returns where a lane finds piece `lane / 16` of row `lane % 16`; others by exclusive or."""
    var piece = lane % Int32(TILE) * Int32(ROW_PIECES) + quotient[TILE](lane)
    return exchanged[ROW_PIECES](piece) * Int32(PIECE_BYTES)


@fieldwise_init
struct SharedRows(TrivialRegisterPassable):
    """Rows of bytes, from the workgroup's first one on."""

    var memory: View
    """The bytes."""
    var row_bytes: Int32
    """Bytes of a row in memory."""
    var offset: Int32
    """Where the lane's piece of the first load lies."""
    var wave: Int32

    @staticmethod
    @always_inline
    def of(
        bytes: ImmPointer[UInt8, _],
        rows: Int32,
        row_bytes: Int32,
        first_row: Int32,
        first_byte: Int32,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes the rows from `first_row` and from byte `first_byte` of each on."""
        var at = exchanged[ROW_PIECES](wave * Int32(LANES) + lane)
        var row, piece = quotient[ROW_PIECES](at), remainder[ROW_PIECES](at)
        var memory = View.of(bytes, rows * row_bytes).moved(first_row * row_bytes + first_byte)
        return Self(memory, row_bytes, row * row_bytes + piece * Int32(PIECE_BYTES), wave)

    @always_inline
    def fetch(self, memory: View, round: Int32, place: Lds):
        """Starts loading 32 rows.

        Args:
            memory: The rows from where they begin, or nothing.
            round: Which 32 rows.
            place: Where the wave's part goes.
        """
        var offset = round * Int32(ROUND_ROWS) * self.row_bytes
        memory.moved(offset).load_to_lds[PIECE_BYTES](self.offset, place)


@always_inline
def place_of_round(round: Int32, wave: Int32) -> Int32:
    """Returns where a wave's part of 32 rows begins in LDS."""
    return (round * Int32(WAVES) + wave) * Int32(LOAD_BYTES)
