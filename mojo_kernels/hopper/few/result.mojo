"""From the sums of few rows to C: through shared memory, over all warps and ranks, in order.

A warp leaves its sums as [token][row of its tile of weights]. Each rank of the cluster then adds
and stores its share, four neighbouring columns a thread.
"""

from layout import Coord
from max.gpu import thread_idx
from std.memory import bitcast

from ...simt.arguments import Activations, Result, Weights
from ..exact import compute_exactly
from ..instructions.shared_memory import load_peer_quad, peer_address, store_word
from ..instructions.warp import FRAGMENT_SUMS
from ..layout import K_LANES, ROW_LANES, TILE_ROWS
from .shape import HALVES, Partials, THREADS, TOKENS, WARPS, WarpSums


@always_inline
def store_sums[
    TOKEN_TILES: Int
](sums: WarpSums[TOKEN_TILES], partials: Partials[TOKEN_TILES], warp: UInt32, lane: UInt32):
    """Stores a warp's sums."""
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    var mine = partials.starting_at(Coord(warp, 2 * pair, row_lane))
    comptime for tile in range(TOKEN_TILES):
        comptime for half in range(HALVES):
            comptime for i in range(FRAGMENT_SUMS):
                comptime token = tile * TOKENS + i % 2
                comptime row = (half * 2 + i // 2) * ROW_LANES
                store_word(
                    mine.at(Coord(0, token, row)), bitcast[DType.uint32](sums[tile, half][i])
                )


@always_inline
def reduce_share[
    TOKEN_TILES: Int, ROW_WARPS: Int
](
    partials: Partials[TOKEN_TILES],
    rank: UInt32,
    ranks: UInt32,
    result: Result,
    first_token: UInt32,
    first_column: UInt32,
):
    """Sums four neighbouring columns a thread over all warps and ranks, and stores them."""
    comptime K_WARPS = WARPS // ROW_WARPS
    comptime PARTS = TILE_ROWS // 4
    comptime ITEMS = TOKENS * TOKEN_TILES * ROW_WARPS * PARTS
    for item in range(
        rank * UInt32(THREADS) + UInt32(thread_idx.x), UInt32(ITEMS), ranks * UInt32(THREADS)
    ):
        var token, rest = divmod(item, UInt32(ROW_WARPS * PARTS))
        var row_warp, part = divmod(rest, UInt32(PARTS))
        var row = first_token + token
        var column = first_column + row_warp * UInt32(TILE_ROWS) + part * 4
        if row >= result.rows or column >= result.columns:
            continue
        var total = SIMD[DType.float32, 4](0)
        for peer in range(ranks):
            comptime for k_warp in range(K_WARPS):
                var warp = row_warp * UInt32(K_WARPS) + UInt32(k_warp)
                var at = partials.at(Coord(warp, token, part * 4))
                total += load_peer_quad(peer_address(at, UInt32(peer)))
        result.store_columns[4](row, column, total)


@always_inline
def compute_share_exactly[
    TOKEN_TILES: Int, ROW_WARPS: Int
](
    a: Activations,
    w: Weights,
    rank: UInt32,
    ranks: UInt32,
    result: Result,
    first_token: UInt32,
    first_column: UInt32,
):
    """Computes and stores this rank's elements where bfloat16 cannot hold an operand."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    for item in range(
        rank * UInt32(WARPS) + warp,
        UInt32(TOKENS * TOKEN_TILES * ROW_WARPS * TILE_ROWS),
        ranks * UInt32(WARPS),
    ):
        var token, row = divmod(item, UInt32(ROW_WARPS * TILE_ROWS))
        compute_exactly(a, w, result, first_token + token, first_column + row, lane)
