"""Producers of an RS pipeline on FP8: rows of A as bytes, weights as codes under scales.

A thread copies rows of A, which lie as a stage does. Three warps in turns copy weights, every third
stage each: scales sixteen bytes at a time, codes too, or a lane those of a tile in bulk. Weights are no
kernel's before this one: their first stages are on the way while rows of A are prepared.

A producer waits for nothing but that a stage is empty: the stage's barrier is told of what comes. Even
so a thread that issues a copy, and says how many bytes come, takes some 340 clocks a stage, and 55 more
for each further copy, measured on an H200; two warp groups multiply a stage of 128 rows in 535.
"""

from layout import Coord
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from max.gpu.sync import syncwarp

from ...launch.queue import DevicePointer
from ...simt.arguments import Weights
from ...simt.instructions import start_copy, wait_for_copies
from ...simt.routing import NO_EXPERT
from ..experts.groups import padded
from ..instructions.shared_memory import (
    arrive,
    arrive_expecting,
    arrive_when_copied,
    copy_bulk,
    publish_stores,
    store_quad,
    wait_phase,
)
from ..instructions.warp import keep_branch, keep_here, lane_here
from ..layout import BLOCK, TILE_BYTES, TILE_ROWS
from ..gemm_operands import RsOperands
from ..product import RsProduct, WeightTiles
from ..scheduler import Corner, TileScheduler
from ..shapes import (
    BULK_ROWS,
    BYTE_STEP_BLOCKS as STAGE_BLOCKS,
    FACTOR_BYTES,
    LANE_BYTES,
    ROW_BYTES,
    RsLayout,
    TILES,
)
from .stages import RsRing, RsStage

comptime WEIGHT_PRODUCERS = 3
"""Warps that copy weights: with one, products take 4 to 7 % longer, measured."""


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
    tiles: WeightTiles,
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
    var block = step * UInt32(STAGE_BLOCKS)
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
            var count = min(left, UInt32(STAGE_BLOCKS))
            is_whole = count == UInt32(STAGE_BLOCKS)
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
        codes = codes.unsafe_offset(WEIGHT_PRODUCERS * STAGE_BLOCKS * BLOCK_BYTES)
        scales = scales.unsafe_offset(WEIGHT_PRODUCERS * STAGE_BLOCKS * TILE_ROWS)
        left -= UInt32(WEIGHT_PRODUCERS * STAGE_BLOCKS)
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
    tiles: WeightTiles,
):
    """Starts copies of the codes of a stage, zeros past those left; a warp calls it."""
    comptime GRANULES = RsStage[layout].BLOCK_GRANULES
    var lane_bytes = UInt32(LANE_BYTES) * lane_here()
    var to = ring.here().codes().base + lane_bytes
    comptime for tile in range(TILES):
        var before = Int(tiles.behind(UInt32(tile))) * Int(num_blocks)
        var source = codes.unsafe_offset(before * GRANULES * TILE_BYTES + Int(lane_bytes))
        comptime for i in range(STAGE_BLOCKS * GRANULES):
            comptime at = (tile * STAGE_BLOCKS * GRANULES + i) * TILE_BYTES
            start_copy(
                to + UInt32(at), source.unsafe_offset(i * TILE_BYTES), left > UInt32(i // GRANULES)
            )


@always_inline
def clear_codes_from[layout: RsLayout, //](ring: RsRing[layout], first: UInt32):
    """Makes zeros of codes of blocks from one on: bytes of others might be no numbers."""
    comptime GRANULES = RsStage[layout].BLOCK_GRANULES
    comptime for tile in range(TILES):
        for granule in range(first * UInt32(GRANULES), UInt32(STAGE_BLOCKS * GRANULES)):
            store_quad(ring.here().codes().at(Coord(tile, granule, lane_here(), 0)), {0, 0, 0, 0})
    publish_stores()
    syncwarp()


@always_inline
def copy_rows[
    Scheduler: TileScheduler, layout: RsLayout, //
](var ring: RsRing[layout], scheduler: Scheduler, operands: Some[RsOperands]):
    """Copies the rows of A of all stages when they are prepared, and factors; a thread calls it."""
    comptime OF_ROW = ROW_BYTES + layout.factor_bytes
    var rows_of_a = operands.tokens()
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
        var rows = UInt32(layout.rows)
        var source: DevicePointer[DType.uint8]
        var step_bytes = layout.rows * ROW_BYTES
        comptime if Scheduler.IS_LIST:
            if tile.rows == 0:
                break
            if tile.group == Int32(NO_EXPERT):
                continue
            rows = padded(tile.rows)
            source = rows_of_a.part(tile.place, 0, 0)
            step_bytes = Int(rows_of_a.stage_bytes)
        else:
            source = rows_of_a.stage(tile.place // UInt32(layout.rows), tile.first_step)
        for step in range(tile.first_step, tile.end_step):
            wait_phase(ring.empty(), ring.parity)
            arrive_expecting(ring.full(), rows * UInt32(OF_ROW))
            copy_bulk(ring.here().base, source, rows * UInt32(ROW_BYTES), ring.full())
            comptime if layout.factor_bytes > 0:
                copy_bulk(
                    ring.here().factors().base,
                    operands.factors_of(tile.place, UInt32(step)).unsafe_bitcast[UInt8](),
                    rows * UInt32(FACTOR_BYTES),
                    ring.full(),
                )
            source = source.unsafe_offset(step_bytes)
            ring.advance()
