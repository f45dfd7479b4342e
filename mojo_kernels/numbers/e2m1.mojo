"""E2M1 by its tables: sixteen codes are few enough to count and to look up.

An element is encoded and decoded by a byte shuffle. `encode` and `decode` come here for E2M1; the
arithmetic they have for wider elements gives the same numbers, slower.
"""

from std.math import iota
from std.memory import bitcast

from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FloatBits
from .scales import E8M0_NAN

comptime MAGNITUDE_CODE = 7
"""Mask of a code's magnitude; also the code of the largest magnitude."""
comptime NUM_CODES = 16
"""Number of E2M1 codes."""

comptime DOUBLED_VALUES = SIMD[DType.int8, NUM_CODES](
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
)
"""Twice the value of each code: every E2M1 value is a multiple of one half."""
comptime MAX_DOUBLED = 12
"""The largest entry of `DOUBLED_VALUES`."""

# A tie between two neighbouring codes goes to the even one: the odd code is
# reached above the midpoint, the even code at it.
comptime MIDPOINTS_TIMES_4 = SIMD[DType.uint32, 8](1, 3, 5, 7, 10, 14, 20, 0)
"""Four times the midpoint between code i and code i + 1, for i in 0..6."""


@always_inline
def f32_bits_of_quarters(quarters: SIMD[DType.uint32, ...], scale: UInt32) -> type_of(quarters):
    """Returns the float32 bits of `quarters / 4 * 2**(scale - 127)`, exactly.

    `quarters` is at most 24 and `scale` at most 3: results may be subnormal.
    """
    # In units of 2**-149, the smallest float32.
    comptime SHIFT = UInt32(149 - F32_EXPONENT_BIAS - 2)
    var units = quarters << (scale + SHIFT)
    var bits = units
    # A value of 2**(23 + i) units or more has exponent field 1 + i.
    comptime for i in range(1, 5):
        comptime edge = UInt32(1) << UInt32(F32_MANTISSA_BITS + i)
        var field = (units >> UInt32(i)) + UInt32(i << F32_MANTISSA_BITS)
        bits = units.ge(type_of(units)(edge)).select(field, bits)
    return bits


# The codes of magnitudes from one half to eight, a quarter of a binade each. A magnitude at the
# lower end of a quarter counts to that below, unless it is in the upper half of its binade: ties
# are even.
comptime CODES_OF_QUARTERS = SIMD[DType.uint8, 16](1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7)


@always_inline
def encode_magnitudes[
    dtype: DType, width: SIMDLength
](
    magnitudes: SIMD[FloatBits[dtype].bits, width],
    scale: Scalar[FloatBits[dtype].bits],
) -> SIMD[
    DType.uint8, width
]:
    """Returns the codes, without sign, of finite magnitudes divided by 2**(scale - 127).

    Rounds to nearest, ties to the even code, and saturates at 6.
    """
    comptime source = FloatBits[dtype]
    comptime Bits = type_of(magnitudes)
    # Below this scale the magnitudes that matter may be subnormal.
    comptime SMALLEST_REGULAR_SCALE = 4

    if scale < SMALLEST_REGULAR_SCALE:
        return _encode_tiny[dtype](magnitudes, scale)

    comptime BINADE = source.MANTISSA_BITS
    comptime QUARTER = source.MANTISSA_BITS - 2
    comptime LAST = len(CODES_OF_QUARTERS) - 1
    var one_half = Bits((scale - 1) << Scalar[source.bits](BINADE))
    var one_quarter = one_half - Bits(1 << BINADE)
    var is_upper = (magnitudes >> Bits(BINADE - 1)) & 1
    var above = max(magnitudes, one_half + 1) - (one_half + 1) + is_upper
    var quarters = min(above >> Bits(QUARTER), Bits(LAST)).cast[DType.uint8]()
    var codes = CODES_OF_QUARTERS._dynamic_shuffle(quarters & UInt8(LAST))
    return magnitudes.gt(one_quarter).select(codes, SIMD[DType.uint8, width](0))


def _encode_tiny[
    dtype: DType, width: SIMDLength
](
    magnitudes: SIMD[FloatBits[dtype].bits, width],
    scale: Scalar[FloatBits[dtype].bits],
) -> SIMD[
    DType.uint8, width
]:
    """Encodes like `encode_magnitudes` where the thresholds may be subnormal."""
    comptime source = FloatBits[dtype]
    comptime shift = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
    var wide = magnitudes.cast[DType.uint32]() << shift
    var codes = type_of(wide)(0)
    var midpoints = f32_bits_of_quarters(MIDPOINTS_TIMES_4, scale.cast[DType.uint32]())
    comptime for i in range(MAGNITUDE_CODE):
        codes += _passes[i](wide, type_of(wide)(midpoints[i]))
    return codes.cast[DType.uint8]()


@always_inline
def _passes[i: Int](values: SIMD, midpoint: type_of(values)) -> type_of(values):
    """Returns 1 where a value is rounded past midpoint `i`, else 0."""
    comptime if i % 2 == 0:
        return values.gt(midpoint).cast[values.dtype]()
    else:
        return values.ge(midpoint).cast[values.dtype]()


@always_inline
def block_values(scale: UInt8) -> SIMD[DType.float32, NUM_CODES]:
    """Returns the value of every code under a scale, in float32.

    All are exact, except that 4 and 6 at the largest scales become infinite.
    """
    comptime Lanes = SIMD[DType.uint32, NUM_CODES]
    comptime INFINITY = Lanes(255 << F32_MANTISSA_BITS)
    comptime NAN = Lanes(0x7FC00000)
    comptime doubled = abs(DOUBLED_VALUES).cast[DType.uint32]()
    comptime at_scale_1 = bitcast[DType.uint32, NUM_CODES](doubled.cast[DType.float32]() / 2)
    # Code 8 is minus zero, which the integer table cannot say.
    comptime SIGNS = (iota[DType.uint32, NUM_CODES]() >> 3) << 31
    comptime ONE = Lanes(F32_EXPONENT_BIAS << F32_MANTISSA_BITS)

    if Int(scale) == E8M0_NAN:
        return bitcast[DType.float32, NUM_CODES](NAN)

    var magnitude: Lanes
    if scale < 2:
        magnitude = f32_bits_of_quarters(doubled * 2, scale.cast[DType.uint32]())
    else:
        var exponent = Lanes(scale.cast[DType.uint32]() << F32_MANTISSA_BITS)
        magnitude = at_scale_1 - ONE + exponent
        magnitude = doubled.eq(0).select(doubled, min(magnitude, INFINITY))
    return bitcast[DType.float32, NUM_CODES](magnitude | SIGNS)


@always_inline
def decode_codes[
    width: SIMDLength
](codes: SIMD[DType.uint8, width], scale: UInt8) -> SIMD[DType.float32, width]:
    """Returns the values of codes, a byte each, under a scale, as `block_values` defines them."""
    comptime SMALLEST_REGULAR_SCALE = 2
    if scale < SMALLEST_REGULAR_SCALE or Int(scale) == E8M0_NAN:
        var table = block_values(scale)
        var values = SIMD[DType.float32, width]()
        comptime for i in range(Int(width)):
            values[i] = table[Int(codes[i])]
        return values

    # Magnitudes are doubled values, so the factor is half the scale: a regular float32.
    comptime MAGNITUDES = abs(DOUBLED_VALUES).cast[DType.uint8]()
    var doubled = MAGNITUDES._dynamic_shuffle(codes).cast[DType.float32]()
    var factor = bitcast[DType.float32]((scale.cast[DType.uint32]() - 1) << F32_MANTISSA_BITS)
    var signs = (codes >> 3).cast[DType.uint32]() << 31
    return bitcast[DType.float32, width](bitcast[DType.uint32, width](doubled * factor) | signs)
