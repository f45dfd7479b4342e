"""From a consumer warp's sums to C: factors of both sides, then the bias or a gate, rounding, memory.

A lane has sums of pairs of rows of A, of an octet of them each, and of two weight rows, which are two
columns of C, or lead to one hidden number:

    lane 4 * r + p holds      columns r, r + 8 of rows 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9, ..

A warp group turns its part of C in shared memory, so that rows of C are stored in long pieces:

    halves     two-byte floats, by `stmatrix`: sums of one matrix
    floats     rows of some columns, float32: any type of C, and gated numbers
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.host import BFLOAT16, CHUNK, VECTOR_BYTES
from ..accumulator import PAIR, ROWS, numbers_of, part_of, place_of
from ..decode.fp8 import GROUP_COLUMNS, GROUP_HIDDEN, LaneRows, group_numbers
from .warp_rows import exchanged
from ..instructions.packed import round_two
from ..instructions.shared_memory import (
    TileAddresses,
    load_pair,
    load_quad,
    store_turned,
    store_word,
)
from ..instructions.warp import keep_branch, lane_here
from ..instructions.wgmma import Accumulator
from ..layout import K_LANES
from ..gemm_operands import RsOperands
from .warp_rows import stores_in_halves
from ..instructions.named_barriers import wait_for_group
from ..product import Gating, RsProduct
from ..scheduler import WorkTile
from ..shapes import (
    FACTOR_BYTES,
    HEADER_BYTES,
    INSTRUCTION_ROWS,
    OCTET,
    PITCH,
    WARPS,
    WARP_GROUP,
    WARP_ROWS,
    room_bytes,
    room_rows,
)

comptime RowPair = SIMD[DType.float32, ROWS]
"""The factors of a lane's weight rows, or what is added to their sums."""
comptime TURN_ROWS = 64
"""Rows of A that a warp group turns as floats at a time."""
comptime STRIDE = GROUP_COLUMNS + 4
"""Words from one of them to the next, against bank conflicts."""
comptime FloatRoom = TileAddresses[DType.float32, TURN_ROWS, STRIDE]
"""Where a warp group turns floats, [row, column]."""
comptime STORED = 4
"""Neighbours that a lane stores of them."""
comptime ROW_LANES = GROUP_HIDDEN // STORED
"""Lanes of a row."""


@fieldwise_init
struct LaneFactors[rows: Int](TrivialRegisterPassable):
    """What a lane has of the factors of a tile's sums."""

    var of_weights: RowPair
    """Those of its two weight rows."""
    var of_rows: SIMD[DType.float32, Self.rows // 32]
    """Those of every 32nd row of A, from the lane's own on."""

    @staticmethod
    @always_inline
    def load(operands: Some[RsOperands], tile: WorkTile, lane_rows: LaneRows) -> Self:
        """Loads those of a tile, before the products, so that nobody waits for the loads."""
        var found = Self(RowPair(), SIMD[DType.float32, Self.rows // 32]())
        found.of_weights[0] = operands.of_weight(Int(lane_rows.first))
        found.of_weights[1] = operands.of_weight(Int(lane_rows.second))
        comptime for i in range(Self.rows // 32):
            var row = tile.place + min(UInt32(32 * i) + lane_here(), tile.rows - 1)
            found.of_rows[i] = operands.of_row(Int(row))
        return found

    @always_inline
    def part[first: Int, count: Int](self) -> LaneFactors[count]:
        """Returns those of some of the rows of A."""
        return LaneFactors[count](
            self.of_weights, self.of_rows.slice[count // 32, offset=first // 32]()
        )


@always_inline
def store_tile[
    rows: Int, Product: RsProduct, //
](
    sums: Accumulator[rows],
    factors: LaneFactors[rows],
    operands: Some[RsOperands],
    product: Product,
    tile: WorkTile,
    lane_rows: LaneRows,
    base: UInt32,
    warp: UInt32,
    result: Result,
):
    """Scales and stores a warp group's part of a tile; its warps call it."""
    comptime PART = min(rows, room_rows(Product.ROWS))
    var room = GroupRoom[room_rows(Product.ROWS)].of_warp(base, warp)
    var group = warp // UInt32(WARPS)
    var column = tile.column + group * UInt32(group_numbers[Product.GATING])
    comptime for first in range(0, rows, PART):
        var part = part_of[first, PART](sums)
        scale_sums(part, operands, factors.part[first, PART](), room)
        comptime if Product.Scheduler.IS_LIST:
            store_floats(part, FloatRoom(room.base), lane_rows, group, column, product, result)
        else:
            var first_row = tile.row + UInt32(first)
            if stores_in_halves(result):
                turn_halves(part, room, result, lane_rows)
                wait_for_group(group)
                store_halves[PART](room, result, first_row, column)
                # Before the next turn.
                wait_for_group(group)
            else:
                keep_branch()
                store_any(part, result, first_row, lane_rows)


@fieldwise_init
struct GroupRoom[rows: Int](TrivialRegisterPassable):
    """Where a warp group turns its part of C, as one of its warps sees it."""

    var base: UInt32
    """The warp group's part of the shared memory."""
    var warp: UInt32
    """The warp, counted from the group's first one."""

    comptime Halves = TileAddresses[DType.uint16, Self.rows, PITCH // 2]
    """Two-byte floats, [row of A, column]: a row has a piece more, against bank conflicts."""
    comptime Factors = TileAddresses[DType.float32, WARPS, Self.rows]
    """The factors of rows of A, a copy for each warp."""

    @staticmethod
    @always_inline
    def of_warp(base: UInt32, warp: UInt32) -> Self:
        """Returns that of a consumer warp; the CTA's shared memory begins at an address."""
        var group, in_group = divmod(warp, UInt32(WARPS))
        return Self(base + UInt32(HEADER_BYTES) + group * UInt32(room_bytes(Self.rows)), in_group)

    @always_inline
    def halves(self) -> Self.Halves:
        """Returns where two-byte floats are turned."""
        return Self.Halves(self.base)

    @always_inline
    def factors(self) -> UInt32:
        """Returns the address of the warp's factors."""
        var first = self.base + UInt32(Self.Halves.NUM_BYTES)
        return Self.Factors(first).at(Coord(self.warp, 0))


@always_inline
def scale_sums[
    rows: Int, //
](
    mut sums: Accumulator[rows],
    operands: Some[RsOperands],
    factors: LaneFactors[rows],
    room: GroupRoom[_],
):
    """Applies the factors of both sides."""
    var factors_at = room.factors()
    comptime for i in range(rows // 32):
        store_word(
            factors_at + UInt32(FACTOR_BYTES) * (UInt32(32 * i) + lane_here()),
            bitcast[DType.uint32](factors.of_rows[i]),
        )
    syncwarp()
    var pairs = factors_at + lane_here() % UInt32(K_LANES) * UInt32(FACTOR_BYTES * PAIR)
    comptime for octet in range(rows // OCTET):
        var of_rows = bitcast[DType.float32, PAIR](
            load_pair(pairs + UInt32(FACTOR_BYTES * OCTET * octet))
        )
        comptime for column in range(ROWS):
            comptime for row in range(PAIR):
                comptime part, at = place_of(octet, column, row)
                sums[part][at] = operands.scale(
                    sums[part][at], of_rows[row], factors.of_weights[column]
                )
    syncwarp()


@always_inline
def turn_halves[
    rows: Int, //
](sums: Accumulator[rows], room: GroupRoom[_], result: Result, lane_rows: LaneRows):
    """Adds the bias, rounds to the type of C, which has two bytes, and turns a warp's columns."""
    var bias = RowPair(0)
    if result.has_bias():
        comptime for i in range(ROWS):
            var column = min(lane_rows.first + UInt32(OCTET * i), result.columns - 1)
            bias[i] = result.bias_of[1](Int(column))[0]
    if result.dtype == BFLOAT16:
        turn["bf16x2"](sums, bias, room)
    else:
        keep_branch()
        turn["f16x2"](sums, bias, room)


@always_inline
def turn[
    rows: Int, //, type: StaticString
](sums: Accumulator[rows], bias: RowPair, room: GroupRoom[_]):
    """Does so, to a type."""
    # Lane 8 m + j says where row j of fragment m goes: octets of columns, then of rows.
    var fragment, row = divmod(lane_here(), UInt32(OCTET))
    row += fragment // 2 * UInt32(OCTET)
    var column = UInt32(WARP_ROWS) * room.warp + fragment % 2 * UInt32(OCTET)
    var place = room.halves().starting_at(Coord(row, column))
    comptime for octets in range(0, rows // OCTET, 2):
        var words = SIMD[DType.uint32, 4]()
        comptime for i in range(4):
            comptime part, here = place_of(octets + i // 2, i % 2, 0)
            words[i] = round_two[type](
                sums[part][here] + bias[i % 2], sums[part][here + 1] + bias[i % 2]
            )
        store_turned(place.at(Coord(octets * OCTET, 0)), words)


@always_inline
def store_halves[
    rows: Int
](room: GroupRoom[_], result: Result, first_row: UInt32, first_column: UInt32):
    """Stores the columns of a warp group, which its warps have turned: whole rows, in turns.

    Of two warps that share columns, each has turned every other pair, see `decode.fp8`.
    """
    comptime PIECES = INSTRUCTION_ROWS // OCTET
    comptime STEP = WARPS * 32 // PIECES
    var row, piece = divmod(lane_here(), UInt32(PIECES))
    row += room.warp * UInt32(32 // PIECES)
    var column = first_column + piece * UInt32(OCTET)
    var of_other = piece ^ UInt32(WARP_ROWS // OCTET)
    var place = room.halves().starting_at(Coord(row, piece * UInt32(OCTET)))
    var others_place = room.halves().starting_at(Coord(row, of_other * UInt32(OCTET)))
    var halves = result.elements().rows[DType.uint16]()
    if column < result.columns:
        comptime for first in range(0, rows, STEP):
            var to_row = first_row + UInt32(first) + row
            var words = load_quad(place.at(Coord(first, 0)))
            var others = load_quad(others_place.at(Coord(first, 0)))
            if to_row < result.rows:
                halves.store[alignment=VECTOR_BYTES](
                    Coord(Int(to_row), Int(column)),
                    bitcast[DType.uint16, CHUNK](
                        SIMD[DType.uint32, 4](words[0], others[1], words[2], others[3])
                    ),
                )


@always_inline
def store_any[
    rows: Int, //
](sums: Accumulator[rows], result: Result, first_row: UInt32, lane_rows: LaneRows):
    """The same, one by one: any type and number of columns."""
    var pair = lane_here() % UInt32(K_LANES)
    comptime for octet in range(rows // OCTET):
        comptime for i in range(ROWS):
            comptime for place in range(PAIR):
                comptime part, at = place_of(octet, i, place)
                var row = first_row + 2 * pair + UInt32(OCTET * octet + place)
                var column = lane_rows.first + UInt32(OCTET * i)
                if row < result.rows and column < result.columns:
                    result.store[1, 1](
                        Int(row), Int(column), SIMD[DType.float32, 1](sums[part][at])
                    )


@always_inline
def store_floats[
    rows: Int, Product: RsProduct, //
](
    sums: Accumulator[rows],
    room: FloatRoom,
    lane_rows: LaneRows,
    group: UInt32,
    column: UInt32,
    product: Product,
    result: Result,
):
    """Stores a warp group's columns from one on, sums or hidden numbers, of rows of any type."""
    comptime IS_HIDDEN = Product.GATING != Gating.NONE
    var first, second = numbers_of[0](sums), numbers_of[1](sums)
    comptime if IS_HIDDEN:
        first = hidden_of(first, second, lane_rows, product, result)
    comptime for at in range(0, rows, TURN_ROWS):
        if UInt32(at) < result.rows:
            wait_for_group(group)
            put[at](first, room, lane_rows.column)
            comptime if not IS_HIDDEN:
                put[at](second, room, lane_rows.column + UInt32(OCTET))
            wait_for_group(group)
            store[at, min(rows, TURN_ROWS), IS_HIDDEN](room, result, column)


@always_inline
def hidden_of[
    width: Int, Product: RsProduct, //
](
    first: SIMD[DType.float32, width],
    second: SIMD[DType.float32, width],
    lane_rows: LaneRows,
    product: Product,
    result: Result,
) -> SIMD[DType.float32, width]:
    """Returns a lane's hidden numbers, one of each row of A."""
    comptime gating = Product.GATING
    var gates, ups = first, second
    var gate_row, up_row = lane_rows.first, lane_rows.second
    comptime if gating == Gating.NEIGHBOURS:
        var is_even = lane_here() // UInt32(K_LANES) % 2 == 0
        gates, ups = exchanged(first, second, is_even)
        gate_row = lane_rows.first if is_even else lane_rows.second - 1
        up_row = gate_row + 1
    if result.has_bias():
        var number = gate_row
        comptime if gating == Gating.NEIGHBOURS:
            number = gate_row // 2
        if number < result.columns:
            gates += result.bias_of[1](Int(gate_row))[0]
            ups += result.bias_of[1](Int(up_row))[0]
    return product.gate().of_usual(gates, ups)


@always_inline
def put[
    width: SIMDLength, //, at: Int
](numbers: SIMD[DType.float32, width], room: FloatRoom, column: UInt32):
    """Puts a lane's numbers of rows of A from one on to their places in a column."""
    var pair = lane_here() % UInt32(K_LANES)
    var first = room.starting_at(Coord(UInt32(PAIR) * pair, column))
    comptime BEGIN = at // OCTET * PAIR
    comptime for i in range(min(Int(width) - BEGIN, TURN_ROWS // OCTET * PAIR)):
        comptime octet, place = divmod(i, PAIR)
        store_word(
            first.at(Coord(OCTET * octet + place, 0)), bitcast[DType.uint32](numbers[BEGIN + i])
        )


@always_inline
def store[at: Int, count: Int, is_hidden: Bool](room: FloatRoom, result: Result, column: UInt32):
    """Stores so many rows from one on, whose numbers all warps have put."""
    comptime STEP = WARP_GROUP // ROW_LANES
    var row, quad = divmod(UInt32(thread_idx.x) % UInt32(WARP_GROUP), UInt32(ROW_LANES))
    var place = room.starting_at(Coord(row, quad * UInt32(STORED)))
    var lane_column = column + quad * UInt32(STORED)
    comptime for first in range(0, count, STEP):
        var to_row = UInt32(at + first) + row
        if to_row < result.rows:
            comptime for half in range(1 if is_hidden else 2):
                comptime FURTHER = half * ROW_LANES * STORED
                var numbers = bitcast[DType.float32, STORED](
                    load_quad(place.at(Coord(first, FURTHER)))
                )
                var stored = lane_column + UInt32(FURTHER)
                comptime if is_hidden:
                    # Rows of hidden numbers are made of blocks.
                    if stored < result.columns:
                        result.elements().store[STORED, STORED](Int(to_row), Int(stored), numbers)
                else:
                    result.store_columns[STORED](to_row, stored, numbers)
