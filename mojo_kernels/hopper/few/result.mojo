"""What a warp leaves in shared memory, [token][row of its tile of weights], and the exact way.

Where bfloat16 cannot hold an operand, the elements of C are computed one by one, see `exchange` for
how all ranks learn of it.
"""

from layout import Coord
from max.gpu import thread_idx
from std.memory import bitcast

from ...simt.arguments import Activations, Result, Weights
from ...tiles import RegisterTile
from ..exact import compute_exactly
from ..instructions.shared_memory import TileAddresses, store_word
from ..instructions.warp import FRAGMENT_SUMS
from ..layout import K_LANES, ROW_LANES, TILE_ROWS
from ..shapes import FEW_WARPS as WARPS, FRAGMENT_TOKENS as TOKENS, TOKEN_STRIDE

comptime HALVES = 2
"""Fragments of rows of a tile of weights."""
comptime WarpSums[token_tiles: Int] = RegisterTile[
    DType.float32, FRAGMENT_SUMS, token_tiles, HALVES
]
"""A lane's sums, [tile of tokens, half of the rows], four each."""
comptime Partials[token_tiles: Int] = TileAddresses[
    DType.float32, WARPS, token_tiles * TOKENS, TOKEN_STRIDE
]
"""What all warps summed up, [warp, token, row of its tile of weights]."""


@always_inline
def store_sums[
    TOKEN_TILES: Int, count: Int, //, first: Int = 0
](sums: WarpSums[TOKEN_TILES], partials: Partials[count], warp: UInt32, lane: UInt32):
    """Stores a warp's sums of so many tiles of tokens, from one on."""
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    var mine = partials.starting_at(Coord(warp, 2 * pair, row_lane))
    comptime for tile in range(count):
        comptime for half in range(HALVES):
            comptime for i in range(FRAGMENT_SUMS):
                comptime token = tile * TOKENS + i % 2
                comptime row = (half * 2 + i // 2) * ROW_LANES
                store_word(
                    mine.at(Coord(0, token, row)),
                    bitcast[DType.uint32](sums[first + tile, half][i]),
                )


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
