"""From a lane's sums to rows of the result: gate in registers, turn in shared memory, store.

A warp group has 64 columns, or 32 hidden numbers, which its warps put next to each other, [token,
column], some tokens at a time; then eight lanes have a token, and store neighbours.
"""

from layout import Coord, row_major
from max.gpu import thread_idx
from std.memory import bitcast

from ...simt.arguments import Result
from ..dense.marks import wait_for_group
from ..dense.result import PAIR
from ..experts.hidden import exchanged
from ..experts.result import Part, Target
from ..instructions.shared_memory import TileAddresses, load_quad, store_word
from ..instructions.warp import lane_here
from ..instructions.wgmma import PART_SUMS, TileSums
from ..layout import K_LANES
from ..shapes import OCTET, WARP_GROUP
from ..staged.weights import ROWS
from .columns import GROUP_COLUMNS, GROUP_HIDDEN, Gating, LaneRows, group_numbers

comptime TURN_TOKENS = 64
"""Tokens that a warp group turns at a time."""
comptime STRIDE = GROUP_COLUMNS + 4
"""Words from one token to the next, against bank conflicts."""
comptime Room = TileAddresses[DType.float32, TURN_TOKENS, STRIDE]
"""Where a warp group turns its numbers, [token, column]."""
comptime STORED = 4
"""Neighbours that a lane stores."""
comptime TOKEN_LANES = GROUP_HIDDEN // STORED
"""Lanes of a token."""
comptime order_of[tokens: Int] = row_major[tokens // OCTET, ROWS, PAIR]()
"""How a lane's sums lie, [octet of tokens, row, token]."""
comptime Numbers[tokens: Int] = SIMD[DType.float32, tokens // OCTET * PAIR]
"""A lane's sums of one of its rows, or hidden numbers."""


@always_inline
def numbers_of[tokens: Int, //, row: Int](sums: TileSums[tokens]) -> Numbers[tokens]:
    """Returns the sums of a lane's first or second row."""
    var found = Numbers[tokens]()
    comptime for i in range(tokens // OCTET * PAIR):
        comptime octet, token = divmod(i, PAIR)
        comptime part, at = divmod(Int(order_of[tokens](Coord(octet, row, token))), PART_SUMS)
        found[i] = sums[part][at]
    return found


@always_inline
def store_tile[
    tokens: Int, //, gating: Gating
](
    sums: TileSums[tokens],
    room: Room,
    lane_rows: LaneRows,
    group: UInt32,
    part: Part,
    target: Target,
    result: Result,
):
    """Stores a warp group's part of a tile; its warps call it."""
    comptime IS_HIDDEN = gating != Gating.NONE
    var first, second = numbers_of[0](sums), numbers_of[1](sums)
    comptime if IS_HIDDEN:
        first = hidden_of[gating](first, second, lane_rows, target, result)
    var column = part.first_column + group * UInt32(group_numbers[gating])
    comptime for at in range(0, tokens, TURN_TOKENS):
        if UInt32(at) < result.rows:
            wait_for_group(group)
            put[at](first, room, lane_rows.column)
            comptime if not IS_HIDDEN:
                put[at](second, room, lane_rows.column + UInt32(OCTET))
            wait_for_group(group)
            store[at, min(tokens, TURN_TOKENS), IS_HIDDEN](room, result, column)


@always_inline
def hidden_of[
    width: Int, //, gating: Gating
](
    first: SIMD[DType.float32, width],
    second: SIMD[DType.float32, width],
    lane_rows: LaneRows,
    target: Target,
    result: Result,
) -> SIMD[DType.float32, width]:
    """Returns a lane's hidden numbers, one of each token."""
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
    return target.gate().of_finite(gates, ups)


@always_inline
def put[
    width: SIMDLength, //, at: Int
](numbers: SIMD[DType.float32, width], room: Room, column: UInt32):
    """Puts a lane's numbers of tokens from one on to their places in a column."""
    var pair = lane_here() % UInt32(K_LANES)
    var first = room.starting_at(Coord(UInt32(PAIR) * pair, column))
    comptime BEGIN = at // OCTET * PAIR
    comptime for i in range(min(Int(width) - BEGIN, TURN_TOKENS // OCTET * PAIR)):
        comptime octet, token = divmod(i, PAIR)
        store_word(
            first.at(Coord(OCTET * octet + token, 0)), bitcast[DType.uint32](numbers[BEGIN + i])
        )


@always_inline
def store[at: Int, count: Int, is_hidden: Bool](room: Room, result: Result, column: UInt32):
    """Stores so many tokens from one on, whose numbers all warps have put."""
    comptime STEP = WARP_GROUP // TOKEN_LANES
    var token, quad = divmod(UInt32(thread_idx.x) % UInt32(WARP_GROUP), UInt32(TOKEN_LANES))
    var place = room.starting_at(Coord(token, quad * UInt32(STORED)))
    var lane_column = column + quad * UInt32(STORED)
    comptime for first in range(0, count, STEP):
        var row = UInt32(at + first) + token
        if row < result.rows:
            comptime for half in range(1 if is_hidden else 2):
                comptime FURTHER = half * TOKEN_LANES * STORED
                var numbers = bitcast[DType.float32, STORED](
                    load_quad(place.at(Coord(first, FURTHER)))
                )
                var stored = lane_column + UInt32(FURTHER)
                comptime if is_hidden:
                    # Rows of hidden numbers are made of blocks.
                    if stored < result.columns:
                        result.elements().store[STORED, STORED](Int(row), Int(stored), numbers)
                else:
                    result.store_columns[STORED](row, stored, numbers)
