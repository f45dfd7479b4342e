"""Encoding and decoding as a GPU thread does it: eight neighbours at a time.

A chunk is eight neighbouring elements of a row, in as many bytes as an element has bits: of six-bit
codes a word and a half. Four lanes hold a block, so that a warp reads and writes contiguous memory
and a block's maximum is two shuffles away. Every step is exact or rounds once, like `numbers`, and
gives the same bits.

Elements are arguments: where one is a constant the compiler folds it, and where formats are known
only at run time one code serves them all. An integer element is taken for a float without
exponents: units below its one regular binade, and a sign apart. Float scales are divided by, not
multiplied by their inverse, and more lanes share one.
"""

from max.gpu.primitives.warp import shuffle_xor
from std.bit import log2_floor
from std.math import ceildiv
from std.memory import bitcast

from ..numbers.decode import decode
from ..numbers.elements import Element
from ..numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FloatBits
from ..numbers.formats import E4M3_BLOCK, FORMATS, Format
from ..numbers.rounding import e4m3_scale_from_amax
from ..numbers.scales import E8M0_BIAS, E8M0_LARGEST, E8M0_NAN
from .host import CHUNK

comptime BLOCK = Format.MXFP4.block_k
"""Elements of a block under a byte of E8M0."""
comptime LANES_PER_BLOCK = BLOCK // CHUNK
"""Lanes that hold such a block."""
comptime LOG2_LANES_PER_E4M3_BLOCK = log2_floor(E4M3_BLOCK // CHUNK)
"""Lanes that hold a block with an E4M3 scale, as an exponent."""
comptime Chunk = SIMD[DType.float32, CHUNK]
"""The values of a chunk."""
comptime Codes = SIMD[DType.uint32, CHUNK]
"""The codes of a chunk, one in each word; what lies above a code's bits does not matter."""
comptime ANY_BITS = 0
"""Stands for elements whose bits are known at run time."""
comptime WORD_BITS = 32
"""Bits of a word of packed codes, which no layout separates."""
comptime CHUNK_WORDS[bits: Int] = ceildiv(CHUNK * bits, WORD_BITS)
"""Words that hold the packed codes of a chunk."""
comptime ChunkWords[bits: Int] = SIMD[DType.uint32, CHUNK_WORDS[bits]]
"""The packed codes of a chunk, the first one in the lowest bits of the first word."""


@always_inline
def element_of[bits: Int](format: Int32) -> Element:
    """Returns the element of a format whose codes have `bits`, a constant if only one has.

    `format` is a position in `FORMATS`; any other one stands for the first format of `bits`.
    """
    comptime first = _first_format[bits]()
    comptime E = FORMATS[first].element
    var element = materialize[E]()
    comptime for i in range(first + 1, len(FORMATS)):
        comptime Other = FORMATS[i].element
        comptime if bits == ANY_BITS or Other.bits == bits:
            if format == Int32(i):
                element = materialize[Other]()
    return element


def _first_format[bits: Int]() -> Int:
    """Returns the position of the first format whose codes have `bits`."""
    comptime for i in range(len(FORMATS)):
        comptime E = FORMATS[i].element
        comptime if bits == ANY_BITS or E.bits == bits:
            return i
    return 0


@always_inline
def f32_of_scale(scale: UInt32) -> Float32:
    """Returns the value of a scale byte; byte 0 is a subnormal float32."""
    comptime SMALLEST = UInt32(1 << (F32_MANTISSA_BITS - 1))
    comptime NAN = UInt32(0x7FC00000)
    var bits = SMALLEST if scale == 0 else scale << UInt32(F32_MANTISSA_BITS)
    return bitcast[DType.float32](NAN if scale == UInt32(E8M0_NAN) else bits)


@always_inline
def f32_of_inverse_scale(scale: UInt32) -> Float32:
    """Returns one over the value of a scale byte other than NaN."""
    comptime SMALLEST = UInt32(1 << (F32_MANTISSA_BITS - 1))
    comptime TWICE_BIAS = UInt32(2 * E8M0_BIAS)
    # The inverse of the largest scale is a subnormal float32.
    comptime MAX_REGULAR_INVERSE = UInt32(E8M0_LARGEST - 1)
    var regular = (TWICE_BIAS - scale) << UInt32(F32_MANTISSA_BITS)
    return bitcast[DType.float32](SMALLEST if scale > MAX_REGULAR_INVERSE else regular)


@always_inline
def magnitude_of_chunk(x: Chunk) -> UInt32:
    """Returns the float32 bits of the largest magnitude of a chunk."""
    comptime source = FloatBits[DType.float32]
    return (source.of(x) & UInt32(source.MAGNITUDE)).reduce_max()


@always_inline
def finite_magnitude_of_chunk(x: Chunk) -> UInt32:
    """Returns the same of those that are finite, 0 for none."""
    comptime source = FloatBits[DType.float32]
    var magnitudes = source.of(x) & UInt32(source.MAGNITUDE)
    var is_finite = magnitudes.lt(UInt32(source.NOT_FINITE))
    return is_finite.select(magnitudes, Codes(0)).reduce_max()


@always_inline
def e4m3_scale_of_block(amax: UInt32, tensor_scale: Float32) -> UInt8:
    """Returns the E4M3 scale of the block that this lane and its neighbour hold, `amax` their own.

    All lanes of the warp call it.
    """
    return e4m3_scale_from_amax(amax_of_lanes[LOG2_LANES_PER_E4M3_BLOCK](amax), tensor_scale)


@always_inline
def rounded_under_tensor_scale(x: Chunk, tensor_scale: Float32, element: Element) -> Chunk:
    """Returns what a chunk stands for under E4M3 scales, these multiplied in, the tensor scale not.

    All lanes of the warp call it.
    """
    var byte = e4m3_scale_of_block(magnitude_of_chunk(x), tensor_scale)
    var scale = decode[Element.E4M3](byte.cast[DType.uint32]())
    return rounded_over(x, scale * tensor_scale, element) * scale


@always_inline
def scale_of_magnitude(amax: UInt32, carry: UInt32, element: Element) -> UInt32:
    """Returns the scale byte of a block from the float32 bits of its largest magnitude.

    `carry` is the rounding rule's for the element. A NaN or an infinity makes the scale NaN.
    """
    comptime source = FloatBits[DType.float32]
    comptime SHIFT = UInt32(source.MANTISSA_BITS)
    var emax = UInt32(element.emax)
    var scale = max((amax + carry) >> SHIFT, emax) - emax
    if element.emax == 0:
        # As `numbers.rounding`: a subnormal maximum may have a scale that is no clamped one.
        var doubled = amax + min(amax, 1 << SHIFT)
        scale = min(max((doubled + carry) >> SHIFT, 1) - 1, UInt32(E8M0_LARGEST))
    return UInt32(E8M0_NAN) if amax >= UInt32(source.NOT_FINITE) else scale


@always_inline
def scale_of_block(x: Chunk, carry: UInt32, element: Element) -> UInt32:
    """Returns the scale byte of the block that this lane and its neighbours hold.

    All lanes of the warp call it.
    """
    var amax = magnitude_of_chunk(x)
    comptime for step in range(2):
        amax = max(amax, shuffle_xor(amax, UInt32(1 << step)))
    return scale_of_magnitude(amax, carry, element)


@always_inline
def amax_of_lanes[steps: Int](amax: UInt32) -> UInt32:
    """Returns the largest of 2**steps neighbouring lanes; all lanes of the warp call it."""
    var largest = amax
    comptime for step in range(steps):
        largest = max(largest, shuffle_xor(largest, UInt32(1 << step)))
    return largest


@always_inline
def smallest_regular(element: Element) -> UInt32:
    """Returns the float32 exponent field of an element's smallest regular number."""
    return UInt32(F32_EXPONENT_BIAS + 1 - element.bias)


@always_inline
def round_magnitudes(x: Chunk, scale: UInt32, element: Element) -> Tuple[Codes, Chunk]:
    """Returns the codes without sign, and the values they stand for before scaling.

    The divided magnitude v lies in a binade where the codes are one step apart.
    Adding 2**23 steps leaves the whole number of steps in the low mantissa bits,
    rounded to the nearest, ties to the even one: step by step the codes' order.
    """
    return round_divided(abs(x) * f32_of_inverse_scale(scale), element)


@always_inline
def round_divided(divided: Chunk, element: Element) -> Tuple[Codes, Chunk]:
    """Returns the same of magnitudes that are divided by their scale."""
    comptime EXPONENT = Codes(255 << F32_MANTISSA_BITS)
    var dropped = UInt32(F32_MANTISSA_BITS - element.mantissa_bits)
    var smallest = smallest_regular(element)
    # From the bits of a binade's start to those of 2**23 times its step.
    var to_anchor = dropped << UInt32(F32_MANTISSA_BITS)
    var first_anchor = (smallest + dropped) << UInt32(element.mantissa_bits)

    var binade = bitcast[DType.uint32, CHUNK](divided) & EXPONENT
    binade = max(binade, Codes(smallest << UInt32(F32_MANTISSA_BITS)))
    var anchor = binade + to_anchor
    var shifted = divided + bitcast[DType.float32, CHUNK](anchor)
    var steps = bitcast[DType.uint32, CHUNK](shifted) - anchor
    var earlier = (anchor >> Codes(dropped)) - first_anchor
    return (
        min(steps + earlier, Codes(UInt32(element.largest_code))),
        min(shifted - bitcast[DType.float32, CHUNK](anchor), Chunk(largest_value(element))),
    )


@always_inline
def largest_value(element: Element) -> Float32:
    """Returns the largest number of an element."""
    var dropped = UInt32(F32_MANTISSA_BITS - element.mantissa_bits)
    var bias_gap = UInt32(F32_EXPONENT_BIAS - element.bias) << UInt32(F32_MANTISSA_BITS)
    return bitcast[DType.float32]((UInt32(element.largest_code) << dropped) + bias_gap)


@always_inline
def codes_of_narrow(x: Chunk, scale: UInt32, element: Element) -> Codes:
    """Returns the codes without sign of numbers that a 16-bit type holds.

    Scaled so that the element's smallest regular number becomes float32's, a number's upper bits
    are its code; numbers of at most 11 bits lose nothing that decides the rounding.
    """
    var dropped = UInt32(F32_MANTISSA_BITS - element.mantissa_bits)
    var to_smallest = bitcast[DType.float32](UInt32(element.bias) << UInt32(F32_MANTISSA_BITS))
    var divided = abs(x) * f32_of_inverse_scale(scale)
    var bits = bitcast[DType.uint32, CHUNK](divided * to_smallest)
    var to_even = (bits >> Codes(dropped)) & 1
    var below_half = (UInt32(1) << (dropped - 1)) - 1
    var rounded = (bits + to_even + Codes(below_half)) >> Codes(dropped)
    return min(rounded, Codes(UInt32(element.largest_code)))


@always_inline
def with_signs(magnitudes: Codes, x: Chunk, element: Element) -> Codes:
    """Returns codes from their magnitudes: a sign bit, or two's complement."""
    var bits = bitcast[DType.uint32, CHUNK](x)
    if element.is_integer():
        # All ones for a negative number.
        var negative = Codes(0) - (bits >> 31)
        return ((magnitudes ^ negative) - negative) & 0xFF
    return magnitudes | (bits >> UInt32(WORD_BITS - element.bits)) & UInt32(element.sign_code())


@always_inline
def encode_chunk[narrow: Bool](x: Chunk, scale: UInt32, element: Element) -> Codes:
    """Returns the codes of a chunk under its block's scale; zeros for a NaN block.

    `narrow` says that a 16-bit type holds the numbers.
    """
    var codes: Codes
    comptime if narrow:
        codes = codes_of_narrow(x, scale, element)
    else:
        codes = round_magnitudes(x, scale, element)[0]
    codes = with_signs(codes, x, element)
    return Codes(0) if scale == UInt32(E8M0_NAN) else codes


@always_inline
def is_nan_scale(scale: Float32) -> Bool:
    """Says whether a float scale makes its block NaN."""
    comptime source = FloatBits[DType.float32]
    return bitcast[DType.uint32](scale) & UInt32(source.MAGNITUDE) > UInt32(source.NOT_FINITE)


@always_inline
def rounded_over(x: Chunk, scale: Float32, element: Element) -> Chunk:
    """Returns what the chunk encoded under a float scale stands for under a scale of one."""
    var unsigned = round_divided(abs(x) / scale, element)[1]
    if is_nan_scale(scale):
        unsigned = Chunk(0)
    var signs = bitcast[DType.uint32, CHUNK](x) & UInt32(1 << 31)
    return bitcast[DType.float32, CHUNK](bitcast[DType.uint32, CHUNK](unsigned) | signs)


@always_inline
def pack[bits: Int](codes: Codes) -> ChunkWords[bits]:
    """Packs codes that have nothing above their bits."""
    var words = ChunkWords[bits](0)
    comptime for i in range(CHUNK):
        comptime word, shift = divmod(bits * i, WORD_BITS)
        words[word] |= codes[i] << UInt32(shift)
        comptime if shift + bits > WORD_BITS:
            words[word + 1] |= codes[i] >> UInt32(WORD_BITS - shift)
    return words


@always_inline
def unpack[bits: Int](words: ChunkWords[bits]) -> Codes:
    """Spreads packed codes, one to a word."""
    var codes = Codes()
    comptime for i in range(CHUNK):
        comptime word, shift = divmod(bits * i, WORD_BITS)
        codes[i] = words[word] >> UInt32(shift)
        comptime if shift + bits > WORD_BITS:
            codes[i] |= words[word + 1] << UInt32(WORD_BITS - shift)
    return codes


@always_inline
def first_run_of_chunk[bits: Int](chunk: Int) -> Int:
    """Returns the run of a row that a chunk's codes begin in; a second one may follow."""
    comptime if CHUNK * bits % WORD_BITS == 0:
        return chunk * CHUNK_WORDS[bits]
    else:
        comptime LOG2_WORD_BITS = log2_floor(WORD_BITS)
        return (chunk * (CHUNK * bits)) >> LOG2_WORD_BITS


@always_inline
def words_of_runs[bits: Int](runs: ChunkWords[bits], chunk: UInt32) -> ChunkWords[bits]:
    """Returns the packed codes of a chunk from the runs that it lies in, zeros behind.

    Odd chunks of six-bit codes begin in the middle of a run.
    """
    comptime if CHUNK * bits % WORD_BITS == 0:
        return runs
    else:
        comptime HALF = UInt32(WORD_BITS // 2)
        var words = runs
        words[1] = runs[1] & ((1 << HALF) - 1)
        if chunk % 2 == 1:
            words[0] = (runs[0] >> HALF) | (runs[1] << HALF)
            words[1] = runs[1] >> HALF
        return words


@always_inline
def rounded_values(x: Chunk, scale: UInt32, element: Element) -> Chunk:
    """Returns what the encoded chunk stands for under a scale of one; zeros for a NaN block."""
    var unsigned = round_magnitudes(x, scale, element)[1]
    var signs = bitcast[DType.uint32, CHUNK](x) & UInt32(1 << 31)
    if scale == UInt32(E8M0_NAN):
        unsigned = Chunk(0)
    return bitcast[DType.float32, CHUNK](bitcast[DType.uint32, CHUNK](unsigned) | signs)


@always_inline
def rounded_chunk(x: Chunk, scale: UInt32, element: Element) -> Chunk:
    """Returns what decoding the encoded chunk gives: the nearest MX values."""
    var unsigned = round_magnitudes(x, scale, element)[1] * f32_of_scale(scale)
    var signs = bitcast[DType.uint32, CHUNK](x) & UInt32(1 << 31)
    return bitcast[DType.float32, CHUNK](bitcast[DType.uint32, CHUNK](unsigned) | signs)


@always_inline
def decode_chunk(codes: Codes, element: Element) -> Chunk:
    """Returns the values of codes under a scale of one; infinities and NaNs come out as such.

    A code's exponent and mantissa bits on top of a float32's mantissa make a
    number that is smaller by the power of two between the two exponent biases.
    """
    comptime INFINITY = Codes(255 << F32_MANTISSA_BITS)
    var shift = UInt32(F32_MANTISSA_BITS - element.mantissa_bits)
    var bias_gap = bitcast[DType.float32](
        UInt32(2 * F32_EXPONENT_BIAS - element.bias) << UInt32(F32_MANTISSA_BITS)
    )
    var signs = (codes & UInt32(element.sign_code())) << UInt32(WORD_BITS - element.bits)
    var magnitudes = codes & UInt32(element.magnitude_mask())
    if element.is_integer():
        # Of a negative code, what is missing to the next power of two.
        magnitudes = signs.ne(0).select(UInt32(element.sign_code()) - magnitudes, magnitudes)
    var bits = magnitudes << Codes(shift)
    var values = bitcast[DType.uint32, CHUNK](bitcast[DType.float32, CHUNK](bits) * bias_gap)
    if element.has_non_finite():
        var first = element.infinity_code if element.infinity_code != 0 else element.nan_code
        values = magnitudes.ge(UInt32(first)).select(bits | INFINITY, values)
    return bitcast[DType.float32, CHUNK](values | signs)
