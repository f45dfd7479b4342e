"""How a group of the kernel for few rows is cut, and what it wants of a multiprocessor."""

from ..instructions.packed import WORD_PAIRS
from ..instructions.shared_memory import TileAddresses
from ..instructions.warp import FRAGMENT_SUMS
from ..layout import TILE_ROWS
from ..operands.activations import LANE_BYTES
from ...tiles import RegisterTile

comptime WARPS = 8
"""Warps of a group."""
comptime THREADS = 32 * WARPS
"""Threads of a group."""
comptime TOKENS = 8
"""Tokens of a fragment."""
comptime FRAGMENT_BYTES = 512
"""Bytes of a fragment of tokens: 8 tokens x 1 block."""
comptime STAGE_TILES = 128
"""Fragments of tokens that are staged at a time, or a few more."""
comptime TOKEN_STRIDE = TILE_ROWS + 4
"""Words from one token's sums to the next: four more than rows, against bank conflicts."""
comptime SHORT = 2
"""Blocks of a warp up to which K is short."""
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
    DType.float32, WARPS, token_tiles * TOKENS, TOKEN_STRIDE
]
"""What all warps summed up, [warp, token, row of its tile of weights]."""
comptime HEADER_BYTES = 64
"""Shared memory for flags, and for the barrier that other ranks' sums arrive at."""
comptime MAX_TILES_BY_K_WARPS = 32
"""Token tiles times warps along K: what they stage together must fit shared memory."""


@fieldwise_init
struct Shape(TrivialRegisterPassable):
    """The compile-time part of a group's work."""

    var token_tiles: Int
    """Fragments of eight tokens."""
    var row_warps: Int
    """Tiles of weight rows, a warp each; the other warps split K."""
    var is_short: Bool
    """Whether a warp has no more than `SHORT` blocks of K."""

    def k_warps(self) -> Int:
        """Returns the warps that share a tile of weight rows."""
        return WARPS // self.row_warps

    def tokens(self) -> Int:
        """Returns the rows of C of a group."""
        return TOKENS * self.token_tiles

    def items(self) -> Int:
        """Returns how many fours of neighbouring elements of C a group has."""
        return self.tokens() * self.columns() // 4

    def columns(self) -> Int:
        """Returns the columns of C of a group."""
        return TILE_ROWS * self.row_warps

    def fits(self) -> Bool:
        """Says whether the stages fit shared memory."""
        return self.token_tiles * self.k_warps() <= MAX_TILES_BY_K_WARPS

    def loads_ahead(self) -> Int:
        """Returns the blocks whose weights a warp has on the way: as the registers allow.

        A short K has no more than `SHORT` blocks for a warp, and its time is that of fetching the
        instructions: as many fewer.
        """
        return SHORT if self.is_short else (8 if self.token_tiles <= 4 else 4)

    def min_groups(self) -> Int:
        """Returns how many groups a multiprocessor must hold: the registers allow no more."""
        return 1 if self.token_tiles >= 4 else 2

    def stage_blocks(self) -> Int:
        """Returns the blocks staged at a time: every warp's loads ahead come out even."""
        var once_ahead = self.loads_ahead() * self.k_warps()
        return max(STAGE_TILES // self.token_tiles // once_ahead, 1) * once_ahead

    def shared_bytes(self, num_blocks: Int) -> Int:
        """Returns the dynamic shared memory of a group with `num_blocks` blocks of K.

        The header, what other ranks send, then tokens, or in their place the sums.
        """
        var sums = WARPS * self.tokens() * TOKEN_STRIDE * 4
        var blocks = min(num_blocks, self.stage_blocks())
        var landing = self.items() * LANE_BYTES
        return HEADER_BYTES + landing + max(blocks * self.token_tiles * FRAGMENT_BYTES, sums)
