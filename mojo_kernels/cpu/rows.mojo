"""Quantizes, decodes and moves rows of operands: the tasks of `quantize`."""

from layout import Coord

from ..layouts import (
    OperandLayout,
    PADDING_SCALE,
    Plain,
    RUN_BYTES,
    code_rows,
    scale_blocks,
    scale_rows,
)
from ..numbers.floats import round_to
from ..numbers.formats import Format
from ..numbers.rounding import Rounding
from ..operands import Matrix, Operand
from .encode import EncodedBlock, carry_of, encode_block
from .threads import Work


@fieldwise_init
struct QuantizeRows[format: Format, dtype: DType](Work):
    """Quantizes the rows of `x`, a chunk of rows a task."""

    var x: Matrix[Self.dtype]
    """The source, [rows, k]."""
    var out: Operand[Plain, Self.format]
    var rounding: Rounding
    var rows_per_task: Int

    def run(self, task: Int):
        """Quantizes the rows of task `task`."""
        comptime BLOCK_K = Self.format.block_k
        comptime BLOCK_BYTES = Self.format.block_bytes()
        var carry = carry_of[Self.format, Self.dtype](self.rounding)
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.out.shape.rows)):
            for block in range(self.out.shape.k_blocks[Self.format]()):
                var x = self.x.load[width=BLOCK_K, alignment=1](Coord(row, block * BLOCK_K))
                var encoded = encode_block[Self.format, Self.dtype](x, carry)
                self.out.codes.store[alignment=1](
                    Coord(self.out.code_offset(row, block * BLOCK_BYTES)), encoded.packed()
                )
                self.out.scales.store[alignment=1](
                    Coord(self.out.scale_offset(row, block)), encoded.scale
                )


@fieldwise_init
struct DequantizeRows[Layout: OperandLayout, format: Format, dtype: DType](Work):
    """Decodes the rows of an operand, a chunk of rows a task."""

    var operand: Operand[Self.Layout, Self.format]
    var out: Matrix[Self.dtype]
    """The result, [rows, k]."""
    var rows_per_task: Int

    def run(self, task: Int):
        """Decodes the rows of task `task`."""
        comptime BLOCK_K = Self.format.block_k
        comptime BLOCK_BYTES = Self.format.block_bytes()
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.operand.shape.rows)):
            for block in range(self.operand.shape.k_blocks[Self.format]()):
                var bytes = SIMD[DType.uint8, BLOCK_BYTES](0)
                comptime for byte in range(0, BLOCK_BYTES, RUN_BYTES):
                    bytes = bytes.insert[offset=byte](
                        self.operand.codes_of[RUN_BYTES](row, block * BLOCK_BYTES + byte)
                    )
                var encoded = EncodedBlock[Self.format].of_packed(
                    bytes, self.operand.scale(row, block)
                )
                self.out.store[alignment=1](
                    Coord(row, block * BLOCK_K), round_to[Self.dtype](encoded.values())
                )


@fieldwise_init
struct RelayoutRows[Source: OperandLayout, Target: OperandLayout, format: Format](Work):
    """Moves an operand to another layout, a group of rows a task; writes the padding."""

    var source: Operand[Self.Source, Self.format]
    var target: Operand[Self.Target, Self.format]
    var rows_per_task: Int
    """A multiple of the target's row multiples."""

    def run(self, task: Int):
        """Moves the rows of task `task`."""
        var shape = self.source.shape
        var row_bytes = shape.row_bytes[Self.format]()
        var padded_blocks = scale_blocks[Self.Target, Self.format](shape)
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
                if row < shape.rows and block < shape.k_blocks[Self.format]():
                    scale = self.source.scale(row, block)
                self.target.scales.store[alignment=1](
                    Coord(self.target.scale_offset(row, block)), scale
                )
