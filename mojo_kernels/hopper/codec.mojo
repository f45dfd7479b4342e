"""Codes and floats as bfloat16 pairs, two numbers at once, and floats as codes.

Weights come as words of codes, k = 0 .. 7 of a row. Each pair of codes that are four apart becomes
one register of two bfloat16 numbers: exponent and mantissa bits of a code, put on the lowest
exponent bits, make a number that is exact but 2**126 too small, and one multiplication by the
block's factor makes it right.

    pair        0         1         2         3
    codes of    k0, k4    k1, k5    k2, k6    k3, k7

Factors of E8M0 scales are powers of two, a bfloat16 in both halves of a register. Scales above two,
rare in weights, need two of them; at the two largest scales the codes 4 and 6 do not fit and the
caller has to compute another way.

A code times an E4M3 scale has six significant bits, so that too is exact. Seven powers of two are left
to the tensor scale, which meets sums: what undoes the 2**126 does not fit beside a scale of 448. A
scale that is NaN or negative is rare, and decoded apart.

Rows of A are kept, rounded to MXFP4 values, or decoded. Four neighbouring lanes hold a block, eight
elements each. Numbers that come as bfloat16 are rounded two at a time, as they lie in memory; all
else goes the way of any GPU, eight float32 at a time. What comes out are pairs in the order of the
weights' pairs.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_xor
from std.memory import bitcast

from ..numbers.elements import Element
from ..numbers.floats import round_to
from ..numbers.rounding import scale_from_amax
from ..numbers.scales import E8M0_BIAS, E8M0_LARGEST, E8M0_NAN, Scale
from ..simt.arguments import Activations
from ..simt.codec import ANY_BITS, Chunk, element_of, encode_chunk, f32_of_scale, pack
from ..simt.codec import rounded_chunk, scale_of_block
from ..simt.host import BFLOAT16, CHUNK
from ..simt.tiles.numbers import unscaled_pairs as portable_pairs
from ..simt.views import rows_of
from .instructions.packed import (
    BF16_MANTISSA_BITS,
    BOTH_HALVES,
    EXPONENT_UNIT,
    LOW_BYTES,
    Pairs,
    WORD_PAIRS,
    join_halves,
    larger_magnitude,
    limit_magnitude,
    multiply_pairs,
    multiply_pairs_by_half,
    multiply_sum,
    packed_add,
    packed_max,
    packed_min,
    packed_multiply,
    packed_multiply_add,
)
from .instructions.warp import keep_branch
from .layout import BLOCK, K_LANES, OPERANDS, ROWS_PER_LANE
from .shapes import LANE_BYTES

comptime ELEMENT = OPERANDS.element
"""What numbers are rounded to."""
comptime MAGNITUDES = UInt32(0x7FFF) * BOTH_HALVES
"""The bits of bfloat16 pairs that are no signs."""
comptime Rows[count: Int] = Array[Pairs, count]
"""Decoded words of some rows."""
comptime WORD_SCALES = 4
"""Scale bytes of a word."""
comptime MAX_SINGLE_SCALE = 128
"""The largest scale byte that one factor can apply."""
comptime MAX_EXACT_SCALE = 252
"""The largest scale byte under which bfloat16 and float32 hold every code."""


# Weights.


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


comptime E4M3_HALVINGS = 7
"""How many times a weight under an E4M3 scale is halved, which its tensor scale undoes."""


@always_inline
def e4m3_factor(scale_halves: UInt32) -> UInt32:
    """Returns the factor of an E4M3 scale that is a number and not negative.

    The byte's bits are those of a bfloat16 number that is 2**120 too small, subnormal or not.
    """
    comptime TO_BITS = BF16_MANTISSA_BITS - Element.E4M3.mantissa_bits
    comptime TO_SCALE = E8M0_BIAS - Element.E4M3.bias
    comptime TO_CODE = E8M0_BIAS - Element.E2M1.bias - E4M3_HALVINGS
    var small = scale_halves << UInt32(TO_BITS)
    var scale = packed_multiply(small, UInt32(E8M0_BIAS + TO_SCALE) * EXPONENT_UNIT)
    return packed_multiply(scale, UInt32(E8M0_BIAS + TO_CODE) * EXPONENT_UNIT)


@always_inline
def factor_of[scale: Scale](scale_halves: UInt32) -> UInt32:
    """Returns the factors of two scale bytes, each in its half of a register, that are usual."""
    comptime if scale == Scale.E4M3:
        return e4m3_factor(scale_halves)
    else:
        return single_factor(scale_halves)


@always_inline
def unusual_bits[scale: Scale](scales: UInt32) -> UInt32:
    """Returns bits whose `may_need_two_factors` says that some scale bytes may be unusual.

    Those of E4M3 are NaN, 0x7F, and what has a sign.
    """
    comptime if scale == Scale.E4M3:
        return scales | (scales + 0x01010101)
    else:
        return scales


@always_inline
def scaled_pairs_under[scale: Scale](word: UInt32, byte: UInt32) -> Pairs:
    """Decodes a word under any scale byte of a kind."""
    comptime if scale == Scale.E4M3:
        comptime NAN = UInt32(0x7FC0)
        var magnitude = byte & UInt32(Element.E4M3.magnitude_mask())
        var sign = (byte & UInt32(Element.E4M3.sign_code())) << 8
        var factor = e4m3_factor(magnitude) | sign
        var is_nan = magnitude == UInt32(Element.E4M3.nan_code)
        return multiply_pairs(unscaled_pairs(word), (NAN if is_nan else factor) * BOTH_HALVES)
    else:
        return scaled_pairs_of_any(word, byte)


@always_inline
def decode_rows[
    scale: Scale
](words: SIMD[DType.uint32, ROWS_PER_LANE], scales: UInt32) -> Rows[ROWS_PER_LANE]:
    """Decodes the words of a lane's four rows under scales that one factor applies."""
    var decoded = Rows[ROWS_PER_LANE](uninitialized=True)
    comptime for odd in range(2):
        # The factors of rows `odd` and `odd` + 2.
        var factors = factor_of[scale]((scales >> UInt32(8 * odd)) & LOW_BYTES)
        comptime for upper in range(2):
            comptime row = odd + 2 * upper
            decoded[row] = multiply_pairs_by_half[upper == 1](unscaled_pairs(words[row]), factors)
    return decoded^


@always_inline
def decode_rows_of_any[
    scale: Scale
](words: SIMD[DType.uint32, ROWS_PER_LANE], scales: UInt32) -> Rows[ROWS_PER_LANE]:
    """Decodes the words of a lane's four rows under any scales."""
    var decoded = Rows[ROWS_PER_LANE](uninitialized=True)
    comptime for row in range(ROWS_PER_LANE):
        var byte = (scales >> UInt32(8 * row)) & 0xFF
        decoded[row] = scaled_pairs_under[scale](words[row], byte)
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


# Rows of A.


@fieldwise_init
struct RowPairs(TrivialRegisterPassable):
    """Eight elements of a row in fragment order."""

    var pairs: Pairs
    """Four registers of bfloat16 pairs."""
    var overflow: Bool
    """Whether bfloat16 cannot hold some of them."""


@always_inline
def in_fragment_order(neighbours: Pairs) -> Pairs:
    """Turns pairs of neighbours into pairs that are four apart."""
    return Pairs(
        join_halves[False](neighbours[0], neighbours[2]),
        join_halves[True](neighbours[0], neighbours[2]),
        join_halves[False](neighbours[1], neighbours[3]),
        join_halves[True](neighbours[1], neighbours[3]),
    )


@always_inline
def pairs_of_floats(values: Chunk) -> Pairs:
    """Packs numbers that bfloat16 holds, in fragment order."""
    comptime UPPER = UInt32(0xFFFF0000)
    var bits = bitcast[DType.uint32, CHUNK](values)
    var pairs = Pairs()
    comptime for i in range(CHUNK // 2):
        pairs[i] = (bits[i] >> 16) | (bits[i + CHUNK // 2] & UPPER)
    return pairs


@always_inline
def floats_of_neighbours(neighbours: Pairs) -> Chunk:
    """Unpacks pairs of bfloat16 neighbours."""
    var bits = SIMD[DType.uint32, CHUNK]()
    comptime for i in range(CHUNK // 2):
        bits[2 * i] = neighbours[i] << 16
        bits[2 * i + 1] = neighbours[i] & 0xFFFF0000
    return bitcast[DType.float32, CHUNK](bits)


@always_inline
def packed_magnitude(neighbours: Pairs) -> UInt32:
    """Returns the largest magnitude of the lower halves, and that of the upper ones.

    The bits of a NaN are larger than those of any number.
    """
    comptime assert WORD_PAIRS == 4, "two pairs of pairs"
    var first = larger_magnitude(neighbours[0], neighbours[1])
    return larger_magnitude(first, larger_magnitude(neighbours[2], neighbours[3])) & MAGNITUDES


@always_inline
def magnitude_of_block(neighbours: Pairs) -> UInt32:
    """Returns the bits of the largest magnitude of the block that four lanes hold.

    All lanes of the warp call it.
    """
    var maxima = packed_magnitude(neighbours)
    comptime for step in range(2):
        maxima = packed_max(maxima, shuffle_xor(maxima, UInt32(1 << step)))
    return max(maxima >> 16, maxima & 0xFFFF)


@always_inline
def scale_of_magnitude(amax: UInt32, carry: UInt32) -> UInt32:
    """Returns the scale byte of a block with such a largest magnitude.

    A block with a NaN or an infinity has the scale NaN.
    """
    comptime NOT_FINITE = UInt32(0x7F80)
    var scale = scale_from_amax[BF16_MANTISSA_BITS, DType.uint32, ELEMENT](amax, carry >> 16)
    return UInt32(E8M0_NAN) if amax >= NOT_FINITE else scale


@always_inline
def scale_of_neighbours(neighbours: Pairs, carry: UInt32) -> Tuple[UInt32, UInt32]:
    """Returns the scale byte of the block that four lanes hold, and its largest magnitude.

    All lanes of the warp call it.
    """
    var amax = magnitude_of_block(neighbours)
    return (scale_of_magnitude(amax, carry), amax)


@always_inline
def rounds_packed(scale: UInt32) -> Bool:
    """Says whether two numbers under a scale can be rounded at once, in bfloat16."""
    comptime MIN_PACKED_SCALE = 8
    comptime MAX_PACKED_SCALE = 240
    return scale >= MIN_PACKED_SCALE and scale <= MAX_PACKED_SCALE


@always_inline
def packed_binade(pair: UInt32, scale: UInt32) -> UInt32:
    """Returns the start of each number's binade, none below the scale's own."""
    comptime EXPONENTS = UInt32(0x7F80) * BOTH_HALVES
    return packed_max(pair & EXPONENTS, scale * EXPONENT_UNIT)


@always_inline
def round_packed(neighbours: Pairs, scale: UInt32) -> Pairs:
    """Rounds bfloat16 numbers under a scale of which `rounds_packed` is true; no zero is negative.

    Beside an anchor of 96 times the start of a number's binade, the last bit is one step of the codes
    around it, whatever its sign.
    """
    comptime ANCHOR = UInt32(0x42C0) * BOTH_HALVES
    comptime NEGATIVE = UInt32(0xC2C0) * BOTH_HALVES
    comptime assert BF16_MANTISSA_BITS - ELEMENT.mantissa_bits == 6, "bits that codes do not have"
    comptime LARGEST_OVER_SCALE = UInt32(ELEMENT.emax) * EXPONENT_UNIT + (EXPONENT_UNIT >> 1)
    var largest = scale * EXPONENT_UNIT + LARGEST_OVER_SCALE
    var rounded = Pairs()
    comptime for i in range(CHUNK // 2):
        var binade = packed_binade(neighbours[i], scale)
        var shifted = packed_multiply_add(binade, ANCHOR, neighbours[i])
        rounded[i] = limit_magnitude(packed_multiply_add(binade, NEGATIVE, shifted), largest)
    return rounded


@always_inline
def round_neighbours(neighbours: Pairs, scale: UInt32, amax: UInt32) -> RowPairs:
    """Rounds bfloat16 numbers to what their MX encoding under any scale stands for."""
    if rounds_packed(scale):
        return RowPairs(in_fragment_order(round_packed(neighbours, scale)), False)
    keep_branch()
    if amax == 0:
        return RowPairs(in_fragment_order(neighbours), False)
    var values = rounded_or_nan(floats_of_neighbours(neighbours), scale)
    return RowPairs(pairs_of_floats(values), overflows(scale))


@always_inline
def encode_neighbours(neighbours: Pairs, scale: UInt32) -> UInt32:
    """Returns the packed codes of bfloat16 numbers under their block's scale."""
    comptime LARGEST = UInt32(ELEMENT.largest_code) * BOTH_HALVES
    comptime SIGN_CODES = UInt32(ELEMENT.sign_code()) * BOTH_HALVES
    # From the exponent of an anchor to the codes that come before its binade.
    comptime TO_EARLIER = BF16_MANTISSA_BITS - ELEMENT.mantissa_bits
    # From a binade to the number whose last mantissa bit is one step of the codes there.
    comptime TO_ANCHOR = UInt32(TO_EARLIER) * EXPONENT_UNIT
    if not rounds_packed(scale):
        keep_branch()
        var codes = encode_chunk[True](
            floats_of_neighbours(neighbours), scale, materialize[ELEMENT]()
        )
        return pack[ELEMENT.bits](codes)[0]

    var first_anchor = packed_binade(0, scale) + TO_ANCHOR
    var word = UInt32(0)
    comptime for i in range(CHUNK // 2):
        var anchor = packed_binade(neighbours[i], scale) + TO_ANCHOR
        var shifted = packed_add(neighbours[i] & MAGNITUDES, anchor)
        var codes = (shifted - anchor) + ((anchor - first_anchor) >> UInt32(TO_EARLIER))
        codes = packed_min(codes, LARGEST) | ((neighbours[i] >> 12) & SIGN_CODES)
        # The upper half's code next to the lower half's: one byte.
        word |= ((codes | (codes >> 12)) & 0xFF) << UInt32(8 * i)
    return word


@always_inline
def rounded_or_nan(x: Chunk, scale: UInt32) -> Chunk:
    """Returns a chunk rounded to its MX values, all NaN under the scale NaN."""
    if scale == UInt32(E8M0_NAN):
        return Chunk(f32_of_scale(scale))
    return rounded_chunk(x, scale, materialize[ELEMENT]())


@always_inline
def load_neighbours(a: Activations, row: UInt32, chunk: UInt32) -> Pairs:
    """Loads eight bfloat16 numbers of a row."""
    var numbers = (
        a.floats()
        .rows[DType.bfloat16]()
        .load[width=CHUNK, alignment=LANE_BYTES](Coord(Int(row), Int(chunk) * CHUNK))
    )
    return bitcast[DType.uint32, WORD_PAIRS](numbers)


@always_inline
def pairs_of_neighbours(a: Activations, neighbours: Pairs) -> RowPairs:
    """Makes of bfloat16 numbers what the kind of the activations asks."""
    if a.is_kept():
        return RowPairs(in_fragment_order(neighbours), False)
    var scale, amax = scale_of_neighbours(neighbours, a.carry)
    return round_neighbours(neighbours, scale, amax)


@always_inline
def load_row(a: Activations, row: UInt32, chunk: UInt32) -> RowPairs:
    """Loads eight elements of a row as the kind of the activations asks."""
    if a.is_encoded():
        keep_branch()
        var k_blocks = Int(UInt32(a.k) // UInt32(BLOCK))
        var words = rows_of(a.values.unsafe_bitcast[UInt32](), k_blocks * K_LANES)
        var word = words[Int(row), Int(chunk)]
        var scales = rows_of(a.scales, k_blocks)
        var scale = scales[Int(row), Int(chunk // UInt32(K_LANES))].cast[DType.uint32]()
        return RowPairs(scaled_pairs_of_any(word, scale), overflows(scale))
    if a.dtype == BFLOAT16:
        keep_branch()
        return pairs_of_neighbours(a, load_neighbours(a, row, chunk))

    var x = a.floats().load[CHUNK, CHUNK](Int(row), Int(chunk) * CHUNK)
    var scale = scale_of_block(x, a.carry, materialize[ELEMENT]())
    return RowPairs(pairs_of_floats(rounded_or_nan(x, scale)), overflows(scale))


@always_inline
def is_beyond(values: Chunk, scale: UInt32, element: Element) -> Bool:
    """Says whether bfloat16 may not hold some numbers of a chunk under a scale."""
    comptime BF16_SMALLEST = 6
    """What the exponent of the smallest number of bfloat16 is below that of the scale 0."""
    if scale == UInt32(E8M0_NAN):
        return False
    var is_large = Int(scale) + element.emax > E8M0_LARGEST
    var is_small = Int(scale) + BF16_SMALLEST < -element.unit_exponent()
    return is_large or (is_small and values.ne(0).reduce_or())


@always_inline
def load_chunk(a: Activations, is_aligned: Bool, row: Int, chunk: UInt32) -> RowPairs:
    """Loads eight elements of a row as the kind of the activations asks; whole warps call it."""
    if is_aligned and a.dtype == BFLOAT16:
        if a.is_kept() or a.format == Int32(OPERANDS.code()):
            return pairs_of_neighbours(a, load_neighbours(a, UInt32(row), chunk))
    keep_branch()
    var x = a.floats().load[CHUNK, 1](row, Int(chunk) * CHUNK)
    if a.is_kept():
        return RowPairs(pairs_of_floats(round_to[DType.bfloat16](x).cast[DType.float32]()), False)
    var element = element_of[ANY_BITS](a.format)
    var scale = scale_of_block(x, a.carry, element)
    var values = rounded_chunk(x, scale, element)
    if scale == UInt32(E8M0_NAN):
        values = Chunk(f32_of_scale(scale))
    return RowPairs(pairs_of_floats(values), is_beyond(values, scale, element))
