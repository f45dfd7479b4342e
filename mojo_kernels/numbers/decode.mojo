"""From codes to floats: any element, exact.

A code's exponent and mantissa bits on top of a float's mantissa are the number, once the gap
between the two exponent biases is added; whole multiples of the unit are converted as integers.
Both stay regular floats, whatever the machine does to subnormals.
"""

from std.memory import bitcast

from . import e2m1
from .elements import Element
from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from .scales import E8M0_NAN, decode_scale


@always_inline
def decode[
    element: Element, width: SIMDLength, *, doublings: Int = 0
](codes: SIMD[DType.uint32, width]) -> SIMD[DType.float32, width]:
    """Returns the numbers that codes stand for, times 2**doublings.

    Bits above those of a code are not looked at. Infinities and NaNs come out as such.
    """
    comptime Bits = SIMD[DType.uint32, width]
    comptime UNIT = bitcast[DType.float32](
        UInt32((F32_EXPONENT_BIAS + element.unit_exponent() + doublings) << F32_MANTISSA_BITS)
    )
    comptime if element.is_integer():
        comptime UNUSED = Bits(32 - element.bits)
        var signed = bitcast[DType.int32, width](codes << UNUSED) >> bitcast[DType.int32, width](
            UNUSED
        )
        return signed.cast[DType.float32]() * UNIT
    else:
        comptime BIAS_GAP = Bits(
            (F32_EXPONENT_BIAS - element.bias + doublings) << F32_MANTISSA_BITS
        )
        comptime SMALLEST_REGULAR = Bits(1 << element.mantissa_bits)
        comptime SHIFT = Bits(F32_MANTISSA_BITS - element.mantissa_bits)
        var magnitudes = codes & Bits(element.magnitude_mask())
        var in_units = bitcast[DType.uint32, width](magnitudes.cast[DType.float32]() * UNIT)
        var regular = (magnitudes << SHIFT) + BIAS_GAP
        var bits = magnitudes.lt(SMALLEST_REGULAR).select(in_units, regular)
        comptime if element.infinity_code != 0:
            comptime INFINITY = Bits(255 << F32_MANTISSA_BITS)
            bits = magnitudes.eq(Bits(element.infinity_code)).select(INFINITY, bits)
        comptime if element.nan_code != 0:
            comptime NAN = Bits(0x7FC00000)
            bits = magnitudes.ge(Bits(element.nan_code)).select(NAN, bits)
        var signs = (codes & Bits(element.sign_code())) << Bits(32 - element.bits)
        return bitcast[DType.float32, width](bits | signs)


@always_inline
def decode_scaled[
    element: Element, width: SIMDLength
](codes: SIMD[DType.uint8, width], scale: UInt8) -> SIMD[DType.float32, width]:
    """Returns the numbers of codes, a byte each, times 2**(scale - 127), exact but for overflow."""
    comptime if element == Element.E2M1:
        return e2m1.decode_codes(codes, scale)
    else:
        # From this scale on, no number is a subnormal float32.
        comptime SMALLEST_REGULAR_SCALE = 1 - element.unit_exponent()
        var numbers = decode[element](codes.cast[DType.uint32]())
        if Int(scale) < SMALLEST_REGULAR_SCALE:
            return _scale_down(numbers, scale)
        if Int(scale) == E8M0_NAN:
            return SIMD[DType.float32, width](bitcast[DType.float32](UInt32(0x7FC00000)))
        return numbers * bitcast[DType.float32](scale.cast[DType.uint32]() << F32_MANTISSA_BITS)


def _scale_down[
    width: SIMDLength
](numbers: SIMD[DType.float32, width], scale: UInt8) -> SIMD[DType.float32, width]:
    """Multiplies by a small scale without a subnormal in sight of the arithmetic."""
    comptime Bits = SIMD[DType.uint32, width]
    comptime SIGN = UInt32(1 << 31)
    comptime SMALLEST_REGULAR = Bits(1 << F32_MANTISSA_BITS)
    # The bits of a subnormal float32 count units of 2**-149.
    comptime UNITS_OF_ONE = SIMD[DType.float64, width](
        bitcast[DType.float64](UInt64(1023 + 149) << 52)
    )
    var bits = bitcast[DType.uint32, width](numbers)
    var magnitudes = bitcast[DType.float32, width](bits & ~SIGN).cast[DType.float64]()
    var is_finite = (bits & ~SIGN).lt(Bits(255 << F32_MANTISSA_BITS))
    var finite = is_finite.select(magnitudes, SIMD[DType.float64, width](0))
    var units = finite * decode_scale(SIMD[DType.uint8, 1](scale))[0] * UNITS_OF_ONE
    # Regular numbers have the same bits as a float32 of the same value: build those from units.
    var whole = units.cast[DType.uint64]()
    var is_small = whole.lt(SIMD[DType.uint64, width](1 << F32_MANTISSA_BITS))
    comptime TO_FIELD = UInt32(149 << F32_MANTISSA_BITS)
    var regular = bitcast[DType.uint32, width](whole.cast[DType.float32]()) - TO_FIELD
    var scaled = is_small.select(whole.cast[DType.uint32](), regular)
    return bitcast[DType.float32, width](is_finite.select(scaled, bits & ~SIGN) | (bits & SIGN))
