"""The table of MX formats: one row per format, the only home of format facts.

A block is 32 neighbouring elements along K that share one E8M0 scale. An
element is stored as a code; codes are packed densely, two to a byte for the
four-bit formats, the even k in the low nibble:

    byte b of a row      bits 0..3            bits 4..7
                         code of k = 2 * b    code of k = 2 * b + 1

Source: OCP Microscaling Formats (MX) Specification v1.0, section 5.
"""


@fieldwise_init
struct MXFormat(Equatable, TrivialRegisterPassable, Writable):
    """One row of the OCP MX v1.0 table, plus the CDNA4 operand code."""

    var name: StaticString
    """The name used in every API."""
    var element_bits: Int
    """Bits of one code."""
    var mantissa_bits: Int
    """Explicit mantissa bits of the element."""
    var emax: Int
    """Exponent of the largest power of two the element can hold."""
    var block_size: Int
    """Elements that share one scale."""
    var scale_bias: Int
    """Scale byte `e` stands for 2 to the power `e - scale_bias`."""
    var scale_nan: Int
    """The scale byte that makes a block NaN."""
    var cdna4_code: Int32
    """Value of the `cbsz`/`blgp` field of `v_mfma_scale_*_f8f6f4`."""

    comptime MXFP4 = Self("mxfp4", 4, 1, 2, 32, 127, 255, 4)
    """E2M1 elements, E8M0 scales."""

    def packed_bytes(self, count: Int) -> Int:
        """Returns the bytes that `count` densely packed codes occupy."""
        return count * self.element_bits // 8


comptime FORMAT = MXFormat.MXFP4
"""The format that the kernels of this package compute in."""
comptime BLOCK = FORMAT.block_size
"""Elements of a block."""
comptime BLOCK_BYTES = FORMAT.block_size * FORMAT.element_bits // 8
"""Bytes that the packed codes of a block occupy."""
