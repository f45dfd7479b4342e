"""Codes of eight neighbours become bfloat16 numbers: elements times their scale, exactly.

Codes are taken in pairs that are half a word apart:

    four bits     k0, k4    k1, k5    k2, k6    k3, k7
    others        k0, k2    k1, k3    k4, k6    k5, k7    a byte each

Exponent and mantissa bits of a code, put on the lowest exponent bits of a bfloat16, make a number
that is exact but too small by a power of two; one multiplication by a factor scales it too. Large
scales need two. Integers go by float32. Codes that are no numbers are lost.
"""

from std.memory import bitcast

from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS
from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ..codec import Chunk, f32_of_scale
from ..host import CHUNK
from ..instructions import Quad, keep_branch, multiply_add_pairs, pick_bytes
from .operands import SAFE_SCALES

comptime BF16_MANTISSA_BITS = 7
"""Mantissa bits of bfloat16."""
comptime BOTH_HALVES = UInt32(0x00010001)
"""Times a 16-bit value: the value in both halves."""
comptime EACH_BYTE = UInt32(0x01010101)
"""Times a byte: the byte four times."""
comptime EXPONENT_UNIT = UInt32(1 << BF16_MANTISSA_BITS) * BOTH_HALVES
"""The exponent one, in both halves."""
comptime LOWER = UInt32(0x5410)
"""Which bytes of two words are their lower halves."""
comptime UPPER = UInt32(0x7632)
"""Which bytes of two words are their upper halves."""
comptime Pairs = Quad[DType.uint32]
"""Four registers of two bfloat16 numbers each: a chunk."""


@always_inline
def max_single(element: Element) -> Int:
    """Returns the largest scale that one factor applies."""
    return E8M0_BIAS + (SAFE_SCALES.largest if element.is_integer() else element.bias)


@always_inline
def is_usual[element: Element](scale: UInt32) -> Bool:
    """Says whether a scale is safe, and one factor applies it."""
    comptime LEAST = E8M0_BIAS + SAFE_SCALES.least
    return scale - UInt32(LEAST) <= UInt32(max_single(element) - LEAST)


@always_inline
def are_lost[
    runs: SIMDLength, //, element: Element
](words: SIMD[DType.uint32, runs], scale: UInt32) -> Bool:
    """Says whether a chunk has codes that are no numbers, or any but zero under an unsafe scale."""
    comptime EXTENT = UInt32(SAFE_SCALES.largest - SAFE_SCALES.least)
    var found = has_specials[element](words)
    if scale - UInt32(E8M0_BIAS + SAFE_SCALES.least) > EXTENT and scale != UInt32(E8M0_NAN):
        # Two's complement has one zero.
        comptime CODE = 0xFF if element.is_integer() else element.magnitude_mask()
        comptime CODES = UInt32(CODE | CODE << 4 if element.bits == 4 else CODE) * EACH_BYTE
        comptime for i in range(runs):
            found |= words[i] & CODES != 0
    return found


@always_inline
def numbers_of[
    runs: SIMDLength, //, element: Element, is_usual: Bool
](words: SIMD[DType.uint32, runs], scale: UInt32) -> Pairs:
    """Returns the elements of a chunk times their scale, a byte."""
    comptime if element.is_integer():
        return numbers_of_bytes[element](rebind[SIMD[DType.uint32, 2]](words), scale)
    else:
        comptime MAX_SINGLE = UInt32(max_single(element))
        comptime BEFORE_ONE = UInt32(F32_EXPONENT_BIAS - element.bias) * EXPONENT_UNIT
        var single = scale if is_usual else min(scale, MAX_SINGLE)
        var pairs = multiplied(unscaled_pairs[element](words), single * EXPONENT_UNIT + BEFORE_ONE)
        comptime if not is_usual:
            if scale > MAX_SINGLE:
                keep_branch()
                comptime NAN = UInt32(0x7FC0) * BOTH_HALVES
                var second = (scale - UInt32(element.bias)) * EXPONENT_UNIT
                pairs = multiplied(pairs, NAN if scale == UInt32(E8M0_NAN) else second)
        return in_order[element.bits](pairs)


@always_inline
def unscaled_pairs[
    runs: SIMDLength, //, element: Element
](words: SIMD[DType.uint32, runs]) -> Pairs:
    """Returns the codes of a chunk as bfloat16 pairs, too small by 2 ** (127 - bias)."""
    comptime SIGNS = UInt32(0x8000) * BOTH_HALVES
    comptime SHIFT = UInt32(BF16_MANTISSA_BITS - element.mantissa_bits)
    var pairs = Pairs()
    comptime if element.bits == 4:
        comptime EVEN = UInt32(0x000F) * BOTH_HALVES
        comptime ODD = UInt32(0x00F0) * BOTH_HALVES
        # One product puts a code twice: its sign bit on top, the others below.
        comptime FROM_EVEN = UInt32((1 << 12) + (1 << Int(SHIFT)))
        comptime FROM_ODD = UInt32((1 << 8) + (1 << Int(SHIFT - 4)))
        comptime KEPT = SIGNS | (UInt32(element.magnitude_mask() << Int(SHIFT)) * BOTH_HALVES)
        comptime for i in range(2):
            var codes = words[0] >> UInt32(8 * i)
            pairs[2 * i] = ((codes & EVEN) * FROM_EVEN) & KEPT
            pairs[2 * i + 1] = ((codes & ODD) * FROM_ODD) & KEPT
    else:
        comptime KEPT = UInt32(element.magnitude_mask() << Int(SHIFT)) * BOTH_HALVES
        comptime UNUSED = UInt32(8 - element.bits)
        comptime for i in range(2):
            var word = words[i]
            pairs[2 * i] = ((word << SHIFT) & KEPT) | ((word << (8 + UNUSED)) & SIGNS)
            pairs[2 * i + 1] = ((word >> (8 - SHIFT)) & KEPT) | ((word << UNUSED) & SIGNS)
    return pairs


@always_inline
def bf16_pair(number: Float32) -> UInt32:
    """Returns a number that bfloat16 holds, in both halves."""
    return (bitcast[DType.uint32](number) >> 16) * BOTH_HALVES


@always_inline
def multiplied(pairs: Pairs, factor: UInt32) -> Pairs:
    """Returns pairs times a pair of factors, signs of zeros kept."""
    comptime MINUS_ZERO = UInt32(0x8000) * BOTH_HALVES
    var products = Pairs()
    comptime for i in range(CHUNK // 2):
        products[i] = multiply_add_pairs(pairs[i], factor, MINUS_ZERO)
    return products


@always_inline
def in_order[bits: Int](pairs: Pairs) -> Pairs:
    """Returns the pairs of neighbours, from those that are half a word apart."""
    var first = pick_bytes(pairs[0], pairs[1], LOWER)
    var second = pick_bytes(pairs[0], pairs[1], UPPER)
    var third = pick_bytes(pairs[2], pairs[3], LOWER)
    var fourth = pick_bytes(pairs[2], pairs[3], UPPER)
    comptime if bits == 4:
        return Pairs(first, third, second, fourth)
    else:
        return Pairs(first, second, third, fourth)


@always_inline
def has_specials[runs: SIMDLength, //, element: Element](words: SIMD[DType.uint32, runs]) -> Bool:
    """Says whether some codes are infinite or NaN."""
    comptime if element.has_non_finite():
        comptime FIRST = element.infinity_code if element.infinity_code != 0 else element.nan_code
        comptime TOP_BITS = UInt32(0x80) * EACH_BYTE
        comptime TO_TOP = UInt32(0x80 - FIRST) * EACH_BYTE
        var found = UInt32(0)
        comptime for i in range(runs):
            found |= (words[i] & ~TOP_BITS) + TO_TOP
        return found & TOP_BITS != 0
    else:
        return False


@always_inline
def numbers_of_bytes[element: Element](words: SIMD[DType.uint32, 2], scale: UInt32) -> Pairs:
    """Returns integers of eight bits times their unit and scale.

    A byte on the lowest bits of 2 ** 23 makes a float32 that is larger by that, and by 128 for the
    sign bit, which is turned around.
    """
    comptime LARGE = UInt32((F32_EXPONENT_BIAS + 23) << 23)
    comptime SIGNS = UInt32(element.sign_code()) * EACH_BYTE
    comptime UNIT = Float32(2) ** Float32(element.unit_exponent())
    var added = bitcast[DType.float32](LARGE + UInt32(element.sign_code()))
    var values = Chunk()
    comptime for i in range(CHUNK):
        comptime BYTE = UInt32(0x7650 + i % 4)
        var bits = pick_bytes(words[i // 4] ^ SIGNS, LARGE, BYTE)
        values[i] = bitcast[DType.float32](bits) - added
    var numbers = values * (f32_of_scale(scale) * UNIT)
    var pairs = Pairs()
    var bits = bitcast[DType.uint32, CHUNK](numbers)
    comptime for i in range(CHUNK // 2):
        pairs[i] = pick_bytes(bits[2 * i], bits[2 * i + 1], UPPER)
    return pairs
