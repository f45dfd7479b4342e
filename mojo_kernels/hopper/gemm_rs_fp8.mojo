"""The FP8 product whose weights are decoded in registers: dense, and of groups of rows.

    4 producers    three warps copy codes and scales, every third stage each; of the last one a thread
                   copies rows of A, see `pipeline.producers`
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ A^T, see `mainloop.rs_fp8`

A tile of C has 128 columns, or 64 hidden numbers. That is for so few rows of A that a weight is decoded
a few times only: `gemm_ss` has to have all weights prepared before. The ring goes on from one tile to
the next: the next tile's stages fill during the epilogue.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ..launch.grid import Grid
from ..launch.queue import Queue
from ..problem import Problem
from ..routing.slots import NO_EXPERT
from ..simt.arguments import Activations, Result, Weights
from .decode.fp8 import Decoder, LaneReader, LaneRows
from .epilogue.fallback import TileMarks, store_marked
from .epilogue.reduce import RankRows, init_cluster, store_cluster, store_zeros
from .epilogue.rs_fp8 import LaneFactors, store_tile
from .stream_k import FixUp
from .instructions.shared_memory import shared_base
from .instructions.warp import keep_branch, keep_here, lane_here
from .instructions.wgmma import Accumulator, MAX_INSTRUCTION_ROWS, limit_registers
from .layout import TILE_ROWS
from .gemm_operands import RsOperands
from .mainloop.rs_fp8 import multiply_stages
from .pipeline.producers import WEIGHT_PRODUCERS, copy_rows, copy_weights
from .instructions.named_barriers import begin_ping_pong, end_ping_pong
from .pipeline.stages import RsRing
from .product import DenseProduct, RsProduct
from .scheduler import Schedule, WorkTile
from .shapes import COLUMNS, CONSUMER_WARPS, RsLayout, THREADS, WARPS, WIDE_ROWS

comptime layout_of[Operands: RsOperands, rows: Int] = RsLayout.fp8(
    rows, Operands.CODE_BITS, Operands.SCALES_STAGES
)
"""The stages of a product."""


@fieldwise_init
struct Registers(TrivialRegisterPassable):
    """Registers of a thread, by role: consumers have more than their even share."""

    var consumer: Int
    var producer: Int

    @staticmethod
    def of(rows: Int) -> Self:
        """Returns those for tiles of so many rows of A."""
        return Self(240, 24) if rows == WIDE_ROWS else Self(232, 40)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def gemm_rs_fp8[
    Operands: RsOperands, Product: RsProduct
](operands: Operands, a: Activations, product: Product):
    """Computes tiles of C, one after the other; `a` is read again for the fallback."""
    comptime REGISTERS = Registers.of(Product.ROWS)
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var ring = RsRing[layout_of[Operands, Product.ROWS]](base, 0, 0)
    if thread_idx.x == 0:
        ring.init_barriers()
        comptime if not Product.Scheduler.IS_LIST:
            init_cluster(base)
    barrier()
    comptime if Product.Scheduler.IS_LIST:
        wait_on_dependent_grids()
        launch_dependent_grids()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var scheduler = product.scheduler(operands.num_steps())
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", REGISTERS.producer]()
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        ring.parity = 1
        var producer = warp - UInt32(CONSUMER_WARPS)
        if producer < UInt32(WEIGHT_PRODUCERS):
            copy_weights(ring, producer, product, scheduler, UInt32(a.k))
        elif lane_here() == 0:
            copy_rows(ring, scheduler, operands)
    else:
        limit_registers["inc", REGISTERS.consumer]()
        FP8Consumer(operands, a, product, scheduler, warp).consume(ring)


@fieldwise_init
struct FP8Consumer[Operands: RsOperands, Product: RsProduct](TrivialRegisterPassable):
    """A warp that multiplies, and what it knows of all tiles."""

    var operands: Self.Operands
    var a: Activations
    """A as it came, for the fallback."""
    var product: Self.Product
    var scheduler: Self.Product.Scheduler
    var warp: UInt32

    comptime LAYOUT = layout_of[Self.Operands, Self.Product.ROWS]
    comptime Pipeline = RsRing[Self.LAYOUT]
    comptime IS_LIST = Self.Product.Scheduler.IS_LIST
    comptime IS_STREAM_K = Self.Product.Scheduler.IS_STREAM_K

    @always_inline
    def consume(self, var ring: Self.Pipeline):
        """Multiplies and stores all tiles."""
        comptime WIDTHS = Self.Product.WIDTHS
        var group = self.warp // UInt32(WARPS)
        var index = self.scheduler.first()
        var corner = self.scheduler.corner(index)
        comptime if not Self.IS_LIST:
            # Divided out before rows are waited for.
            corner = keep_here(corner)
            wait_on_dependent_grids()
        comptime if Self.Operands.SCALES_STAGES:
            begin_ping_pong(group)
        while self.scheduler.has(index):
            var tile_index, tile = index, self.scheduler.tile(index, corner)
            index = self.scheduler.after(index)
            corner = self.scheduler.corner(index)
            comptime if Self.IS_LIST:
                tile = tile.of_warp()
                if tile.rows == 0:
                    break
                if tile.group == Int32(NO_EXPERT):
                    store_zeros[CONSUMER_WARPS](tile.column, self.product.result(tile))
                    continue
            var is_last = not self.scheduler.has(index)
            comptime for i in range(len(WIDTHS)):
                comptime width = WIDTHS[i]
                comptime if len(WIDTHS) == 1:
                    self.multiply_tile[width](ring, tile_index, tile, is_last)
                else:
                    comptime fewer = WIDTHS[i - 1] if i > 0 else 0
                    if UInt32(fewer) < tile.rows and tile.rows <= UInt32(width):
                        keep_branch()
                        self.multiply_tile[width](ring, tile_index, tile, is_last)
        comptime if Self.Operands.SCALES_STAGES:
            end_ping_pong(group)

    @always_inline
    def multiply_tile[
        width: Int
    ](self, mut ring: Self.Pipeline, index: UInt32, tile: WorkTile, is_last: Bool):
        """Multiplies and stores a tile of up to `width` rows."""
        comptime SPLITS_K = not Self.IS_LIST and not Self.IS_STREAM_K and width != WIDE_ROWS
        comptime GATING = Self.Product.GATING
        var operands, product, warp = self.operands, self.product, self.warp
        # What is known of the tile, loaded before the products: nobody waits for it.
        var result = product.result(tile)
        var num_weights = product.num_weights()
        var first = UInt32(0)
        comptime if Self.IS_LIST:
            # Tables of weight rows are in whole tiles, those of a group behind another's.
            num_weights = (
                (num_weights + UInt32(TILE_ROWS - 1)) // UInt32(TILE_ROWS) * UInt32(TILE_ROWS)
            )
            first = UInt32(tile.group) * num_weights
        var mine = LaneRows.of[GATING](tile.column, product.half(), warp)
        var there = mine.within(num_weights - 1)
        there.first, there.second = there.first + first, there.second + first
        var decoder = Decoder[Self.Operands, Self.LAYOUT, GATING](
            operands.rows_at(there.first, there.second, there.scale_place),
            LaneReader[Self.LAYOUT, GATING].of_warp(warp),
        )
        var factors = LaneFactors[width].load(operands, tile, there)
        var own = RankRows.load(tile, product.ranks() if SPLITS_K else UInt32(1), operands, result)
        var marks = TileMarks.load[width](operands, product, tile, first, warp // UInt32(WARPS))

        # Of the widest tiles of a list sums leave no registers to look ahead.
        comptime LOOKS_AHEAD = not Self.IS_LIST or width < Self.Product.ROWS
        var partial = Accumulator[min(width, MAX_INSTRUCTION_ROWS)](fill=0)
        var sums = Accumulator[width](fill=0)
        multiply_stages[LOOKS_AHEAD](
            decoder, warp // UInt32(WARPS), ring, partial, sums, tile.num_steps()
        )
        comptime if not Self.IS_LIST:
            if is_last:
                launch_dependent_grids()

        comptime if Self.IS_STREAM_K:
            if self.scheduler.is_part(tile):
                keep_branch()
                var fix_up = rebind[FixUp[width]](product.fix_up())
                if not fix_up.leave(self.scheduler, index, ring.base, sums).is_last:
                    return
        var stored = tile
        if SPLITS_K and own.cluster.ranks > 1:
            keep_branch()
            store_cluster(sums, ring.base, mine.first % UInt32(COLUMNS), own, operands, result)
            stored = own.of(tile)
        else:
            store_tile(sums, factors, operands, product, tile, mine, ring.base, warp, result)
        if marks.any():
            keep_branch()
            store_marked(operands, self.a, product, marks, stored, result, warp)


def launch[
    Operands: RsOperands, rows: Int, is_stream_k: Bool = False
](
    operands: Operands,
    grid: Grid,
    problem: Problem,
    ranks: Int,
    mut queue: Some[Queue],
    fix_up: FixUp[rows] = FixUp[rows].at(0, 0),
) raises:
    """Launches a dense product of operands that are prepared; the fix-up is that of stream-K."""
    comptime Product = DenseProduct[rows, Schedule.STREAM_K if is_stream_k else Schedule.CLUSTERS]
    queue.launch[gemm_rs_fp8[Operands, Product]](
        grid,
        operands,
        Activations(problem),
        Product(Weights(problem), Result(problem), UInt32(ranks), fix_up),
    )
