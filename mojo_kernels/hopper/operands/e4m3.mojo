"""Floats to E4M3 by the instructions for it: the bits of `numbers`, in fewer steps.

An instruction rounds two quotients to nearest even and saturates, as `numbers` does. Quotients are
correctly rounded: two steps of Newton's make them, of the inverse of the scale, rounded to nearest
(Markstein 1990: the last one is exact, if what it begins with is less than a unit off). A scale is
taken for its mantissa, elements for as many powers of two less: so no remainder underflows, but of
elements so small that their codes are zero.
"""

from std.memory import bitcast

from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.scales import E8M0_NAN
from ...simt.codec import Chunk, f32_of_inverse_scale, is_nan_scale, magnitude_of_chunk
from ...simt.host import CHUNK
from ..instructions.packed import WORD_PAIRS, bytes_of_two
from .activations import packed_magnitude

comptime CHUNK_WORDS = CHUNK // 4
"""Words of a chunk's bytes."""
comptime Words = SIMD[DType.uint32, CHUNK_WORDS]
"""The bytes of a chunk."""
comptime ELEMENT = Element.E4M3
"""What floats are encoded as."""


@always_inline
def magnitude_of[dtype: DType](x: SIMD[dtype, CHUNK]) -> UInt32:
    """Returns the float32 bits of the largest magnitude of a chunk."""
    comptime if dtype == DType.bfloat16:
        var largest = packed_magnitude(bitcast[DType.uint32, WORD_PAIRS](x))
        return max(largest & 0xFFFF0000, largest << 16)
    else:
        return magnitude_of_chunk(x.cast[DType.float32]())


@always_inline
def encode(x: Chunk, scale: Float32) -> Words:
    """Returns the codes of a chunk under a float scale; zeros for a NaN block."""
    comptime ONE = UInt32(F32_EXPONENT_BIAS << F32_MANTISSA_BITS)
    comptime MANTISSA = UInt32((1 << F32_MANTISSA_BITS) - 1)
    var bits = bitcast[DType.uint32](scale)
    var mantissa = bitcast[DType.float32](bits & MANTISSA | ONE)
    # No scale has the largest power of two, whose inverse would be no regular number.
    var power = bitcast[DType.float32](2 * ONE - (bits & ~MANTISSA))
    var values = x * power
    var inverse = Chunk(1 / mantissa)
    var quotients = values * inverse
    comptime for _ in range(2):
        var remainders = (-quotients).fma(Chunk(mantissa), values)
        quotients = remainders.fma(inverse, quotients)
    return Words(0) if is_nan_scale(scale) else _rounded(quotients)


@always_inline
def encode_block(x: Chunk, scale: UInt32) -> Words:
    """Returns the codes of a chunk under a scale byte; zeros for a NaN block."""
    # A power of two: what it makes inexact is far below the smallest code.
    var words = _rounded(x * f32_of_inverse_scale(scale))
    return Words(0) if scale == UInt32(E8M0_NAN) else words


@always_inline
def _rounded(x: Chunk) -> Words:
    """Returns the nearest codes."""
    var words = Words()
    comptime for i in range(CHUNK_WORDS):
        var low = bytes_of_two["e4m3x2"](x[4 * i], x[4 * i + 1]).cast[DType.uint32]()
        var high = bytes_of_two["e4m3x2"](x[4 * i + 2], x[4 * i + 3]).cast[DType.uint32]()
        words[i] = low | (high << 16)
    return words
