"""The warp-specialised GEMM whose weights become bfloat16 in registers: dense, and grouped by a list.

A CTA computes 128 columns of C, or 64 hidden numbers of gates and ups, for the rows of its tile:

    4 producer warps     a thread each starts the copies of stages: 64 steps of K of A and weights
    8 or 16 consumers    each warp decodes 16 weight rows, C^T += weights @ A^T; the second eight take
                         the odd stages: with few rows decoding takes the time, not the tensor cores

    setting      tiles of a CTA                  K of a tile                     epilogue
    persistent   one after the other, or         all, or its share of all        each warp stores its sums
                 stream-K                        tiles' stages, then a fix-up
    split_k      one                             ranks of a cluster, parities    reduction over both
    grouped      those of a list                 as `persistent`, or by parities as these, or with a gate

A tile of `split_k` may have 64 columns, and consumers twice the registers: one of four decodes half as
much, and rows of A that are bfloat16 come from where they are, by a tensor map. Nothing is prepared.

Weights are MXFP4, or NVFP4 under activations that are kept, or NVFP4 too: then sums meet tensor
scales before the epilogue. Stages go on from one tile to the next: those of the next one fill
during the epilogue. A is ready as bfloat16, and read again as it came in the fallback, for what
bfloat16 cannot hold:

    product    stages of
    dense      [tile of rows, step], whole tiles
    grouped    [step, place], places of a list; a tile has no more rows than its group
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier, syncwarp
from std.math import align_up
from std.utils import StaticTuple

from ..launch.grid import Workspace
from ..launch.queue import DevicePointer, Queue, device_pointer
from ..launch.tensor_map import TensorMap
from ..numbers.scales import Scale
from ..problem import Problem
from ..routing.slots import NO_EXPERT
from ..simt.arguments import Activations, Result, Weights
from ..simt.views import flat_of
from .decode.bf16 import GatePairs, HalfTile, OrderedHalfTile, RowTensorScales, WeightReader
from .decode.bf16 import first_row_of
from .gemm_operands import StagedRows, kept_rows
from .epilogue.fallback import Fallback, compute_exactly
from .epilogue.reduce import Cluster, Reduction, flag_of, store_zeros
from .stream_k import FixUp
from .target import Part, TileOfC
from .epilogue.warp_rows import WARP_HIDDEN, room_of, store_hidden_rows, store_warp_rows
from .host.gemm import Pair, grid_of_rs_bf16
from .host.moe import HIDDEN
from .host.workspace import LANE_CHUNKS, PADDED, RoundedPlaces, bf16_bytes, flags_of_row
from .host.workspace import is_shared, workspace_of
from .instructions.shared_memory import load_word, shared_base
from .instructions.warp import any_lane, keep_branch, keep_here, lane_here
from .instructions.wgmma import Accumulator, limit_registers
from .layout import BLOCK, TILE_ROWS
from .mainloop.rs_bf16 import RsWarp
from .pipeline.producers import copy_mapped_rows, copy_tiles
from .pipeline.stages import RsRing
from .plan import NARROW_COLUMNS, Plan
from .prepare.bf16 import prepare_bf16, row_flags
from .prepare.kept import RoundedNumbers
from .prepare.kernel import TilesOfB, launch_prepare
from .prepare.source import SourceRows
from .product import DenseProduct, Gating, RsProduct
from .scheduler import Schedule, WorkTile
from .shapes import (
    BOX_ROWS,
    FACTORED_ROWS,
    GROUPS,
    NUMBER_BYTES,
    RS_TILE_HEIGHTS,
    RsConfig,
    STEP_BLOCKS,
    TILE_HEIGHTS,
    WARP_ROWS,
    num_steps_of,
)


@fieldwise_init
struct Outcome(TrivialRegisterPassable):
    """What a warp knows of a tile in the end."""

    var is_whole: Bool
    """Whether its sums are those of all of K: of stream-K, the last CTA of a tile has them."""
    var overflows: Bool
    """Whether bfloat16 could not hold weights."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())),
    `nvvm.minctasm`=SIMDLength(1),
)
def gemm_rs_bf16[
    config: RsConfig, Product: RsProduct
](
    rows: StagedRows,
    flags: DevicePointer[DType.uint8],
    a: Activations,
    w: Product.Matrices,
    c: Product.Output,
    order: Product.Order,
    cluster: UInt32,
):
    """Computes the tiles of C that the scheduler gives to this CTA.

    Flags are those of rows of A that bfloat16 cannot hold. A cluster has so many CTAs, which split K, if
    they have one tile each.
    """
    comptime of_grid = config.under(Scale.E8M0, False).shared_bytes()
    comptime assert config.shared_bytes() == of_grid, "grids are the same, whatever the scales"
    multiply_tiles[config, Product](rows, 0, flags, a, w, c, order, cluster)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())),
    `nvvm.minctasm`=SIMDLength(1),
)
@__llvm_arg_metadata(rows, `nvvm.grid_constant`)
def gemm_rs_bf16_mapped[
    config: RsConfig, Product: RsProduct
](
    rows: TensorMap,
    a: Activations,
    w: Product.Matrices,
    c: Product.Output,
    order: Product.Order,
    cluster: UInt32,
):
    """The same of rows of A that are kept, and mapped where they are."""
    var nothing = device_pointer[DType.uint8](0)
    var map = Int(Pointer(to=rows))
    multiply_tiles[config, Product](
        StagedRows(nothing, 0, 0, 0), map, nothing, a, w, c, order, cluster
    )


@always_inline
def multiply_tiles[
    config: RsConfig, Product: RsProduct
](
    rows: StagedRows,
    map: Int,
    flags: DevicePointer[DType.uint8],
    a: Activations,
    w: Product.Matrices,
    c: Product.Output,
    order: Product.Order,
    cluster: UInt32,
):
    """Computes the tiles of this CTA, of rows in a workspace or by the address of their map."""
    var product = Product(w, c, UInt32(1) if config.is_persistent else cluster, order)
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var ring = RsRing[config.layout()](base, 0, 0)
    if thread_idx.x == 0:
        ring.init_barriers()
    barrier()
    comptime if Product.Scheduler.IS_LIST:
        # The list is another kernel's.
        wait_on_dependent_grids()
        launch_dependent_grids()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    comptime CONSUMERS = UInt32(config.consumer_warps())
    var scheduler = product.scheduler(num_steps_of(UInt32(a.k)))
    if warp >= CONSUMERS:
        limit_registers["dec", config.producer_registers]()
        if thread_idx.x % 32 == 0:
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            ring.parity = 1
            var producer = warp - CONSUMERS
            comptime if config.maps_rows():
                comptime TILES = UInt32(config.columns // TILE_ROWS)
                if producer == TILES:
                    copy_mapped_rows(ring, map, scheduler.tile(scheduler.first()))
                if producer >= TILES:
                    return
            copy_tiles[config.is_persistent](ring, producer, product, scheduler, rows, UInt32(a.k))
    else:
        limit_registers["inc", config.consumer_registers]()
        BF16Consumer[config, Product](flags, product, scheduler, a, warp).consume(ring)


@fieldwise_init
struct BF16Consumer[config: RsConfig, Product: RsProduct](TrivialRegisterPassable):
    """A warp that multiplies, and what it knows of all tiles."""

    var flags: DevicePointer[DType.uint8]
    """Which rows bfloat16 cannot hold: [row, CTA of `prepare_bf16`], or [place]."""
    var product: Self.Product
    var scheduler: Self.Product.Scheduler
    var a: Activations
    """A as it came, for the fallback."""
    var warp: UInt32

    comptime IS_LIST = Self.Product.Scheduler.IS_LIST
    comptime IS_GATED = Self.Product.GATING != Gating.NONE
    comptime HAS_FALLBACK = Self.config.scale == Scale.E8M0
    """Whether bfloat16 may not hold something: under E4M3 scales, activations are kept."""
    comptime Pipeline = RsRing[Self.config.layout()]

    @always_inline
    def consume(self, var ring: Self.Pipeline):
        """Multiplies and stores all tiles."""
        comptime WIDTHS = Self.Product.WIDTHS
        comptime if not Self.IS_LIST:
            wait_on_dependent_grids()
        var next = self.scheduler.first()
        while self.scheduler.has(next):
            var index, tile = next, self.scheduler.tile(next)
            next = self.scheduler.after(index)
            var rows = tile.rows
            comptime if Self.IS_LIST:
                # Loops that some lanes may leave alone keep nothing in uniform registers.
                rows = broadcast(rows)
                comptime if Self.config.k_splits > 1:
                    tile.rows = rows
                if rows == 0:
                    break
                if broadcast(tile.group) == Int32(NO_EXPERT):
                    comptime WARPS = Self.config.consumer_warps()
                    store_zeros[WARPS](tile.column, self.product.result(tile))
                    continue
            var may_be_marked = False
            comptime if Self.HAS_FALLBACK:
                may_be_marked = self.any_mark(tile)
            var outcome = Outcome(True, False)
            comptime for i in range(len(WIDTHS)):
                comptime width = WIDTHS[i]
                comptime fewer = WIDTHS[i - 1] if i > 0 else 0
                comptime if len(WIDTHS) == 1:
                    var is_last = not self.scheduler.has(next)
                    outcome = self.multiply_tile[width](ring, index, tile, is_last)
                else:
                    if UInt32(fewer) < rows and rows <= UInt32(width):
                        keep_branch()
                        outcome = self.multiply_tile[width](ring, index, tile, False)
            if not outcome.is_whole:
                continue
            comptime if len(WIDTHS) > 1:
                # Found behind the branches: ptxas takes what they choose for divergent.
                outcome.overflows = any_lane(load_word(flag_of(ring.base, self.warp)) != 0)
            comptime if Self.HAS_FALLBACK:
                if outcome.overflows or any_lane(may_be_marked):
                    keep_branch()
                    self.fall_back(tile, rows, outcome.overflows)
            comptime if not Self.config.is_persistent:
                break

    @always_inline
    def output(self, tile: WorkTile) -> TileOfC:
        """Returns where a tile goes: the rows of a list are a result of their own."""
        return TileOfC(
            self.product.result(tile),
            UInt32(0) if Self.IS_LIST else tile.row,
            Part(tile.column, self.product.half()),
            self.product.gate(),
        )

    @always_inline
    def are_marked[
        count: Int
    ](self, tile: WorkTile, rows: SIMD[DType.uint32, count]) -> SIMD[DType.bool, count]:
        """Says which of some rows of a tile bfloat16 cannot hold; kept numbers it can."""
        var found = SIMD[DType.uint8, count](0)
        if not self.a.is_kept():
            comptime if Self.IS_LIST:
                comptime for i in range(count):
                    var place = tile.place + min(rows[i], tile.rows - 1)
                    found[i] = flat_of(self.flags)[Int(place)]
            else:
                # All loads are on the way at once; rows past the end repeat the last one.
                var last = self.product.result(tile).rows - 1
                var k = UInt32(self.a.k)
                var flags = row_flags(self.flags, k)
                for flag in range(Int(flags_of_row(k))):
                    comptime for i in range(count):
                        found[i] |= flags[Int(min(tile.row + rows[i], last)), flag]
        return found.ne(0)

    @always_inline
    def any_mark(self, tile: WorkTile) -> Bool:
        """Says, in some lane, whether bfloat16 cannot hold a row of a tile."""
        # Loaded before the products: nobody waits for them.
        comptime LOADS = max(Self.config.rows // 32, 1)
        var rows = SIMD[DType.uint32, LOADS](lane_here())
        comptime for i in range(LOADS):
            rows[i] += UInt32(32 * i)
        return self.are_marked[LOADS](tile, rows).reduce_or()

    @always_inline
    def multiply_tile[
        width: Int
    ](self, mut ring: Self.Pipeline, index: UInt32, tile: WorkTile, is_last: Bool) -> Outcome:
        """Multiplies and stores a tile of up to `width` rows."""
        var sums = Accumulator[width](uninitialized=True)
        var flag, to = flag_of(ring.base, self.warp), self.output(tile)
        var num_steps, all_blocks = tile.num_steps(), UInt32(self.a.k) // UInt32(BLOCK)
        var num_blocks = all_blocks - min(tile.first_step * UInt32(STEP_BLOCKS), all_blocks)
        comptime if Self.config.k_splits > 1:
            var mine, parity = ring, self.warp // UInt32(Self.config.readers())
            comptime if Self.config.maps_rows():
                var half = OrderedHalfTile.of(self.warp)
                self.multiply(
                    RsWarp[Self.config](parity, num_steps, num_blocks, half, flag), tile, mine, sums
                )
            else:
                var half = HalfTile(self.warp)
                self.multiply(
                    RsWarp[Self.config](parity, num_steps, num_blocks, half, flag), tile, mine, sums
                )
            comptime if Self.config.is_persistent:
                ring.advance_by(num_steps)
        elif Self.IS_GATED:
            var pairs = GatePairs.of(self.warp, to.part.half == 0)
            self.multiply(
                RsWarp[Self.config](0, num_steps, num_blocks, pairs, flag), tile, ring, sums
            )
        else:
            var half = HalfTile(self.warp)
            self.multiply(
                RsWarp[Self.config](0, num_steps, num_blocks, half, flag), tile, ring, sums
            )
        comptime if not Self.IS_LIST:
            if is_last:
                launch_dependent_grids()

        comptime if Self.config.k_splits > 1:
            var cluster = Cluster.here(self.product.ranks())
            var reduction = Reduction[Self.config, Self.IS_GATED](ring.base, cluster)
            return Outcome(True, reduction.store(sums, self.warp, to))
        var outcome = Outcome(True, False)
        comptime if not Self.IS_LIST:
            # All lanes look before the flag is cleared for the next tile.
            outcome.overflows = any_lane(load_word(flag) != 0)
            comptime if Self.Product.Scheduler.IS_STREAM_K:
                if self.scheduler.is_part(tile):
                    keep_branch()
                    var fix_up = rebind[FixUp[width]](self.product.fix_up())
                    var found = fix_up.leave(
                        self.scheduler, index, ring.base, sums, outcome.overflows
                    )
                    outcome.is_whole = found.is_last
                    outcome.overflows |= found.is_marked
        if not outcome.is_whole:
            return outcome
        var column = self.columns(to.part.first_column)[0]
        comptime if Self.IS_GATED:
            store_hidden_rows(sums, room_of(ring.base, self.warp), to, column)
        else:
            store_warp_rows(sums, room_of(ring.base, self.warp), to, column)
        return outcome

    @always_inline
    def multiply[
        Reader: WeightReader, rows: Int, //
    ](
        self,
        of_warp: RsWarp[Self.config, Reader],
        tile: WorkTile,
        mut ring: Self.Pipeline,
        mut sums: Accumulator[rows],
    ):
        """Multiplies the stages of a tile; sums meet tensor scales, if there are any."""
        comptime if Self.config.scale == Scale.E4M3:
            var tiles = self.product.weight_tiles(tile.column)
            var weights = self.product.weights(tile.group)
            var scales = RowTensorScales[Reader].load(
                of_warp.reader, weights, tiles, UInt32(self.a.k)
            )
            of_warp.multiply(ring, sums)
            comptime if Self.config.has_factors:
                # As ptxas spills the least: nothing, or 20 bytes of grouped hidden numbers.
                comptime IS_WHOLE = Self.IS_LIST and not Self.IS_GATED
                comptime AT_ONCE = rows if IS_WHOLE else min(rows, FACTORED_ROWS)
                var last = tile.place + tile.rows - 1
                scales.apply_both[AT_ONCE](self.a.factors(), tile.place, last, sums)
            else:
                scales.apply(sums)
        else:
            of_warp.multiply(ring, sums)

    @always_inline
    def columns(self, first: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the first column of C that a warp stores, and the one behind its last."""
        comptime if Self.config.k_splits > 1:
            return (first, first + UInt32(HIDDEN if Self.IS_GATED else Self.config.columns))
        elif Self.IS_GATED:
            var column = first + self.warp * UInt32(WARP_HIDDEN)
            return (column, column + UInt32(WARP_HIDDEN))
        else:
            var column = first + first_row_of(self.warp)
            return (column, column + UInt32(WARP_ROWS))

    @always_inline
    def fall_back(self, tile: WorkTile, rows: UInt32, overflows: Bool):
        """Stores what this warp stored once more, where bfloat16 cannot hold an operand."""
        var to = self.output(tile)
        var columns = self.columns(to.part.first_column)
        var first, step, end = UInt32(0), UInt32(1), rows
        comptime if Self.config.k_splits > 1:
            first = UInt32(block_idx.x) % self.product.ranks() + self.product.ranks() * self.warp
            step = self.product.ranks() * UInt32(Self.config.consumer_warps())
        comptime if not Self.IS_LIST:
            end = min(rows, to.result.rows - to.first_row)
        for row in range(first, end, step):
            var is_marked = self.are_marked[1](tile, UInt32(row))[0]
            if overflows or any_lane(is_marked):
                self.store_exactly(tile, UInt32(row), columns[0], columns[1], to)

    @always_inline
    def store_exactly(self, tile: WorkTile, row: UInt32, first: UInt32, end: UInt32, to: TileOfC):
        """Stores columns of a tile's row as float64 has them."""
        var w = self.product.weights(tile.group)
        comptime if Self.IS_LIST:
            Fallback(self.a, w, 0, 0).store[Self.IS_GATED](
                self.product.source(tile, row), to.part.half, to.gate, to.result, row, first, end
            )
        else:
            # The sums that other lanes stored before are not to overtake these.
            syncwarp()
            var lane = lane_here()
            for column in range(first, end):
                compute_exactly(self.a, w, to.result, tile.row + row, UInt32(column), lane)


def launch[
    scale: Scale, has_factors: Bool = False
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Expands the activations, and multiplies; stream-K if stages are few enough for it.

    Rows of NVFP4 activations have factors.
    """
    comptime for rows in TILE_HEIGHTS:
        if plan.has_split_k_consumers() and plan.rows == rows:
            comptime CONFIG = RsConfig.split_k(rows).under(scale, has_factors)
            return _launch[CONFIG, Schedule.CEILED_CLUSTERS](problem, plan, queue)
    if not is_shared(problem.m, problem.n, problem.k, plan):
        comptime PLAN = Plan.PERSISTENT_RS_BF16
        comptime CONFIG = RsConfig.persistent(PLAN.rows).under(scale, has_factors)
        return _launch[CONFIG, Schedule.CLUSTERS](problem, PLAN, queue)
    comptime for rows in RS_TILE_HEIGHTS:
        if plan.rows == rows:
            comptime CONFIG = RsConfig.persistent(rows).under(scale, has_factors)
            return _launch[CONFIG, Schedule.STREAM_K](problem, plan, queue)
    raise Error(String("plan: got ", plan.rows, " rows of a tile, expected 64, 128 or 256"))


def launch_mapped(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Multiplies rows of A where they are: bfloat16 activations that are kept, MXFP4 weights."""
    if Pair.of(problem) != Pair.KEPT:
        raise Error("plan: tiles of 64 columns are for bfloat16 activations that are kept")
    comptime for rows in RS_TILE_HEIGHTS:
        comptime CONFIG = RsConfig.split_k(rows, NARROW_COLUMNS)
        comptime Product = DenseProduct[rows, Schedule.CEILED_CLUSTERS, NARROW_COLUMNS]
        if plan.rows == rows:
            queue.launch[gemm_rs_bf16_mapped[CONFIG, Product]](
                grid_of_rs_bf16(problem.m, problem.n, problem.k, plan),
                queue.tensor_map(kept_rows(problem, problem.left, BOX_ROWS)),
                Activations(problem),
                Weights(problem),
                Result(problem),
                FixUp[rows].at(0, 0),
                UInt32(plan.ranks),
            )


def _launch[
    config: RsConfig, schedule: Schedule
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with one setting."""
    var m, n, k = problem.m, problem.n, problem.k
    var space = workspace_of(m, n, k, plan)
    comptime if config.has_factors:
        space = Workspace(0, RoundedPlaces.of(m, n, k, plan).num_bytes)
    var workspace = queue.workspace(space)
    var tiles = plan.tiles(m, n).num_tiles() if schedule == Schedule.STREAM_K else 0
    var fix_up_at = workspace + align_up(bf16_bytes(m, k), PADDED)
    var flags, a = device_pointer[DType.uint8](0), Activations(problem)
    comptime if config.has_factors:
        var places = RoundedPlaces.of(m, n, k, plan)
        var to = RoundedNumbers[True].at(places, workspace, m, k, config.rows)
        var counters = device_pointer[DType.uint32](fix_up_at)
        var source = SourceRows[False].of(m, k, LANE_CHUNKS)
        launch_prepare(a, TilesOfB.none(), to, source, queue, counters, GROUPS * tiles)
        a = Activations(to.left(), k)
    else:
        flags = prepare_bf16(problem, config.rows, workspace, fix_up_at, GROUPS * tiles, queue)
    queue.launch[gemm_rs_bf16[config, DenseProduct[config.rows, schedule]]](
        grid_of_rs_bf16(m, n, k, plan),
        StagedRows.at(workspace, NUMBER_BYTES * k, m, config.rows),
        flags,
        a,
        Weights(problem),
        Result(problem),
        FixUp[config.rows].at(tiles, fix_up_at),
        UInt32(plan.ranks),
    )
