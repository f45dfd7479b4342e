"""Tiles of vectors, in a thread's registers or in the memory that a workgroup shares.

    var sums = in_registers[DType.float32, 4, m_tiles, n_tiles]()
    sums[m_tile, n_tile] += ..

They are TileTensors, row-major. One in registers is memory that the compiler dissolves, as
long as every coordinate is a constant where it is used: in a `comptime for`, or a parameter.
"""

from layout import TileTensor, row_major
from layout.coord import _MultiplyByScalar
from layout.tensor_engine import DefaultEngine
from layout.tile_layout import Layout
from std.memory import AddressSpace, stack_allocation

comptime VectorTile[
    dtype: DType, width: Int, address_space: AddressSpace, *sizes: Int
] = TileTensor[
    dtype,
    Layout[
        type_of(row_major[*sizes]())._shape_types,
        _MultiplyByScalar[type_of(row_major[*sizes]())._stride_types, width],
    ],
    MutUntrackedOrigin,
    Engine=DefaultEngine[element_width=width],
    address_space=address_space,
]
"""Vectors of `width` numbers; an index takes one as a whole."""
comptime RegisterTile[dtype: DType, width: Int, *sizes: Int] = VectorTile[
    dtype, width, AddressSpace.LOCAL, *sizes
]
"""A tile in registers."""
comptime SharedTile[dtype: DType, width: Int, *sizes: Int] = VectorTile[
    dtype, width, AddressSpace.SHARED, *sizes
]
"""A tile in shared memory."""


@always_inline
def in_registers[dtype: DType, width: Int, *sizes: Int]() -> RegisterTile[dtype, width, *sizes]:
    """Returns a tile of no particular values."""
    comptime count = type_of(row_major[*sizes]()).static_product
    return {stack_allocation[count, SIMD[dtype, width], address_space=AddressSpace.LOCAL](), {}}


@always_inline
def in_shared[dtype: DType, width: Int, *sizes: Int]() -> SharedTile[dtype, width, *sizes]:
    """Returns a tile that the threads of a group share, of no particular values."""
    comptime count = type_of(row_major[*sizes]()).static_product
    return {stack_allocation[count, SIMD[dtype, width], address_space=AddressSpace.SHARED](), {}}
