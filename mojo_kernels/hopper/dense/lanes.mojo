"""Which lanes have a row of tokens while it is made ready: a power of two of a group's threads.

Few rows get a group each, so that all of the device works. Of many, a group has several: then a lane
has more chunks of one, whose loads are on the way at once, and few groups have to begin and end.

    lane of its row    chunks lane, lane + lanes, lane + 2 * lanes, ..
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import ceildiv

from ...simt.codec import CHUNK
from ..instructions.shared_memory import load_pair, load_word, shared_base, store_pair, store_word
from ..instructions.warp import keep_branch
from ..many.kernel import MULTIPROCESSORS

comptime THREADS = 256
"""Threads of a group that makes rows ready."""
comptime WARPS = THREADS // 32
"""Warps of a group."""
comptime GROUPS = 4
"""Groups of a multiprocessor at once."""
comptime LANE_CHUNKS = 4
"""Chunks of a lane that are on the way at once: of many rows, a lane gets no more."""


@fieldwise_init
struct RowLanes(DevicePassable, TrivialRegisterPassable):
    """So many rows, and the lanes of each."""

    comptime device_type: AnyType = Self

    var num_rows: UInt32
    var lanes: UInt32
    """From those of a warp to those of a group."""

    @staticmethod
    def of(num_rows: Int, k: Int) -> Self:
        """Returns lanes for rows of k elements."""
        var row_chunks = k // CHUNK
        var lanes = 32
        while lanes < THREADS and lanes < row_chunks:
            lanes *= 2
        while (
            lanes > 32
            and num_rows * lanes > MULTIPROCESSORS * GROUPS * THREADS
            and row_chunks <= LANE_CHUNKS * (lanes // 2)
        ):
            lanes //= 2
        return Self(UInt32(num_rows), UInt32(lanes))

    def num_groups(self) -> Int:
        """Returns the groups of all rows."""
        return ceildiv(Int(self.num_rows * self.lanes), THREADS)

    def chunks(self, k: Int) -> Int:
        """Returns the chunks of a lane, of a row of k elements."""
        return ceildiv(k // CHUNK, Int(self.lanes))

    @always_inline
    def row(self, group: UInt32) -> UInt32:
        """Returns this thread's row, which may be past the end: it only keeps others company."""
        return (group * UInt32(THREADS) + UInt32(thread_idx.x)) // self.lanes

    @always_inline
    def lane(self) -> UInt32:
        """Returns which of its row's lanes a thread is."""
        return UInt32(thread_idx.x) % self.lanes

    @always_inline
    def largest[width: SIMDLength](self, values: SIMD[DType.uint32, width]) -> type_of(values):
        """Returns the largest of one or two values each of all lanes of the row.

        All threads of the group call it; it takes `width` words of shared memory a warp.
        """
        var found = values
        comptime for step in range(5):
            comptime for i in range(width):
                found[i] = max(found[i], shuffle_xor(found[i], UInt32(1 << step)))
        if self.lanes > 32:
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
            var others = self.lanes // 32 - 1
            var first = warp & ~others
            comptime for i in range(WARPS):
                var at = base + (first + (UInt32(i) & others)) * WORDS_BYTES
                comptime if width == 2:
                    found = max(found, rebind[type_of(values)](load_pair(at)))
                else:
                    found = max(found, type_of(values)(load_word(at)))
        return found

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "RowLanes"
