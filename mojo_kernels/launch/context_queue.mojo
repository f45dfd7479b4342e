"""A queue of MAX's runtime: a context, which belongs to one device, and its stream.

Compiled kernels are kept by the context, so that a launch after the first only looks them up.
"""

from max.gpu.host import DeviceContext, DeviceStream, Dim, FuncAttribute
from max.gpu.host.launch_attribute import (
    LaunchAttribute,
    LaunchAttributeID,
    LaunchAttributeValue,
)
from std.builtin.device_passable import DevicePassable
from std.collections import OptionalReg
from std.ffi import OwnedDLHandle

from ..backend import CDNA4_OPTIONS, has_cdna4
from .cuda_queue import DRIVER
from .grid import Grid, Workspace
from .queue import Queue
from .tensor_map import ENCODER, MappedRows, TensorMap
from .workspace import lasting_workspace


struct ContextQueue(Queue):
    """The stream of a context."""

    var context: DeviceContext
    var stream: DeviceStream
    var lent: Int
    """The address of memory that the caller lends as a workspace; 0 to keep our own."""

    def __init__(out self, context: DeviceContext) raises:
        """Takes a context."""
        self.context = context
        self.stream = context.stream()
        self.lent = 0

    @always_inline
    def launch[
        declared: TypeList[Trait=AnyType, ...],
        //,
        kernel: def(* args: * declared) thin -> None,
        *Given: DevicePassable,
        sums_apart: Bool = False,
    ](mut self, grid: Grid, *args: *Given) raises:
        """Launches a kernel on the stream, compiled as its device wants it."""
        var attribute = OptionalReg[FuncAttribute]()
        if grid.max_shared_bytes > 0:
            attribute = FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(grid.max_shared_bytes))
        comptime if has_cdna4():
            var function = self.context.compile_function[
                kernel, compile_options=CDNA4_OPTIONS[sums_apart]
            ](func_attribute=attribute)
            self.stream.enqueue_function(
                function, *args, grid_dim=(grid.x, grid.y, grid.z), block_dim=grid.threads
            )
        else:
            var function = self.context.compile_function[kernel](func_attribute=attribute)
            self.stream.enqueue_function(
                function,
                *args,
                grid_dim=(grid.x, grid.y, grid.z),
                block_dim=grid.threads,
                cluster_dim=_cluster(grid),
                attributes=_attributes(grid),
                shared_mem_bytes=grid.shared_bytes,
            )

    def workspace(mut self, space: Workspace) raises -> Int:
        """Returns what the caller lends, or memory that is kept for the context."""
        return self.lent if self.lent != 0 else lasting_workspace(self.context, space)

    def tensor_map(mut self, rows: MappedRows) raises -> TensorMap:
        """Returns the map that the driver makes, which the process has."""
        var library = OwnedDLHandle(DRIVER)
        return TensorMap.encoded(Int(library.get_symbol[NoneType](ENCODER).value()), rows)


def _cluster(grid: Grid) -> OptionalReg[Dim]:
    """Returns the workgroups of a cluster, none where there are no clusters."""
    if grid.cluster == 0:
        return None
    return Dim(grid.cluster)


def _attributes(grid: Grid) -> List[LaunchAttribute]:
    """Returns what the driver is told beside the grid."""
    if not grid.starts_early:
        return []
    return [
        LaunchAttribute(
            LaunchAttributeID.PROGRAMMATIC_STREAM_SERIALIZATION, LaunchAttributeValue(True)
        )
    ]
