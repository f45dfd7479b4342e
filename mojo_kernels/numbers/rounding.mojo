"""The rules that pick a block's scale from its largest magnitude, for any element.

A rule adds a carry to the magnitude bits of the block maximum and reads the exponent field: the
sum's field is larger by one than the maximum's exactly when its mantissa reaches the rule's turn:

    rule     the mantissa reaches                                          of E2M1
    floor    never                                                         -
    even     what rounds up to two at the element's precision              1.75
    ceil     anything above one                                            > 1
    rceil    anything above the mantissa of the element's largest number   > 1.5

The exponent less the element's emax is the scale's, clamped to what E8M0 holds.
"""

from .elements import Element
from .scales import E8M0_LARGEST


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
