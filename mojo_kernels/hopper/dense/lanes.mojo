"""Which lanes have a row of tokens while it is made ready: a power of two of a group's threads.

Few rows get a group each, so that all of the device works. Of many, a group has several: then a lane
has more chunks of one, whose loads are on the way at once, and few groups have to begin and end.

    lane of its row    chunks lane, lane + lanes, lane + 2 * lanes, ..
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import ceildiv

from ...launch.queue import DevicePointer
from ...simt.arguments import Activations
from ...simt.codec import LANES_PER_BLOCK
from ...simt.host import CHUNK
from ..host.workspace import (
    LANE_CHUNKS,
    LOG_PREPARE_THREADS as LOG_THREADS,
    PREPARE_WARPS as WARPS,
    groups_of_rows,
    log_lanes_of,
)
from ..instructions.shared_memory import load_pair, load_word, shared_base, store_pair, store_word
from ..instructions.warp import keep_branch
from ..shapes import LANE_BYTES
from .stages import StagedRows

comptime LOG_WARP = 5
"""Lanes of a warp, as an exponent."""


@fieldwise_init
struct RowLanes(DevicePassable, TrivialRegisterPassable):
    """So many rows, and the lanes of each."""

    comptime device_type: AnyType = Self

    var num_rows: UInt32
    var log_lanes: UInt32
    """From those of a warp to those of a group, as an exponent: kernels need not divide."""

    @staticmethod
    def of(num_rows: Int, k: Int, most_chunks: Int = LANE_CHUNKS) -> Self:
        """Returns lanes for rows of k elements: of many rows, each may have so many chunks."""
        return Self(UInt32(num_rows), UInt32(log_lanes_of(num_rows, k, most_chunks)))

    @always_inline
    def lanes(self) -> UInt32:
        """Returns the lanes of a row."""
        return UInt32(1) << self.log_lanes

    def num_groups(self) -> Int:
        """Returns the groups of all rows."""
        return groups_of_rows(Int(self.num_rows), Int(self.log_lanes))

    def chunks(self, k: Int) -> Int:
        """Returns the chunks of a lane, of a row of k elements."""
        return ceildiv(k // CHUNK, Int(self.lanes()))

    @always_inline
    def largest[width: SIMDLength](self, values: SIMD[DType.uint32, width]) -> type_of(values):
        """Returns the largest of one or two values each of all lanes of the row.

        All threads of the group call it; it takes `width` words of shared memory a warp.
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

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "RowLanes"


struct LaneOfRow(TrivialRegisterPassable):
    """A thread's row of tokens, and which of the row's lanes it is."""

    var lanes: RowLanes
    var lane: UInt32
    var row: UInt32
    """Where the row goes."""
    var source: UInt32
    """The row of activations that it is made of."""
    var is_there: Bool
    """Else the thread only keeps others company, and stores nothing."""

    @always_inline
    def __init__(out self, lanes: RowLanes, group: UInt32):
        """Finds the row of this thread; the last row stands in for those past the end."""
        var thread = UInt32(thread_idx.x)
        # Threads of all groups may be more than 2**32.
        var row = (group << (UInt32(LOG_THREADS) - lanes.log_lanes)) + (thread >> lanes.log_lanes)
        self.lanes = lanes
        self.lane = thread & (lanes.lanes() - 1)
        self.is_there = row < lanes.num_rows
        self.row = min(row, lanes.num_rows - 1)
        self.source = self.row

    @always_inline
    def chunk(self, index: UInt32) -> UInt32:
        """Returns one of the lane's chunks."""
        return (index << self.lanes.log_lanes) + self.lane

    @always_inline
    def has_any(self, index: UInt32, num_chunks: UInt32) -> Bool:
        """Says whether any lane has such a chunk, of so many of a row: whole warps agree."""
        return index << self.lanes.log_lanes < num_chunks


comptime Floats[dtype: DType] = Array[SIMD[dtype, CHUNK], LANE_CHUNKS]
"""Chunks of a lane that are on the way at once."""


@always_inline
def load_floats[dtype: DType](a: Activations, place: LaneOfRow, index: UInt32) -> Floats[dtype]:
    """Loads a lane's chunks from one on; blocks past the end repeat the last one."""
    var row_chunks = UInt32(a.k // CHUNK)
    var last = row_chunks - UInt32(LANES_PER_BLOCK) + place.lane % UInt32(LANES_PER_BLOCK)
    var found = Floats[dtype](uninitialized=True)
    comptime for i in range(LANE_CHUNKS):
        var at = Int(min(place.chunk(index + UInt32(i)), last)) * CHUNK
        var row = a.floats().rows[dtype]()
        found[i] = row.load[width=CHUNK, alignment=LANE_BYTES](Coord(Int(place.source), at))
    return found^


@fieldwise_init
struct LaneSteps(TrivialRegisterPassable):
    """Which stages a lane's chunks of a row go to: some steps apart, the same place of each."""

    var first: UInt32
    """The step of the first chunk."""
    var steps: UInt32
    """Steps from one chunk to the next."""
    var num_bytes: UInt32
    """Bytes of so many stages."""

    @staticmethod
    @always_inline
    def of[step_chunks: Int](rows: StagedRows, place: LaneOfRow) -> Self:
        """Returns those of rows that have so many chunks in a stage, no more than a warp."""
        var steps = place.lanes.lanes() // UInt32(step_chunks)
        return Self(place.lane // UInt32(step_chunks), steps, steps * rows.stage_bytes)

    @always_inline
    def step(self, index: UInt32) -> UInt32:
        """Returns the step of one of the lane's chunks."""
        return self.first + index * self.steps

    @always_inline
    def from_first[
        dtype: DType
    ](self, first: DevicePointer[dtype], index: UInt32) -> DevicePointer[dtype]:
        """Returns the place in a chunk's stage that is like one in the first chunk's."""
        var further = UInt64(index) * UInt64(self.num_bytes)
        var bytes = first.unsafe_bitcast[UInt8]().unsafe_offset(Int(further))
        return bytes.unsafe_bitcast[Scalar[dtype]]()
