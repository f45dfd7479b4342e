"""Quantizes to FP8 with float32 scales: reads a block twice, for its maximum and to encode it.

A lane has eight neighbours of a row at a time. A workgroup has, in turns of its lanes,

    fp8             a row, one block
    fp8_block_2d    one block, 128 x 128
    fp8_block       2048 of a row: 16 lanes share a block of 128, whose maximum stays among them

Lanes find the maximum of their 16 in registers, and those of a workgroup in LDS. Scale, quotients
and codes are those of `numbers/`: the same bits on every device.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of
from std.utils import StaticTuple

from ...numbers.encode import encode_over
from ...numbers.floats import FloatBits
from ...numbers.formats import Format
from ...numbers.rounding import Rounding, float_scale_from_amax
from ..chip import LANES, WORD_BYTES
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.wave import ROW_LANES, maximum_of_row
from ..operands.memory import Input, OUT_OF_RANGE, Output, Span, quotient, remainder
from ...launch.grid import Grid

comptime THREADS = 4 * LANES
"""Threads of a workgroup. Guess."""
comptime CHUNK = 8
"""Neighbours that a lane encodes at once."""
comptime Chunk = SIMD[DType.float32, CHUNK]
"""These."""
comptime GROUPS = THREADS // ROW_LANES
"""Groups of lanes that find a maximum in registers."""


def is_shared(format: Format) -> Bool:
    """Says whether all lanes of a workgroup have the same block."""
    return format.has_row_scales() or format.block_rows > 1


def grid_of(format: Format, rows: Int, k: Int) -> Grid:
    """Returns the grid of a launch."""
    var width = k if format.has_row_scales() else format.block_k
    if not is_shared(format):
        width = THREADS * CHUNK
    return Grid(ceildiv(rows, format.block_rows), ceildiv(k, width), threads=THREADS)


@fieldwise_init
struct Rows[dtype: DType](TrivialRegisterPassable):
    """Rows of floats and their codes, by chunks; others read as zeros and are not written."""

    var x: AMDBufferResource
    """The floats from the workgroup's first row on."""
    var codes: AMDBufferResource
    """The codes, likewise."""
    var k: Int32

    @always_inline
    def load(self, row: Int32, column: Int32, is_inside: Bool) -> Chunk:
        comptime BYTES = size_of[Self.dtype]()
        comptime PIECE = 16
        var offset = (row * self.k + column) * Int32(BYTES)
        var bytes = SIMD[DType.uint8, CHUNK * BYTES]()
        comptime for i in range(CHUNK * BYTES // PIECE):
            var place = offset + Int32(i * PIECE) if is_inside else OUT_OF_RANGE
            bytes = bytes.insert[offset=i * PIECE](self.x.load[DType.uint8, PIECE](place))
        return bitcast[Self.dtype, CHUNK](bytes).cast[DType.float32]()

    @always_inline
    def store(self, codes: SIMD[DType.uint8, CHUNK], row: Int32, column: Int32, is_inside: Bool):
        self.codes.store(row * self.k + column if is_inside else OUT_OF_RANGE, codes)


@always_inline
def magnitude_of(x: Chunk) -> UInt32:
    """Returns the bits of the largest magnitude; NaN counts as larger than infinity."""
    var bits = bitcast[DType.uint32, CHUNK](x)
    return (bits & UInt32(FloatBits[DType.float32].MAGNITUDE)).reduce_max()


@always_inline
def maximum_of_workgroup(x: UInt32, thread: Int32, lds: Lds) -> UInt32:
    """Returns the largest number of all lanes; all of them take part, once."""
    var words = tile_at[DType.uint32, 1, GROUPS](lds)
    var group = quotient[ROW_LANES](thread)
    var of_group = maximum_of_row(x)
    if remainder[ROW_LANES](thread) == 0:
        words[group] = of_group
    barrier()
    return maximum_of_row(words[remainder[GROUPS](thread)])


@fieldwise_init
struct BlockScales[format: Format](TrivialRegisterPassable):
    """The scales of all blocks."""

    var scales: AMDBufferResource
    """Float32, row of blocks by row of blocks."""
    var k: Int32

    @staticmethod
    @always_inline
    def of(scales: MutPointer[UInt8, _], rows: Int32, k: Int32) -> Self:
        var self = Self(Span.of(scales, 0).after(0), k)
        comptime ROWS = Self.format.block_rows
        var row_blocks = quotient[ROWS](rows + Int32(ROWS - 1))
        self.scales = Span.of(scales, row_blocks * self.row_blocks() * Int32(WORD_BYTES)).after(0)
        return self

    @always_inline
    def row_blocks(self) -> Int32:
        comptime if Self.format.has_row_scales():
            return 1
        else:
            comptime WIDTH = Self.format.block_k
            return quotient[WIDTH](self.k + Int32(WIDTH - 1))

    @always_inline
    def store(self, scale: Float32, row_block: Int32, k_block: Int32, is_inside: Bool):
        var offset = (row_block * self.row_blocks() + k_block) * Int32(WORD_BYTES)
        self.scales.store(
            offset if is_inside else OUT_OF_RANGE, bitcast[DType.uint8, WORD_BYTES](scale)
        )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def quantize_to_float_scales[
    format: Format, dtype: DType, rounding: Rounding
](x: Input[dtype], codes: Output[DType.uint8], scales: Output[DType.uint8], m: Int32, k: Int32):
    """Quantizes [M, K] contiguous floats: plain codes and scales."""
    var row_block, y = Int32(block_idx.x), Int32(block_idx.y)
    var first_row = row_block * Int32(format.block_rows)
    var rows = Rows[dtype](
        Span.of(x, m * k).after(first_row * k * Int32(size_of[dtype]())),
        Span.of(codes, m * k).after(first_row * k),
        k,
    )
    var all = BlockScales[format].of(scales, m, k)
    comptime if is_shared(format):
        _quantize_block[format, rounding](rows, all, min(m - first_row, Int32(format.block_rows)))
    else:
        var thread = Int32(thread_idx.x)
        var column = (y * Int32(THREADS) + thread) * Int32(CHUNK)
        var values = rows.load(0, column, column < k)
        var scale = _scale_of[format, rounding](maximum_of_row(magnitude_of(values)))
        rows.store(encode_over[format.element](values, scale), 0, column, column < k)
        var is_first = remainder[ROW_LANES](thread) == 0 and column < k
        all.store(scale, row_block, quotient[ROW_LANES * CHUNK](column), is_first)


@always_inline
def _quantize_block[
    dtype: DType, //, format: Format, rounding: Rounding
](rows: Rows[dtype], scales: BlockScales[format], num_rows: Int32):
    """Quantizes the workgroup's block, of so many rows."""
    var thread, y = Int32(thread_idx.x), Int32(block_idx.y)
    var first_column, row_chunks = Int32(0), quotient[CHUNK](rows.k)
    comptime if format.block_rows > 1:
        first_column = y * Int32(format.block_k)
        row_chunks = Int32(format.block_k // CHUNK)

    var amax = UInt32(0)
    for chunk in range(thread, num_rows * row_chunks, Int32(THREADS)):
        var row, column = _place[format](chunk, first_column)
        amax = max(amax, magnitude_of(rows.load(row, column, column < rows.k)))
    amax = maximum_of_workgroup(amax, thread, allocate_lds[GROUPS * WORD_BYTES]())
    var scale = _scale_of[format, rounding](amax)
    scales.store(scale, Int32(block_idx.x), y, thread == 0)
    for chunk in range(thread, num_rows * row_chunks, Int32(THREADS)):
        var row, column = _place[format](chunk, first_column)
        var values = rows.load(row, column, column < rows.k)
        rows.store(encode_over[format.element](values, scale), row, column, column < rows.k)


@always_inline
def _place[format: Format](chunk: Int32, first_column: Int32) -> Tuple[Int32, Int32]:
    """Returns row and column of a chunk of a block."""
    comptime if format.block_rows > 1:
        comptime ROW_CHUNKS = format.block_k // CHUNK
        var column = first_column + remainder[ROW_CHUNKS](chunk) * Int32(CHUNK)
        return (quotient[ROW_CHUNKS](chunk), column)
    else:
        return (Int32(0), chunk * Int32(CHUNK))


@always_inline
def _scale_of[format: Format, rounding: Rounding](amax: UInt32) -> Float32:
    """Returns the scale of a block from the bits of its largest magnitude."""
    comptime element = format.element
    return float_scale_from_amax(amax, materialize[element](), rounding == Rounding.RCEIL)
