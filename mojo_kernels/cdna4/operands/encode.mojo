"""Encodes in registers: a lane holds one block and encodes it on its own.

    32 floats --- largest magnitude --> scale --- hardware converter --> 4, 6 or 8 words of codes

The largest magnitude of 16-bit floats comes from a chain of three-operand
maxima and one of minima over packed pairs, both signed: no masks. The chains
read bfloat16 as float16, whose bits order alike below 0x7c00.

Hardware converters let eight-bit codes overflow, so those floats are clamped before, if the
rounding rule leaves any that would. The fast path never meets a subnormal that matters, an infinity or a NaN: it is
taken for blocks of zeros and for those whose maximum lies in a window of
`Window`. Any other block takes a branch to `_encode_rare`, which is exact for
every input. Both give the bits of `numbers/encode.mojo`.
"""

from std.memory import bitcast
from std.sys import size_of

from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FloatBits
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ...numbers.scales import E8M0_NAN
from ..chip import BLOCK
from ..instructions.matrix import BlockCodes, CODE_WORDS
from ..instructions.vector import encode_pair, encode_sixes, maximum, minimum, subtract_to_zero
from ..instructions.vector import zero_of_a_branch

comptime BlockFloats[dtype: DType] = SIMD[dtype, BLOCK]
"""The floats of one block."""
comptime _F32_EXPONENT = UInt32(255 << F32_MANTISSA_BITS)
comptime NOT_FINITE = UInt32(FloatBits[DType.float32].NOT_FINITE)
"""The bits from which on a magnitude in float32 is infinite or NaN."""


@fieldwise_init
struct EncodedBlock[format: Format](TrivialRegisterPassable):
    """One encoded block."""

    var codes: BlockCodes[Self.format]
    var scale: UInt32
    """The scale byte; the bits above it are zero."""


struct Window[dtype: DType, element: Element]:
    """The block maxima, as `FloatBits` sees them, that the fast path encodes.

    Below `LOW` subnormal elements may have codes other than zero, and scales
    may be clamped. From `HIGH` on the alias breaks, or the block is not finite.
    """

    comptime source = FloatBits[Self.dtype]
    # An element reaches a code from half a unit of the scale on, of E2M1 a quarter, and the scale
    # is at least an eighth of the maximum: of E2M1 2**5 above the smallest normal.
    comptime MARGIN = (1 - Self.element.unit_exponent()) + (Self.element.emax + 1)
    comptime SMALLEST_NORMAL_FIELD = (F32_EXPONENT_BIAS - 14 if Self.dtype == DType.float16 else 1)
    comptime LOW = UInt32((Self.SMALLEST_NORMAL_FIELD + Self.MARGIN) << Self.source.MANTISSA_BITS)
    # Bounds of what is clamped are below twice the maximum, and below the alias' infinity too.
    comptime HIGH = UInt32(0x7B80 if Self.dtype == DType.bfloat16 else Self.source.NOT_FINITE)

    @staticmethod
    @always_inline
    def has(amax: UInt32) -> Bool:
        """Says whether a block may take the fast path."""
        return amax == 0 or amax - Self.LOW < Self.HIGH - Self.LOW


@always_inline
def encode_block[
    format: Format, dtype: DType, rounding: Rounding
](x: BlockFloats[dtype]) -> EncodedBlock[format]:
    """Encodes one block."""
    # Of float16 only blocks of large numbers would be in the window of eight-bit elements.
    comptime if format.element.bits == 8 and dtype == DType.float16:
        return _encode[format, DType.float32, rounding](x.cast[DType.float32]())
    else:
        return _encode[format, dtype, rounding](x)


@always_inline
def _encode[
    format: Format, dtype: DType, rounding: Rounding
](x: BlockFloats[dtype]) -> EncodedBlock[format]:
    """Encodes one block, on the fast path if it can."""
    comptime source = FloatBits[dtype]
    comptime window = Window[dtype, format.element]
    comptime SCALE_SHIFT = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
    # scale = max(amax + carry - emax, 0): the carry and emax in one subtraction.
    comptime OFFSET = UInt32(
        (format.element.emax << source.MANTISSA_BITS)
        - rounding.carry[source.MANTISSA_BITS, format.element]()
    )

    var amax = largest_magnitude(x)
    if not window.has(amax):
        comptime NUM_WORDS = BLOCK * size_of[dtype]() // 4
        var words = bitcast[DType.uint32, NUM_WORDS](x) | zero_of_a_branch()
        return _encode_rare[format, dtype, rounding](bitcast[dtype, BLOCK](words))

    var scale = subtract_to_zero(amax, OFFSET)
    var scale_bits = (scale << SCALE_SHIFT) & _F32_EXPONENT
    return EncodedBlock[format](
        _convert[format, dtype, rounding](x, scale_bits), scale >> UInt32(source.MANTISSA_BITS)
    )


@always_inline
def _convert[
    format: Format, dtype: DType, rounding: Rounding
](x: BlockFloats[dtype], scale_bits: UInt32) -> BlockCodes[format]:
    """Divides by a scale and encodes; the scale is an exponent field of float32.

    The part of a word runs outside: writes to one register back to back cost a wait. Codes of six
    bits come all at once.
    """
    comptime WORD_CODES = 32 // format.element.bits
    var scale = bitcast[DType.float32](scale_bits)
    comptime if format.element.bits == 6:
        return rebind[BlockCodes[format]](encode_sixes[format.element](x, scale))
    var codes = BlockCodes[format](0)
    comptime for part in range(WORD_CODES // 2):
        comptime for word in range(CODE_WORDS[format]):
            var pair = x.slice[2, offset=WORD_CODES * word + 2 * part]()
            comptime if overflows[format.element, rounding]():
                pair = clamped[format.element](pair, scale_bits)
            codes[word] = encode_pair[format.element, dtype, part](codes[word], pair, scale)
    return codes


def overflows[element: Element, rounding: Rounding]() -> Bool:
    """Says whether the converter would round a block's maximum beyond the largest number.

    By the fraction of a maximum that no longer takes the next scale.
    """
    comptime ONE = 1 << F32_MANTISSA_BITS
    comptime carry = rounding.carry[F32_MANTISSA_BITS, element]()
    var half_unit = ONE >> (element.mantissa_bits + 1)
    var beyond = element.largest_fraction[F32_MANTISSA_BITS]() + half_unit
    var largest = ONE - 1 - carry
    return element.has_non_finite() and largest > beyond


@always_inline
def clamped[
    element: Element, dtype: DType
](pair: SIMD[dtype, 2], scale_bits: UInt32) -> SIMD[dtype, 2]:
    """Returns numbers that the element holds times the scale; bfloat16 read as float16."""
    comptime LARGEST = UInt32(
        (element.emax << F32_MANTISSA_BITS) + element.largest_fraction[F32_MANTISSA_BITS]()
    )
    var bits = scale_bits + LARGEST
    comptime if dtype == DType.float32:
        var bound = SIMD[dtype, 2](bitcast[dtype](bits))
        return minimum(maximum(pair, -bound), bound)
    else:
        var half = (bits >> 16).cast[DType.uint16]()
        var bound = bitcast[DType.float16, 2](SIMD[DType.uint16, 2](half))
        var alias_pair = bitcast[DType.float16, 2](pair)
        return bitcast[dtype, 2](minimum(maximum(alias_pair, -bound), bound))


@always_inline
def largest_magnitude[dtype: DType, width: SIMDLength](x: SIMD[dtype, width]) -> UInt32:
    """Returns the bits of the largest magnitude, as `FloatBits` sees it.

    Where an input's pattern is a NaN of the type that the chains compute in,
    the result is at least `Window.HIGH`.
    """
    comptime if dtype == DType.float32:
        var wide = rebind[SIMD[DType.float32, width]](x)
        var amax = abs(wide[0])
        comptime for i in range(1, Int(width)):
            amax = maximum(amax, abs(wide[i]))
        return bitcast[DType.uint32](amax)
    else:
        var halves = bitcast[DType.float16, width](x)
        var high = halves.slice[2, offset=0]()
        var low = high
        comptime for i in range(1, Int(width) // 2):
            high = maximum(high, halves.slice[2, offset=2 * i]())
            low = minimum(low, halves.slice[2, offset=2 * i]())
        var both = maximum(high, -low)
        comptime if dtype == DType.float16:
            var amax = maximum(both[0], both[1]).cast[DType.float32]()
            return bitcast[DType.uint32](amax) & UInt32(FloatBits[dtype].MAGNITUDE)
        else:
            var bits = bitcast[DType.uint16, 2](both)
            return max(bits[0], bits[1]).cast[DType.uint32]()


@always_inline
def _exact_amax[dtype: DType](x: BlockFloats[dtype]) -> UInt32:
    """Returns the float32 bits of the largest magnitude; NaN counts as larger than infinity."""
    comptime if dtype == DType.float32:
        var bits = bitcast[DType.uint32, BLOCK](x)
        return (bits & UInt32(FloatBits[dtype].MAGNITUDE)).reduce_max()
    else:
        comptime HALF_MAGNITUDE = UInt16(0x7FFF)
        var amax = (bitcast[DType.uint16, BLOCK](x) & HALF_MAGNITUDE).reduce_max()
        return bitcast[DType.uint32](bitcast[dtype](amax).cast[DType.float32]())


@fieldwise_init
struct Rescaling(TrivialRegisterPassable):
    """How a block of any finite numbers is encoded: multiplied in float32, so that nothing is
    subnormal, then divided by the converter.

    Powers of two: exact but for elements too small for any code but zero.
    """

    var factor: Float32
    """What numbers are multiplied by."""
    var divisor: UInt32
    """What they are divided by then: an exponent field of float32."""
    var scale: UInt32

    comptime SHIFT = UInt32(64 << F32_MANTISSA_BITS)
    """The exponent of the factor, or of one over it, in its place."""

    @staticmethod
    @always_inline
    def of[element: Element](amax: UInt32, carry: UInt32, shift: UInt32 = Self.SHIFT) -> Self:
        """Returns that of a block.

        Args:
            amax: The bits of its largest magnitude in float32.
            carry: What the scale rule adds to them.
            shift: The exponent of the factor, from where it should be taken.
        """
        comptime TINY = UInt32(64 << F32_MANTISSA_BITS)
        comptime ONE = UInt32(F32_EXPONENT_BIAS << F32_MANTISSA_BITS)
        comptime emax = UInt32(element.emax << F32_MANTISSA_BITS)
        var scale = max(amax + carry, emax) - emax
        var signed_shift = shift if amax < TINY else -shift
        return Self(
            bitcast[DType.float32](ONE + signed_shift),
            (scale & _F32_EXPONENT) + signed_shift,
            scale >> UInt32(F32_MANTISSA_BITS),
        )


@always_inline
def _encode_rare[
    format: Format, dtype: DType, rounding: Rounding
](x: BlockFloats[dtype]) -> EncodedBlock[format]:
    """Encodes any block, exactly."""
    var amax = _exact_amax(x)
    if amax >= NOT_FINITE:
        return EncodedBlock[format](BlockCodes[format](0), UInt32(E8M0_NAN))
    # Of a branch: constants that wait for it would fill registers all along K.
    comptime carry = UInt32(rounding.carry[F32_MANTISSA_BITS, format.element]())
    var how = Rescaling.of[format.element](amax, carry, zero_of_a_branch() | Rescaling.SHIFT)
    # The converter of six bits takes a block at once: of bfloat16, in half as many registers.
    comptime IS_NARROW = format.element.bits == 6 and dtype == DType.bfloat16
    comptime through = DType.bfloat16 if IS_NARROW else DType.float32
    var rescaled = x.cast[DType.float32]() * how.factor
    var codes = _convert[format, through, rounding](rescaled.cast[through](), how.divisor)
    return EncodedBlock[format](codes, how.scale)
