"""The rows of a tile on their way to shared memory, all blocks of K, in fragment order.

Four neighbouring lanes hold a block of a row, eight elements each, as `few.activations` has it.
Rows that do not exist are never stored: what their part of a fragment holds ends in sums that
nobody reads.
"""

from layout import Coord
from max.gpu import thread_idx

from ...simt.arguments import Activations
from ...simt.host import BFLOAT16, CHUNK
from ..experts.rows import load_chunk
from ..instructions.packed import Pairs
from ..instructions.shared_memory import load_word, store_quad, store_word
from ..instructions.warp import keep_branch
from ..layout import K_LANES
from ..operands.activations import TokenPairs, load_neighbours, pairs_of_neighbours
from ..plan import OPERANDS
from ..shapes import FRAGMENT_TOKENS as TOKENS
from .room import Room

comptime LOADS = 4
"""Chunks that a thread loads at once, of tiles of up to 16 rows."""
comptime MORE_LOADS = 8
"""The same of larger tiles."""


@fieldwise_init
struct Stage[token_tiles: Int, threads: Int](TrivialRegisterPassable):
    """How the threads of a group share the chunks of a tile's rows."""

    comptime AT_ONCE = LOADS if Self.token_tiles <= 2 else MORE_LOADS
    """Chunks that a thread loads at once."""

    var a: Activations
    var room: Room
    var rows: UInt32
    """Rows of the tile."""
    var rows_per_source: UInt32
    """Rows of the result in a row that have the same row of the left side."""

    @always_inline
    def fill(self, is_aligned: Bool):
        """Stores all fragments, and marks rows that bfloat16 cannot hold; all threads call it."""
        var is_common = is_aligned and self.a.dtype == BFLOAT16
        is_common &= self.a.is_kept() or self.a.format == Int32(OPERANDS.code())
        var lane = UInt32(thread_idx.x) % 32
        var first = UInt32(thread_idx.x) - lane
        var end = self.rows * self._row_chunks()
        if not is_common:
            keep_branch()
            for chunks in range(first, end, UInt32(Self.threads)):
                var token, chunk = self._chunk(UInt32(chunks) + lane)
                self._store(
                    token, chunk, load_chunk(self.a, is_aligned, self._source(token), chunk)
                )
            return
        for chunks in range(first, end, UInt32(Self.AT_ONCE * Self.threads)):
            var loaded = Array[Pairs, Self.AT_ONCE](uninitialized=True)
            comptime for i in range(Self.AT_ONCE):
                var token, chunk = self._chunk(UInt32(chunks) + UInt32(i * Self.threads) + lane)
                loaded[i] = load_neighbours(self.a, UInt32(self._source(token)), chunk)
            comptime for i in range(Self.AT_ONCE):
                # Past the end all repeats the last block: warps leave it out together.
                var these = UInt32(chunks) + UInt32(i * Self.threads)
                if these < end:
                    var token, chunk = self._chunk(these + lane)
                    self._store(token, chunk, pairs_of_neighbours(self.a, loaded[i]))

    @always_inline
    def _row_chunks(self) -> UInt32:
        return UInt32(self.a.k) // UInt32(CHUNK)

    @always_inline
    def _chunk(self, index: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the row of the tile and the chunk of it; past the end the last block again."""
        var last = self.rows * self._row_chunks() - UInt32(K_LANES) + index % UInt32(K_LANES)
        return divmod(min(index, last), self._row_chunks())

    @always_inline
    def _source(self, token: UInt32) -> Int:
        return Int(load_word(self.room.row(token)) // self.rows_per_source)

    @always_inline
    def _store(self, token: UInt32, chunk: UInt32, loaded: TokenPairs):
        var tile, row = divmod(token, UInt32(TOKENS))
        var block, k_lane = divmod(chunk, UInt32(K_LANES))
        var fragments = self.room.fragments[Self.token_tiles]()
        store_quad(
            fragments.at(Coord(block, tile, row * UInt32(K_LANES) + k_lane, 0)), loaded.pairs
        )
        if loaded.overflow:
            keep_branch()
            store_word(self.room.mark(token), 1)
            store_word(self.room.overflow(), 1)
