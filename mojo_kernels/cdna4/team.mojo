"""Workgroups that encode the rows they share: each block once a launch, for all of them.

The workgroups of one tile of rows of C are a team. They find their rows encoded
in a workspace, after each has done its part. A part is a group, 32 rows x 256;
wave w of every workgroup draws tickets for the groups of rows 32 * w .. + 31:

    draw      a group to encode, until none is left
    finish    its codes and scales are where the whole device sees them
    wait      until all groups of the team are finished
    leave     nobody of this workgroup looks at the counters again

Whoever holds a ticket runs and waits for nobody: the groups get finished in
every order of workgroups and with any number of them on the device. Counters
wrap to zero when the last workgroup leaves. In the workspace:

    counters    128 bytes a team: tickets of wave w at 4 * w, finished groups at 64
    codes       [M, K / 2]
    scales      preshuffled
"""

from max.gpu.intrinsics import AMDBufferResource
from std.atomic import Atomic, Ordering
from std.math import align_up
from std.memory import AddressSpace

from ..formats import BLOCK, BLOCK_BYTES
from ..layouts import PreshuffledCdna4
from .mma import arrive
from .tiles import Span, quotient


@fieldwise_init
struct TeamWorkspace(TrivialRegisterPassable):
    """Where the parts of a workspace begin."""

    comptime TEAM_BYTES = 128
    """Bytes of the counters of a team."""
    comptime ALIGNMENT = 256
    """What codes and scales are aligned to, at least a line of memory."""

    var codes: Int
    """Where codes begin; the bytes before are zero before and after a launch."""
    var scales: Int
    """Where scales begin."""
    var num_bytes: Int
    """Bytes of the workspace."""

    @staticmethod
    @always_inline
    def of(teams: Int, rows: Int, k: Int) -> Self:
        """Returns the workspace of a launch for activations [rows, k]."""
        comptime ROWS = PreshuffledCdna4.SCALE_ROW_MULTIPLE
        comptime BLOCKS = PreshuffledCdna4.SCALE_K_MULTIPLE
        var k_blocks = k // BLOCK
        var codes = align_up(teams * Self.TEAM_BYTES, Self.ALIGNMENT)
        var scales = codes + align_up(rows * k_blocks * BLOCK_BYTES, Self.ALIGNMENT)
        var num_scales = align_up(rows, ROWS) * align_up(k_blocks, BLOCKS)
        return Self(codes, scales, scales + num_scales)


@fieldwise_init
struct Team[waves: Int](TrivialRegisterPassable):
    """The counters of the workgroups that share rows.

    Parameters:
        waves: Waves of a workgroup.
    """

    comptime FINISHED = Int32(64)
    """Where the finished groups are counted."""
    comptime TICKET_BYTES = Int32(4)
    """Bytes of a counter of tickets."""

    var counters: AMDBufferResource
    """The counters of the team."""
    var finished: MutPointer[UInt32, MutUntrackedOrigin, address_space=AddressSpace.GLOBAL]
    """The one of the finished groups."""
    var workgroups: Int32
    """Workgroups of the team."""
    var groups: Int32
    """Groups that the waves of one number encode."""

    @staticmethod
    @always_inline
    def of(workspace: MutPointer[UInt8, _], team: Int32, workgroups: Int32, groups: Int32) -> Self:
        """Finds the counters of team `team`."""
        comptime TEAM_BYTES = Int32(TeamWorkspace.TEAM_BYTES)
        var counters = Span.of(workspace, (team + 1) * TEAM_BYTES).from_offset(team * TEAM_BYTES)
        var finished = Int(counters.start) + Int(Self.FINISHED)
        return Self(
            counters.after(0),
            MutPointer[UInt32, MutUntrackedOrigin, address_space=AddressSpace.GLOBAL](
                unsafe_from_address=finished
            ),
            workgroups,
            groups,
        )

    @always_inline
    def draw(self, wave: Int32, lane: Int32) -> UInt32:
        """Draws the wave's next group, in lane 0; every workgroup stops when none is left."""
        var last = (self.groups + self.workgroups - 1).cast[DType.uint32]()
        var ticket = UInt32(0)
        if lane == 0:
            ticket = arrive(self.counters, wave * Self.TICKET_BYTES, last)
        return ticket

    @always_inline
    def all_groups(self) -> UInt32:
        """Returns the groups of the team."""
        return (self.groups * Int32(Self.waves)).cast[DType.uint32]()

    @always_inline
    def finish(self, lane: Int32):
        """Counts a group whose stores have completed, or a workgroup that leaves."""
        var last = self.all_groups() + self.workgroups.cast[DType.uint32]() - 1
        if lane == 0:
            _ = arrive(self.counters, Self.FINISHED, last)

    @always_inline
    def wait(self):
        """Waits until all groups are finished."""
        comptime Counter = Atomic[UInt32, scope="agent"]
        while Counter.load[ordering=Ordering.RELAXED](self.finished) < self.all_groups():
            pass
