"""The stages of a product in shared memory: boxes of both sides, and a slot for factors.

    header     barriers: full and empty for each stage; those of `handover`
    rooms      for each warp group of consumers: where its part of C goes through
    slots      of a stage: what its sums are multiplied by, see `Slot`
    stage      128 bytes of K of the tokens of a tile, swizzled; the same of its weights

A tile has two parts, a consumer each, of 64 tokens and 128 columns: below each other, or, where
there are few tokens, beside each other.

    tokens    columns
    128       128
    64        256
"""

from layout import Coord

from ..instructions.shared_memory import (
    TileAddresses,
    arrive,
    arrive_expecting,
    copy_box,
    init_barrier,
)
from ..shapes import (
    COLUMNS,
    CONSUMER_WARPS,
    GROUPS,
    HEADER_BYTES,
    PART_BYTES,
    PART_COLUMNS,
    PART_PITCH,
    PART_TOKENS,
    ROW_BYTES,
    columns_of,
    mapped_stages,
)
from .slots import Slot

comptime FILLERS = 1 + 32
"""Who says that a stage is full: the thread that starts copies, and the warp that puts factors.

Every lane says so, as every lane of consumers does of a stage that is read. One for a warp behind a
barrier of it would do, and takes as long, but compute-sanitizer does not see that.
"""


@fieldwise_init
struct PartRoom(TrivialRegisterPassable):
    """Where a consumer's part of C goes through, [token][column], two bytes each.

    A token has sixteen bytes more than it needs, against bank conflicts.
    """

    var base: UInt32

    @always_inline
    def at(self, token: UInt32, column: UInt32) -> UInt32:
        """Returns the address of an element."""
        return self.base + token * UInt32(PART_PITCH) + 2 * column


@fieldwise_init
struct MappedStages[tokens: Int](TrivialRegisterPassable):
    """Where stages and their barriers lie in shared memory, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime COLUMNS = columns_of(Self.tokens)
    """Columns of a tile."""
    comptime Slot = Slot[Self.tokens, Self.COLUMNS]
    comptime ROOMS_AT = HEADER_BYTES
    """Where the rooms begin."""
    comptime SLOTS_AT = Self.ROOMS_AT + GROUPS * PART_BYTES
    """Where the slots begin."""
    comptime TOKENS_BYTES = Self.tokens * ROW_BYTES
    """Bytes of the tokens of a stage."""
    comptime SPACE = mapped_stages(Self.tokens)
    comptime STAGES_AT = Self.SPACE.first_at
    """Where the stages begin."""
    comptime STAGE_BYTES = Self.SPACE.stage_bytes
    """Bytes of a stage."""
    comptime STAGES = Self.SPACE.count
    """Stages that fit."""
    comptime Barriers = TileAddresses[DType.uint64, 2, Self.STAGES]
    """The barriers, [full or empty, stage]."""

    @always_inline
    def init_barriers(self):
        """Makes all barriers; one thread calls it."""
        comptime for stage in range(Self.STAGES):
            var here = Self(self.base, UInt32(stage), 0)
            init_barrier(here.full(), UInt32(FILLERS))
            init_barrier(here.empty(), UInt32(32 * CONSUMER_WARPS))

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that the stage is filled."""
        return Self.Barriers(self.base).at(Coord(0, self.stage))

    @always_inline
    def empty(self) -> UInt32:
        """Returns the barrier that says that the stage is read."""
        return Self.Barriers(self.base).at(Coord(1, self.stage))

    @always_inline
    def room(self, group: UInt32) -> PartRoom:
        """Returns the room of a consumer."""
        return PartRoom(self.base + UInt32(Self.ROOMS_AT) + group * UInt32(PART_BYTES))

    @always_inline
    def slot(self) -> Self.Slot:
        """Returns the slot of the stage."""
        return Self.Slot(
            self.base + UInt32(Self.SLOTS_AT) + self.stage * UInt32(Self.Slot.NUM_BYTES)
        )

    @always_inline
    def tokens_at(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return self.base + UInt32(Self.STAGES_AT) + self.stage * UInt32(Self.STAGE_BYTES)

    @always_inline
    def weights_at(self) -> UInt32:
        """Returns where the stage's weights are."""
        return self.tokens_at() + UInt32(Self.TOKENS_BYTES)

    @always_inline
    def tokens_of(self, group: UInt32) -> UInt32:
        """Returns where the tokens of a consumer are."""
        comptime if Self.tokens == PART_TOKENS:
            return self.tokens_at()
        return self.tokens_at() + group * UInt32(PART_TOKENS * ROW_BYTES)

    @always_inline
    def weights_of(self, group: UInt32) -> UInt32:
        """Returns where the weights of a consumer are."""
        comptime if Self.COLUMNS == PART_COLUMNS:
            return self.weights_at()
        return self.weights_at() + group * UInt32(PART_COLUMNS * ROW_BYTES)

    @always_inline
    def advance(mut self):
        """Goes on to the next stage."""
        self.stage += 1
        if self.stage == UInt32(Self.STAGES):
            self.stage = 0
            self.parity ^= 1

    @always_inline
    def copy_both(self, left: Int, right: Int, step: UInt32, token: UInt32, column: UInt32):
        """Starts copying boxes of both sides, by the addresses of their maps; a thread calls it."""
        var byte = step * UInt32(ROW_BYTES)
        arrive_expecting(self.full(), UInt32(Self.STAGE_BYTES))
        copy_box(self.tokens_at(), left, byte, token, self.full())
        copy_box(self.weights_at(), right, byte, column, self.full())

    @always_inline
    def release(self):
        """Says that a lane has read the stage."""
        arrive(self.empty())
