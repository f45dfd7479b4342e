"""The table of block formats: element x scale x block. The only home of format facts.

A block is `block_rows` x `block_k` neighbouring elements that share one scale. Codes are packed
densely along K, the first one in the lowest bits:

    four-bit codes       code of k = 2 * b + i at bits 4 * i of byte b
    six-bit codes        code of k = 4 * t + i at bits 6 * i of bytes 3 * t .. 3 * t + 2, low first
    eight-bit codes      code of k = b in byte b

What multiplies a sum of products is the scale of a block, or where scales are E4M3, the tensor
scale of a row: a code times such a scale has six significant bits, and is a number of its own.

Blocks of MX formats tile a row. Others may be cut at the end of a row, and of the rows: K is any
multiple of `K_MULTIPLE`. They differ in their blocks alone, so kernels are compiled once for the
`kin` of all that have an element and a scale in common, and learn the `BlockShape` at run time.

Source: OCP Microscaling Formats (MX) Specification v1.0, section 5; `fp8_block` is DeepSeek-V3's,
`nvfp4` NVIDIA's.
"""

from std.bit import log2_floor
from std.math import ceildiv

from .elements import Element
from .scales import Scale


comptime K_MULTIPLE = 32
"""Elements of a row are a multiple of this, in every format."""
comptime WHOLE_ROW = 1 << 62
"""Elements of a block that is a whole row: more than any row has."""


@fieldwise_init
struct BlockShape(TrivialRegisterPassable):
    """Rows and elements of a block, powers of two, by their exponents."""

    var row_bits: Int
    var k_bits: Int

    @always_inline
    def row_blocks(self, rows: Int) -> Int:
        """Returns the blocks below each other in `rows`, the last one perhaps cut."""
        return (rows + (1 << self.row_bits) - 1) >> self.row_bits

    @always_inline
    def k_blocks(self, k: Int) -> Int:
        """Returns the blocks of a row of `k` elements, one or more."""
        return ((k - 1) >> self.k_bits) + 1

    @always_inline
    def index(self, row: Int, element: Int, k: Int) -> Int:
        """Returns the place of an element's block, rows of `k` elements, blocks row by row."""
        return (row >> self.row_bits) * self.k_blocks(k) + (element >> self.k_bits)


@fieldwise_init
struct Format(Equatable, TrivialRegisterPassable, Writable):
    """One row of the table of formats."""

    var position: Int
    """Position in `FORMATS` and `NAMES`; `NO_FORMAT` for what stands for several."""
    var element: Element
    """What a code is."""
    var scale: Scale
    """What the scale of a block is."""
    var block_rows: Int
    """Rows of a block."""
    var block_k: Int
    """Elements of a block along K; `WHOLE_ROW` for all."""

    comptime NAMES = [
        "mxfp4",
        "mxfp8",
        "mxfp8_e5m2",
        "mxint8",
        "fp8",
        "fp8_e5m2",
        "fp8_block",
        "fp8_block_2d",
        "mxfp6",
        "mxfp6_e3m2",
        "nvfp4",
    ]
    """The names used in every API."""
    comptime MXFP4 = Self(0, Element.E2M1, Scale.E8M0, 1, 32)
    comptime MXFP8 = Self(1, Element.E4M3, Scale.E8M0, 1, 32)
    comptime MXFP8_E5M2 = Self(2, Element.E5M2, Scale.E8M0, 1, 32)
    comptime MXINT8 = Self(3, Element.INT8, Scale.E8M0, 1, 32)
    comptime FP8 = Self(4, Element.E4M3, Scale.FLOAT32, 1, WHOLE_ROW)
    comptime FP8_E5M2 = Self(5, Element.E5M2, Scale.FLOAT32, 1, WHOLE_ROW)
    comptime FP8_BLOCK = Self(6, Element.E4M3, Scale.FLOAT32, 1, 128)
    comptime FP8_BLOCK_2D = Self(7, Element.E4M3, Scale.FLOAT32, 128, 128)
    comptime MXFP6 = Self(8, Element.E2M3, Scale.E8M0, 1, 32)
    comptime MXFP6_E3M2 = Self(9, Element.E3M2, Scale.E8M0, 1, 32)
    comptime NVFP4 = Self(10, Element.E2M1, Scale.E4M3, 1, 16)

    def packed_bytes(self, count: Int) -> Int:
        """Returns the bytes that `count` densely packed codes occupy."""
        return count * self.element.bits // 8

    def elements(self, packed_bytes: Int) -> Int:
        """Returns the number of codes that `packed_bytes` hold."""
        return packed_bytes * 8 // self.element.bits

    def block_bytes(self) -> Int:
        """Returns the bytes of the packed codes of a block's row."""
        return self.packed_bytes(self.block_k)

    def block(self) -> BlockShape:
        """Returns rows and elements of what one scale of sums, or one tensor scale, multiplies."""
        var k = WHOLE_ROW if self.has_row_scales() else self.block_k
        return BlockShape(log2_floor(self.block_rows), log2_floor(k))

    def scale_row_bytes(self, k: Int) -> Int:
        """Returns the bytes of a row of scales of a plain operand."""
        return ceildiv(k, self.block_k) * self.scale.bytes + self.scale.row_bytes

    def scale_bytes(self, rows: Int, k: Int) -> Int:
        """Returns the bytes of the scales of a plain operand."""
        return self.block().row_blocks(rows) * self.scale_row_bytes(k)

    def has_row_scales(self) -> Bool:
        """Says whether one scale multiplies the sums of a row over K."""
        return self.block_k == WHOLE_ROW or self.scale == Scale.E4M3

    def unit_exponent(self) -> Int:
        """Returns the exponent of what all numbers, codes under E4M3 scales, are multiples of."""
        var of_scale = Element.E4M3.unit_exponent() if self.scale == Scale.E4M3 else 0
        return self.element.unit_exponent() + of_scale

    def bound_exponent(self) -> Int:
        """Returns an exponent whose power of two every finite number's magnitude is below."""
        var of_scale = Element.E4M3.bound_exponent() if self.scale == Scale.E4M3 else 0
        return self.element.bound_exponent() + of_scale

    def largest(self) -> Float32:
        """Returns the largest number, of an element with exponents."""
        var of_scale = Element.E4M3.largest() if self.scale == Scale.E4M3 else Float32(1)
        return self.element.largest() * of_scale

    def has_non_finite(self) -> Bool:
        """Says whether some numbers are infinite or NaN."""
        return self.element.has_non_finite() or self.scale == Scale.E4M3

    def kin(self) -> Self:
        """Returns what kernels are compiled for: blocks of `K_MULTIPLE` where a run tells more."""
        if self.scale == Scale.E8M0:
            return self
        return Self(NO_FORMAT, self.element, self.scale, 1, K_MULTIPLE)

    def name(self) -> String:
        """Returns the name used in every API."""
        comptime for i in range(len(Self.NAMES)):
            comptime name = Self.NAMES[i]
            if self.position == i:
                return materialize[name]()
        return ""

    def code(self) -> Int:
        """Returns the position in `FORMATS`, the number that bindings use."""
        return self.position


comptime FORMATS = [
    Format.MXFP4,
    Format.MXFP8,
    Format.MXFP8_E5M2,
    Format.MXINT8,
    Format.FP8,
    Format.FP8_E5M2,
    Format.FP8_BLOCK,
    Format.FP8_BLOCK_2D,
    Format.MXFP6,
    Format.MXFP6_E3M2,
    Format.NVFP4,
]
"""Every format; the position is the code that bindings use."""
comptime NO_FORMAT = -1
"""The code where there is no format: activations that stay floats."""
comptime E4M3_BLOCK = Format.NVFP4.block_k
"""Elements under an E4M3 scale."""


@always_inline
def block_of(format: Int) -> BlockShape:
    """Returns what one scale of sums multiplies, by a format's position in `FORMATS`."""
    var block = materialize[Format.MXFP4.block()]()
    comptime for i in range(len(FORMATS)):
        comptime other = FORMATS[i].block()
        if format == i:
            block = materialize[other]()
    return block


@always_inline
def has_float_scales(format: Int) -> Bool:
    """Says whether a float32 multiplies sums, by a format's position in `FORMATS`."""
    var found = False
    comptime for i in range(len(FORMATS)):
        comptime if FORMATS[i].scale.has_float():
            found = found or format == i
    return found


@always_inline
def has_e4m3_scales(format: Int) -> Bool:
    """Says whether scales are E4M3, by a format's position in `FORMATS`."""
    var found = False
    comptime for i in range(len(FORMATS)):
        comptime if FORMATS[i].scale == Scale.E4M3:
            found = found or format == i
    return found


def scale_bytes_of(format: Int, rows: Int, k: Int) -> Int:
    """Returns the bytes of the scales of a plain operand, by a format's position in `FORMATS`."""
    comptime for i in range(len(FORMATS)):
        comptime found = FORMATS[i]
        if format == i:
            return found.scale_bytes(rows, k)
    return 0
