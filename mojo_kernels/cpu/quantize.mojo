"""Quantizes rows of floats to plain MX operands on the CPU, and decodes operands.

A block is one SIMD vector of magnitude bits: its maximum gives the scale,
and every element is encoded from the same vector. A block that holds a NaN
or an infinity becomes NaN: scale 255, and codes 0.
"""

from layout import Coord

from ..codec import (
    FloatBits,
    MAGNITUDE_CODE,
    Rounding,
    SIGN_CODE,
    decode_block,
    encode_magnitudes,
    round_to,
    scale_from_amax,
)
from ..formats import BLOCK, BLOCK_BYTES, FORMAT
from ..layouts import (
    OperandLayout,
    PADDING_SCALE,
    Plain,
    RUN_BYTES,
    code_rows,
    scale_blocks,
    scale_rows,
)
from ..operands import Matrix, Operand
from .threads import Work

comptime HALF = BLOCK_BYTES
"""Elements of a block that share a nibble position: one for each byte."""


@fieldwise_init
struct EncodedBlock(TrivialRegisterPassable):
    """One encoded block: even and odd elements apart, as packing wants them."""

    var even: SIMD[DType.uint8, HALF]
    """Codes of elements 0, 2, .. 30."""
    var odd: SIMD[DType.uint8, HALF]
    """Codes of elements 1, 3, .. 31."""
    var scale: UInt8
    """The scale byte."""

    @always_inline
    def any(self) -> Bool:
        """Says whether any element is not zero."""
        return ((self.even | self.odd) & MAGNITUDE_CODE).ne(0).reduce_or()

    @always_inline
    def packed(self) -> SIMD[DType.uint8, BLOCK_BYTES]:
        """Returns the bytes of the block: the even element in the low nibble."""
        return self.even | (self.odd << 4)


@always_inline
def encode_block[
    dtype: DType
](x: SIMD[dtype, BLOCK], carry: Scalar[FloatBits[dtype].bits]) -> EncodedBlock:
    """Encodes one block; `carry` is the rounding rule's."""
    comptime source = FloatBits[dtype]
    comptime Bits = SIMD[source.bits, BLOCK]
    var bits = source.of(x)
    var magnitudes = bits & Bits(source.MAGNITUDE)
    var amax = magnitudes.reduce_max()
    if amax >= Scalar[source.bits](source.NOT_FINITE):
        return EncodedBlock(0, 0, UInt8(FORMAT.scale_nan))

    var scale = scale_from_amax[source.MANTISSA_BITS](amax, carry)
    comptime SIGN_TO_CODE = source.SIGN_SHIFT - 3
    var signs = (bits >> Bits(SIGN_TO_CODE)) & Bits(SIGN_CODE)
    var codes = (encode_magnitudes[dtype](magnitudes, scale) | signs).cast[DType.uint8]()
    var halves = codes.deinterleave()
    return EncodedBlock(
        rebind[SIMD[DType.uint8, HALF]](halves[0]),
        rebind[SIMD[DType.uint8, HALF]](halves[1]),
        scale.cast[DType.uint8](),
    )


@fieldwise_init
struct QuantizeRows[dtype: DType](Work):
    """Quantizes the rows of `x`, a chunk of rows a task."""

    var x: Matrix[Self.dtype]
    """The source, [rows, k]."""
    var out: Operand[Plain]
    """The result."""
    var rounding: Rounding
    """The scale rule."""
    var rows_per_task: Int
    """Rows of a task."""

    def run(self, task: Int):
        """Quantizes the rows of task `task`."""
        comptime source = FloatBits[Self.dtype]
        var carry = Scalar[source.bits](self.rounding.carry[source.MANTISSA_BITS]())
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.out.shape.rows)):
            for block in range(self.out.shape.k_blocks()):
                var x = self.x.load[width=BLOCK, alignment=1](Coord(row, block * BLOCK))
                var encoded = encode_block[Self.dtype](x, carry)
                self.out.codes.store[alignment=1](
                    Coord(self.out.code_offset(row, block * BLOCK_BYTES)), encoded.packed()
                )
                self.out.scales.store[alignment=1](
                    Coord(self.out.scale_offset(row, block)), encoded.scale
                )


@fieldwise_init
struct DequantizeRows[Layout: OperandLayout, dtype: DType](Work):
    """Decodes the rows of an operand, a chunk of rows a task."""

    var operand: Operand[Self.Layout]
    """The source, in any layout."""
    var out: Matrix[Self.dtype]
    """The result, [rows, k]."""
    var rows_per_task: Int
    """Rows of a task."""

    def run(self, task: Int):
        """Decodes the rows of task `task`."""
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.operand.shape.rows)):
            for block in range(self.operand.shape.k_blocks()):
                var bytes = SIMD[DType.uint8, BLOCK_BYTES](0)
                comptime for byte in range(0, BLOCK_BYTES, RUN_BYTES):
                    bytes = bytes.insert[offset=byte](
                        self.operand.codes_of[RUN_BYTES](row, block * BLOCK_BYTES + byte)
                    )
                var values = decode_block(bytes, self.operand.scale(row, block))
                self.out.store[alignment=1](Coord(row, block * BLOCK), round_to[Self.dtype](values))


@fieldwise_init
struct RelayoutRows[Source: OperandLayout, Target: OperandLayout](Work):
    """Moves an operand to another layout, a group of rows a task; writes the padding."""

    var source: Operand[Self.Source]
    """The operand to read."""
    var target: Operand[Self.Target]
    """The operand to write."""
    var rows_per_task: Int
    """Rows of a task, a multiple of the target's row multiples."""

    def run(self, task: Int):
        """Moves the rows of task `task`."""
        var shape = self.source.shape
        var row_bytes = shape.row_bytes()
        var padded_blocks = scale_blocks[Self.Target](shape)
        var first = task * self.rows_per_task
        var last = first + self.rows_per_task

        for row in range(first, min(last, code_rows[Self.Target](shape))):
            for byte in range(0, row_bytes, RUN_BYTES):
                var run = SIMD[DType.uint8, RUN_BYTES](0)
                if row < shape.rows:
                    run = self.source.codes_of[RUN_BYTES](row, byte)
                self.target.codes.store[alignment=1](Coord(self.target.code_offset(row, byte)), run)
        for row in range(first, min(last, scale_rows[Self.Target](shape))):
            for block in range(padded_blocks):
                var scale = PADDING_SCALE
                if row < shape.rows and block < shape.k_blocks():
                    scale = self.source.scale(row, block)
                self.target.scales.store[alignment=1](
                    Coord(self.target.scale_offset(row, block)), scale
                )
