"""From the sums of a tile to C, through shared memory.

The room has the sums of a row side by side, [row, column], float32. Eight neighbours of a row are
then a thread's to store.
"""

from max.gpu import thread_idx
from std.memory import bitcast

from ...tiles import RegisterTile
from ..arguments import Result
from ..host import CHUNK, TILE_THREADS as THREADS, TileShape
from ..instructions import FRAGMENT_SUMS, load_quad, store_pair


@always_inline
def store_sums[
    m_tiles: Int, n_tiles: Int, //, tile: TileShape
](room: UInt32, sums: RegisterTile[DType.float32, FRAGMENT_SUMS, m_tiles, n_tiles]):
    """Leaves a warp's sums in the room."""
    comptime ROW_BYTES = tile.room_row_bytes()
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var row_warp, column_warp = divmod(warp, UInt32(tile.column_warps()))
    var row = row_warp * UInt32(16 * m_tiles) + lane // 4
    var column = column_warp * UInt32(8 * n_tiles) + lane % 4 * 2
    var at = room + row * UInt32(ROW_BYTES) + 4 * column
    comptime for i in range(m_tiles):
        comptime for j in range(n_tiles):
            comptime for half in range(2):
                var pair = sums[i, j].slice[2, offset=2 * half]()
                comptime offset = (16 * i + 8 * half) * ROW_BYTES + 4 * 8 * j
                store_pair(at + UInt32(offset), bitcast[DType.uint32, 2](pair))


@always_inline
def store_tile[
    tile: TileShape
](room: UInt32, result: Result, first_row: UInt32, first_column: UInt32):
    """Stores the sums in the room where they belong in C."""
    comptime ROW_BYTES = tile.room_row_bytes()
    comptime ROW_CHUNKS = tile.columns // CHUNK
    var row_in_tile, chunk = divmod(UInt32(thread_idx.x), UInt32(ROW_CHUNKS))
    var column = first_column + chunk * UInt32(CHUNK)
    var num_rows = min(UInt32(tile.rows), result.rows - first_row)
    for row in range(row_in_tile, num_rows, UInt32(THREADS // ROW_CHUNKS)):
        var at = room + row * UInt32(ROW_BYTES) + chunk * UInt32(4 * CHUNK)
        var words = load_quad(at).join(load_quad(at + 16))
        result.store_columns[CHUNK](first_row + row, column, bitcast[DType.float32, CHUNK](words))
