"""The exponents that occur in some rows: whether float32 can take their products and sums."""

from layout import Coord

from ..numbers.floats import F32_MANTISSA_BITS
from ..numbers.scales import E8M0_BIAS, E8M0_NAN
from ..operands import Bytes, beyond
from .scratch import Scratch, padded


@always_inline
def float_scale_ends[
    width: SIMDLength
](fields: SIMD[DType.uint32, width]) -> Tuple[SIMD[DType.uint32, width], SIMD[DType.uint32, width]]:
    """Returns the scale bytes that float32 scales are multiples of, and less than, by their
    exponent fields; byte 0 for subnormal ones, and that of NaN for what is not finite."""
    comptime Bits = SIMD[DType.uint32, width]
    var low = max(fields, Bits(F32_MANTISSA_BITS)) - F32_MANTISSA_BITS
    return (low, min(fields + 1, Bits(E8M0_NAN)))


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

    def multiplies_regularly[sum_bits: Int](self, other: Self) -> Bool:
        """Says whether half scales, their products and sums of these from two windows are regular.

        Half a scale is 2**(scale - 128), regular for scales from 2 on; the
        product's exponent must lie within -126 .. 127, and sums are less than
        2**sum_bits times as large.
        """
        comptime TWICE_UNIT = 2 * (E8M0_BIAS + 1)
        var low = min(self.low, other.low)
        var high = max(self.high, other.high)
        return (
            low >= 2
            and high < E8M0_NAN
            and self.low + other.low - TWICE_UNIT >= -126
            and self.high + other.high - TWICE_UNIT + sum_bits <= 127
        )


@fieldwise_init
struct RowWindows(TrivialRegisterPassable):
    """The window of each row of the left side."""

    var lows: Bytes
    var highs: Bytes

    @staticmethod
    def num_bytes(rows: Int) -> Int:
        """Returns the scratch memory that `carve` takes."""
        return 2 * padded[DType.uint8](rows)

    @staticmethod
    def carve(rows: Int, mut scratch: Scratch) -> Self:
        """Takes room for so many rows from `scratch`."""
        return Self(scratch.carve[DType.uint8](rows), scratch.carve[DType.uint8](rows))

    def beyond(self, row: Int) -> Self:
        """Returns the windows from a row on."""
        return Self(beyond(self.lows, row), beyond(self.highs, row))

    @always_inline
    def put(self, row: Int, window: ScaleWindow):
        """Stores the window of a row."""
        self.lows.store(Coord(row), UInt8(window.low))
        self.highs.store(Coord(row), UInt8(window.high))

    def of(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the window of some rows together."""
        var window = ScaleWindow.EMPTY
        for row in range(first_row, first_row + num_rows):
            window.low = min(window.low, Int(self.lows.load[width=1](Coord(row))))
            window.high = max(window.high, Int(self.highs.load[width=1](Coord(row))))
        return window
