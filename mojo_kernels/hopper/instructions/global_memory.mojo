"""Memory that groups of a kernel hand to each other: in what order, and past which cache."""

from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

from ...launch.queue import DevicePointer
from ...simt.instructions import Quad
from ...simt.views import flat_of


@always_inline
def add_to(counter: DevicePointer[DType.uint32], count: UInt32) -> UInt32:
    """Adds to a counter of all groups; returns what was there before."""
    return inlined_assembly[
        "atom.acq_rel.gpu.global.add.u32 $0, [$1], $2;",
        UInt32,
        constraints="=r,l,r,~{memory}",
        has_side_effect=True,
    ](counter, count)


@always_inline
def load_one(counter: DevicePointer[DType.uint32]) -> UInt32:
    """Returns what a counter of all groups has; what was before it may be loaded afterwards."""
    return inlined_assembly[
        "ld.acquire.gpu.global.u32 $0, [$1];",
        UInt32,
        constraints="=r,l,~{memory}",
        has_side_effect=True,
    ](counter)


@always_inline
def clear_counters(
    counters: DevicePointer[DType.uint32], count: UInt32, thread: UInt32, threads: UInt32
):
    """Lets counters become zero: one of so many threads clears its share."""
    var counter = thread
    while counter < count:
        flat_of(counters)[Int(counter)] = 0
        counter += threads


@always_inline
def load_fresh(address: DevicePointer[DType.float32]) -> Quad[DType.float32]:
    """Loads 16 bytes that another group wrote, past the first-level cache."""
    var d = inlined_assembly[
        "ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];",
        _RegisterPackType[Float32, Float32, Float32, Float32],
        constraints="=f,=f,=f,=f,l,~{memory}",
        has_side_effect=True,
    ](address)
    return Quad[DType.float32](d[0], d[1], d[2], d[3])
