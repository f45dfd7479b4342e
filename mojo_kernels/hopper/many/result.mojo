"""From a warp's sums to C: transpose, add the bias, round, store.

A lane stores eight neighbouring columns of a token. In a warp's room, sixteen tokens' sums turn
from how the instruction leaves them:

    lane 4 * r + p holds      rows r, r + 8 of tokens 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9
    lane 2 * t + c stores     rows 8 * c .. 8 * c + 7 of token t
"""

from layout import Coord
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.host import BFLOAT16, CHUNK, FLOAT32, VECTOR_BYTES
from ..instructions.packed import round_two
from ..instructions.shared_memory import load_quad
from ..instructions.warp import lane_here
from ..instructions.wgmma import TokenSums, store_sums
from ..layout import K_LANES
from ..shapes import ROOM_TOKENS, WARP_ROWS
from ..staged.stages import Room

comptime Columns = SIMD[DType.float32, CHUNK]
"""Eight neighbouring elements of C."""


@always_inline
def joined(low: SIMD[DType.float32, 4], high: SIMD[DType.float32, 4]) -> Columns:
    """Returns the columns that two loads make."""
    return Columns().insert[offset=0](low).insert[offset=4](high)


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
def store_tokens[
    num_tokens: Int, //, in_halves: Bool
](
    sums: TokenSums[num_tokens],
    room: Room,
    result: Result,
    first_token: UInt32,
    first_column: UInt32,
):
    """Stores a warp's weight rows of all tokens, sixteen at a time."""
    var lane = lane_here()
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    var written = room.starting_at(Coord(2 * pair, row_lane))
    var token, part = divmod(lane, UInt32(WARP_ROWS // CHUNK))
    var read = room.starting_at(Coord(token, part * UInt32(CHUNK)))
    var columns = LaneColumns.at(first_column + part * UInt32(CHUNK), result)
    comptime for first in range(0, num_tokens, ROOM_TOKENS):
        store_sums[first, ROOM_TOKENS](sums, written)
        syncwarp()
        var low = bitcast[DType.float32, 4](load_quad(read.at(Coord(0, 0))))
        var high = bitcast[DType.float32, 4](load_quad(read.at(Coord(0, 4))))
        syncwarp()
        var row = first_token + UInt32(first) + token
        if row < result.rows:
            columns.store[in_halves](result, row, joined(low, high))
