"""Workgroups that prepare the rows they share: each part once a launch, for all of them.

The workgroups of one tile of rows of C are a crew. They find the activations of
these rows in a workspace, in the form in which they multiply them, after each
has done its share. A part belongs to a pair of tiles of rows, 32; wave w of every
workgroup draws tickets for the parts of pair w, or of w modulo the pairs:

    draw      a part to prepare, until none is left
    finish    it is stored where the whole device sees it
    wait      until all parts of the crew are finished
    leave     nobody of this workgroup looks at the counters again

Whoever holds a ticket runs and waits for nobody: all parts get finished in every
order of workgroups and with any number of them on the device. Counters wrap to
zero when the last workgroup leaves. In the workspace:

    counters    128 bytes a crew: tickets of pair p at 4 * p, finished parts at 64
    scales      preshuffled
    codes       [M, K / 2], if activations come as floats
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
from ..instructions.wave import meet_waves
from ..operands.memory import Span
from .shape import CREW_BYTES

comptime FOR_THE_DEVICE = CacheOperation.GLOBAL
"""Stores that the whole device sees once they have completed."""
comptime _DEVICE = "agent"
"""The device as a scope of memory."""


trait SharedWork:
    """What a wave does with a ticket."""

    comptime BLOCKS: Int
    """Blocks along K of a part."""
    comptime LDS_BYTES: Int
    """Bytes of LDS of a wave."""

    @staticmethod
    def of(
        source: ImmPointer[UInt8, _],
        codes: MutPointer[UInt8, _],
        scales: MutPointer[UInt8, _],
        m: Int32,
        k_blocks: Int32,
        first_row: Int32,
        lds: Lds,
        lane: Int32,
    ) -> Self:
        """Begins at row `first_row` of m, a multiple of a pair of tiles.

        Args:
            source: Floats, or plain scales.
            codes: Where codes go, unless they are there.
            scales: Where preshuffled scales go.
            m: Rows.
            k_blocks: Blocks of a row.
            first_row: The wave's first row.
            lds: The wave's LDS.
            lane: The lane.
        """
        ...

    def start(mut self, part: Int32):
        """Starts loading a part."""
        ...

    def complete[own_operations: Int](mut self, part: Int32):
        """Stores the part that was started `own_operations` memory operations ago."""
        ...


trait Meeting(TrivialRegisterPassable):
    """What a workgroup waits for before it reads its activations."""

    def meet(self, wave: Int32, lane: Int32):
        """Waits."""
        ...


@fieldwise_init
struct NoMeeting(Meeting):
    """Activations that are multiplied as they come: nobody waits."""

    @always_inline
    def meet(self, wave: Int32, lane: Int32):
        """Returns at once."""
        pass


@fieldwise_init
struct Crew[pairs: Int, waves: Int](Meeting):
    """The workgroups that share rows.

    Parameters:
        pairs: Pairs of tiles of rows.
        waves: Waves of a workgroup.
    """

    comptime FINISHED = Int32(64)
    """Where finished parts are counted."""
    comptime TICKET_BYTES = Int32(4)
    """Bytes of a counter of tickets."""
    comptime Counter = MutPointer[UInt32, MutUntrackedOrigin, address_space=AddressSpace.GLOBAL]

    var counters: AMDBufferResource
    """The counters of the crew."""
    var finished: Self.Counter
    """The one of the finished parts."""
    var workgroups: Int32
    """Workgroups of the crew."""
    var parts: Int32
    """Parts of a pair."""

    @staticmethod
    @always_inline
    def of(workspace: MutPointer[UInt8, _], crew: Int32, workgroups: Int32, parts: Int32) -> Self:
        """Finds the counters of crew `crew`."""
        comptime assert Self.waves % Self.pairs == 0, "as many waves for each pair"
        comptime BYTES = Int32(CREW_BYTES)
        var counters = Span.of(workspace, (crew + 1) * BYTES).from_offset(crew * BYTES)
        var finished = Int(counters.start) + Int(Self.FINISHED)
        return Self(
            counters.after(0), Self.Counter(unsafe_from_address=finished), workgroups, parts
        )

    @always_inline
    def all_parts(self) -> UInt32:
        """Returns the parts of all pairs."""
        return (self.parts * Int32(Self.pairs)).cast[DType.uint32]()

    @always_inline
    def draw(self, pair: Int32, lane: Int32) -> UInt32:
        """Draws a part of a pair in lane 0; each wave stops when none is left."""
        comptime WAVES = Int32(Self.waves // Self.pairs)
        var last = (self.parts + self.workgroups * WAVES - 1).cast[DType.uint32]()
        var ticket = UInt32(0)
        if lane == 0:
            ticket = arrive(self.counters, pair * Self.TICKET_BYTES, last)
        return ticket

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
    def prepare[Work: SharedWork](self, mut work: Work, first: UInt32, wave: Int32, lane: Int32):
        """Does the wave's share, which begins with ticket `first`."""
        var num_finished = Int32(0)
        var part = readfirstlane(first).cast[DType.int32]()
        while part < self.parts:
            work.start(part)
            var next = self.draw(wave % Int32(Self.pairs), lane)
            work.complete[1](part)
            part = readfirstlane(next).cast[DType.int32]()
            num_finished += 1
        s_waitcnt[vmcnt=0]()
        self.finish(num_finished, lane)

    @always_inline
    def meet(self, wave: Int32, lane: Int32):
        """Waits for the others' shares, at barriers of the workgroup; leaves."""
        meet_waves()
        if wave == 0:
            self.wait()
        meet_waves()
        fence[Ordering.ACQUIRE, scope=_DEVICE]()
        if wave == 0:
            self.finish(1, lane)
