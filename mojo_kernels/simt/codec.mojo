"""Encoding and decoding as a GPU thread does it: eight neighbours at a time.

A chunk is eight neighbouring elements of a row: four bytes of codes, which no
layout separates. Four lanes hold a block, so that a warp reads and writes
contiguous memory and a block's maximum is two shuffles away. Every step is
exact or rounds once, like the host's codec, and gives the same bits.
"""

from max.gpu.primitives.warp import shuffle_xor
from std.memory import bitcast

from ..codec import F32_MANTISSA_BITS, FloatBits, MAGNITUDE_CODE, scale_from_amax
from ..formats import BLOCK, FORMAT
from ..layouts import RUN_BYTES

comptime CHUNK = 8 * RUN_BYTES // FORMAT.element_bits
"""Elements of a chunk."""
comptime LANES_PER_BLOCK = BLOCK // CHUNK
"""Lanes that hold a block."""
comptime Chunk = SIMD[DType.float32, CHUNK]
"""The values of a chunk."""
comptime MAX_REGULAR_INVERSE = 253
"""The largest scale byte whose inverse is a regular float32."""


@always_inline
def f32_of_scale(scale: UInt32) -> Float32:
    """Returns the value of a scale byte; byte 0 is a subnormal float32."""
    comptime SMALLEST = UInt32(1 << (F32_MANTISSA_BITS - 1))
    comptime NAN = UInt32(0x7FC00000)
    var bits = SMALLEST if scale == 0 else scale << UInt32(F32_MANTISSA_BITS)
    return bitcast[DType.float32](NAN if scale == UInt32(FORMAT.scale_nan) else bits)


@always_inline
def f32_of_inverse_scale(scale: UInt32) -> Float32:
    """Returns one over the value of a scale byte other than NaN."""
    comptime SMALLEST = UInt32(1 << (F32_MANTISSA_BITS - 1))
    comptime TWICE_BIAS = UInt32(2 * FORMAT.scale_bias)
    var regular = (TWICE_BIAS - scale) << UInt32(F32_MANTISSA_BITS)
    return bitcast[DType.float32](SMALLEST if scale > UInt32(MAX_REGULAR_INVERSE) else regular)


@always_inline
def scale_of_block(x: Chunk, carry: UInt32) -> UInt32:
    """Returns the scale byte of the block that this lane and its neighbours hold.

    All lanes of the warp call it. `carry` is the rounding rule's for float32 bits.
    """
    comptime source = FloatBits[DType.float32]
    var magnitudes = source.of(x) & UInt32(source.MAGNITUDE)
    var amax = magnitudes.reduce_max()
    comptime for step in range(2):
        amax = max(amax, shuffle_xor(amax, UInt32(1 << step)))
    var scale = scale_from_amax[source.MANTISSA_BITS](amax, carry)
    return UInt32(FORMAT.scale_nan) if amax >= UInt32(source.NOT_FINITE) else scale


@always_inline
def round_magnitudes(x: Chunk, scale: UInt32) -> Tuple[SIMD[DType.uint32, CHUNK], Chunk]:
    """Returns the codes without sign, and the values they stand for before scaling.

    The divided magnitude v lies in a binade where the codes are one step apart.
    Adding 2**23 steps leaves the whole number of steps in the low mantissa bits,
    rounded to the nearest, ties to the even one: step by step the codes' order.
    """
    comptime Bits = SIMD[DType.uint32, CHUNK]
    comptime EXPONENT = Bits(255 << F32_MANTISSA_BITS)
    comptime ONE = Bits(FORMAT.scale_bias << F32_MANTISSA_BITS)
    # From the bits of a binade's start to those of 2**23 times its step.
    comptime TO_ANCHOR = Bits((F32_MANTISSA_BITS - FORMAT.mantissa_bits) << F32_MANTISSA_BITS)
    comptime FIRST_ANCHOR = UInt32(
        (FORMAT.scale_bias + F32_MANTISSA_BITS - FORMAT.mantissa_bits) << FORMAT.mantissa_bits
    )

    var divided = abs(x) * f32_of_inverse_scale(scale)
    var binade = max(bitcast[DType.uint32, CHUNK](divided) & EXPONENT, ONE)
    var anchor = binade + TO_ANCHOR
    var shifted = divided + bitcast[DType.float32, CHUNK](anchor)
    var steps = bitcast[DType.uint32, CHUNK](shifted) - anchor
    var earlier = (anchor >> Bits(F32_MANTISSA_BITS - FORMAT.mantissa_bits)) - FIRST_ANCHOR
    comptime LARGEST = Chunk(6)
    return (
        min(steps + earlier, Bits(MAGNITUDE_CODE)),
        min(shifted - bitcast[DType.float32, CHUNK](anchor), LARGEST),
    )


@always_inline
def codes_of_narrow(x: Chunk, scale: UInt32) -> SIMD[DType.uint32, CHUNK]:
    """Returns the codes without sign of numbers that a 16-bit type holds.

    Scaled so that E2M1's smallest regular number becomes float32's, a number's upper bits
    are its code; numbers of at most 11 bits lose nothing that decides the rounding.
    """
    comptime Bits = SIMD[DType.uint32, CHUNK]
    comptime DROPPED = F32_MANTISSA_BITS - FORMAT.mantissa_bits
    comptime TO_SMALLEST = bitcast[DType.float32](UInt32(1 << F32_MANTISSA_BITS))
    var divided = abs(x) * f32_of_inverse_scale(scale)
    var bits = bitcast[DType.uint32, CHUNK](divided * TO_SMALLEST)
    var to_even = (bits >> Bits(DROPPED)) & 1
    var rounded = (bits + to_even + Bits((1 << (DROPPED - 1)) - 1)) >> Bits(DROPPED)
    return min(rounded, Bits(MAGNITUDE_CODE))


@always_inline
def encode_chunk[narrow: Bool](x: Chunk, scale: UInt32) -> UInt32:
    """Returns the packed codes of a chunk under its block's scale; zeros for a NaN block.

    `narrow` says that a 16-bit type holds the numbers.
    """
    var codes: SIMD[DType.uint32, CHUNK]
    comptime if narrow:
        codes = codes_of_narrow(x, scale)
    else:
        codes = round_magnitudes(x, scale)[0]
    var signs = (bitcast[DType.uint32, CHUNK](x) >> 28) & 8
    var packed = UInt32(0)
    comptime for i in range(CHUNK):
        packed |= (codes[i] | signs[i]) << UInt32(FORMAT.element_bits * i)
    return UInt32(0) if scale == UInt32(FORMAT.scale_nan) else packed


@always_inline
def rounded_chunk(x: Chunk, scale: UInt32) -> Chunk:
    """Returns what decoding the encoded chunk gives: the nearest MX values."""
    var unsigned = round_magnitudes(x, scale)[1] * f32_of_scale(scale)
    var signs = bitcast[DType.uint32, CHUNK](x) & UInt32(1 << 31)
    return bitcast[DType.float32, CHUNK](bitcast[DType.uint32, CHUNK](unsigned) | signs)


@always_inline
def decode_chunk(packed: UInt32) -> Chunk:
    """Returns the values of a chunk's codes under a scale of one.

    A code's exponent and mantissa bits on top of a float32's mantissa make a
    number that is smaller by the power of two between the two exponent biases.
    """
    comptime MAGNITUDE_SHIFT = UInt32(F32_MANTISSA_BITS - FORMAT.mantissa_bits)
    comptime BIAS_GAP = bitcast[DType.float32](
        UInt32((2 * FORMAT.scale_bias - 1) << F32_MANTISSA_BITS)
    )
    var bits = SIMD[DType.uint32, CHUNK]()
    comptime for i in range(CHUNK):
        var code = packed >> UInt32(FORMAT.element_bits * i)
        bits[i] = (code & UInt32(MAGNITUDE_CODE)) << MAGNITUDE_SHIFT | (code & 8) << 28
    return bitcast[DType.float32, CHUNK](bits) * BIAS_GAP
