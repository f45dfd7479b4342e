"""From four-bit codes to E5M2 bytes, exactly: the operands of FP8 tensor cores.

An element of E2M1 times a power of two is an E5M2 number as long as that power stays within
2 ** -13 .. 2 ** 13. So a row whose blocks' scales differ by at most `SPAN` is a row of E5M2
numbers and one power of two, its *base*, the largest scale byte of the row:

    block's scale       base - 26   ..   base          the row's element = number * 2 ** (base - 140)
    power of numbers    2 ** -13    ..   2 ** 13

A code's magnitude is a selector of `prmt`: eight bytes, made of the block's scale with two
multiplications, are the magnitudes of all codes; four come out of an instruction. Blocks of
zeros may have any scale: the byte of zero is zero in every table.
"""

from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.scales import E8M0_BIAS
from ..instructions.packed import join_bytes, pick_bytes, set_signs

comptime SPAN = 26
"""Scales of a row differ by at most this."""
comptime SMALLEST_BASE = E8M0_BIAS - 60
"""The smallest base: products of the factors of two rows are regular float32 numbers."""
comptime LARGEST_BASE = E8M0_BIAS + 60
"""The largest base."""
comptime EMPTY_BASE = UInt32(E8M0_BIAS)
"""The base of a row of zeros."""
comptime NO_BASE = UInt8(0)
"""Stands for the base of a row that has none."""
comptime LARGEST_POWER = 13
"""The power of two of numbers whose scale is the base."""
comptime FACTOR_AT_BASE = E8M0_BIAS + LARGEST_POWER
"""A row with this base has the factor one."""
comptime MAGNITUDES = UInt32(0x77777777)
"""The bits of eight codes that are no signs."""
comptime BYTE_MAGNITUDES = UInt32(0x7F7F7F7F)
"""The bits of four codes of eight bits that are no signs."""
comptime BYTE_SPAN = 14
"""Scales of what becomes E4M3 bytes differ by at most this, see `aligned`."""


@fieldwise_init
struct ByteTable(TrivialRegisterPassable):
    """What makes the E5M2 magnitudes of all codes of a block, from its scale."""

    var low: UInt32
    """What is added for the magnitudes of codes 0 to 3."""
    var high: UInt32
    """What is added for those of codes 4 to 7."""

    # Of an exponent e, one more than that of 0.5: 0, 4 e, 4 e + 4, 4 e + 6 | 4 e + 8, .. + 14.
    comptime LOW = UInt32(0x06040000)
    comptime LOW_STEP = UInt32(0x04040400)
    comptime HIGH = UInt32(0x0E0C0A08)
    comptime HIGH_STEP = UInt32(0x04040404)

    @staticmethod
    @always_inline
    def of_base(base: UInt32) -> Self:
        """Returns the table of a row: the smallest scale has the smallest regular exponent."""
        var before = base - UInt32(SPAN + 1)
        return Self(Self.LOW - before * Self.LOW_STEP, Self.HIGH - before * Self.HIGH_STEP)

    @always_inline
    def magnitudes(self, scale: UInt32) -> SIMD[DType.uint32, 2]:
        """Returns the bytes of all magnitudes of a block: of codes 0 to 3, and of 4 to 7."""
        return {scale * Self.LOW_STEP + self.low, scale * Self.HIGH_STEP + self.high}

    @always_inline
    def bytes(self, word: UInt32, scale: UInt32) -> SIMD[DType.uint32, 2]:
        """Returns eight codes of a block as bytes, the first four and the last four."""
        var magnitudes = self.magnitudes(scale)
        return pick_codes(word, magnitudes[0], magnitudes[1])


@fieldwise_init
struct RowTables(TrivialRegisterPassable):
    """The tables of a lane's two rows, and where scale bytes of them are in a word of four."""

    var first: ByteTable
    var second: ByteTable
    var place: UInt32
    """The place of the first one's scale byte; the second one's is next to it."""

    @always_inline
    def magnitudes(self, scales: UInt32) -> SIMD[DType.uint32, 4]:
        """Returns the bytes of all magnitudes of a block, of both rows."""
        var first = self.first.magnitudes(scale_at(scales, self.place))
        return first.join(self.second.magnitudes(scale_at(scales, self.place + 1)))


@always_inline
def fragment_of(
    magnitudes: SIMD[DType.uint32, 4], words: SIMD[DType.uint32, 2]
) -> SIMD[DType.uint32, 4]:
    """Returns a word of each row as bytes: the first four codes of both, then the others."""
    var upper = pick_codes(words[0], magnitudes[0], magnitudes[1])
    var lower = pick_codes(words[1], magnitudes[2], magnitudes[3])
    return {upper[0], lower[0], upper[1], lower[1]}


@always_inline
def pick_codes(word: UInt32, low: UInt32, high: UInt32) -> SIMD[DType.uint32, 2]:
    """Returns eight codes as bytes, the first four and the last four.

    `low` has the bytes of the magnitudes 0 to 3, `high` those of 4 to 7.
    """
    var codes = word & MAGNITUDES
    # Signs of even codes come from the shifted word, those of odd ones from the word.
    var evens = word << 4
    return {
        set_signs(pick_bytes(low, high, codes), pick_bytes(evens, word, UInt32(0x5140))),
        set_signs(pick_bytes(low, high, codes >> 16), pick_bytes(evens, word, UInt32(0x7362))),
    }


@always_inline
def scale_at(scales: UInt32, row: UInt32) -> UInt32:
    """Returns the scale byte of one of four rows."""
    return join_bytes(scales, 0x4440 + row)


@always_inline
def fits[bits: Int](word: UInt32, scale: UInt32, base: UInt32) -> Bool:
    """Says whether codes of a block, of so many bits each, are bytes of a row with a base."""
    comptime LARGEST_SPAN = SPAN if bits == 4 else BYTE_SPAN
    comptime SIZES = MAGNITUDES if bits == 4 else BYTE_MAGNITUDES
    return scale + UInt32(LARGEST_SPAN) >= base or word & SIZES == 0


@always_inline
def is_base(base: UInt32) -> Bool:
    """Says whether the largest scale of a row can be its base."""
    return base >= UInt32(SMALLEST_BASE) and base <= UInt32(LARGEST_BASE)


@always_inline
def factor_of(base: UInt32) -> Float32:
    """Returns the power of two that the numbers of a row are to be multiplied by."""
    var exponent = base - UInt32(FACTOR_AT_BASE - E8M0_BIAS)
    return Float32(from_bits=exponent << UInt32(F32_MANTISSA_BITS))
