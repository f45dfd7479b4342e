"""Quotients without a division: their error of every mantissa, and bits where those are claimed."""

from std.memory import bitcast
from std.testing import assert_equal, assert_true

from mojo_kernels.numbers.elements import Element
from mojo_kernels.numbers.encode import round_divided
from mojo_kernels.numbers.quotients import Inverse, divided, over_largest
from mojo_kernels.numbers.rounding import float_scale_from_amax, smallest_float_scale

comptime WIDTH = 16
comptime F32 = SIMD[DType.float32, WIDTH]
comptime F64 = SIMD[DType.float64, WIDTH]
comptime ONE = UInt32(0x3F800000)
"""The bits of 1."""
comptime MANTISSAS = 1 << 23


def floats_from(bits: UInt32) -> F32:
    """Returns neighbours in float32."""
    var found = SIMD[DType.uint32, WIDTH](bits)
    comptime for lane in range(WIDTH):
        found[lane] += UInt32(lane)
    return bitcast[DType.float32, WIDTH](found)


def error_in_units(n: F32, d: F32) raises -> F64:
    """Returns how far quotients are off, in units in the last place of the processor's.

    What q has too much, d * q - n, is exact in float64 to 2**-53: products have 48 bits.
    """
    var q, exponents = divided(n, d), bitcast[DType.uint32, WIDTH](n / d) & 0x7F800000
    var units = bitcast[DType.float32, WIDTH](exponents).cast[DType.float64]() * Float64(2) ** -23
    var wide = d.cast[DType.float64]()
    return abs(q.cast[DType.float64]() * wide - n.cast[DType.float64]()) / (wide * units)


def any_floats(mut state: UInt32, least_exponent: Int, exponents: Int) -> F32:
    """Returns floats of any sign whose exponent bits are among so many from the least one on."""
    var bits = SIMD[DType.uint32, WIDTH]()
    comptime for lane in range(WIDTH):
        state = state * 1664525 + 1013904223
        var exponent = UInt32(least_exponent) + (state >> 8) % UInt32(exponents)
        bits[lane] = (state & 0x807FFFFF) | exponent << 23
    return bitcast[DType.float32, WIDTH](bits)


def test_quotients_by_every_mantissa_are_right_to_half_a_unit_and_a_fiftieth() raises:
    """Of numerators from 2**-100 on whose quotients are regular, by divisors of any size."""
    var state, largest = UInt32(1), Float64(0)
    for first in range(0, MANTISSAS, WIDTH):
        var mantissas = floats_from(ONE + UInt32(first))
        for exponent in [0, 1, 77, 125 if first < MANTISSAS // 2 else 124]:
            var d = mantissas * Float32(2) ** exponent
            var least = max(27, exponent + 2)
            var n = any_floats(state, least, 255 - least)
            largest = max(largest, error_in_units(n, d).reduce_max())
    assert_true(largest <= 0.52, String(largest))
    assert_true(largest > 0.5)


def test_over_one_a_number_stays_as_it_is() raises:
    for sign in [UInt32(0), UInt32(1 << 31)]:
        for first in range(0, 0x7F800000, 101 * WIDTH):
            var n = floats_from(sign + UInt32(first))
            assert_equal(
                bitcast[DType.uint32, WIDTH](divided(n, F32(1))), bitcast[DType.uint32, WIDTH](n)
            )


def test_zeros_keep_their_sign() raises:
    for number in [Float32(0.0), Float32(-0.0)]:
        for bits in range(0x3F800000, 0x7E800000, 1013):
            var q = divided(number, bitcast[DType.float32](UInt32(bits)))
            assert_equal(bitcast[DType.uint32](q), bitcast[DType.uint32](number))


def test_what_is_not_finite_gives_nothing_finite() raises:
    for bits in [UInt32(0x7F800000), UInt32(0xFF800000), UInt32(0x7FC00000)]:
        for d in [Float32(1), Float32(1.5), Float32(2), Float32(1e30)]:
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
