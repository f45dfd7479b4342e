"""What kernels around the warp group's instruction share: its descriptor, its registers."""

from max.gpu.compute.mma import WGMMADescriptor
from std.sys._assembly import inlined_assembly

from .expand_tokens import ROW_BYTES


@always_inline
def descriptor(address: UInt32) -> WGMMADescriptor[DType.bfloat16]:
    """Describes rows of 128 swizzled bytes that start at `address`."""
    comptime UNIT_BYTES = 16
    comptime EIGHT_ROWS = Int64(8 * ROW_BYTES // UNIT_BYTES)
    comptime SWIZZLE_128 = Int64(1) << 62
    var start = ((address & 0x3FFFF) // UInt32(UNIT_BYTES)).cast[DType.int64]()
    return WGMMADescriptor[DType.bfloat16](start | (1 << 16) | (EIGHT_ROWS << 32) | SWIZZLE_128)


@always_inline
def limit_registers[direction: StaticString, count: Int]():
    """Takes registers from, or gives them to, the groups that call the other direction."""
    inlined_assembly[
        "setmaxnreg." + direction + ".sync.aligned.u32 $0;",
        NoneType,
        constraints="n",
        has_side_effect=True,
    ](Int32(count))
