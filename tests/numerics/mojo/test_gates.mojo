"""Gated activations of float32 against float64, and what they make of infinities and NaN."""

from std.math import isnan
from std.memory import bitcast
from std.testing import assert_equal, assert_true
from std.utils.numerics import inf, nan

from mojo_kernels.cdna4.moe_shape import stores_codes
from mojo_kernels.cdna4.epilogue.gate import QuickGate
from mojo_kernels.numbers.gates import Gate, LARGEST_EXPONENT, exp_of_minus

comptime WIDTH = 16
comptime F32 = SIMD[DType.float32, WIDTH]
comptime UNIT = Float64(1) / (1 << 23)
"""A unit in the last place of 1."""
comptime INFINITY = inf[DType.float32]()
comptime NAN = nan[DType.float32]()


def exponential(x: Float64) -> Float64:
    """Returns exp(-x) for 0 <= x < 128: (1 - x / 2**16 + ..)**(2**16) by squaring.

    The Taylor polynomial of degree 5 is exact to float64 for arguments below 2**-9, and each
    squaring doubles the relative error: below 2**-34 in all.
    """
    comptime SQUARINGS = 16
    var y = -x / (1 << SQUARINGS)
    var power = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5))))
    for _ in range(SQUARINGS):
        power = power * power
    return power


def largest_error(first_bits: Int, last_bits: Int, step: Int) raises -> Float64:
    """Returns the largest relative error of exp_of_minus in a range of float32, by their bits."""
    var largest = Float64(0)
    for bits in range(first_bits, last_bits, WIDTH * step):
        var x = F32(0)
        comptime for lane in range(WIDTH):
            x[lane] = bitcast[DType.float32](UInt32(bits + lane * step))
        var found = exp_of_minus(x)
        for lane in range(WIDTH):
            if x[lane] <= LARGEST_EXPONENT:
                var exact = exponential(x[lane].cast[DType.float64]())
                largest = max(largest, abs(found[lane].cast[DType.float64]() / exact - 1))
    return largest


def test_exp_is_right_to_a_unit_in_the_last_place() raises:
    comptime EVERY = 97
    var last = Int(bitcast[DType.uint32](LARGEST_EXPONENT))
    # Between two powers of two a unit is up to one, and at least half a unit, of relative error.
    assert_true(largest_error(0, last, EVERY) <= UNIT)
    # Densely where the polynomial's argument is largest, around ln 2 / 2, and at the end.
    assert_true(largest_error(0x3EB17218 - 50000, 0x3EB17218 + 50000, 1) <= UNIT)
    assert_true(largest_error(last - 100000, last, 1) <= UNIT)


def test_exp_of_zero_is_one_and_beyond_the_largest_zero() raises:
    assert_equal(exp_of_minus(Float32(0)), 1)
    assert_true(exp_of_minus(LARGEST_EXPONENT) > 0)
    assert_equal(
        exp_of_minus(bitcast[DType.float32](bitcast[DType.uint32](LARGEST_EXPONENT) + 1)), 0
    )
    assert_equal(exp_of_minus(INFINITY), 0)
    assert_true(isnan(exp_of_minus(NAN)))


def test_nan_on_either_side_stays_nan() raises:
    for code in [Gate.SWIGLU_OAI, Gate.SILU]:
        var gate = Gate(code, 7, 1.702)
        assert_true(isnan(gate.of(NAN, Float32(1))))
        assert_true(isnan(gate.of(Float32(1), NAN)))
        assert_true(isnan(gate.of(NAN, NAN)))


def test_infinities_are_what_ieee_arithmetic_says() raises:
    var silu = Gate(Gate.SILU, 7, 1.702)
    assert_equal(silu.of(INFINITY, Float32(2)), INFINITY)
    assert_equal(silu.of(Float32(2), -INFINITY), -INFINITY)
    # -inf * sigmoid(-inf) is infinity times zero.
    assert_true(isnan(silu.of(-INFINITY, Float32(2))))
    assert_true(isnan(silu.of(INFINITY, Float32(0))))
    var swiglu = Gate(Gate.SWIGLU_OAI, 7, 1.702)
    assert_equal(swiglu.of(INFINITY, INFINITY), swiglu.of(Float32(7), Float32(7)))
    assert_equal(swiglu.of(Float32(1), -INFINITY), swiglu.of(Float32(1), Float32(-7)))
    assert_true(isnan(swiglu.of(-INFINITY, Float32(2))))


def test_limits_hold() raises:
    var gate = Gate(Gate.SWIGLU_OAI, 1.5, 1)
    assert_equal(gate.of(Float32(9), Float32(1)), gate.of(Float32(1.5), Float32(1)))
    assert_equal(gate.of(Float32(1), Float32(9)), gate.of(Float32(1), Float32(1.5)))
    assert_equal(gate.of(Float32(1), Float32(-9)), gate.of(Float32(1), Float32(-1.5)))
    # Gates have no lower limit.
    assert_true(gate.of(Float32(-9), Float32(1)) != gate.of(Float32(-1.5), Float32(1)))
    assert_equal(gate.of(Float32(3), Float32(-1)), 0)


def test_quick_gates_have_the_same_bits_where_those_are_finite() raises:
    """Of any floats, alike or not; those of small exponents are gates that models have."""
    comptime NOT_FINITE = UInt32(0x7F800000)
    var state = UInt32(1)
    for rules in [
        (Float32(7), Float32(1.702)),
        (Float32(1e30), Float32(1)),
        (Float32(0.5), Float32(1e19)),
    ]:
        var quick = QuickGate(rules[0], rules[1])
        var gate = Gate(Gate.SWIGLU_OAI, rules[0], rules[1])
        assert_true(stores_codes(gate))
        for round in range(1 << 16):
            var sums = SIMD[DType.uint32, 2 * WIDTH]()
            comptime for lane in range(2 * WIDTH):
                state = state * 1664525 + 1013904223
                sums[lane] = state ^ state >> 15
            if round % 2 == 1:
                # Below 16 in magnitude.
                sums = (sums & 0x83FFFFFF) | 0x3C000000
            var gates, ups = bitcast[DType.float32, 2 * WIDTH](sums).split()
            var got = bitcast[DType.uint32, WIDTH](quick.of(gates, ups))
            var expected = bitcast[DType.uint32, WIDTH](gate.of(gates, ups))
            comptime for lane in range(WIDTH):
                if expected[lane] & NOT_FINITE == NOT_FINITE:
                    assert_true(got[lane] & NOT_FINITE == NOT_FINITE)
                else:
                    assert_equal(got[lane], expected[lane])


def test_quick_gates_leave_others_alone() raises:
    assert_true(not stores_codes(Gate(Gate.SWIGLU_OAI, 7, 1e20)))
    assert_true(not stores_codes(Gate(Gate.SILU, 7, 1)))


comptime TESTS = __functions_in_module()
