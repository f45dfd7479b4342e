"""Codes under a larger scale than their block's: as E5M2, E4M3 and bfloat16 numbers.

MXFP4 as E5M2 is exact. An element of E2M1 times a power of two is an E5M2 number as long as that
power stays within 2 ** -13 .. 2 ** 13. So a row whose blocks' scales differ by at most `E5M2_SPAN`
is a row of E5M2 numbers and one power of two, its *shared exponent*, the row's largest scale byte:

    block's scale       shared - 26  ..  shared     the row's element = number * 2 ** (shared - 140)
    power of numbers    2 ** -13     ..  2 ** 13

A code's magnitude is a selector of `prmt`: eight bytes, made of the block's scale with two
multiplications, are the magnitudes of all codes; four come out of an instruction. Blocks of zeros
may have any scale: the byte of zero is zero in every table.

MXFP8 as E4M3 under a shared exponent that is d larger is times 2 ** -d: exact for all elements that
are at least 2 ** (d - 6), and for those with trailing zeros. The others are rounded to nearest
even, to a multiple of 2 ** -9 under the shared exponent: they move by at most 2 ** -10 there,
2 ** -18 of the largest element, where tensor cores cut off what is 2 ** -13 of the largest product.
`E4M3_SPAN` limits d to 14, so that no element moves by more than 16 under its own scale: as much as
rounding to E4M3 has moved the largest ones, which are 256 to 448 as `quantize` leaves them.

MXFP6 is E4M3 with the largest power of two that leaves none too large, 2 ** 5 times E2M3 and 2 ** 4
times E3M2, and exact under an exponent that is up to 11 or 9 larger: a multiple of 2 ** 2 or 1 and at
most 240 or 448, of four or three significant bits.

MXFP4, or MXFP6, times its scale is a bfloat16 number, unless it is too large, or too small to be regular. What
does not fit goes to the fallback: it is computed exactly, which takes long.
"""

from std.memory import bitcast

from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ..instructions.packed import (
    BF16_MANTISSA_BITS,
    BOTH_HALVES,
    Pairs,
    bytes_of_halves,
    halves_of_bytes,
    join_bytes,
    multiply_pairs,
    pick_bytes,
    set_signs,
)

comptime E5M2_SPAN = 26
"""Scales of a row of E5M2 differ by at most this."""
comptime E4M3_SPAN = 14
"""Scales of what shares an exponent as E4M3 differ by at most this."""
comptime SMALLEST_EXPONENT = E8M0_BIAS - 60
"""The smallest shared one: products of the factors of two rows are regular float32 numbers."""
comptime LARGEST_EXPONENT = E8M0_BIAS + 60
"""The largest one."""
comptime ZEROS_EXPONENT = UInt32(E8M0_BIAS)
"""That of a row of zeros."""
comptime NO_EXPONENT = UInt8(0)
"""Stands for that of a row that has none: the fallback flag."""
comptime LARGEST_POWER = 13
"""The power of two of numbers whose scale is the shared exponent."""
comptime EXPONENT_OF_ONE = E8M0_BIAS + LARGEST_POWER
"""A row of E5M2 with this shared exponent has the factor one."""
comptime TILE_EXPONENTS = 40
"""Exponents of 128 elements are this close to one's: products with others' factors are float32."""
comptime NO_FACTOR = UInt32(255 << F32_MANTISSA_BITS)
"""The bits of the factor of 128 elements that share no exponent: infinity."""
comptime MAGNITUDES = UInt32(0x77777777)
"""The bits of eight codes that are no signs."""
comptime BYTE_MAGNITUDES = UInt32(0x7F7F7F7F)
"""The bits of four codes of eight bits that are no signs."""
comptime SIX_WORDS = 3
"""Words of sixteen codes of six bits."""
comptime SAFE_EXPONENT = 64
"""As bfloat16, no element of a block whose scale is within 2 ** this of one is lost."""
comptime Bytes = SIMD[DType.uint32, 2]
"""A chunk of eight elements as bytes: its first four, and its last four."""


@fieldwise_init
struct E5M2Table(TrivialRegisterPassable):
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
    def under(exponent: UInt32) -> Self:
        """Returns the table of a row: the smallest scale has the smallest regular exponent."""
        var before = exponent - UInt32(E5M2_SPAN + 1)
        return Self(Self.LOW - before * Self.LOW_STEP, Self.HIGH - before * Self.HIGH_STEP)

    @always_inline
    def magnitudes(self, scale: UInt32) -> Bytes:
        """Returns the bytes of all magnitudes of a block: of codes 0 to 3, and of 4 to 7."""
        return {scale * Self.LOW_STEP + self.low, scale * Self.HIGH_STEP + self.high}

    @always_inline
    def bytes(self, word: UInt32, scale: UInt32) -> Bytes:
        """Returns eight codes of a block as bytes."""
        var magnitudes = self.magnitudes(scale)
        return pick_codes(word, magnitudes[0], magnitudes[1])


@always_inline
def pick_codes(word: UInt32, low: UInt32, high: UInt32) -> Bytes:
    """Returns eight codes as bytes; `low` has those of the magnitudes 0 to 3, `high` of 4 to 7."""
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


def e4m3_power(element: Element) -> Int:
    """Returns the exponent of the largest power of two that makes E4M3 of MXFP6; 0 of others."""
    var power = 0
    while element.bits == 6 and element.largest() * Float32(2 << power) <= Element.E4M3.largest():
        power += 1
    return power


def span_of(element: Element) -> Int:
    """Returns by how much scales under one exponent may differ; MXFP6 loses nothing."""
    if element == Element.E2M1:
        return E5M2_SPAN
    if element == Element.E4M3:
        return E4M3_SPAN
    return element.unit_exponent() + e4m3_power(element) - Element.E4M3.unit_exponent()


def magnitude_bits(bits: Int, word: Int) -> UInt32:
    """Returns the bits of a word of packed codes of so many bits that are no signs."""
    var found = UInt32(0)
    for bit in range(32):
        if (32 * word + bit) % bits != bits - 1:
            found |= UInt32(1) << UInt32(bit)
    return found


@always_inline
def fits[element: Element](word: UInt32, scale: UInt32, exponent: UInt32) -> Bool:
    """Says whether codes of a block can share an exponent; signs in a word count for nothing.

    Of six bits the word has none.
    """
    comptime SPAN = span_of(element)
    comptime SIZES = UInt32.MAX if element.bits == 6 else magnitude_bits(element.bits, 0)
    return scale + UInt32(SPAN) >= exponent or word & SIZES == 0


@always_inline
def is_shareable[element: Element = Element.E4M3](largest: UInt32) -> Bool:
    """Says whether the largest scale of a row leads to a shared exponent."""
    comptime POWER = UInt32(e4m3_power(element))
    var exponent = largest - POWER
    return exponent >= UInt32(SMALLEST_EXPONENT) and exponent <= UInt32(LARGEST_EXPONENT)


@always_inline
def is_tile_exponent[span: Int](largest: UInt32, smallest: UInt32) -> Bool:
    """Says whether 128 elements of a row can share their largest scale, as E4M3."""
    comptime LEAST = UInt32(E8M0_BIAS - TILE_EXPONENTS)
    var is_regular = largest - LEAST <= UInt32(2 * TILE_EXPONENTS)
    return is_regular and largest - smallest <= UInt32(span)


@always_inline
def e5m2_factor(exponent: UInt32) -> Float32:
    """Returns the power of two that the E5M2 numbers of a row are to be multiplied by."""
    var biased = exponent - UInt32(EXPONENT_OF_ONE - E8M0_BIAS)
    return Float32(from_bits=biased << UInt32(F32_MANTISSA_BITS))


@always_inline
def scaled_down[
    count: SIMDLength, //, lift: Int = 0
](words: SIMD[DType.uint32, count], steps: UInt32) -> type_of(words):
    """Returns E4M3 codes times 2 ** (lift - steps), four a word: up to `E4M3_SPAN` steps.

    They are rounded on the way from float16 numbers, which hold all of them. To make the fields of
    all bytes of a word smaller at once, where none becomes irregular, takes longer: warps wait for
    those that find one.
    """
    comptime ONE = 15
    comptime MANTISSA_BITS = 10
    var shift = (UInt32(ONE + lift) - min(steps, UInt32(E4M3_SPAN))) << UInt32(MANTISSA_BITS)
    var factor = bitcast[DType.float16, 2](shift | shift << 16)
    var found = type_of(words)(0)
    comptime for i in range(count):
        comptime for half in range(2):
            var codes = (words[i] >> UInt32(16 * half)).cast[DType.uint16]()
            var halves = bitcast[DType.float16, 2](halves_of_bytes["e4m3x2"](codes))
            var bytes = bytes_of_halves["e4m3x2"](bitcast[DType.uint32, 1](halves * factor)[0])
            found[i] |= bytes.cast[DType.uint32]() << UInt32(16 * half)
    return found


@always_inline
def bf16_of_codes(word: UInt32) -> Pairs:
    """Returns eight codes of four bits, in their order, as bfloat16 numbers."""
    # Bytes of 0, 0.5, 1, 1.5 and 2, 3, 4, 6, the upper ones, then the lower ones.
    var upper = pick_codes(word, 0x3F3F3F00, 0x40404040)
    var codes = word & MAGNITUDES
    var pairs = Pairs()
    comptime for half in range(2):
        var lower = pick_bytes(0xC0800000, 0xC0804000, codes >> UInt32(16 * half))
        pairs[2 * half] = pick_bytes(lower, upper[half], 0x5140)
        pairs[2 * half + 1] = pick_bytes(lower, upper[half], 0x7362)
    return pairs


@always_inline
def bytes_of_sixes[element: Element](words: SIMD[DType.uint32, 4]) -> SIMD[DType.uint32, 4]:
    """Returns sixteen codes of six bits, the first three words, as E4M3 codes with their fields.

    Those are elements times 2 ** -`lost_bias`.
    """
    comptime SHIFT = UInt32(Element.E4M3.mantissa_bits - element.mantissa_bits)
    var fours = SIMD[DType.uint32, 4](
        words[0], words[0] >> 24 | words[1] << 8, words[1] >> 16 | words[2] << 16, words[2] >> 8
    )
    var codes = fours & 0x3F
    comptime for i in range(1, 4):
        codes |= (fours << UInt32(2 * i)) & (UInt32(0x3F) << UInt32(8 * i))
    return (codes & 0x20202020) << 2 | (codes & 0x1F1F1F1F) << SHIFT


def lost_bias(element: Element) -> Int:
    """Returns what an exponent field counts for less in E4M3."""
    return Element.E4M3.bias - element.bias


@always_inline
def bf16_of_sixes[element: Element](bytes: UInt32, next_bytes: UInt32) -> Pairs:
    """Returns eight codes that `bytes_of_sixes` gives as bfloat16 numbers."""
    comptime TO_ONE = UInt32(2 * F32_EXPONENT_BIAS - element.bias) << UInt32(BF16_MANTISSA_BITS)
    var pairs = Pairs()
    comptime for i in range(4):
        # Each in the upper byte of a half, from where fields are as far apart as in bfloat16.
        var halves = join_bytes(bytes if i < 2 else next_bytes, 0x1404 + 0x2020 * UInt32(i % 2))
        pairs[i] = (halves & 0x80008000) | (halves >> 4 & 0x07F007F0)
    return multiply_pairs(pairs, TO_ONE * BOTH_HALVES)


@always_inline
def is_safe_in_bf16(scale: UInt32) -> Bool:
    """Says whether no element under a scale byte can be lost; NaN loses none."""
    comptime LEAST = UInt32(E8M0_BIAS - SAFE_EXPONENT)
    return scale - LEAST <= UInt32(2 * SAFE_EXPONENT) or scale == UInt32(E8M0_NAN)


@always_inline
def may_lose_in_bf16[element: Element](scale: UInt32) -> Bool:
    """Says whether some element under a scale byte that is no NaN is no regular number."""
    comptime LEAST = UInt32(1 - element.unit_exponent())
    comptime MOST = UInt32(2 * E8M0_BIAS - element.emax)
    return scale - LEAST > MOST - LEAST


@always_inline
def are_lost_in_bf16[
    count: SIMDLength, //
](values: SIMD[DType.float32, count], scale: Float32) -> Bool:
    """Says whether an element times its scale is neither zero nor a regular number, but finite."""
    comptime EXPONENTS = UInt32(255)
    comptime LEAST = UInt32(F32_EXPONENT_BIAS - SAFE_EXPONENT)
    var exponent = bitcast[DType.uint32](scale) >> UInt32(F32_MANTISSA_BITS)
    if exponent - LEAST <= UInt32(2 * SAFE_EXPONENT):
        return False
    var bits = bitcast[DType.uint32, count](values) & 0x7FFFFFFF
    var exponents = bitcast[DType.uint32, count](values * scale)
    exponents = (exponents >> UInt32(F32_MANTISSA_BITS)) & EXPONENTS
    var found = False
    comptime for i in range(count):
        var is_number = bits[i] != 0 and bits[i] < (EXPONENTS << UInt32(F32_MANTISSA_BITS))
        found |= is_number and (exponents[i] == 0 or exponents[i] == EXPONENTS)
    return found and scale == scale
