"""Packed codes of a chunk, as a GPU thread makes them: the bits of `codec`, by other means.

Six and eight bits are what instructions convert to, where there are such; four are rounded by
adding. A float scale is inverted once, and nothing is divided.
"""

from max.gpu.host import DeviceContext
from std.memory import bitcast
from std.sys import is_nvidia_gpu

from ..numbers.decode import decode
from ..numbers.elements import Element
from ..numbers.encode import round_divided as round_float
from ..numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ..numbers.rounding import e4m3_scale_of_code
from ..numbers.scales import E8M0_LARGEST, E8M0_NAN
from .codec import (
    Chunk,
    ChunkWords,
    Codes,
    encode_chunk,
    f32_of_inverse_scale,
    is_nan_scale,
    pack,
    round_divided,
    with_signs,
)
from .host import CHUNK
from .instructions import bytes_of_two, halves_of_bytes, multiplied_here
from .instructions import multiply_add_pairs, pick_bytes


@always_inline
def encoded[bits: Int, narrow: Bool](x: Chunk, scale: UInt32, element: Element) -> ChunkWords[bits]:
    """Returns the packed codes of a chunk under its block's scale; zeros for a NaN block.

    `narrow` says that a 16-bit type holds the numbers.
    """
    var words: ChunkWords[bits]
    comptime if bits == Element.E2M1.bits:
        # A power of two: what it makes inexact is far below the smallest code.
        words = ChunkWords[bits](word_of_e2m1(abs(x) * f32_of_inverse_scale(scale), x))
    elif has_byte_conversions():
        words = _converted[bits](x, scale, element)
    else:
        words = pack[bits](encode_chunk[narrow](x, scale, element))
    return ChunkWords[bits](0) if scale == UInt32(E8M0_NAN) else words


@always_inline
def encoded_over[
    bits: Int, narrow: Bool
](x: Chunk, scale: Divisor, element: Element) -> ChunkWords[bits]:
    """Returns the packed codes of a chunk, lifted, under a float scale; zeros for a NaN block.

    `narrow` says that a 16-bit type holds the numbers.
    """
    var words: ChunkWords[bits]
    comptime if bits == Element.E2M1.bits:
        words = ChunkWords[bits](word_of_e2m1(scale.of[narrow](abs(x)), x))
    elif has_byte_conversions():
        var bytes: ChunkBytes
        if element.bias == Element.E5M2.bias:
            bytes = bytes_of["e5m2x2"](scale.of[narrow](x))
        else:
            bytes = bytes_of["e4m3x2"](scale.of[narrow](x))
        words = rebind[ChunkWords[bits]](bytes)
    else:
        var codes = round_divided(scale.of[narrow](abs(x)), element)[0]
        words = pack[bits](with_signs(codes, x, element))
    return ChunkWords[bits](0) if is_nan_scale(scale.scale) else words


struct Divisor(TrivialRegisterPassable):
    """What divides by a float scale, or a tensor scale, without a division.

    Two steps of Newton's make quotients of the inverse of the scale, rounded to nearest (Markstein
    1990: the last one is exact, if what it begins with is less than a unit off). After the first one
    they are within 2**-46 of themselves before they are rounded, which is enough for the codes of
    numbers of eleven bits: no quotient of theirs is so close to the middle of two float32 of which
    one is where codes change, but by a scale of ones alone, whose quotients come out right.

    Scales are from 2**-126 to 2**126, or NaN. Where remainders might be subnormal, the scale and the
    numbers are taken 2**64 times, `lifted`.
    """

    var scale: Float32
    """The one itself."""
    var is_lifted: Bool
    var divisor: Float32
    var inverse: Float32
    """Of the divisor."""

    comptime LIFT = power_of_two[64]()

    @always_inline
    def __init__(out self, scale: Float32):
        """Inverts a scale."""
        self.scale = scale
        self.is_lifted = scale < power_of_two[-60]()
        self.divisor = scale * Self.LIFT if self.is_lifted else scale
        self.inverse = 1 / self.divisor

    @always_inline
    def lifted[dtype: DType, width: SIMDLength](self, x: SIMD[dtype, width]) -> SIMD[dtype, width]:
        """Returns what `of` takes for numbers; those of float16 are too large to matter."""
        var y = x
        comptime if dtype == DType.bfloat16:
            if self.is_lifted:
                # The bits of the lift, twice.
                comptime LIFTS = UInt32(0x5F805F80)
                var words = bitcast[DType.uint32, width // 2](x)
                comptime for i in range(width // 2):
                    words[i] = multiplied_here(words[i], LIFTS)
                y = bitcast[dtype, width](words)
        elif dtype == DType.float32:
            if self.is_lifted:
                y *= Self.LIFT.cast[dtype]()
        return y

    @always_inline
    def of[narrow: Bool, width: SIMDLength](self, x: SIMD[DType.float32, width]) -> type_of(x):
        """Returns `x / scale` of lifted numbers, as float32 wherever it is above 2**-40.

        `narrow` says that eleven bits hold the numbers: near no code's end it may be a unit off. Of
        infinity it is NaN.
        """
        var inverse = type_of(x)(self.inverse)
        var found = x * inverse
        comptime for _ in range(1 if narrow else 2):
            # What it has too much: where it has nothing, zeros keep their sign.
            var excess = found.fma(type_of(x)(self.divisor), -x)
            found = (-excess).fma(inverse, found)
        return found


@always_inline
def word_of_e2m1(magnitudes: Chunk, x: Chunk) -> UInt32:
    """Returns the packed codes of E2M1 of magnitudes with the signs of x; infinite and NaN is 6.

    Codes count up in steps of 1/2, then of 1, then of 2, each rounded to nearest even as the last
    bits of a float32 whose bits are units; of the three the smallest is right:

        rint(2 v)        up to v = 2
        rint(v) + 2      from v = 1.5 to 4
        rint(v / 2) + 4  from v = 3
    """
    comptime UNITS = Float32(1 << F32_MANTISSA_BITS)
    comptime OF_UNITS = UInt32((F32_EXPONENT_BIAS + F32_MANTISSA_BITS) << F32_MANTISSA_BITS)
    comptime LARGEST = Codes(OF_UNITS + UInt32(Element.E2M1.largest_code))
    var by_halves = bitcast[DType.uint32, CHUNK](magnitudes.fma(Chunk(2), Chunk(UNITS)))
    var by_ones = bitcast[DType.uint32, CHUNK](magnitudes + (UNITS + 2))
    var by_twos = bitcast[DType.uint32, CHUNK](magnitudes.fma(Chunk(0.5), Chunk(UNITS + 4)))
    # As integers, of which those of NaN are larger than any.
    var codes = min(min(by_halves, by_ones), min(by_twos, LARGEST))
    var word = codes[CHUNK - 1]
    comptime for i in range(1, CHUNK):
        word = (word << 4) + codes[CHUNK - 1 - i]
    # What is above the codes adds up to the same in every word: of each but the first 24 bits left.
    word -= OF_UNITS * 0x11111111
    var bits = bitcast[DType.uint32, CHUNK](x)
    comptime SIGNS = UInt32(0x80808080)
    return word | (_top_bytes(bits, 0) & SIGNS) >> 4 | _top_bytes(bits, 1) & SIGNS


@always_inline
def takes_pairs(scale: UInt32) -> Bool:
    """Says whether `word_of_pairs` takes a scale: its inverse, twice and half of it are regular."""
    comptime FIRST, LAST = UInt32(1), UInt32(E8M0_LARGEST - 2)
    return scale - FIRST <= LAST - FIRST


@always_inline
def word_of_pairs(pairs: SIMD[DType.uint32, CHUNK // 2], scale: UInt32) -> UInt32:
    """Returns the packed codes of E2M1 of bfloat16 numbers, as `word_of_e2m1` does, two at once.

    No number of a block is eight scales: they are whole in the last bits from 128 on.
    """
    comptime BOTH = UInt32(0x00010001)
    comptime UNIT = BOTH << 7
    comptime FROM = UInt32(0x4300) * BOTH
    var inverse = (UInt32(E8M0_LARGEST) - scale) * UNIT
    var codes = SIMD[DType.uint32, CHUNK // 2]()
    comptime for i in range(CHUNK // 2):
        var magnitudes = pairs[i] & 0x7FFF7FFF
        var by_halves = multiply_add_pairs(magnitudes, inverse + UNIT, FROM)
        var by_ones = multiply_add_pairs(magnitudes, inverse, FROM + 2 * BOTH)
        var by_twos = multiply_add_pairs(magnitudes, inverse - UNIT, FROM + 4 * BOTH)
        comptime Two = SIMD[DType.uint16, 2]
        var least = min(bitcast[DType.uint16, 2](by_halves), bitcast[DType.uint16, 2](by_ones))
        least = min(min(least, bitcast[DType.uint16, 2](by_twos)), Two(0x4307))
        codes[i] = bitcast[DType.uint32, 1](least)[0]
    var word = UInt32(0)
    comptime for i in range(2):
        # Four codes a byte each, then beside each other.
        var bytes = pick_bytes(codes[2 * i], codes[2 * i + 1], 0x6420) & 0x07070707
        var signs = pick_bytes(pairs[2 * i], pairs[2 * i + 1], 0x7531)
        bytes |= (signs >> 4) & 0x08080808
        bytes |= bytes >> 4
        comptime if i == 0:
            word = bytes
        else:
            word = pick_bytes(word, bytes, 0x6420)
    return word


@always_inline
def _top_bytes(bits: Codes, first: Int) -> UInt32:
    """Returns the highest bytes of every other word, the first one lowest."""
    comptime if is_nvidia_gpu():
        var low = pick_bytes(bits[first], bits[first + 2], 0x0073)
        return pick_bytes(low, pick_bytes(bits[first + 4], bits[first + 6], 0x0073), 0x5410)
    var word = UInt32(0)
    comptime for i in range(4):
        word |= bits[first + 2 * i] >> 24 << UInt32(8 * i)
    return word


comptime ChunkBytes = SIMD[DType.uint32, CHUNK // 4]
"""A byte for each number of a chunk."""


@always_inline
def has_byte_conversions() -> Bool:
    """Says whether this is compiled for instructions that make bytes of floats: from sm_89 on."""
    comptime WITH_BYTES = 8.9
    comptime compute = DeviceContext.default_device_info.compute
    return is_nvidia_gpu() and Float64(compute) >= WITH_BYTES


@always_inline
def bytes_of[type: StaticString](x: Chunk) -> ChunkBytes:
    """Returns the nearest codes of E4M3 or E5M2, a type of the instruction set; saturates."""
    var words = ChunkBytes()
    comptime for i in range(2):
        var low = bytes_of_two[type](x[4 * i], x[4 * i + 1]).cast[DType.uint32]()
        var high = bytes_of_two[type](x[4 * i + 2], x[4 * i + 3]).cast[DType.uint32]()
        words[i] = low | (high << 16)
    return words


@always_inline
def _converted[bits: Int](x: Chunk, scale: UInt32, element: Element) -> ChunkWords[bits]:
    """Returns the packed codes of six or eight bits under a scale that is not NaN.

    Under a scale that makes their smallest regular number that of E4M3, codes of E2M3 are those of
    E4M3 without a part of the exponent; E3M2's are likewise E5M2's. No number of a block is twice
    the power of two of the largest code: one code is too large, by one.
    """
    var divided = x * f32_of_inverse_scale(scale)
    comptime if bits == 6:
        comptime BITS5 = UInt32(0x1F1F1F1F)
        comptime ONES = UInt32(0x01010101)
        var bytes: ChunkBytes
        if element.bias == Element.E3M2.bias:
            bytes = bytes_of["e5m2x2"](
                divided * power_of_two[Element.E3M2.bias - Element.E5M2.bias]()
            )
        else:
            bytes = bytes_of["e4m3x2"](
                divided * power_of_two[Element.E2M3.bias - Element.E4M3.bias]()
            )
        bytes -= (bytes >> 5) & ONES
        bytes = (bytes & BITS5) | (bytes >> 2) & ~BITS5 & (ONES * 0x3F)
        bytes = (bytes & 0x003F003F) | (bytes & 0x3F003F00) >> 2
        bytes = (bytes & 0x00000FFF) | (bytes >> 4) & 0x00FFF000
        return rebind[ChunkWords[bits]](ChunkBytes(bytes[0] | bytes[1] << 24, bytes[1] >> 8))
    else:
        if element.is_integer():
            return rebind[ChunkWords[bits]](_integer_bytes(divided))
        if element.bias == Element.E5M2.bias:
            return rebind[ChunkWords[bits]](bytes_of["e5m2x2"](divided))
        return rebind[ChunkWords[bits]](bytes_of["e4m3x2"](divided))


def power_of_two[exponent: Int]() -> Float32:
    """Returns two to the power of a constant."""
    return Float32(from_bits=UInt32((F32_EXPONENT_BIAS + exponent) << F32_MANTISSA_BITS))


@always_inline
def _integer_bytes(divided: Chunk) -> ChunkBytes:
    """Returns the codes of INT8: the last bits of a float32 whose last bit is a unit."""
    comptime E = Element.INT8
    comptime ANCHOR = Float32(3 << (F32_MANTISSA_BITS - 1 - E.mantissa_bits))
    comptime LARGEST = Float32(E.largest_code) / Float32(1 << E.mantissa_bits)
    var limited = divided.gt(LARGEST).select(Chunk(LARGEST), divided)
    limited = limited.lt(-LARGEST).select(Chunk(-LARGEST), limited)
    var bits = bitcast[DType.uint32, CHUNK](limited + ANCHOR)
    var words = ChunkBytes()
    comptime for i in range(2):
        var low = pick_bytes(bits[4 * i], bits[4 * i + 1], 0x0040)
        words[i] = pick_bytes(low, pick_bytes(bits[4 * i + 2], bits[4 * i + 3], 0x0040), 0x5410)
    return words


@always_inline
def e4m3_scale_over(amax: UInt32, six: Divisor) -> Tuple[UInt8, Float32]:
    """Returns the E4M3 scale of a block from its largest magnitude, under six tensor scales.

    The byte and what it stands for.
    """
    # What is too large for a quotient has the largest scale.
    comptime LARGE = bitcast[DType.uint32](Float32(1 << F32_MANTISSA_BITS))
    var x = SIMD[DType.float32, 1](bitcast[DType.float32](amax))
    var quotient = min(bitcast[DType.uint32](six.of[False](six.lifted(x))[0]), LARGE)
    comptime if has_byte_conversions():
        var code = bytes_of_two["e4m3x2"](bitcast[DType.float32](quotient), 0)
        code = e4m3_scale_of_code(amax, code.cast[DType.uint32]()).cast[DType.uint16]()
        var halves = bitcast[DType.float16, 2](halves_of_bytes["e4m3x2"](code))
        return (code.cast[DType.uint8](), halves[0].cast[DType.float32]())
    else:
        var byte = e4m3_scale_of_code(amax, round_float[Element.E4M3](quotient))
        return (byte.cast[DType.uint8](), decode[Element.E4M3](byte))
