"""Gates of neighbours in few instructions: the bits of `swiglu_oai` (numbers/gates.mojo).

    limits       three-operand minima and maxima, which let NaN pass
    x or x * e   the larger of both: e is at most 1
    / (1 + e)    multiplications and additions, fused, two numbers at a time (numbers/quotients.mojo)

What is not finite there is not finite here, but it may be another such number.
"""

from ...numbers.gates import Gate, exp_of_minus
from ...numbers.quotients import divided
from ..instructions.vector import maximum, minimum

comptime MOST_ALPHA = Float32(1 << 64)
"""Up to which alpha quotients are right: where 1 + e is neither 1 nor 2, x is not below 2**-102."""


@fieldwise_init
struct QuickGate(TrivialRegisterPassable):
    """The gated activation `swiglu_oai`."""

    var limit: Float32
    var alpha: Float32

    @staticmethod
    def takes(gate: Gate) -> Bool:
        """Says whether hidden numbers of a gate are these."""
        return gate.is_interleaved() and gate.alpha <= MOST_ALPHA

    @always_inline
    def of[
        width: SIMDLength
    ](self, gates: SIMD[DType.float32, width], ups: SIMD[DType.float32, width]) -> SIMD[
        DType.float32, width
    ]:
        """Returns the hidden numbers."""
        var limit = SIMD[DType.float32, width](self.limit)
        var x = minimum(gates, limit)
        var e = exp_of_minus(abs(x) * self.alpha)
        var up = minimum(maximum(ups, -limit), limit)
        return (up + 1) * divided(maximum(x * e, x), 1 + e)
