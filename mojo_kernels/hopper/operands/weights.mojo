"""From words of codes to tensor core fragments.

A word holds the codes of k = 0 .. 7 of one row. Each pair of codes that are
four apart becomes one register of two bfloat16 numbers: exponent and mantissa
bits of a code, put on the lowest exponent bits, make a number that is exact but
2**126 too small, and one multiplication by the block's factor makes it right.

    pair        0         1         2         3
    codes of    k0, k4    k1, k5    k2, k6    k3, k7

Factors are powers of two, a bfloat16 in both halves of a register. Scales above
two, rare in weights, need two of them; at the two largest scales the codes 4
and 6 do not fit and the caller has to compute another way.
"""

from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ...simt.tiles.numbers import unscaled_pairs as portable_pairs
from ..instructions.packed import (
    BF16_MANTISSA_BITS,
    BOTH_HALVES,
    EXPONENT_UNIT,
    LOW_BYTES,
    Pairs,
    multiply_pairs,
    multiply_pairs_by_half,
    multiply_sum,
)
from ..layout import OPERANDS, ROWS_PER_LANE

comptime Rows[count: Int] = Array[Pairs, count]
"""Decoded words of some rows."""
comptime WORD_SCALES = 4
"""Scale bytes of a word."""
comptime MAX_SINGLE_SCALE = 128
"""The largest scale byte that one factor can apply."""
comptime MAX_EXACT_SCALE = 252
"""The largest scale byte under which bfloat16 and float32 hold every code."""


@always_inline
def unscaled_pairs(word: UInt32) -> Pairs:
    """Returns the codes of a word as bfloat16 pairs, all 2**126 too small."""
    return portable_pairs[OPERANDS.element](SIMD[DType.uint32, 1](word))


@always_inline
def single_factor(scale_halves: UInt32) -> UInt32:
    """Returns the factor of a scale byte up to `MAX_SINGLE_SCALE`: 2**(scale - 1)."""
    comptime BEFORE_ONE = UInt32(E8M0_BIAS - 1) * EXPONENT_UNIT
    # One instruction; as a shift and a sum, the shift is moved before what isolates the bytes.
    return multiply_sum[1 << BF16_MANTISSA_BITS](scale_halves, BEFORE_ONE)


@always_inline
def may_need_two_factors(scales: UInt32) -> Bool:
    """Says, with less work, whether any of four scale bytes is `MAX_SINGLE_SCALE` or more."""
    comptime TOP_BITS = UInt32(0x80808080)
    return scales & TOP_BITS != 0


@always_inline
def scaled_pairs_of_any(word: UInt32, scale: UInt32) -> Pairs:
    """Decodes a word under any scale byte, with two factors."""
    comptime NAN = UInt32(0x7FC0) * BOTH_HALVES
    var first = multiply_pairs(
        unscaled_pairs(word),
        single_factor(min(scale, UInt32(MAX_SINGLE_SCALE)) * BOTH_HALVES),
    )
    var second = (max(scale, UInt32(MAX_SINGLE_SCALE)) - 1) * EXPONENT_UNIT
    return multiply_pairs(first, NAN if scale == UInt32(E8M0_NAN) else second)


@always_inline
def decode_rows(words: SIMD[DType.uint32, ROWS_PER_LANE], scales: UInt32) -> Rows[ROWS_PER_LANE]:
    """Decodes the words of a lane's four rows under scales that one factor applies."""
    var decoded = Rows[ROWS_PER_LANE](uninitialized=True)
    comptime for odd in range(2):
        # The factors of rows `odd` and `odd` + 2.
        var factors = single_factor((scales >> UInt32(8 * odd)) & LOW_BYTES)
        comptime for upper in range(2):
            comptime row = odd + 2 * upper
            decoded[row] = multiply_pairs_by_half[upper == 1](unscaled_pairs(words[row]), factors)
    return decoded^


@always_inline
def decode_rows_of_any(
    words: SIMD[DType.uint32, ROWS_PER_LANE], scales: UInt32
) -> Rows[ROWS_PER_LANE]:
    """Decodes the words of a lane's four rows under any scales."""
    var decoded = Rows[ROWS_PER_LANE](uninitialized=True)
    comptime for row in range(ROWS_PER_LANE):
        var scale = (scales >> UInt32(8 * row)) & 0xFF
        decoded[row] = scaled_pairs_of_any(words[row], scale)
    return decoded^


@always_inline
def overflows(scale: UInt32) -> Bool:
    """Says whether some codes under a scale byte are too large for bfloat16."""
    return scale > UInt32(MAX_EXACT_SCALE) and scale != UInt32(E8M0_NAN)


@always_inline
def any_overflows(scales: UInt32) -> Bool:
    """Says whether some codes under one of four scale bytes are too large."""
    var result = False
    comptime for i in range(WORD_SCALES):
        result |= overflows((scales >> UInt32(8 * i)) & 0xFF)
    return result
