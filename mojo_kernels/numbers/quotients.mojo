"""Quotients without a division a number, by multiplications and additions, fused.

By numbers from 1 to 2:

    reciprocal(d)    a polynomial of d, refined: about within a relative error of 2**-23 / d**2
    q = n / d        n * reciprocal, refined twice by what is missing: the nearest float32

Hardware divisions care for divisors of any size, GPUs with a dozen instructions for each number;
these are of vectors throughout. Why the last refinement rounds as a division does: with
y = reciprocal(d), what is missing, n - d * q, is exact where q is within some units in the last
place. So q + (n - d * q) * y is, before it is rounded, off by |q - n / d| * |1 - d * y|. After one
refinement q is off by little more than half a unit, so that is less than 2**-24 / d units. But no
quotient of two float32 is closer than that to the middle of two neighbours: n - d * middle is not
zero, and a multiple of 2**-24 units. The tests look at every d, and for the few whose reciprocal
is too close to that bound at every n.
"""

from std.memory import bitcast

from .elements import Element


@always_inline
def reciprocal[width: SIMDLength](d: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns about `1 / d` of 1 <= d <= 2.

    The polynomial of degree 3 that is best there, 1 - d * p(d) = T4(2d - 3) / 577, and two steps
    of Newton's, which square that. The first one aims somewhat higher, so that around 2, where the
    bound is narrowest, the second one begins within a unit in the last place, and above 1 / d:
    from below it would not leave 0.5 for the number behind it.
    """
    comptime F32 = SIMD[DType.float32, width]
    comptime OVER = 577.0
    comptime AIM = Float32(1 + 26.0 / (1 << 23))
    var y = d.fma(F32(-128.0 / OVER), F32(768.0 / OVER))
    y = d.fma(y, F32(-1696.0 / OVER))
    y = d.fma(y, F32(1632.0 / OVER))
    y = y.fma(d.fma(-y, F32(AIM)), y)
    return y.fma(d.fma(-y, F32(1)), y)


@always_inline
def divided[
    width: SIMDLength
](n: SIMD[DType.float32, width], d: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns `n / d`, rounded to nearest even, of 1 <= d <= 2.

    If |n| < 2**-102 only for d of 1 and 2, and for zeros. Where n is not finite neither is this.
    """
    var y = reciprocal(d)
    var q = n * y
    comptime for _ in range(2):
        # What q has too much: where it has nothing, zeros keep their sign.
        var excess = d.fma(q, -n)
        q = (-excess).fma(y, q)
    return q


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
