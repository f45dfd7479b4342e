"""What workgroups that share rows prepare: its parts, and where it lies in the workspace.

    counters    128 bytes for a tile of rows: next parts of pair p at 4 * p, finished parts at 64
    scales      preshuffled
    codes       [M, bytes of K codes], if activations come as floats; of six bits always, 8 rows x
                128 one behind another: rows of 96 bytes are no whole lines of memory
"""

from std.math import align_up

from ...layouts import PreshuffledCdna4
from ...numbers.formats import Format
from ...numbers.scales import Scale
from ..chip import BLOCK, GROUP_BLOCKS, TILE_BLOCKS, TILE_K
from ..types import KEPT

comptime COUNTER_BYTES = 128
"""Bytes of the counters of a tile of rows."""
comptime TILED_ROWS = 8
"""Rows of such a tile, of 128 along K: what a wave loads at once."""
comptime PART_GROUPS = 8
"""Groups of scales that a wave reorders at once."""
comptime PART_BLOCKS = PART_GROUPS * GROUP_BLOCKS
"""Blocks of these."""
comptime CODE_BLOCKS = 4 * TILE_BLOCKS
"""Blocks along K of which a wave puts codes by tiles at once."""


@fieldwise_init
struct CooperativeMemory(TrivialRegisterPassable):
    """Where the parts of a workspace begin."""

    comptime ALIGNMENT = 256
    """What scales and codes are aligned to, at least a line of memory."""

    var counter_bytes: Int
    """Bytes that are zero before and after a launch; scales follow."""
    var codes: Int
    """Where codes begin, and where the workspace ends without them."""
    var num_bytes: Int
    """Bytes of a workspace with codes."""

    @staticmethod
    @always_inline
    def of(format: Format, tile_rows: Int, rows: Int, k: Int) -> Self:
        """Returns the workspace of a launch for activations [rows, k], encoded in a format."""
        comptime ROWS = PreshuffledCdna4.SCALE_ROW_MULTIPLE
        comptime BLOCKS = PreshuffledCdna4.SCALE_K_MULTIPLE
        var k_blocks = k // BLOCK
        var counter_bytes = align_up(tile_rows * COUNTER_BYTES, Self.ALIGNMENT)
        var scale_bytes = align_up(rows, ROWS) * align_up(k_blocks, BLOCKS)
        var codes = counter_bytes + align_up(scale_bytes, Self.ALIGNMENT)
        var code_bytes = rows * format.packed_bytes(k)
        if lies_by_tiles(format):
            code_bytes = align_up(rows, TILED_ROWS) * format.packed_bytes(align_up(k, TILE_K))
        return Self(counter_bytes, codes, codes + code_bytes)


@always_inline
def lies_by_tiles(format: Format) -> Bool:
    """Says whether codes lie by tiles when they are multiplied; as they come, they are plain."""
    return format.element.bits == 6


@always_inline
def first_tiled_row(first_row: Int32, tile: Int32) -> Int32:
    """Returns where rows of groups lie by tiles from `first_row` on, that of tile `tile` of C.

    Each tile of C begins with a tile of codes: it ends a part of one earlier at most.
    """
    var before = first_row.cast[DType.uint32]() // UInt32(TILED_ROWS)
    return (before.cast[DType.int32]() + tile) * Int32(TILED_ROWS)


def is_prepared(format: Format) -> Bool:
    """Says whether activations are prepared: floats that are kept come as they are multiplied.

    So do codes with float scales.
    """
    return format != KEPT and format.scale == Scale.E8M0
