"""Rows of A while they are made ready, and the lanes of each: a power of two of a CTA's threads.

Few rows get a CTA each, so that all of the device works. Of many, a CTA has several: then a lane
has more chunks of one, whose loads are on the way at once, and few CTAs have to begin and end.

    lane of its row    chunks lane, lane + lanes, lane + 2 * lanes, ..

Rows go one after the other to where they are from, or places of experts are gathered from a list.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier
from std.math import ceildiv

from ...launch.queue import DevicePointer, KernelStruct, device_pointer
from ...simt.arguments import Activations
from ...simt.codec import LANES_PER_BLOCK
from ...simt.host import CHUNK
from ...simt.views import flat_of
from ..host.workspace import (
    LANE_CHUNKS,
    LOG_PREPARE_THREADS as LOG_THREADS,
    PREPARE_WARPS as WARPS,
    ctas_of_rows,
    log_lanes_of,
)
from ..instructions.shared_memory import load_pair, load_word, shared_base, store_pair, store_word
from ..instructions.warp import keep_branch
from ..shapes import LANE_BYTES

comptime LOG_WARP = 5
"""Lanes of a warp, as an exponent."""


@fieldwise_init
struct SourceRows[is_gathered: Bool](KernelStruct):
    """Rows of A one after the other, or places and the rows that go there."""

    var num_rows: UInt32
    """Rows or places."""
    var log_lanes: UInt32
    """Lanes of a row, from a warp's to a CTA's, as an exponent: kernels need not divide."""
    var list: DevicePointer[DType.int32]
    """The row of a place, negative for none."""
    var is_read_by_list: Bool
    """Whether A is to be read there; else at the place itself."""

    @staticmethod
    def of(
        num_rows: Int,
        k: Int,
        most_chunks: Int,
        list: DevicePointer[DType.int32] = device_pointer[DType.int32](0),
        is_read_by_list: Bool = False,
    ) -> Self:
        """Returns rows of k elements: of many rows, lanes may have so many chunks each."""
        var log_lanes = UInt32(log_lanes_of(num_rows, k, most_chunks))
        return Self(UInt32(num_rows), log_lanes, list, is_read_by_list)

    def num_ctas(self) -> Int:
        """Returns the CTAs of all rows."""
        return ctas_of_rows(Int(self.num_rows), Int(self.log_lanes))

    def chunks(self, k: Int) -> Int:
        """Returns the chunks of a lane, of a row of k elements."""
        return ceildiv(k // CHUNK, 1 << Int(self.log_lanes))

    @always_inline
    def lane(self, cta: UInt32) -> LaneOfRow:
        """Finds the row of this thread; the last row stands in for those past the end."""
        var thread = UInt32(thread_idx.x)
        # Threads of all CTAs may be more than 2**32.
        var row = (cta << (UInt32(LOG_THREADS) - self.log_lanes)) + (thread >> self.log_lanes)
        var is_there = row < self.num_rows
        row = min(row, self.num_rows - 1)
        var source = row
        comptime if Self.is_gathered:
            var listed = flat_of(self.list)[Int(row)]
            is_there = is_there and listed >= 0
            if self.is_read_by_list:
                source = UInt32(max(listed, 0))
        var index = thread & ((UInt32(1) << self.log_lanes) - 1)
        return LaneOfRow(self.log_lanes, index, row, source, is_there)


@fieldwise_init
struct LaneOfRow(TrivialRegisterPassable):
    """A thread's row of A, and which of the row's lanes it is."""

    var log_lanes: UInt32
    """Lanes of the row, as an exponent."""
    var index: UInt32
    """Among the lanes of the row."""
    var row: UInt32
    """Where the row goes."""
    var source: UInt32
    """The row of A that it is made of."""
    var is_there: Bool
    """Else the thread only keeps others company, and stores nothing."""

    @always_inline
    def lanes(self) -> UInt32:
        """Returns the lanes of the row."""
        return UInt32(1) << self.log_lanes

    @always_inline
    def chunk(self, index: UInt32) -> UInt32:
        """Returns one of the lane's chunks."""
        return (index << self.log_lanes) + self.index

    @always_inline
    def has_any(self, index: UInt32, num_chunks: UInt32) -> Bool:
        """Says whether any lane has such a chunk, of so many of a row: whole warps agree."""
        return index << self.log_lanes < num_chunks

    @always_inline
    def last_chunk(self, row_chunks: UInt32) -> UInt32:
        """Returns the lane's part of a row's last block, which stands in for those past the end."""
        return row_chunks - UInt32(LANES_PER_BLOCK) + self.index % UInt32(LANES_PER_BLOCK)

    @always_inline
    def largest[width: SIMDLength](self, values: SIMD[DType.uint32, width]) -> type_of(values):
        """Returns the largest of one or two values each of all lanes of the row.

        All threads of the CTA call it; it takes `width` words of shared memory a warp.
        """
        var found = values
        comptime for step in range(LOG_WARP):
            comptime for i in range(width):
                found[i] = max(found[i], shuffle_xor(found[i], UInt32(1 << step)))
        if self.log_lanes > UInt32(LOG_WARP):
            keep_branch()
            comptime WORDS_BYTES = UInt32(4 * Int(width))
            var base = shared_base()
            var warp = UInt32(thread_idx.x) // 32
            if thread_idx.x % 32 == 0:
                comptime if width == 2:
                    store_pair(base + warp * WORDS_BYTES, found.slice[2]())
                else:
                    store_word(base + warp * WORDS_BYTES, found[0])
            barrier()
            var others = (self.lanes() >> UInt32(LOG_WARP)) - 1
            var first = warp & ~others
            comptime for i in range(WARPS):
                var at = base + (first + (UInt32(i) & others)) * WORDS_BYTES
                comptime if width == 2:
                    found = max(found, rebind[type_of(values)](load_pair(at)))
                else:
                    found = max(found, type_of(values)(load_word(at)))
        return found


comptime Floats[dtype: DType] = Array[SIMD[dtype, CHUNK], LANE_CHUNKS]
"""Chunks of a lane that are on the way at once."""


@always_inline
def load_floats[dtype: DType](a: Activations, lane: LaneOfRow, index: UInt32) -> Floats[dtype]:
    """Loads a lane's chunks from one on; blocks past the end repeat the last one."""
    var last = lane.last_chunk(UInt32(a.k // CHUNK))
    var found = Floats[dtype](uninitialized=True)
    comptime for i in range(LANE_CHUNKS):
        var at = Int(min(lane.chunk(index + UInt32(i)), last)) * CHUNK
        var row = a.floats().rows[dtype]()
        found[i] = row.load[width=CHUNK, alignment=LANE_BYTES](Coord(Int(lane.source), at))
    return found^
