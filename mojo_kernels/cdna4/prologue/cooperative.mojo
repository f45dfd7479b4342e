"""Cooperative preparation: workgroups that share rows prepare each part of them once a launch.

The workgroups of one tile of rows of C find the activations of these rows in a workspace, in the
form in which they multiply them, after each has done its share. A part belongs to a pair of tiles
of rows, 32; wave w of every workgroup claims parts of pair w, or of w modulo the pairs:

    claim     a part to prepare, until none is left
    finish    it is stored where the whole device sees it
    wait      until all parts are finished
    leave     this workgroup reads the counters no more

A wave with a part runs and waits for nothing: all parts get finished in every order of workgroups
and with any number of them on the device. Counters wrap to zero when the last workgroup leaves.
`shape.mojo` says where things lie in the workspace.
"""

from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from max.gpu.sync import s_waitcnt
from std.atomic import Atomic, Ordering, fence
from std.memory import AddressSpace
from std.sys.intrinsics import readfirstlane

from ..chip import LANES
from ..instructions.lds import Lds
from ..instructions.memory import arrive
from ..instructions.wave import workgroup_barrier
from ..operands.memory import Bytes, OutputBytes, Span
from .shape import COUNTER_BYTES

comptime FOR_THE_DEVICE = CacheOperation.GLOBAL
"""Stores that the whole device sees once they have completed."""
comptime _DEVICE = "agent"
"""The device as a scope of memory."""


@fieldwise_init
struct RowsToPrepare(TrivialRegisterPassable):
    """What a wave prepares, and where it goes."""

    var source: Bytes
    """Floats, or plain scales."""
    var plain: Bytes
    """Plain codes that are to lie by tiles; anything for floats."""
    var codes: OutputBytes
    """Where codes go, unless they are there."""
    var scales: OutputBytes
    """Where preshuffled scales go."""
    var m: Int32
    var k_blocks: Int32
    var first_row: Int32
    """The wave's first row, a multiple of a pair of tiles."""


trait CooperativeWork(Deinitable):
    """What a wave does with a part that it has claimed."""

    comptime BLOCKS: Int
    comptime LDS_BYTES: Int

    @staticmethod
    def of(rows: RowsToPrepare, lds: Lds, lane: Int32) -> Self:
        ...

    def start(mut self, part: Int32):
        ...

    def complete[own_operations: Int](mut self, part: Int32):
        """Stores the part that was started `own_operations` memory operations ago."""
        ...


trait Prologue(TrivialRegisterPassable):
    """What comes before the main loop."""

    def join(self, wave: Int32, lane: Int32):
        """Waits until activations can be read."""
        ...


@fieldwise_init
struct NoPrologue(Prologue):
    """Activations that are multiplied as they come."""

    @always_inline
    def join(self, wave: Int32, lane: Int32):
        pass


@fieldwise_init
struct Cooperative[pairs: Int, waves: Int](Prologue):
    """The counters of the workgroups that share rows."""

    comptime FINISHED = Int32(64)
    """Where finished parts are counted."""
    comptime CLAIM_BYTES = Int32(4)
    """Bytes of the number of the next part of a pair."""
    comptime Counter = MutPointer[UInt32, MutUntrackedOrigin, address_space=AddressSpace.GLOBAL]

    var counters: AMDBufferResource
    var finished: Self.Counter
    """The one of the finished parts."""
    var workgroups: Int32
    var parts: Int32
    """Parts of a pair."""

    @staticmethod
    @always_inline
    def of(
        workspace: MutPointer[UInt8, _], tile_row: Int32, workgroups: Int32, parts: Int32
    ) -> Self:
        comptime assert Self.waves % Self.pairs == 0, "as many waves for each pair"
        comptime BYTES = Int32(COUNTER_BYTES)
        var counters = Span.of(workspace, (tile_row + 1) * BYTES).from_offset(tile_row * BYTES)
        var finished = Int(counters.start) + Int(Self.FINISHED)
        return Self(
            counters.after(0), Self.Counter(unsafe_from_address=finished), workgroups, parts
        )

    @always_inline
    def all_parts(self) -> UInt32:
        return (self.parts * Int32(Self.pairs)).cast[DType.uint32]()

    @always_inline
    def claim(self, pair: Int32, lane: Int32) -> UInt32:
        """Claims a part of a pair in lane 0; each wave stops when none is left."""
        comptime WAVES = Int32(Self.waves // Self.pairs)
        var last = (self.parts + self.workgroups * WAVES - 1).cast[DType.uint32]()
        var part = UInt32(0)
        if lane == 0:
            part = arrive(self.counters, pair * Self.CLAIM_BYTES, last)
        return part

    @always_inline
    def finish(self, count: Int32, lane: Int32):
        """Counts parts whose stores have completed, or a workgroup that leaves; a lane each."""
        var last = self.all_parts() + self.workgroups.cast[DType.uint32]() - 1
        for first in range(Int32(0), count, Int32(LANES)):
            if first + lane < count:
                _ = arrive(self.counters, Self.FINISHED, last)

    @always_inline
    def wait(self):
        """Waits until all parts are finished."""
        comptime Finished = Atomic[UInt32, scope=_DEVICE]
        while Finished.load[ordering=Ordering.RELAXED](self.finished) < self.all_parts():
            pass

    @always_inline
    def prepare[
        Work: CooperativeWork
    ](self, mut work: Work, first: UInt32, wave: Int32, lane: Int32):
        """Does the wave's share, which begins with part `first`."""
        var num_finished = Int32(0)
        var part = readfirstlane(first).cast[DType.int32]()
        while part < self.parts:
            work.start(part)
            var next = self.claim(wave % Int32(Self.pairs), lane)
            work.complete[1](part)
            part = readfirstlane(next).cast[DType.int32]()
            num_finished += 1
        s_waitcnt[vmcnt=0]()
        self.finish(num_finished, lane)

    @always_inline
    def join(self, wave: Int32, lane: Int32):
        """Waits for the others' shares, at barriers of the workgroup; leaves."""
        workgroup_barrier()
        if wave == 0:
            self.wait()
        workgroup_barrier()
        fence[Ordering.ACQUIRE, scope=_DEVICE]()
        if wave == 0:
            self.finish(1, lane)
