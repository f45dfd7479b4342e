"""The codec against float64 arithmetic, which holds every MXFP4 value exactly.

The domains are whole: 16 codes, 256 scales, every bfloat16 magnitude under
every scale. Nothing here looks at the bits of a float except to enumerate.
"""

from std.math import isinf, isnan, ldexp
from std.memory import bitcast
from std.testing import TestSuite, assert_equal, assert_true

from mojo_kernels.codec import (
    DOUBLED_VALUES,
    NUM_CODES,
    Rounding,
    block_values,
    decode_scale,
    encode_magnitudes,
    round_to,
    scale_from_amax,
)
from mojo_kernels.formats import FORMAT

comptime BF16_MANTISSA_BITS = 7
comptime BF16_INFINITY = 0x7F80
comptime WIDTH = 64


def value(code: Int) -> Float64:
    """Returns what the OCP text says a code means."""
    var magnitudes: List[Float64] = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    return -magnitudes[code - 8] if code >= 8 else magnitudes[code]


def power_of_two(exponent: Int) -> Float64:
    """Returns 2 to the power `exponent` by repeated doubling or halving."""
    var power = Float64(1)
    for _ in range(abs(exponent)):
        power = power * 2 if exponent > 0 else power / 2
    return power


def bf16_value(bits: Int) -> Float64:
    """Returns the value of bfloat16 bits."""
    return bitcast[DType.bfloat16](UInt16(bits)).cast[DType.float64]()


def test_the_table_of_codes_is_the_ocp_table() raises:
    for code in range(NUM_CODES):
        assert_equal(Float64(Int(DOUBLED_VALUES[code])), 2 * value(code))


def test_every_scale_is_a_power_of_two_but_the_last_is_nan() raises:
    for scale in range(255):
        assert_equal(decode_scale(UInt8(scale)), power_of_two(scale - FORMAT.scale_bias))
    assert_true(isnan(decode_scale(UInt8(FORMAT.scale_nan))))


def test_every_code_under_every_scale_is_exact_or_overflows() raises:
    for scale in range(255):
        var values = block_values(UInt8(scale))
        for code in range(NUM_CODES):
            var exact = value(code) * power_of_two(scale - FORMAT.scale_bias)
            if abs(exact) > Float64(Float32.MAX_FINITE):
                assert_true(isinf(values[code]))
                assert_equal(values[code] > 0, exact > 0)
            else:
                assert_equal(values[code].cast[DType.float64](), exact)
        assert_equal(bitcast[DType.uint32](values[8]), 1 << 31, "code 8 is minus zero")
    for code in range(NUM_CODES):
        assert_true(isnan(block_values(UInt8(FORMAT.scale_nan))[code]))


def test_every_rule_brings_every_bfloat16_into_its_octave() raises:
    var lows: List[Float64] = [4, 3.5, 2, 3]
    for rule in range(Rounding.COUNT):
        var low_belongs = rule == Rounding.FLOOR.code or rule == Rounding.EVEN.code
        var carry = UInt16(Rounding(rule).carry[BF16_MANTISSA_BITS]())
        for bits in range(1, BF16_INFINITY):
            var amax = bf16_value(bits)
            var scale = Int(scale_from_amax[BF16_MANTISSA_BITS](UInt16(bits), carry))
            var scaled = amax / power_of_two(scale - FORMAT.scale_bias)
            var low = lows[rule]
            var at_most = scaled < 2 * low if low_belongs else scaled <= 2 * low
            var at_least = scaled >= low if low_belongs else scaled > low
            assert_true(at_most, "an element above the octave")
            assert_true(at_least or scale == 0, "an element below the octave")


def test_every_bfloat16_under_every_scale_becomes_the_nearest_code_ties_to_even() raises:
    var midpoints: List[Float64] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
    for scale in range(255):
        var power = power_of_two(scale - FORMAT.scale_bias)
        for start in range(0, BF16_INFINITY, WIDTH):
            var bits = SIMD[DType.uint16, WIDTH](start)
            comptime for i in range(WIDTH):
                bits[i] += UInt16(i)
            var codes = encode_magnitudes[DType.bfloat16, WIDTH](bits, UInt16(scale))
            var scaled = bitcast[DType.bfloat16, WIDTH](bits).cast[DType.float64]() / power
            var expected = SIMD[DType.uint16, WIDTH](0)
            for i in range(len(midpoints)):
                var passes = scaled.gt(midpoints[i])
                if i % 2 == 1:
                    passes = scaled.ge(midpoints[i])
                expected += passes.cast[DType.uint16]()
            assert_equal(codes, expected)


def test_rounding_to_bfloat16_picks_the_nearest_ties_to_even() raises:
    """Every upper half of a float32 with lower halves around the tie, subnormals included."""
    var lower_halves: List[UInt32] = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    for upper in range(BF16_INFINITY):
        for lower in lower_halves:
            var x = bitcast[DType.float32]((UInt32(upper) << 16) | lower)
            var got = Int(bitcast[DType.uint16](round_to[DType.bfloat16](x)))
            var goes_up = lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1)
            assert_equal(got, upper + Int(goes_up))
            assert_equal(Int(bitcast[DType.uint16](round_to[DType.bfloat16](-x))), got | 0x8000)


def main() raises:
    TestSuite.discover_tests[__functions_in_module()]().run()
