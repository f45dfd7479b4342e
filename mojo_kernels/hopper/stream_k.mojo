"""The fix-up of stream-K: the last CTA that leaves its part of a tile adds up all of them, and stores C.

    counters    [tile of C][consumer]: parts of the tile that are in memory, and marks
    parts       [CTA][begins a tile or not][four sums][thread]: what a CTA has of a tile's sums

A CTA has some steps of its first tile and of its last one, which are all parts there are. Sums are
added in the order of CTAs, whoever is last: the same bits every time. Nobody waits for anybody, and
who begins a tile and comes when all others have been there stores nothing.

One thread of a consumer counts: barriers of the consumer stand between what others store and its
release, and between its acquire and what they load.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast

from ..launch.queue import DevicePointer, KernelStruct, device_pointer
from ..simt.instructions import Quad
from ..simt.views import flat_of
from .host.workspace import SLOTS, counter_bytes
from .instructions.global_memory import add_to, load_fresh, load_one
from .instructions.shared_memory import load_word, store_word
from .instructions.warp import keep_branch, lane_here
from .instructions.named_barriers import wait_for_group
from .scheduler import TileScheduler
from .shapes import COLUMNS, CONSUMER_WARPS, GROUPS, HEADER_BYTES, WARP_GROUP

comptime FLAGS_AT = HEADER_BYTES - 4 * GROUPS
"""Where the header has a word for each consumer: how many parts there were."""
comptime MARK = 1 << 16
"""What marks add to a counter: more than there are parts."""


@fieldwise_init
struct FixUp[rows: Int](KernelStruct):
    """Where the parts of tiles of so many rows are."""

    comptime QUADS = Self.rows * COLUMNS // GROUPS // WARP_GROUP // 4
    """Quads of sums of a thread."""
    comptime BATCH = min(Self.QUADS, 16)
    """Quads that are on the way at once: registers for more are not free."""

    var counters: DevicePointer[DType.uint32]
    var parts: DevicePointer[DType.float32]

    @staticmethod
    def at(tiles: Int, address: Int) -> Self:
        """Returns those of a product in a workspace; counters are to begin with zeros."""
        return Self(
            device_pointer[DType.uint32](address),
            device_pointer[DType.float32](address + counter_bytes(tiles)),
        )

    @always_inline
    def quad(self, cta: UInt32, slot: UInt32, index: Int) -> DevicePointer[DType.float32]:
        """Returns where this thread's sums of a part are, four of them."""
        comptime THREADS = UInt32(32 * CONSUMER_WARPS)
        var at = (cta * UInt32(SLOTS) + slot) * UInt32(Self.QUADS) + UInt32(index)
        return self.parts.unsafe_offset(4 * Int(at * THREADS + UInt32(thread_idx.x)))

    @always_inline
    def leave[
        width: SIMDLength, count: Int, //
    ](
        self,
        scheduler: Some[TileScheduler],
        tile: UInt32,
        base: UInt32,
        mut sums: Array[SIMD[DType.float32, width], count],
        is_marked: Bool = False,
    ) -> FixUpOutcome:
        """Leaves this CTA's part of a tile; if all others are there, sums are whole afterwards.

        All threads of a consumer call it, `base` is where their shared memory begins. Warps of any
        part may mark the tile for the fallback.
        """
        var consumer = broadcast(UInt32(thread_idx.x) // UInt32(WARP_GROUP))
        var parts = scheduler.parts(tile)
        var at_counter = Counter(
            self.counters.unsafe_offset(Int(tile * UInt32(GROUPS) + consumer)),
            base + UInt32(FLAGS_AT) + 4 * consumer,
            consumer,
        )
        # Who begins the tile gets to it in the end, and mostly finds all others there.
        var others = parts.last - parts.first
        var found = at_counter.read() if parts.begins else UInt32(0)
        if not parts.begins or found % UInt32(MARK) != others:
            keep_branch()
            self._store(parts.here, UInt32(1) if parts.begins else UInt32(0), sums)
            if is_marked and lane_here() == 0:
                keep_branch()
                _ = add_to(at_counter.address, UInt32(MARK))
            found = at_counter.count()
            if found % UInt32(MARK) != others:
                return FixUpOutcome(False, False)
        # The first part begins the tile, the others are the first parts of their CTAs.
        if not parts.begins:
            keep_branch()
            comptime for i in range(Self.QUADS):
                _set[i](sums, load_fresh(self.quad(parts.first, 1, i)))
        for cta in range(parts.first + 1, parts.last + 1):
            self._add(cta, sums)
        return FixUpOutcome(True, found >= UInt32(MARK))

    @always_inline
    def _store[
        width: SIMDLength, count: Int, //
    ](self, cta: UInt32, slot: UInt32, sums: Array[SIMD[DType.float32, width], count]):
        comptime for i in range(Self.QUADS):
            comptime part, first = divmod(4 * i, Int(width))
            flat_of(self.quad(cta, slot, i)).store[alignment=16](
                Coord(0), sums[part].slice[4, offset=first]()
            )

    @always_inline
    def _add[
        width: SIMDLength, count: Int, //
    ](self, cta: UInt32, mut sums: Array[SIMD[DType.float32, width], count]):
        """Adds the first part of a CTA, which may be this one's own."""
        comptime for first in range(0, Self.QUADS, Self.BATCH):
            var quads = Array[Quad[DType.float32], Self.BATCH](uninitialized=True)
            comptime for i in range(Self.BATCH):
                quads[i] = load_fresh(self.quad(cta, 0, first + i))
            comptime for i in range(Self.BATCH):
                comptime part, at = divmod(4 * (first + i), Int(width))
                _set[first + i](sums, sums[part].slice[4, offset=at]() + quads[i])


@always_inline
def _set[
    width: SIMDLength, count: Int, //, index: Int
](mut sums: Array[SIMD[DType.float32, width], count], quad: Quad[DType.float32]):
    """Puts a quad in its place among a thread's sums."""
    comptime part, at = divmod(4 * index, Int(width))
    comptime for j in range(4):
        sums[part][at + j] = quad[j]


@fieldwise_init
struct FixUpOutcome(TrivialRegisterPassable):
    """What a CTA finds where it leaves its part of a tile."""

    var is_last: Bool
    """Whether all others have been there: the CTA goes on with the tile."""
    var is_marked: Bool
    """Whether a warp of another CTA's part has marked the tile."""


@fieldwise_init
struct Counter(TrivialRegisterPassable):
    """The parts of a tile that are in memory, of a consumer; all its threads call this."""

    var address: DevicePointer[DType.uint32]
    var flag: UInt32
    """Where in shared memory the consumer's first thread tells the others."""
    var consumer: UInt32

    @always_inline
    def read(self) -> UInt32:
        """Returns how many parts are there, and marks."""
        # All have heard what was told before.
        wait_for_group(self.consumer)
        if self.is_first():
            store_word(self.flag, load_one(self.address))
        return self.told()

    @always_inline
    def count(self) -> UInt32:
        """Says that this part is there; returns how many were before, and marks."""
        # All have stored theirs.
        wait_for_group(self.consumer)
        if self.is_first():
            store_word(self.flag, add_to(self.address, 1))
        return self.told()

    @always_inline
    def is_first(self) -> Bool:
        """Says whether this is the consumer's first thread."""
        return UInt32(thread_idx.x) % UInt32(WARP_GROUP) == 0

    @always_inline
    def told(self) -> UInt32:
        """Returns what the first thread has found."""
        wait_for_group(self.consumer)
        return broadcast(load_word(self.flag))
