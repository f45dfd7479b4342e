"""From the sums of the groups of a cluster, which split K, to C.

    region         [token][column], float32: a group's sums, over its stages
    who adds up    a warp a token, ranks and warps in turn, four columns a lane: rank 0 + rank 1 + ..
"""

from layout import Coord, row_major
from max.gpu import thread_idx
from max.gpu.sync import syncwarp
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
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var part = lane * UInt32(PART_COLUMNS)
    var first_token, first_column = first_of[tokens](share.tile(share.first()))
    var column = first_column + part
    var of_weights = SIMD[DType.float32, PART_COLUMNS](1)
    comptime if type_of(operands).SCALES_IN_THE_END:
        comptime for i in range(PART_COLUMNS):
            of_weights[i] = operands.of_weight(Int(min(column + UInt32(i), result.columns - 1)))
    comptime STEP = ranks * CONSUMER_WARPS
    comptime assert tokens <= OCTET * STEP, "a warp has more tokens than an octet"
    var end = min(first_token + UInt32(tokens), result.rows)
    var octet = TokenOctet(first_token + share.rank + UInt32(ranks) * warp, UInt32(STEP), end)
    var is_marked = operands.mark_of_token(min(octet.row(lane % UInt32(OCTET)), end - 1))
    comptime for first in range(0, COLUMNS, TILE_ROWS):
        var of_tile = min(first_column + UInt32(first), result.columns - 1)
        is_marked |= operands.mark_of_weights(of_tile)
    for row in range(octet.first, end, UInt32(STEP)):
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
        result.store_columns[PART_COLUMNS](row, column, total)
    if any_lane(is_marked):
        keep_branch()
        # The sums that other lanes stored before are not to overtake these.
        syncwarp()
        for first in range(first_column, first_column + UInt32(COLUMNS), UInt32(WARP_ROWS)):
            operands.store_marked(a, w, result, octet, first)
