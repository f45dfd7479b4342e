"""Memory in which the workgroups of a launch meet, kept for the launches of a context.

    0 .. CLEARED_BYTES    zero before and after each launch: its counters, at the end
    CLEARED_BYTES ..      what workgroups hand over

So kernels with any number of counters share the memory, and none of it is cleared
again: a launch stays a launch. The launches of a context run one after another. A
larger launch gets larger memory; smaller memory stays, for a graph may hold on to it.
"""

from max.gpu.host import DeviceBuffer, DeviceContext
from std.bit import next_power_of_two
from std.ffi import _Global
from std.utils.lock import BlockingScopedLock, BlockingSpinLock

from .grid import CLEARED_BYTES, Workspace

comptime SMALLEST_BYTES = 1 << 22
"""Of what is handed over."""


struct _Store(Movable):
    """All memory of the process."""

    var lock: BlockingSpinLock
    """Held while the rest is looked at."""
    var buffers: List[DeviceBuffer[DType.uint8]]
    """The memory, of any context."""
    var newest: Dict[Int, Int]
    """The largest buffer of a context, by the context's address."""

    def __init__(out self):
        self.lock = BlockingSpinLock()
        self.buffers = []
        self.newest = {}

    def room(self, context: Int) raises -> Int:
        """Returns how many bytes a context can hand over."""
        if context not in self.newest:
            return 0
        return len(self.buffers[self.newest[context]]) - CLEARED_BYTES


def _nothing() -> _Store:
    return _Store()


comptime _STORE = _Global["mx_kernels_workspaces", _nothing]


def lasting_workspace(context: DeviceContext, space: Workspace) raises -> Int:
    """Returns the address of memory for the next launch of a context."""
    if space.num_bytes() == 0:
        return 0
    if space.cleared_bytes > CLEARED_BYTES:
        raise Error(
            String(
                "got ", space.cleared_bytes, " bytes of counters, expected at most ", CLEARED_BYTES
            )
        )
    ref store = _STORE.get_or_create_ptr()[]
    var key = Int(context._handle.value())
    with BlockingScopedLock(store.lock):
        if store.room(key) < space.handed_over_bytes:
            var size = max(next_power_of_two(space.num_bytes()), SMALLEST_BYTES)
            var buffer = context.enqueue_create_buffer[DType.uint8](CLEARED_BYTES + size)
            context.enqueue_memset(
                buffer.create_sub_buffer[DType.uint8](0, CLEARED_BYTES), UInt8(0)
            )
            store.newest[key] = len(store.buffers)
            store.buffers.append(buffer^)
        var first = Int(store.buffers[store.newest[key]].unsafe_ptr())
        return first + CLEARED_BYTES - space.cleared_bytes
