"""From a warp's sums to C: transpose, apply both factors, add the bias, round, store.

A lane has sums of pairs of tokens, of an octet of tokens each, and of two weight rows:

    lane 4 * r + p holds      rows r, r + 8 of tokens 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9, ..
"""

from layout import Coord, row_major
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.host import BFLOAT16, CHUNK, VECTOR_BYTES
from ..instructions.packed import round_two
from ..instructions.shared_memory import load_pair, load_quad, store_turned, store_word
from ..instructions.warp import keep_branch, lane_here
from ..instructions.wgmma import PART_SUMS, TileSums
from ..layout import K_LANES
from ..shapes import (
    FACTOR_BYTES,
    INSTRUCTION_ROWS,
    OCTET,
    PIECE_BYTES,
    PITCH,
    WARPS,
    WARP_ROWS,
    room_bytes,
)
from ..staged.weights import ROWS

comptime PAIR = 2
"""Tokens of a lane in an octet."""
comptime RowPair = SIMD[DType.float32, ROWS]
"""The factors of a lane's weight rows."""


trait RowFactors(TrivialRegisterPassable):
    """What the sums of a row of tokens and a row of weights are multiplied by in the end."""

    def of_weight(self, row: Int) -> Float32:
        """Returns the factor of a row of weights."""
        ...

    def of_token(self, row: Int) -> Float32:
        """Returns the factor of a row of tokens."""
        ...

    def scale(self, sum: Float32, of_token: Float32, of_weight: Float32) -> Float32:
        """Applies both factors to a sum."""
        ...


@fieldwise_init
struct WarpColumns(TrivialRegisterPassable):
    """The columns of C, which are weight rows, that a warp stores and that a lane has sums of."""

    var first: UInt32
    """The first of sixteen columns that the warp stores."""
    var of_lane: UInt32
    """That of a lane's first weight row; the second one's is an octet further."""

    @always_inline
    def of_row(self, row: Int, result: Result) -> UInt32:
        """Returns the column of a lane's weight row; the last one stands in for those past it."""
        return min(self.of_lane + UInt32(OCTET * row), result.columns - 1)


@fieldwise_init
struct LaneFactors[tokens: Int](TrivialRegisterPassable):
    """What a lane has of the factors of a warp's elements of C, and of what is added."""

    var of_weights: RowPair
    """Those of its two weight rows."""
    var of_tokens: SIMD[DType.float32, Self.tokens // 32]
    """Those of every 32nd token, from the lane's own on."""

    @staticmethod
    @always_inline
    def load(
        rows: Some[RowFactors], first_token: UInt32, columns: WarpColumns, result: Result
    ) -> Self:
        """Loads those of a tile; the last row stands in for those past the end.

        Called before the products, so that nobody waits for the loads.
        """
        var found = Self(RowPair(), SIMD[DType.float32, Self.tokens // 32]())
        comptime for i in range(ROWS):
            found.of_weights[i] = rows.of_weight(Int(columns.of_row(i, result)))
        comptime for i in range(Self.tokens // 32):
            var row = min(first_token + UInt32(32 * i) + lane_here(), result.rows - 1)
            found.of_tokens[i] = rows.of_token(Int(row))
        return found

    @always_inline
    def part[first: Int, count: Int](self) -> LaneFactors[count]:
        """Returns those of some of the tokens."""
        return LaneFactors[count](
            self.of_weights, self.of_tokens.slice[count // 32, offset=first // 32]()
        )


@fieldwise_init
struct GroupRoom[tokens: Int](TrivialRegisterPassable):
    """Where a warp group turns its part of C, [token, weight row], as one of its warps sees it.

    A token has a piece more than the rows take, against bank conflicts. Behind them each warp has
    the factors of all tokens.
    """

    var base: UInt32
    """The group's first token."""
    var warp: UInt32
    """The warp, counted from the group's first one."""

    comptime NUM_BYTES = room_bytes(Self.tokens)
    """Bytes of a group."""
    comptime FACTORS_AT = Self.tokens * PITCH
    """Where factors begin."""

    @staticmethod
    @always_inline
    def of_warp(first: UInt32, warp: UInt32) -> Self:
        """Returns the room of a consumer warp; the first group's begins at an address."""
        var group, in_group = divmod(warp, UInt32(WARPS))
        return Self(first + group * UInt32(Self.NUM_BYTES), in_group)

    @always_inline
    def token(self, token: UInt32) -> UInt32:
        """Returns the address of a token's rows."""
        return self.base + token * UInt32(PITCH)

    @always_inline
    def piece(self, token: UInt32, octet: UInt32) -> UInt32:
        """Returns the address of eight of the warp's rows of a token."""
        return self.token(token) + UInt32(2 * WARP_ROWS) * self.warp + UInt32(PIECE_BYTES) * octet

    @always_inline
    def factors(self) -> UInt32:
        """Returns the address of the warp's factors of tokens."""
        var before = self.warp * UInt32(Self.tokens * FACTOR_BYTES)
        return self.base + UInt32(Self.FACTORS_AT) + before


@always_inline
def scale_sums[
    tokens: Int, //
](
    mut sums: TileSums[tokens],
    rows: Some[RowFactors],
    factors: LaneFactors[tokens],
    room: GroupRoom[_],
):
    """Applies the factors of both sides."""
    var factors_at = room.factors()
    comptime for i in range(tokens // 32):
        store_word(
            factors_at + UInt32(FACTOR_BYTES) * (UInt32(32 * i) + lane_here()),
            bitcast[DType.uint32](factors.of_tokens[i]),
        )
    syncwarp()
    comptime order = row_major[tokens // OCTET, ROWS, PAIR]()
    var pairs = factors_at + lane_here() % UInt32(K_LANES) * UInt32(FACTOR_BYTES * PAIR)
    comptime for octet in range(tokens // OCTET):
        var of_tokens = bitcast[DType.float32, PAIR](
            load_pair(pairs + UInt32(FACTOR_BYTES * OCTET * octet))
        )
        comptime for row in range(ROWS):
            comptime for token in range(PAIR):
                comptime part, at = divmod(Int(order(Coord(octet, row, token))), PART_SUMS)
                sums[part][at] = rows.scale(
                    sums[part][at], of_tokens[token], factors.of_weights[row]
                )
    syncwarp()


@always_inline
def turn[
    tokens: Int, //, type: StaticString
](sums: TileSums[tokens], room: GroupRoom[tokens], result: Result, columns: WarpColumns):
    """Adds the bias, rounds to two bytes and turns a warp's weight rows of all tokens."""
    comptime order = row_major[tokens // OCTET, ROWS, PAIR]()
    var lane = lane_here()
    var bias = RowPair(0)
    if result.has_bias():
        comptime for i in range(ROWS):
            bias[i] = result.bias_of[1](Int(columns.of_row(i, result)))[0]
    # Lane 8 m + j says where token j of fragment m goes: octets of rows, then of tokens.
    var fragment, token = divmod(lane, UInt32(OCTET))
    var octet_of_rows = fragment % 2
    token += fragment // 2 * UInt32(OCTET)
    var place = room.piece(token, octet_of_rows)
    comptime for octets in range(0, tokens // OCTET, 2):
        var words = SIMD[DType.uint32, 4]()
        comptime for i in range(4):
            comptime at = Int(order(Coord(octets + i // 2, i % 2, 0)))
            comptime part, here = divmod(at, PART_SUMS)
            words[i] = round_two[type](
                sums[part][here] + bias[i % 2], sums[part][here + 1] + bias[i % 2]
            )
        store_turned(place + UInt32(octets * OCTET * PITCH), words)


@always_inline
def turn_any[
    tokens: Int, //
](sums: TileSums[tokens], room: GroupRoom[tokens], result: Result, columns: WarpColumns):
    """The same, to the type of C, which has two bytes."""
    if result.dtype == BFLOAT16:
        turn["bf16x2"](sums, room, result, columns)
    else:
        keep_branch()
        turn["f16x2"](sums, room, result, columns)


@always_inline
def store_group_rows[
    tokens: Int, //
](room: GroupRoom[tokens], result: Result, first_token: UInt32, first_column: UInt32):
    """Stores the columns of a warp group, which its warps have turned: whole rows, in turns.

    Of two warps that share columns, each has turned every other pair, see `direct.weights`.
    """
    comptime PIECES = INSTRUCTION_ROWS // OCTET
    comptime TURN_TOKENS = WARPS * 32 // PIECES
    var token, piece = divmod(lane_here(), UInt32(PIECES))
    token += room.warp * UInt32(32 // PIECES)
    var column = first_column + piece * UInt32(OCTET)
    var at = room.token(token)
    var of_other = piece ^ UInt32(WARP_ROWS // OCTET)
    var place = at + piece * UInt32(PIECE_BYTES)
    var others_place = at + of_other * UInt32(PIECE_BYTES)
    var halves = result.elements().rows[DType.uint16]()
    if column < result.columns:
        comptime for first in range(0, tokens, TURN_TOKENS):
            var row = first_token + UInt32(first) + token
            var words = load_quad(place + UInt32(first * PITCH))
            var others = load_quad(others_place + UInt32(first * PITCH))
            if row < result.rows:
                halves.store[alignment=VECTOR_BYTES](
                    Coord(Int(row), Int(column)),
                    bitcast[DType.uint16, CHUNK](
                        SIMD[DType.uint32, 4](words[0], others[1], words[2], others[3])
                    ),
                )


@always_inline
def store_any[
    tokens: Int, //
](sums: TileSums[tokens], result: Result, first_token: UInt32, columns: WarpColumns):
    """The same, one by one: any type and number of columns."""
    comptime order = row_major[tokens // OCTET, ROWS, PAIR]()
    var pair = lane_here() % UInt32(K_LANES)
    comptime for octet in range(tokens // OCTET):
        comptime for i in range(ROWS):
            comptime for token in range(PAIR):
                comptime part, at = divmod(Int(order(Coord(octet, i, token))), PART_SUMS)
                var row = first_token + 2 * pair + UInt32(OCTET * octet + token)
                var column = columns.of_lane + UInt32(OCTET * i)
                if row < result.rows and column < result.columns:
                    result.store[1, 1](
                        Int(row), Int(column), SIMD[DType.float32, 1](sums[part][at])
                    )
