"""The stages of a product in shared memory: tokens as bytes, weights as codes.

    header     barriers: full and empty for each stage
    rooms      for each warp group of consumers: where it turns its part of C
    stage      128 steps of K: tokens, swizzled; the codes of four tiles of 32 weight rows, then
               their scales; factors of tokens, if they have any

A thread copies tokens, which lie as a stage does, and three warps in turns weights: scales sixteen bytes
at a time, codes too, or a lane those of a tile. Weights are no kernel's before this one: their first
stages are on the way while tokens are prepared.

Who copies waits for nothing but that a stage is empty: the stage's barrier is told of what comes. Even so a
thread that issues a copy, and says how many bytes come, takes some 340 clocks a stage, and 55 more for
each further copy, measured on an H200; two groups multiply a stage of 128 tokens in 535.
"""

from layout import Coord
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from max.gpu.sync import syncwarp
from std.math import align_up

from ...launch.queue import DevicePointer
from ...simt.arguments import Weights
from ...simt.instructions import start_copy, wait_for_copies
from ..dense.result import GroupRoom
from ..instructions.shared_memory import (
    TileAddresses,
    arrive,
    arrive_expecting,
    arrive_when_copied,
    copy_bulk,
    init_barrier,
    publish_stores,
    store_quad,
    wait_phase,
)
from ..instructions.warp import keep_branch, keep_here, lane_here
from ..layout import BLOCK, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from ..shapes import (
    BULK_ROWS,
    BYTE_STEP_BLOCKS as STAGE_BLOCKS,
    CONSUMER_WARPS,
    FACTOR_BYTES,
    HEADER_BYTES,
    LANE_BYTES,
    ROW_BYTES,
    RsLayout,
    SWIZZLE_BYTES,
    TILES,
    room_tokens,
)
from ..scheduler import Corner, TileScheduler
from .operands import DirectOperands, GRANULE_BITS

comptime WEIGHT_FILLERS = 3
"""Warps that copy weights, every third stage each: with one, products take 4 to 7 % longer, measured."""


@fieldwise_init
struct WeightTiles(TrivialRegisterPassable):
    """The tiles of 32 weight rows that a stage has: two neighbours, and two more."""

    var first: UInt32
    var further: UInt32
    """Tiles behind the first one; the last one stands in for those past it."""
    var half: UInt32
    """Tiles from the first one to the third one."""

    @always_inline
    def behind(self, i: UInt32) -> UInt32:
        """Returns how many tiles one of the stage's is behind the first one."""
        var pair, odd = divmod(i, UInt32(2))
        return min(pair * self.half + odd, self.further)


@fieldwise_init
struct DirectStages[tokens: Int, bits: Int, has_factors: Bool](TrivialRegisterPassable):
    """Where stages and their barriers lie in shared memory, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime IN_BULK = Self.tokens >= BULK_ROWS
    """Whether codes of a tile come by one copy."""
    comptime BLOCK_GRANULES = Self.bits // GRANULE_BITS
    """Granules of a row in a block."""
    comptime BLOCK_BYTES = Self.BLOCK_GRANULES * TILE_BYTES
    """Bytes of a block of all rows of a tile."""
    comptime Codes = TileAddresses[
        DType.uint32, TILES, STAGE_BLOCKS * Self.BLOCK_GRANULES, 32, ROWS_PER_LANE
    ]
    """A stage's codes, words: [tile, granule, lane, row]."""
    comptime Scales = TileAddresses[DType.uint32, TILES, STAGE_BLOCKS, ROW_LANES]
    """A stage's scales, words of four rows: [tile, block, row lane]."""
    comptime Room = GroupRoom[room_tokens(Self.tokens)]
    """Where a consumer turns its part of C."""
    comptime TOKENS_BYTES = Self.tokens * ROW_BYTES
    """Bytes of a stage's tokens."""
    comptime CODES_AT = align_up(Self.TOKENS_BYTES, SWIZZLE_BYTES)
    """Where the codes lie in a stage."""
    comptime SCALES_AT = Self.CODES_AT + Self.Codes.NUM_BYTES
    """Where the scales lie."""
    comptime FACTORS_AT = Self.SCALES_AT + Self.Scales.NUM_BYTES
    """Where the factors lie."""
    comptime FACTORS_BYTES = Self.tokens * FACTOR_BYTES if Self.has_factors else 0
    """Bytes of a stage's factors."""
    comptime SPACE = RsLayout.fp8(Self.tokens, Self.bits, Self.has_factors).space()
    comptime STAGES_AT = Self.SPACE.first_at
    """Where the stages begin, behind the rooms in which groups turn their part of C."""
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
            # One for tokens, one for codes of each tile in bulk, and the warp that copies weights,
            # a lane of which comes twice.
            init_barrier(here.full(), 1 + (UInt32(TILES) if Self.IN_BULK else 1) + 32)
            # Every lane that reads: compute-sanitizer does not see that one speaks for a warp.
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
    def room(self, warp: UInt32) -> Self.Room:
        """Returns where a consumer warp turns its part of C."""
        return Self.Room.of_warp(self.base + UInt32(HEADER_BYTES), warp)

    @always_inline
    def tokens_at(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return self.base + UInt32(Self.STAGES_AT) + self.stage * UInt32(Self.STAGE_BYTES)

    @always_inline
    def codes(self) -> Self.Codes:
        """Returns where the stage's codes are."""
        return Self.Codes(self.tokens_at() + UInt32(Self.CODES_AT))

    @always_inline
    def scales(self) -> Self.Scales:
        """Returns where the stage's scales are."""
        return Self.Scales(self.tokens_at() + UInt32(Self.SCALES_AT))

    @always_inline
    def factors_at(self) -> UInt32:
        """Returns where the factors of the stage's tokens are."""
        return self.tokens_at() + UInt32(Self.FACTORS_AT)

    @always_inline
    def advance[count: Int = 1](mut self):
        """Goes on to the next stage, or some further."""
        comptime assert count <= Self.STAGES, "a round would be left out"
        self.stage += UInt32(count)
        if self.stage >= UInt32(Self.STAGES):
            self.stage -= UInt32(Self.STAGES)
            self.parity ^= 1

    @always_inline
    def copy_weights(
        mut self,
        filler: UInt32,
        scheduler: Some[TileScheduler],
        w: Weights,
        k: UInt32,
        columns: UInt32,
    ):
        """Copies a filler's weights of all stages, zeros past the end of K; a warp calls it.

        The last tile of 32 rows stands in for those past it.
        """
        var until = self.begin_at(filler)
        var num_blocks = k // UInt32(BLOCK)
        var last = (columns - 1) // UInt32(TILE_ROWS)
        var index = scheduler.first()
        while scheduler.has(index):
            var tile = scheduler.tile(index)
            index = scheduler.after(index)
            var first = tile.column // UInt32(TILE_ROWS)
            var tiles = WeightTiles(first, last - first, UInt32(TILES // 2))
            self.copy_tile(until, w, tiles, num_blocks, tile.first_step, tile.end_step)

    @always_inline
    def begin_at(mut self, filler: UInt32) -> UInt32:
        """Goes on to a filler's first stage, and returns how many are before it."""
        self.stage = filler
        return filler

    @always_inline
    def copy_tile(
        mut self,
        mut until: UInt32,
        w: Weights,
        tiles: WeightTiles,
        num_blocks: UInt32,
        first_step: UInt32,
        end_step: UInt32,
    ):
        """Copies a filler's weights of some stages of a tile of C; a warp calls it, a lane has 32 rows.

        So many stages are others' until its next one.
        """
        var step = first_step + until
        var lane = lane_here()
        var of_scales, piece = divmod(lane, UInt32(32 // TILES))
        var block = step * UInt32(STAGE_BLOCKS)
        var first = Int(tiles.first)
        comptime if Self.IN_BULK:
            first += Int(tiles.behind(min(lane, UInt32(TILES - 1))))
        first = first * Int(num_blocks) + Int(block)
        var codes = w.codes.unsafe_offset(first * Self.BLOCK_BYTES)
        first = Int(tiles.first) + Int(tiles.behind(of_scales))
        first = first * Int(num_blocks) + Int(block)
        var scales = w.scales.unsafe_offset(first * TILE_ROWS + LANE_BYTES * Int(piece))
        var left = num_blocks - block
        while step < end_step:
            wait_phase(self.empty(), self.parity)
            var is_whole = True
            comptime if Self.IN_BULK:
                var count = min(left, UInt32(STAGE_BLOCKS))
                is_whole = count == UInt32(STAGE_BLOCKS)
                if not is_whole:
                    keep_branch()
                    self.clear_codes_from(count)
                if lane < UInt32(TILES):
                    arrive_expecting(self.full(), count * UInt32(Self.BLOCK_BYTES))
                    copy_bulk(
                        self.codes().at(Coord(lane, 0, 0, 0)),
                        codes,
                        count * UInt32(Self.BLOCK_BYTES),
                        self.full(),
                    )
            else:
                # Else compute-sanitizer does not see that who waits for the stage waits for copies.
                if lane == 0:
                    arrive(self.full())
                self.start_codes(codes, num_blocks, left, tiles)
            start_copy(
                self.scales().base + UInt32(LANE_BYTES) * lane,
                scales,
                left > piece // UInt32(TILE_ROWS // LANE_BYTES),
            )
            if is_whole:
                arrive_when_copied(self.full())
            else:
                # What was stored is to be seen, too.
                wait_for_copies()
                arrive(self.full())
            codes = codes.unsafe_offset(WEIGHT_FILLERS * STAGE_BLOCKS * Self.BLOCK_BYTES)
            scales = scales.unsafe_offset(WEIGHT_FILLERS * STAGE_BLOCKS * TILE_ROWS)
            left -= UInt32(WEIGHT_FILLERS * STAGE_BLOCKS)
            step += UInt32(WEIGHT_FILLERS)
            self.advance[WEIGHT_FILLERS]()
        until = step - end_step

    @always_inline
    def start_codes(
        self,
        codes: DevicePointer[DType.uint8],
        num_blocks: UInt32,
        left: UInt32,
        tiles: WeightTiles,
    ):
        """Starts copies of the codes of a stage, zeros past those left; a warp calls it."""
        var lane_bytes = UInt32(LANE_BYTES) * lane_here()
        var to = self.codes().base + lane_bytes
        comptime for tile in range(TILES):
            var before = Int(tiles.behind(UInt32(tile))) * Int(num_blocks)
            var source = codes.unsafe_offset(before * Self.BLOCK_BYTES + Int(lane_bytes))
            comptime for i in range(STAGE_BLOCKS * Self.BLOCK_GRANULES):
                comptime at = tile * STAGE_BLOCKS * Self.BLOCK_BYTES + i * TILE_BYTES
                start_copy(
                    to + UInt32(at),
                    source.unsafe_offset(i * TILE_BYTES),
                    left > UInt32(i // Self.BLOCK_GRANULES),
                )

    @always_inline
    def clear_codes_from(self, first: UInt32):
        """Makes zeros of codes of blocks from one on: bytes of others might be no numbers."""
        comptime for tile in range(TILES):
            for granule in range(
                first * UInt32(Self.BLOCK_GRANULES), UInt32(STAGE_BLOCKS * Self.BLOCK_GRANULES)
            ):
                store_quad(self.codes().at(Coord(tile, granule, lane_here(), 0)), {0, 0, 0, 0})
        publish_stores()
        syncwarp()

    @always_inline
    def copy_tokens(mut self, scheduler: Some[TileScheduler], operands: Some[DirectOperands]):
        """Copies the tokens of all stages when they are prepared; one thread calls it."""
        var index = scheduler.first()
        # Divided out before.
        var corner = Corner(keep_here(SIMD[DType.uint32, 1](scheduler.corner(index)[0]))[0], 0)
        wait_on_dependent_grids()
        while scheduler.has(index):
            var tile = scheduler.tile(index, corner)
            var source = operands.tokens().stage(tile.row // UInt32(Self.tokens), tile.first_step)
            index = scheduler.after(index)
            corner = scheduler.corner(index)
            for step in range(tile.first_step, tile.end_step):
                wait_phase(self.empty(), self.parity)
                arrive_expecting(self.full(), UInt32(Self.TOKENS_BYTES + Self.FACTORS_BYTES))
                copy_bulk(self.tokens_at(), source, UInt32(Self.TOKENS_BYTES), self.full())
                comptime if Self.has_factors:
                    copy_bulk(
                        self.factors_at(),
                        operands.factors_of(tile.row, UInt32(step)).unsafe_bitcast[UInt8](),
                        UInt32(Self.FACTORS_BYTES),
                        self.full(),
                    )
                source = source.unsafe_offset(Self.TOKENS_BYTES)
                self.advance()
