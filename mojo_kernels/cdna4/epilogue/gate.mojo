"""Gates in few instructions: the bits of `swiglu_oai` and `silu` (numbers/gates.mojo).

    limits       three-operand minima and maxima, which let NaN pass
    |x| * alpha  one by one: the instruction for two has no magnitudes
    exp          the exponent is added to that of a power, not multiplied; whether one is too small
                 for that is asked of all numbers at once, and a branch mends it
    x or x * e   the larger of both: e is at most 1
    / (1 + e)    multiplications and additions, fused, two numbers at a time (numbers/quotients.mojo)

What is not finite there is not finite here, but it may be another such number.
"""

from std.memory import bitcast

from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.gates import LARGEST_EXPONENT, exp_of_minus, exp_parts
from ...numbers.quotients import divided
from ..instructions.vector import maximum, minimum, of_a_branch, times_magnitude
from ..instructions.wave import any_lane


@fieldwise_init
struct QuickGate(TrivialRegisterPassable):
    """The gated activation `swiglu_oai`, or `silu`."""

    var limit: Float32
    var alpha: Float32

    @always_inline
    def of[
        width: SIMDLength, //, has_branch: Bool = True, *, has_limit: Bool = True
    ](
        self,
        gates: SIMD[DType.float32, width],
        ups: SIMD[DType.float32, width],
        one: Float32 = 1,
    ) -> SIMD[DType.float32, width]:
        """Returns the hidden numbers.

        Parameters:
            has_branch: Whether a branch mends exponents; a few more registers are needed around it.
            has_limit: Whether the limit is not infinite.

        Args:
            gates: The gates.
            ups: Their ups.
            one: What is added to ups: -0 for silu, which changes no number.
        """
        comptime F32 = SIMD[DType.float32, width]
        var limit = F32(self.limit)
        var x = minimum(gates, limit) if has_limit else gates
        var e: F32
        comptime if has_branch:
            var z = times_magnitude(x, self.alpha)
            e = _exp_of_minus(z)
            if any_lane(not (_largest(z) <= LARGEST_EXPONENT)):  # NaN may hide a number above.
                # Once more from x: no register keeps z until here.
                var is_above = (abs(x) * of_a_branch(self.alpha)).gt(LARGEST_EXPONENT)
                e = is_above.select(F32(0), e)
        else:
            e = exp_of_minus(abs(x) * self.alpha)
        var up = minimum(maximum(ups, -limit), limit) if has_limit else ups
        return (up + one) * divided(maximum(x * e, x), 1 + e)


@always_inline
def _exp_of_minus[width: SIMDLength](z: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns the bits of `exp_of_minus` up to `LARGEST_EXPONENT`."""
    var power, exponent = exp_parts(z)
    var bits = bitcast[DType.uint32, width](power) + (exponent << UInt32(F32_MANTISSA_BITS))
    return bitcast[DType.float32, width](bits)


@always_inline
def _largest[width: SIMDLength](z: SIMD[DType.float32, width]) -> Float32:
    """Returns the largest number, NaN if there is one."""
    var largest = z[0]
    comptime for i in range(1, Int(width)):
        largest = maximum(largest, z[i])
    return largest
