"""The warp group's instruction: descriptors of what it reads, registers of those who issue it."""

from max.gpu.compute.mma import WGMMADescriptor
from std.sys._assembly import inlined_assembly

from .expand_tokens import ROW_BYTES


comptime UNIT_BYTES = 16
"""Unit of addresses and distances in a descriptor."""


@always_inline
def lower_word(address: UInt32) -> UInt32:
    """Returns the part of a descriptor that tells the address, in units that may be added."""
    return ((address & 0x3FFFF) // UInt32(UNIT_BYTES)) | (1 << 16)


@always_inline
def descriptor(lower: UInt32) -> WGMMADescriptor[DType.bfloat16]:
    """Describes rows of 128 swizzled bytes that start where the lower word says."""
    comptime EIGHT_ROWS = Int64(8 * ROW_BYTES // UNIT_BYTES)
    comptime SWIZZLE_128 = Int64(1) << 62
    return WGMMADescriptor[DType.bfloat16](
        lower.cast[DType.int64]() | ((EIGHT_ROWS << 32) | SWIZZLE_128)
    )


@always_inline
def limit_registers[direction: StaticString, count: Int]():
    """Takes registers from, or gives them to, the groups that call the other direction."""
    inlined_assembly[
        "setmaxnreg." + direction + ".sync.aligned.u32 $0;",
        NoneType,
        constraints="n",
        has_side_effect=True,
    ](Int32(count))
