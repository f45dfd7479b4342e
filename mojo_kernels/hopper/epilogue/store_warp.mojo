"""C on its way to memory by bulk copies of a store thread, while consumers go on to the next tile.

    consumers of a warp group    put their part of C into the group's room, and say `turned`
    the group's store thread     copies it row by row, and says `stored` when all is read
"""

from layout import Coord
from max.gpu.sync import syncwarp

from ...simt.arguments import Result
from ..instructions.shared_memory import (
    TileAddresses,
    arrive,
    commit_copies,
    copy_out,
    init_barrier,
    load_word,
    publish_stores,
    store_word,
    wait_copies_read,
    wait_phase,
)
from ..instructions.warp import lane_here
from ..shapes import GROUPS, WARPS
from .reduce import FLAGS_AT

comptime Barriers = TileAddresses[DType.uint64, 2, GROUPS]
"""The barriers, [turned or stored, warp group]."""


@fieldwise_init
struct StorePipeline(TrivialRegisterPassable):
    """Where a warp group and its store thread meet, and the parity of their next phase."""

    var base: UInt32
    """Start of the shared memory."""
    var group: UInt32
    """The warp group."""
    var parity: UInt32

    comptime SKIPS_AT = FLAGS_AT + Barriers.NUM_BYTES
    """Where groups say that they have stored a tile themselves."""

    @staticmethod
    @always_inline
    def init_barriers(base: UInt32):
        """Makes the barriers; one thread calls it."""
        comptime for group in range(GROUPS):
            var here = Self(base, UInt32(group), 0)
            init_barrier(here.turned(), UInt32(WARPS))
            init_barrier(here.stored(), 1)

    @staticmethod
    @always_inline
    def of_consumers(base: UInt32, group: UInt32) -> Self:
        """Returns that of a group whose room is free."""
        return Self(base, group, 1)

    @staticmethod
    @always_inline
    def of_store_thread(base: UInt32, group: UInt32) -> Self:
        """Returns that of the thread that copies a group's tiles."""
        return Self(base, group, 0)

    @always_inline
    def turned(self) -> UInt32:
        """Returns the barrier that says that a tile is turned."""
        return Barriers(self.base + UInt32(FLAGS_AT)).at(Coord(0, self.group))

    @always_inline
    def stored(self) -> UInt32:
        """Returns the barrier that says that the room is free."""
        return Barriers(self.base + UInt32(FLAGS_AT)).at(Coord(1, self.group))

    @always_inline
    def skips(self) -> UInt32:
        """Returns where the group says that there is nothing to store."""
        return self.base + UInt32(Self.SKIPS_AT) + 4 * self.group

    @always_inline
    def wait_for_room(mut self):
        """Waits until what was in the room is read."""
        wait_phase(self.stored(), self.parity)
        self.parity ^= 1

    @always_inline
    def say(self, skips: Bool):
        """Says that a warp's part of C is in the room, or that the group has stored it."""
        publish_stores()
        syncwarp()
        if lane_here() == 0:
            # All warps of the group say the same.
            store_word(self.skips(), UInt32(1) if skips else UInt32(0))
            arrive(self.turned())

    @always_inline
    def store[
        rows: Int, columns: Int, pitch: Int
    ](mut self, room: UInt32, result: Result, row: UInt32, column: UInt32):
        """Copies a part of C as soon as it is in the room, [row][column]; a thread calls it."""
        wait_phase(self.turned(), self.parity)
        self.parity ^= 1
        var is_there = row < result.rows and column < result.columns
        if is_there and load_word(self.skips()) == 0:
            var num_bytes = 2 * min(UInt32(columns), result.columns - column)
            var place = result.output.unsafe_offset(
                2 * (Int(row) * Int(result.columns) + Int(column))
            )
            var source = room
            for _ in range(min(UInt32(rows), result.rows - row)):
                copy_out(place, source, num_bytes)
                place = place.unsafe_offset(2 * Int(result.columns))
                source += UInt32(pitch)
        commit_copies()
        wait_copies_read()
        arrive(self.stored())
