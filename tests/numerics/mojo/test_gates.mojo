"""Gated activations of float32 against float64, and what they make of infinities and NaN."""

from std.math import isnan
from std.memory import bitcast
from std.testing import assert_equal, assert_true
from std.utils.numerics import inf, nan

from mojo_kernels.cdna4.epilogue.gate import QuickGate
from mojo_kernels.numbers.gates import (
    Gate,
    LARGEST_EXPONENT,
    MOST_CAP,
    capped,
    exp_of_minus,
)

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


def test_silu_of_either_sign_is_within_six_roundings() raises:
    comptime EVERY = 97
    var silu = Gate(Gate.SILU, False, INFINITY, 1)
    for sign in [Float32(1), -1]:
        var largest = Float64(0)
        # Not below 2**-100: of that a sigmoid may be subnormal.
        for bits in range(27 << 23, Int(bitcast[DType.uint32](LARGEST_EXPONENT)), WIDTH * EVERY):
            var x = F32(0)
            comptime for lane in range(WIDTH):
                x[lane] = sign * bitcast[DType.float32](UInt32(bits + lane * EVERY))
            var found = silu.of(x, F32(1))
            for lane in range(WIDTH):
                if abs(x[lane]) > LARGEST_EXPONENT:
                    continue
                var e = exponential(abs(x[lane].cast[DType.float64]()))
                var exact = x[lane].cast[DType.float64]() * (1 if sign > 0 else e) / (1 + e)
                largest = max(largest, abs(found[lane].cast[DType.float64]() / exact - 1))
        assert_true(
            largest <= 6 * UNIT / 2, String("relative error ", largest / UNIT * 2, " units")
        )


def test_exp_of_zero_is_one_and_beyond_the_largest_zero() raises:
    assert_equal(exp_of_minus(Float32(0)), 1)
    assert_true(exp_of_minus(LARGEST_EXPONENT) > 0)
    assert_equal(
        exp_of_minus(bitcast[DType.float32](bitcast[DType.uint32](LARGEST_EXPONENT) + 1)), 0
    )
    assert_equal(exp_of_minus(INFINITY), 0)
    assert_true(isnan(exp_of_minus(NAN)))


def gates() -> List[Gate]:
    """Returns one of each activation that has gates, all with limits."""
    return [
        Gate(Gate.SWIGLU_OAI, True, 7, 1.702),
        Gate(Gate.SILU, False, 7, 1),
        Gate(Gate.SILU, False, INFINITY, 1.702),
        Gate(Gate.SWIGLU_STEP, False, 7, 1),
        Gate(Gate.GELU_TANH, False, INFINITY, 1),
        Gate(Gate.SITU, False, 25, 4),
        Gate(Gate.SITU, False, INFINITY, 0.3),
    ]


def test_nan_on_either_side_stays_nan() raises:
    for gate in gates():
        assert_true(isnan(gate.of(NAN, Float32(1))))
        assert_true(isnan(gate.of(Float32(1), NAN)))
        assert_true(isnan(gate.of(NAN, NAN)))
    assert_true(isnan(Gate(Gate.RELU2, False, 0, 0).of_sums(NAN)))


def test_infinities_are_what_ieee_arithmetic_says() raises:
    var silu = Gate(Gate.SILU, False, INFINITY, 1)
    assert_equal(silu.of(INFINITY, Float32(2)), INFINITY)
    assert_equal(silu.of(Float32(2), -INFINITY), -INFINITY)
    # -inf * sigmoid(-inf) is infinity times zero.
    assert_true(isnan(silu.of(-INFINITY, Float32(2))))
    assert_true(isnan(silu.of(INFINITY, Float32(0))))
    var gelu = Gate(Gate.GELU_TANH, False, INFINITY, 1)
    assert_equal(gelu.of(INFINITY, Float32(2)), INFINITY)
    assert_true(isnan(gelu.of(-INFINITY, Float32(2))))
    # Squares of gates overflow, and what they count stays.
    assert_equal(gelu.of(Float32(1e30), Float32(1)), 1e30)
    assert_equal(gelu.of(Float32(-1e30), Float32(1)), 0)
    for code in [Gate.SWIGLU_OAI, Gate.SILU]:
        var limited = Gate(code, True, 7, 1.702)
        assert_equal(limited.of(INFINITY, INFINITY), limited.of(Float32(7), Float32(7)))
        assert_equal(limited.of(Float32(1), -INFINITY), limited.of(Float32(1), Float32(-7)))
        assert_true(isnan(limited.of(-INFINITY, Float32(2))))
    var step = Gate(Gate.SWIGLU_STEP, False, 7, 1)
    assert_equal(step.of(INFINITY, INFINITY), 49)
    assert_true(isnan(step.of(-INFINITY, Float32(2))))
    var situ = Gate(Gate.SITU, False, 25, 4)
    assert_equal(situ.of(INFINITY, INFINITY), 100)
    assert_equal(situ.of(INFINITY, -INFINITY), -100)
    assert_equal(situ.of(-INFINITY, Float32(2)), 0)


def test_ups_without_gates_are_squares_of_what_is_positive() raises:
    var relu2 = Gate(Gate.RELU2, False, 0, 0)
    var ups: List[Float32] = [3, -3, 0, 1e-30, 1e30, INFINITY, -INFINITY]
    var hidden: List[Float32] = [9, 0, 0, 0, INFINITY, INFINITY, 0]
    for i in range(len(ups)):
        assert_equal(relu2.of_sums(ups[i]), hidden[i])
    # Of a zero of either sign a positive one.
    assert_equal(bitcast[DType.uint32](relu2.of_sums(Float32(-0.0))), 0)
    assert_equal(Gate.NONE.of_sums(Float32(-3)), -3)


struct Any32:
    """Any floats: every second call below 16 in magnitude, as sums of models are."""

    var state: UInt32
    var calls: Int

    def __init__(out self):
        self.state, self.calls = 1, 0

    def next(mut self) -> F32:
        var bits = SIMD[DType.uint32, WIDTH]()
        comptime for lane in range(WIDTH):
            self.state = self.state * 1664525 + 1013904223
            bits[lane] = self.state ^ self.state >> 15
        self.calls += 1
        if self.calls % 4 > 1:
            bits = (bits & 0x83FFFFFF) | 0x3C000000
        return bitcast[DType.float32, WIDTH](bits)


def assert_same_bits(got: F32, expected: F32) raises:
    """Compares bits; of a NaN only that it is one."""
    for lane in range(WIDTH):
        if isnan(expected[lane]):
            assert_true(isnan(got[lane]))
        else:
            assert_equal(bitcast[DType.uint32](got[lane]), bitcast[DType.uint32](expected[lane]))


def test_silu_with_an_infinite_limit_is_that_of_one_times_up() raises:
    var any = Any32()
    var gate = Gate(Gate.SILU, False, INFINITY, 1)
    for _ in range(1 << 15):
        var gates, ups = any.next(), any.next()
        assert_same_bits(gate.of(gates, ups), ups * gate.of(gates, F32(1)))


def test_a_smooth_limit_is_within_fifteen_roundings() raises:
    """Of numbers from subnormal ones to those whose tangent is 1, and of caps of any size."""
    comptime EVERY = 30011
    for cap in [Float32(4), 25, 0.3, MOST_CAP, 1 / MOST_CAP]:
        var largest = Float64(0)
        for bits in range(0, 0x7F800000, EVERY):
            var x = bitcast[DType.float32](UInt32(bits))
            var y = min(2 * x.cast[DType.float64]() / cap.cast[DType.float64](), 100)
            # tanh(y / 2) of the exponential, or of its series where that would cancel.
            var exact = y / 2 * (1 - y * y / 12 * (1 - y * y / 10))
            if y > 1.0 / 256:
                exact = (1 - exponential(y)) / (1 + exponential(y))
            exact *= cap.cast[DType.float64]()
            var lost = cap.cast[DType.float64]() * 2.0**-149
            var found = capped(x, cap).cast[DType.float64]()
            largest = max(largest, (abs(found - exact) - lost) / max(exact, 1e-300))
            assert_equal(capped(-x, cap), -capped(x, cap))
        assert_true(
            largest <= 15 * UNIT / 2, String("relative error ", largest / UNIT * 2, " units")
        )


def test_limits_hold() raises:
    var gate = Gate(Gate.SWIGLU_OAI, True, 1.5, 1)
    assert_equal(gate.of(Float32(9), Float32(1)), gate.of(Float32(1.5), Float32(1)))
    assert_equal(gate.of(Float32(1), Float32(9)), gate.of(Float32(1), Float32(1.5)))
    assert_equal(gate.of(Float32(1), Float32(-9)), gate.of(Float32(1), Float32(-1.5)))
    # Gates have no lower limit.
    assert_true(gate.of(Float32(-9), Float32(1)) != gate.of(Float32(-1.5), Float32(1)))
    assert_equal(gate.of(Float32(3), Float32(-1)), 0)


def test_quick_gates_have_the_same_bits() raises:
    """Of any floats, alike or not; those of small exponents are gates that models have."""
    var any = Any32()
    for rules in [
        (Float32(7), Float32(1.702)),
        (Float32(1e30), Float32(1)),
        (Float32(0.5), Float32(1e30)),
    ]:
        var gate = Gate(Gate.SWIGLU_OAI, True, rules[0], rules[1])
        var silu = Gate(Gate.SILU, True, rules[0], rules[1])
        var unlimited = Gate(Gate.SILU, True, INFINITY, rules[1])
        for _ in range(1 << 16):
            var gates, ups = any.next(), any.next()
            assert_same_bits(QuickGate(gate).of(gates, ups), gate.of(gates, ups))
            assert_same_bits(QuickGate(gate).of[False](gates, ups), gate.of(gates, ups))
            assert_same_bits(QuickGate(silu).of(gates, ups), silu.of(gates, ups))
            var quick = QuickGate(unlimited).of[has_limit=False](gates, ups)
            assert_same_bits(quick, unlimited.of(gates, ups))


comptime TESTS = __functions_in_module()
