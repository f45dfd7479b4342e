"""Memory beyond plain loads and stores: straight to LDS, and past the L2 for all workgroups.

    load_to_lds                       16 or 4 bytes a lane, counted by vmcnt and nothing else
    arrive, add_published, swap_published, publish
                                      seen by every workgroup of the device
"""

from max.gpu._utils import to_i32
from max.gpu.intrinsics import AMDBufferResource
from std.memory import AddressSpace, bitcast
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic
from structured_kernels.amd_tile_io import _alias_scope_attr

from .lds import Lds


@always_inline
def loaded(pointer: MutPointer[UInt8, MutAnyOrigin]) -> MutPointer[UInt8, MutAnyOrigin]:
    """Returns a kernel argument after it has arrived in scalar registers.

    Left alone, the compiler loads an argument where it is used, and waits for it there.
    """
    var address = inlined_assembly["", Int64, constraints="=s,0", has_side_effect=True](
        Int64(Int(pointer))
    )
    return MutPointer[UInt8, MutAnyOrigin](unsafe_from_address=Int(address))


@always_inline
def loaded[
    dtype: DType
](pointer: ImmPointer[Scalar[dtype], ImmutAnyOrigin]) -> ImmPointer[Scalar[dtype], ImmutAnyOrigin]:
    """Returns the same of what is only read."""
    var address = inlined_assembly["", Int64, constraints="=s,0", has_side_effect=True](
        Int64(Int(pointer))
    )
    return ImmPointer[Scalar[dtype], ImmutAnyOrigin](unsafe_from_address=Int(address))


@always_inline
def loaded(number: Int32) -> Int32:
    """Returns a kernel argument after it has arrived in a scalar register."""
    return inlined_assembly["", Int32, constraints="=s,0", has_side_effect=True](number)


@always_inline
def loaded(number: Float32) -> Float32:
    """Returns a kernel argument after it has arrived in a scalar register."""
    return inlined_assembly["", Float32, constraints="=s,0", has_side_effect=True](number)


comptime _DEVICE_SCOPE = Int32(0x10)
"""The cache bit `sc1`: past the L2, which only the workgroups of an XCD share."""


@always_inline
def arrive(counters: AMDBufferResource, offset: Int32, last: UInt32) -> UInt32:
    """Counts an arrival at a counter; returns how many came before.

    The arrival that finds `last` sets the counter back to zero.
    """
    return llvm_intrinsic["llvm.amdgcn.raw.buffer.atomic.inc", UInt32, has_side_effect=True](
        last, counters.desc, offset, Int32(0), _DEVICE_SCOPE
    )


@always_inline
def add_published(memory: AMDBufferResource, offset: Int32, number: Int32) -> Int32:
    """Adds to a number, at once and where every workgroup sees it; returns what was there."""
    return llvm_intrinsic["llvm.amdgcn.raw.buffer.atomic.add", Int32, has_side_effect=True](
        number, memory.desc, offset, Int32(0), _DEVICE_SCOPE
    )


@always_inline
def swap_published(
    memory: AMDBufferResource, offset: Int32, scalar_offset: Int32, words: SIMD[DType.uint32, 2]
) -> SIMD[DType.uint32, 2]:
    """Exchanges 8 bytes, at once and where every workgroup sees it; returns what was there.

    Out of range it changes nothing and returns zeros.
    """
    var previous = llvm_intrinsic[
        "llvm.amdgcn.raw.buffer.atomic.swap", UInt64, has_side_effect=True
    ](bitcast[DType.uint64, 1](words), memory.desc, offset, scalar_offset, _DEVICE_SCOPE)
    return bitcast[DType.uint32, 2](previous)


@always_inline
def publish(
    memory: AMDBufferResource, offset: Int32, scalar_offset: Int32, words: SIMD[DType.uint32, 2]
):
    """Stores 8 bytes where every workgroup can see them once the store has completed."""
    llvm_intrinsic["llvm.amdgcn.raw.buffer.store", NoneType, has_side_effect=True](
        words, memory.desc, offset, scalar_offset, _DEVICE_SCOPE
    )


@always_inline
def load_to_lds[
    num_bytes: Int
](memory: AMDBufferResource, offset: Int32, place: Lds, scalar_offset: Int32 = 0):
    """Starts a load straight to LDS: `num_bytes` for each lane, one lane behind another.

    The compiler lets the reads of `lds.mojo` pass it: waits are the caller's.
    """
    var descriptor = llvm_intrinsic[
        "llvm.amdgcn.make.buffer.rsrc",
        MutPointer[UInt8, MutUntrackedOrigin, address_space=AddressSpace.BUFFER_RESOURCE],
        has_side_effect=False,
    ](
        MutPointer[UInt8, MutUntrackedOrigin](unsafe_from_address=memory.get_base_ptr()),
        Int16(0),
        memory.desc[2].cast[DType.int64](),
        memory.desc[3],
    )
    __mlir_op.`rocdl.raw.ptr.buffer.load.lds`[
        alias_scopes=_alias_scope_attr, aux=__mlir_attr.`0 : i32`, _type=None
    ](
        __mlir_op.`builtin.unrealized_conversion_cast`[_type=__mlir_type.`!llvm.ptr<8>`](
            descriptor
        ),
        __mlir_op.`builtin.unrealized_conversion_cast`[_type=__mlir_type.`!llvm.ptr<3>`](place),
        to_i32(Int32(num_bytes)),
        to_i32(offset),
        to_i32(scalar_offset),
        to_i32(Int32(0)),
    )


@always_inline
def scalar_here(x: Int32) -> Int32:
    """Returns x, in a way that the compiler cannot compute what follows from it earlier."""
    return inlined_assembly["", Int32, constraints="=s,0", has_side_effect=True](x)
