"""What a lane computes on its own: converters, maxima of pairs, and two tricks.

    encode_pair        two floats to codes, by the hardware's converter
    encode_sixes       32 floats to codes of six bits, by another
    decode_pair        two codes to bfloat16 or float32, by the hardware's converter
    decode_e4m3        two codes of eight bits to float32, by another
    maximum, minimum   chains of them become three-operand instructions
    mantissa_of, ..    floats taken apart, and multiplied by powers of two
"""

from std.sys import is_gpu
from std.sys._assembly import inlined_assembly
from std.memory import bitcast
from std.sys.intrinsics import llvm_intrinsic

from ...numbers.elements import Element


def _converter(element: Element, dtype: DType) -> StaticString:
    """Returns the intrinsic from pairs of floats to codes; an empty name if there is none."""
    if element == Element.E2M1:
        if dtype == DType.bfloat16:
            return "llvm.amdgcn.cvt.scalef32.pk.fp4.bf16"
        if dtype == DType.float16:
            return "llvm.amdgcn.cvt.scalef32.pk.fp4.f16"
        return "llvm.amdgcn.cvt.scalef32.pk.fp4.f32"
    if element == Element.E4M3:
        if dtype == DType.bfloat16:
            return "llvm.amdgcn.cvt.scalef32.pk.fp8.bf16"
        return "llvm.amdgcn.cvt.scalef32.pk.fp8.f32"
    if element == Element.E5M2:
        if dtype == DType.bfloat16:
            return "llvm.amdgcn.cvt.scalef32.pk.bf8.bf16"
        return "llvm.amdgcn.cvt.scalef32.pk.bf8.f32"
    return ""


@always_inline
def encode_pair[
    element: Element, dtype: DType, part: Int
](word: UInt32, pair: SIMD[dtype, 2], scale: Float32) -> UInt32:
    """Returns `word` with part `part`, a byte or a half, replaced by the codes of `pair / scale`.

    The scale counts by its exponent field alone. Rounds to nearest even; the first element goes
    to the low bits. Codes of four bits saturate, others the caller keeps from overflowing.
    """
    comptime name = _converter(element, dtype)
    comptime assert name != "", "no converter to this element"
    comptime assert element.bits == 4 or dtype != DType.float16, "to eight bits from bf16 and f32"
    comptime if element.bits == 4:
        comptime if dtype == DType.float32:
            return llvm_intrinsic[name, UInt32, has_side_effect=False](
                word, pair[0], pair[1], scale, Int32(part)
            )
        else:
            return llvm_intrinsic[name, UInt32, has_side_effect=False](
                word, pair, scale, Int32(part)
            )
    else:
        comptime HALVES = SIMD[DType.int16, 2]
        comptime HIGH = Scalar[DType.bool](part == 1)
        var halves = bitcast[DType.int16, 2](word)
        comptime if dtype == DType.float32:
            halves = llvm_intrinsic[name, HALVES, has_side_effect=False](
                halves, pair[0], pair[1], scale, HIGH
            )
        else:
            halves = llvm_intrinsic[name, HALVES, has_side_effect=False](halves, pair, scale, HIGH)
        return bitcast[DType.uint32, 1](halves)


@always_inline
def encode_sixes[
    element: Element, dtype: DType
](x: SIMD[dtype, 32], scale: Float32) -> SIMD[DType.uint32, 8]:
    """Returns the codes of `x / scale`, six bits each, in six words; two more are undefined.

    The scale counts by its exponent field alone. Rounds to nearest even and saturates. Vectors of
    six words exist in LLVM alone.
    """
    comptime IS_E2M3 = element == Element.E2M3
    comptime assert IS_E2M3 or element == Element.E3M2, "elements of six bits"
    comptime Words = SIMD[DType.uint32, 8]
    comptime SIX_WORDS = __mlir_type.`vector<6 x i32>`
    var divisor = __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.f32](scale._mlir_value)
    var codes: SIX_WORDS
    comptime if dtype == DType.float32:
        # Codes 2 * i and 2 * i + 1 are of number i of either vector.
        var halves = rebind[SIMD[DType.float32, 32]](x).deinterleave()
        comptime FLOATS = __mlir_type.`vector<16 x f32>`
        var even = __mlir_op.`pop.cast_to_builtin`[_type=FLOATS](halves[0]._mlir_value)
        var odd = __mlir_op.`pop.cast_to_builtin`[_type=FLOATS](halves[1]._mlir_value)
        comptime if IS_E2M3:
            codes = __mlir_op.`rocdl.cvt.scalef32.2xpk16.fp6.f32`[_type=SIX_WORDS](
                even, odd, divisor
            )
        else:
            codes = __mlir_op.`rocdl.cvt.scalef32.2xpk16.bf6.f32`[_type=SIX_WORDS](
                even, odd, divisor
            )
    elif dtype == DType.float16:
        comptime FLOATS = __mlir_type.`vector<32 x f16>`
        var floats = __mlir_op.`pop.cast_to_builtin`[_type=FLOATS](
            rebind[SIMD[DType.float16, 32]](x)._mlir_value
        )
        comptime if IS_E2M3:
            codes = __mlir_op.`rocdl.cvt.scalef32.pk32.fp6.f16`[_type=SIX_WORDS](floats, divisor)
        else:
            codes = __mlir_op.`rocdl.cvt.scalef32.pk32.bf6.f16`[_type=SIX_WORDS](floats, divisor)
    else:
        comptime assert dtype == DType.bfloat16, "converters from other types"
        comptime FLOATS = __mlir_type.`vector<32 x bf16>`
        var floats = __mlir_op.`pop.cast_to_builtin`[_type=FLOATS](
            rebind[SIMD[DType.bfloat16, 32]](x)._mlir_value
        )
        comptime if IS_E2M3:
            codes = __mlir_op.`rocdl.cvt.scalef32.pk32.fp6.bf16`[_type=SIX_WORDS](floats, divisor)
        else:
            codes = __mlir_op.`rocdl.cvt.scalef32.pk32.bf6.bf16`[_type=SIX_WORDS](floats, divisor)
    var words = __mlir_op.`llvm.shufflevector`[
        mask=__mlir_attr.`array<i32: 0, 1, 2, 3, 4, 5, -1, -1>`,
        _type=__mlir_type.`vector<8 x i32>`,
    ](codes, codes)
    return Words(mlir_value=__mlir_op.`pop.cast_from_builtin`[_type=Words._mlir_type](words))


@always_inline
def decode_pair[
    element: Element, byte: Int, dtype: DType = DType.bfloat16
](word: UInt32, scale: Float32) -> SIMD[dtype, 2]:
    """Returns the numbers of the two codes in byte `byte` of a word, times the scale.

    The scale counts by its exponent field alone; all ones are NaN.
    """
    comptime assert element == Element.E2M1, "two codes fill a byte: elements of four bits"
    comptime name: StaticString = (
        "llvm.amdgcn.cvt.scalef32.pk.f32.fp4" if dtype
        == DType.float32 else "llvm.amdgcn.cvt.scalef32.pk.bf16.fp4"
    )
    return llvm_intrinsic[name, SIMD[dtype, 2], has_side_effect=False](word, scale, Int32(byte))


@always_inline
def decode_e4m3[half: Int](word: UInt32) -> SIMD[DType.float32, 2]:
    """Returns the numbers of the two E4M3 codes in a half of a word."""
    return llvm_intrinsic[
        "llvm.amdgcn.cvt.pk.f32.fp8", SIMD[DType.float32, 2], has_side_effect=False
    ](word, Scalar[DType.bool](half == 1))


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
def reciprocal(x: Float32) -> Float32:
    """Returns about `1 / x`, off by a unit in the last place at most."""
    return llvm_intrinsic["llvm.amdgcn.rcp.f32", Float32, has_side_effect=False](x)


@always_inline
def subtract_to_zero(a: UInt32, b: UInt32) -> UInt32:
    """Returns `a - b`, or 0 where that would be negative."""
    return llvm_intrinsic["llvm.usub.sat", UInt32, has_side_effect=False](a, b)


@always_inline
def mantissa_of[width: SIMDLength](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns x over a power of two, 0.5 to 1; zeros, infinities and NaN as such."""
    var mantissas = SIMD[DType.float32, width]()
    comptime for i in range(Int(width)):
        mantissas[i] = llvm_intrinsic["llvm.amdgcn.frexp.mant.f32", Float32, has_side_effect=False](
            x[i]
        )
    return mantissas


@always_inline
def exponent_of[width: SIMDLength](x: SIMD[DType.float32, width]) -> SIMD[DType.int32, width]:
    """Returns the exponents of those powers; 0 of what is none."""
    var exponents = SIMD[DType.int32, width]()
    comptime for i in range(Int(width)):
        exponents[i] = llvm_intrinsic[
            "llvm.amdgcn.frexp.exp.i32.f32", Int32, has_side_effect=False
        ](x[i])
    return exponents


@always_inline
def times_power[
    width: SIMDLength
](x: SIMD[DType.float32, width], exponents: SIMD[DType.int32, width]) -> SIMD[DType.float32, width]:
    """Returns x times 2 to the power of `exponents`, rounded once."""
    var result = SIMD[DType.float32, width]()
    comptime for i in range(Int(width)):
        result[i] = llvm_intrinsic["llvm.ldexp.f32.i32", Float32, has_side_effect=False](
            x[i], exponents[i]
        )
    return result


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
def anew(x: Int32) -> Int32:
    """Returns x, in a way that the compiler cannot compute what follows from it earlier."""
    return inlined_assembly["", Int32, constraints="=v,0", has_side_effect=True](x)


@always_inline
def opaque(x: UInt32) -> UInt32:
    """Returns x, in a way that the compiler does not see what it is made of."""
    return inlined_assembly["", UInt32, constraints="=v,0", has_side_effect=False](x)


@always_inline
def unpacked_here(x: UInt32) -> UInt32:
    """Returns x, in a way that what is made of it is made anew each time."""
    return inlined_assembly["", UInt32, constraints="=v,0", has_side_effect=True](x)


@always_inline
def zero_of_a_branch() -> UInt32:
    """Returns zero, in a way that the compiler can neither foresee nor move.

    What depends on it is computed only where the branch around it is taken;
    otherwise the compiler computes rare branches always and selects the result.
    """
    return inlined_assembly["v_mov_b32 $0, 0", UInt32, constraints="=v", has_side_effect=True]()


@always_inline
def zeros_of_a_branch() -> SIMD[DType.uint32, 2]:
    """Returns two zeros of a branch, by one instruction."""
    return bitcast[DType.uint32, 2](
        inlined_assembly["v_mov_b64 $0, 0", UInt64, constraints="=v", has_side_effect=True]()
    )


@always_inline
def copied_here(words: SIMD[DType.uint32, 2]) -> SIMD[DType.uint32, 2]:
    """Returns a copy of two words, by one instruction that stays where it is."""
    return bitcast[DType.uint32, 2](
        inlined_assembly["v_mov_b64 $0, $1", UInt64, constraints="=v,v", has_side_effect=True](
            bitcast[DType.uint64, 1](words)
        )
    )


@always_inline
def of_a_branch(x: Float32) -> Float32:
    """Returns x, in a way that what depends on it is computed in its branch alone."""
    comptime if not is_gpu():
        return x
    return bitcast[DType.float32](bitcast[DType.uint32](x) | zero_of_a_branch())
