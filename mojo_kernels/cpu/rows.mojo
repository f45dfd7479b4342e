"""Quantizes, decodes and moves rows of operands: the tasks of `quantize`."""

from layout import Coord

from ..layouts import (
    OperandLayout,
    OperandShape,
    PADDING_SCALE,
    Plain,
    RUN_BYTES,
    code_rows,
    e4m3_offset_in,
    e4m3_place,
    e4m3_row_bytes,
    element_of_e4m3,
    padded_blocks,
    scale_rows,
)
from ..numbers.floats import FLOAT_TYPES, round_product_to, round_to
from ..numbers.formats import Format
from ..numbers.rounding import Rounding
from ..numbers.scales import Scale
from ..operands import Flat, Matrix, Operand, flat, matrix, store_bytes
from .encode import (
    EncodedBlock,
    FloatScaledBlock,
    carry_of,
    encode_block,
    float_scale_of,
    float_scaled_block,
    packed,
    packed_block,
)
from .threads import Work
from .vectors import BLOCK, HAS_FMA


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
        comptime PACKED_BYTES = Self.format.block_bytes()
        var carry = carry_of[Self.format, Self.dtype](self.rounding)
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.out.shape.rows)):
            for block in range(self.out.shape.k_blocks[Self.format]()):
                var x = self.x.load[width=BLOCK_K, alignment=1](Coord(row, block * BLOCK_K))
                var encoded = encode_block[Self.format, Self.dtype](x, carry)
                store_bytes[PACKED_BYTES](
                    self.out.codes,
                    self.out.code_offset(row, block * PACKED_BYTES),
                    encoded.packed(),
                )
                self.out.scales.store[alignment=1](
                    Coord(self.out.scale_offset(row, block)), encoded.scale
                )


@fieldwise_init
struct QuantizeScaledRows[format: Format, dtype: DType](Work):
    """Quantizes the rows of `x` under float scales, some rows of blocks a task."""

    var x: Matrix[Self.dtype]
    """The source, [rows, k]."""
    var out: Operand[Plain, Self.format]
    var rounding: Rounding
    var tensor_scales: Int
    """Address of those of the rows, or 0."""
    var rows_per_task: Int
    """A multiple of the rows of a block."""

    def run(self, task: Int):
        """Quantizes the rows of task `task`."""
        var rows, block, k = self.out.shape.rows, self.out.block, self.out.shape.k
        var end = min((task + 1) * self.rows_per_task, rows)
        for first_row in range(task * self.rows_per_task, end, 1 << block.row_bits):
            var last_row = min(first_row + (1 << block.row_bits), rows)
            for i in range(block.k_blocks(k)):
                var first = i << block.k_bits
                var last = k if k - first <= 1 << block.k_bits else first + (1 << block.k_bits)
                self._quantize(first_row, last_row, first, last)

    def _quantize(self, first_row: Int, last_row: Int, first: Int, last: Int):
        """Quantizes a block."""
        var scale: Float32
        if Self.format.scale == Scale.E4M3 and self.tensor_scales != 0:
            var given = flat[DType.float32](self.tensor_scales, self.out.shape.rows)
            scale = given.load[width=1](Coord(first_row))
        else:
            scale = float_scale_of[Self.format](
                self.x, first_row, last_row, first, last, self.rounding
            )
        self.out.store_float_scale(first_row, first, scale)
        for row in range(first_row, last_row):
            for k in range(first, last, BLOCK):
                var x = self.x.load[width=BLOCK, alignment=1](Coord(row, k))
                comptime Floats = SIMD[DType.float32, Self.format.block_k]
                var floats = rebind[Floats](x.cast[DType.float32]())
                var encoded = FloatScaledBlock[Self.format].of(floats, scale)
                var at = self.out.code_offset(row, Self.format.packed_bytes(k))
                self.out.codes.store[alignment=1](Coord(at), packed[Self.format](encoded.codes))
                comptime if Self.format.scale == Scale.E4M3:
                    var scales_at = self.out.e4m3_offset(row, k)
                    self.out.scales.store[alignment=1](Coord(scales_at), encoded.scales)


@fieldwise_init
struct DequantizeRows[Layout: OperandLayout, format: Format](Work):
    """Decodes the rows of an operand, a chunk of rows a task."""

    var operand: Operand[Self.Layout, Self.format]
    var out: FloatRows
    """The result, [rows, k]."""
    var rows_per_task: Int

    def run(self, task: Int):
        """Decodes the rows of task `task`."""
        comptime BLOCK_K = Self.format.block_k
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.operand.shape.rows)):
            for block in range(self.operand.shape.k_blocks[Self.format]()):
                comptime if Self.format.scale.has_float():
                    var encoded = float_scaled_block(self.operand, row, block)
                    var scale = self.operand.float_scale(row, block * BLOCK_K)
                    self.out.store(row, block * BLOCK_K, encoded.numbers(), scale)
                else:
                    var encoded = EncodedBlock[Self.format].of_packed(
                        packed_block(self.operand, row, block), self.operand.scale(row, block)
                    )
                    self.out.store(row, block * BLOCK_K, encoded.values())


@fieldwise_init
struct FloatRows(TrivialRegisterPassable):
    """Contiguous rows of floats of a type that only a run tells."""

    var address: Int
    var dtype: Int
    """Position in `FLOAT_TYPES`."""
    var rows: Int
    var columns: Int

    @always_inline
    def store[
        width: SIMDLength
    ](self, row: Int, column: Int, x: SIMD[DType.float32, width], scale: Float32):
        """Rounds neighbours of a row, times a scale, to nearest even and stores them."""
        comptime for i in range(len(FLOAT_TYPES)):
            if self.dtype == i:
                var out = matrix[FLOAT_TYPES[i]](
                    self.address, self.rows, self.columns, self.columns
                )
                out.store[alignment=1](
                    Coord(row, column), round_product_to[FLOAT_TYPES[i], has_fma=HAS_FMA](x, scale)
                )

    @always_inline
    def store[width: SIMDLength](self, row: Int, column: Int, x: SIMD[DType.float32, width]):
        """Rounds neighbours of a row to nearest even and stores them."""
        comptime for i in range(len(FLOAT_TYPES)):
            if self.dtype == i:
                var out = matrix[FLOAT_TYPES[i]](
                    self.address, self.rows, self.columns, self.columns
                )
                out.store[alignment=1](Coord(row, column), round_to[FLOAT_TYPES[i]](x))


@fieldwise_init
struct StoredBytes[Layout: OperandLayout](TrivialRegisterPassable):
    """Codes and scales in a layout, of any format: bytes and blocks of a row are all it takes."""

    var codes: Flat[DType.uint8]
    var scales: Flat[DType.uint8]
    var rows: Int
    var row_bytes: Int
    var k_blocks: Int

    @staticmethod
    def at(codes: Int, scales: Int, rows: Int, row_bytes: Int, k_blocks: Int) -> Self:
        """Views the operand whose codes and scales start at two addresses."""
        var shape = OperandShape(rows, k_blocks)
        var blocks = padded_blocks[Self.Layout](k_blocks)
        return Self(
            flat[DType.uint8](codes, code_rows[Self.Layout](shape) * row_bytes),
            flat[DType.uint8](scales, scale_rows[Self.Layout](shape) * blocks),
            rows,
            row_bytes,
            k_blocks,
        )

    def padded_rows(self) -> Int:
        """Returns the rows that are stored, of codes or of scales."""
        var shape = OperandShape(self.rows, self.k_blocks)
        return max(code_rows[Self.Layout](shape), scale_rows[Self.Layout](shape))

    def padded_blocks(self) -> Int:
        """Returns the scales of a row that are stored."""
        return padded_blocks[Self.Layout](self.k_blocks)

    @always_inline
    def code_at(self, row: Int, byte: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        return Self.Layout.code_offset(row, byte, self.row_bytes)

    @always_inline
    def scale_at(self, row: Int, block: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        return Self.Layout.scale_offset(row, block, self.padded_blocks())


@fieldwise_init
struct RelayoutRows[Source: OperandLayout, Target: OperandLayout](Work):
    """Moves an operand to another layout, a group of rows a task; writes the padding."""

    var source: StoredBytes[Self.Source]
    var target: StoredBytes[Self.Target]
    var rows_per_task: Int
    """A multiple of the target's row multiples."""

    def run(self, task: Int):
        """Moves the rows of task `task`."""
        var source, target = self.source, self.target
        var shape = OperandShape(source.rows, source.k_blocks)
        var first = task * self.rows_per_task
        var last = first + self.rows_per_task
        for row in range(first, min(last, code_rows[Self.Target](shape))):
            for byte in range(0, source.row_bytes, RUN_BYTES):
                var run = SIMD[DType.uint8, RUN_BYTES](0)
                if row < source.rows:
                    run = source.codes.load[width=RUN_BYTES, alignment=1](
                        Coord(source.code_at(row, byte))
                    )
                target.codes.store[alignment=1](Coord(target.code_at(row, byte)), run)
        for row in range(first, min(last, scale_rows[Self.Target](shape))):
            for block in range(target.padded_blocks()):
                var scale = PADDING_SCALE
                if row < source.rows and block < source.k_blocks:
                    scale = source.scales.load[width=1](Coord(source.scale_at(row, block)))
                target.scales.store[alignment=1](Coord(target.scale_at(row, block)), scale)


@fieldwise_init
struct RelayoutE4M3[Source: OperandLayout, Target: OperandLayout](Work):
    """Moves E4M3 scales and tensor scales to another layout, some rows a task; pads with zeros."""

    var source: Flat[DType.uint8]
    var target: Flat[DType.uint8]
    var rows: Int
    var stored_rows: Int
    """Of the target."""
    var k: Int
    var rows_per_task: Int

    def run(self, task: Int):
        """Moves the rows of task `task`."""
        var first = task * self.rows_per_task
        for row in range(first, min(first + self.rows_per_task, self.stored_rows)):
            for index in range(e4m3_row_bytes[Self.Target](self.k)):
                var element, moved = element_of_e4m3[Self.Target](index, self.k), UInt8(0)
                if row < self.rows and element >= 0:
                    var at = e4m3_offset_in[Self.Source](row, element, self.k)
                    moved = self.source.load[width=1](Coord(at))
                self.target.store(Coord(e4m3_place[Self.Target](row, index, self.k)), moved)
