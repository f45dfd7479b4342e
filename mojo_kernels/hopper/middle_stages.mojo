"""The stages of a product of dozens to hundreds of rows: their place, and who fills them.

    header     barriers: full and empty for each stage, one for the marks; the flag; the marks
    rings      of each consumer warp: its weights, see `middle_weights`
    stage      64 steps of K of the tokens: rows of 128 swizzled bytes, bfloat16
    ...
    sums       over rings and stages, when all are read: [region][token][column]

One warp copies the stages, one piece of memory each. The other warps of its warp group read
which tokens bfloat16 cannot hold.
"""

from max.gpu import thread_idx
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from std.math import align_up

from ..simt.launch import DevicePointer
from .expand_tokens import ROW_BYTES, marks_of_row
from .middle_weights import RING_BYTES
from .shared_memory import (
    arrive,
    arrive_expecting,
    copy_bulk,
    init_barrier,
    store_word,
    wait_phase,
)

comptime WARP_GROUP = 128
"""Threads that issue an instruction together."""
comptime CONSUMERS = 2
"""Warp groups that multiply."""
comptime CONSUMER_THREADS = CONSUMERS * WARP_GROUP
"""Threads that multiply, and store in the end."""
comptime CONSUMER_WARPS = CONSUMER_THREADS // 32
"""Warps that multiply."""
comptime THREADS = CONSUMER_THREADS + WARP_GROUP
"""Threads of a group: the consumers, then those that fill stages."""
comptime MARKING_THREADS = WARP_GROUP - 32
"""Threads that read marks."""
comptime COLUMNS = 128
"""Columns of C of a group: each warp of a consumer has a tile of weight rows."""
comptime SWIZZLE_BYTES = 1024
"""Stages start at multiples of this."""
comptime HEADER_BYTES = 1024
"""Barriers, flag and marks."""
comptime MAX_STAGES = 8
"""More stages help nothing."""
comptime SHARED_BYTES = 227 * 1024
"""What a group can have."""
comptime FLAG_AT = 256
"""Where the flag lies: bfloat16 could not hold an operand."""
comptime MARKS_AT = 512
"""Where the marks lie: a word for each token."""


@fieldwise_init
struct GroupShape[tokens: Int](TrivialRegisterPassable):
    """What follows from the rows of a group's tile of C."""

    comptime STAGE_BYTES = Self.tokens * ROW_BYTES
    """Bytes of a stage."""
    comptime STAGES_AT = align_up(HEADER_BYTES + CONSUMER_WARPS * RING_BYTES, SWIZZLE_BYTES)
    """Where the stages begin."""
    comptime STAGES = min(MAX_STAGES, (SHARED_BYTES - Self.STAGES_AT) // Self.STAGE_BYTES)
    """Stages that fit."""
    comptime SUM_STRIDE = COLUMNS + 4
    """Words from one token's sums to the next, against bank conflicts."""
    comptime REGION_BYTES = 4 * Self.tokens * Self.SUM_STRIDE
    """Bytes of the sums of the tile."""
    comptime NUM_BYTES = max(
        Self.STAGES_AT + Self.STAGES * Self.STAGE_BYTES,
        HEADER_BYTES + CONSUMERS * Self.REGION_BYTES,
    )
    """Dynamic shared memory of a group."""


@fieldwise_init
struct Pipeline[tokens: Int](TrivialRegisterPassable):
    """Where stages and their barriers lie, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime Shape = GroupShape[Self.tokens]
    """What a stage holds."""

    @always_inline
    def init_barriers(self):
        """Makes all barriers; one thread calls it."""
        comptime for i in range(Self.Shape.STAGES):
            init_barrier(self.base + UInt32(8 * i), 1)
            init_barrier(self.base + UInt32(8 * (Self.Shape.STAGES + i)), UInt32(WARP_GROUP // 32))
        init_barrier(self.marked(), UInt32(MARKING_THREADS))
        store_word(self.flag(), 0)

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that the stage is filled."""
        return self.base + 8 * self.stage

    @always_inline
    def empty(self) -> UInt32:
        """Returns the barrier that says that the stage is read."""
        return self.base + UInt32(8 * Self.Shape.STAGES) + 8 * self.stage

    @always_inline
    def marked(self) -> UInt32:
        """Returns the barrier that says that the marks are there."""
        return self.base + UInt32(16 * Self.Shape.STAGES)

    @always_inline
    def flag(self) -> UInt32:
        """Returns the word that says that bfloat16 could not hold an operand."""
        return self.base + UInt32(FLAG_AT)

    @always_inline
    def mark(self, token: UInt32) -> UInt32:
        """Returns the word that says that bfloat16 cannot hold a token."""
        return self.base + UInt32(MARKS_AT) + 4 * token

    @always_inline
    def token_rows(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return (
            self.base + UInt32(Self.Shape.STAGES_AT) + self.stage * UInt32(Self.Shape.STAGE_BYTES)
        )

    @always_inline
    def ring(self, warp: UInt32) -> UInt32:
        """Returns where the weights of a consumer warp are on the way."""
        return self.base + UInt32(HEADER_BYTES) + warp * UInt32(RING_BYTES)

    @always_inline
    def sums(self) -> UInt32:
        """Returns where the sums are in the end."""
        return self.base + UInt32(HEADER_BYTES)

    @always_inline
    def advance(mut self, steps: Int = 1):
        """Goes on to a later stage."""
        self.stage += UInt32(steps)
        if self.stage >= UInt32(Self.Shape.STAGES):
            self.stage -= UInt32(Self.Shape.STAGES)
            self.parity ^= 1


@always_inline
def fill_stages[
    tokens: Int
](var pipeline: Pipeline[tokens], source: DevicePointer[DType.uint8], num_steps: UInt32):
    """Copies stages, which lie one after the other at `source`; one thread calls it."""
    comptime STAGE_BYTES = pipeline.Shape.STAGE_BYTES
    wait_on_dependent_grids()
    # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
    pipeline.parity = 1
    for step in range(num_steps):
        wait_phase(pipeline.empty(), pipeline.parity)
        arrive_expecting(pipeline.full(), UInt32(STAGE_BYTES))
        copy_bulk(
            pipeline.token_rows(),
            source.unsafe_offset(Int(step) * STAGE_BYTES),
            UInt32(STAGE_BYTES),
            pipeline.full(),
        )
        pipeline.advance()


@always_inline
def read_marks[
    tokens: Int
](
    pipeline: Pipeline[tokens],
    marks: DevicePointer[DType.uint8],
    k: UInt32,
    rows: UInt32,
    first_token: UInt32,
    thread: UInt32,
):
    """Reads which tokens bfloat16 cannot hold; `MARKING_THREADS` threads call it."""
    wait_on_dependent_grids()
    var num_marks = marks_of_row(k)
    for token in range(thread, UInt32(tokens), UInt32(MARKING_THREADS)):
        var found = UInt32(0)
        var row = first_token + token
        if row < rows:
            for i in range(num_marks):
                var at = Int(row) * Int(num_marks) + Int(i)
                found |= marks[unsafe_offset=at].cast[DType.uint32]()
        store_word(pipeline.mark(token), found)
    arrive(pipeline.marked())
