"""Element types: what one code stands for.

A code is a sign bit above a magnitude, and magnitudes count up with the codes:

    element   bits   sign   exponent   mantissa   largest    codes without a number
    E2M1      4      1      2          1          6          none
    E2M3      6      1      2          3          7.5        none
    E3M2      6      1      3          2          28         none
    E4M3      8      1      4          3          448        0x7F, 0xFF: NaN
    E5M2      8      1      5          2          57344      0x7C, 0xFC: infinity; above: NaN
    INT8      8      two's complement, units of 2**-6        none; -128 is never produced
    INT16     16     two's complement, units of 2**-6        none; 2**14 units are the most produced

Below the smallest regular number codes are whole multiples of a unit; INT8 is nothing else.
Source: OCP Microscaling Formats (MX) Specification v1.0, section 5.3; OCP 8-bit Floating Point.
"""

from std.memory import bitcast

from .floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS


@fieldwise_init
struct Element(Equatable, TrivialRegisterPassable, Writable):
    """One row of the table of elements."""

    var code: Int
    """Position in `NAMES`. A name in the row itself would be in the symbols of all kernels."""
    var bits: Int
    """Bits of a code."""
    var exponent_bits: Int
    """Bits of the exponent; 0 for two's complement."""
    var mantissa_bits: Int
    """Explicit mantissa bits; of an integer, the bits below one."""
    var bias: Int
    """What an exponent field is larger by than the exponent."""
    var emax: Int
    """Exponent of the largest power of two that the element holds."""
    var largest_code: Int
    """The code of the largest finite magnitude."""
    var infinity_code: Int
    """The code of plus infinity; 0 for none."""
    var nan_code: Int
    """The smallest positive code of a NaN; 0 for none."""

    comptime NAMES = ["e2m1", "e4m3", "e5m2", "int8", "e2m3", "e3m2", "int16"]
    """The field's names for them."""
    comptime E2M1 = Self(0, 4, 2, 1, 1, 2, 0x7, 0, 0)
    comptime E4M3 = Self(1, 8, 4, 3, 7, 8, 0x7E, 0, 0x7F)
    comptime E5M2 = Self(2, 8, 5, 2, 15, 15, 0x7B, 0x7C, 0x7D)
    comptime INT8 = Self(3, 8, 0, 6, 1, 0, 0x7F, 0, 0)
    comptime E2M3 = Self(4, 6, 2, 3, 1, 2, 0x1F, 0, 0)
    comptime E3M2 = Self(5, 6, 3, 2, 3, 4, 0x1F, 0, 0)
    comptime INT16 = Self(6, 16, 0, 6, 1, 7, 0x4000, 0, 0)
    """What activations become that are multiplied as two bytes each; of no format."""

    def name(self) -> String:
        """Returns the field's name for it."""
        comptime for i in range(len(Self.NAMES)):
            comptime name = Self.NAMES[i]
            if self.code == i:
                return materialize[name]()
        return ""

    def sign_code(self) -> Int:
        """Returns the sign bit of a code."""
        return 1 << (self.bits - 1)

    def magnitude_mask(self) -> Int:
        """Returns the bits of a code below the sign."""
        return self.sign_code() - 1

    def is_integer(self) -> Bool:
        """Says whether codes are two's complement."""
        return self.exponent_bits == 0

    def has_non_finite(self) -> Bool:
        """Says whether some codes are infinite or NaN."""
        return self.infinity_code != 0 or self.nan_code != 0

    def unit_exponent(self) -> Int:
        """Returns the exponent of the smallest positive number, which all are multiples of."""
        return 1 - self.bias - self.mantissa_bits

    def largest_fraction[mantissa_bits: Int](self) -> Int:
        """Returns the mantissa of the largest number, as that of a float of `mantissa_bits`."""
        var own = self.largest_code & ((1 << self.mantissa_bits) - 1)
        return own << (mantissa_bits - self.mantissa_bits)

    def largest(self) -> Float32:
        """Returns the largest number, of an element with exponents."""
        var field = UInt32(F32_EXPONENT_BIAS + self.emax) << UInt32(F32_MANTISSA_BITS)
        return bitcast[DType.float32](field + UInt32(self.largest_fraction[F32_MANTISSA_BITS]()))

    def bound_exponent(self) -> Int:
        """Returns the least exponent whose power of two every finite magnitude is below.

        The one of -128 in INT8, which may come from outside, is larger by one.
        """
        return self.emax + (2 if self.is_integer() else 1)
