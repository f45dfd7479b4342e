"""Tiles of a thread's registers: TileTensors of vectors, by coordinates.

    var sums = in_registers[DType.float32, 4, tiles, halves]()
    sums[tile, half] = multiply_add(.., sums[tile, half])

The compiler dissolves them as long as every coordinate is a constant where it is used.
"""

from layout import TileTensor, row_major
from layout.coord import _MultiplyByScalar
from layout.tensor_engine import DefaultEngine
from layout.tile_layout import Layout
from layout.tile_tensor import stack_allocation
from std.memory import AddressSpace

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
