"""The weight layout that a Hopper warp loads in one contiguous burst.

One tile of 32 rows x 1 block after another, 512 bytes. In the fragments of
`mma.m16n8k16` lane 4 * g + t owns rows g and g + 8; of each it gets the four
bytes of codes k = 8 * t .. 8 * t + 7, and of a second fragment the same:

    offset in tile    0 .. 3   4 .. 7   8 .. 11  12 .. 15   16 .. 19   ...
    row               0        8        16       24         0          ...
    bytes of block    0 .. 3   0 .. 3   0 .. 3   0 .. 3     4 .. 7     ...

Scales, 32 bytes a tile, tiles in the same order; one word feeds one lane:

    offset in tile    0        1        2        3          4          ...
    row               0        8        16       24         1          ...
"""

from ..formats import BLOCK_BYTES
from ..layouts import OperandLayout, RUN_BYTES

comptime TILE_ROWS = 32
"""Rows of a tile: two fragments of 16."""
comptime ROW_LANES = 8
"""Rows that one word of each lane covers."""
comptime ROWS_PER_LANE = TILE_ROWS // ROW_LANES
"""Rows whose words lie side by side in a lane's 16 bytes."""
comptime K_LANES = BLOCK_BYTES // RUN_BYTES
"""Lanes that share a row."""
comptime TILE_BYTES = TILE_ROWS * BLOCK_BYTES
"""Bytes of a tile's codes."""


struct PreshuffledCuda(OperandLayout):
    """Weights as Hopper warps load them; the module docstring has the picture."""

    comptime NAME: StaticString = "preshuffled_cuda"
    """The name used in every API."""
    comptime DEVICE: StaticString = "cuda"
    """The device whose `preshuffle` picks it."""
    comptime ROW_MULTIPLE = TILE_ROWS
    """Rows of a tile."""
    comptime SCALE_ROW_MULTIPLE = TILE_ROWS
    """Rows of a tile."""
    comptime SCALE_K_MULTIPLE = 1
    """No padding along K."""

    @staticmethod
    @always_inline
    def code_offset(row: Int, byte: Int, row_bytes: Int) -> Int:
        """Returns the offset of byte `byte` of row `row`."""
        var tile_row, row_in_tile = divmod(row, TILE_ROWS)
        var word, row_lane = divmod(row_in_tile, ROW_LANES)
        var block, byte_in_block = divmod(byte, BLOCK_BYTES)
        var k_lane, within = divmod(byte_in_block, RUN_BYTES)
        var tile = tile_row * (row_bytes // BLOCK_BYTES) + block
        var lane = row_lane * K_LANES + k_lane
        return tile * TILE_BYTES + (lane * ROWS_PER_LANE + word) * RUN_BYTES + within

    @staticmethod
    def code_coord(offset: Int, row_bytes: Int) -> Tuple[Int, Int]:
        """Returns the (row, byte) stored at `offset`."""
        var tile, offset_in_tile = divmod(offset, TILE_BYTES)
        var run, within = divmod(offset_in_tile, RUN_BYTES)
        var lane, word = divmod(run, ROWS_PER_LANE)
        var row_lane, k_lane = divmod(lane, K_LANES)
        var tile_row, block = divmod(tile, row_bytes // BLOCK_BYTES)
        return (
            tile_row * TILE_ROWS + word * ROW_LANES + row_lane,
            block * BLOCK_BYTES + k_lane * RUN_BYTES + within,
        )

    @staticmethod
    @always_inline
    def scale_offset(row: Int, block: Int, padded_k_blocks: Int) -> Int:
        """Returns the offset of the scale of (`row`, `block`)."""
        var tile_row, row_in_tile = divmod(row, TILE_ROWS)
        var word, row_lane = divmod(row_in_tile, ROW_LANES)
        var tile = tile_row * padded_k_blocks + block
        return tile * TILE_ROWS + row_lane * ROWS_PER_LANE + word

    @staticmethod
    def scale_coord(offset: Int, padded_k_blocks: Int) -> Tuple[Int, Int]:
        """Returns the (row, block) stored at `offset`."""
        var tile, row_in_tile = divmod(offset, TILE_ROWS)
        var row_lane, word = divmod(row_in_tile, ROWS_PER_LANE)
        var tile_row, block = divmod(tile, padded_k_blocks)
        return (tile_row * TILE_ROWS + word * ROW_LANES + row_lane, block)
