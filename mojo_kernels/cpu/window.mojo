"""The exponents that occur in some rows: whether float32 can take their products and sums."""

from ..numbers.scales import E8M0_BIAS, E8M0_NAN


@fieldwise_init
struct ScaleWindow(TrivialRegisterPassable):
    """The smallest and the largest scale byte, or exponent field, of what is not zero."""

    var low: Int
    var high: Int
    """A NaN block counts even if its codes are zero."""

    comptime EMPTY = Self(E8M0_NAN, 0)
    """The window of nothing."""

    @always_inline
    def including(self, scale: Int) -> Self:
        """Returns the window widened to hold one more scale."""
        return Self(min(self.low, scale), max(self.high, scale))

    def multiplies_regularly(self, other: Self) -> Bool:
        """Says whether half scales and their products from two windows are regular.

        Half a scale is 2**(scale - 128), regular for scales from 2 on; the
        product's exponent must lie within -126 .. 127.
        """
        comptime TWICE_UNIT = 2 * (E8M0_BIAS + 1)
        var low = min(self.low, other.low)
        var high = max(self.high, other.high)
        return (
            low >= 2
            and high < E8M0_NAN
            and self.low + other.low - TWICE_UNIT >= -126
            and self.high + other.high - TWICE_UNIT <= 127
        )
