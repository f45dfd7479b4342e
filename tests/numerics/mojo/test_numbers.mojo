"""Elements, scales and rules against float64 arithmetic, which holds every number exactly.

The domains are whole: every code of every element, 256 scales, every bfloat16 magnitude under
every scale. Nothing here looks at the bits of a float except to enumerate.
"""

from std.math import iota, isinf, isnan
from std.memory import bitcast
from std.testing import assert_equal, assert_true
from std.utils.numerics import inf, nan

from mojo_kernels.numbers.decode import decode, decode_scaled
from mojo_kernels.numbers.e2m1 import DOUBLED_VALUES, NUM_CODES
from mojo_kernels.numbers.elements import Element
from mojo_kernels.numbers.encode import encode
from mojo_kernels.numbers.floats import round_to
from mojo_kernels.numbers.formats import FORMATS
from mojo_kernels.numbers.rounding import Rounding, scale_from_amax
from mojo_kernels.numbers.scales import E8M0_BIAS, E8M0_NAN, decode_scale

comptime BF16_MANTISSA_BITS = 7
comptime BF16_INFINITY = 0x7F80
comptime BF16_SIGN = 0x8000
comptime WIDTH = 64


def power_of_two(exponent: Int) -> Float64:
    """Returns 2 to the power `exponent` by repeated doubling or halving."""
    var power = Float64(1)
    for _ in range(abs(exponent)):
        power = power * 2 if exponent > 0 else power / 2
    return power


def values_of(element: Element) -> List[Float64]:
    """Returns what the OCP text says each code means."""
    var found = List[Float64]()
    var half = 1 << (element.bits - 1)
    for code in range(half):
        var exponent, mantissa = divmod(code, 1 << element.mantissa_bits)
        var fraction = Float64(mantissa) / Float64(1 << element.mantissa_bits)
        var value = fraction * power_of_two(1 - element.bias)
        if element.is_integer():
            value = Float64(code) / Float64(1 << element.mantissa_bits)
        elif exponent > 0:
            value = (1 + fraction) * power_of_two(exponent - element.bias)
        if element == Element.E4M3 and code == 0x7F or element == Element.E5M2 and code > 0x7C:
            value = nan[DType.float64]()
        elif element == Element.E5M2 and code == 0x7C:
            value = inf[DType.float64]()
        found.append(value)
    for code in range(half):
        var mirrored = found[code]
        found.append(Float64(code - half) / 64 if element.is_integer() else -mirrored)
    return found^


def bf16_value(bits: Int) -> Float64:
    """Returns the value of bfloat16 bits."""
    return bitcast[DType.bfloat16](UInt16(bits)).cast[DType.float64]()


def assert_same(got: Float32, exact: Float64) raises:
    """Compares bits of numbers that float32 holds; beyond it expects infinity, and NaN of NaN."""
    if isnan(exact):
        assert_true(isnan(got), "a number where NaN belongs")
    elif abs(exact) > Float64(Float32.MAX_FINITE):
        assert_true(isinf(got), "finite where infinity belongs")
        assert_equal(got > 0, exact > 0)
    else:
        var expected = bitcast[DType.uint32](exact.cast[DType.float32]())
        assert_equal(bitcast[DType.uint32](got), expected)


def test_every_code_decodes_to_its_value() raises:
    comptime for i in range(len(FORMATS)):
        comptime element = FORMATS[i].element
        var values = values_of(element)
        for code in range(len(values)):
            assert_same(decode[element](SIMD[DType.uint32, 1](code))[0], values[code])


def test_the_tables_of_e2m1_are_its_values() raises:
    var values = values_of(Element.E2M1)
    for code in range(NUM_CODES):
        assert_equal(Float64(Int(DOUBLED_VALUES[code])), 2 * values[code])


def test_an_elements_facts_follow_from_its_values() raises:
    comptime for i in range(len(FORMATS)):
        comptime element = FORMATS[i].element
        var values = values_of(element)
        var largest = values[element.largest_code]
        assert_true(power_of_two(element.emax) <= largest < power_of_two(element.emax + 1))
        assert_equal(values[1], power_of_two(element.unit_exponent()))
        var mantissa = Float64(element.largest_fraction[23]()) / Float64(1 << 23)
        assert_equal((1 + mantissa) * power_of_two(element.emax), largest)
        for code in range(len(values)):
            if abs(values[code]) <= Float64(Float32.MAX_FINITE):
                assert_true(abs(values[code]) < power_of_two(element.bound_exponent()))
            else:
                assert_true(element.has_non_finite())


def test_every_scale_is_a_power_of_two_but_the_last_is_nan() raises:
    for scale in range(E8M0_NAN):
        assert_equal(decode_scale(UInt8(scale)), power_of_two(scale - E8M0_BIAS))
    assert_true(isnan(decode_scale(UInt8(E8M0_NAN))))


def test_every_code_under_every_scale_is_exact_or_overflows() raises:
    comptime for i in range(len(FORMATS)):
        comptime element = FORMATS[i].element
        comptime LANES = 16
        var values = values_of(element)
        for scale in range(256):
            var power = decode_scale(UInt8(scale))[0]
            for start in range(0, len(values), LANES):
                var codes = SIMD[DType.uint8, LANES](0)
                for lane in range(LANES):
                    codes[lane] = UInt8(start + lane)
                var got = decode_scaled[element](codes, UInt8(scale))
                for lane in range(LANES):
                    assert_same(got[lane], values[start + lane] * power)


def octave_top(element: Element, rule: Int) -> Float64:
    """Returns where the octave of a rule ends, times the scale."""
    var power = power_of_two(element.emax)
    if rule == Rounding.FLOOR.code:
        return 2 * power
    if rule == Rounding.EVEN.code:
        return (2 - power_of_two(-1 - element.mantissa_bits)) * power
    if rule == Rounding.CEIL.code:
        return power
    return values_of(element)[element.largest_code]


def test_every_rule_brings_every_bfloat16_into_its_octave() raises:
    comptime for i in range(len(FORMATS)):
        comptime element = FORMATS[i].element
        for rule in range(Rounding.COUNT):
            var top = octave_top(element, rule)
            var low_belongs = rule == Rounding.FLOOR.code or rule == Rounding.EVEN.code
            var carry = UInt16(Rounding(rule).carry[BF16_MANTISSA_BITS, element]())
            for bits in range(1, BF16_INFINITY):
                var scale = Int(
                    scale_from_amax[BF16_MANTISSA_BITS, element=element](UInt16(bits), carry)
                )
                assert_true(0 <= scale < E8M0_NAN, "no scale")
                var scaled = bf16_value(bits) / decode_scale(UInt8(scale))[0]
                var at_most = scaled < top if low_belongs else scaled <= top
                var at_least = 2 * scaled >= top if low_belongs else 2 * scaled > top
                assert_true(at_most or scale == E8M0_NAN - 1, "an element above the octave")
                assert_true(at_least or scale == 0, "an element below the octave")


def assert_nearest[element: Element]() raises:
    """Every bfloat16 of a block under every scale that the block may have."""
    comptime Numbers = SIMD[DType.float64, WIDTH]
    comptime HUGE = Float64.MAX_FINITE
    var values = values_of(element)
    # The interval of code c is from `turns[c]` to `turns[c + 1]`; even codes own both ends.
    var turns: List[Float64] = [-HUGE]
    for code in range(element.largest_code):
        turns.append((values[code] + values[code + 1]) / 2)
    turns.append(HUGE)
    var beyond = power_of_two(element.emax + 1)
    for scale in range(E8M0_NAN):
        var power = Numbers(decode_scale(UInt8(scale))[0])
        for start in range(0, BF16_INFINITY, WIDTH):
            var bits = iota[DType.uint16, WIDTH](UInt16(start))
            var scaled = bitcast[DType.bfloat16, WIDTH](bits).cast[DType.float64]() / power
            if scaled[0] > beyond:
                break
            var codes = encode[element, DType.bfloat16](bits, UInt16(scale))
            assert_true(codes.le(UInt8(element.largest_code)).reduce_and(), "no code of a number")
            var low, high = Numbers(0), Numbers(0)
            for lane in range(WIDTH):
                low[lane] = turns[Int(codes[lane])]
                high[lane] = turns[Int(codes[lane]) + 1]
            var is_even = (codes & 1).eq(0)
            var on_a_turn = scaled.eq(low) | scaled.eq(high)
            var inside = scaled.gt(low) & scaled.lt(high)
            assert_true((inside | (on_a_turn & is_even)).reduce_and(), "not the nearest code")

            var negated = encode[element, DType.bfloat16](bits | BF16_SIGN, UInt16(scale))
            comptime SIGN = UInt8(element.sign_code())
            var expected = -codes if element.is_integer() else codes | SIGN
            assert_equal(negated, expected)


def test_every_bfloat16_under_every_scale_becomes_the_nearest_code_ties_to_even() raises:
    comptime for i in range(len(FORMATS)):
        assert_nearest[FORMATS[i].element]()


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


comptime TESTS = __functions_in_module()
