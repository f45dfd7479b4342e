"""A queue on which nothing runs: it keeps all that a CUDA device would have been told.

A launch is the kernel's PTX, the grid and the bytes of every argument. The PTX is what
`CudaQueue` loads, the bytes are what the driver copies to the kernel's parameters: both for
the accelerator that this module is compiled for, which need not be there.
"""

from max.gpu.host.compile import _compile_code, get_gpu_target
from max.gpu.host.device_context import DefaultDeviceTypeEncoder
from std.builtin.device_passable import DevicePassable
from std.sys import size_of

from .grid import Grid, Workspace
from .queue import Queue
from .tensor_map import MappedRows, TensorMap


@fieldwise_init
struct PtxLaunch(Copyable, Movable):
    """One launch, complete."""

    var ptx: StaticString
    """A module of one kernel."""
    var entry: StaticString
    """The kernel's name in it."""
    var grid: Grid
    var arguments: List[List[UInt8]]
    """The bytes of each parameter, in the order in which the kernel takes them."""


struct PtxQueue(Queue):
    """Keeps launches in their order."""

    var launches: List[PtxLaunch]
    var lent: Int
    """The address of memory that the caller lends as a workspace."""
    var lent_bytes: Int

    def __init__(out self, workspace: Int = 0, workspace_bytes: Int = 0):
        """Begins with nothing; launches may use `workspace_bytes` at the address `workspace`."""
        self.launches = []
        self.lent = workspace
        self.lent_bytes = workspace_bytes

    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Keeps the launch; the kernel's PTX is part of this library."""
        comptime TARGET = get_gpu_target()
        var encoder = DefaultDeviceTypeEncoder()
        var arguments: List[List[UInt8]] = []
        comptime for i in range(args.__len__()):
            comptime assert Given[i] == declared[i], String(
                "argument ", i, " has another type than the kernel declares"
            )
            # Zeros first: encoding skips the padding of a struct.
            var bytes = List[UInt8](length=size_of[Given[i].device_type, target=TARGET](), fill=0)
            args[i]._to_device_type(encoder, bytes.unsafe_ptr().unsafe_bitcast[NoneType]())
            arguments.append(bytes^)
        var code = _compile_code[kernel, target=TARGET]()
        self.launches.append(PtxLaunch(code.asm, code.function_name, grid, arguments^))

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns what the caller lends, which must be enough."""
        if space.num_bytes() > self.lent_bytes:
            raise Error(
                String(
                    "got a workspace of ", self.lent_bytes, " bytes, expected ", space.num_bytes(),
                    ": ", space.cleared_bytes, " of zeros and ", space.handed_over_bytes, " more",
                )
            )  # fmt: skip
        return self.lent

    def tensor_map(mut self, rows: MappedRows) raises -> TensorMap:
        """Returns the rows in plain words: there is no driver."""
        return TensorMap.described(rows)
