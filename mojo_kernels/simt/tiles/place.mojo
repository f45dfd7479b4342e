"""Where things are in the shared memory of a group: stages, then flags; sums in the end."""

from .flags import Flags
from .shape import ROW_BYTES, STAGES, Tile


@fieldwise_init
struct Place[tile: Tile](TrivialRegisterPassable):
    """Where a lane finds and leaves what it works on."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage that is multiplied."""

    comptime LEFT_BYTES = Self.tile.rows * ROW_BYTES
    """Bytes of a stage's rows of A, which rows of B follow."""
    comptime STAGE_BYTES = Self.LEFT_BYTES + Self.tile.columns * ROW_BYTES
    """Bytes of a stage."""
    comptime FLAGS_AT = max(STAGES * Self.STAGE_BYTES, Self.tile.rows * Self.tile.room_row_bytes())
    """Where flags of columns lie, behind stages and the room that sums pass."""
    comptime Flags = Flags[Self.tile.columns]
    comptime NUM_BYTES = Self.FLAGS_AT + Self.Flags.NUM_BYTES
    """Shared memory of a group."""

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
