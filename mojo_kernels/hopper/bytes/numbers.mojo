"""Elements times their scales as bfloat16 numbers, and what these cannot hold.

Elements of MX formats have at most eight significant bits, as bfloat16 has: a product with a scale
is exact unless it is too large, or too small to be regular.
"""

from std.memory import bitcast

from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import FORMATS
from ...simt.codec import decode_chunk, element_of, unpack
from ..instructions.packed import halves_of_bytes

comptime THREADS = 256
"""Threads of a group that prepares operands."""
comptime WARPS = THREADS // 32
"""Warps of a group."""
comptime SAFE_EXPONENT = 64
"""No element of a block whose scale is within 2 ** this of one is lost."""


@always_inline
def packed_numbers[
    count: SIMDLength, //
](values: SIMD[DType.float32, count]) -> SIMD[DType.uint32, count // 2]:
    """Returns floats as bfloat16 numbers, which they are, in their order."""
    var bits = bitcast[DType.uint32, count](values)
    var pairs = SIMD[DType.uint32, count // 2]()
    comptime for i in range(count // 2):
        pairs[i] = (bits[2 * i] >> 16) | (bits[2 * i + 1] & 0xFFFF0000)
    return pairs


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
def decode_word[bits: Int](word: UInt32, format: Int32) -> SIMD[DType.float32, 32 // bits]:
    """Returns the elements of a word of codes, not scaled."""
    comptime COUNT = 32 // bits
    comptime if bits == 8:
        comptime for i in range(len(FORMATS)):
            comptime if FORMATS[i].element == Element.E4M3:
                if format == Int32(i):
                    return rebind[SIMD[DType.float32, COUNT]](_converted["e4m3x2"](word))
            comptime if FORMATS[i].element == Element.E5M2:
                if format == Int32(i):
                    return rebind[SIMD[DType.float32, COUNT]](_converted["e5m2x2"](word))
        var values = decode_chunk(unpack[bits]({word, 0}), element_of[bits](format))
        return rebind[SIMD[DType.float32, COUNT]](values.slice[4]())
    else:
        var values = decode_chunk(unpack[bits](word), element_of[bits](format))
        return rebind[SIMD[DType.float32, COUNT]](values)


@always_inline
def _converted[type: StaticString](word: UInt32) -> SIMD[DType.float32, 4]:
    """Returns four floats of eight bits, two by an instruction."""
    var halves = SIMD[DType.uint32, 2]()
    comptime for i in range(2):
        halves[i] = halves_of_bytes[type]((word >> UInt32(16 * i)).cast[DType.uint16]())
    return bitcast[DType.float16, 4](halves).cast[DType.float32]()
