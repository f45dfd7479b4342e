"""From words of codes to tensor core fragments, and the instructions that use them.

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

from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

from ..formats import FORMAT
from .layout import ROWS_PER_LANE

comptime WORD_PAIRS = 4
"""Registers that a word of codes becomes."""
comptime WORD_SCALES = 4
"""Scale bytes of a word."""
comptime Pairs = SIMD[DType.uint32, WORD_PAIRS]
"""Four registers of two bfloat16 numbers each."""
comptime BF16_MANTISSA_BITS = 7
"""Mantissa bits of bfloat16."""
comptime BOTH_HALVES = UInt32(0x00010001)
"""Times a 16-bit value: the value in both halves."""
comptime EXPONENT_UNIT = UInt32(1 << BF16_MANTISSA_BITS) * BOTH_HALVES
"""The exponent one, in both halves."""
comptime MAX_SINGLE_SCALE = 128
"""The largest scale byte that one factor can apply."""
comptime MAX_EXACT_SCALE = 252
"""The largest scale byte under which bfloat16 and float32 hold every code."""


@always_inline
def unscaled_pairs(word: UInt32) -> Pairs:
    """Returns the codes of a word as bfloat16 pairs, all 2**126 too small."""
    comptime EVEN = UInt32(0x000F000F)
    comptime ODD = UInt32(0x00F000F0)
    # One product puts a code twice: its sign bit on top, the others below.
    comptime FROM_EVEN = UInt32((1 << 12) + (1 << 6))
    comptime FROM_ODD = UInt32((1 << 8) + (1 << 2))
    comptime KEPT = UInt32(0x81C0) * BOTH_HALVES
    var upper = word >> 8
    return Pairs(
        ((word & EVEN) * FROM_EVEN) & KEPT,
        ((word & ODD) * FROM_ODD) & KEPT,
        ((upper & EVEN) * FROM_EVEN) & KEPT,
        ((upper & ODD) * FROM_ODD) & KEPT,
    )


@always_inline
def join_halves[upper: Bool](a: UInt32, b: UInt32) -> UInt32:
    """Returns the lower, or the upper, halves of two registers; `a`'s becomes the lower one."""
    comptime PICK = UInt32(0x7632) if upper else UInt32(0x5410)
    return inlined_assembly[
        "prmt.b32 $0, $1, $2, $3;", UInt32, constraints="=r,r,r,n", has_side_effect=False
    ](a, b, PICK)


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
def keep_branch():
    """Stays a branch: without it, the compiler computes rare paths for everybody."""
    inlined_assembly["", NoneType, constraints="", has_side_effect=True]()


@always_inline
def keep_here[width: SIMDLength](words: SIMD[DType.uint32, width]) -> SIMD[DType.uint32, width]:
    """Returns the words; nothing is computed from them before, where registers are scarce."""
    var kept = SIMD[DType.uint32, width]()
    comptime for i in range(width):
        kept[i] = inlined_assembly[
            "mov.b32 $0, $1;", UInt32, constraints="=r,r", has_side_effect=True
        ](words[i])
    return kept


@always_inline
def multiply_pairs(pairs: Pairs, factor: UInt32) -> Pairs:
    """Multiplies four registers of bfloat16 pairs by one."""
    var products = Pairs()
    comptime for i in range(WORD_PAIRS):
        products[i] = inlined_assembly[
            "mul.rn.bf16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
        ](pairs[i], factor)
    return products


@always_inline
def join_bytes(word: UInt32, selector: UInt32) -> UInt32:
    """Returns four bytes of a word, picked by the selector's lowest nibbles; 4 picks a zero."""
    return inlined_assembly[
        "prmt.b32 $0, $1, 0, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](word, selector)


@always_inline
def single_factor(scale_halves: UInt32) -> UInt32:
    """Returns the factor of a scale byte up to `MAX_SINGLE_SCALE`: 2**(scale - 1)."""
    comptime BEFORE_ONE = UInt32(FORMAT.scale_bias - 1) * EXPONENT_UNIT
    # One instruction; as a shift and a sum, the shift is moved before what isolates the bytes.
    return inlined_assembly[
        "mad.lo.u32 $0, $1, $2, $3;", UInt32, constraints="=r,r,n,r", has_side_effect=False
    ](scale_halves, UInt32(1 << BF16_MANTISSA_BITS), BEFORE_ONE)


@always_inline
def needs_two_factors(scales: UInt32) -> Bool:
    """Says whether any of four scale bytes is above `MAX_SINGLE_SCALE`."""
    comptime LOW_BITS = UInt32(0x7F7F7F7F)
    comptime TOP_BITS = UInt32(0x80808080)
    return ((scales & LOW_BITS) + LOW_BITS) & scales & TOP_BITS != 0


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
    return multiply_pairs(first, NAN if scale == UInt32(FORMAT.scale_nan) else second)


@always_inline
def multiply_pairs_by_half[upper: Bool](pairs: Pairs, factors: UInt32) -> Pairs:
    """Multiplies four registers of bfloat16 pairs by one half of another register."""
    comptime HALF: StaticString = "{h, h}" if upper else "{l, l}"
    comptime OPEN: StaticString = "{ .reg .b16 l, h; .reg .b32 f; mov.b32 {l, h}, $2; mov.b32 f, "
    var products = Pairs()
    comptime for i in range(WORD_PAIRS):
        products[i] = inlined_assembly[
            OPEN + HALF + "; mul.rn.bf16x2 $0, $1, f; }",
            UInt32,
            constraints="=r,r,r",
            has_side_effect=False,
        ](pairs[i], factors)
    return products


@always_inline
def decode_rows(
    words: SIMD[DType.uint32, ROWS_PER_LANE], scales: UInt32
) -> SIMD[DType.uint32, WORD_PAIRS * ROWS_PER_LANE]:
    """Decodes the words of a lane's four rows under scales that one factor applies."""
    comptime LOW_BYTES = UInt32(0xFF) * BOTH_HALVES
    var decoded = SIMD[DType.uint32, WORD_PAIRS * ROWS_PER_LANE]()
    comptime for odd in range(2):
        # The factors of rows `odd` and `odd` + 2.
        var factors = single_factor((scales >> UInt32(8 * odd)) & LOW_BYTES)
        comptime for upper in range(2):
            comptime row = odd + 2 * upper
            decoded = decoded.insert[offset=WORD_PAIRS * row](
                multiply_pairs_by_half[upper == 1](unscaled_pairs(words[row]), factors)
            )
    return decoded


@always_inline
def decode_rows_of_any(
    words: SIMD[DType.uint32, ROWS_PER_LANE], scales: UInt32
) -> SIMD[DType.uint32, WORD_PAIRS * ROWS_PER_LANE]:
    """Decodes the words of a lane's four rows under any scales."""
    var decoded = SIMD[DType.uint32, WORD_PAIRS * ROWS_PER_LANE]()
    comptime for i in range(ROWS_PER_LANE):
        var scale = (scales >> UInt32(8 * i)) & 0xFF
        decoded = decoded.insert[offset=WORD_PAIRS * i](scaled_pairs_of_any(words[i], scale))
    return decoded


@always_inline
def overflows(scale: UInt32) -> Bool:
    """Says whether some codes under a scale byte are too large for bfloat16."""
    return scale > UInt32(MAX_EXACT_SCALE) and scale != UInt32(FORMAT.scale_nan)


@always_inline
def any_overflows(scales: UInt32) -> Bool:
    """Says whether some codes under one of four scale bytes are too large."""
    var result = False
    comptime for i in range(WORD_SCALES):
        result |= overflows((scales >> UInt32(8 * i)) & 0xFF)
    return result


@always_inline
def any_lane(condition: Bool) -> Bool:
    """Says whether the condition holds in any lane of the warp; the answer is uniform."""
    return (
        inlined_assembly[
            """{
            .reg .pred p;
            setp.ne.u32 p, $1, 0;
            vote.sync.any.pred p, p, 0xffffffff;
            selp.u32 $0, 1, 0, p;
            }""",
            UInt32,
            constraints="=r,r",
            has_side_effect=True,
        ](UInt32(1) if condition else UInt32(0))
        != 0
    )


@always_inline
def multiply_add(
    a: SIMD[DType.uint32, 4], b: SIMD[DType.uint32, 2], c: SIMD[DType.float32, 4]
) -> SIMD[DType.float32, 4]:
    """Returns the lane's part of a 16 x 8 tile, c + a @ b over 16 steps of K."""
    var d = inlined_assembly[
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
            " {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        ),
        _RegisterPackType[Float32, Float32, Float32, Float32],
        constraints="=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        has_side_effect=False,
    ](a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3])
    return SIMD[DType.float32, 4](d[0], d[1], d[2], d[3])


@always_inline
def load_streaming(address: MutPointer[UInt32, MutUntrackedOrigin]) -> SIMD[DType.uint32, 4]:
    """Loads 16 bytes that this group reads once, past the first-level cache."""
    var d = inlined_assembly[
        "ld.global.nc.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4];",
        _RegisterPackType[UInt32, UInt32, UInt32, UInt32],
        constraints="=r,=r,=r,=r,l",
        has_side_effect=False,
    ](address)
    return SIMD[DType.uint32, 4](d[0], d[1], d[2], d[3])
