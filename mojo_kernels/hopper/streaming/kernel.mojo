"""Streaming GEMM for small M: every warp streams 32 rows of weights at a time through its registers.

Dense: a CTA has a tile of C of up to 64 rows, its warps and the CTAs of its cluster split K:

    cluster rank        0             1          ...
    blocks of K         0 .. n-1      n .. 2n-1
    stage               rows of A, quantized once for the CTA, in fragment order
    multiply            codes -> bfloat16 pairs -> m16n8k16, several loads ahead
    reduce              each CTA over its warps, then its share of the tile over the cluster

Grouped: persistent CTAs have tiles of up to 24 rows of one expert, those of a row tile in a row:

    schedule            which rows go to which expert; every CTA for itself
    stage               the rows of a row tile, for all its tiles
    multiply            eight warps split the K of a tile of weights; loads of the next tile are on
                        the way before this one ends
    reduce              some warps, while the others go on with the next tile

Weights are MXFP4, or NVFP4 under activations that are kept, or NVFP4 too: then a warp's sums meet
tensor scales before they are reduced. Dense is grouped with one group and one tile; `cta` has what
differs. A layer of experts launches a product with a gate, one without, and the sums of slots.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from std.math import ceildiv
from std.utils import StaticTuple

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue
from ...numbers.gates import Gate
from ...numbers.scales import Scale
from ...problem import Left, Problem
from ...simt.arguments import Activations, ExpertWeights, Result
from ...simt.host import FLOAT32, is_left_aligned
from ...tiles import in_registers
from ..target import Target, launch_activation
from ..host import gemm, moe
from ..host.moe import OperandFormats
from ..instructions.shared_memory import load_word, shared_base, store_word
from ..instructions.warp import FRAGMENT_SUMS, keep_branch, keep_here, lane_here
from ..layout import BLOCK, K_LANES, TILE_ROWS
from ..codec import may_need_two_factors
from ..plan import Plan
from ..prepare.kept import round_rows
from ..routing import Places, launch_sums
from ..shapes import MAX_ROW_FRAGMENTS, StreamConfig, share_of
from .activations import reciprocal_of
from .cta import StreamCta, compute_again
from ..decode.bf16 import TensorPlanes
from .mainloop import HALVES, WeightStream, clear, multiply, multiply_anew
from .scheduler import EXPERT, GroupedMemory, OVERFLOW, StreamScheduler


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(CONFIG.threads())),
    `nvvm.minctasm`=SIMDLength(CONFIG.min_ctas()),
)
def gemm_streaming[
    CONFIG: StreamConfig
](
    a: Activations,
    is_aligned: UInt32,
    scheduler: StreamScheduler,
    weights: ExpertWeights,
    target: Target,
    half: UInt32,
    reciprocal: UInt32,
):
    """Computes the tiles of C of a CTA, or a cluster's share of one tile.

    `half` are the columns of the weights from a gate to its up; 0 for neighbours, and for no gate.
    `reciprocal` is that of the chunks of a row in a stage, see `activations`.
    """
    comptime STAGE_BLOCKS = UInt32(CONFIG.stage_blocks())

    # Prologue: which tiles, and the loads of the first. Weights do not come from the kernel before.
    var warp = UInt32(thread_idx.x) // 32
    comptime if CONFIG.is_grouped:
        warp = broadcast(warp)
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var memory = GroupedMemory(
        base,
        scheduler.experts,
        UInt32(scheduler.num_slots()),
        UInt32(a.k) // UInt32(BLOCK),
        scheduler.share,
    )
    var cta = StreamCta[CONFIG](
        a, is_aligned != 0, scheduler, weights, target, half, reciprocal, memory, warp
    )
    var first_tile, end = cta.begin()
    var tile = first_tile
    if tile == end:
        return
    var row_tile, column_tile = cta.place_of(tile)
    var expert, part = cta.find(row_tile).expert, cta.part_of(row_tile)
    var stream = WeightStream[CONFIG](
        cta.first(expert, part, column_tile), cta.blocks(expert, part)
    )
    if scheduler.is_early != 0:
        wait_on_dependent_grids()
        launch_dependent_grids()

    var sums = in_registers[DType.float32, FRAGMENT_SUMS, CONFIG.row_fragments, HALVES]()
    var is_staged, is_inexact = False, False
    while True:
        # What comes next is loaded from here on.
        var next_column, next_blocks = column_tile, UInt32(0)
        var here, next, next_part = expert, expert, part
        comptime if CONFIG.is_grouped:
            if not is_staged:
                if cta.stage(row_tile, 0):
                    keep_branch()
                    store_word(cta.memory.at(OVERFLOW), 1)
                is_staged = True
            here, part = load_word(cta.memory.at(EXPERT)), cta.part()
            next, next_part, next_column = here, part, column_tile + 1
            if next_column == scheduler.column_tiles:
                next_column = 0
                row_tile += 1
                is_staged = False
            if tile + 1 < end:
                if not is_staged:
                    next, next_part = cta.find(row_tile).expert, cta.part_of(row_tile)
                next_blocks = cta.blocks(next, next_part)
            var batch = cta.batch(tile, 0, column_tile)
            batch.prefetch_bias(batch.turn(cta.warp()), lane_here())
        stream.begin(cta.blocks(here, part), cta.first(next, next_part, next_column), next_blocks)
        var tensor_scales = TensorPlanes(0)
        comptime if CONFIG.scale == Scale.E4M3:
            tensor_scales = cta.tensor_scales(here, column_tile)

        # Main loop. Where a scale wants two factors, sums begin anew.
        clear(sums)
        var all_scales, is_anew = UInt32(0), False
        while True:
            for stage in range(UInt32(0), cta.num_blocks(part), STAGE_BLOCKS):
                var overflow = False
                comptime if not CONFIG.is_grouped:
                    overflow = cta.stage(row_tile, stage)
                var rows = cta.fragments().starting_at(Coord(cta.k_warp(), 0, lane_here(), 0))
                if is_anew:
                    keep_branch()
                    var place = cta.first(here, cta.part(), column_tile)
                    place.advance(Int(stage))
                    var blocks = min(
                        cta.blocks_from(here, cta.part(), stage),
                        STAGE_BLOCKS // UInt32(CONFIG.k_warps),
                    )
                    overflow |= multiply_anew(stream, place, blocks, rows, sums)
                else:
                    var stop = cta.blocks_from(here, part, stage + STAGE_BLOCKS)
                    all_scales |= multiply(stream, stop, rows, sums)
                if overflow:
                    store_word(cta.memory.at(OVERFLOW), 1)
            if not cta.needs(may_need_two_factors(all_scales)):
                break
            all_scales, is_anew = 0, True
            clear(sums)

        comptime if CONFIG.scale == Scale.E4M3:
            cta.apply_scales(tensor_scales, row_tile, sums)
        comptime if CONFIG.is_grouped:
            cta.reduce_batches(sums, tile, column_tile)
        else:
            is_inexact = cta.reduce_cluster(sums)
        tile += 1
        if tile == end:
            break
        column_tile = next_column
    comptime if CONFIG.is_grouped:
        is_inexact = load_word(cta.memory.at(OVERFLOW)) != 0
    # Activations are kept under E4M3 scales: there is nothing that bfloat16 cannot hold.
    comptime if CONFIG.scale == Scale.E8M0:
        if is_inexact:
            keep_branch()
            compute_again(cta.copy(), first_tile, end)


# Launches.


def launch[scale: Scale](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches a dense product as planned, with no more CTAs in a cluster than have blocks of K."""
    var cut = plan.within(problem.k // BLOCK)
    var share = ceildiv(problem.k // BLOCK, cut.ranks)
    var have_factors = scale == Scale.E4M3 and problem.left.scales != 0
    comptime for log_rows in range(4):
        comptime for log_columns in range(4):
            comptime for is_short in [False, True]:
                comptime for has_factors in [False, True]:
                    comptime of_tile = Plan.stream(8 << log_rows, TILE_ROWS << log_columns)
                    comptime of_share = 0 if is_short else 1 << 30
                    comptime config = StreamConfig.dense(of_tile, of_share, scale, has_factors)
                    comptime if of_tile.exists() and (scale == Scale.E4M3 or not has_factors):
                        var found = StreamConfig.dense(plan, share, scale, have_factors)
                        if found == config and have_factors == has_factors:
                            return _launch[config](problem, cut, share, queue)
    raise Error(
        String(
            "plan: got ", plan.columns // TILE_ROWS, " column tiles for ", plan.rows,
            " rows, expected more",
        )
    )  # fmt: skip


def _launch[
    config: StreamConfig
](problem: Problem, cut: Plan, share: Int, mut queue: Some[Queue]) raises:
    """Launches a dense product whose CTAs have `share` blocks of K each."""
    var blocks = min(share, config.stage_blocks())
    queue.launch[gemm_streaming[config]](
        gemm.grid_of_streaming(problem.m, problem.n, cut, config, share),
        Activations(problem),
        UInt32(1),
        StreamScheduler.of(problem, cut.ranks, share),
        ExpertWeights(Experts.only(problem.right, problem.result), problem.n),
        Target(Result(problem), Gate.NONE),
        UInt32(0),
        reciprocal_of(UInt32(max(blocks, 1) * K_LANES)),
    )


def multiply_grouped[
    operands: OperandFormats
](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    var target = Target(Result(problem.values, problem.dtype, problem.m, problem.n), Gate.NONE)
    var memory = moe.StreamingMemory.of(problem, queue.workspace(moe.workspace_of(problem)))
    var left = problem.left
    comptime if operands.has_factors:
        left = round_rows(left, problem.m, problem.k, memory.places, 0, queue)
    _launch_grouped[False, operands](
        left, problem.k, 1, False, StreamScheduler.of(problem), problem.experts, problem.n,
        target, queue,
    )  # fmt: skip


def multiply_experts[
    operands: OperandFormats
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    if problem.routing.tokens == 0:
        return
    var memory = moe.StreamingMemory.of(problem, queue.workspace(moe.workspace_of(problem)))
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var scheduler, first = StreamScheduler.of(problem), problem.left
    comptime if operands.has_factors:
        first = round_rows(first, problem.routing.tokens, width, memory.places, 0, queue)
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    var parts = moe.LayerParts.of(problem)
    if parts.is_gated:
        _launch_grouped[True, operands](
            first, width, 1, parts.is_long, scheduler, problem.gate_up, problem.sums(),
            Target(hidden, problem.gate), queue,
        )  # fmt: skip
    else:
        var sums = Target(Result(memory.rows, Int(FLOAT32), count, problem.sums()), Gate.NONE)
        _launch_grouped[False, operands](
            first, width, parts.first, parts.first > 1, scheduler, problem.gate_up,
            problem.sums(), sums, queue,
        )  # fmt: skip
        launch_activation(memory.rows, problem.gate, hidden, queue, parts.first)
    var left = problem.hidden_at(memory.hidden)
    comptime if operands.has_factors:
        left = round_rows(left, count, inner, memory.of_hidden, 0, queue)
    var of_slots = Result(memory.rows, Int(FLOAT32), count, width)
    # A has a row for each slot. The kernel before has waited for what the scheduler reads.
    scheduler.rows_per_source = 1
    scheduler.is_early = 1
    _launch_grouped[False, operands](
        left, inner, parts.second, parts.second > 1, scheduler, problem.down, width,
        Target(of_slots, Gate.NONE), queue,
    )  # fmt: skip
    launch_sums(problem, memory.rows, Places.as_slots(problem.down.count), queue, parts.second)


def _launch_grouped[
    is_gated: Bool, operands: OperandFormats
](
    left: Left,
    k: Int,
    parts: Int,
    wants_split: Bool,
    scheduler: StreamScheduler,
    experts: Experts,
    n: Int,
    target: Target,
    mut queue: Some[Queue],
) raises:
    """Launches the product with [n, k] weights, K in parts."""
    var half = 0
    if is_gated and not target.gate().is_interleaved():
        half = n // 2
    var rows, columns = Int(scheduler.rows), Int(target.rows.columns)
    var wanted = moe.streaming_config(rows, experts.count, is_gated).row_fragments
    comptime for row_fragments in range(1, MAX_ROW_FRAGMENTS + 1):
        comptime for is_split in [False, True]:
            comptime config = StreamConfig.grouped(
                row_fragments, is_gated, operands.weights.scale, operands.has_factors, is_split
            )
            comptime if not (is_gated and is_split) or row_fragments == MAX_ROW_FRAGMENTS:
                if wanted == row_fragments and wants_split == is_split:
                    queue.launch[gemm_streaming[config]](
                        moe.grid_of_streaming(
                            config, rows, experts.count, scheduler.num_slots(), columns, k, parts
                        ),
                        Activations(left, k),
                        UInt32(1 if is_left_aligned(left) else 0),
                        scheduler.cut(ceildiv(columns, config.columns()), k, parts),
                        ExpertWeights(experts, n),
                        target,
                        UInt32(half),
                        reciprocal_of(UInt32(share_of(k, parts) * K_LANES)),
                    )
