"""From the sums of a product of dozens to hundreds of rows to C: reduce, add the bias, store.

    region of a consumer      [token][column], float32, in its group's shared memory
    element of C              all regions of rank 0, then those of rank 1, ...
    who adds                  ranks in turn, four neighbouring columns a thread

Elements that bfloat16 operands cannot give are computed another way, a warp each.
"""

from max.gpu import thread_idx
from std.memory import bitcast

from ..simt.launch import DevicePointer
from ..simt.problem import Activations, Result
from .exact import compute_exactly
from .layout import K_LANES, ROW_LANES, TILE_ROWS
from .middle_stages import COLUMNS, CONSUMERS, CONSUMER_THREADS, CONSUMER_WARPS, Pipeline
from .shared_memory import (
    cluster_barrier,
    leave_cluster,
    load_peer_quad,
    load_peer_word,
    load_quad,
    load_word,
    peer_address,
    store_word,
    wait_at,
)

comptime PART_COLUMNS = 4
"""Columns that a thread adds up at a time."""

comptime SUMS_BARRIER = UInt32(1)
"""The hardware barrier of the threads that sum."""


@fieldwise_init
struct Share(TrivialRegisterPassable):
    """Which part of C this group stores."""

    var rank: UInt32
    """This group's place in its cluster."""
    var ranks: UInt32
    """Groups of the cluster."""
    var rows: UInt32
    """Rows of C."""
    var first_token: UInt32
    """The first row of the tile."""
    var first_column: UInt32
    """The first column of the tile."""


@fieldwise_init
struct Exact(TrivialRegisterPassable):
    """The operands as they came, for elements that bfloat16 cannot give."""

    var a: Activations
    """The activations."""
    var codes: DevicePointer[DType.uint8]
    """The weights' codes."""
    var scales: DevicePointer[DType.uint8]
    """The weights' scales."""


@always_inline
def leave_sums[
    tokens: Int, width: Int, instructions: Int
](
    pipeline: Pipeline[tokens],
    sums: Array[SIMD[DType.float32, width], instructions],
    tile: UInt32,
    region: UInt32,
):
    """Stores a consumer's sums where the stages were, when both consumers have read them."""
    wait_at[CONSUMER_THREADS](SUMS_BARRIER)
    var row_lane, pair = divmod(UInt32(thread_idx.x) % 32, UInt32(K_LANES))
    var at = pipeline.sums() + region * UInt32(pipeline.Shape.REGION_BYTES)
    at += 4 * (tile * UInt32(TILE_ROWS) + row_lane)
    comptime for half in range(instructions):
        comptime for i in range(width):
            comptime row = ROW_LANES * (2 * half + i % 4 // 2)
            var token = UInt32(8 * (i // 4) + i % 2) + 2 * pair
            store_word(
                at + 4 * (token * UInt32(pipeline.Shape.SUM_STRIDE) + UInt32(row)),
                bitcast[DType.uint32](sums[half][i]),
            )


@always_inline
def store_share[
    tokens: Int
](pipeline: Pipeline[tokens], share: Share, result: Result, exact: Exact):
    """Stores the elements of this rank when all ranks have left their sums."""
    if share.ranks == 1:
        wait_at[CONSUMER_THREADS](SUMS_BARRIER)
    else:
        cluster_barrier()
    var weights_overflow = UInt32(0)
    for rank in range(share.ranks):
        weights_overflow |= load_peer_word(peer_address(pipeline.flag(), UInt32(rank)))
    if weights_overflow == 0:
        store_sums(pipeline, share, result)
    store_exactly(pipeline, share, result, exact, weights_overflow != 0)
    if share.ranks > 1:
        leave_cluster()


@always_inline
def store_sums[tokens: Int](pipeline: Pipeline[tokens], share: Share, result: Result):
    """Adds up and stores the elements of tokens without a mark."""
    comptime Shape = pipeline.Shape
    comptime ROW_PARTS = UInt32(COLUMNS // PART_COLUMNS)
    var columns = UInt32(result.columns)
    for item in range(
        share.rank * UInt32(CONSUMER_THREADS) + UInt32(thread_idx.x),
        UInt32(tokens) * ROW_PARTS,
        share.ranks * UInt32(CONSUMER_THREADS),
    ):
        var token, part = divmod(item, ROW_PARTS)
        var row = share.first_token + token
        var column = share.first_column + part * UInt32(PART_COLUMNS)
        if row >= share.rows or column >= columns or load_word(pipeline.mark(token)) != 0:
            continue
        var at = pipeline.sums()
        at += 4 * (token * UInt32(Shape.SUM_STRIDE) + part * UInt32(PART_COLUMNS))
        var total = SIMD[DType.float32, PART_COLUMNS](0)
        for rank in range(share.ranks):
            comptime for region in range(CONSUMERS):
                var quad_at = at + UInt32(region * Shape.REGION_BYTES)
                if share.ranks == 1:
                    total += bitcast[DType.float32, PART_COLUMNS](load_quad(quad_at))
                else:
                    total += load_peer_quad(peer_address(quad_at, UInt32(rank)))
        if columns % UInt32(PART_COLUMNS) == 0:
            result.store[PART_COLUMNS, PART_COLUMNS](Int(row), Int(column), total)
        else:
            comptime for i in range(PART_COLUMNS):
                if column + UInt32(i) < columns:
                    result.store[1, 1](Int(row), Int(column) + i, SIMD[DType.float32, 1](total[i]))


@always_inline
def store_exactly[
    tokens: Int
](pipeline: Pipeline[tokens], share: Share, result: Result, exact: Exact, weights_overflow: Bool,):
    """Computes the rows whose operands bfloat16 cannot hold, a row a warp."""
    var lane = UInt32(thread_idx.x) % 32
    var num_tokens = min(UInt32(tokens), share.rows - share.first_token)
    var last_column = min(share.first_column + UInt32(COLUMNS), UInt32(result.columns))
    for token in range(
        share.rank * UInt32(CONSUMER_WARPS) + UInt32(thread_idx.x) // 32,
        num_tokens,
        share.ranks * UInt32(CONSUMER_WARPS),
    ):
        if weights_overflow or load_word(pipeline.mark(token)) != 0:
            for column in range(share.first_column, last_column):
                compute_exactly(
                    exact.a,
                    exact.codes,
                    exact.scales,
                    result,
                    share.rows,
                    share.first_token + token,
                    column,
                    lane,
                )
