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
of arguments to registers. One that only some instances of a kernel need is an `Argument`:
others have no bytes of it.

Workgroups of a launch meet in a workspace, which belongs to the queue: a launch
neither clears nor allocates.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.reflection import reflect

from .grid import Grid, Workspace
from .tensor_map import MappedRows, TensorMap

comptime DevicePointer[dtype: DType] = MutPointer[Scalar[dtype], MutUntrackedOrigin]
"""The address of elements in the device's memory, as a kernel of any GPU takes it."""


@always_inline
def device_pointer[dtype: DType](address: Int) -> DevicePointer[dtype]:
    """Returns the pointer to elements at `address`."""
    return DevicePointer[dtype](unsafe_from_address=address)


trait KernelStruct(DevicePassable, TrivialRegisterPassable):
    """A struct that kernels take by its bytes, as the host has it."""

    comptime device_type: AnyType = Self

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return String(reflect[Self].name())


@fieldwise_init
struct Absent(DevicePassable, TrivialRegisterPassable):
    """An argument that this instance of a kernel lacks: it has no bytes, and no queue passes it."""

    comptime device_type = Self

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        pass

    @staticmethod
    def get_type_name() -> String:
        return "Absent"


comptime Passable = DevicePassable & TrivialRegisterPassable
comptime Argument[T: Passable, is_there: Bool]: Passable = T if is_there else Absent
"""An argument that only some instances of a kernel have."""


@always_inline
def argument[T: Passable, //, is_there: Bool](value: T) -> Argument[T, is_there]:
    """Returns such an argument for a launch."""
    comptime if is_there:
        return rebind[Argument[T, is_there]](value)
    else:
        return rebind[Argument[T, is_there]](Absent())


trait Queue:
    """Where the launches of a call go; nothing waits for them."""

    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Launches a kernel; `args` have the types that it declares.

        Parameters:
            declared: These types.
            kernel: The kernel.
            Given: The types of `args`.
            sums_apart: Whether its sums fill the accumulation registers of CDNA4.
        """
        ...

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns the address of memory for the next launch; none has no address."""
        ...

    def tensor_map(mut self, rows: MappedRows) raises -> TensorMap:
        """Returns the map of some rows, an argument of the next launch."""
        raise Error("tensor maps are for NVIDIA GPUs")
