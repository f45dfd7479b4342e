"""Elements of MXFP8 under a larger scale than their block's: E4M3 again, rounded to nearest even.

The *base* of a stage of tokens, or of a weight row, is its largest scale; a block whose scale is d
smaller has its elements times 2 ** -d. That is exact for all of them that are at least 2 ** (d - 6),
and for those with trailing zeros. The others are rounded to a multiple of 2 ** -9 under the base: they
move by at most 2 ** -10 there, 2 ** -18 of the largest element, where tensor cores cut off what is
2 ** -13 of the largest product.

`BYTE_SPAN` limits d to 14, so that no element moves by more than 16 under its own scale: as much as
rounding to E4M3 has moved the largest ones, which are 256 to 448 as `quantize` leaves them. What has no
base is marked, and computed exactly, which takes long.
"""

from std.memory import bitcast

from ...numbers.floats import F32_MANTISSA_BITS
from ...numbers.scales import E8M0_BIAS
from ..fp8.codes import BYTE_SPAN
from ..instructions.packed import bytes_of_halves, halves_of_bytes

comptime TOKEN_EXPONENTS = 40
"""Bases of tokens are within 2 ** this of one: products with others' factors are float32."""
comptime MARKED = UInt32(255 << F32_MANTISSA_BITS)
"""The bits of the factor of a stage that has no base: infinity."""


@always_inline
def is_token_base(largest: UInt32, smallest: UInt32) -> Bool:
    """Says whether the largest scale of a stage can be its base."""
    comptime LEAST = UInt32(E8M0_BIAS - TOKEN_EXPONENTS)
    var is_regular = largest - LEAST <= UInt32(2 * TOKEN_EXPONENTS)
    return is_regular and largest - smallest <= UInt32(BYTE_SPAN)


@always_inline
def aligned[
    count: SIMDLength, //
](words: SIMD[DType.uint32, count], steps: UInt32) -> type_of(words):
    """Returns codes times 2 ** -steps, four a word: no more steps than a base allows.

    They are rounded on the way from float16 numbers, which hold all of them. To make the fields of all
    bytes of a word smaller at once, where none becomes irregular, takes longer: warps wait for those
    that find one.
    """
    comptime ONE = 15
    comptime MANTISSA_BITS = 10
    var shift = (UInt32(ONE) - min(steps, UInt32(BYTE_SPAN))) << UInt32(MANTISSA_BITS)
    var factor = bitcast[DType.float16, 2](shift | shift << 16)
    var found = type_of(words)(0)
    comptime for i in range(count):
        comptime for half in range(2):
            var codes = (words[i] >> UInt32(16 * half)).cast[DType.uint16]()
            var halves = bitcast[DType.float16, 2](halves_of_bytes["e4m3x2"](codes))
            var bytes = bytes_of_halves["e4m3x2"](bitcast[DType.uint32, 1](halves * factor)[0])
            found[i] |= bytes.cast[DType.uint32]() << UInt32(16 * half)
    return found
