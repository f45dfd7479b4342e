"""Gates in few instructions: the bits of `swiglu_oai` and `silu` (numbers/gates.mojo).

    limits    three-operand minima and maxima, which let NaN pass
    far       whether a sigmoid is taken for 0 or 1 is asked of all numbers at once, and a branch
              makes it so
"""

from ...numbers.gates import Gate, LARGEST_EXPONENT, near_sigmoid_times, with_far
from ..instructions.vector import maximum, minimum, of_a_branch
from ..instructions.wave import any_lane


@fieldwise_init
struct QuickGate(TrivialRegisterPassable):
    """The gated activation `swiglu_oai`, or `silu`."""

    var gate: Gate

    @staticmethod
    @always_inline
    def of_oai(limit: Float32, alpha: Float32) -> Self:
        """Returns `swiglu_oai`, whose rows are neighbours."""
        return Self(Gate(Gate.SWIGLU_OAI, True, limit, alpha))

    @always_inline
    def of[
        width: SIMDLength, //, has_branch: Bool = True, *, has_limit: Bool = True
    ](self, gates: SIMD[DType.float32, width], ups: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns the hidden numbers.

        Parameters:
            has_branch: Whether far numbers take a branch; a few more registers are needed around it.
            has_limit: Whether the limit is not infinite.
        """
        comptime F32 = SIMD[DType.float32, width]
        var limit = F32(self.gate.limit)
        var x = minimum(gates, limit) if has_limit else gates
        var z = x * self.gate.alpha
        var gated = near_sigmoid_times(x, z)
        comptime if has_branch:
            if any_lane(not (_largest(z) <= LARGEST_EXPONENT)):  # NaN may hide a number above.
                # Once more from x: no register keeps z until here.
                gated = with_far(gated, x, x * of_a_branch(self.gate.alpha))
        else:
            gated = with_far(gated, x, z)
        var up = minimum(maximum(ups, -limit), limit) if has_limit else ups
        return self.gate.times_up(gated, up)


@always_inline
def _largest[width: SIMDLength](z: SIMD[DType.float32, width]) -> Float32:
    """Returns the largest magnitude, NaN if there is one."""
    var largest = abs(z[0])
    comptime for i in range(1, Int(width)):
        largest = maximum(largest, abs(z[i]))
    return largest
