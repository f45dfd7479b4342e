"""From the sums of the groups of a cluster, which split K, to C.

    region         [token][column], float32: a group's sums, over its stages
    who adds up    a warp a token, ranks and warps in turn, four columns a lane: rank 0 + rank 1 + ..

What is marked is computed once more, and stored by whoever computes it, see `marks`.
"""

from layout import Coord, row_major
from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, vote
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Activations, Result, Weights
from ...tiles import in_registers
from ..instructions.shared_memory import (
    TileAddresses,
    cluster_barrier,
    leave_cluster,
    load_peer_quad,
    peer_address,
    store_word,
    wait_at,
)
from ..instructions.warp import any_lane, keep_branch, lane_here
from ..instructions.wgmma import OCTET, PART_SUMS, TileSums
from ..layout import K_LANES, TILE_ROWS
from ..many.kernel import CONSUMER_WARPS
from ..plan import MAX_RANKS
from ..staged.stages import COLUMNS, HEADER_BYTES, WARP_ROWS, first_of
from ..staged.weights import ROWS
from .operands import ProductOperands
from .result import PAIR, TokenOctet, WarpColumns
from .share import Share

comptime PART_COLUMNS = 4
"""Columns of a lane."""
comptime SUM_STRIDE = COLUMNS + 4
"""Words from one token's sums to the next, against bank conflicts."""
comptime Region[tokens: Int] = TileAddresses[DType.float32, tokens, SUM_STRIDE]
"""A group's sums, [token, column]."""
comptime SUMS_BARRIER = UInt32(1)
"""The hardware barrier of the consumers."""


@always_inline
def store_together[
    tokens: Int, //
](
    sums: TileSums[tokens],
    base: UInt32,
    columns: WarpColumns,
    share: Share[tokens],
    operands: Some[ProductOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores this rank's tokens of the cluster's tile; all consumers call it."""
    var region = Region[tokens](base + UInt32(HEADER_BYTES))
    # When all warps have read the stages that lie there.
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
    cluster_barrier()
    comptime for log_ranks in range(1, log2_floor(MAX_RANKS) + 1):
        if share.ranks == UInt32(1 << log_ranks):
            keep_branch()
            store_share[1 << log_ranks](region, share, operands, a, w, result)
    leave_cluster()


@always_inline
def store_share[
    tokens: Int, //, ranks: Int
](
    region: Region[tokens],
    share: Share[tokens],
    operands: Some[ProductOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores the tokens of this warp, a share of those of its rank."""
    var warp, lane = broadcast(UInt32(thread_idx.x) // 32), lane_here()
    var part = lane * UInt32(PART_COLUMNS)
    var first_token, first_column = first_of[tokens](share.tile(share.first()))
    var column = first_column + part
    var of_weights = SIMD[DType.float32, PART_COLUMNS](1)
    comptime if type_of(operands).SCALES_IN_THE_END:
        comptime for i in range(PART_COLUMNS):
            of_weights[i] = operands.of_weight(Int(min(column + UInt32(i), result.columns - 1)))
    var end = min(first_token + UInt32(tokens), result.rows)
    # A bit for each column of the tile, and of its rows: the same in all warps of all ranks.
    var of_columns = SIMD[DType.uint32, COLUMNS // TILE_ROWS](0)
    comptime for i in range(COLUMNS // TILE_ROWS):
        var of_tile = min(first_column + UInt32(TILE_ROWS * i), result.columns - 1)
        of_columns[i] = vote[DType.uint32](operands.mark_of_weights(of_tile))
    var of_rows = UInt32(0)
    comptime for first in range(0, tokens, 32):
        var row = min(first_token + UInt32(first) + lane, end - 1)
        of_rows |= vote[DType.uint32](operands.mark_of_token(row))
    var is_marked = of_columns.reduce_or() | of_rows != 0
    comptime STEP = UInt32(ranks * CONSUMER_WARPS)
    for row in range(first_token + share.rank + UInt32(ranks) * warp, end, STEP):
        var token = row - first_token
        # All loads before the first sum.
        var loaded = in_registers[DType.float32, PART_COLUMNS, ranks]()
        comptime for rank in range(ranks):
            var at = region.at(Coord(token, part))
            loaded[rank] = load_peer_quad(peer_address(at, UInt32(rank)))
        var total = loaded[0]
        comptime for rank in range(1, ranks):
            total += loaded[rank]
        comptime if type_of(operands).SCALES_IN_THE_END:
            var of_token = operands.of_token(Int(row))
            comptime for i in range(PART_COLUMNS):
                total[i] = operands.scale(total[i], of_token, of_weights[i])
        if is_marked:
            keep_branch()
            # Asked of all lanes, or branches would cost uniform registers.
            if not any_lane(operands.mark_of_token(row)):
                store_unmarked(result, row, column, total, of_columns)
        else:
            result.store_columns[PART_COLUMNS](row, column, total)
    if is_marked:
        keep_branch()
        # No other rank stores these.
        comptime SETS = UInt32(COLUMNS // WARP_ROWS)
        for part in range(
            share.rank * UInt32(CONSUMER_WARPS) + warp, SETS * UInt32(tokens // OCTET), STEP
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
