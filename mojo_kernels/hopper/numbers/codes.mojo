"""Elements of MX formats times their scales as bfloat16 numbers, and what these cannot hold.

Elements of MX formats have at most eight significant bits, as bfloat16 has: a product with a scale
is exact unless it is too large, or too small to be regular.
"""

from std.memory import bitcast

from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import FORMATS, Format
from ...numbers.scales import E8M0_BIAS, E8M0_NAN
from ...simt.codec import CHUNK, Chunk, decode_chunk, element_of, f32_of_scale, unpack
from ..dense.units import StageRows
from ..fp8.codes import MAGNITUDES, pick_codes, scale_at
from ..instructions.packed import BOTH_HALVES, Pairs, halves_of_bytes, multiply_pairs, pick_bytes
from ..instructions.shared_memory import store_quad
from ..layout import ROWS_PER_LANE

comptime CHUNK_WORDS = CHUNK // 4
"""Words of a chunk's bytes."""
comptime Words = SIMD[DType.uint32, CHUNK_WORDS]
"""The bytes of a chunk."""
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
def decode_bytes(words: Words) -> Chunk:
    """Returns the elements of a chunk of MXFP8, not scaled."""
    comptime MXFP8 = Int32(Format.MXFP8.code())
    var low, high = decode_word[8](words[0], MXFP8), decode_word[8](words[1], MXFP8)
    return Chunk().insert[offset=0](low).insert[offset=4](high)


@always_inline
def _converted[type: StaticString](word: UInt32) -> SIMD[DType.float32, 4]:
    """Returns four floats of eight bits, two by an instruction."""
    var halves = SIMD[DType.uint32, 2]()
    comptime for i in range(2):
        halves[i] = halves_of_bytes[type]((word >> UInt32(16 * i)).cast[DType.uint16]())
    return bitcast[DType.float16, 4](halves).cast[DType.float32]()


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
