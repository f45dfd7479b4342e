"""From floats to codes: any element, to nearest, ties to the even code, saturating.

A magnitude is divided by the scale by subtracting exponent fields. What is left is rounded in
one of two ways, where E stands for the smallest regular number of the element:

    below E    the unit is fixed: adding 2**23 units to the float leaves their number in its bits
    from E on  the mantissa is cut: add half of the last kept bit, and drop the rest

Codes count up through both, so that a carry into the next binade is right by itself.
"""

from std.memory import bitcast

from . import e2m1
from .elements import Element
from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FloatBits


@always_inline
def encode[
    element: Element, dtype: DType, width: SIMDLength
](
    bits: SIMD[FloatBits[dtype].bits, width],
    scale: Scalar[FloatBits[dtype].bits],
) -> SIMD[
    DType.uint8, width
]:
    """Returns the codes, a byte each, of finite floats divided by 2**(scale - 127)."""
    comptime source = FloatBits[dtype]
    var magnitudes = bits & type_of(bits)(source.MAGNITUDE)
    var negative = bits.gt(type_of(bits)(source.MAGNITUDE))
    comptime if element == Element.E2M1:
        return with_sign[element](e2m1.encode_magnitudes[dtype](magnitudes, scale), negative)
    else:
        comptime widening = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
        var wide = magnitudes.cast[DType.uint32]() << widening
        var codes = round_divided[element](divide[element](wide, scale.cast[DType.uint32]()))
        return with_sign[element](codes, negative)


@always_inline
def divide[
    element: Element, width: SIMDLength
](magnitudes: SIMD[DType.uint32, width], scale: UInt32) -> SIMD[DType.uint32, width]:
    """Returns the float32 bits of magnitudes over 2**(scale - 127).

    Those that are too small for any code of `element` but 0 may become others that are.
    """
    # Below this scale the magnitudes that matter may be subnormal.
    comptime SMALLEST_REGULAR_SCALE = UInt32(3 - element.unit_exponent())
    if scale < SMALLEST_REGULAR_SCALE:
        return _divide_tiny(magnitudes, scale)
    comptime ONE = SIMD[DType.uint32, width](F32_EXPONENT_BIAS << F32_MANTISSA_BITS)
    var shift = SIMD[DType.uint32, width](scale << UInt32(F32_MANTISSA_BITS))
    return max(magnitudes + ONE, shift) - shift


def _divide_tiny[
    width: SIMDLength
](magnitudes: SIMD[DType.uint32, width], scale: UInt32) -> SIMD[DType.uint32, width]:
    """Divides magnitudes that may be subnormal, and are not much larger than the scale."""
    comptime FRACTION = UInt32((1 << F32_MANTISSA_BITS) - 1)
    # In units of 2**-149, the smallest float32: 24 bits, shifted by less than forty.
    var fields = magnitudes >> UInt32(F32_MANTISSA_BITS)
    var implicit = fields.ne(0).select(
        SIMD[DType.uint32, width](FRACTION + 1), SIMD[DType.uint32, width](0)
    )
    var significands = ((magnitudes & FRACTION) | implicit).cast[DType.uint64]()
    var shifts = (max(fields, SIMD[DType.uint32, width](1)) - 1).cast[DType.uint64]()
    var units = (significands << min(shifts, SIMD[DType.uint64, width](39))).cast[DType.float32]()
    comptime UNITS_OF_ONE = 149
    comptime FIELD_AT_0 = UInt32(2 * F32_EXPONENT_BIAS - UNITS_OF_ONE)
    var factor = bitcast[DType.float32]((FIELD_AT_0 - scale) << UInt32(F32_MANTISSA_BITS))
    return bitcast[DType.uint32, width](units * factor)


@always_inline
def round_divided[
    element: Element, width: SIMDLength
](divided: SIMD[DType.uint32, width]) -> SIMD[DType.uint32, width]:
    """Returns the codes, without sign, of float32 bits without sign."""
    comptime Bits = SIMD[DType.uint32, width]
    comptime UNIT_FIELD = F32_EXPONENT_BIAS + element.unit_exponent()
    comptime ANCHOR = Bits((UNIT_FIELD + F32_MANTISSA_BITS) << F32_MANTISSA_BITS)
    comptime LARGEST = Bits(element.largest_code)
    var in_units = bitcast[DType.uint32, width](
        bitcast[DType.float32, width](divided) + bitcast[DType.float32, width](ANCHOR)
    )
    comptime if element.is_integer():
        return min(in_units - ANCHOR, LARGEST)
    else:
        comptime DROPPED = F32_MANTISSA_BITS - element.mantissa_bits
        comptime BIAS_GAP = Bits((F32_EXPONENT_BIAS - element.bias) << element.mantissa_bits)
        comptime SMALLEST_REGULAR = Bits(
            (F32_EXPONENT_BIAS + 1 - element.bias) << F32_MANTISSA_BITS
        )
        var to_even = (divided >> Bits(DROPPED)) & 1
        var cut = (divided + to_even + Bits((1 << (DROPPED - 1)) - 1)) >> Bits(DROPPED)
        var codes = divided.lt(SMALLEST_REGULAR).select(in_units - ANCHOR, cut - BIAS_GAP)
        return min(codes, LARGEST)


@always_inline
def with_sign[
    dtype: DType, width: SIMDLength, //, element: Element
](magnitudes: SIMD[dtype, width], negative: SIMD[DType.bool, width]) -> SIMD[DType.uint8, width]:
    """Returns codes from their magnitudes: a sign bit, or two's complement."""
    var codes = magnitudes.cast[DType.uint8]()
    comptime if element.is_integer():
        return negative.select(-codes, codes)
    else:
        comptime SIGN = SIMD[DType.uint8, width](element.sign_code())
        return negative.select(codes | SIGN, codes)


@always_inline
def encode_over[
    element: Element, width: SIMDLength
](x: SIMD[DType.float32, width], scale: Float32) -> SIMD[DType.uint8, width]:
    """Returns the codes, a byte each, of finite floats divided by a float32 scale; 0 for NaN.

    The quotient is rounded to float32, and then to the element.
    """
    comptime Bits = SIMD[DType.uint32, width]
    comptime MAGNITUDE = Bits(FloatBits[DType.float32].MAGNITUDE)
    var bits = bitcast[DType.uint32, width](x)
    var divided = bitcast[DType.uint32, width](x / scale) & MAGNITUDE
    var codes = with_sign[element](round_divided[element](divided), bits.gt(MAGNITUDE))
    # On the bits, because a comparison of a float with itself may be taken to hold.
    var is_number = bitcast[DType.uint32](abs(scale)) <= UInt32(FloatBits[DType.float32].NOT_FINITE)
    return codes if is_number else SIMD[DType.uint8, width](0)
