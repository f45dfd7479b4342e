"""Norms of rows: the order in which a row is added up, the reciprocal root, what a number becomes.

The sum of a row, of its numbers or of the squares of what is left of them without their mean, has
one order on every machine, whatever its vectors, warps and threads:

    a segment    512 neighbours as float32; what is missing at the end of a row counts as 0
    in it        t[i] = x[i] + x[i + 256], of squares fma(x[i + 256], x[i + 256], x[i] * x[i]);
                 then halves: t[i] + t[i + 128] for i < 128, t[i] + t[i + 64], ... t[0] + t[1]
    the row      the sums of its segments, first to last, in float64

With inv_k = 1 / K in float64, the mean is the float32 of sum * inv_k, and the number that multiplies
is the float32 of (fma(sum, inv_k, eps)) ** -0.5, by `reciprocal_root`. Each number becomes

    y = (x - mean) * reciprocal             rounded to the type of the rows, or not
    z = fma(y, weight + offset, bias)       rounded to the type of what is made

where what there is not, is a number that changes no bit: a mean of 0, an offset and a bias of -0.
"""

from std.memory import bitcast
from std.utils.numerics import inf

comptime SEGMENT = 512
"""Neighbours of a row whose sum is float32."""
comptime HALF_SEGMENT = SEGMENT // 2
"""How far apart the two are that are added first."""
comptime NO_ADDEND = Float32(-0.0)
"""What is added where there is nothing to add."""

comptime _MAGIC = UInt64(0x5FE6EB50C7B537A9)
"""Less half of the bits of v it is v ** -0.5 to 3.5 %."""
comptime _STEPS = 4
"""Of Newton's: 2e-3, 5e-6, 4e-11, and what float64 leaves."""


@fieldwise_init
struct Rounds(Equatable, TrivialRegisterPassable):
    """Where a norm rounds to the type of the rows; the position is the code of bindings."""

    var code: Int

    comptime EACH = Self(0)
    """What is normalized, and again when the weight has multiplied it."""
    comptime RESULT = Self(1)
    """Once, at the end."""
    comptime NONE = Self(2)
    """Nowhere: what is quantized is float32."""


@always_inline
def reciprocal_root(v: Float64) -> Float32:
    """Returns v ** -0.5 of a float64 that is not negative, rounded to float32.

    Multiplications that are fused with what they feed, on every machine the same: square roots
    and divisions are not.
    """
    if v == 0:
        return inf[DType.float32]()
    if v == inf[DType.float64]():
        return 0
    var half = v * -0.5
    var y = bitcast[DType.float64](_MAGIC - (bitcast[DType.uint64](v) >> 1))
    comptime for _ in range(_STEPS):
        y = y.fma((half * y).fma(y, Float64(0.5)), y)
    # Whatever the bits of a NaN have become.
    return (v if v != v else y).cast[DType.float32]()


@always_inline
def mean_of(total: Float64, inv_k: Float64) -> Float32:
    """Returns the mean of a row."""
    return (total * inv_k).cast[DType.float32]()


@always_inline
def reciprocal_of(total: Float64, inv_k: Float64, eps: Float64) -> Float32:
    """Returns the number that multiplies a row, from its sum of squares."""
    return reciprocal_root(total.fma(inv_k, eps))
