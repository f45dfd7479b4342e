"""How a group of threads cuts its tile of C, and its shared memory.

A stage has 64 of K of the tile's rows of A, then of 128 rows of B. Sixteen bytes of numbers lie where
the row's last three bits say: neither who stores rows nor who loads columns meets at a bank.
"""

from ..codec import CHUNK
from .operands import NUMBER_BYTES

comptime THREADS = 256
"""Threads of a group."""
comptime COLUMNS = 128
"""Columns of C of a group."""
comptime STEP = 64
"""Elements of K of a stage."""
comptime STEP_CHUNKS = STEP // CHUNK
"""Chunks of a row of a stage."""
comptime ROW_BYTES = STEP * NUMBER_BYTES
"""Bytes of a row of a stage."""
comptime PASS_ROWS = THREADS // STEP_CHUNKS
"""Rows from one chunk of a thread to the next."""
comptime PASSES = COLUMNS // PASS_ROWS
"""Chunks of a thread."""
comptime CHUNK_BYTES = CHUNK * NUMBER_BYTES
"""Bytes of a chunk's numbers."""
comptime ROW_WARPS = 2
"""Warps that share columns."""
comptime COLUMN_WARPS = THREADS // 32 // ROW_WARPS
"""Warps that share rows."""
comptime WARP_COLUMNS = COLUMNS // COLUMN_WARPS
"""Columns of a warp."""
comptime FRAGMENT_ROWS = 16
"""Rows of a fragment of A, and steps of K; rows of two fragments of B."""
comptime FRAGMENT_COLUMNS = 8
"""Columns of a fragment of sums."""
comptime STAGES = 2
"""One is multiplied, one is filled."""
comptime ROOM_ROW_BYTES = 4 * (COLUMNS + 8)
"""Bytes from one row of the room to the next, against bank conflicts."""


@always_inline
def place_in_stage(row: UInt32, chunk: UInt32) -> UInt32:
    """Returns where the numbers of a chunk lie in a stage."""
    return row * UInt32(ROW_BYTES) + (chunk ^ row % UInt32(STEP_CHUNKS)) * UInt32(CHUNK_BYTES)
