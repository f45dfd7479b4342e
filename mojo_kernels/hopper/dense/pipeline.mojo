"""The stages of a product in shared memory: their place, and who fills them.

    header     barriers: full and empty for each stage
    rooms      for each warp group of consumers: where it turns its part of C
    factors    of the tokens of each stage
    stage      128 bytes of K of 128 weight rows, swizzled; the same of tokens

Stages go on from one tile of C to the next, so that those of the next one are on the way while the
last one is stored.
"""

from layout import Coord
from std.math import align_up

from ...launch.queue import DevicePointer
from ..instructions.shared_memory import (
    TileAddresses,
    arrive_expecting,
    copy_bulk,
    init_barrier,
)
from ..instructions.wgmma import ROW_BYTES
from ..many.kernel import CONSUMER_WARPS
from ..staged.stages import COLUMNS, HEADER_BYTES, SHARED_BYTES, SWIZZLE_BYTES
from ..staged.stages import TILES
from .result import FACTOR_BYTES, GROUPS, GroupRoom

comptime FILLER_TURNS = 2
"""Fillers of the same 32 rows, which take turns."""
comptime FILLER_WARPS = TILES * FILLER_TURNS
"""Warps that make stages of weights."""


@fieldwise_init
struct DenseStages[tokens: Int](TrivialRegisterPassable):
    """Where stages and their barriers lie in shared memory, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime FILLERS = TILES + 1
    """Who says that a stage is full: who copies tokens, and warps that put weights."""
    comptime FACTORS_AT = HEADER_BYTES + GROUPS * GroupRoom[Self.tokens].NUM_BYTES
    """Where factors begin, behind the rooms in which groups turn their part of C."""
    comptime FACTORS_BYTES = Self.tokens * FACTOR_BYTES
    """Bytes of the factors of a stage."""
    comptime WEIGHTS_BYTES = COLUMNS * ROW_BYTES
    """Bytes of the weights of a stage."""
    comptime TOKENS_BYTES = Self.tokens * ROW_BYTES
    """Bytes of its tokens, which lie behind the weights."""
    comptime STAGE_BYTES = Self.WEIGHTS_BYTES + Self.TOKENS_BYTES
    """Bytes of a stage."""
    comptime STAGES = (SHARED_BYTES - Self.FACTORS_AT - SWIZZLE_BYTES) // (
        Self.STAGE_BYTES + Self.FACTORS_BYTES
    )
    """Stages that fit."""
    comptime STAGES_AT = align_up(Self.FACTORS_AT + Self.STAGES * Self.FACTORS_BYTES, SWIZZLE_BYTES)
    """Where the stages begin."""
    comptime NUM_BYTES = Self.STAGES_AT + Self.STAGES * Self.STAGE_BYTES
    """Dynamic shared memory of a group."""
    comptime Barriers = TileAddresses[DType.uint64, 2, Self.STAGES]
    """The barriers, [full or empty, stage]."""

    @always_inline
    def init_barriers(self):
        """Makes all barriers; one thread calls it."""
        comptime for stage in range(Self.STAGES):
            var here = Self(self.base, UInt32(stage), 0)
            init_barrier(here.full(), UInt32(Self.FILLERS))
            init_barrier(here.empty(), UInt32(CONSUMER_WARPS))

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that the stage is filled."""
        return Self.Barriers(self.base).at(Coord(0, self.stage))

    @always_inline
    def empty(self) -> UInt32:
        """Returns the barrier that says that the stage is read."""
        return Self.Barriers(self.base).at(Coord(1, self.stage))

    @always_inline
    def room(self, warp: UInt32) -> GroupRoom[Self.tokens]:
        """Returns where a consumer warp turns its part of C."""
        return GroupRoom[Self.tokens].of_warp(self.base + UInt32(HEADER_BYTES), warp)

    @always_inline
    def weights(self) -> UInt32:
        """Returns where the stage's weights are."""
        return self.base + UInt32(Self.STAGES_AT) + self.stage * UInt32(Self.STAGE_BYTES)

    @always_inline
    def tokens_at(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return self.weights() + UInt32(Self.WEIGHTS_BYTES)

    @always_inline
    def factors_at(self) -> UInt32:
        """Returns where the factors of the stage's tokens are."""
        return self.base + UInt32(Self.FACTORS_AT) + self.stage * UInt32(Self.FACTORS_BYTES)

    @always_inline
    def advance(mut self, count: UInt32 = 1):
        """Goes on by so many stages, not more than there are."""
        self.stage += count
        if self.stage >= UInt32(Self.STAGES):
            self.stage -= UInt32(Self.STAGES)
            self.parity ^= 1

    @always_inline
    def copy_tokens(
        self, source: DevicePointer[DType.uint8], factors: DevicePointer[DType.float32]
    ):
        """Starts copying the tokens of the stage and their factors; one thread calls it."""
        arrive_expecting(self.full(), UInt32(Self.TOKENS_BYTES + Self.FACTORS_BYTES))
        copy_bulk(self.tokens_at(), source, UInt32(Self.TOKENS_BYTES), self.full())
        copy_bulk(
            self.factors_at(),
            factors.unsafe_bitcast[UInt8](),
            UInt32(Self.FACTORS_BYTES),
            self.full(),
        )
