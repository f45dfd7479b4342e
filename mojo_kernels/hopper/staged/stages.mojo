"""The stages of a product of dozens of rows and more: their place, and who fills them.

    header     barriers: full and empty for each stage; a flag for each consumer warp
    rooms      for each of eight consumer warps: some tokens' sums on the way to C
    stage      64 steps of K: tokens, rows of 128 swizzled bytes, bfloat16;
               then the codes of four tiles of weight rows, then their scales

Eight warps read a stage: two for each tile, half of its rows each.

The warps of one warp group, the fillers, copy pieces of contiguous memory: each the weights of a
tile, the first one the tokens too. Stages go on from one tile of C to the next, so that those of
the next one are on the way while the last one is stored.
"""

from layout import Coord
from max.gpu.primitives.grid_controls import wait_on_dependent_grids

from ...launch.queue import DevicePointer
from ...schedule.clusters import Bands, height_of
from ...schedule.tiles import Tile
from ...simt.arguments import Result, Weights
from ..instructions.shared_memory import (
    TileAddresses,
    arrive_expecting,
    copy_bulk,
    wait_phase,
)
from ..layout import BLOCK, TILE_BYTES, TILE_ROWS
from ..pipeline.stages import RsRing
from ..shapes import (
    COLUMNS,
    HEADER_BYTES,
    ROOM_STRIDE,
    ROOM_TOKENS,
    RsLayout,
    STEP_BLOCKS,
    TILES,
    num_steps_of,
)

comptime FLAGS_AT = 512
"""Where the flags lie, behind the barriers."""
comptime Room = TileAddresses[DType.float32, ROOM_TOKENS, ROOM_STRIDE]
"""Where a warp transposes its sums, [token, row]."""


@always_inline
def bands_of[
    num_tokens: Int, num_columns: Int = COLUMNS
](result: Result) -> Bands[height_of(num_tokens, num_columns)]:
    """Returns the order of the tiles of C, of so many rows and columns each."""
    return {
        (result.rows + UInt32(num_tokens - 1)) // UInt32(num_tokens),
        (result.columns + UInt32(num_columns - 1)) // UInt32(num_columns),
    }


@always_inline
def first_of[num_tokens: Int](tile: Tile) -> Tuple[UInt32, UInt32]:
    """Returns the first row and column of a tile of C."""
    return (
        UInt32(tile.row) * UInt32(num_tokens),
        UInt32(tile.column) * UInt32(COLUMNS),
    )


@always_inline
def flag_of(base: UInt32, warp: UInt32) -> UInt32:
    """Returns the word that says that bfloat16 could not hold a warp's weights."""
    return base + UInt32(FLAGS_AT) + 4 * warp


@always_inline
def room_of(base: UInt32, warp: UInt32) -> Room:
    """Returns where a consumer warp transposes its sums."""
    return Room(base + UInt32(HEADER_BYTES) + warp * UInt32(Room.NUM_BYTES))


@fieldwise_init
struct Source[layout: RsLayout](TrivialRegisterPassable):
    """Where a producer copies the stages of a tile of C from; one thread starts all its copies."""

    var rows: DevicePointer[DType.uint8]
    """The rows of A of the first step."""
    var rows_stride: Int
    """Bytes from the rows of a step to those of the next."""
    var rows_bytes: UInt32
    """Bytes of the rows that there are."""
    var codes: DevicePointer[DType.uint8]
    """The codes of the producer's weight tile in the first step."""
    var scales: DevicePointer[DType.uint8]
    """The scales of the producer's weight tile in the first step."""
    var num_blocks: UInt32
    """Blocks of K from the first step on; the last step may have fewer."""
    var producer: UInt32
    """Its weight tile's place in the stage; the first producer copies rows, too."""

    @staticmethod
    @always_inline
    def of(
        rows: DevicePointer[DType.uint8],
        rows_stride: Int,
        rows_bytes: UInt32,
        w: Weights,
        weight_tile: UInt32,
        k: UInt32,
        first_step: UInt32,
        producer: UInt32,
    ) -> Self:
        """Finds what a producer copies of a tile of 32 weight rows."""
        var row_blocks = k // UInt32(BLOCK)
        var first_block = first_step * UInt32(STEP_BLOCKS)
        var block = Int(weight_tile) * Int(row_blocks) + Int(first_block)
        return Self(
            rows,
            rows_stride,
            rows_bytes,
            w.codes.unsafe_offset(block * TILE_BYTES),
            w.scales.unsafe_offset(block * TILE_ROWS),
            row_blocks - min(first_block, row_blocks),
            producer,
        )

    @staticmethod
    @always_inline
    def of_dense(
        staged: DevicePointer[DType.uint8],
        w: Weights,
        first_row: UInt32,
        first_column: UInt32,
        columns: UInt32,
        k: UInt32,
        first_step: UInt32,
        producer: UInt32,
    ) -> Self:
        """Finds it for rows that `expand` staged; the last weight tile stands in for others."""
        comptime BYTES = Self.layout.codes_at()
        var stage = Int(first_row // UInt32(Self.layout.rows)) * Int(num_steps_of(k))
        var last_tile = (columns - 1) // UInt32(TILE_ROWS)
        var tile = min(first_column // UInt32(TILE_ROWS) + producer, last_tile)
        var rows = staged.unsafe_offset((stage + Int(first_step)) * BYTES)
        return Self.of(rows, BYTES, UInt32(BYTES), w, tile, k, first_step, producer)

    @always_inline
    def copy_weights(self, ring: RsRing[Self.layout], step: UInt32):
        """Starts the copies of the producer's weight tile, for which the stage waits."""
        var first_block = step * UInt32(STEP_BLOCKS)
        var count = min(self.num_blocks - first_block, UInt32(STEP_BLOCKS))
        arrive_expecting(ring.full(), count * UInt32(TILE_BYTES + TILE_ROWS))
        copy_bulk(
            ring.here().codes().at(Coord(self.producer, 0, 0, 0)),
            self.codes.unsafe_offset(Int(first_block) * TILE_BYTES),
            count * UInt32(TILE_BYTES),
            ring.full(),
        )
        copy_bulk(
            ring.here().scales().at(Coord(self.producer, 0, 0)),
            self.scales.unsafe_offset(Int(first_block) * TILE_ROWS),
            count * UInt32(TILE_ROWS),
            ring.full(),
        )

    @always_inline
    def copy_rows(self, ring: RsRing[Self.layout], step: UInt32):
        """Starts the copy of the rows, for which the stage waits."""
        arrive_expecting(ring.full(), self.rows_bytes)
        copy_bulk(
            ring.here().base,
            self.rows.unsafe_offset(Int(step) * self.rows_stride),
            self.rows_bytes,
            ring.full(),
        )


@always_inline
def fill_first_stages[
    layout: RsLayout, //
](var ring: RsRing[layout], source: Source[layout], num_steps: UInt32):
    """Copies the weights of as many stages as there are, then waits for the grid before."""
    for step in range(min(num_steps, UInt32(ring.STAGES))):
        source.copy_weights(ring, step)
        ring.advance()
    wait_on_dependent_grids()


@always_inline
def fill_stages[
    layout: RsLayout, //
](mut ring: RsRing[layout], source: Source[layout], num_steps: UInt32, num_filled: UInt32):
    """Copies rows of A, and the weights of all stages but the first `num_filled`."""
    for step in range(num_steps):
        if step >= num_filled:
            wait_phase(ring.empty(), ring.parity)
            source.copy_weights(ring, step)
        if source.producer == 0:
            source.copy_rows(ring, step)
        ring.advance()
