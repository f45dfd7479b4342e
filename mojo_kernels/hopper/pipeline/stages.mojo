"""What a stage of the pipeline holds, by main loop.

    RS    weights decoded in registers: rows of A, swizzled; then, of four tiles of 32 weight rows,
          the codes and the scales; then a factor of each row of A, if rows have any
    SS    128 bytes of K of the rows of A of a tile, swizzled; the same of its weight rows

An SS tile has two parts, a consumer each, of 64 rows of A: below each other, or, where there are few
rows, beside each other.

Beside each SS stage there is a slot, see `slots`; before all of them, for each consumer, there is room
for its part of C, see `epilogue.ss`.
"""

from ..instructions.shared_memory import TileAddresses, arrive
from ..layout import GRANULE_BITS, ROWS_PER_LANE, ROW_LANES, block_scales
from ..shapes import (
    CONSUMER_WARPS,
    HALVES,
    PART_ROWS,
    ROW_BYTES,
    RsLayout,
    SsTile,
)
from .ring import Ring, Stage
from .slots import Slot


@fieldwise_init
struct RsStage[layout: RsLayout](Stage):
    """A stage of rows of A, and of codes and scales of weights."""

    var base: UInt32
    """The address of the stage, where the rows are: so many of 128 bytes."""

    comptime SPACE = Self.layout.space()
    comptime PRODUCER_ARRIVALS = Self.layout.producer_arrivals
    comptime CONSUMER_ARRIVALS = 32 * HALVES * Self.layout.tiles
    comptime BLOCK_GRANULES = Self.layout.bits // GRANULE_BITS
    """Granules of a weight row in a block."""
    # Addresses: inline assembly reads them, which a TileTensor's pointer would cost a conversion each.
    comptime Codes = TileAddresses[
        DType.uint32, Self.layout.tiles, Self.layout.blocks * Self.BLOCK_GRANULES, 32, ROWS_PER_LANE
    ]
    """Words of eight or four codes, [tile, granule, lane, row]."""
    comptime BLOCK_SCALES = block_scales(Self.layout.scale)
    """Scales of a weight row in a block."""
    comptime Scales = TileAddresses[
        DType.uint32, Self.layout.tiles, Self.layout.blocks, Self.BLOCK_SCALES, ROW_LANES
    ]
    """Words of four weight rows' scales, [tile, block, scale of the block, row lane]."""
    comptime Factors = TileAddresses[DType.float32, Self.layout.rows]
    """A factor for each row of A."""

    @always_inline
    def codes(self) -> Self.Codes:
        """Returns the codes of the weights."""
        return Self.Codes(self.base + UInt32(Self.layout.codes_at()))

    @always_inline
    def scales(self) -> Self.Scales:
        """Returns the scales of the weights."""
        return Self.Scales(self.base + UInt32(Self.layout.scales_at()))

    @always_inline
    def factors(self) -> Self.Factors:
        """Returns the factors of the rows of A."""
        return Self.Factors(self.base + UInt32(Self.layout.factors_at()))


comptime RsRing[layout: RsLayout] = Ring[RsStage[layout]]
"""The pipeline of an RS main loop."""


@fieldwise_init
struct SsStage[shape: SsTile](Stage):
    """A stage of both sides of a tile."""

    var base: UInt32

    comptime SPACE = Self.shape.stages()
    comptime PRODUCER_ARRIVALS = 1 + 32
    """The thread that starts copies, and the warp that puts factors, every lane of it."""
    comptime CONSUMER_ARRIVALS = 32 * CONSUMER_WARPS

    @always_inline
    def weights(self) -> UInt32:
        """Returns where the weight rows are."""
        return self.base + UInt32(Self.shape.rows * ROW_BYTES)

    @always_inline
    def rows_of(self, group: UInt32) -> UInt32:
        """Returns where the rows of A of a consumer are."""
        comptime if Self.shape.has_one_row():
            return self.base
        return self.base + group * UInt32(PART_ROWS * ROW_BYTES)

    @always_inline
    def weights_of(self, group: UInt32) -> UInt32:
        """Returns where the weight rows of a consumer are."""
        comptime if not Self.shape.has_one_row():
            return self.weights()
        return self.weights() + group * UInt32(Self.shape.part_columns() * ROW_BYTES)


comptime SsRing[shape: SsTile] = Ring[SsStage[shape]]
"""The pipeline of an SS main loop."""


@always_inline
def slot_of[shape: SsTile, //](ring: SsRing[shape]) -> Slot[shape]:
    """Returns the slot of the ring's stage."""
    comptime SLOTS_AT = shape.slots_at()
    comptime BYTES = shape.slot_bytes()
    return {ring.base + UInt32(SLOTS_AT) + ring.stage * UInt32(BYTES)}


@always_inline
def release(ring: Ring[_]):
    """Says that a lane has read a stage.

    Every lane does: one for its warp would do, and takes as long, but compute-sanitizer does not see that.
    """
    arrive(ring.empty())
