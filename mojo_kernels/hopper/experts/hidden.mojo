"""From a warp's sums of gates and ups to hidden numbers: gate in registers, transpose, store.

    lane 4 * r + p holds      rows r, r + 8 of tokens 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9
    halves                    row r is the gate of hidden number r, row r + 8 its up
    neighbours                even rows are gates, odd ones their ups: lanes of even and odd r
                              exchange, the one has hidden number r / 2, the other 4 + r / 2
    lane 2 * t + c stores     hidden numbers 4 * c .. 4 * c + 3 of token t
"""

from layout import Coord, row_major
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...simt.arguments import Result
from ..instructions.shared_memory import load_quad, store_word
from ..instructions.warp import lane_here
from ..instructions.wgmma import TokenSums, part_tokens
from ..layout import K_LANES
from ..shapes import OCTET, ROOM_TOKENS
from ..staged.stages import Room
from ..staged.weights import ROWS
from .result import Target

comptime WARP_HIDDEN = 8
"""Hidden numbers of a warp."""
comptime STORED = 4
"""Hidden numbers that a lane stores side by side."""
comptime PAIR = 2
"""Neighbouring tokens of a lane."""
comptime PASS_NUMBERS = ROOM_TOKENS // OCTET * PAIR
"""Hidden numbers of a lane at a time: those of `ROOM_TOKENS` tokens."""


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
    num_tokens: Int, //
](
    sums: TokenSums[num_tokens],
    room: Room,
    half: UInt32,
    target: Target,
    result: Result,
    first_column: UInt32,
):
    """Stores a warp's hidden numbers of the tokens that there are, sixteen at a time.

    `half` are the columns of the weights from a gate to its up, 0 for neighbours.
    """
    comptime TOKENS = part_tokens(num_tokens)
    comptime order = row_major[TOKENS // OCTET, ROWS, PAIR]()
    var lane = lane_here()
    var row, pair = divmod(lane, UInt32(K_LANES))
    var are_neighbours = half == 0
    var is_even = row % 2 == 0
    var hidden = row
    if are_neighbours:
        hidden = row // 2 + UInt32(0 if is_even else WARP_HIDDEN // 2)
    var column = min(first_column + hidden, result.columns - 1)
    var of_gate = SIMD[DType.float32, PASS_NUMBERS](0)
    var of_up = SIMD[DType.float32, PASS_NUMBERS](0)
    if result.has_bias():
        var gate_at = 2 * Int(column) if are_neighbours else Int(column)
        var up_at = gate_at + (1 if are_neighbours else Int(half))
        of_gate = SIMD[DType.float32, PASS_NUMBERS](result.bias_of[1](gate_at)[0])
        of_up = SIMD[DType.float32, PASS_NUMBERS](result.bias_of[1](up_at)[0])
    var gate = target.gate()
    var written = room.starting_at(Coord(2 * pair, hidden))
    var token, quad = divmod(lane, UInt32(WARP_HIDDEN // STORED))
    var read = room.at(Coord(token, quad * UInt32(STORED)))
    var stored_column = first_column + quad * UInt32(STORED)
    comptime for first in range(0, num_tokens, ROOM_TOKENS):
        if UInt32(first) < result.rows:
            var upper = SIMD[DType.float32, PASS_NUMBERS]()
            var lower = SIMD[DType.float32, PASS_NUMBERS]()
            comptime for i in range(PASS_NUMBERS):
                comptime octet, at = divmod(i, PAIR)
                comptime part, here = divmod(first // OCTET + octet, TOKENS // OCTET)
                upper[i] = sums[part][Int(order(Coord(here, 0, at)))]
                lower[i] = sums[part][Int(order(Coord(here, 1, at)))]
            var gates, ups = upper, lower
            if are_neighbours:
                gates, ups = exchanged(upper, lower, is_even)
            var numbers = gate.of(gates + of_gate, ups + of_up)
            comptime for i in range(PASS_NUMBERS):
                comptime octet, at = divmod(i, PAIR)
                store_word(
                    written.at(Coord(OCTET * octet + at, 0)), bitcast[DType.uint32](numbers[i])
                )
            syncwarp()
            var here = bitcast[DType.float32, STORED](load_quad(read))
            syncwarp()
            var place = UInt32(first) + token
            if place < result.rows and stored_column < result.columns:
                result.elements().store[STORED, STORED](Int(place), Int(stored_column), here)
