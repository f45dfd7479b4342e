"""The tile of `PreshuffledCuda` in the words of the kernels that read it.

A tile is 32 rows x one block of four-bit codes: one granule of each row.
"""

from ..layouts import PreshuffledCuda
from ..numbers.formats import E4M3_BLOCK, Format
from ..numbers.scales import Scale

comptime OPERANDS = Format.MXFP4
"""The format of weights, and of activations that are not kept."""
comptime BLOCK = OPERANDS.block_k
"""Elements of a block."""
comptime GRANULE_BITS = OPERANDS.element.bits
"""Bits of codes whose blocks are one granule of a row each; longer ones have several."""
comptime TILE_ROWS = PreshuffledCuda.ROW_MULTIPLE
"""Rows of a tile: two fragments of 16."""
comptime ROW_LANES = PreshuffledCuda.ROW_LANES
"""Rows that one word of each lane covers."""
comptime ROWS_PER_LANE = PreshuffledCuda.ROWS_PER_LANE
"""Rows whose words lie side by side in a lane's 16 bytes."""
comptime K_LANES = PreshuffledCuda.K_LANES
"""Lanes that share a row."""
comptime TILE_BYTES = PreshuffledCuda.TILE_BYTES
"""Bytes of a tile's codes."""
comptime NVFP4 = Format.NVFP4
"""The format of weights beside `OPERANDS`: the same codes under other scales."""


@always_inline
def block_scales(scale: Scale) -> Int:
    """Returns the scales of a row in a block of `BLOCK` elements."""
    return BLOCK // E4M3_BLOCK if scale == Scale.E4M3 else 1


@always_inline
def tile_scale_bytes(scale: Scale, num_blocks: Int) -> Int:
    """Returns the bytes of the scales of a tile of so many blocks, and of its tensor scales."""
    return (num_blocks * block_scales(scale) + scale.row_bytes) * TILE_ROWS
