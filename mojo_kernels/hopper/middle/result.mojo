"""From the sums of a product of dozens to hundreds of rows to C: reduce, add the bias, store.

    region            [token][column], float32: the sums of even, and those of odd steps
    element of C      both regions of rank 0, then those of rank 1, ...
    who adds          a warp a token, ranks and warps in turn, four columns a lane

Elements that bfloat16 operands cannot give are computed another way, by the warp that stored
the token.
"""

from layout import Coord
from max.gpu import thread_idx
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Result
from ...tiles import in_registers
from ..instructions.shared_memory import (
    TileAddresses,
    cluster_barrier,
    leave_cluster,
    load_peer_quad,
    load_peer_word,
    load_quad,
    peer_address,
    wait_at,
)
from ..instructions.warp import any_lane
from ..instructions.wgmma import TokenSums, store_sums
from ..layout import K_LANES
from ..plan import MAX_RANKS
from ..shapes import (
    COLUMNS,
    MIDDLE_CONSUMER_WARPS as CONSUMER_WARPS,
    PARITIES,
    READERS,
    STAGES_AT,
    SUM_STRIDE,
    WARP_ROWS,
)
from ..staged.exact import Exact, Marks
from ..staged.stages import flag_of
from ..staged.weights import first_row_of

comptime PART_COLUMNS = 4
"""Columns of a lane."""
comptime Region[tokens: Int] = TileAddresses[DType.float32, tokens, SUM_STRIDE]
"""The sums of a parity, [token, column]."""
comptime SUMS_BARRIER = UInt32(1)
"""The hardware barrier of the threads that sum."""


@fieldwise_init
struct Share(TrivialRegisterPassable):
    """Which part of C this group stores."""

    var rank: UInt32
    """This group's place in its cluster."""
    var ranks: UInt32
    """Groups of the cluster."""
    var first_token: UInt32
    """The first row of the tile."""
    var first_column: UInt32
    """The first column of the tile."""


@always_inline
def region_of[tokens: Int](base: UInt32, parity: UInt32) -> Region[tokens]:
    """Returns where the group leaves the sums of a parity."""
    comptime ALL = Region[tokens].NUM_BYTES
    return Region[tokens](base + UInt32(STAGES_AT) + parity * UInt32(ALL))


@always_inline
def leave_sums[tokens: Int](base: UInt32, sums: TokenSums[tokens], warp: UInt32):
    """Stores a warp's sums where the stages were, when all warps have read them."""
    wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
    var row_lane, pair = divmod(UInt32(thread_idx.x) % 32, UInt32(K_LANES))
    var column = first_row_of(warp) + row_lane
    var region = region_of[tokens](base, warp // UInt32(READERS))
    store_sums[0, tokens](sums, region.starting_at(Coord(2 * pair, column)))


@always_inline
def store_share[tokens: Int](base: UInt32, share: Share, result: Result):
    """Stores the elements of this rank when all ranks have left their sums."""
    if share.ranks == 1:
        wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
    else:
        cluster_barrier()
    comptime for log_ranks in range(log2_floor(MAX_RANKS) + 1):
        if share.ranks == UInt32(1 << log_ranks):
            store_tokens[tokens, 1 << log_ranks](base, share, result)


@always_inline
def store_tokens[tokens: Int, ranks: Int](base: UInt32, share: Share, result: Result):
    """Adds up and stores the tokens of this warp, a share of those of its rank."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var part = lane * UInt32(PART_COLUMNS)
    var num_tokens = min(UInt32(tokens), result.rows - share.first_token)
    for token in range(
        share.rank + UInt32(ranks) * warp, num_tokens, UInt32(ranks * CONSUMER_WARPS)
    ):
        # All loads before the first sum.
        var loaded = in_registers[DType.float32, PART_COLUMNS, ranks, PARITIES]()
        comptime for rank in range(ranks):
            comptime for parity in range(PARITIES):
                var at = region_of[tokens](base, UInt32(parity)).at(Coord(token, part))
                comptime if ranks == 1:
                    loaded[rank, parity] = bitcast[DType.float32, PART_COLUMNS](load_quad(at))
                else:
                    loaded[rank, parity] = load_peer_quad(peer_address(at, UInt32(rank)))
        var total = loaded[0, 0] + loaded[0, 1]
        comptime for rank in range(1, ranks):
            comptime for parity in range(PARITIES):
                total += loaded[rank, parity]
        result.store_columns[PART_COLUMNS](
            share.first_token + token, share.first_column + part, total
        )


@always_inline
def store_exactly[
    tokens: Int
](base: UInt32, share: Share, marked: Marks[tokens], result: Result, exact: Exact):
    """Stores this warp's tokens once more where bfloat16 could not hold an operand."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    # A lane asks for one warp's flag of every rank.
    var flag = UInt32(0)
    for rank in range(share.ranks):
        var at = flag_of(base, lane % UInt32(CONSUMER_WARPS))
        flag |= load_peer_word(peer_address(at, UInt32(rank)))
    var overflow = any_lane(flag != 0)
    if share.ranks > 1:
        leave_cluster()
    if not overflow and marked.words.reduce_or() == 0:
        return
    var num_tokens = min(UInt32(tokens), result.rows - share.first_token)
    for token in range(
        share.rank + share.ranks * warp, num_tokens, share.ranks * UInt32(CONSUMER_WARPS)
    ):
        if overflow or marked.has(token):
            for column in range(
                share.first_column, share.first_column + UInt32(COLUMNS), UInt32(WARP_ROWS)
            ):
                exact.store(result, share.first_token + token, column)
