"""The rules that pick a block's scale from its largest magnitude, for any element.

A rule adds a carry to the magnitude bits of the block maximum and reads the exponent field: the
sum's field is larger by one than the maximum's exactly when its mantissa reaches the rule's turn:

    rule     the mantissa reaches                                          of E2M1
    floor    never                                                         -
    even     what rounds up to two at the element's precision              1.75
    ceil     anything above one                                            > 1
    rceil    anything above the mantissa of the element's largest number   > 1.5

The exponent less the element's emax is the scale's, clamped to what E8M0 holds.

A float32 scale follows two of the rules: by `rceil` it is a power of two as well; by `even` the
maximum over the element's largest number, rounded to nearest even. It is never so small that a
number of the block that is no zero would be a subnormal float32.

Under E4M3 scales the same holds of the tensor scale and all of a row, but for elements that are
not finite, which do not count. A block's scale is its maximum over six tensor scales, rounded to
E4M3, not below the smallest; that of zeros is one, that of what is not finite NaN. Operations and
their order are ModelOpt's.
"""

from std.memory import bitcast

from .elements import Element
from .encode import round_divided
from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FloatBits
from .formats import FORMATS, Format
from .scales import E8M0_LARGEST, FLOAT32_NAN, Scale


comptime LARGEST_CODE = Element.E2M1.largest()
"""The largest number of the codes under E4M3 scales."""


@fieldwise_init
struct Rounding(Equatable, TrivialRegisterPassable, Writable):
    """The rule that picks a block's scale from its largest magnitude."""

    var code: Int
    """Index into `NAMES`."""

    comptime FLOOR = Self(0)
    """The exponent of the maximum: OCP text, torchao FLOOR."""
    comptime EVEN = Self(1)
    """The exponent after rounding to the element's precision: AITER Triton, MAX, Quark."""
    comptime CEIL = Self(2)
    """The next power of two: torchao CEIL."""
    comptime RCEIL = Self(3)
    """The smallest scale that does not saturate: torchao RCEIL, AITER HIP."""
    comptime COUNT = 4
    """Number of rules."""
    comptime NAMES = ["floor", "even", "ceil", "rceil"]
    """The names used in every API, by code."""

    def fits(self, scale: Scale) -> Bool:
        """Says whether scales of a kind can follow the rule."""
        if scale == Scale.E4M3:
            return self == Self.EVEN
        return scale == Scale.E8M0 or self in (Self.EVEN, Self.RCEIL)

    def carry[mantissa_bits: Int, element: Element](self) -> Int:
        """Returns what is added to the magnitude bits, of `mantissa_bits`, of the maximum."""
        if self == Self.EVEN:
            return 1 << (mantissa_bits - 1 - element.mantissa_bits)
        if self == Self.CEIL:
            return (1 << mantissa_bits) - 1
        if self == Self.RCEIL:
            return (1 << mantissa_bits) - 1 - element.largest_fraction[mantissa_bits]()
        return 0


@always_inline
def scale_from_amax[
    mantissa_bits: Int, bits: DType, element: Element
](amax: Scalar[bits], carry: Scalar[bits]) -> Scalar[bits]:
    """Returns the E8M0 byte for a finite block maximum, given the rule's carry."""
    comptime SHIFT = Scalar[bits](mantissa_bits)
    comptime if element.emax > 0:
        comptime emax = Scalar[bits](element.emax)
        return max((amax + carry) >> SHIFT, emax) - emax
    # Only then can the maximum be a subnormal whose scale is no clamped one. Doubled on its bits,
    # as a regular number by its field, it has its exponent, and one more, in the field.
    comptime ONE_FIELD = Scalar[bits](1 << mantissa_bits)
    var doubled = amax + min(amax, ONE_FIELD)
    var scale = max((doubled + carry) >> SHIFT, Scalar[bits](1)) - 1
    return min(scale, Scalar[bits](E8M0_LARGEST))


def smallest_float_scale(unit_exponent: Int) -> UInt32:
    """Returns the bits of the smallest float32 scale: half a unit times it is regular."""
    var exponent = 2 - F32_EXPONENT_BIAS - unit_exponent
    return UInt32((F32_EXPONENT_BIAS + exponent) << F32_MANTISSA_BITS)


@always_inline
def float_scale_from_amax(amax: UInt32, element: Element, is_power: Bool) -> Float32:
    """Returns the float32 scale of a block from the float32 bits of its largest magnitude.

    `is_power` asks for the next power of two. A NaN or an infinity makes the scale NaN.
    """
    var quotient = bitcast[DType.float32](amax) / element.largest()
    return float_scale_from_quotient(amax, quotient, element, is_power)


@always_inline
def float_scale_from_quotient(
    amax: UInt32, quotient: Float32, element: Element, is_power: Bool
) -> Float32:
    """Returns the same, from the magnitude over the element's largest number too."""
    comptime FIELD_OF_ONE = UInt32(1 << F32_MANTISSA_BITS)
    var scale = quotient
    if is_power:
        var carry = FIELD_OF_ONE - 1 - UInt32(element.largest_fraction[F32_MANTISSA_BITS]())
        var emax = UInt32(element.emax)
        var field = max((amax + carry) >> UInt32(F32_MANTISSA_BITS), emax) - emax
        scale = bitcast[DType.float32](field << UInt32(F32_MANTISSA_BITS))
    var bits = max(bitcast[DType.uint32](scale), smallest_float_scale(element.unit_exponent()))
    var is_finite = amax < UInt32(FloatBits[DType.float32].NOT_FINITE)
    return bitcast[DType.float32](bits if is_finite else UInt32(FLOAT32_NAN))


@always_inline
def tensor_scale_from_amax(amax: UInt32) -> Float32:
    """Returns the tensor scale of a row from the float32 bits of its largest finite magnitude."""
    comptime LARGEST = Format.NVFP4.largest()
    comptime SMALLEST = smallest_float_scale(Format.NVFP4.unit_exponent())
    var scale = bitcast[DType.float32](amax) / LARGEST
    return bitcast[DType.float32](max(bitcast[DType.uint32](scale), SMALLEST))


@always_inline
def e4m3_scale_from_amax(amax: UInt32, tensor_scale: Float32) -> UInt8:
    """Returns the E4M3 scale of a block from the float32 bits of its largest magnitude."""
    var quotient = bitcast[DType.float32](amax) / (LARGEST_CODE * tensor_scale)
    var code = round_divided[Element.E4M3](bitcast[DType.uint32](quotient))
    return e4m3_scale_of_code(amax, code).cast[DType.uint8]()


@always_inline
def e4m3_scale_of_code(amax: UInt32, rounded: UInt32) -> UInt32:
    """Returns the same, given the code that is nearest to that quotient."""
    comptime ONE = UInt32(Element.E4M3.bias << Element.E4M3.mantissa_bits)
    comptime NAN = UInt32(Element.E4M3.nan_code)
    var code = max(rounded, UInt32(1))
    if amax == 0:
        code = ONE
    if amax >= UInt32(FloatBits[DType.float32].NOT_FINITE):
        code = NAN
    return code


def carry_of(format: Int, rounding: Rounding) -> UInt32:
    """Returns a rule's carry for float32 bits and the elements of a format.

    Of a format with float scales, whether they are powers of two.
    """
    comptime for i in range(len(FORMATS)):
        if format == i:
            comptime if FORMATS[i].scale.has_float():
                return UInt32(1 if rounding == Rounding.RCEIL else 0)
            return UInt32(rounding.carry[F32_MANTISSA_BITS, FORMATS[i].element]())
    return 0
