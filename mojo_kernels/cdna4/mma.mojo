"""CDNA4 instructions that the language does not name; no other file spells an intrinsic.

The scaled matrix instruction multiplies a tile of weights by a tile of
activations, each lane feeding whole blocks. Weights go first, so that a lane
receives neighbouring columns of one row of C, in the order of memory:

    16 x 16 x 128      lane l feeds row l % 16, block l / 16 of both operands
                       receives row l % 16, columns 4 * (l / 16) .. + 3
    32 x 32 x 64       lane l feeds row l % 32, block l / 32
                       receives row l % 32, columns 8 * i + 4 * (l / 32) .. + 3, i in 0 .. 3

A scale operand is a word of four scale bytes; a compile-time index picks one.
"""

from linalg.arch.amd.block_scaled_mma import CDNA4F8F6F4MatrixFormat, cdna4_block_scaled_mfma
from max.gpu._utils import to_i32
from max.gpu.intrinsics import AMDBufferResource
from std.memory import AddressSpace, bitcast
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic
from structured_kernels.amd_tile_io import _alias_scope_attr

from ..formats import BLOCK_BYTES, FORMAT

comptime LANES = 64
"""Lanes of a wave."""
comptime CODE_WORDS = BLOCK_BYTES // 4
"""Words that hold the codes of a block."""
comptime BlockCodes = SIMD[DType.uint32, CODE_WORDS]
"""The packed codes of one block, in four registers."""
comptime SharedBytes = MutPointer[BFloat16, MutUntrackedOrigin, address_space=AddressSpace.SHARED]
"""A place in LDS. The element type is what `_load_from_lds` insists on."""
comptime _OPERAND_FORMAT = CDNA4F8F6F4MatrixFormat(Int(FORMAT.cdna4_code))


trait ScaledMma:
    """A block-scaled matrix instruction: its shape and one step."""

    comptime TILE: Int
    """Rows of both operands."""
    comptime K_BLOCKS: Int
    """Blocks along K that one step multiplies."""
    comptime VALUES: Int
    """Values of C that a lane holds."""

    @staticmethod
    def step[
        b_byte: Int, a_byte: Int
    ](
        acc: SIMD[DType.float32, Self.VALUES],
        b: BlockCodes,
        a: BlockCodes,
        b_scales: UInt32,
        a_scales: UInt32,
    ) -> SIMD[DType.float32, Self.VALUES]:
        """Returns `acc + b @ a.T`, scaled by byte `b_byte` and `a_byte` of the scale words."""
        ...


@always_inline
def _scaled_mfma[
    values: SIMDLength, b_byte: Int, a_byte: Int
](
    acc: SIMD[DType.float32, values],
    b: BlockCodes,
    a: BlockCodes,
    b_scales: UInt32,
    a_scales: UInt32,
) -> SIMD[DType.float32, values]:
    """The number of values picks the shape."""
    var result = acc
    cdna4_block_scaled_mfma[Int32(b_byte), Int32(a_byte), _OPERAND_FORMAT, _OPERAND_FORMAT](
        result,
        bitcast[DType.uint8, BLOCK_BYTES](b),
        bitcast[DType.uint8, BLOCK_BYTES](a),
        bitcast[DType.int32](b_scales),
        bitcast[DType.int32](a_scales),
    )
    return result


struct Mma16(ScaledMma):
    """The instruction `v_mfma_scale_f32_16x16x128_f8f6f4`: 16 cycles."""

    comptime TILE = 16
    """Rows of both operands."""
    comptime K_BLOCKS = 4
    """128 elements along K."""
    comptime VALUES = 4
    """Four neighbouring columns of one row."""

    @staticmethod
    @always_inline
    def step[
        b_byte: Int, a_byte: Int
    ](
        acc: SIMD[DType.float32, Self.VALUES],
        b: BlockCodes,
        a: BlockCodes,
        b_scales: UInt32,
        a_scales: UInt32,
    ) -> SIMD[DType.float32, Self.VALUES]:
        """Returns `acc + b @ a.T`, scaled by byte `b_byte` and `a_byte` of the scale words."""
        return _scaled_mfma[Self.VALUES, b_byte, a_byte](acc, b, a, b_scales, a_scales)


struct Mma32(ScaledMma):
    """The instruction `v_mfma_scale_f32_32x32x64_f8f6f4`: 32 cycles."""

    comptime TILE = 32
    """Rows of both operands."""
    comptime K_BLOCKS = 2
    """64 elements along K."""
    comptime VALUES = 16
    """Four groups of four neighbouring columns of one row."""

    @staticmethod
    @always_inline
    def step[
        b_byte: Int, a_byte: Int
    ](
        acc: SIMD[DType.float32, Self.VALUES],
        b: BlockCodes,
        a: BlockCodes,
        b_scales: UInt32,
        a_scales: UInt32,
    ) -> SIMD[DType.float32, Self.VALUES]:
        """Returns `acc + b @ a.T`, scaled by byte `b_byte` and `a_byte` of the scale words."""
        return _scaled_mfma[Self.VALUES, b_byte, a_byte](acc, b, a, b_scales, a_scales)


@always_inline
def encode_pair[
    dtype: DType, byte: Int
](word: UInt32, pair: SIMD[dtype, 2], scale: Float32) -> UInt32:
    """Returns `word` with byte `byte` replaced by the codes of `pair / scale`.

    The scale counts by its exponent field alone. Rounds to nearest even and
    saturates; the first element goes to the low nibble.
    """
    comptime if dtype == DType.float32:
        return llvm_intrinsic["llvm.amdgcn.cvt.scalef32.pk.fp4.f32", UInt32, has_side_effect=False](
            word, pair[0], pair[1], scale, Int32(byte)
        )
    elif dtype == DType.float16:
        return llvm_intrinsic["llvm.amdgcn.cvt.scalef32.pk.fp4.f16", UInt32, has_side_effect=False](
            word, pair, scale, Int32(byte)
        )
    else:
        comptime assert dtype == DType.bfloat16, "the converter takes bf16, f16 and f32"
        return llvm_intrinsic[
            "llvm.amdgcn.cvt.scalef32.pk.fp4.bf16", UInt32, has_side_effect=False
        ](word, pair, scale, Int32(byte))


@always_inline
def maximum[
    dtype: DType, width: SIMDLength
](a: SIMD[dtype, width], b: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """Returns the larger lanes; NaN if either is. Chains become three-operand instructions."""
    return llvm_intrinsic["llvm.maximum", SIMD[dtype, width], has_side_effect=False](a, b)


@always_inline
def minimum[
    dtype: DType, width: SIMDLength
](a: SIMD[dtype, width], b: SIMD[dtype, width]) -> SIMD[dtype, width]:
    """Returns the smaller lanes; NaN if either is. Chains become three-operand instructions."""
    return llvm_intrinsic["llvm.minimum", SIMD[dtype, width], has_side_effect=False](a, b)


@always_inline
def subtract_to_zero(a: UInt32, b: UInt32) -> UInt32:
    """Returns `a - b`, or 0 where that would be negative."""
    return llvm_intrinsic["llvm.usub.sat", UInt32, has_side_effect=False](a, b)


@always_inline
def zero_of_a_branch() -> UInt32:
    """Returns zero, in a way that the compiler can neither foresee nor move.

    What depends on it is computed only where the branch around it is taken;
    otherwise the compiler computes rare branches always and selects the result.
    """
    return inlined_assembly["v_mov_b32 $0, 0", UInt32, constraints="=v", has_side_effect=True]()


@always_inline
def loaded(pointer: MutPointer[UInt8, MutAnyOrigin]) -> MutPointer[UInt8, MutAnyOrigin]:
    """Returns a kernel argument after it has arrived in scalar registers.

    Left alone, the compiler loads an argument where it is used, and waits for it there.
    """
    var address = inlined_assembly["", Int64, constraints="=s,0", has_side_effect=True](
        Int64(Int(pointer))
    )
    return MutPointer[UInt8, MutAnyOrigin](unsafe_from_address=Int(address))


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
](memory: AMDBufferResource, offset: Int32, place: SharedBytes, scalar_offset: Int32 = 0):
    """Starts a load straight to LDS: `num_bytes` for each lane, one lane behind another.

    The compiler lets reads by `_load_from_lds` pass it: waits are the caller's.
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
        alias_scopes=_alias_scope_attr,
        aux=__mlir_attr.`0 : i32`,
        _type=None,
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
def set_priority[level: Int]():
    """Sets the wave's priority, 0 .. 3, among the waves of its SIMD."""
    llvm_intrinsic["llvm.amdgcn.s.setprio", NoneType, has_side_effect=True](Int16(level))
