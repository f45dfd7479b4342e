"""A queue of HIP: code objects, a device's functions, the caller's stream.

    kernel --compiler--> code object in this library      once, when it is built
    code object --HIP--> function of a device             once, before its first launch
    function, arguments, grid --HIP--> the caller's stream

HIP's own functions are those of the runtime that is already in the process, by
address: streams and memory are the caller's, and mean something to that runtime
only. Nothing here waits or allocates device memory, so a launch can be captured
in a graph. A call that HIP refuses raises with HIP's words.
"""

from max.gpu.host.compile import _compile_code, get_gpu_target
from std.builtin.device_passable import DevicePassable
from std.collections import Array
from std.memory.alloc import unsafe_alloc
from std.sys import size_of

from ..backend import CDNA4, CDNA4_OPTIONS
from .c_function import c_function, words_at
from .grid import Grid, Workspace
from .queue import Queue

comptime NO_EXTRA = 0
"""Arguments come as an array of addresses, not in HIP's other form."""
comptime NO_DYNAMIC_LDS = UInt32(0)
"""Kernels declare all the LDS that they use."""
comptime HIP_SUCCESS = Int32(0)
"""What a HIP function returns if all is well."""

comptime _GetDevice = def(Int) abi("C") thin -> Int32
comptime _SetDevice = def(Int32) abi("C") thin -> Int32
comptime _GetLastError = def() abi("C") thin -> Int32
comptime _GetErrorString = def(Int32) abi("C") thin -> Int
comptime _ModuleLoadData = def(Int, Int) abi("C") thin -> Int32
comptime _ModuleGetFunction = def(Int, Int, Int) abi("C") thin -> Int32
comptime _ModuleLaunchKernel = def(
    Int, UInt32, UInt32, UInt32, UInt32, UInt32, UInt32, UInt32, Int, Int, Int
) abi("C") thin -> Int32


@fieldwise_init
struct Hip(TrivialRegisterPassable):
    """Addresses of HIP's functions, named like them."""

    comptime NAMES = [
        "hipGetDevice",
        "hipSetDevice",
        "hipGetLastError",
        "hipGetErrorString",
        "hipModuleLoadData",
        "hipModuleGetFunction",
        "hipModuleLaunchKernel",
    ]
    """What the fields are called in the runtime, in their order."""

    var get_device: Int
    """The thread's current device."""
    var set_device: Int
    """Makes a device the current one."""
    var get_last_error: Int
    """Returns and forgets."""
    var get_error_string: Int
    """Words for an error."""
    var module_load_data: Int
    """Takes a code object."""
    var module_get_function: Int
    """Finds a kernel in it."""
    var module_launch_kernel: Int
    """Puts a launch on a stream."""

    def check(self, status: Int32, doing: String) raises:
        """Raises if a HIP function failed; the error is then ours, and HIP forgets it."""
        if status == HIP_SUCCESS:
            return
        _ = c_function[_GetLastError](self.get_last_error)()
        var words = c_function[_GetErrorString](self.get_error_string)(status)
        raise Error(String("HIP error ", status, " (", words_at(words), ") ", doing))


struct HipDevice(Movable):
    """One device, and the functions that it was given so far."""

    var index: Int32
    """HIP's number of the device."""
    var hip: Hip
    """The runtime."""
    var functions: Dict[Int, Int]
    """Handles of functions, by the address of their code object."""
    var answer: MutPointer[Int, MutUntrackedOrigin]
    """Where HIP's functions put what they return; callers hold Python's lock."""

    def __init__(out self, index: Int, hip: Hip):
        """Takes HIP's number of a gfx950 device."""
        self.index = Int32(index)
        self.hip = hip
        self.functions = {}
        self.answer = unsafe_alloc[Int](1)

    @staticmethod
    def open(index: Int, hip: Hip) -> Int:
        """Opens a device for the life of the process; returns the handle for `Queue`."""
        var kept = unsafe_alloc[Self](1)
        kept.unsafe_write(Self(index, hip))
        return Int(kept)

    def current(self) raises -> Int32:
        """Returns the number of this thread's current device."""
        self.answer[] = 0
        var status = c_function[_GetDevice](self.hip.get_device)(Int(self.answer))
        self.hip.check(status, "asking for the current device")
        return Int32(self.answer[])

    def make_current(self, index: Int32) raises:
        """Makes a device this thread's current one."""
        var status = c_function[_SetDevice](self.hip.set_device)(index)
        self.hip.check(status, String("selecting device ", index))

    def function(mut self, code_object: StaticString, name: StaticString) raises -> Int:
        """Returns the function of a code object, which is loaded the first time."""
        var key = Int(code_object.unsafe_ptr())
        var known = self.functions.get(key)
        if known:
            return known.value()
        var status = c_function[_ModuleLoadData](self.hip.module_load_data)(Int(self.answer), key)
        self.hip.check(status, String("loading ", name, " on device ", self.index))
        status = c_function[_ModuleGetFunction](self.hip.module_get_function)(
            Int(self.answer), self.answer[], Int(name.unsafe_ptr())
        )
        self.hip.check(status, String("looking for ", name, " on device ", self.index))
        self.functions[key] = self.answer[]
        return self.answer[]


struct HipQueue(Queue):
    """The caller's stream on an open device."""

    var device: MutPointer[HipDevice, MutUntrackedOrigin]
    var stream: Int
    """The address of the stream."""
    var lent: Int
    """Where the counters of the caller's workspace end and what is handed over begins."""

    def __init__(out self, device: Int, stream: Int, workspace: Int = 0):
        """Takes the handle of an open device, the address of its stream, and a workspace."""
        self.device = {unsafe_from_address = device}
        self.stream = stream
        self.lent = workspace

    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Launches a kernel on the stream; its code object is part of this library."""
        var addresses = Array[Int, args.__len__()](uninitialized=True)
        var count = 0
        comptime for i in range(args.__len__()):
            comptime assert Given[i] == declared[i], String(
                "argument ", i, " has another type than the kernel declares"
            )
            comptime if size_of[Given[i]]() > 0:
                addresses[count] = Int(Pointer(to=args[i]))
                count += 1
        var code = _compile_code[
            kernel,
            emission_kind="object",
            target=get_gpu_target[CDNA4](),
            compile_options=CDNA4_OPTIONS[sums_apart],
        ]()
        # The stream of 0 is the current device's.
        var caller = self.device[].current()
        if caller == self.device[].index:
            self._launch(code.asm, code.function_name, grid, Int(addresses.unsafe_ptr()))
        else:
            self.device[].make_current(self.device[].index)
            try:
                self._launch(code.asm, code.function_name, grid, Int(addresses.unsafe_ptr()))
            finally:
                self.device[].make_current(caller)
        _ = addresses^

    def _launch(
        self, code_object: StaticString, name: StaticString, grid: Grid, arguments: Int
    ) raises:
        """Launches a kernel on the current device; `arguments` is an array of addresses."""
        var function = self.device[].function(code_object, name)
        var status = c_function[_ModuleLaunchKernel](self.device[].hip.module_launch_kernel)(
            function,
            UInt32(grid.x),
            UInt32(grid.y),
            UInt32(grid.z),
            UInt32(grid.threads),
            UInt32(1),
            UInt32(1),
            NO_DYNAMIC_LDS,
            self.stream,
            arguments,
            NO_EXTRA,
        )
        self.device[].hip.check(
            status,
            String(
                "launching ", name, " on device ", self.device[].index, ", workgroups ",
                grid.x, " x ", grid.y, " x ", grid.z, " of ", grid.threads, " threads",
            ),
        )  # fmt: skip

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns the part of the caller's workspace that a launch wants."""
        return self.lent - space.cleared_bytes if space.num_bytes() > 0 else 0
