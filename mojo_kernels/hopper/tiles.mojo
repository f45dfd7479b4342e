"""Tiles of a thread's registers and of shared memory, by coordinates.

    var sums = in_registers[DType.float32, 4, tiles, halves]()
    sums[tile, half] = multiply_add(.., sums[tile, half])

    var room = SharedTile[DType.float32, tokens, rows](base)
    store_word(room.at(Coord(token, row)), ..)

A tile of registers is a TileTensor of vectors, which the compiler dissolves as long as every
coordinate is a constant where it is used. A tile of shared memory gives 32-bit addresses, which
is what inline assembly takes: through a pointer, each would be computed in 64 bits.
"""

from layout import Coord, TileTensor, row_major
from layout.coord import _MultiplyByScalar
from layout.tensor_engine import DefaultEngine
from layout.tile_layout import Layout
from layout.tile_tensor import stack_allocation
from std.memory import AddressSpace
from std.sys import size_of

comptime RegisterTile[dtype: DType, width: Int, *sizes: Int] = TileTensor[
    dtype,
    Layout[
        type_of(row_major[*sizes]())._shape_types,
        _MultiplyByScalar[type_of(row_major[*sizes]())._stride_types, width],
    ],
    MutUntrackedOrigin,
    Engine=DefaultEngine[element_width=width],
    address_space=AddressSpace.LOCAL,
]
"""Vectors of `width` numbers; an index takes one as a whole."""


@always_inline
def in_registers[dtype: DType, width: Int, *sizes: Int]() -> RegisterTile[dtype, width, *sizes]:
    """Returns a tile of no particular values."""
    comptime count = type_of(row_major[*sizes]()).static_product * width
    var memory = stack_allocation[dtype, address_space=AddressSpace.LOCAL](row_major[count]())
    return {memory.ptr.unsafe_bitcast[SIMD[dtype, width]](), {}}


@fieldwise_init
struct SharedTile[dtype: DType, *sizes: Int](TrivialRegisterPassable):
    """A contiguous tile of shared memory, as the addresses of its elements.

    Nobody checks the first coordinate, so that a tile may go on.
    """

    var base: UInt32
    """The address of its first element."""

    comptime Layout = type_of(row_major[*Self.sizes]())
    """Where an element is, in elements."""
    comptime NUM_BYTES = Self.Layout.static_product * size_of[Self.dtype]()
    """Bytes of all elements."""

    @always_inline
    def at(self, coord: Coord) -> UInt32:
        """Returns the address of an element."""
        var offset = Self.Layout()[linear_idx_type=DType.uint32](coord)
        return self.base + offset * UInt32(size_of[Self.dtype]())

    @always_inline
    def starting_at(self, coord: Coord) -> Self:
        """Returns the tile whose first element is one of this tile's."""
        return Self(self.at(coord))
