"""A workgroup's plain rows of activations on their way to LDS: codes and scales alike.

Memory that is read at once, 128 bytes of a row, is a row of LDS: codes of 256 along K,
or scales of 4096. Eight lanes load a row, a wave eight rows, all waves 32. Pieces of 16
bytes are exchanged within their row, see `operands/tiles.mojo`.

Rows lie one behind another, or anywhere: those that a list names.
"""

from ....tiles import RegisterTile, in_registers
from ...chip import LANES, PIECE_BYTES, TILE, WORD_BYTES
from ...instructions.lds import Lds
from ...instructions.wave import lane_here
from ...operands.memory import Input, OUT_OF_RANGE, Span, View, load_word, quotient, remainder
from ...operands.tiles import exchanged
from ...operands.weights import WeightCursor
from .shape import LOAD_BYTES, LOAD_ROWS, ROW_BYTES, ROW_PIECES, WAVES


@always_inline
def first_byte_of_lane(lane: Int32) -> Int32:
    """Returns where a lane finds piece `lane / 16` of row `lane % 16`; others by exclusive or."""
    var piece = lane % Int32(TILE) * Int32(ROW_PIECES) + quotient[TILE](lane)
    return exchanged[ROW_PIECES](piece) * Int32(PIECE_BYTES)


comptime LaneRows[rounds: Int] = RegisterTile[DType.int32, 1, max(rounds, 1)]
"""A number for each load of a lane."""


@always_inline
def _row_and_byte(wave: Int32, lane: Int32) -> Tuple[Int32, Int32]:
    """Returns which of 32 rows a lane loads a piece of, and where in the row it is."""
    var at = exchanged[ROW_PIECES](wave * Int32(LANES) + lane)
    return (quotient[ROW_PIECES](at), remainder[ROW_PIECES](at) * Int32(PIECE_BYTES))


@always_inline
def listed_rows[
    rounds: Int
](list: Input[DType.int32], first_row: Int32, end_row: Int32, wave: Int32, lane: Int32) -> LaneRows[
    rounds
]:
    """Starts looking up which rows a lane loads pieces of: those that a list names from
    `first_row` on, and any from `end_row` on."""
    var names = Span.of(list, end_row).after(first_row * Int32(WORD_BYTES))
    var row, _ = _row_and_byte(wave, lane)
    var rows = in_registers[DType.int32, 1, max(rounds, 1)]()
    comptime for round in range(rounds):
        rows[round] = load_word(names, (row + Int32(round * WAVES * LOAD_ROWS)) * Int32(WORD_BYTES))
    return rows


@fieldwise_init
struct SharedRows[listed_rounds: Int = 0, part: Int = 1, waves: Int = WAVES](
    TrivialRegisterPassable
):
    """Rows of bytes that a workgroup loads.

    Parameters:
        listed_rounds: Loads of 32 rows of a list; 0 if rows lie one behind another.
        part: How many times as long rows are whose places these share, to save registers.
        waves: Waves that load together, each eight rows.
    """

    var memory: View
    """The bytes, from the first row on; of a list, all of them."""
    var row_bytes: Int32
    """Bytes of a row in memory."""
    var offsets: LaneRows[Self.listed_rounds]
    """Where the lane's piece of each load lies; that of the first one if there is no list."""
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
        comptime assert Self.listed_rounds == 0, "rows one behind another"
        var row, byte = _row_and_byte(wave, lane)
        var memory = View.of(bytes, rows * row_bytes).moved(first_row * row_bytes + first_byte)
        var offsets = in_registers[DType.int32, 1, max(Self.listed_rounds, 1)]()
        offsets[0] = row * row_bytes + byte
        return Self(memory, row_bytes, offsets, wave)

    @staticmethod
    @always_inline
    def of_lines(
        bytes: ImmPointer[UInt8, _],
        rows: Int32,
        row_bytes: Int32,
        first_row: Int32,
        first_byte: Int32,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes the same rows from where the line begins that has `first_byte`."""
        comptime assert Self.listed_rounds == 0, "rows one behind another"
        var row, byte = _row_and_byte(wave, lane)
        var memory = View.of(bytes, rows * row_bytes).moved(first_row * row_bytes)
        var offsets = in_registers[DType.int32, 1, max(Self.listed_rounds, 1)]()
        var first = row * row_bytes + first_byte
        offsets[0] = first - remainder[ROW_BYTES](first) + byte
        return Self(memory, row_bytes, offsets, wave)

    @staticmethod
    @always_inline
    def of_no_list(bytes: ImmPointer[UInt8, _], rows: Int32, row_bytes: Int32, wave: Int32) -> Self:
        """Describes none of `rows` rows: which of them, `turn_to` says."""
        comptime assert Self.listed_rounds > 0, "rows of a list"
        var offsets = in_registers[DType.int32, 1, max(Self.listed_rounds, 1)]()
        return Self(View.of(bytes, rows * row_bytes), row_bytes, offsets, wave)

    @always_inline
    def turn_to(mut self, listed: LaneRows[Self.listed_rounds], count: Int32, lane: Int32):
        """Takes the first `count` rows that `listed_rows` found, and zeros for others."""
        var row, byte = _row_and_byte(self.wave, lane)
        comptime for round in range(Self.listed_rounds):
            var offset = listed[round] * self.row_bytes + byte
            var is_there = row + Int32(round * WAVES * LOAD_ROWS) < count
            self.offsets[round] = offset if is_there else OUT_OF_RANGE

    @always_inline
    def turn_to(mut self, longer: SharedRows[_, _, Self.waves]):
        """Takes the same rows as others, which are `part` times as long."""
        var offsets = rebind[LaneRows[Self.listed_rounds]](longer.offsets)
        comptime for round in range(Self.listed_rounds):
            self.offsets[round] = offsets[round]

    @always_inline
    def fetch(self, memory: View, round: Int32, place: Lds):
        """Starts loading 32 rows.

        Args:
            memory: The rows from where they begin, or nothing.
            round: Which 32 rows.
            place: Where the wave's part goes.
        """
        var offset = self.offsets[0]
        comptime for other in range(1, Self.listed_rounds):
            offset = self.offsets[other] if round == Int32(other) else offset
        var at = memory
        comptime if Self.listed_rounds == 0:
            at = memory.moved(round * Int32(Self.waves * LOAD_ROWS) * self.row_bytes)
        comptime if Self.part > 1:
            var _, byte = _row_and_byte(self.wave, lane_here())
            var own = quotient[Self.part](offset - byte) + byte
            offset = own if offset != OUT_OF_RANGE else OUT_OF_RANGE
        at.load_to_lds[PIECE_BYTES](offset, place)


@always_inline
def place_of_round[waves: Int](round: Int32, wave: Int32) -> Int32:
    """Returns where a wave's part of the rows that `waves` load together begins in LDS."""
    return (round * Int32(waves) + wave) * Int32(LOAD_BYTES)


@fieldwise_init
struct StagePlace(TrivialRegisterPassable):
    """Where a stage lies in memory, the same for all lanes."""

    var activations: View
    """Of the first row's codes."""
    var weights: WeightCursor
    """Of the wave's weights."""
