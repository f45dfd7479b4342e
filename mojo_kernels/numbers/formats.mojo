"""The table of block formats: element x scale x block. The only home of format facts.

A block is `block_rows` x `block_k` neighbouring elements that share one scale. Codes are packed
densely along K; of four-bit codes the even k is in the low nibble:

    byte b of a row      bits 0..3            bits 4..7
    four-bit codes       code of k = 2 * b    code of k = 2 * b + 1
    eight-bit codes      code of k = b

Source: OCP Microscaling Formats (MX) Specification v1.0, section 5.
"""

from .elements import Element
from .scales import Scale


@fieldwise_init
struct Format(Equatable, TrivialRegisterPassable, Writable):
    """One row of the table of formats."""

    var name: StaticString
    """The name used in every API."""
    var element: Element
    """What a code is."""
    var scale: Scale
    """What the scale of a block is."""
    var block_rows: Int
    """Rows of a block."""
    var block_k: Int
    """Elements of a block along K."""

    comptime MXFP4 = Self("mxfp4", Element.E2M1, Scale.E8M0, 1, 32)
    comptime MXFP8 = Self("mxfp8", Element.E4M3, Scale.E8M0, 1, 32)
    comptime MXFP8_E5M2 = Self("mxfp8_e5m2", Element.E5M2, Scale.E8M0, 1, 32)
    comptime MXINT8 = Self("mxint8", Element.INT8, Scale.E8M0, 1, 32)

    def packed_bytes(self, count: Int) -> Int:
        """Returns the bytes that `count` densely packed codes occupy."""
        return count * self.element.bits // 8

    def elements(self, packed_bytes: Int) -> Int:
        """Returns the number of codes that `packed_bytes` hold."""
        return packed_bytes * 8 // self.element.bits

    def block_bytes(self) -> Int:
        """Returns the bytes of the packed codes of a block's row."""
        return self.packed_bytes(self.block_k)

    def code(self) -> Int:
        """Returns the position in `FORMATS`, the number that bindings use."""
        comptime for i in range(len(FORMATS)):
            comptime format = FORMATS[i]
            if self == format:
                return i
        return NO_FORMAT


comptime FORMATS = [
    Format.MXFP4,
    Format.MXFP8,
    Format.MXFP8_E5M2,
    Format.MXINT8,
]
"""Every format; the position is the code that bindings use."""
comptime NO_FORMAT = -1
"""The code where there is no format: activations that stay floats."""
