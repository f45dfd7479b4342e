"""Views of the memory that callers hand in: TileTensors over addresses.

Codes and scales are flat byte tensors, because only their layout knows the
order of the bytes. Matrices of floats have any row stride, so that slices of
larger tensors need no copy. Nothing is assumed about alignment.
"""

from layout import Coord, Idx, TileTensor, row_major
from layout.tile_layout import Layout
from std.memory import bitcast, stack_allocation
from std.memory.alloc import unsafe_alloc
from std.sys import size_of

from .layouts import (
    OperandLayout,
    OperandShape,
    code_rows,
    e4m3_bytes_of,
    e4m3_offset_in,
    scale_blocks,
    scale_rows,
)
from .numbers.formats import BlockShape, E4M3_BLOCK, Format
from .numbers.packing import ROOM
from .numbers.scales import Scale

comptime Flat[dtype: DType] = TileTensor[dtype, type_of(row_major((1,))), MutUntrackedOrigin]
"""A contiguous vector."""
comptime Bytes = Flat[DType.uint8]
"""Codes or scales in their layout's order."""
comptime Matrix[dtype: DType] = TileTensor[
    dtype,
    type_of(Layout(Coord((1, 1)), Coord((1, Idx[1])))),
    MutUntrackedOrigin,
]
"""Rows of floats; neighbours of a row are adjacent in memory."""
comptime Tiles[dtype: DType, *sizes: Int] = TileTensor[
    dtype, type_of(row_major[*sizes]()), MutUntrackedOrigin, linear_idx_type=DType.int64
]
"""A contiguous array whose sizes are known; 32-bit offsets would be widened at each access."""


def flat[dtype: DType](address: Int, count: Int) -> Flat[dtype]:
    """Views `count` elements at `address`."""
    return Flat[dtype](
        MutPointer[Scalar[dtype], MutUntrackedOrigin](unsafe_from_address=address),
        row_major((count,)),
    )


@always_inline
def beyond[dtype: DType](vector: Flat[dtype], count: Int) -> Flat[dtype]:
    """Views a vector from some element on."""
    var address = Int(vector.ptr) + count * size_of[dtype]()
    return flat[dtype](address, Int(vector.dim[0]()) - count)


@always_inline
def on_stack[dtype: DType, *sizes: Int]() -> Tiles[dtype, *sizes]:
    """Returns an array that lives as long as the calling function, on a cache line."""
    comptime CACHE_LINE = 64
    comptime count = type_of(row_major[*sizes]()).static_product
    var memory = stack_allocation[count, dtype, alignment=CACHE_LINE]()
    return Tiles[dtype, *sizes](
        MutPointer[Scalar[dtype], MutUntrackedOrigin](unsafe_from_address=Int(memory)),
        row_major[*sizes](),
    )


def allocate[dtype: DType](count: Int) -> Flat[dtype]:
    """Allocates `count` elements on a cache line; freed with `.ptr.unsafe_free()`."""
    comptime CACHE_LINE = 64
    return flat[dtype](Int(unsafe_alloc[Scalar[dtype]](count, alignment=CACHE_LINE)), count)


def matrix[dtype: DType](address: Int, rows: Int, columns: Int, row_stride: Int) -> Matrix[dtype]:
    """Views a matrix at `address`; `row_stride` counts elements."""
    return Matrix[dtype](
        MutPointer[Scalar[dtype], MutUntrackedOrigin](unsafe_from_address=address),
        Layout(Coord((rows, columns)), Coord((row_stride, Idx[1]))),
    )


@always_inline
def load_bytes[count: Int](bytes: Bytes, at: Int) -> SIMD[DType.uint8, ROOM[count]]:
    """Loads `count` bytes, in as many pieces as their number has bits."""
    comptime if ROOM[count] == count:
        return bytes.load[width=ROOM[count], alignment=1](Coord(at))
    else:
        comptime FIRST = ROOM[count] // 2
        var loaded = SIMD[DType.uint8, ROOM[count]](0)
        loaded = loaded.insert[offset=0](bytes.load[width=FIRST, alignment=1](Coord(at)))
        return loaded.insert[offset=FIRST](load_bytes[count - FIRST](bytes, at + FIRST))


@always_inline
def store_bytes[count: Int](bytes: Bytes, at: Int, stored: SIMD[DType.uint8, ROOM[count]]):
    """Stores the first `count` bytes of a vector, in as many pieces as their number has bits."""
    comptime if ROOM[count] == count:
        bytes.store[alignment=1](Coord(at), stored)
    else:
        comptime FIRST = ROOM[count] // 2
        comptime REST = ROOM[count - FIRST]
        bytes.store[alignment=1](Coord(at), stored.slice[FIRST, offset=0]())
        store_bytes[count - FIRST](bytes, at + FIRST, stored.slice[REST, offset=FIRST]())


@fieldwise_init
struct Operand[Layout: OperandLayout, format: Format](TrivialRegisterPassable):
    """Codes and scales of one format in one layout, and the logical shape they stand for."""

    var codes: Bytes
    """The stored codes."""
    var scales: Bytes
    """The stored scales."""
    var shape: OperandShape
    """Rows and k, padding not counted."""
    var block: BlockShape
    """What shares a scale; of a format that stands for its kin, only this tells."""

    @staticmethod
    def at(
        codes: Int, scales: Int, rows: Int, k: Int, block: BlockShape = Self.format.block()
    ) -> Self:
        """Views the operand whose codes and scales start at two addresses."""
        var shape = OperandShape(rows, k)
        var scale_bytes = scale_rows[Self.Layout](shape) * scale_blocks[Self.Layout, Self.format](
            shape
        )
        comptime if Self.format.scale == Scale.FLOAT32:
            scale_bytes = block.row_blocks(rows) * block.k_blocks(k) * Self.format.scale.bytes
        elif Self.format.scale == Scale.E4M3:
            scale_bytes = e4m3_bytes_of[Self.Layout](rows, k)
        return Self(
            flat[DType.uint8](
                codes,
                code_rows[Self.Layout](shape) * shape.row_bytes[Self.format](),
            ),
            flat[DType.uint8](scales, scale_bytes),
            shape,
            block,
        )

    @always_inline
    def code_offset(self, row: Int, byte: Int) -> Int:
        """Returns the offset in `codes` of byte `byte` of row `row`."""
        return Self.Layout.code_offset(row, byte, self.shape.row_bytes[Self.format]())

    @always_inline
    def scale_offset(self, row: Int, block: Int) -> Int:
        """Returns the offset in `scales` of the scale of (`row`, `block`)."""
        return Self.Layout.scale_offset(
            row, block, scale_blocks[Self.Layout, Self.format](self.shape)
        )

    @always_inline
    def scale(self, row: Int, block: Int) -> UInt8:
        """Returns the scale byte of (`row`, `block`)."""
        return self.scales.load[width=1, alignment=1](Coord(self.scale_offset(row, block)))

    @always_inline
    def float_scale(self, row: Int, element: Int) -> Float32:
        """Returns the float32 scale of an element, or the tensor scale of its row."""
        comptime BYTES = Scale.FLOAT32.bytes
        comptime if Self.format.scale == Scale.E4M3 and Self.Layout.E4M3_RUN > 0:
            return bitcast[DType.float32, 1](self.e4m3_scales[BYTES](row, self.shape.k))[0]
        var at = self._float_offset(row, element)
        var bytes = self.scales.load[width=BYTES, alignment=1](Coord(at))
        return bitcast[DType.float32, 1](bytes)[0]

    @always_inline
    def store_float_scale(self, row: Int, element: Int, scale: Float32):
        """Stores the float32 scale of an element, or the tensor scale of its row."""
        comptime BYTES = Scale.FLOAT32.bytes
        comptime assert (
            Self.format.scale != Scale.E4M3 or Self.Layout.E4M3_RUN == 0
        ), "what is quantized is plain"
        var at = self._float_offset(row, element)
        self.scales.store[alignment=1](Coord(at), bitcast[DType.uint8, BYTES](scale))

    @always_inline
    def _float_offset(self, row: Int, element: Int) -> Int:
        comptime if Self.format.scale == Scale.E4M3:
            return self.e4m3_offset(row, self.shape.k)
        else:
            return Scale.FLOAT32.bytes * self.block.index(row, element, self.shape.k)

    @always_inline
    def e4m3_offset(self, row: Int, element: Int) -> Int:
        """Returns the offset in `scales` of the E4M3 scale of an element."""
        return e4m3_offset_in[Self.Layout](row, element, self.shape.k)

    @always_inline
    def e4m3_scales[count: Int](self, row: Int, element: Int) -> SIMD[DType.uint8, count]:
        """Loads so many E4M3 scales of a row, from that of an element on."""
        comptime if Self.Layout.E4M3_RUN > 0:
            var bytes = SIMD[DType.uint8, count]()
            comptime for i in range(count):
                var at = self.e4m3_offset(row, element + i * E4M3_BLOCK)
                bytes[i] = self.scales.load[width=1](Coord(at))[0]
            return bytes
        else:
            var at = self.e4m3_offset(row, element)
            return self.scales.load[width=count, alignment=1](Coord(at))

    @always_inline
    def codes_of[count: Int](self, row: Int, byte: Int) -> SIMD[DType.uint8, ROOM[count]]:
        """Loads `count` bytes of a row that the layout keeps together."""
        return load_bytes[count](self.codes, self.code_offset(row, byte))
