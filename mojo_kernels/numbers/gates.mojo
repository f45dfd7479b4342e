"""Gated activations of experts in float32: a gate and its up become one hidden number.

    swiglu_oai    (up + 1) * (gate * sigmoid(alpha * gate)),
                  gate at most limit, up within -limit .. limit
    silu          up * (gate * sigmoid(gate))

Rows of the weights that make both are neighbours for swiglu_oai, gate first, and halves for silu,
gates first. No multiplication here feeds an addition but in a fused operation, so nothing is left
for a compiler to fuse, and every machine gives the same bits. NaN stays NaN.
"""

from std.memory import bitcast

from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from .quotients import divided

comptime GATES = ["swiglu_oai", "silu"]
"""The names used in every API; the position is the code of bindings."""
comptime MOST_ALPHA = Float32(1 << 64)
"""Up to which alpha quotients are right: where 1 + e is neither 1 nor 2, x is not below 2**-102."""
comptime LARGEST_EXPONENT = Float32(87)
"""The largest x whose exp(-x) is regular; beyond, sigmoid(-x) is taken for 0."""


@fieldwise_init
struct Gate(TrivialRegisterPassable):
    """What becomes of a gate and its up."""

    var code: Int
    """Position in `GATES`, or that of `NONE`."""
    var limit: Float32
    var alpha: Float32

    comptime NONE = Self(-1, 0, 0)
    """No gate: sums are results."""
    comptime SWIGLU_OAI = 0
    comptime SILU = 1

    @always_inline
    def is_there(self) -> Bool:
        """Says whether there is a gate at all."""
        return self.code != Self.NONE.code

    @always_inline
    def is_interleaved(self) -> Bool:
        """Says whether gates and ups are neighbours, not halves."""
        return self.code == Self.SWIGLU_OAI

    def has_quotients(self) -> Bool:
        """Says whether `of_finite` gives the bits of `of`."""
        return self.code == Self.SILU or self.alpha <= MOST_ALPHA

    @always_inline
    def of_finite[
        width: SIMDLength
    ](self, gate: SIMD[DType.float32, width], up: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns the hidden numbers without a division, for gates that have such quotients.

        What is not finite stays so, but it may be another such number.
        """
        return self._of[divides=False](gate, up)

    @always_inline
    def of[
        width: SIMDLength
    ](self, gate: SIMD[DType.float32, width], up: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns the hidden numbers."""
        return self._of[divides=True](gate, up)

    @always_inline
    def _of[
        width: SIMDLength, //, divides: Bool
    ](self, gate: SIMD[DType.float32, width], up: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        if self.code == Self.SILU:
            return up * _sigmoid_times[divides](gate, gate)
        var limit = SIMD[DType.float32, width](self.limit)
        # A NaN is not above a limit, and stays.
        var low = gate.gt(limit).select(limit, gate)
        var clamped = up.gt(limit).select(limit, up.lt(-limit).select(-limit, up))
        return (clamped + 1) * _sigmoid_times[divides](low, low * self.alpha)


@always_inline
def _sigmoid_times[
    width: SIMDLength, //, divides: Bool
](x: SIMD[DType.float32, width], z: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `x * sigmoid(z)` for z of the sign of x.

    With e = exp(-|z|) it is x / (1 + e), or x * e / (1 + e) below zero: nothing overflows.
    """
    var e = exp_of_minus(abs(z))
    var n = x.lt(0).select(x * e, x)
    comptime if divides:
        return n / (1 + e)
    else:
        return divided(n, 1 + e)


@always_inline
def exp_of_minus[width: SIMDLength](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `exp(-x)` for x >= 0 to a unit in the last place; 0 beyond `LARGEST_EXPONENT`."""
    var power, exponent = exp_parts(x)
    var scale = bitcast[DType.float32, width](
        (exponent + UInt32(F32_EXPONENT_BIAS)) << UInt32(F32_MANTISSA_BITS)
    )
    return x.gt(LARGEST_EXPONENT).select(SIMD[DType.float32, width](0), power * scale)


@always_inline
def exp_parts[
    width: SIMDLength
](x: SIMD[DType.float32, width]) -> Tuple[SIMD[DType.float32, width], SIMD[DType.uint32, width]]:
    """Returns exp(r) and n, its low 9 bits alone, of exp(-x) = 2**n * exp(r) for x >= 0.

    With n = round(-x / ln 2) is |r| <= ln 2 / 2: a Taylor polynomial.
    """
    comptime F32 = SIMD[DType.float32, width]
    comptime MINUS_LOG2_E = Float32(-1.44269504088896340736)
    # Its low bits are n: numbers here are a unit apart.
    comptime SHIFTER = Float32(3 << (F32_MANTISSA_BITS - 1))
    # ln 2 in two parts; the first has few bits.
    comptime LN2_HIGH = Float32(0.693145751953125)
    comptime LN2_LOW = Float32(1.42860682030941723212e-6)
    comptime DEGREE = 7

    var shifted = x.fma(F32(MINUS_LOG2_E), F32(SHIFTER))
    var n = shifted - SHIFTER
    var r = n.fma(F32(-LN2_LOW), n.fma(F32(-LN2_HIGH), -x))
    var power = F32(_inverse_factorial(DEGREE))
    comptime for i in range(DEGREE):
        power = power.fma(r, F32(_inverse_factorial(DEGREE - 1 - i)))
    return (power, bitcast[DType.uint32, width](shifted))


def _inverse_factorial(n: Int) -> Float32:
    var factorial = 1
    for i in range(2, n + 1):
        factorial *= i
    return Float32(1.0 / Float64(factorial))
