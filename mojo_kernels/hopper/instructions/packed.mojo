"""Two 16-bit numbers in a register: the instructions that work on both halves at once."""

from std.sys._assembly import inlined_assembly

from ...simt.instructions import halves_of_bytes, pick_bytes, round_two

comptime BF16_MANTISSA_BITS = 7
"""Mantissa bits of bfloat16."""
comptime BOTH_HALVES = UInt32(0x00010001)
"""Times a 16-bit value: the value in both halves."""
comptime EXPONENT_UNIT = UInt32(1 << BF16_MANTISSA_BITS) * BOTH_HALVES
"""The exponent one, in both halves."""
comptime LOW_BYTES = UInt32(0xFF) * BOTH_HALVES
"""The bits of the lower byte of both halves."""
comptime WORD_PAIRS = 4
"""Registers that a word of four-bit codes becomes."""
comptime Pairs = SIMD[DType.uint32, WORD_PAIRS]
"""Four registers of two bfloat16 numbers each."""


@always_inline
def join_halves[upper: Bool](a: UInt32, b: UInt32) -> UInt32:
    """Returns the lower, or the upper, halves of two registers; `a`'s becomes the lower one."""
    comptime PICK = UInt32(0x7632) if upper else UInt32(0x5410)
    return inlined_assembly[
        "prmt.b32 $0, $1, $2, $3;", UInt32, constraints="=r,r,r,n", has_side_effect=False
    ](a, b, PICK)


@always_inline
def join_bytes(word: UInt32, selector: UInt32) -> UInt32:
    """Returns four bytes of a word, picked by the selector's lowest nibbles; 4 picks a zero."""
    return inlined_assembly[
        "prmt.b32 $0, $1, 0, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](word, selector)


@always_inline
def set_signs(magnitudes: UInt32, signs: UInt32) -> UInt32:
    """Returns four bytes with the top bits of four others; their own are zero."""
    comptime TOP_BITS = UInt32(0x80808080)
    return magnitudes | (signs & TOP_BITS)


@always_inline
def weight_fragment[pair: Int](row: Pairs, next_row: Pairs) -> SIMD[DType.uint32, 4]:
    """Returns a lane's left operand of 16 steps of K: two pairs of two rows, `pair` the first."""
    return {row[pair], next_row[pair], row[pair + 1], next_row[pair + 1]}


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
def packed_multiply(a: UInt32, b: UInt32) -> UInt32:
    """Multiplies bfloat16 pairs, rounding to nearest even."""
    return multiply_pairs({a, 0, 0, 0}, b)[0]


@always_inline
def packed_max(a: UInt32, b: UInt32) -> UInt32:
    """Returns the larger of two 16-bit halves, each."""
    return inlined_assembly[
        "max.u16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, b)


@always_inline
def packed_min(a: UInt32, b: UInt32) -> UInt32:
    """Returns the smaller of two 16-bit halves, each."""
    return inlined_assembly[
        "min.u16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, b)


@always_inline
def packed_add(a: UInt32, b: UInt32) -> UInt32:
    """Adds bfloat16 pairs, rounding to nearest even."""
    return inlined_assembly[
        "add.rn.bf16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, b)


@always_inline
def packed_multiply_add(a: UInt32, b: UInt32, addend: UInt32) -> UInt32:
    """Returns `a * b + addend` of bfloat16 pairs, rounded once, to nearest even."""
    return inlined_assembly[
        "fma.rn.bf16x2 $0, $1, $2, $3;", UInt32, constraints="=r,r,r,r", has_side_effect=False
    ](a, b, addend)


@always_inline
def larger_magnitude(a: UInt32, b: UInt32) -> UInt32:
    """Returns the larger magnitudes of bfloat16 pairs, or NaN, under signs that mean nothing."""
    return inlined_assembly[
        "max.NaN.xorsign.abs.bf16x2 $0, $1, $2;",
        UInt32,
        constraints="=r,r,r",
        has_side_effect=False,
    ](a, b)


@always_inline
def limit_magnitude(a: UInt32, largest: UInt32) -> UInt32:
    """Returns bfloat16 pairs whose magnitudes are no larger than positive ones."""
    return inlined_assembly[
        "min.xorsign.abs.bf16x2 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](a, largest)


@always_inline
def bytes_of_halves[type: StaticString](halves: UInt32) -> UInt16:
    """Rounds two float16 numbers to a type of eight bits, nearest even; the largest is the last."""
    return inlined_assembly[
        "cvt.rn.satfinite." + type + ".f16x2 $0, $1;",
        UInt16,
        constraints="=h,r",
        has_side_effect=False,
    ](halves)


@always_inline
def multiply_sum[factor: Int](x: UInt32, addend: UInt32) -> UInt32:
    """Returns `x * factor + addend`, in one instruction."""
    return inlined_assembly[
        "mad.lo.u32 $0, $1, $2, $3;", UInt32, constraints="=r,r,n,r", has_side_effect=False
    ](x, UInt32(factor), addend)
