"""How a group of threads cuts its tile of C, and its shared memory.

A stage has 64 of K of the tile's rows of A, then of the rows of B that are its columns. Sixteen bytes
of numbers lie where the row's last three bits say: neither who stores rows nor who loads columns meets
at a bank.
"""

from ..codec import CHUNK
from .operands import NUMBER_BYTES

comptime THREADS = 256
"""Threads of a group."""
comptime COLUMNS = 128
"""The most columns of a tile."""
comptime WARP_COLUMNS = 32
"""Columns of a warp."""
comptime STEP = 64
"""Elements of K of a stage."""
comptime STEP_CHUNKS = STEP // CHUNK
"""Chunks of a row of a stage."""
comptime ROW_BYTES = STEP * NUMBER_BYTES
"""Bytes of a row of a stage."""
comptime CHUNK_BYTES = CHUNK * NUMBER_BYTES
"""Bytes of a chunk's numbers."""
comptime FRAGMENT_ROWS = 16
"""Rows of a fragment of A, and steps of K; rows of two fragments of B."""
comptime FRAGMENT_COLUMNS = 8
"""Columns of a fragment of sums."""
comptime STAGES = 2
"""One is multiplied, one is filled."""
comptime PASS_ROWS = THREADS // STEP_CHUNKS
"""Rows from one chunk of a thread to the next."""


@fieldwise_init
struct Tile(Equatable, TrivialRegisterPassable):
    """The rows and columns of C of a group; its warps stand in a grid over them."""

    var rows: Int
    var columns: Int

    @staticmethod
    def of(rows: Int, has_totals: Bool) -> Self:
        """Returns a tile of so many rows.

        Two groups are to share a multiprocessor: half of the columns leave registers for sums twice.
        """
        return Self(rows, COLUMNS // 2 if has_totals and rows == COLUMNS else COLUMNS)

    def column_warps(self) -> Int:
        """Returns the warps that share rows."""
        return self.columns // WARP_COLUMNS

    def row_warps(self) -> Int:
        """Returns the warps that share columns."""
        return THREADS // 32 // self.column_warps()

    def warp_rows(self) -> Int:
        """Returns the rows of a warp."""
        return self.rows // self.row_warps()

    def room_row_bytes(self) -> Int:
        """Returns the bytes from one row of the room to the next, against bank conflicts."""
        return 4 * (self.columns + 8)


@always_inline
def place_in_stage(row: UInt32, chunk: UInt32) -> UInt32:
    """Returns where the numbers of a chunk lie in a stage."""
    return row * UInt32(ROW_BYTES) + (chunk ^ row % UInt32(STEP_CHUNKS)) * UInt32(CHUNK_BYTES)
