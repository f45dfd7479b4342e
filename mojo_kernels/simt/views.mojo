"""What a kernel's pointers lead to, by row and column.

Kernels take bare pointers and sizes, see `launch.queue`, and turn them into views at once:

    Flat, Matrix    elements of a type that is known at compile time
    AnyFloats       rows of floats of a type that is known at run time
    PackedRows      rows of codes and scales, in a layout

A view does not know where it ends: whoever asks for a row and a column knows that they exist.
"""

from layout import Coord, Idx
from layout.tile_layout import Layout, row_major
from max.gpu import block_idx
from std.memory import bitcast
from std.sys import size_of

from ..launch.queue import DevicePointer
from ..layouts import OperandLayout, RUN_BYTES, e4m3_offset_in, padded_blocks
from ..numbers.decode import decode
from ..numbers.elements import Element
from ..numbers.floats import round_to
from ..numbers.formats import BlockShape, E4M3_BLOCK
from ..operands import Flat, Matrix
from ..schedule.clusters import GridRows
from ..schedule.tiles import Tile
from .codec import ANY_BITS, BLOCK, CHUNK_WORDS, ChunkWords, Codes
from .codec import first_run_of_chunk, unpack, words_of_runs
from .host import BFLOAT16, FLOAT16, VECTOR_BYTES

comptime NO_END = Int.MAX
"""Stands for a size that nobody asks for."""


@always_inline
def flat_of[dtype: DType](first: DevicePointer[dtype]) -> Flat[dtype]:
    """Views elements one after the other."""
    return Flat[dtype](first, row_major((NO_END,)))


@always_inline
def rows_of[dtype: DType](first: DevicePointer[dtype], row_stride: Int) -> Matrix[dtype]:
    """Views rows that begin `row_stride` elements apart."""
    return Matrix[dtype](first, Layout(Coord((NO_END, row_stride)), Coord((row_stride, Idx[1]))))


@always_inline
def tile_here() -> Tile:
    """Returns the tile of this group, see `GridRows`."""
    return Tile(GridRows.row_of(Int(block_idx.y), Int(block_idx.z)), Int(block_idx.x))


@always_inline
def load_unaligned(bytes: DevicePointer[DType.uint8], first: Int, step: Int = 1) -> Float32:
    """Loads the float32 that begins at any byte, and goes on so many bytes further each time."""
    var loaded = SIMD[DType.uint8, 4]()
    comptime for i in range(4):
        loaded[i] = flat_of(bytes)[first + i * step]
    return bitcast[DType.float32, 1](loaded)[0]


@fieldwise_init
struct AnyFloats(TrivialRegisterPassable):
    """Rows of floats of a type that is known at run time."""

    var first: DevicePointer[DType.uint8]
    """The first row."""
    var row_stride: Int
    """Floats from one row to the next."""
    var dtype: Int32
    """The position of the type in `FLOAT_TYPES`."""

    @always_inline
    def rows[dtype: DType](self) -> Matrix[dtype]:
        """Views the rows as elements of a type: the floats', or one of as many bits."""
        return rows_of(self.first.unsafe_bitcast[Scalar[dtype]](), self.row_stride)

    @always_inline
    def load[
        width: Int, alignment_elements: Int
    ](self, row: Int, column: Int) -> SIMD[DType.float32, width]:
        """Loads neighbours of a row as float32, which is exact."""
        if self.dtype == BFLOAT16:
            return self._load[DType.bfloat16, width, alignment_elements](row, column)
        if self.dtype == FLOAT16:
            return self._load[DType.float16, width, alignment_elements](row, column)
        return self._load[DType.float32, width, alignment_elements](row, column)

    @always_inline
    def store[
        width: Int, alignment_elements: Int
    ](self, row: Int, column: Int, values: SIMD[DType.float32, width]):
        """Rounds neighbours of a row and stores them."""
        if self.dtype == BFLOAT16:
            self._store[DType.bfloat16, alignment_elements](row, column, values)
        elif self.dtype == FLOAT16:
            self._store[DType.float16, alignment_elements](row, column, values)
        else:
            self._store[DType.float32, alignment_elements](row, column, values)

    @always_inline
    def _load[
        dtype: DType, width: Int, alignment_elements: Int
    ](self, row: Int, column: Int) -> SIMD[DType.float32, width]:
        comptime alignment = min(alignment_elements * size_of[dtype](), VECTOR_BYTES)
        var values = self.rows[dtype]().load[width=width, alignment=alignment](Coord(row, column))
        return values.cast[DType.float32]()

    @always_inline
    def _store[
        width: Int, //, dtype: DType, alignment_elements: Int
    ](self, row: Int, column: Int, values: SIMD[DType.float32, width]):
        comptime alignment = min(alignment_elements * size_of[dtype](), VECTOR_BYTES)
        self.rows[dtype]().store[alignment=alignment](Coord(row, column), round_to[dtype](values))


@fieldwise_init
struct PackedRows[Layout: OperandLayout](TrivialRegisterPassable):
    """Rows of codes and scales in a layout, padding included."""

    var codes: DevicePointer[DType.uint8]
    var scales: DevicePointer[DType.uint8]
    var k: Int
    """Elements of a row, padding not counted."""

    @always_inline
    def load_run[
        alignment: Int = RUN_BYTES
    ](self, row: Int, run: Int, row_bytes: Int) -> SIMD[DType.uint8, RUN_BYTES]:
        """Loads bytes of a row that no layout separates; `row_bytes` are those of all its codes."""
        var at = Self.Layout.code_offset(row, run * RUN_BYTES, row_bytes)
        return flat_of(self.codes).load[width=RUN_BYTES, alignment=alignment](Coord(at))

    @always_inline
    def store_run(self, row: Int, run: Int, row_bytes: Int, bytes: SIMD[DType.uint8, RUN_BYTES]):
        """Stores bytes of a row that no layout separates; `row_bytes` are all its codes."""
        var at = Self.Layout.code_offset(row, run * RUN_BYTES, row_bytes)
        flat_of(self.codes).store[alignment=RUN_BYTES](Coord(at), bytes)

    @always_inline
    def chunk[bits: Int, alignment: Int](self, element: Element, row: Int, chunk: Int) -> Codes:
        """Loads the codes of a chunk, of `bits` each or `ANY_BITS`."""
        comptime if bits == ANY_BITS:
            if element.bits == 4:
                return self.chunk[4, alignment](element, row, chunk)
            if element.bits == 6:
                return self.chunk[6, alignment](element, row, chunk)
            return self.chunk[8, alignment](element, row, chunk)
        else:
            var first, row_bytes = first_run_of_chunk[bits](chunk), self.k * bits // 8
            var runs = ChunkWords[bits]()
            comptime for i in range(CHUNK_WORDS[bits]):
                var run = self.load_run[alignment](row, first + i, row_bytes)
                runs[i] = bitcast[DType.uint32, 1](run)[0]
            return unpack[bits](words_of_runs[bits](runs, UInt32(chunk)))

    @always_inline
    def scale(self, row: Int, block: Int) -> UInt8:
        """Loads the scale of (`row`, `block`)."""
        return flat_of(self.scales)[self._scale_offset(row, block)]

    @always_inline
    def store_scale(self, row: Int, block: Int, scale: UInt8):
        """Stores the scale of (`row`, `block`)."""
        flat_of(self.scales)[self._scale_offset(row, block)] = scale

    @always_inline
    def float_scale(self, row: Int, element: Int, block: BlockShape) -> Float32:
        """Loads the float scale of an element."""
        var scales = flat_of(self.scales.unsafe_bitcast[Float32]())
        return scales[block.index(row, element, self.k)]

    @always_inline
    def e4m3_scale(self, row: Int, element: Int) -> Float32:
        """Loads the E4M3 scale of an element."""
        var byte = flat_of(self.scales)[e4m3_offset_in[Self.Layout](row, element, self.k)]
        return decode[Element.E4M3](byte.cast[DType.uint32]())

    @always_inline
    def tensor_scale(self, row: Int) -> Float32:
        """Loads the float behind the E4M3 scales of a row."""
        var at = e4m3_offset_in[Self.Layout](row, self.k, self.k)
        comptime if Self.Layout.E4M3_RUN > 0:
            var step = e4m3_offset_in[Self.Layout](0, E4M3_BLOCK, self.k)
            return load_unaligned(self.scales, at, step)
        else:
            return load_unaligned(self.scales, at)

    @always_inline
    def _scale_offset(self, row: Int, block: Int) -> Int:
        var row_scales = padded_blocks[Self.Layout](self.k // BLOCK)
        return Self.Layout.scale_offset(row, block, row_scales)
