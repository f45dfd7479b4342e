"""The epilogue of a warp that has all sums of its weight rows: transpose, bias or gate, store.

A warp has a room of shared memory, in which sixteen rows of C at a time turn from how the instruction
leaves them:

    lane 4 * r + p holds      weight rows r, r + 8 of rows 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9 of C
    lane 2 * t + c stores     columns 8 * c .. 8 * c + 7 of row t
    gates and ups
        halves                weight row r is the gate of hidden number r, r + 8 its up
        neighbours            even rows are gates, odd ones their ups: lanes of even and odd r
                              exchange, the one has hidden number r / 2, the other 4 + r / 2
        lane 2 * t + c        stores hidden numbers 4 * c .. 4 * c + 3 of row t
"""

from layout import Coord
from max.gpu.primitives.warp import broadcast, shuffle_xor
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.host import BFLOAT16, CHUNK, FLOAT32, VECTOR_BYTES
from ..accumulator import PAIR, numbers_of
from ..instructions.packed import round_two
from ..instructions.shared_memory import TileAddresses, load_quad, store_word
from ..instructions.warp import keep_branch, lane_here
from ..instructions.wgmma import Accumulator, store_sums
from ..layout import K_LANES
from ..shapes import HEADER_BYTES, OCTET, ROOM_STRIDE, ROOM_ROWS, WARP_ROWS
from ..target import TileOfC

comptime Columns = SIMD[DType.float32, CHUNK]
"""Eight neighbouring elements of C."""
comptime Room = TileAddresses[DType.float32, ROOM_ROWS, ROOM_STRIDE]
"""Where a warp transposes its sums, [row of C, weight row]."""
comptime WARP_HIDDEN = 8
"""Hidden numbers of a warp."""
comptime STORED = 4
"""Hidden numbers that a lane stores side by side."""
comptime PASS_NUMBERS = ROOM_ROWS // OCTET * PAIR
"""Hidden numbers of a lane at a time: those of `ROOM_ROWS` rows."""


@fieldwise_init
struct LaneColumns(TrivialRegisterPassable):
    """The columns of a lane and what is added to them."""

    var first: UInt32
    """The first column."""
    var bias: Columns
    """Their bias; zero without one."""

    @staticmethod
    @always_inline
    def at(first: UInt32, result: Result) -> Self:
        """Loads the bias of the columns that exist."""
        var columns = Self(first, 0)
        if result.has_bias():
            comptime for i in range(CHUNK):
                if first + UInt32(i) < result.columns:
                    columns.bias[i] = result.bias_of[1](Int(first) + i)[0]
        return columns

    @always_inline
    def store[in_halves: Bool](self, result: Result, row: UInt32, sums: Columns):
        """Adds the bias, rounds and stores the columns that exist.

        `in_halves` says that elements of C have two bytes and rows are chunks of eight.
        """
        var columns = result.columns
        var biased = sums + self.bias
        var halves = result.elements().rows[DType.uint16]()
        var at = Coord(Int(row), Int(self.first))
        comptime if in_halves:
            if self.first < columns:
                halves.store[alignment=VECTOR_BYTES](at, rounded_halves(biased, result.dtype))
        else:
            var floats = result.elements().rows[DType.float32]()
            if columns % UInt32(CHUNK) == 0 and result.dtype == FLOAT32:
                if self.first < columns:
                    floats.store[alignment=VECTOR_BYTES](at, biased)
                return
            var rounded = rounded_halves(biased, result.dtype)
            comptime for i in range(CHUNK):
                if self.first + UInt32(i) < columns:
                    if result.dtype == FLOAT32:
                        floats[Int(row), Int(self.first) + i] = biased[i]
                    else:
                        halves[Int(row), Int(self.first) + i] = rounded[i]


@always_inline
def stores_in_halves(result: Result) -> Bool:
    """Says whether elements of C have two bytes and its rows are chunks of eight."""
    return result.dtype != FLOAT32 and result.columns % UInt32(CHUNK) == 0


@always_inline
def rounded_halves(values: Columns, dtype: Int32) -> SIMD[DType.uint16, CHUNK]:
    """Returns the bits of bfloat16 or float16 numbers, nearest even; subnormals are kept."""
    var pairs: SIMD[DType.uint32, CHUNK // 2]
    if dtype == BFLOAT16:
        pairs = rounded_pairs["bf16x2"](values)
    else:
        pairs = rounded_pairs["f16x2"](values)
    return bitcast[DType.uint16, CHUNK](pairs)


@always_inline
def rounded_pairs[type: StaticString](values: Columns) -> SIMD[DType.uint32, CHUNK // 2]:
    """Rounds to a type of the instruction set, two neighbours in one instruction."""
    var pairs = SIMD[DType.uint32, CHUNK // 2]()
    comptime for i in range(CHUNK // 2):
        pairs[i] = round_two[type](values[2 * i], values[2 * i + 1])
    return pairs


@always_inline
def room_of(base: UInt32, warp: UInt32) -> Room:
    """Returns where a consumer warp transposes its sums, in the CTA's shared memory."""
    return Room(base + UInt32(HEADER_BYTES) + warp * UInt32(Room.NUM_BYTES))


@always_inline
def store_warp_rows[
    rows: Int, //
](sums: Accumulator[rows], room: Room, to: TileOfC, first_column: UInt32):
    """Stores a warp's columns of all rows that exist."""
    if stores_in_halves(to.result):
        _store_rows[True](sums, room, to, first_column)
    else:
        keep_branch()
        _store_rows[False](sums, room, to, first_column)


@always_inline
def _store_rows[
    rows: Int, //, in_halves: Bool
](sums: Accumulator[rows], room: Room, to: TileOfC, first_column: UInt32):
    """Stores a warp's columns, sixteen rows at a time."""
    var result = to.result
    var lane = lane_here()
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    var written = room.starting_at(Coord(2 * pair, row_lane))
    var own_row, part = divmod(lane, UInt32(WARP_ROWS // CHUNK))
    var read = room.starting_at(Coord(own_row, part * UInt32(CHUNK)))
    var columns = LaneColumns.at(first_column + part * UInt32(CHUNK), result)
    comptime for first in range(0, rows, ROOM_ROWS):
        store_sums[first, ROOM_ROWS](sums, written)
        syncwarp()
        var low = bitcast[DType.float32, 4](load_quad(read.at(Coord(0, 0))))
        var high = bitcast[DType.float32, 4](load_quad(read.at(Coord(0, 4))))
        syncwarp()
        var row = to.first_row + UInt32(first) + own_row
        if row < result.rows:
            columns.store[in_halves](result, row, low.join(high))


@always_inline
def exchanged[
    width: SIMDLength, //
](upper: SIMD[DType.float32, width], lower: SIMD[DType.float32, width], is_even: Bool) -> Tuple[
    SIMD[DType.float32, width], SIMD[DType.float32, width]
]:
    """Returns gates and ups of neighbouring rows: lanes of an even row and the next one exchange.

    The one has those of its own upper row then, the other those of the lower one.
    """
    var gates, ups = upper, lower
    comptime for i in range(width):
        var theirs = shuffle_xor(lower[i] if is_even else upper[i], UInt32(K_LANES))
        gates[i] = upper[i] if is_even else theirs
        ups[i] = theirs if is_even else lower[i]
    return (gates, ups)


@always_inline
def store_hidden_rows[
    rows: Int, //
](sums: Accumulator[rows], room: Room, to: TileOfC, first_column: UInt32):
    """Stores a warp's hidden numbers of the rows that there are, sixteen at a time."""
    var result, half = to.result, to.part.half
    var lane = lane_here()
    var weight_row, pair = divmod(lane, UInt32(K_LANES))
    var are_neighbours = half == 0
    var is_even = weight_row % 2 == 0
    var hidden = weight_row
    if are_neighbours:
        hidden = weight_row // 2 + UInt32(0 if is_even else WARP_HIDDEN // 2)
    var column = min(first_column + hidden, result.columns - 1)
    var of_gate = SIMD[DType.float32, PASS_NUMBERS](0)
    var of_up = SIMD[DType.float32, PASS_NUMBERS](0)
    if result.has_bias():
        var gate_at = 2 * Int(column) if are_neighbours else Int(column)
        var up_at = gate_at + (1 if are_neighbours else Int(half))
        of_gate = SIMD[DType.float32, PASS_NUMBERS](result.bias_of[1](gate_at)[0])
        of_up = SIMD[DType.float32, PASS_NUMBERS](result.bias_of[1](up_at)[0])
    var gate = to.gate
    var written = room.starting_at(Coord(2 * pair, hidden))
    var own_row, quad = divmod(lane, UInt32(WARP_HIDDEN // STORED))
    var read = room.at(Coord(own_row, quad * UInt32(STORED)))
    var stored_column = first_column + quad * UInt32(STORED)
    # Else lanes exchange where ptxas takes them for parted, and all that follows.
    var end = broadcast(result.rows)
    comptime for first in range(0, rows, ROOM_ROWS):
        if UInt32(first) < end:
            var upper = numbers_of[0, first, PASS_NUMBERS](sums)
            var lower = numbers_of[1, first, PASS_NUMBERS](sums)
            var gates, ups = upper, lower
            if are_neighbours:
                gates, ups = exchanged(upper, lower, is_even)
            var numbers = gate.of_usual(gates + of_gate, ups + of_up)
            comptime for i in range(PASS_NUMBERS):
                comptime octet, at = divmod(i, PAIR)
                store_word(
                    written.at(Coord(OCTET * octet + at, 0)), bitcast[DType.uint32](numbers[i])
                )
            syncwarp()
            var here = bitcast[DType.float32, STORED](load_quad(read))
            syncwarp()
            var stored_row = UInt32(first) + own_row
            if stored_row < result.rows and stored_column < result.columns:
                result.elements().store[STORED, STORED](Int(stored_row), Int(stored_column), here)
