"""Quotients without a division against the processor's own: the bound that proves them, and bits."""

from std.memory import bitcast
from std.testing import assert_equal, assert_true

from mojo_kernels.numbers.elements import Element
from mojo_kernels.numbers.encode import round_divided
from mojo_kernels.numbers.quotients import Inverse, divided, over_largest, reciprocal
from mojo_kernels.numbers.rounding import float_scale_from_amax, smallest_float_scale

comptime WIDTH = 16
comptime F32 = SIMD[DType.float32, WIDTH]
comptime F64 = SIMD[DType.float64, WIDTH]
comptime ONE = UInt32(0x3F800000)
"""The bits of 1; those of 2 are `MANTISSAS` further on."""
comptime MANTISSAS = 1 << 23


def floats_from(bits: UInt32) -> F32:
    """Returns neighbours in float32."""
    var found = SIMD[DType.uint32, WIDTH](bits)
    comptime for lane in range(WIDTH):
        found[lane] += UInt32(lane)
    return bitcast[DType.float32, WIDTH](found)


def slack(d: F32) -> F64:
    """Returns 2**-23 over |1 - d * y| * d, which is exact: products have 48 bits."""
    var wide, y = d.cast[DType.float64](), reciprocal(d).cast[DType.float64]()
    return Float64(2) ** -23 / max(abs(1 - wide * y) * wide, Float64(2) ** -60)


def assert_same_bits(n: F32, d: F32) raises:
    """Compares quotients with the processor's."""
    var got = bitcast[DType.uint32, WIDTH](divided(n, d))
    assert_equal(got, bitcast[DType.uint32, WIDTH](n / d))


def test_every_numerator_over_divisors_near_the_bound_and_some_others() raises:
    """Of the first there are few: those whose reciprocal has hardly any slack.

    Before a refinement a quotient is off by less than two units in the last place, after it by
    (1 + 2**-21) / 2.
    """
    var divisors: List[UInt32] = [ONE, ONE + 1, ONE + 0x3504F3, ONE + MANTISSAS]
    for first in range(0, MANTISSAS, WIDTH):
        var slacks = slack(floats_from(ONE + UInt32(first)))
        if slacks.reduce_min() <= 1 + Float64(2) ** -21:
            for lane in range(WIDTH):
                if slacks[lane] <= 1 + Float64(2) ** -21:
                    divisors.append(ONE + UInt32(first + lane))
    assert_true(4 < len(divisors) < 24, String(len(divisors)))
    for bits in divisors:
        var d = F32(bitcast[DType.float32](bits))
        for first in range(0, MANTISSAS, WIDTH):
            assert_same_bits(floats_from(ONE + UInt32(first)), d)


def test_every_divisor_under_some_numerators() raises:
    """Of any size down to 2**-102, and of both signs."""
    var state = UInt32(1)
    for first in range(0, MANTISSAS + 1, WIDTH):
        var d = min(floats_from(ONE + UInt32(first)), F32(2))
        var bits = SIMD[DType.uint32, WIDTH]()
        comptime for lane in range(WIDTH):
            state = state * 1664525 + 1013904223
            var exponent = UInt32(25) + (state >> 8) % 230
            bits[lane] = (state & 0x807FFFFF) | exponent << 23
        assert_same_bits(bitcast[DType.float32, WIDTH](bits), d)


def test_zeros_keep_their_sign_and_subnormals_over_1_and_2_are_right() raises:
    for number in [Float32(0.0), Float32(-0.0)]:
        for first in range(0, MANTISSAS + 1, 97 * WIDTH):
            assert_same_bits(F32(number), min(floats_from(ONE + UInt32(first)), F32(2)))
    for sign in [UInt32(0), UInt32(1 << 31)]:
        for first in range(0, 25 << 23, 101):
            var n = floats_from(sign + UInt32(first))
            assert_same_bits(n, F32(1))
            assert_same_bits(n, F32(2))


def test_what_is_not_finite_gives_nothing_finite() raises:
    for bits in [UInt32(0x7F800000), UInt32(0xFF800000), UInt32(0x7FC00000)]:
        for d in [Float32(1), Float32(1.5), Float32(2)]:
            var q = divided(bitcast[DType.float32](bits), d)
            assert_true(bitcast[DType.uint32](q) & 0x7F800000 == 0x7F800000)


comptime ELEMENTS = [Element.E4M3, Element.E5M2]
"""Those whose blocks have float scales."""


def test_every_maximum_over_the_largest_number_is_rounded_as_a_division_does() raises:
    """What is smaller than the smallest scale becomes that."""
    comptime Bits = SIMD[DType.uint32, WIDTH]
    comptime for i in range(len(ELEMENTS)):
        comptime element = ELEMENTS[i]
        comptime SMALLEST = Bits(smallest_float_scale(element.unit_exponent()))
        var differing = Bits(0)
        for first in range(0, 0x7F800000, WIDTH):
            var amax = floats_from(UInt32(first))
            var expected = bitcast[DType.uint32, WIDTH](amax / F32(element.largest()))
            var got = bitcast[DType.uint32, WIDTH](over_largest[element](amax))
            differing |= max(got, SMALLEST) ^ max(expected, SMALLEST)
        assert_equal(differing, Bits(0))


def test_every_narrow_number_has_its_code_by_the_inverse_of_every_scale() raises:
    """Of all maxima of a block where a GPU's inverse is right and the rule even, of others some.

    An inverse is off by a unit in the last place at most.
    """
    comptime Bits = SIMD[DType.uint16, WIDTH]
    comptime DTYPES = [DType.bfloat16, DType.float16]
    comptime END = [0x7F80, 0x7C00]
    comptime STEP = 61
    comptime for i in range(len(ELEMENTS) * len(DTYPES)):
        comptime dtype, end = DTYPES[i % 2], END[i % 2]
        comptime element = ELEMENTS[i // 2]
        for choice in range(6):
            var error, is_power = choice % 3 - 1, choice >= 3
            for top in range(0, end, 1 if choice == 1 else STEP):
                var amax = bitcast[dtype](UInt16(top)).cast[DType.float32]()
                var scale = float_scale_from_amax(
                    bitcast[DType.uint32](amax), materialize[element](), is_power
                )
                var near = bitcast[DType.uint32](1 / scale) + UInt32(error)
                var inverse = Inverse.of(scale, bitcast[DType.float32](near))
                var differing = SIMD[DType.uint32, WIDTH](0)
                for first in range(0, top + 1, WIDTH):
                    var bits = bitcast[DType.uint32, WIDTH](floats_from(UInt32(first)))
                    var narrow = min(bits.cast[DType.uint16](), Bits(UInt16(top)))
                    var x = bitcast[dtype, WIDTH](narrow).cast[DType.float32]()
                    var got = bitcast[DType.uint32, WIDTH](inverse.times(x))
                    var expected = bitcast[DType.uint32, WIDTH](x / scale)
                    differing |= round_divided[element](got) ^ round_divided[element](expected)
                assert_equal(differing.reduce_or(), 0, String(top, " ", choice))


comptime TESTS = __functions_in_module()
