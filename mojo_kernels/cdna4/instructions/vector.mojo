"""What a lane computes on its own: the converter to codes, maxima of pairs, and two tricks.

    encode_pair        two floats to the codes of a byte, by the hardware's converter
    maximum, minimum   chains of them become three-operand instructions
"""

from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic

from ...numbers.elements import Element


@always_inline
def encode_pair[
    element: Element, dtype: DType, byte: Int
](word: UInt32, pair: SIMD[dtype, 2], scale: Float32) -> UInt32:
    """Returns `word` with byte `byte` replaced by the codes of `pair / scale`.

    The scale counts by its exponent field alone. Rounds to nearest even and
    saturates; the first element goes to the low nibble.
    """
    comptime assert element == Element.E2M1, "two codes fill a byte: elements of four bits"
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
def chosen_bytes(words: SIMD[DType.uint32, 2], selector: UInt32) -> UInt32:
    """Returns four bytes of two words; byte i of the selector says which, 12 says zero."""
    return llvm_intrinsic["llvm.amdgcn.perm", UInt32, has_side_effect=False](
        words[1], words[0], selector
    )


@always_inline
def here(x: UInt64) -> UInt64:
    """Returns x, in a way that the compiler cannot compute it later."""
    return inlined_assembly["", UInt64, constraints="=v,0", has_side_effect=True](x)


@always_inline
def zero_of_a_branch() -> UInt32:
    """Returns zero, in a way that the compiler can neither foresee nor move.

    What depends on it is computed only where the branch around it is taken;
    otherwise the compiler computes rare branches always and selects the result.
    """
    return inlined_assembly["v_mov_b32 $0, 0", UInt32, constraints="=v", has_side_effect=True]()
