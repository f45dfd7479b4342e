"""Quantizes to FP8 with float32 scales: reads floats once, but what lanes cannot hold of long rows.

A lane has eight neighbours of a row at a time. A workgroup has, in turns of its lanes,

    fp8             a row, one block; what is behind its first 8192 is read twice
    fp8_block_2d    one block, 128 x 128
    fp8_block       2048 of four rows: 8 lanes share a block of 128, whose maximum stays among them

Lanes of a workgroup find a maximum in registers, 16 at a time, then in LDS. Scales, quotients
and codes are those of `numbers/`, to the bit, without a division a number: `quotients.Inverse`.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_dim, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...numbers.elements import Element
from ...numbers.floats import FloatBits
from ...numbers.formats import Format
from ...numbers.quotients import Inverse, over_largest
from ...numbers.rounding import Rounding, float_scale_from_quotient
from ..chip import LANES, WORD_BYTES
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.vector import encode_pair, opaque, reciprocal
from ..instructions.wave import HALF_ROW_LANES, ROW_LANES, maximum_of_half_row, maximum_of_row
from ..operands.memory import Input, OUT_OF_RANGE, Output, Span, quotient, remainder
from ...launch.grid import Grid
from ...tiles import in_registers

comptime THREADS = 2 * LANES
"""Threads of a workgroup: by the timing model, of 128 and 256."""
comptime CHUNK = 8
"""Neighbours that a lane encodes at once."""
comptime WAVE_ROWS = 4
"""Rows of a wave whose lanes share blocks by eights: by the timing model, of 1, 2 and 4."""
comptime GROUPS = THREADS // ROW_LANES
"""Groups of lanes that find a maximum in registers."""


def is_shared(format: Format) -> Bool:
    """Says whether all lanes of a workgroup have the same block."""
    return format.has_row_scales() or format.block_rows > 1


def held_chunks(format: Format) -> Int:
    """Returns the chunks of a block that a lane has in registers: all, but of rows. Guess."""
    if format.has_row_scales():
        return 8
    var lanes = THREADS if is_shared(format) else HALF_ROW_LANES
    return format.block_rows * format.block_k // (lanes * CHUNK)


def grid_of(format: Format, rows: Int, k: Int) -> Grid:
    """Returns the grid of a launch."""
    var width = k if format.has_row_scales() else format.block_k
    var height = format.block_rows
    if not is_shared(format):
        width *= THREADS // HALF_ROW_LANES
        height = WAVE_ROWS
    return Grid(ceildiv(rows, height), ceildiv(k, width), threads=THREADS)


@fieldwise_init
struct Rows[dtype: DType](TrivialRegisterPassable):
    """Rows of floats and their codes, by chunks; others read as zeros and are not written."""

    comptime Chunk = SIMD[Self.dtype, CHUNK]

    var x: AMDBufferResource
    """The floats from the workgroup's first row on."""
    var codes: AMDBufferResource
    """The codes, likewise."""
    var k: Int32

    @always_inline
    def load(self, row: Int32, column: Int32, is_inside: Bool) -> Self.Chunk:
        var offset = (row * self.k + column) * Int32(size_of[Self.dtype]())
        return load_chunk[Self.dtype](self.x, offset if is_inside else OUT_OF_RANGE)

    @always_inline
    def store(self, codes: SIMD[DType.uint8, CHUNK], row: Int32, column: Int32, is_inside: Bool):
        self.codes.store(row * self.k + column if is_inside else OUT_OF_RANGE, codes)


@always_inline
def load_chunk[
    dtype: DType
](memory: AMDBufferResource, offset: Int32, place: Int32 = 0) -> SIMD[dtype, CHUNK]:
    """Loads a chunk at a byte, 16 bytes at once; `place` is the same for all lanes."""
    comptime BYTES = CHUNK * size_of[dtype]()
    comptime PIECE = 16
    var bytes = SIMD[DType.uint8, BYTES]()
    comptime for i in range(BYTES // PIECE):
        var piece = memory.load[DType.uint8, PIECE](offset + Int32(i * PIECE), scalar_offset=place)
        bytes = bytes.insert[offset=i * PIECE](piece)
    return bitcast[dtype, CHUNK](bytes)


@always_inline
def magnitude_of[dtype: DType](x: SIMD[dtype, CHUNK]) -> UInt32:
    """Returns the float32 bits of the largest magnitude; NaN counts as larger than infinity."""
    comptime bits = DType.uint32 if dtype == DType.float32 else DType.uint16
    comptime WORDS = CHUNK * size_of[dtype]() // WORD_BYTES
    comptime MASK = UInt32.MAX >> 1 if dtype == DType.float32 else UInt32(0x7FFF7FFF)
    var words = bitcast[DType.uint32, WORDS](x) & MASK
    # Seen through, pairs would be masked one by one.
    comptime for i in range(WORDS):
        words[i] = opaque(words[i])
    var largest = bitcast[bits, CHUNK](words).reduce_max()
    return bitcast[DType.uint32](bitcast[dtype](largest).cast[DType.float32]())


@always_inline
def encode[
    element: Element, dtype: DType
](x: SIMD[dtype, CHUNK], scale: Float32) -> SIMD[DType.uint8, CHUNK]:
    """Returns the codes of a chunk under its scale; 0 under NaN.

    No quotient rounds beyond the largest number: none is above it by more than scales are rounded.
    """
    comptime PAIRS = CHUNK // 2
    var quotients: SIMD[DType.float32, CHUNK]
    comptime if dtype == DType.float32:
        quotients = x.cast[DType.float32]() / scale
    else:
        quotients = Inverse.of(scale, reciprocal(scale)).times(x.cast[DType.float32]())
    var words = SIMD[DType.uint32, 2](0)
    comptime for part in range(2):
        comptime for word in range(PAIRS // 2):
            var pair = quotients.slice[2, offset=4 * word + 2 * part]()
            words[word] = encode_pair[element, DType.float32, part](words[word], pair, 1)
    var is_number = bitcast[DType.uint32](scale) <= UInt32(FloatBits[DType.float32].NOT_FINITE)
    return bitcast[DType.uint8, CHUNK](words if is_number else type_of(words)(0))


@always_inline
def maximum_of_workgroup[most_threads: Int](x: UInt32, thread: Int32, lds: Lds) -> UInt32:
    """Returns the largest number of all lanes; all of them take part, once.

    Parameters:
        most_threads: Of a workgroup, up to 16 * 64.
    """
    comptime GROUPS = most_threads // ROW_LANES
    var words = tile_at[DType.uint32, 1, GROUPS](lds)
    var of_group = maximum_of_row(x)
    if remainder[ROW_LANES](thread) == 0:
        words[quotient[ROW_LANES](thread)] = of_group
    barrier()
    var largest = UInt32(0)
    var groups = quotient[ROW_LANES](Int32(block_dim.x))
    comptime for i in range(ceildiv(GROUPS, ROW_LANES)):
        var group = Int32(i * ROW_LANES) + remainder[ROW_LANES](thread)
        if group < groups:
            largest = max(largest, words[group][0])
    return maximum_of_row(largest)


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
    comptime ROWS = format.block_rows if is_shared(format) else WAVE_ROWS
    var first_row = Int32(block_idx.x) * Int32(ROWS)
    var rows = Rows[dtype](
        Span.of(x, m * k).after(first_row * k * Int32(size_of[dtype]())),
        Span.of(codes, m * k).after(first_row * k),
        k,
    )
    var all = BlockScales[format].of(scales, m, k)
    comptime if is_shared(format):
        _quantize_block[format, rounding](rows, all, min(m - first_row, Int32(ROWS)))
    else:
        _quantize_blocks[format, rounding](rows, all, first_row)


@always_inline
def _quantize_blocks[
    dtype: DType, //, format: Format, rounding: Rounding
](rows: Rows[dtype], scales: BlockScales[format], first_row: Int32):
    """Quantizes blocks of rows below each other, 8 lanes each; rows behind the last are zeros."""
    comptime HELD = held_chunks(format)
    comptime STEP = HALF_ROW_LANES * CHUNK
    var thread = Int32(thread_idx.x)
    var block = quotient[HALF_ROW_LANES](Int32(block_idx.y) * Int32(THREADS) + thread)
    var first = block * Int32(format.block_k)
    if readfirstlane(first) >= rows.k:
        return
    first += remainder[HALF_ROW_LANES](thread) * Int32(CHUNK)
    var held = in_registers[dtype, CHUNK, WAVE_ROWS, HELD]()
    comptime for row in range(WAVE_ROWS):
        comptime for i in range(HELD):
            var column = first + Int32(i * STEP)
            held[row, i] = rows.load(Int32(row), column, column < rows.k)
    var is_first = remainder[HALF_ROW_LANES](thread) == 0 and first < rows.k
    comptime for row in range(WAVE_ROWS):
        var amax = UInt32(0)
        comptime for i in range(HELD):
            amax = max(amax, magnitude_of(held[row, i]))
        var scale = scale_of[format.element](maximum_of_half_row(amax), rounding == Rounding.RCEIL)
        comptime for i in range(HELD):
            var column = first + Int32(i * STEP)
            var codes = encode[format.element](held[row, i], scale)
            rows.store(codes, Int32(row), column, column < rows.k)
        scales.store(scale, first_row + Int32(row), block, is_first)


@always_inline
def _quantize_block[
    dtype: DType, //, format: Format, rounding: Rounding
](rows: Rows[dtype], scales: BlockScales[format], num_rows: Int32):
    """Quantizes the workgroup's block, of so many rows."""
    comptime HELD = held_chunks(format)
    var thread, y = Int32(thread_idx.x), Int32(block_idx.y)
    var first_column, row_chunks = Int32(0), quotient[CHUNK](rows.k)
    comptime if format.block_rows > 1:
        first_column = y * Int32(format.block_k)
        row_chunks = Int32(format.block_k // CHUNK)
    var num_chunks = num_rows * row_chunks

    @always_inline
    def load(chunk: Int32) {imm} -> Rows[dtype].Chunk:
        var row, column = _place[format](chunk, first_column)
        return rows.load(row, column, column < rows.k and chunk < num_chunks)

    @always_inline
    def store(values: Rows[dtype].Chunk, chunk: Int32, scale: Float32) {imm}:
        var row, column = _place[format](chunk, first_column)
        var is_inside = column < rows.k and chunk < num_chunks
        rows.store(encode[format.element](values, scale), row, column, is_inside)

    var held = in_registers[dtype, CHUNK, HELD]()
    comptime for i in range(HELD):
        held[i] = load(Int32(i * THREADS) + thread)
    var amax = UInt32(0)
    comptime for i in range(HELD):
        amax = max(amax, magnitude_of(held[i]))
    for chunk in range(Int32(HELD * THREADS) + thread, num_chunks, Int32(THREADS)):
        amax = max(amax, magnitude_of(load(chunk)))
    amax = maximum_of_workgroup[THREADS](amax, thread, allocate_lds[GROUPS * WORD_BYTES]())
    var scale = scale_of[format.element](amax, rounding == Rounding.RCEIL)
    scales.store(scale, Int32(block_idx.x), y, thread == 0)
    comptime for i in range(HELD):
        store(held[i], Int32(i * THREADS) + thread, scale)
    for chunk in range(Int32(HELD * THREADS) + thread, num_chunks, Int32(THREADS)):
        store(load(chunk), chunk, scale)


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
def scale_of[element: Element](amax: UInt32, is_power: Bool) -> Float32:
    """Returns the scale of a block from the bits of its largest magnitude."""
    var over = over_largest[element](bitcast[DType.float32](amax))
    return float_scale_from_quotient(amax, over, materialize[element](), is_power)
