"""What a stage of the pipeline holds, by main loop.

    RS    weights decoded in registers: rows of A, swizzled; then, of four tiles of 32 weight rows,
          the codes and the scales; then a factor of each row of A, if rows have any
"""

from ..instructions.shared_memory import TileAddresses
from ..layout import GRANULE_BITS, ROWS_PER_LANE, ROW_LANES
from ..shapes import RsLayout, TILES
from .ring import Ring, Stage


@fieldwise_init
struct RsStage[layout: RsLayout](Stage):
    """A stage of rows of A, and of codes and scales of weights."""

    var base: UInt32
    """The address of the stage, where the rows are: so many of 128 bytes."""

    comptime SPACE = Self.layout.space()
    comptime PRODUCER_ARRIVALS = Self.layout.producer_arrivals
    comptime CONSUMER_ARRIVALS = Self.layout.consumer_arrivals
    comptime BLOCK_GRANULES = Self.layout.bits // GRANULE_BITS
    """Granules of a weight row in a block."""
    # Addresses: inline assembly reads them, which a TileTensor's pointer would cost a conversion each.
    comptime Codes = TileAddresses[
        DType.uint32, TILES, Self.layout.blocks * Self.BLOCK_GRANULES, 32, ROWS_PER_LANE
    ]
    """Words of eight or four codes, [tile, granule, lane, row]."""
    comptime Scales = TileAddresses[DType.uint32, TILES, Self.layout.blocks, ROW_LANES]
    """Words of four weight rows' scales, [tile, block, row lane]."""
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
