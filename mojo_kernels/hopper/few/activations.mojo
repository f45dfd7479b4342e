"""Rows of activations ("tokens") on their way to shared memory, in fragment order.

Four neighbouring lanes hold a block, eight elements each:

    offset in fragment   0 .. 15              16 .. 31     ...   64 .. 79     ...
    token                0                    0                  1
    pairs of k           0,4 1,5 2,6 3,7      8,12 ...           0,4 ...

A fragment is 8 tokens x 1 block, half a KiB. Tokens that do not exist are never
stored: what their part of a fragment holds ends in sums that nobody reads.
"""

from layout import Coord
from max.gpu import thread_idx
from std.bit import log2_floor

from ...simt.arguments import Activations
from ...simt.host import BFLOAT16
from ..instructions.packed import Pairs, WORD_PAIRS
from ..instructions.shared_memory import TileAddresses, store_quad
from ..instructions.warp import keep_branch
from ..layout import K_LANES
from ..operands.activations import (
    in_fragment_order,
    load_neighbours,
    load_token,
    round_neighbours,
    round_packed,
    rounds_packed,
    scale_of_neighbours,
)
from ..shapes import FRAGMENT_TOKENS as TOKENS, STAGE_TILES

comptime Fragments[token_tiles: Int] = TileAddresses[
    DType.uint32, STAGE_TILES, token_tiles, 32, WORD_PAIRS
]
"""Staged tokens, [block, tile, lane, pair], from some block on."""


@fieldwise_init
struct StagedChunks[token_tiles: Int, num_threads: Int](TrivialRegisterPassable):
    """Which chunks a thread stages, one step after the other.

    Four lanes take a block; of all quads, 2**log_blocks_at_once in a row take the same
    token. Quads past an end repeat the last block or token and store the same again.
    """

    var num_tokens: UInt32
    """Tokens to stage."""
    var num_blocks: UInt32
    """Blocks of each."""
    var log_blocks: UInt32
    """Logarithm of the blocks that are staged at once."""
    var fragments: Fragments[Self.token_tiles]
    """Where they go."""
    var token_step: UInt32
    """How far the tokens are, in steps."""
    var block_step: UInt32
    """How far the blocks of these tokens are, in steps."""

    comptime LOG_QUADS = log2_floor(Self.num_threads // K_LANES)
    """Logarithm of the quads of lanes."""

    @always_inline
    def num_steps(self) -> UInt32:
        """Returns the steps that stage everything."""
        var tokens_at_once = UInt32(1 << Self.LOG_QUADS) >> self.log_blocks
        return ((self.num_tokens + tokens_at_once - 1) // tokens_at_once) * self.block_steps()

    @always_inline
    def block_steps(self) -> UInt32:
        """Returns the steps that stage all blocks of some tokens."""
        return (self.num_blocks + (UInt32(1) << self.log_blocks) - 1) >> self.log_blocks

    @always_inline
    def token(self) -> UInt32:
        """Returns this thread's token of the step."""
        var quad = UInt32(thread_idx.x) // UInt32(K_LANES)
        var before = self.token_step << (UInt32(Self.LOG_QUADS) - self.log_blocks)
        return min(before + (quad >> self.log_blocks), self.num_tokens - 1)

    @always_inline
    def block(self) -> UInt32:
        """Returns this thread's block of the step."""
        var quad = UInt32(thread_idx.x) // UInt32(K_LANES)
        var within = quad & ((UInt32(1) << self.log_blocks) - 1)
        return min((self.block_step << self.log_blocks) + within, self.num_blocks - 1)

    @always_inline
    def address(self) -> UInt32:
        """Returns where this thread's chunk of the step goes."""
        var tile, token = divmod(self.token(), UInt32(TOKENS))
        var lane = token * UInt32(K_LANES) + UInt32(thread_idx.x) % UInt32(K_LANES)
        return self.fragments.at(Coord(self.block(), tile, lane, 0))

    @always_inline
    def advance(mut self):
        """Goes on to the next step; past the end the last tokens repeat."""
        self.block_step += 1
        if self.block_step == self.block_steps():
            self.block_step = 0
            self.token_step += 1


struct TokenStage[token_tiles: Int, num_threads: Int](Movable):
    """Puts the fragments of some blocks into shared memory, several loads on the way.

    Fragments lie block after block, the tiles of eight tokens of a block together. The
    first loads start with the construction, so that others can start behind them.
    """

    comptime LOADS = 4
    """Chunks of bfloat16 numbers that a thread loads at once."""
    comptime TOGETHER = min(Self.token_tiles, Self.LOADS)
    """Chunks that a thread quantizes at once, so that one does not wait for the other."""

    var a: Activations
    """Where the tokens come from."""
    var first_token: UInt32
    """The first token."""
    var first_chunk: UInt32
    """The first chunk of K, for this lane."""
    var chunks: StagedChunks[Self.token_tiles, Self.num_threads]
    """The chunks to stage next."""
    var left: Int32
    """Steps that are not loaded yet."""
    var neighbours: Array[Pairs, Self.LOADS]
    """What was loaded."""
    var addresses: Array[UInt32, Self.LOADS]
    """Where it goes."""

    @always_inline
    def __init__(
        out self,
        a: Activations,
        first_token: UInt32,
        first_block: UInt32,
        chunks: StagedChunks[Self.token_tiles, Self.num_threads],
    ):
        """Starts the first loads."""
        self.a = a
        self.first_token = first_token
        var k_lane = UInt32(thread_idx.x) % UInt32(K_LANES)
        self.first_chunk = first_block * UInt32(K_LANES) + k_lane
        self.chunks = chunks
        self.left = Int32(chunks.num_steps())
        self.neighbours = Array[Pairs, Self.LOADS](uninitialized=True)
        self.addresses = Array[UInt32, Self.LOADS](uninitialized=True)
        if self.is_bfloat16():
            self._load()

    @always_inline
    def is_bfloat16(self) -> Bool:
        """Says whether this is the common case."""
        return not self.a.is_encoded() and self.a.dtype == BFLOAT16

    @always_inline
    def _load(mut self):
        """Starts the next loads; past the end they repeat earlier ones."""
        comptime for i in range(Self.LOADS):
            var chunk = self.first_chunk + self.chunks.block() * UInt32(K_LANES)
            self.neighbours[i] = load_neighbours(
                self.a, self.first_token + self.chunks.token(), chunk
            )
            self.addresses[i] = self.chunks.address()
            self.chunks.advance()
        self.left -= Int32(Self.LOADS)

    @always_inline
    def finish(mut self) -> Bool:
        """Stores all fragments; says if bfloat16 cannot hold them."""
        var overflow = False
        if not self.is_bfloat16():
            keep_branch()
            for _ in range(self.left):
                var chunk = self.first_chunk + self.chunks.block() * UInt32(K_LANES)
                var loaded = load_token(self.a, self.first_token + self.chunks.token(), chunk)
                overflow |= loaded.overflow
                store_quad(self.chunks.address(), loaded.pairs)
                self.chunks.advance()
            return overflow
        while True:
            overflow |= self._store()
            if self.left <= 0:
                return overflow
            self._load()

    @always_inline
    def _store(self) -> Bool:
        """Stores what was loaded; says if bfloat16 cannot hold it."""
        if self.a.is_kept():
            comptime for i in range(Self.LOADS):
                store_quad(self.addresses[i], in_fragment_order(self.neighbours[i]))
            return False
        var overflow = False
        comptime for first in range(0, Self.LOADS, Self.TOGETHER):
            overflow |= self._quantize[first]()
        return overflow

    @always_inline
    def _quantize[first: Int](self) -> Bool:
        """Quantizes and stores some chunks; says if bfloat16 cannot hold them."""
        var scales = Array[UInt32, Self.TOGETHER](fill=0)
        var maxima = Array[UInt32, Self.TOGETHER](fill=0)
        var all_packed = True
        comptime for i in range(Self.TOGETHER):
            scales[i], maxima[i] = scale_of_neighbours(self.neighbours[first + i], self.a.carry)
            all_packed &= rounds_packed(scales[i])
        if all_packed:
            comptime for i in range(Self.TOGETHER):
                var rounded = round_packed(self.neighbours[first + i], scales[i])
                store_quad(self.addresses[first + i], in_fragment_order(rounded))
            return False
        keep_branch()
        var overflow = False
        comptime for i in range(Self.TOGETHER):
            var pairs = round_neighbours(self.neighbours[first + i], scales[i], maxima[i])
            overflow |= pairs.overflow
            store_quad(self.addresses[first + i], pairs.pairs)
        return overflow
