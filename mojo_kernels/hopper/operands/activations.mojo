"""Rows of activations ("tokens") as bfloat16 pairs: kept, rounded to MXFP4 values, or decoded.

Four neighbouring lanes hold a block, eight elements each. Numbers that come as bfloat16 are
rounded two at a time, as they lie in memory; all else goes the way of any GPU, eight float32 at
a time. What comes out are pairs in the order of the weights' pairs, k and k + 4 in one register.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_xor
from std.memory import bitcast

from ...numbers.rounding import scale_from_amax
from ...numbers.scales import E8M0_NAN
from ...simt.arguments import Activations
from ...simt.codec import Chunk, encode_chunk, f32_of_scale, pack, rounded_chunk
from ...simt.codec import scale_of_block
from ...simt.host import BFLOAT16, CHUNK
from ...simt.views import rows_of
from ..instructions.packed import (
    BF16_MANTISSA_BITS,
    BOTH_HALVES,
    EXPONENT_UNIT,
    Pairs,
    WORD_PAIRS,
    join_halves,
    larger_magnitude,
    limit_magnitude,
    packed_add,
    packed_max,
    packed_min,
    packed_multiply_add,
)
from ..instructions.warp import keep_branch
from ..layout import BLOCK, K_LANES, OPERANDS
from ..shapes import LANE_BYTES
from .weights import overflows, scaled_pairs_of_any

comptime ELEMENT = OPERANDS.element
"""What numbers are rounded to."""
comptime MAGNITUDES = UInt32(0x7FFF) * BOTH_HALVES
"""The bits of bfloat16 pairs that are no signs."""


@fieldwise_init
struct TokenPairs(TrivialRegisterPassable):
    """Eight elements of a token in fragment order."""

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
def round_neighbours(neighbours: Pairs, scale: UInt32, amax: UInt32) -> TokenPairs:
    """Rounds bfloat16 numbers to what their MX encoding under any scale stands for."""
    if rounds_packed(scale):
        return TokenPairs(in_fragment_order(round_packed(neighbours, scale)), False)
    keep_branch()
    if amax == 0:
        return TokenPairs(in_fragment_order(neighbours), False)
    var values = rounded_or_nan(floats_of_neighbours(neighbours), scale)
    return TokenPairs(pairs_of_floats(values), overflows(scale))


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
def load_neighbours(a: Activations, token: UInt32, chunk: UInt32) -> Pairs:
    """Loads eight bfloat16 numbers of a token."""
    var numbers = (
        a.floats()
        .rows[DType.bfloat16]()
        .load[width=CHUNK, alignment=LANE_BYTES](Coord(Int(token), Int(chunk) * CHUNK))
    )
    return bitcast[DType.uint32, WORD_PAIRS](numbers)


@always_inline
def pairs_of_neighbours(a: Activations, neighbours: Pairs) -> TokenPairs:
    """Makes of bfloat16 numbers what the kind of the activations asks."""
    if a.is_kept():
        return TokenPairs(in_fragment_order(neighbours), False)
    var scale, amax = scale_of_neighbours(neighbours, a.carry)
    return round_neighbours(neighbours, scale, amax)


@always_inline
def load_token(a: Activations, token: UInt32, chunk: UInt32) -> TokenPairs:
    """Loads eight elements of a token as the kind of the activations asks."""
    if a.is_encoded():
        keep_branch()
        var k_blocks = Int(UInt32(a.k) // UInt32(BLOCK))
        var words = rows_of(a.values.unsafe_bitcast[UInt32](), k_blocks * K_LANES)
        var word = words[Int(token), Int(chunk)]
        var scales = rows_of(a.scales, k_blocks)
        var scale = scales[Int(token), Int(chunk // UInt32(K_LANES))].cast[DType.uint32]()
        return TokenPairs(scaled_pairs_of_any(word, scale), overflows(scale))
    if a.dtype == BFLOAT16:
        keep_branch()
        return pairs_of_neighbours(a, load_neighbours(a, token, chunk))

    var x = a.floats().load[CHUNK, CHUNK](Int(token), Int(chunk) * CHUNK)
    var scale = scale_of_block(x, a.carry, materialize[ELEMENT]())
    return TokenPairs(pairs_of_floats(rounded_or_nan(x, scale)), overflows(scale))
