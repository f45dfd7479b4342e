"""One element, one scale: E2M1 and E8M0 encoding and decoding, bit for bit.

Everything works on the bits of the input, never on rounded floats, so the
result does not depend on the machine's subnormal mode. An input value is
seen as its magnitude bits, which order like the magnitudes themselves:

    source     bits     exponent field      mantissa bits
    bfloat16   uint16   7 .. 14             7
    float32    uint32   23 .. 30            23
    float16    widened to float32, which is exact

Scale rules add a carry to the magnitude bits of the block maximum and read
the exponent field; elements are divided by the scale by subtracting exponent
fields and rounded by counting the decision thresholds they pass.
"""

from std.math import iota
from std.memory import bitcast

from .formats import BLOCK, BLOCK_BYTES, FORMAT

comptime F32_MANTISSA_BITS = 23
"""Mantissa bits of float32."""
comptime F32_EXPONENT_BIAS = 127
"""Exponent bias of float32, and of bfloat16."""
comptime MAGNITUDE_CODE = 7
"""Mask of a code's magnitude; also the code of the largest magnitude."""
comptime SIGN_CODE = 8
"""The sign bit of a code."""
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


@fieldwise_init
struct Rounding(Equatable, TrivialRegisterPassable, Writable):
    """The rule that picks a block's scale from its largest magnitude."""

    var code: Int
    """Index into `NAMES`."""

    comptime FLOOR = Self(0)
    """The exponent of the maximum: OCP text, torchao FLOOR."""
    comptime EVEN = Self(1)
    """The exponent after rounding the mantissa at 1.75: AITER Triton, MAX, Quark."""
    comptime CEIL = Self(2)
    """The next power of two: torchao CEIL."""
    comptime RCEIL = Self(3)
    """The smallest scale that does not saturate: torchao RCEIL, AITER HIP."""
    comptime COUNT = 4
    """Number of rules."""
    comptime NAMES = ["floor", "even", "ceil", "rceil"]
    """The names used in every API, by code."""

    def carry[mantissa_bits: Int](self) -> Int:
        """Returns what is added to the magnitude bits of the block maximum.

        The sum's exponent field is larger by one than the maximum's exactly
        when the mantissa reaches 1.75 (even), is not zero (ceil), or exceeds
        1.5, the mantissa of 6 (rceil).
        """
        if self == Self.EVEN:
            return 1 << (mantissa_bits - 2)
        if self == Self.CEIL:
            return (1 << mantissa_bits) - 1
        if self == Self.RCEIL:
            return (1 << (mantissa_bits - 1)) - 1
        return 0


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
def scale_from_amax[
    mantissa_bits: Int, bits: DType
](amax: Scalar[bits], carry: Scalar[bits]) -> Scalar[bits]:
    """Returns the scale byte for a finite block maximum, given the rule's carry.

    Exponents below that of the smallest scale are clamped to scale byte 0.
    """
    comptime emax = Scalar[bits](FORMAT.emax)
    return max((amax + carry) >> Scalar[bits](mantissa_bits), emax) - emax


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


@always_inline
def encode_magnitudes[
    dtype: DType, width: SIMDLength
](magnitudes: SIMD[FloatBits[dtype].bits, width], scale: Scalar[FloatBits[dtype].bits]) -> SIMD[
    FloatBits[dtype].bits, width
]:
    """Returns the codes, without sign, of finite magnitudes divided by 2**(scale - 127).

    Rounds to nearest, ties to the even code, and saturates at 6.
    """
    comptime source = FloatBits[dtype]
    comptime Bits = Scalar[source.bits]
    # Below this scale the magnitudes that matter may be subnormal.
    comptime SMALLEST_REGULAR_SCALE = 4

    if scale < SMALLEST_REGULAR_SCALE:
        return _encode_tiny[dtype](magnitudes, scale)

    # Subtract exponent fields, stopping at zero: too small for any code but 0.
    comptime one = Bits(F32_EXPONENT_BIAS << source.MANTISSA_BITS)
    var shift = type_of(magnitudes)(scale << Bits(source.MANTISSA_BITS))
    var divided = max(magnitudes + type_of(magnitudes)(one), shift) - shift

    var codes = type_of(magnitudes)(0)
    comptime for i in range(MAGNITUDE_CODE):
        comptime quarters = Int(MIDPOINTS_TIMES_4[i])
        comptime midpoint = Bits(
            _regular_f32_bits(quarters) >> (F32_MANTISSA_BITS - source.MANTISSA_BITS)
        )
        codes += _passes[i](divided, type_of(divided)(midpoint))
    return codes


def _encode_tiny[
    dtype: DType, width: SIMDLength
](magnitudes: SIMD[FloatBits[dtype].bits, width], scale: Scalar[FloatBits[dtype].bits]) -> SIMD[
    FloatBits[dtype].bits, width
]:
    """Encodes like `encode_magnitudes` where the thresholds may be subnormal."""
    comptime source = FloatBits[dtype]
    comptime shift = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
    var wide = magnitudes.cast[DType.uint32]() << shift
    var codes = type_of(wide)(0)
    var midpoints = f32_bits_of_quarters(MIDPOINTS_TIMES_4, scale.cast[DType.uint32]())
    comptime for i in range(MAGNITUDE_CODE):
        codes += _passes[i](wide, type_of(wide)(midpoints[i]))
    return codes.cast[source.bits]()


@always_inline
def _passes[i: Int](values: SIMD, midpoint: type_of(values)) -> type_of(values):
    """Returns 1 where a value is rounded past midpoint `i`, else 0."""
    comptime if i % 2 == 0:
        return values.gt(midpoint).cast[values.dtype]()
    else:
        return values.ge(midpoint).cast[values.dtype]()


def _regular_f32_bits(quarters: Int) -> Int:
    """Returns the float32 bits of `quarters / 4`."""
    return Int(bitcast[DType.uint32](Float32(quarters) / 4))


@always_inline
def decode_scale[width: SIMDLength](scales: SIMD[DType.uint8, width]) -> SIMD[DType.float64, width]:
    """Returns the values of scale bytes; float64 holds every one of them."""
    comptime F64_MANTISSA_BITS = 52
    comptime F64_EXPONENT_BIAS = 1023
    comptime Bits = SIMD[DType.uint64, width]
    comptime NAN = Bits(0x7FF8 << 48)
    var fields = scales.cast[DType.uint64]() + UInt64(F64_EXPONENT_BIAS - FORMAT.scale_bias)
    var is_nan = scales.eq(UInt8(FORMAT.scale_nan))
    return bitcast[DType.float64, width](is_nan.select(NAN, fields << F64_MANTISSA_BITS))


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

    if Int(scale) == FORMAT.scale_nan:
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
def decode_block(bytes: SIMD[DType.uint8, BLOCK_BYTES], scale: UInt8) -> SIMD[DType.float32, BLOCK]:
    """Returns the elements of a packed block under its scale, as `block_values` defines them."""
    var codes = rebind[SIMD[DType.uint8, BLOCK]]((bytes & 0xF).interleave(bytes >> 4))
    comptime SMALLEST_REGULAR_SCALE = 2
    if scale < SMALLEST_REGULAR_SCALE or Int(scale) == FORMAT.scale_nan:
        var table = block_values(scale)
        var values = SIMD[DType.float32, BLOCK]()
        comptime for i in range(BLOCK):
            values[i] = table[Int(codes[i])]
        return values

    # Magnitudes are doubled values, so the factor is half the scale: a regular float32.
    comptime MAGNITUDES = abs(DOUBLED_VALUES).cast[DType.uint8]()
    var doubled = MAGNITUDES._dynamic_shuffle(codes).cast[DType.float32]()
    var factor = bitcast[DType.float32]((scale.cast[DType.uint32]() - 1) << F32_MANTISSA_BITS)
    var signs = (codes >> 3).cast[DType.uint32]() << 31
    return bitcast[DType.float32, BLOCK](bitcast[DType.uint32, BLOCK](doubled * factor) | signs)


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
