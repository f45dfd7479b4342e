"""Producers of an RS pipeline: copies of rows of A, and of the codes and scales of weights.

    main loop    who                          copies of a stage
    bf16         a thread of each of four     a tile of 32 weight rows, codes and scales, in bulk; the
                 warps                        first one rows of A, too; if those are mapped, two
                                              have weights and the next one rows
    fp8          three warps in turns,        scales sixteen bytes at a time; codes too, or a lane those
                 every third stage each       of a tile in bulk
                 a thread                     rows of A, and their factors, in bulk

Rows of A lie as a stage does. Weights are no kernel's before this one: those of the first stages are on
the way while rows of A are prepared.

A producer waits for nothing but that a stage is empty: the stage's barrier is told of what comes. Even
so a thread that issues a copy, and says how many bytes come, takes some 340 clocks a stage, and 55 more
for each further copy, measured on an H200; two warp groups multiply a stage of 128 rows of bytes in 535.
"""

from layout import Coord
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from max.gpu.sync import syncwarp

from ...launch.queue import DevicePointer
from ...simt.arguments import Weights
from ...simt.instructions import start_copy, wait_for_copies
from ...routing.slots import NO_EXPERT
from ..routing import padded
from ..instructions.shared_memory import (
    arrive,
    arrive_expecting,
    arrive_when_copied,
    copy_box,
    copy_bulk,
    prefetch_map,
    publish_stores,
    store_quad,
    wait_phase,
)
from ..instructions.warp import keep_branch, keep_here, lane_here
from ..layout import BLOCK, TILE_BYTES, TILE_ROWS
from ..gemm_operands import RsOperands, StagedRows
from ..product import RsProduct, StageTiles
from ..scheduler import Corner, TileScheduler, WorkTile
from ..shapes import BOX_ROWS, BULK_ROWS, FACTOR_BYTES, LANE_BYTES, ROW_BYTES, RsLayout, TILES
from .stages import RsRing, RsStage

comptime WEIGHT_PRODUCERS = 3
"""Warps that copy weights of FP8: with one, products take 4 to 7 % longer, measured."""


@fieldwise_init
struct RowsOfA[layout: RsLayout](TrivialRegisterPassable):
    """The rows of A of a tile's next stage, in memory."""

    var first: DevicePointer[DType.uint8]
    var step_bytes: Int
    """Bytes to those of the stage after."""
    var count: UInt32
    """Rows that there are, in eights."""

    @staticmethod
    @always_inline
    def of[is_list: Bool](rows: StagedRows, tile: WorkTile) -> Self:
        """Returns those of a CTA's first stage of a tile: of a list, stages have all places."""
        comptime if is_list:
            var first = rows.first.unsafe_offset(Int(tile.place) * ROW_BYTES)
            return Self(first, Int(rows.stage_bytes), padded(tile.rows))
        comptime ROWS = Self.layout.rows
        var first = rows.stage(tile.place // UInt32(ROWS), tile.first_step)
        return Self(first, ROWS * ROW_BYTES, UInt32(ROWS))

    @always_inline
    def copy(mut self, ring: RsRing[Self.layout]):
        """Starts the copy of a stage, which waits for these rows, and their factors; goes on."""
        arrive_expecting(ring.full(), self.count * UInt32(ROW_BYTES + Self.layout.factor_bytes))
        copy_bulk(ring.here().base, self.first, self.count * UInt32(ROW_BYTES), ring.full())
        self.first = self.first.unsafe_offset(self.step_bytes)


@fieldwise_init
struct WeightTileSource[layout: RsLayout](TrivialRegisterPassable):
    """Codes and scales of a tile of 32 weight rows, from a stage on."""

    var codes: DevicePointer[DType.uint8]
    var scales: DevicePointer[DType.uint8]
    var blocks: UInt32
    """Blocks of K that there are; the last stage may have fewer than others."""

    comptime STAGE_BLOCKS = Self.layout.blocks
    comptime BLOCK_BYTES = RsStage[Self.layout].BLOCK_GRANULES * TILE_BYTES
    comptime SCALE_BYTES = RsStage[Self.layout].BLOCK_SCALES * TILE_ROWS
    """Bytes of the scales of a block of the tile."""

    @staticmethod
    @always_inline
    def of(w: Weights, tile: UInt32, num_blocks: UInt32, step: UInt32) -> Self:
        """Returns those of a tile from a step of K on, of so many blocks in all."""
        var before = min(step * UInt32(Self.STAGE_BLOCKS), num_blocks)
        var first = Int(tile) * Int(num_blocks) + Int(before)
        # Tensor scales of the tiles before.
        var behind = Int(tile) * (Self.layout.scale.row_bytes * TILE_ROWS)
        return Self(
            w.codes.unsafe_offset(first * Self.BLOCK_BYTES),
            w.scales.unsafe_offset(first * Self.SCALE_BYTES + behind),
            num_blocks - before,
        )

    @always_inline
    def copy(mut self, ring: RsRing[Self.layout], place: UInt32):
        """Starts the copies of a stage, which waits for them, to a tile's place; goes on."""
        comptime BLOCKS = Self.STAGE_BLOCKS
        var stage, count = ring.here(), min(self.blocks, UInt32(BLOCKS))
        arrive_expecting(ring.full(), count * UInt32(Self.BLOCK_BYTES + Self.SCALE_BYTES))
        copy_bulk(
            stage.codes().at(Coord(place, 0, 0, 0)),
            self.codes,
            count * UInt32(Self.BLOCK_BYTES),
            ring.full(),
        )
        copy_bulk(
            stage.scales().at(Coord(place, 0, 0, 0)),
            self.scales,
            count * UInt32(Self.SCALE_BYTES),
            ring.full(),
        )
        self.codes = self.codes.unsafe_offset(BLOCKS * Self.BLOCK_BYTES)
        self.scales = self.scales.unsafe_offset(BLOCKS * Self.SCALE_BYTES)
        self.blocks -= UInt32(BLOCKS)


@always_inline
def copy_tiles[
    layout: RsLayout, Product: RsProduct, //, is_persistent: Bool
](
    var ring: RsRing[layout],
    producer: UInt32,
    product: Product,
    scheduler: Product.Scheduler,
    rows: StagedRows,
    k: UInt32,
):
    """Copies a tile of 32 weight rows of all stages, and the first producer all rows of A.

    Those that are mapped have `copy_mapped_rows`. A thread calls it. The last tile of weight rows stands in
    for those past it.
    """
    comptime IS_LIST = Product.Scheduler.IS_LIST
    var num_filled = UInt32(0 if IS_LIST else ring.STAGES)
    var index = scheduler.first()
    while scheduler.has(index):
        var tile = scheduler.tile(index)
        index = scheduler.after(index)
        comptime if IS_LIST:
            if tile.rows == 0:
                break
            if tile.group == Int32(NO_EXPERT):
                continue
        var num_steps = tile.num_steps()
        var of_a = RowsOfA[layout].of[IS_LIST](rows, tile)
        var of_b = WeightTileSource[layout].of(
            product.weights(tile.group),
            product.weight_tiles(tile.column).tile(producer),
            k // UInt32(BLOCK),
            tile.first_step,
        )
        comptime if not IS_LIST:
            if num_filled > 0:
                fill_first_stages(ring, of_b, producer, num_steps)
        for step in range(num_steps):
            if step >= num_filled:
                wait_phase(ring.empty(), ring.parity)
                of_b.copy(ring, producer)
            comptime if layout.tiles == TILES:
                if producer == 0:
                    of_a.copy(ring)
            ring.advance()
        num_filled = 0
        comptime if not is_persistent:
            break


@always_inline
def copy_mapped_rows[layout: RsLayout, //](var ring: RsRing[layout], map: Int, tile: WorkTile):
    """Copies mapped rows of A of a tile's stages, by the address of their map; a thread calls it.

    In boxes of rows of which there are some: what is past the end of A is slow to copy.
    """
    comptime BOX_BYTES = UInt32(BOX_ROWS * ROW_BYTES)
    prefetch_map(map)
    wait_on_dependent_grids()
    var boxes = (tile.rows + UInt32(BOX_ROWS - 1)) // UInt32(BOX_ROWS)
    for step in range(tile.first_step, tile.end_step):
        wait_phase(ring.empty(), ring.parity)
        arrive_expecting(ring.full(), boxes * BOX_BYTES)
        for box in range(boxes):
            var row, at = tile.row + box * UInt32(BOX_ROWS), ring.here().base + box * BOX_BYTES
            copy_box(at, map, step * UInt32(ROW_BYTES), row, ring.full())
        ring.advance()


@always_inline
def fill_first_stages[
    layout: RsLayout, //
](
    var ring: RsRing[layout],
    mut of_b: WeightTileSource[layout],
    producer: UInt32,
    num_steps: UInt32,
):
    """Copies the weights of as many stages as there are, then waits for the grid before."""
    for _ in range(min(num_steps, UInt32(ring.STAGES))):
        of_b.copy(ring, producer)
        ring.advance()
    wait_on_dependent_grids()


@always_inline
def copy_weights[
    Product: RsProduct, //
](var ring: RsRing[_], producer: UInt32, product: Product, scheduler: Product.Scheduler, k: UInt32):
    """Copies a producer's stages of all tiles, zeros past the end of K; a warp calls it.

    The last tile of 32 weight rows stands in for those past it.
    """
    ring.stage = producer
    var until = producer
    var index = scheduler.first()
    while scheduler.has(index):
        var tile = scheduler.tile(index)
        index = scheduler.after(index)
        comptime if Product.Scheduler.IS_LIST:
            tile = tile.of_warp()
            if tile.rows == 0:
                break
            if tile.group == Int32(NO_EXPERT):
                continue
        copy_tile(
            ring,
            until,
            product.weights(tile.group),
            product.weight_tiles(tile.column),
            k // UInt32(BLOCK),
            tile.first_step,
            tile.end_step,
        )


@always_inline
def copy_tile[
    layout: RsLayout, //
](
    mut ring: RsRing[layout],
    mut until: UInt32,
    w: Weights,
    tiles: StageTiles,
    num_blocks: UInt32,
    first_step: UInt32,
    end_step: UInt32,
):
    """Copies a producer's stages of a tile of C; a warp calls it, a lane has 32 rows.

    So many stages are others' until its next one.
    """
    comptime BLOCK_BYTES = RsStage[layout].BLOCK_GRANULES * TILE_BYTES
    comptime IN_BULK = layout.rows >= BULK_ROWS
    var step = first_step + until
    var lane = lane_here()
    var of_scales, piece = divmod(lane, UInt32(32 // TILES))
    var block = step * UInt32(layout.blocks)
    var first = Int(tiles.first)
    comptime if IN_BULK:
        first += Int(tiles.behind(min(lane, UInt32(TILES - 1))))
    first = first * Int(num_blocks) + Int(block)
    var codes = w.codes.unsafe_offset(first * BLOCK_BYTES)
    first = Int(tiles.first) + Int(tiles.behind(of_scales))
    first = first * Int(num_blocks) + Int(block)
    var scales = w.scales.unsafe_offset(first * TILE_ROWS + LANE_BYTES * Int(piece))
    var left = num_blocks - block
    while step < end_step:
        wait_phase(ring.empty(), ring.parity)
        var stage = ring.here()
        var is_whole = True
        comptime if IN_BULK:
            var count = min(left, UInt32(layout.blocks))
            is_whole = count == UInt32(layout.blocks)
            if not is_whole:
                keep_branch()
                clear_codes_from(ring, count)
            if lane < UInt32(TILES):
                arrive_expecting(ring.full(), count * UInt32(BLOCK_BYTES))
                copy_bulk(
                    stage.codes().at(Coord(lane, 0, 0, 0)),
                    codes,
                    count * UInt32(BLOCK_BYTES),
                    ring.full(),
                )
        else:
            # Else compute-sanitizer does not see that who waits for the stage waits for copies.
            if lane == 0:
                arrive(ring.full())
            start_codes(ring, codes, num_blocks, left, tiles)
        start_copy(
            stage.scales().base + UInt32(LANE_BYTES) * lane,
            scales,
            left > piece // UInt32(TILE_ROWS // LANE_BYTES),
        )
        if is_whole:
            arrive_when_copied(ring.full())
        else:
            # What was stored is to be seen, too.
            wait_for_copies()
            arrive(ring.full())
        codes = codes.unsafe_offset(WEIGHT_PRODUCERS * layout.blocks * BLOCK_BYTES)
        scales = scales.unsafe_offset(WEIGHT_PRODUCERS * layout.blocks * TILE_ROWS)
        left -= UInt32(WEIGHT_PRODUCERS * layout.blocks)
        step += UInt32(WEIGHT_PRODUCERS)
        ring.advance[WEIGHT_PRODUCERS]()
    until = step - end_step


@always_inline
def start_codes[
    layout: RsLayout, //
](
    ring: RsRing[layout],
    codes: DevicePointer[DType.uint8],
    num_blocks: UInt32,
    left: UInt32,
    tiles: StageTiles,
):
    """Starts copies of the codes of a stage, zeros past those left; a warp calls it."""
    comptime GRANULES = RsStage[layout].BLOCK_GRANULES
    var lane_bytes = UInt32(LANE_BYTES) * lane_here()
    var to = ring.here().codes().base + lane_bytes
    comptime for tile in range(TILES):
        var before = Int(tiles.behind(UInt32(tile))) * Int(num_blocks)
        var source = codes.unsafe_offset(before * GRANULES * TILE_BYTES + Int(lane_bytes))
        comptime for i in range(layout.blocks * GRANULES):
            comptime at = (tile * layout.blocks * GRANULES + i) * TILE_BYTES
            start_copy(
                to + UInt32(at), source.unsafe_offset(i * TILE_BYTES), left > UInt32(i // GRANULES)
            )


@always_inline
def clear_codes_from[layout: RsLayout, //](ring: RsRing[layout], first: UInt32):
    """Makes zeros of codes of blocks from one on: bytes of others might be no numbers."""
    comptime GRANULES = RsStage[layout].BLOCK_GRANULES
    comptime for tile in range(TILES):
        for granule in range(first * UInt32(GRANULES), UInt32(layout.blocks * GRANULES)):
            store_quad(ring.here().codes().at(Coord(tile, granule, lane_here(), 0)), {0, 0, 0, 0})
    publish_stores()
    syncwarp()


@always_inline
def copy_rows[
    Scheduler: TileScheduler, layout: RsLayout, //
](var ring: RsRing[layout], scheduler: Scheduler, operands: Some[RsOperands]):
    """Copies the rows of A of all stages when they are prepared, and factors; a thread calls it."""
    var rows = operands.rows_of_a()
    var index = scheduler.first()
    var corner = Corner(0)
    comptime if not Scheduler.IS_LIST:
        # Divided out before.
        corner[0] = keep_here(SIMD[DType.uint32, 1](scheduler.corner(index)[0]))[0]
        wait_on_dependent_grids()
    while scheduler.has(index):
        var tile = scheduler.tile(index, corner)
        index = scheduler.after(index)
        corner = scheduler.corner(index)
        comptime if Scheduler.IS_LIST:
            if tile.rows == 0:
                break
            if tile.group == Int32(NO_EXPERT):
                continue
        var of_a = RowsOfA[layout].of[Scheduler.IS_LIST](rows, tile)
        for step in range(tile.first_step, tile.end_step):
            wait_phase(ring.empty(), ring.parity)
            of_a.copy(ring)
            comptime if layout.factor_bytes > 0:
                copy_bulk(
                    ring.here().factors().base,
                    operands.factors_of(tile.place, UInt32(step)).unsafe_bitcast[UInt8](),
                    of_a.count * UInt32(FACTOR_BYTES),
                    ring.full(),
                )
            ring.advance()
