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
    init_barrier,
    wait_phase,
)
from ..layout import BLOCK, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from ..shapes import (
    COLUMNS,
    HEADER_BYTES,
    READERS,
    ROOM_STRIDE,
    ROOM_TOKENS,
    ROW_BYTES,
    STAGES_AT,
    STEP_BLOCKS,
    TILES,
    num_steps_of,
    staged_stages,
)

comptime FLAGS_AT = 512
"""Where the flags lie, behind the barriers."""
comptime Room = TileAddresses[DType.float32, ROOM_TOKENS, ROOM_STRIDE]
"""Where a warp transposes its sums, [token, row]."""
comptime StageCodes = TileAddresses[DType.uint32, TILES, STEP_BLOCKS, 32, ROWS_PER_LANE]
"""A stage's codes, words of eight: [tile, block, lane, row]."""
comptime StageScales = TileAddresses[DType.uint32, TILES, STEP_BLOCKS, ROW_LANES]
"""A stage's scales, words of four rows: [tile, block, row lane]."""


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


@fieldwise_init
struct Pipeline[num_tokens: Int](TrivialRegisterPassable):
    """Where stages and their barriers lie, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime TOKENS_BYTES = Self.num_tokens * ROW_BYTES
    """Bytes of a stage's tokens."""
    comptime SCALES_AT = Self.TOKENS_BYTES + StageCodes.NUM_BYTES
    """Where the scales lie in a stage, behind the codes."""
    comptime SPACE = staged_stages(Self.num_tokens)
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
            # The fillers, once for their weights, and the first one for the tokens.
            init_barrier(here.full(), UInt32(TILES + 1))
            init_barrier(here.empty(), UInt32(READERS))

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that the stage is filled."""
        return Self.Barriers(self.base).at(Coord(0, self.stage))

    @always_inline
    def empty(self) -> UInt32:
        """Returns the barrier that says that the stage is read."""
        return Self.Barriers(self.base).at(Coord(1, self.stage))

    @always_inline
    def flag(self, warp: UInt32) -> UInt32:
        """Returns the word that says that bfloat16 could not hold a warp's weights."""
        return self.base + UInt32(FLAGS_AT) + 4 * warp

    @always_inline
    def room(self, warp: UInt32) -> Room:
        """Returns where a consumer warp transposes its sums."""
        return Room(self.base + UInt32(HEADER_BYTES) + warp * UInt32(Room.NUM_BYTES))

    @always_inline
    def tokens(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return self.base + UInt32(STAGES_AT) + self.stage * UInt32(Self.STAGE_BYTES)

    @always_inline
    def codes(self) -> StageCodes:
        """Returns where the stage's codes are."""
        return StageCodes(self.tokens() + UInt32(Self.TOKENS_BYTES))

    @always_inline
    def scales(self) -> StageScales:
        """Returns where the stage's scales are."""
        return StageScales(self.tokens() + UInt32(Self.SCALES_AT))

    @always_inline
    def advance(mut self, steps: Int = 1):
        """Goes on to a later stage."""
        self.stage += UInt32(steps)
        if self.stage >= UInt32(Self.STAGES):
            self.stage -= UInt32(Self.STAGES)
            self.parity ^= 1


@fieldwise_init
struct Source[num_tokens: Int](TrivialRegisterPassable):
    """Where a filler copies the stages of a tile of C from; one thread starts all its copies."""

    var tokens: DevicePointer[DType.uint8]
    """The tokens of the first step; those of the next ones follow."""
    var codes: DevicePointer[DType.uint8]
    """The codes of the filler's tile in the first step."""
    var scales: DevicePointer[DType.uint8]
    """The scales of the filler's tile in the first step."""
    var num_blocks: UInt32
    """Blocks of K from the first step on; the last step may have fewer."""
    var filler: UInt32
    """The filler, which is its tile's place in the stage."""

    comptime Stages = Pipeline[Self.num_tokens]

    @staticmethod
    @always_inline
    def of(
        tokens: DevicePointer[DType.uint8],
        w: Weights,
        first_token: UInt32,
        first_column: UInt32,
        columns: UInt32,
        k: UInt32,
        first_step: UInt32,
        filler: UInt32,
    ) -> Self:
        """Finds what a filler copies; the last tile of all stands in for those past it."""
        var num_steps = num_steps_of(k)
        var stage = Int(first_token // UInt32(Self.num_tokens)) * Int(num_steps)
        stage += Int(first_step)
        var last_tile = (columns - 1) // UInt32(TILE_ROWS)
        var tile = min(first_column // UInt32(TILE_ROWS) + filler, last_tile)
        var row_blocks = k // UInt32(BLOCK)
        var first_block = first_step * UInt32(STEP_BLOCKS)
        var block = Int(tile) * Int(row_blocks) + Int(first_block)
        return Self(
            tokens.unsafe_offset(stage * Self.Stages.TOKENS_BYTES),
            w.codes.unsafe_offset(block * TILE_BYTES),
            w.scales.unsafe_offset(block * TILE_ROWS),
            row_blocks - min(first_block, row_blocks),
            filler,
        )

    @always_inline
    def copy_weights(self, pipeline: Self.Stages, step: UInt32):
        """Starts the copies of the filler's tile, for which the stage waits."""
        var first_block = step * UInt32(STEP_BLOCKS)
        var count = min(self.num_blocks - first_block, UInt32(STEP_BLOCKS))
        arrive_expecting(pipeline.full(), count * UInt32(TILE_BYTES + TILE_ROWS))
        copy_bulk(
            pipeline.codes().at(Coord(self.filler, 0, 0, 0)),
            self.codes.unsafe_offset(Int(first_block) * TILE_BYTES),
            count * UInt32(TILE_BYTES),
            pipeline.full(),
        )
        copy_bulk(
            pipeline.scales().at(Coord(self.filler, 0, 0)),
            self.scales.unsafe_offset(Int(first_block) * TILE_ROWS),
            count * UInt32(TILE_ROWS),
            pipeline.full(),
        )

    @always_inline
    def copy_tokens(self, pipeline: Self.Stages, step: UInt32):
        """Starts the copy of the tokens, for which the stage waits."""
        comptime TOKENS_BYTES = pipeline.TOKENS_BYTES
        arrive_expecting(pipeline.full(), UInt32(TOKENS_BYTES))
        copy_bulk(
            pipeline.tokens(),
            self.tokens.unsafe_offset(Int(step) * TOKENS_BYTES),
            UInt32(TOKENS_BYTES),
            pipeline.full(),
        )


@always_inline
def fill_first_stages[
    num_tokens: Int, //
](var pipeline: Pipeline[num_tokens], source: Source[num_tokens], num_steps: UInt32):
    """Copies the weights of as many stages as there are, then waits for the grid before."""
    for step in range(min(num_steps, UInt32(pipeline.STAGES))):
        source.copy_weights(pipeline, step)
        pipeline.advance()
    wait_on_dependent_grids()


@always_inline
def fill_stages[
    num_tokens: Int, //
](
    mut pipeline: Pipeline[num_tokens],
    source: Source[num_tokens],
    num_steps: UInt32,
    num_filled: UInt32,
):
    """Copies tokens, and the weights of all stages but the first `num_filled`, where they are."""
    for step in range(num_steps):
        if step >= num_filled:
            wait_phase(pipeline.empty(), pipeline.parity)
            source.copy_weights(pipeline, step)
        if source.filler == 0:
            source.copy_tokens(pipeline, step)
        pipeline.advance()
