"""Where tokens and sums of a group of the kernel for few rows lie."""

from ...tiles import RegisterTile
from ..instructions.packed import WORD_PAIRS
from ..instructions.shared_memory import TileAddresses
from ..instructions.warp import FRAGMENT_SUMS
from ..shapes import FEW_WARPS, FRAGMENT_TOKENS, STAGE_TILES, TOKEN_STRIDE

comptime HALVES = 2
"""Fragments of rows of a tile of weights."""
comptime Fragments[token_tiles: Int] = TileAddresses[
    DType.uint32, STAGE_TILES, token_tiles, 32, WORD_PAIRS
]
"""Staged tokens, [block, tile, lane, pair], from some block on."""
comptime WarpSums[token_tiles: Int] = RegisterTile[
    DType.float32, FRAGMENT_SUMS, token_tiles, HALVES
]
"""A lane's sums, [tile of tokens, half of the rows], four each."""
comptime Partials[token_tiles: Int] = TileAddresses[
    DType.float32, FEW_WARPS, token_tiles * FRAGMENT_TOKENS, TOKEN_STRIDE
]
"""What all warps summed up, [warp, token, row of its tile of weights]."""
