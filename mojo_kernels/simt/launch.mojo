"""What a launch needs: a context, the caller's stream, and pointers on the device.

A context belongs to one device and is kept for the life of the process. The
stream is the caller's own, and the wrapper of the last one is kept: work is
ordered with the caller's other work and nothing waits. Compiled kernels are
kept by the context, so that a launch after the first only looks them up.
"""

from max.gpu.host import DeviceContext, DeviceStream
from std.memory.alloc import unsafe_alloc

comptime DevicePointer[dtype: DType] = MutPointer[Scalar[dtype], MutUntrackedOrigin]
"""The address of elements in the device's memory."""


@always_inline
def device_pointer[dtype: DType](address: Int) -> DevicePointer[dtype]:
    """Returns the pointer to elements at `address`."""
    return DevicePointer[dtype](unsafe_from_address=address)


struct Device(Movable):
    """One device, opened once."""

    var context: DeviceContext
    """The context of the device; kernels are compiled and kept here."""
    var stream: DeviceStream
    """The stream of the last call."""
    var stream_address: Optional[Int]
    """The address of that stream; none before the first call."""

    def __init__(out self, index: Int) raises:
        """Opens the CUDA device `index`."""
        self.context = DeviceContext(device_id=index, api="cuda")
        self.stream = self.context.stream()
        self.stream_address = None

    @staticmethod
    def open(index: Int) raises -> Int:
        """Opens a device for the life of the process; returns the handle for `Queue`."""
        var kept = unsafe_alloc[Self](1)
        kept.unsafe_write(Self(index))
        return Int(kept)


struct Queue:
    """Where kernels of one call go: a stream on its device."""

    var context: DeviceContext
    """The device's context."""
    var stream: DeviceStream
    """The caller's stream."""

    def __init__(out self, context: DeviceContext) raises:
        """Takes a context and its own stream."""
        self.context = context
        self.stream = context.stream()

    def __init__(out self, device: Int, stream: Int) raises:
        """Takes the handle of an open device and the address of its stream."""
        ref opened = MutPointer[Device, MutAnyOrigin](unsafe_from_address=device)[]
        if opened.stream_address != stream:
            opened.stream = opened.context.create_external_stream(
                OpaquePointer[MutAnyOrigin](unsafe_from_address=stream)
            )
            opened.stream_address = stream
        self.context = opened.context
        self.stream = opened.stream
