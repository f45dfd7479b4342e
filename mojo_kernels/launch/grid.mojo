"""What a launch is told beside its kernel and arguments: the grid, and the workspace it wants.

Also a launch in words and numbers, for who asks what would happen.
"""

comptime CLEARED_BYTES = (1 << 24) + (1 << 16)
"""Room for what is zero between launches: sums that half of a chip's compute units leave to the
other half, each of 128 x 256, and counters."""
comptime MAPPED_ALIGNMENT = 16
"""Rows that a tensor map brings begin at multiples of this."""


struct Grid(TrivialRegisterPassable):
    """The workgroups of a launch, and what some devices want to know beside."""

    var x: Int
    var y: Int
    var z: Int
    var threads: Int
    """Threads of a workgroup, along x."""
    var cluster: Int
    """Workgroups along x that can read each other's shared memory; 0 for no clusters."""
    var shared_bytes: Int
    """Shared memory of a workgroup beyond what the kernel declares."""
    var max_shared_bytes: Int
    """The most of it that any launch of the kernel wants: set when the kernel is loaded."""
    var starts_early: Bool
    """Whether the kernel may start while the one before ends; it waits where it must."""

    def __init__(
        out self,
        x: Int,
        y: Int = 1,
        z: Int = 1,
        *,
        threads: Int,
        cluster: Int = 0,
        shared_bytes: Int = 0,
        max_shared_bytes: Int = 0,
        starts_early: Bool = False,
    ):
        """Describes a grid; without more words workgroups share nothing with each other."""
        self.x = x
        self.y = y
        self.z = z
        self.threads = threads
        self.cluster = cluster
        self.shared_bytes = shared_bytes
        self.max_shared_bytes = max(shared_bytes, max_shared_bytes)
        self.starts_early = starts_early


@fieldwise_init
struct Workspace(TrivialRegisterPassable):
    """The memory in which the workgroups of a launch meet."""

    var cleared_bytes: Int
    """Bytes at the beginning that are zero before and after the launch, for counters."""
    var handed_over_bytes: Int
    """Bytes behind them, with anything in them."""

    def num_bytes(self) -> Int:
        """Returns the bytes of both."""
        return self.cleared_bytes + self.handed_over_bytes


def larger(a: Workspace, b: Workspace) -> Workspace:
    """Returns a workspace for one launch or the other."""
    return Workspace(
        max(a.cleared_bytes, b.cleared_bytes), max(a.handed_over_bytes, b.handed_over_bytes)
    )


@fieldwise_init
struct Explained(Copyable, Movable):
    """A launch."""

    var name: StaticString
    """What it does for the operation."""
    var file: StaticString
    """Of the kernel, within the package."""
    var reason: StaticString
    var cut: String
    """Of a product."""
    var tile_m: Int
    """Rows of a workgroup; 0 where it has no tile."""
    var tile_n: Int
    """Columns of a workgroup."""
    var grid: Grid
