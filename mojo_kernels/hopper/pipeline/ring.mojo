"""The pipeline of a warp-specialised kernel: a ring of stages in shared memory.

    barrier    arrivals                                 who waits
    full       producers, and the bytes of copies       consumers, to multiply the stage
    empty      consumers, when they have read it        producers, to fill it again

    step       0  1  2  3  4  5  6  7  ..               of three stages
    stage      0  1  2  0  1  2  0  1
    parity     0  0  0  1  1  1  0  0                   of the full barrier's phase

Producers begin with parity 1: the phase before the first one is over, so that the first round waits for
nobody. The ring goes on from one tile of C to the next: the next tile's stages fill during the epilogue.
"""

from layout import Coord
from max.gpu.primitives.warp import broadcast

from ..instructions.shared_memory import TileAddresses, init_barrier
from ..shapes import StageSpace


trait Stage(TrivialRegisterPassable):
    """What a stage holds, as addresses of shared memory."""

    comptime SPACE: StageSpace
    """How many stages there are, and where."""
    comptime PRODUCER_ARRIVALS: Int
    """Arrivals that fill a stage, beside the bytes of copies."""
    comptime CONSUMER_ARRIVALS: Int
    """Arrivals that empty it."""

    def __init__(out self, base: UInt32):
        """Takes the address of the stage."""
        ...


@fieldwise_init
struct Ring[StageType: Stage](TrivialRegisterPassable):
    """Where the stages and their barriers are, and which stage is next."""

    var base: UInt32
    """Start of the CTA's shared memory; the barriers are first."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime SPACE = Self.StageType.SPACE
    comptime STAGES = Self.SPACE.count
    comptime Barriers = TileAddresses[DType.uint64, 2, Self.STAGES]
    """The barriers, [full or empty, stage]."""

    @always_inline
    def init_barriers(self):
        """Makes all barriers; one thread calls it."""
        comptime for stage in range(Self.STAGES):
            var here = Self(self.base, UInt32(stage), 0)
            init_barrier(here.full(), UInt32(Self.StageType.PRODUCER_ARRIVALS))
            init_barrier(here.empty(), UInt32(Self.StageType.CONSUMER_ARRIVALS))

    @always_inline
    def full(self) -> UInt32:
        """Returns the stage's full barrier."""
        return Self.Barriers(self.base).at(Coord(0, self.stage))

    @always_inline
    def empty(self) -> UInt32:
        """Returns the stage's empty barrier."""
        return Self.Barriers(self.base).at(Coord(1, self.stage))

    @always_inline
    def here(self) -> Self.StageType:
        """Returns the stage."""
        return Self.StageType(
            self.base + UInt32(Self.SPACE.first_at) + self.stage * UInt32(Self.SPACE.stage_bytes)
        )

    @always_inline
    def advance[steps: Int = 1](mut self):
        """Goes on by some steps, no more than there are stages."""
        comptime assert steps <= Self.STAGES, "a round would be left out"
        self.advance_within(UInt32(steps))

    @always_inline
    def advance_within(mut self, steps: UInt32):
        """The same for steps that are not known before."""
        self.stage += steps
        if self.stage >= UInt32(Self.STAGES):
            self.stage -= UInt32(Self.STAGES)
            self.parity ^= 1

    @always_inline
    def advance_by(mut self, steps: UInt32):
        """Goes on by any number of steps, the same in all lanes."""
        var rounds, stage = divmod(self.stage + steps, UInt32(Self.STAGES))
        # Broadcast, or the loop of the next tile is taken for one whose lanes part.
        self.stage = broadcast(stage)
        self.parity = broadcast(self.parity ^ (rounds & 1))
