"""A queue takes launches: the kernel, its grid, and its arguments in their order, written once.

Whoever owns a kernel writes its launch for any queue, and nobody else knows its
arguments:

    queue.launch[kernel](Grid(..), pointer, Int32(m), ..)

    ContextQueue    the stream of a MAX context
    CudaQueue       a CUDA stream of the caller's, through the driver
    HipQueue        a HIP stream of the caller's, through the runtime of the process
    Recorder        nothing runs: says what would have been launched
    PtxQueue        nothing runs: says all that a CUDA device would have been told

Arguments have the types that the kernel declares. They stay scalars and pointers:
a struct of several would reach a CDNA4 kernel by reference, which ends the preload
of arguments to registers.

Workgroups of a launch meet in a workspace, which belongs to the queue: a launch
neither clears nor allocates.
"""

from std.builtin.device_passable import DevicePassable

from .tensor_map import MappedRows, TensorMap

comptime DevicePointer[dtype: DType] = MutPointer[Scalar[dtype], MutUntrackedOrigin]
"""The address of elements in the device's memory, as a kernel of any GPU takes it."""


@always_inline
def device_pointer[dtype: DType](address: Int) -> DevicePointer[dtype]:
    """Returns the pointer to elements at `address`."""
    return DevicePointer[dtype](unsafe_from_address=address)


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


trait Queue:
    """Where the launches of a call go; nothing waits for them."""

    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Launches a kernel; `args` have the types that it declares."""
        ...

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns the address of memory for the next launch; none has no address."""
        ...

    def tensor_map(mut self, rows: MappedRows) raises -> TensorMap:
        """Returns the map of some rows, an argument of the next launch."""
        raise Error("tensor maps are for NVIDIA GPUs")
