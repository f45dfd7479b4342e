"""Quotients without a division a number, by multiplications and additions, fused.

By numbers from 1 to 1.5 * 2**125, of which 1 + exp(87) is one, to hardly more than half a unit in
the last place:

    y = MAGIC - d    of their bits: d * y is within 0.94 .. 1.06, whatever the exponent
    y * (w**2 + A)   with w = K - d * y, the best such polynomial there: within 3.3e-5 of 1 / d
    q = n / d        n * y, refined once by what is missing, which squares that

Every machine gives the same bits; hardware divisions care for divisors of any size, GPUs with a
dozen instructions for each number.
"""

from std.memory import bitcast

from .elements import Element


@always_inline
def divided[
    width: SIMDLength
](n: SIMD[DType.float32, width], d: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `n / d` of 1 <= d <= 1.5 * 2**125 to 0.52 units in the last place, exactly of d = 1.

    Below 2**-100 to a whole one, as what is missing is subnormal. Where n is not finite neither is
    this.
    """
    comptime F32 = SIMD[DType.float32, width]
    comptime MAGIC = UInt32(0x7EF33400)
    comptime K, A = Float32(1.5009612), Float32(0.7490391)
    var near = bitcast[DType.float32, width](MAGIC - bitcast[DType.uint32, width](d))
    var w = d.fma(-near, F32(K))
    var y = near * w.fma(w, F32(A))
    var q = n * y
    # What q has too much: where it has nothing, zeros keep their sign.
    var excess = d.fma(q, -n)
    return (-excess).fma(y, q)


@fieldwise_init
struct Inverse(TrivialRegisterPassable):
    """One over a scale in two parts, for quotients that are rounded twice: to float32, to a code.

    Together they are off by less than 2**-40 of it. Numbers of at most 11 bits over a float32 come
    no nearer than 2**-35 to where float32 begins to round to the middle of two codes, which has 5
    bits at most. So codes are those of quotients that a division rounds: the tests look at all of
    them. The first part is below the inverse, so that the second one leaves zeros their sign.
    """

    var high: Float32
    var low: Float32

    @staticmethod
    @always_inline
    def of(scale: Float32, near: Float32) -> Self:
        """Takes a scale of at least 2**-116, and its inverse to a unit in the last place."""
        var high = bitcast[DType.float32](bitcast[DType.uint32](near) - 2)
        return Self(high, scale.fma(-high, 1) * high)

    @always_inline
    def times[width: SIMDLength](self, x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
        """Returns quotients whose codes are right."""
        comptime F32 = SIMD[DType.float32, width]
        return x.fma(F32(self.high), x * F32(self.low))


@always_inline
def over_largest[
    element: Element, width: SIMDLength
](n: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `n` over the largest number of an element, rounded to nearest even where regular.

    Of FP8 that number is seven times a power of two: what the first product leaves is exact.
    """
    comptime F32 = SIMD[DType.float32, width]
    comptime LARGEST = element.largest()
    comptime INVERSE = F32(1 / LARGEST)
    var q = n * INVERSE
    return q.fma(F32(-LARGEST), n).fma(INVERSE, q)
