"""Elements of MXFP4 times their scales as bfloat16 numbers, and what these cannot hold.

A product with a scale is exact unless it is too large, or too small to be regular.
"""

from std.memory import bitcast

from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ...simt.codec import Chunk, decode_chunk, f32_of_scale, unpack
from ..dense.units import StageRows
from ..fp8.codes import MAGNITUDES, pick_codes, scale_at
from ..instructions.packed import BOTH_HALVES, Pairs, multiply_pairs, pick_bytes
from ..instructions.shared_memory import store_quad
from ..layout import OPERANDS, ROWS_PER_LANE

comptime SAFE_EXPONENT = 64
"""No element of a block whose scale is within 2 ** this of one is lost."""


@always_inline
def is_safe(scale: UInt32) -> Bool:
    """Says whether no element under a scale byte can be lost; NaN loses none."""
    comptime LEAST = UInt32(E8M0_BIAS - SAFE_EXPONENT)
    return scale - LEAST <= UInt32(2 * SAFE_EXPONENT) or scale == UInt32(E8M0_NAN)


@always_inline
def are_lost[count: SIMDLength, //](values: SIMD[DType.float32, count], scale: Float32) -> Bool:
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


@always_inline
def decode_word(word: UInt32) -> Chunk:
    """Returns the elements of eight codes, not scaled."""
    return decode_chunk(unpack[OPERANDS.element.bits](word), materialize[OPERANDS.element]())


@always_inline
def numbers_of_codes(word: UInt32) -> Pairs:
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
def put_numbers[granule: Int](words: Pairs, scales: UInt32, rows: StageRows):
    """Puts the numbers of a lane's words of a granule of four-bit codes to their place."""
    comptime for i in range(ROWS_PER_LANE):
        var scale = f32_of_scale(scale_at(scales, UInt32(i)))
        var factor = bitcast[DType.uint32](scale) >> 16
        var pairs = multiply_pairs(numbers_of_codes(words[i]), factor * BOTH_HALVES)
        store_quad(rows.at[i, 4 * granule](), pairs)
