"""Block scales: what a block's elements are multiplied by.

    scale     bytes   values
    E8M0      1       byte e is 2**(e - 127), e in 0 .. 254; 255 is NaN; there is no zero
    FLOAT32   4       as IEEE says
    E4M3      1       those of the element E4M3; a float32, the tensor scale, multiplies them all

A tensor scale is kept for each row, behind the scales of its blocks: rows that were tensors of
their own keep theirs, and a part of the rows is whole.

    row of E4M3 scales, K = 64      s0 s1 s2 s3 t t t t      float32 t, little-endian

Source: OCP Microscaling Formats (MX) Specification v1.0, section 5.4.1; NVIDIA's NVFP4 for E4M3.
"""

from std.memory import bitcast


@fieldwise_init
struct Scale(Equatable, TrivialRegisterPassable, Writable):
    """One row of the table of scales."""

    var code: Int
    """Position in `NAMES`."""
    var bytes: Int
    """Bytes of a stored scale."""
    var row_bytes: Int
    """Bytes behind those of a row: its tensor scale."""

    comptime NAMES = ["e8m0", "float32", "e4m3"]
    """The field's names for them."""
    comptime E8M0 = Self(0, 1, 0)
    comptime FLOAT32 = Self(1, 4, 0)
    comptime E4M3 = Self(2, 1, 4)

    def has_float(self) -> Bool:
        """Says whether a float32 multiplies sums: a scale, or the tensor scale."""
        return self != Self.E8M0

    def name(self) -> String:
        """Returns the field's name for it."""
        comptime for i in range(len(Self.NAMES)):
            comptime name = Self.NAMES[i]
            if self.code == i:
                return materialize[name]()
        return ""


comptime FLOAT32_NAN = 0x7FC00000
"""The bits of the float32 scale that makes a block NaN."""
comptime E8M0_BIAS = 127
"""Scale byte `e` stands for 2 to the power `e - E8M0_BIAS`."""
comptime E8M0_NAN = 255
"""The scale byte that makes a block NaN."""
comptime E8M0_LARGEST = 254
"""The scale byte of the largest scale."""


@always_inline
def decode_scale[width: SIMDLength](scales: SIMD[DType.uint8, width]) -> SIMD[DType.float64, width]:
    """Returns the values of E8M0 bytes; float64 holds every one of them."""
    comptime F64_MANTISSA_BITS = 52
    comptime F64_EXPONENT_BIAS = 1023
    comptime Bits = SIMD[DType.uint64, width]
    comptime NAN = Bits(0x7FF8 << 48)
    var fields = scales.cast[DType.uint64]() + UInt64(F64_EXPONENT_BIAS - E8M0_BIAS)
    var is_nan = scales.eq(UInt8(E8M0_NAN))
    return bitcast[DType.float64, width](is_nan.select(NAN, fields << F64_MANTISSA_BITS))
