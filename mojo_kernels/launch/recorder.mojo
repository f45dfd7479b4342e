"""A queue on which nothing runs: it keeps what would have been launched.

So grids, workspaces and the order of arguments have one home, a kernel's `launch`,
and everybody else asks: Python for the size of a workspace, `explain` for the grid,
tests and benchmarks for all of it. Who wants to recognise arguments gives each address
of the problem a number of its own.
"""

from std.builtin.device_passable import DevicePassable
from std.sys import size_of

from .grid import Grid, Workspace
from .queue import Queue


@fieldwise_init
struct Recorded(Copyable, Movable):
    """One launch."""

    var grid: Grid
    var workspace: Workspace
    """The memory that it asked for."""
    var arguments: List[Int]
    """Addresses and integers, in the order in which the kernel takes them."""
    var is_address: List[Bool]
    """Which of them are addresses."""


struct Recorder(Queue):
    """Keeps launches in their order."""

    var launches: List[Recorded]
    var wanted: Workspace
    """What the next launch has asked for."""
    var memory: Int
    """The number that stands for the address of a workspace."""

    def __init__(out self, memory: Int = 0):
        """Begins with nothing; `memory` is what launches get for a workspace."""
        self.launches = []
        self.wanted = Workspace(0, 0)
        self.memory = memory

    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Keeps the launch; the kernel is neither compiled nor launched."""
        var values: List[Int] = []
        var is_address: List[Bool] = []
        comptime for i in range(args.__len__()):
            comptime assert Given[i] == declared[i], String(
                "argument ", i, " has another type than the kernel declares"
            )
            comptime BYTES = size_of[Given[i]]()
            var bytes = Pointer(to=args[i])
            comptime if BYTES == 8:
                values.append(bytes.unsafe_bitcast[Int]()[])
            elif BYTES > 0:
                values.append(Int(bytes.unsafe_bitcast[Int32]()[]))
            comptime if BYTES > 0:
                is_address.append(BYTES == 8)
        self.launches.append(Recorded(grid, self.wanted, values^, is_address^))
        self.wanted = Workspace(0, 0)

    def workspace(mut self, space: Workspace) raises -> Int:
        """Notes what the next launch wants."""
        self.wanted = space
        return self.memory if space.num_bytes() > 0 else 0
