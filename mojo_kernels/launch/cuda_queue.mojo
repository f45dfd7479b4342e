"""A queue of CUDA's driver: kernels that MAX's runtime loads, the caller's stream.

    kernel --MAX--> module of a context               once, before its first launch
    module --driver--> function                       once
    function, arguments, grid --driver--> the stream

A launch is one call of the driver: MAX's own looks the kernel up each time, copies the arguments
and the attributes, and takes 1.6 times as long. Nothing here waits or allocates device memory, so a
launch can be captured in a graph. A call that the driver refuses raises with the driver's words.
"""

from max.gpu.host import DeviceContext, FuncAttribute
from max.gpu.host._nvidia_cuda import CUDA, CUDA_MODULE
from max.gpu.host.compile import _compile_code, get_gpu_target
from std.builtin.device_passable import DevicePassable
from std.collections import Array, OptionalReg
from std.ffi import OwnedDLHandle
from std.memory.alloc import unsafe_alloc

from .c_function import c_function, words_at
from .grid import Grid, Workspace
from .queue import Queue
from .tensor_map import ENCODER, MappedRows, TensorMap

comptime DRIVER = "libcuda.so.1"
comptime CUDA_SUCCESS = Int32(0)
"""What a function of the driver returns if all is well."""
comptime CLUSTER_DIMENSION = 4
"""The attribute of a launch that names the workgroups of a cluster along x, y and z."""
comptime PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""The attribute of a launch that may begin before the one ahead of it ends."""

comptime NO_EXTRA = 0
"""Arguments come as an array of addresses, not in the driver's other form."""
comptime _WORDS = 9
"""Of eight bytes, of an attribute: which one, and what it is."""

comptime _CtxGetCurrent = def(Int) abi("C") thin -> Int32
comptime _CtxSetCurrent = def(Int) abi("C") thin -> Int32
comptime _GetErrorString = def(Int32, Int) abi("C") thin -> Int32
comptime _ModuleGetFunction = def(Int, Int, Int) abi("C") thin -> Int32
comptime _LaunchKernelEx = def(Int, Int, Int, Int) abi("C") thin -> Int32


struct Driver(Movable):
    """Addresses of the driver's functions, named like them."""

    var library: OwnedDLHandle
    """Keeps them loaded."""
    var ctx_get_current: Int
    """The thread's current context."""
    var ctx_set_current: Int
    """Makes a context the current one."""
    var get_error_string: Int
    """Words for an error."""
    var module_get_function: Int
    """Finds a kernel in a module."""
    var launch_kernel_ex: Int
    """Puts a launch on a stream."""
    var tensor_map_encode_tiled: Int
    """Makes a tensor map."""

    def __init__(out self) raises:
        """Finds them in the driver, which is in the process already."""
        self.library = OwnedDLHandle(DRIVER)
        self.ctx_get_current = _address(self.library, "cuCtxGetCurrent")
        self.ctx_set_current = _address(self.library, "cuCtxSetCurrent")
        self.get_error_string = _address(self.library, "cuGetErrorString")
        self.module_get_function = _address(self.library, "cuModuleGetFunction")
        self.launch_kernel_ex = _address(self.library, "cuLaunchKernelEx")
        self.tensor_map_encode_tiled = _address(self.library, ENCODER)


def _address(library: OwnedDLHandle, name: String) raises -> Int:
    """Returns the address of a function of a library."""
    return Int(library.get_symbol[NoneType](name).value())


@fieldwise_init
struct LaunchConfig(TrivialRegisterPassable):
    """A launch but for the kernel and its arguments, as C has it."""

    var grid_x: UInt32
    var grid_y: UInt32
    var grid_z: UInt32
    var threads_x: UInt32
    var threads_y: UInt32
    var threads_z: UInt32
    var shared_bytes: UInt32
    var stream: Int
    var attributes: Int
    """The address of the first one, `_WORDS` words each."""
    var num_attributes: UInt32


struct CudaDevice(Movable):
    """One device, opened once, and the kernels that it was given so far."""

    var context: DeviceContext
    """Kernels are compiled and kept here."""
    var cuda_context: Int
    """The same to the driver."""
    var driver: Driver
    var functions: Dict[Int, Int]
    """The driver's handles of kernels, by the address of the kernel's name."""
    var config: LaunchConfig
    """The launch that the driver is told; callers hold Python's lock."""
    var attributes: Array[Int, 2 * _WORDS]
    """And its attributes."""
    var answer: Int
    """Where the driver's functions put what they return."""

    def __init__(out self, index: Int) raises:
        """Opens the CUDA device `index`."""
        self.context = DeviceContext(device_id=index, api="cuda")
        self.cuda_context = Int(CUDA(self.context).value())
        self.driver = Driver()
        self.functions = {}
        self.config = LaunchConfig(0, 0, 0, 0, 1, 1, 0, 0, 0, 0)
        self.attributes = Array[Int, 2 * _WORDS](fill=0)
        self.answer = 0

    @staticmethod
    def open(index: Int) raises -> Int:
        """Opens a device for the life of the process; returns the handle for a queue."""
        var kept = unsafe_alloc[Self](1)
        kept.unsafe_write(Self(index))
        return Int(kept)

    def check(mut self, status: Int32, doing: String) raises:
        """Raises if a function of the driver failed."""
        if status == CUDA_SUCCESS:
            return
        self.answer = 0
        _ = c_function[_GetErrorString](self.driver.get_error_string)(status, self.answer_at())
        var text = words_at(self.answer) if self.answer != 0 else String("unknown")
        raise Error(String("CUDA error ", status, " (", text, ") ", doing))

    def answer_at(mut self) -> Int:
        """Returns the address for an answer."""
        return Int(Pointer(to=self.answer))

    def current(mut self) raises -> Int:
        """Returns the current context of this thread, 0 for none."""
        var status = c_function[_CtxGetCurrent](self.driver.ctx_get_current)(self.answer_at())
        self.check(status, "asking for the current context")
        return self.answer

    def make_current(mut self, context: Int) raises:
        """Makes a context this thread's current one."""
        var status = c_function[_CtxSetCurrent](self.driver.ctx_set_current)(context)
        self.check(status, "selecting a context")

    def load[
        declared: TypeList[Trait=AnyType, ...], //, kernel: def(* args: * declared) thin -> None
    ](mut self, name: StaticString, max_shared_bytes: Int) raises -> Int:
        """Compiles and loads a kernel; returns the driver's handle of it."""
        var attribute = OptionalReg[FuncAttribute]()
        if max_shared_bytes > 0:
            attribute = FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(max_shared_bytes))
        var compiled = self.context.compile_function[kernel](func_attribute=attribute)
        var status = c_function[_ModuleGetFunction](self.driver.module_get_function)(
            self.answer_at(),
            Int(CUDA_MODULE(compiled).value()),
            Int(name.unsafe_ptr()),
        )
        self.check(status, String("looking for ", name))
        self.functions[Int(name.unsafe_ptr())] = self.answer
        return self.answer

    def describe(mut self, grid: Grid, stream: Int):
        """Writes a launch and its attributes."""
        var count = 0
        if grid.cluster > 0:
            self.attributes[0] = CLUSTER_DIMENSION
            # x and y, then z.
            self.attributes[1] = grid.cluster | 1 << 32
            self.attributes[2] = 1
            count = 1
        if grid.starts_early:
            self.attributes[count * _WORDS] = PROGRAMMATIC_STREAM_SERIALIZATION
            self.attributes[count * _WORDS + 1] = 1
            count += 1
        self.config.grid_x = UInt32(grid.x)
        self.config.grid_y = UInt32(grid.y)
        self.config.grid_z = UInt32(grid.z)
        self.config.threads_x = UInt32(grid.threads)
        self.config.shared_bytes = UInt32(grid.shared_bytes)
        self.config.stream = stream
        self.config.attributes = Int(self.attributes.unsafe_ptr())
        self.config.num_attributes = UInt32(count)


struct CudaQueue(Queue):
    """The caller's stream on an open device."""

    var device: MutPointer[CudaDevice, MutUntrackedOrigin]
    var stream: Int
    """The address of the stream."""
    var lent: Int
    """The address of memory that the caller lends as a workspace; 0 for none."""

    def __init__(out self, device: Int, stream: Int, workspace: Int = 0):
        """Takes the handle of an open device, the address of its stream, and a workspace."""
        self.device = {unsafe_from_address = device}
        self.stream = stream
        self.lent = workspace

    @always_inline
    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Launches a kernel on the stream, compiled as its device wants it."""
        var addresses = Array[Int, args.__len__()](uninitialized=True)
        comptime for i in range(args.__len__()):
            comptime assert Given[i] == declared[i], String(
                "argument ", i, " has another type than the kernel declares"
            )
            addresses[i] = Int(Pointer(to=args[i]))
        var name = _compile_code[kernel, target=get_gpu_target()]().function_name
        var known = self.device[].functions.get(Int(name.unsafe_ptr()))
        var function = known.value() if known else self.device[].load[kernel](
            name, grid.max_shared_bytes
        )
        self._launch(name, function, grid, Int(addresses.unsafe_ptr()))
        _ = addresses^

    def _launch(self, name: StaticString, function: Int, grid: Grid, arguments: Int) raises:
        """Launches a function of the driver's; `arguments` is an array of addresses."""
        ref device = self.device[]
        var caller = device.current()
        if caller != device.cuda_context:
            device.make_current(device.cuda_context)
        device.describe(grid, self.stream)
        var status = c_function[_LaunchKernelEx](device.driver.launch_kernel_ex)(
            Int(Pointer(to=device.config)), function, arguments, NO_EXTRA
        )
        if caller != device.cuda_context:
            device.make_current(caller)
        if status != CUDA_SUCCESS:
            device.check(
                status,
                String(
                    "launching ", name, ", groups ", grid.x, " x ", grid.y, " x ", grid.z, " of ",
                    grid.threads, " threads, ", grid.shared_bytes, " bytes of shared memory",
                ),
            )  # fmt: skip

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns what the caller lends, which must be there if anything is wanted."""
        if self.lent == 0 and space.num_bytes() > 0:
            raise Error(String("got no workspace, expected ", space.num_bytes(), " bytes"))
        return self.lent

    def tensor_map(mut self, rows: MappedRows) raises -> TensorMap:
        """Returns the driver's map."""
        return TensorMap.encoded(self.device[].driver.tensor_map_encode_tiled, rows)
