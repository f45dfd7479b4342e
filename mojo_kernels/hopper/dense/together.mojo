"""From the sums of the groups of a cluster, which split K, to C.

    region     [token][column], float32: a group's sums, over its stages
    landing    [rank][token][column]: what other ranks have of this one's tokens, over stages too
    full       a barrier object in the header: the landing is there

A rank has tokens one behind the other, and every group copies to it what it has of them, at once:
sixteen bytes at a time, as `streaming.epilogue` sends less, would have the barrier count each of them. A
warp adds up a token, four columns a lane: rank 0 + rank 1 + ..

What is marked is computed once more, and stored by whoever computes it, see `marks`.
"""

from layout import Coord, row_major
from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, shuffle_idx, vote
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Activations, Result, Weights
from ...simt.host import BFLOAT16, FLOAT32
from ...tiles import in_registers
from ..exact import TokenOctet
from ..instructions.packed import round_two
from ..instructions.shared_memory import (
    TileAddresses,
    arrive_at_cluster,
    arrive_expecting,
    copy_to_peer,
    init_barrier,
    load_quad,
    peer_address,
    publish_barriers,
    publish_stores,
    store_word,
    wait_at,
    wait_for_cluster,
    wait_phase,
)
from ..instructions.warp import keep_branch, lane_here
from ..instructions.wgmma import PART_SUMS, TileSums
from ..layout import K_LANES, TILE_ROWS
from ..plan import MAX_RANKS, log_of_ranks
from ..scheduler import DenseScheduler
from ..shapes import COLUMNS, CONSUMER_WARPS, HEADER_BYTES, OCTET, WARP_ROWS
from ..staged.weights import ROWS
from .operands import ProductOperands
from .result import PAIR, WarpColumns

comptime PART_COLUMNS = 4
"""Columns of a lane."""
comptime SUM_STRIDE = COLUMNS + 4
"""Words from one token's sums to the next, against bank conflicts."""
comptime Region[tokens: Int] = TileAddresses[DType.float32, tokens, SUM_STRIDE]
"""A group's sums, [token, column]."""
comptime FULL_AT = HEADER_BYTES - 16
"""Where the header has the barrier of the landing."""
comptime SUMS_BARRIER = UInt32(1)
"""The hardware barrier of the consumers."""


@always_inline
def store_together[
    tokens: Int, //
](
    sums: TileSums[tokens],
    base: UInt32,
    columns: WarpColumns,
    scheduler: DenseScheduler[tokens],
    facts: ShareFacts[tokens],
    operands: Some[ProductOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores this rank's tokens of the cluster's tile; all consumers call it."""
    var region = Region[tokens](base + UInt32(HEADER_BYTES))
    var landing = Region[tokens](base + UInt32(HEADER_BYTES + Region[tokens].NUM_BYTES))
    # This warp has read its stages, in whose place others' sums land when all warps have.
    arrive_at_cluster()
    wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
    var pair = lane_here() % UInt32(K_LANES)
    var first = columns.of_lane % UInt32(COLUMNS)
    comptime order = row_major[tokens // OCTET, ROWS, PAIR]()
    comptime for octet in range(tokens // OCTET):
        comptime for row in range(ROWS):
            comptime for token in range(PAIR):
                comptime part, at = divmod(Int(order(Coord(octet, row, token))), PART_SUMS)
                var to = region.at(
                    Coord(2 * pair + UInt32(OCTET * octet + token), first + UInt32(OCTET * row))
                )
                store_word(to, bitcast[DType.uint32](sums[part][at]))
    publish_stores()
    wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
    wait_for_cluster()
    send_tokens(region, landing, base + UInt32(FULL_AT), facts.turns, scheduler)
    # Nobody copies from a group any more when all groups have come here.
    arrive_at_cluster()
    comptime for log_ranks in range(1, log2_floor(MAX_RANKS) + 1):
        if scheduler.ranks == UInt32(1 << log_ranks):
            keep_branch()
            store_share[1 << log_ranks](region, landing, facts, scheduler, operands, a, w, result)
    wait_for_cluster()


@always_inline
def init_meeting(base: UInt32):
    """Makes the barrier of the landing; one thread calls it."""
    init_barrier(base + UInt32(FULL_AT), 1)
    publish_barriers()


@fieldwise_init
struct RankTurns(TrivialRegisterPassable):
    """Which tokens of a tile a rank adds up: as many as others do, while there are any."""

    var num_tokens: UInt32
    """The tokens of the tile that exist."""
    var most: UInt32
    """The tokens of the first rank."""

    @staticmethod
    @always_inline
    def of(num_tokens: UInt32, ranks: UInt32) -> Self:
        """Divides tokens among ranks."""
        return Self(num_tokens, (num_tokens + ranks - 1) >> log_of_ranks(ranks))

    @always_inline
    def tokens_of(self, rank: UInt32) -> UInt32:
        """Returns how many tokens a rank has."""
        var first = min(rank * self.most, self.num_tokens)
        return min(self.num_tokens - first, self.most)


@always_inline
def send_tokens[
    tokens: Int, //
](
    region: Region[tokens],
    landing: Region[tokens],
    full: UInt32,
    turns: RankTurns,
    scheduler: DenseScheduler[tokens],
):
    """Sends the other ranks their tokens, a warp each, and waits for this one's."""
    comptime assert MAX_RANKS <= CONSUMER_WARPS, "a warp sends to a rank"
    comptime TOKEN_BYTES = UInt32(4 * SUM_STRIDE)
    if thread_idx.x == 0:
        var expected = (scheduler.ranks - 1) * turns.tokens_of(scheduler.rank)
        arrive_expecting(full, expected * TOKEN_BYTES)
    var rank = broadcast(UInt32(thread_idx.x) // 32)
    if rank < scheduler.ranks and rank != scheduler.rank and lane_here() == 0:
        var num_bytes = turns.tokens_of(rank) * TOKEN_BYTES
        if num_bytes > 0:
            copy_to_peer(
                peer_address(landing.at(Coord(scheduler.rank * turns.most, 0)), rank),
                region.at(Coord(rank * turns.most, 0)),
                num_bytes,
                peer_address(full, rank),
            )
    wait_phase(full, 0)


@fieldwise_init
struct ShareFacts[tokens: Int](TrivialRegisterPassable):
    """What a lane wants to know of the elements of C that it stores, and of what is marked."""

    var turns: RankTurns
    """The tokens of all ranks."""
    var first_row: UInt32
    """The first row of the rank; a warp has every eighth one."""
    var column: UInt32
    """The first column of the lane."""
    var of_weights: SIMD[DType.float32, PART_COLUMNS]
    """The factors of its columns."""
    var bias: SIMD[DType.float32, PART_COLUMNS]
    """What is added to them."""
    var of_token: Float32
    """The factor of the warp's row that has the lane's number."""
    var rows: UInt32
    """A bit for each row of the warp that is marked."""
    var columns: SIMD[DType.uint32, COLUMNS // TILE_ROWS]
    """A bit for each column of the tile that is marked."""
    var any_marked: Bool
    """Whether anything of the tile is: the same in all warps of all ranks."""

    @staticmethod
    @always_inline
    def none() -> Self:
        """Returns those of a group that shares no tile: nobody uses them."""
        return Self(RankTurns(0, 0), 0, 0, 0, 0, 0, 0, 0, False)

    @staticmethod
    @always_inline
    def load(
        scheduler: DenseScheduler[Self.tokens], operands: Some[ProductOperands], result: Result
    ) -> Self:
        """Loads those of a scheduler, before the products, so that nobody waits for them."""
        if scheduler.ranks == 1:
            return Self.none()
        keep_branch()
        var warp, lane = broadcast(UInt32(thread_idx.x) // 32), lane_here()
        var tile = scheduler.tile(scheduler.first())
        var first_token, first_column = tile.row, tile.column
        var end = min(first_token + UInt32(Self.tokens), result.rows)
        var column = first_column + lane * UInt32(PART_COLUMNS)
        var turns = RankTurns.of(end - first_token, scheduler.ranks)
        var row = first_token + scheduler.rank * turns.most
        var of_lane = min(row + warp + UInt32(CONSUMER_WARPS) * lane, end - 1)
        var of_weights = SIMD[DType.float32, PART_COLUMNS](1)
        var bias = SIMD[DType.float32, PART_COLUMNS](0)
        if result.has_bias():
            comptime for i in range(PART_COLUMNS):
                bias[i] = result.bias_of[1](Int(min(column + UInt32(i), result.columns - 1)))[0]
        comptime for i in range(PART_COLUMNS):
            of_weights[i] = operands.of_weight(Int(min(column + UInt32(i), result.columns - 1)))
        var of_token = operands.of_token(Int(of_lane))
        var columns = SIMD[DType.uint32, COLUMNS // TILE_ROWS](0)
        comptime for i in range(COLUMNS // TILE_ROWS):
            var of_tile = min(first_column + UInt32(TILE_ROWS * i), result.columns - 1)
            columns[i] = vote[DType.uint32](operands.mark_of_weights(of_tile))
        var of_rows = UInt32(0)
        comptime for first in range(0, Self.tokens, 32):
            var of_part = min(first_token + UInt32(first) + lane, end - 1)
            of_rows |= vote[DType.uint32](operands.mark_of_token(of_part))
        return Self(
            turns,
            row,
            column,
            of_weights,
            bias,
            of_token,
            vote[DType.uint32](operands.mark_of_token(of_lane)),
            columns,
            columns.reduce_or() | of_rows != 0,
        )


@always_inline
def store_share[
    tokens: Int, //, ranks: Int
](
    region: Region[tokens],
    landing: Region[tokens],
    facts: ShareFacts[tokens],
    scheduler: DenseScheduler[tokens],
    operands: Some[ProductOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores the tokens of this warp, a share of those of its rank."""
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var count = facts.turns.tokens_of(scheduler.rank)
    var stores_quads = result.dtype != FLOAT32 and result.columns % UInt32(PART_COLUMNS) == 0
    if stores_quads and not facts.any_marked:
        if result.dtype == BFLOAT16:
            return store_quads["bf16x2", ranks](
                region, landing, facts, scheduler, warp, count, operands, result
            )
        keep_branch()
        return store_quads["f16x2", ranks](
            region, landing, facts, scheduler, warp, count, operands, result
        )
    keep_branch()
    var turn = UInt32(0)
    for token in range(warp, count, UInt32(CONSUMER_WARPS)):
        var total = sum_of[ranks](region, landing, facts, scheduler, token, turn, operands)
        var row = facts.first_row + token
        if facts.any_marked:
            keep_branch()
            if (facts.rows >> turn) % 2 == 0:
                store_unmarked(result, row, facts.column, total, facts.columns)
        else:
            result.store_columns[PART_COLUMNS](row, facts.column, total)
        turn += 1
    if facts.any_marked:
        keep_branch()
        var tile = scheduler.tile(scheduler.first())
        var first_token, first_column = tile.row, tile.column
        var end = min(first_token + UInt32(tokens), result.rows)
        # No other rank stores these.
        comptime STEP = UInt32(ranks * CONSUMER_WARPS)
        comptime SETS = UInt32(COLUMNS // WARP_ROWS)
        for part in range(
            scheduler.rank * UInt32(CONSUMER_WARPS) + warp, SETS * UInt32(tokens // OCTET), STEP
        ):
            var octet, columns = divmod(part, SETS)
            operands.store_marked(
                a,
                w,
                result,
                TokenOctet(first_token + octet * UInt32(OCTET), 1, end),
                first_column + columns * UInt32(WARP_ROWS),
            )


@always_inline
def sum_of[
    tokens: Int, //, ranks: Int
](
    region: Region[tokens],
    landing: Region[tokens],
    facts: ShareFacts[tokens],
    scheduler: DenseScheduler[tokens],
    token: UInt32,
    turn: UInt32,
    operands: Some[ProductOperands],
) -> SIMD[DType.float32, PART_COLUMNS]:
    """Returns a lane's sums of a token of this rank, its warp's `turn`-th one: rank 0 + rank 1 + ..,
    times the factors of both sides."""
    # All loads before the first sum.
    var loaded = in_registers[DType.float32, PART_COLUMNS, ranks]()
    comptime for rank in range(ranks):
        var of_rank = region if scheduler.rank == UInt32(rank) else landing
        var place = Coord(
            UInt32(rank) * facts.turns.most + token, lane_here() * UInt32(PART_COLUMNS)
        )
        loaded[rank] = bitcast[DType.float32, PART_COLUMNS](load_quad(of_rank.at(place)))
    var total = loaded[0]
    comptime for rank in range(1, ranks):
        total += loaded[rank]
    var of_token = shuffle_idx(facts.of_token, turn)
    comptime for i in range(PART_COLUMNS):
        total[i] = operands.scale(total[i], of_token, facts.of_weights[i])
    return total


@always_inline
def store_quads[
    tokens: Int, //, type: StaticString, ranks: Int
](
    region: Region[tokens],
    landing: Region[tokens],
    facts: ShareFacts[tokens],
    scheduler: DenseScheduler[tokens],
    warp: UInt32,
    count: UInt32,
    operands: Some[ProductOperands],
    result: Result,
):
    """Stores a warp's tokens, none of which is marked, as two-byte floats: some at once."""
    comptime BATCH = MAX_RANKS // ranks
    comptime STEP = UInt32(CONSUMER_WARPS)
    var halves = result.elements().rows[DType.uint16]()
    var turn = UInt32(0)
    for first in range(warp, count, STEP * UInt32(BATCH)):
        var sums = in_registers[DType.float32, PART_COLUMNS, BATCH]()
        comptime for i in range(BATCH):
            var token = min(UInt32(first) + STEP * UInt32(i), count - 1)
            sums[i] = sum_of[ranks](
                region, landing, facts, scheduler, token, turn + UInt32(i), operands
            )
        comptime for i in range(BATCH):
            var token = UInt32(first) + STEP * UInt32(i)
            sums[i] += facts.bias
            if token < count and facts.column < result.columns:
                var words: SIMD[DType.uint32, 2] = {
                    round_two[type](sums[i][0], sums[i][1]),
                    round_two[type](sums[i][2], sums[i][3]),
                }
                halves.store[alignment=2 * PART_COLUMNS](
                    Coord(Int(facts.first_row + token), Int(facts.column)),
                    bitcast[DType.uint16, PART_COLUMNS](words),
                )
        turn += UInt32(BATCH)


@always_inline
def store_unmarked(
    result: Result,
    row: UInt32,
    column: UInt32,
    sums: SIMD[DType.float32, PART_COLUMNS],
    marks: SIMD[DType.uint32, COLUMNS // TILE_ROWS],
):
    """Stores those of a lane's columns of a row whose bits are not set."""
    var tile, first = divmod(lane_here() * UInt32(PART_COLUMNS), UInt32(TILE_ROWS))
    var of_tile = UInt32(0)
    comptime for i in range(COLUMNS // TILE_ROWS):
        of_tile = marks[i] if tile == UInt32(i) else of_tile
    comptime for i in range(PART_COLUMNS):
        if (of_tile >> (first + UInt32(i))) % 2 == 0 and column + UInt32(i) < result.columns:
            result.store[1, 1](Int(row), Int(column) + i, SIMD[DType.float32, 1](sums[i]))
