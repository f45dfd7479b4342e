"""Where things are in the shared memory of a group: stages, then flags; sums in the end.

A stage has 64 of K of the tile's rows of A, then of the rows of B that are its columns. Sixteen bytes
of numbers lie where the row's last three bits say: neither who stores rows nor who loads columns meets
at a bank.
"""

from ..host import CHUNK, NUMBER_BYTES, ROW_BYTES, STEP, TILE_THREADS, TileShape
from .flags import Flags

comptime STEP_CHUNKS = STEP // CHUNK
"""Chunks of a row of a stage."""
comptime CHUNK_BYTES = CHUNK * NUMBER_BYTES
"""Bytes of a chunk's numbers."""
comptime FRAGMENT_ROWS = 16
"""Rows of a fragment of A, and steps of K; rows of two fragments of B."""
comptime FRAGMENT_COLUMNS = 8
"""Columns of a fragment of sums."""
comptime PASS_ROWS = TILE_THREADS // STEP_CHUNKS
"""Rows from one chunk of a thread to the next."""


@always_inline
def place_in_stage(row: UInt32, chunk: UInt32) -> UInt32:
    """Returns where the numbers of a chunk lie in a stage."""
    return row * UInt32(ROW_BYTES) + (chunk ^ row % UInt32(STEP_CHUNKS)) * UInt32(CHUNK_BYTES)


@fieldwise_init
struct LanePlace[tile: TileShape](TrivialRegisterPassable):
    """Where a lane finds and leaves what it works on."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage that is multiplied."""

    comptime LEFT_BYTES = Self.tile.left_bytes()
    comptime STAGE_BYTES = Self.tile.stage_bytes()
    comptime FLAGS_AT = Self.tile.flags_at()
    comptime Flags = Flags[Self.tile.columns]

    @always_inline
    def left(self, stage: UInt32) -> UInt32:
        """Returns where the rows of A of a stage are."""
        return self.base + stage * UInt32(Self.STAGE_BYTES)

    @always_inline
    def right(self, stage: UInt32) -> UInt32:
        """Returns where the rows of B of a stage are."""
        return self.left(stage) + UInt32(Self.LEFT_BYTES)

    @always_inline
    def flags(self) -> Self.Flags:
        """Returns the flags of columns."""
        return Self.Flags(self.base + UInt32(Self.FLAGS_AT))
