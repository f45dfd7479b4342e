"""Floats as the codecs see them: magnitude bits, which order like the magnitudes themselves.

    source     bits     exponent field      mantissa bits
    bfloat16   uint16   7 .. 14             7
    float32    uint32   23 .. 30            23
    float16    widened to float32, which is exact

Everything works on the bits of the input, never on rounded floats, so no result depends on the
machine's subnormal mode.
"""

from std.memory import bitcast

comptime F32_MANTISSA_BITS = 23
"""Mantissa bits of float32."""
comptime F32_EXPONENT_BIAS = 127
"""Exponent bias of float32, and of bfloat16."""
comptime FLOAT_TYPES = [DType.bfloat16, DType.float16, DType.float32]
"""The types of floats that operations take and give; the position is the code of bindings."""


def float_code(dtype: DType) -> Int:
    """Returns the position of a type in `FLOAT_TYPES`, -1 if it is not there."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime known = FLOAT_TYPES[i]
        if dtype == known:
            return i
    return -1


def float_bytes(code: Int) -> Int:
    """Returns the bytes of a float, by the position of its type."""
    comptime FLOAT32 = float_code(DType.float32)
    return 4 if code == FLOAT32 else 2


struct FloatBits[dtype: DType]:
    """How the encoder sees a source type: unsigned bits that order like magnitudes."""

    comptime bits = DType.uint16 if Self.dtype == DType.bfloat16 else DType.uint32
    """The integer type of the bits."""
    comptime MANTISSA_BITS = 7 if Self.dtype == DType.bfloat16 else F32_MANTISSA_BITS
    """Mantissa bits of the value behind `bits`."""
    comptime SIGN_SHIFT = 15 if Self.dtype == DType.bfloat16 else 31
    """Position of the sign bit."""
    comptime MAGNITUDE = (1 << Self.SIGN_SHIFT) - 1
    """Mask of the magnitude bits."""
    comptime NOT_FINITE = 255 << Self.MANTISSA_BITS
    """The smallest magnitude bits that are infinite or NaN."""

    @staticmethod
    @always_inline
    def of[width: SIMDLength](x: SIMD[Self.dtype, width]) -> SIMD[Self.bits, width]:
        """Returns the bits of `x`; float16 is widened first, which is exact."""
        comptime if Self.dtype == DType.float16:
            return rebind[SIMD[Self.bits, width]](
                bitcast[DType.uint32, width](x.cast[DType.float32]())
            )
        else:
            return bitcast[Self.bits, width](x)


@always_inline
def round_product_to[
    dtype: DType, width: SIMDLength, *, has_fma: Bool = False
](a: SIMD[DType.float32, width], b: Float32) -> SIMD[dtype, width]:
    """Rounds elements times a scale, `a * b`, to an output type, once; float64 holds the product.

    Before a type below float32 stands the float32 that is odd where it is not exact: it is on no
    tie that the product is not on. Where `has_fma`, what float32 leaves of most products is had
    from a fused multiply-add, in half the time.
    """
    comptime if dtype == DType.float32:
        return rebind[SIMD[dtype, width]](a * b)
    else:
        comptime if has_fma:
            # Of an element of at least 2**-16 and such a scale, all that is left is regular.
            comptime LEAST, MOST = F32_EXPONENT_BIAS - 80, F32_EXPONENT_BIAS + 80
            var field = Int(bitcast[DType.uint32](b) >> UInt32(F32_MANTISSA_BITS)) & 255
            if LEAST <= field and field <= MOST:
                return round_to[dtype](_odd_product(a, b))
            return _round_rare_product_to[dtype](a, b)
        else:
            return _round_in_float64[dtype](a, b)


@no_inline
def _round_rare_product_to[
    dtype: DType, width: SIMDLength
](a: SIMD[DType.float32, width], b: Float32) -> SIMD[dtype, width]:
    """Inlined, it would be computed each time and then chosen from."""
    return _round_in_float64[dtype](a, b)


@always_inline
def _round_in_float64[
    dtype: DType, width: SIMDLength
](a: SIMD[DType.float32, width], b: Float32) -> SIMD[dtype, width]:
    var exact = a.cast[DType.float64]() * b.cast[DType.float64]()
    var nearest = exact.cast[DType.float32]()
    var bits = bitcast[DType.uint32, width](nearest)
    var magnitude = _magnitude(exact)
    var found = _magnitude(nearest.cast[DType.float64]())
    var is_even = (bits & 1).eq(0)
    # Of NaN neither is true.
    var above = (is_even & magnitude.gt(found)).select(bits + 1, bits)
    var odd = (is_even & magnitude.lt(found)).select(bits - 1, above)
    return round_to[dtype](bitcast[DType.float32, width](odd))


@always_inline
def _odd_product[
    width: SIMDLength
](a: SIMD[DType.float32, width], b: Float32) -> SIMD[DType.float32, width]:
    """Returns `a * b`, odd where it is not exact, for products and remainders that are regular."""
    var nearest = a * b
    var rest = a.fma(type_of(a)(b), -nearest)
    var bits = bitcast[DType.uint32, width](nearest)
    var has_other_sign = (bits ^ bitcast[DType.uint32, width](rest)) >> 31
    # Of NaN, which infinity leaves, neither is true.
    var is_inexact = rest.lt(0) | rest.gt(0)
    var odd = (is_inexact & (bits & 1).eq(0)).select(bits + 1 - 2 * has_other_sign, bits)
    return bitcast[DType.float32, width](odd)


@always_inline
def _magnitude[width: SIMDLength](x: SIMD[DType.float64, width]) -> SIMD[DType.float64, width]:
    comptime MAGNITUDE = UInt64((1 << 63) - 1)
    return bitcast[DType.float64, width](bitcast[DType.uint64, width](x) & MAGNITUDE)


@always_inline
def rounded_in_float32[
    dtype: DType, width: SIMDLength, *, are_nans_short: Bool = False
](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns what `round_to` rounds to as float32, in a third of the time for bfloat16.

    With `are_nans_short` a NaN has the bits of one of that type: what products of its numbers give.
    """
    comptime if dtype == DType.bfloat16 and are_nans_short:
        var bits = bitcast[DType.uint32, width](x)
        var rounded = (bits & UInt32(0x10000)).ne(0).select(bits + 0x8000, bits + 0x7FFF)
        return bitcast[DType.float32, width](rounded & UInt32(0xFFFF0000))
    else:
        return round_to[dtype](x).cast[DType.float32]()


@always_inline
def round_to[dtype: DType, width: SIMDLength](x: SIMD[DType.float32, width]) -> SIMD[dtype, width]:
    """Rounds float32 to an output type, to nearest even, subnormals kept.

    bfloat16 is rounded on the bits: hardware converters flush subnormals.
    """
    comptime if dtype == DType.bfloat16:
        comptime DROPPED = UInt32(16)
        var bits = bitcast[DType.uint32, width](x)
        var lowest_kept = (bits >> DROPPED) & 1
        var rounded = (bits + lowest_kept + 0x7FFF) >> DROPPED
        # A NaN keeps its sign and stays quiet.
        var nan = (bits >> DROPPED) | 0x40
        var is_nan = (bits & 0x7FFFFFFF).gt(0x7F800000)
        var chosen = is_nan.select(nan, rounded).cast[DType.uint16]()
        return bitcast[dtype, width](chosen)
    else:
        return x.cast[dtype]()
