"""Rows of A on their way to shared memory, as fragments of bfloat16 pairs.

Four neighbouring lanes hold a block, eight elements each:

    offset in fragment   0 .. 15              16 .. 31     ...   64 .. 79     ...
    row                  0                    0                  1
    pairs of k           0,4 1,5 2,6 3,7      8,12 ...           0,4 ...

A fragment is 8 rows x 1 block, half a KiB. Rows that do not exist are never stored: what their part
of a fragment holds ends in sums that nobody reads.
"""

from layout import Coord
from max.gpu import thread_idx

from ...simt.arguments import Activations
from ...simt.host import BFLOAT16
from ..instructions.packed import Pairs, WORD_PAIRS
from ..instructions.shared_memory import TileAddresses, load_word, store_quad, store_word
from ..instructions.warp import keep_branch
from ..layout import K_LANES, OPERANDS
from ..codec import (
    load_chunk,
    RowPairs,
    in_fragment_order,
    load_neighbours,
    load_row,
    round_neighbours,
    round_packed,
    rounds_packed,
    scale_of_neighbours,
)
from ..shapes import FRAGMENT_ROWS, STAGE_FRAGMENTS, StreamConfig
from .scheduler import GroupedMemory, MARKS, ROWS, TileRows

comptime Fragments[row_fragments: Int] = TileAddresses[
    DType.uint32, STAGE_FRAGMENTS, row_fragments, 32, WORD_PAIRS
]
"""Staged rows, [block, fragment, lane, pair], from some block on."""


@fieldwise_init
struct RowStage[CONFIG: StreamConfig](TrivialRegisterPassable):
    """How the threads of a CTA stage some blocks of K of the rows of a tile.

    A chunk is what a lane has of a block. Threads take chunks in order, those of a row first.
    """

    comptime THREADS = Self.CONFIG.threads()
    comptime LOADS = 8 if Self.CONFIG.is_grouped and Self.CONFIG.row_fragments > 2 else 4
    """Chunks of bfloat16 numbers that a thread loads at once."""
    comptime TOGETHER = 1 if Self.CONFIG.is_grouped else min(Self.CONFIG.row_fragments, Self.LOADS)
    """Chunks that it quantizes at once, so that one does not wait for the other."""

    var a: Activations
    var rows: TileRows
    var memory: GroupedMemory
    """Where the rows of a grouped product are listed."""
    var rows_per_source: UInt32
    """Rows in a row of the list that have the same row of A."""
    var first_chunk: UInt32
    """The first one of K."""
    var row_chunks: UInt32
    """Chunks of each row."""
    var reciprocal: UInt32
    """Of `row_chunks`, see `reciprocal_of`."""
    var fragments: Fragments[Self.CONFIG.row_fragments]
    """Where they go."""

    @always_inline
    def fill(self, is_aligned: Bool) -> Bool:
        """Stores all fragments; says if bfloat16 cannot hold some. All threads call it.

        `is_aligned` says that rows begin at multiples of 16 bytes, as those of dense products do.
        """
        var lane = UInt32(thread_idx.x) % 32
        var first = UInt32(thread_idx.x) - lane
        var end = self.rows.rows * self.row_chunks
        var overflow = False
        if not self._is_common(is_aligned):
            keep_branch()
            for chunks in range(first, end, UInt32(Self.THREADS)):
                var row, chunk = self._chunk(UInt32(chunks) + lane)
                overflow |= self._store(row, chunk, self._load_any(row, chunk, is_aligned))
            return overflow
        for chunks in range(first, end, UInt32(Self.LOADS * Self.THREADS)):
            var loaded = Array[Pairs, Self.LOADS](uninitialized=True)
            comptime for i in range(Self.LOADS):
                var row, chunk = self._chunk(UInt32(chunks) + UInt32(i * Self.THREADS) + lane)
                loaded[i] = load_neighbours(self.a, self._source(row), self.first_chunk + chunk)
            comptime for i in range(0, Self.LOADS, Self.TOGETHER):
                # Past the end all repeats the last block: warps leave it out together.
                var these = UInt32(chunks) + UInt32(i * Self.THREADS)
                if these < end:
                    overflow |= self._store_rounded[i](loaded, these + lane)
        return overflow

    @always_inline
    def _is_common(self, is_aligned: Bool) -> Bool:
        """Says whether rows are bfloat16, kept or quantized to the format of weights."""
        var is_common = self.a.dtype == BFLOAT16
        comptime if Self.CONFIG.is_grouped:
            is_common &= is_aligned
            is_common &= self.a.is_kept() or self.a.format == Int32(OPERANDS.code())
        else:
            is_common &= not self.a.is_encoded()
        return is_common

    @always_inline
    def _source(self, row: UInt32) -> UInt32:
        """Returns the row of A of a row of the tile."""
        comptime if Self.CONFIG.is_grouped:
            return load_word(self.memory.at(ROWS, row)) // self.rows_per_source
        else:
            return self.rows.before + row

    @always_inline
    def _load_any(self, row: UInt32, chunk: UInt32, is_aligned: Bool) -> RowPairs:
        """Loads a chunk as the kind of the activations asks."""
        var at = self.first_chunk + chunk
        comptime if Self.CONFIG.is_grouped:
            return load_chunk(self.a, is_aligned, Int(self._source(row)), at)
        else:
            return load_row(self.a, self._source(row), at)

    @always_inline
    def _chunk(self, index: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the row of the tile and the chunk of it; past the end the last block again."""
        var last = self.rows.rows * self.row_chunks - UInt32(K_LANES) + index % UInt32(K_LANES)
        var here = min(index, last)
        var row = UInt32((UInt64(here) * UInt64(self.reciprocal)) >> 32)
        return (row, here - row * self.row_chunks)

    @always_inline
    def _store(self, row: UInt32, chunk: UInt32, loaded: RowPairs) -> Bool:
        """Stores a chunk; marks its row, and says so, if bfloat16 cannot hold it."""
        var fragment, in_fragment = divmod(row, UInt32(FRAGMENT_ROWS))
        var block, k_lane = divmod(chunk, UInt32(K_LANES))
        var lane = in_fragment * UInt32(K_LANES) + k_lane
        store_quad(self.fragments.at(Coord(block, fragment, lane, 0)), loaded.pairs)
        if loaded.overflow:
            keep_branch()
            comptime if Self.CONFIG.is_grouped:
                store_word(self.memory.at(MARKS, row), 1)
        return loaded.overflow

    @always_inline
    def _store_rounded[first: Int](self, loaded: Array[Pairs, Self.LOADS], index: UInt32) -> Bool:
        """Quantizes some chunks, unless they are kept, and stores them."""
        var rounded = Array[RowPairs, Self.TOGETHER](uninitialized=True)
        if self.a.is_kept():
            comptime for i in range(Self.TOGETHER):
                rounded[i] = RowPairs(in_fragment_order(loaded[first + i]), False)
        else:
            self._quantize[first](loaded, rounded)
        var overflow = False
        comptime for i in range(Self.TOGETHER):
            var row, chunk = self._chunk(index + UInt32(i * Self.THREADS))
            overflow |= self._store(row, chunk, rounded[i])
        return overflow

    @always_inline
    def _quantize[
        first: Int
    ](self, loaded: Array[Pairs, Self.LOADS], mut rounded: Array[RowPairs, Self.TOGETHER]):
        """Rounds some chunks to what their encodings stand for."""
        var scales = Array[UInt32, Self.TOGETHER](fill=0)
        var maxima = Array[UInt32, Self.TOGETHER](fill=0)
        var all_packed = True
        comptime for i in range(Self.TOGETHER):
            scales[i], maxima[i] = scale_of_neighbours(loaded[first + i], self.a.carry)
            all_packed &= rounds_packed(scales[i])
        if all_packed:
            comptime for i in range(Self.TOGETHER):
                var pairs = round_packed(loaded[first + i], scales[i])
                rounded[i] = RowPairs(in_fragment_order(pairs), False)
        else:
            keep_branch()
            comptime for i in range(Self.TOGETHER):
                rounded[i] = round_neighbours(loaded[first + i], scales[i], maxima[i])


@always_inline
def reciprocal_of(divisor: UInt32) -> UInt32:
    """Returns what a number is multiplied by to be divided, 2**32 later: 2**32 / divisor, rounded up.

    Quotients are exact while number * divisor < 2**32; shared memory holds less chunks by far.
    """
    return ~UInt32(0) // divisor + 1
