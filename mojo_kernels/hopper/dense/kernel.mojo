"""Stages times stages: tiles of 128 columns of C, both sides in shared memory.

    fillers        who copies stages, 128 bytes of K of weights and tokens, or makes them
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ tokens^T

Operands say what a number is, and where sums meet factors, see `DenseOperands`:

    bytes       an instruction adds 32 products to what there is so far, each cut off 13 bits below
                the largest one. So the sums of a stage begin anew, and are added to those in
                float32 registers, times the stage's factors if there are such
    bfloat16    instructions add to one sum

Where stages are copied and have no factors, a consumer has the instructions of the next stage under
way while it adds up. Else it has no registers for that, and the other one's instructions are:

    copied    instructions    stage 0    stage 1    stage 2    ..
              adding up                  stage 0    stage 1    ..
    else      tensor cores    stage 0 of one    of the other    stage 1 of one    ..
              one adds up                       stage 0
              the other                                         stage 0

An element of C that bytes made is as far from the exact product as float32 sums are, and for each
instruction at most 33 * 2 ** -13 times its largest addend: less than bfloat16 and float16 show, but
more than float32 does. Sums of codes whose blocks share a scale lose nothing.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier, syncwarp
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..instructions.shared_memory import arrive, shared_base, wait_phase
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    INSTRUCTION_ROWS,
    PART_SUMS,
    ROW_BYTES,
    STEP_BYTES,
    TileSums,
    UNIT_BYTES,
    limit_registers,
    lower_word,
    multiply_staged,
    settle_sums,
)
from ..many.kernel import CONSUMER_WARPS, MULTIPROCESSORS
from ..many.result import stores_in_halves
from ..staged.stages import COLUMNS, WARP_GROUP, WARP_ROWS, first_of
from .fillers import copy_stages, make_stages
from .handover import GROUPS, Handover
from .marks import any_marked, store_marked
from .operands import DenseOperands
from .pipeline import DenseStages, FILLER_WARPS
from .result import (
    FactorPlaces,
    LaneFactors,
    WarpColumns,
    WARPS,
    add_scaled,
    scale_sums,
    store_any,
    store_tokens,
)
from .share import Share, neighbours_of
from .together import init_meeting, store_together

comptime CONSUMERS = 32 * CONSUMER_WARPS
"""Threads that multiply; the others fill."""
comptime DENSE_TOKENS: List[Int] = [64, 128]
"""Rows of C of a tile."""


def threads_of[stages_weights: Bool]() -> Int:
    """Returns the threads of a group."""
    return CONSUMERS + (WARP_GROUP if stages_weights else 32 * FILLER_WARPS)


def consumer_registers[Operands: DenseOperands]() -> Int:
    """Returns the registers of a consumer thread: more than its even share."""
    comptime if Operands.STAGES_WEIGHTS:
        return 240
    else:
        return 176


def filler_registers[Operands: DenseOperands]() -> Int:
    """Returns the registers of the other threads: what consumers leave."""
    comptime if Operands.STAGES_WEIGHTS:
        return 24
    else:
        return 256 - consumer_registers[Operands]()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](
        Int32(threads_of[Operands.STAGES_WEIGHTS]())
    ),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_dense[
    Operands: DenseOperands, tokens: Int
](operands: Operands, a: Activations, w: Weights, result: Result, ranks: UInt32):
    """Computes tiles of 128 columns of C for so many rows, one after the other.

    Ranks are the groups of a cluster; 1 without clusters. Where weights are in the workspace they
    are neighbours, see `share`, else they split the K of one tile.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = DenseStages[tokens, Operands.SCALES_STAGES, Operands.STAGES_WEIGHTS](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
        comptime if Operands.STAGES_WEIGHTS:
            Handover.init_barriers(base)
        else:
            init_meeting(base)
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var share = share_of[Operands, tokens](operands, result, ranks)
    share.meet()
    if warp >= UInt32(CONSUMER_WARPS):
        comptime REGISTERS = filler_registers[Operands]()
        limit_registers["dec", REGISTERS]()
        wait_on_dependent_grids()
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        stages.parity = 1
        comptime if Operands.STAGES_WEIGHTS:
            var role = warp - UInt32(CONSUMER_WARPS)
            if lane_here() == 0:
                if role == 0:
                    copy_stages(stages, operands, share)
                elif role <= UInt32(GROUPS) and stores_in_halves(result):
                    var storer = Handover.of_storer(base, role - 1)
                    storer.store_tiles(stages.room((role - 1) * UInt32(WARPS)), share, result)
        else:
            make_stages(stages, operands, share, w, UInt32(a.k), result.columns)
    else:
        comptime REGISTERS = consumer_registers[Operands]()
        limit_registers["inc", REGISTERS]()
        var sums = TileSums[tokens](uninitialized=True)
        # Of the first stage, if its instructions are started early.
        var ahead = TileSums[tokens](fill=0)
        comptime STARTS_EARLY = starts_early[Operands]()
        var group = warp // UInt32(WARPS)
        var handover = Handover.of_consumers(base, group)
        wait_on_dependent_grids()
        var index = share.first()
        while share.has(index):
            comptime if STARTS_EARLY:
                start[Operands](stages, group, ahead)
            var token, first_column = first_of[tokens](share.tile(index))
            var columns = WarpColumns.in_order(first_column + warp * UInt32(WARP_ROWS))
            index = share.after(index)
            var factors = LaneFactors[tokens].load(operands, token, columns, result)
            var group_column = first_column + group * UInt32(INSTRUCTION_ROWS)
            # Loaded before the products: nobody waits for it.
            var may_be_marked = any_marked[tokens](operands, token, group_column, result)
            var num_steps = Int(share.end_step - share.first_step)
            comptime if STARTS_EARLY:
                consume_in_turns[Operands](stages, num_steps, group, ahead, sums)
            else:
                consume[Operands](stages, num_steps, warp, sums)
            if not share.has(index):
                launch_dependent_grids()
            comptime if not Operands.STAGES_WEIGHTS:
                if ranks > 1:
                    keep_branch()
                    store_together(sums, base, columns, share, operands, a, w, result)
                    break
            comptime if Operands.SCALES_IN_THE_END:
                scale_sums(sums, operands, factors, stages.room(warp))
            var is_marked = any_lane(may_be_marked)
            comptime if Operands.STAGES_WEIGHTS:
                if stores_in_halves(result):
                    handover.hand_over(sums, stages.room(warp), result, columns, is_marked)
                if is_marked or not stores_in_halves(result):
                    keep_branch()
                    store_any(sums, result, token, columns)
            else:
                store_tokens(sums, stages.room(warp), result, token, columns)
            if is_marked:
                keep_branch()
                store_marked[tokens](operands, a, w, result, token, group_column)


@always_inline
def share_of[
    Operands: DenseOperands, tokens: Int
](operands: Operands, result: Result, cluster: UInt32) -> Share[tokens]:
    """Returns what this group of a cluster computes."""
    comptime if Operands.STAGES_WEIGHTS:
        return Share[tokens].of_neighbours(result, operands.num_steps(), cluster)
    else:
        return Share[tokens].here(result, operands.num_steps(), cluster)


def starts_early[Operands: DenseOperands]() -> Bool:
    """Says whether two stages are under way, the first one of a tile while it is looked up."""
    return Operands.TYPE != "bf16" and Operands.STAGES_WEIGHTS and not Operands.SCALES_STAGES


@always_inline
def start[
    tokens: Int, //, Operands: DenseOperands
](
    stages: DenseStages[tokens, Operands.SCALES_STAGES, Operands.STAGES_WEIGHTS],
    group: UInt32,
    mut sums: TileSums[tokens],
):
    """Starts the products of a stage as soon as it is full."""
    wait_phase(stages.full(), stages.parity)
    start_full[Operands](stages, group, sums)


@always_inline
def start_full[
    tokens: Int, //, Operands: DenseOperands
](
    stages: DenseStages[tokens, Operands.SCALES_STAGES, Operands.STAGES_WEIGHTS],
    group: UInt32,
    mut sums: TileSums[tokens],
):
    """Starts the products of a stage that is full: bytes begin new sums."""
    comptime ADDS = Operands.TYPE == "bf16"
    comptime GROUP_BYTES = INSTRUCTION_ROWS * ROW_BYTES
    var weights = lower_word(stages.weights() + group * UInt32(GROUP_BYTES))
    var of_tokens = lower_word(stages.tokens_at())
    wgmma_fence_aligned()
    comptime for i in range(ROW_BYTES // STEP_BYTES):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_staged[Operands.TYPE, ADDS or i > 0](weights + at, of_tokens + at, sums)
    wgmma_commit_group_sync()


@always_inline
def release(stages: DenseStages[...], is_first_lane: Bool):
    """Says that a warp has read a stage."""
    if is_first_lane:
        arrive(stages.empty())


@always_inline
def add_up[
    tokens: Int, //
](stages: DenseStages[tokens, ...], mut partial: TileSums[tokens], mut sums: TileSums[tokens]):
    """Adds the sums of a stage that is multiplied, and lets go of it."""
    settle_sums(partial)
    release(stages, lane_here() == 0)
    comptime for i in range(tokens // 2 // PART_SUMS):
        sums[i] += partial[i]


@always_inline
def consume[
    tokens: Int, //, Operands: DenseOperands
](
    mut stages: DenseStages[tokens, Operands.SCALES_STAGES, Operands.STAGES_WEIGHTS],
    num_steps: Int,
    warp: UInt32,
    mut sums: TileSums[tokens],
):
    """Multiplies the stages of a tile as they fill."""
    var group = warp // 4
    sums = TileSums[tokens](fill=0)
    comptime if Operands.TYPE == "bf16":
        var previous = stages
        for step in range(num_steps):
            start[Operands](stages, group, sums)
            wgmma_wait_group_sync[1]()
            if step > 0:
                release(previous, lane_here() == 0)
            previous = stages
            stages.advance()
        wgmma_wait_group_sync[0]()
        settle_sums(sums)
        release(previous, lane_here() == 0)
    elif Operands.SCALES_STAGES:
        var partial = TileSums[tokens](fill=0)
        for _ in range(num_steps):
            wait_phase(stages.full(), stages.parity)
            var places = FactorPlaces[tokens].of_warp(stages.weights(), stages.tokens_at(), warp)
            # Behind the instructions it would wait until tensor cores take the last one.
            var of_weights = places.of_weights()
            start_full[Operands](stages, group, partial)
            # Loaded while the instructions run.
            var of_tokens = places.of_tokens()
            wgmma_wait_group_sync[0]()
            settle_sums(partial)
            # All lanes have read factors; one says so.
            syncwarp()
            release(stages, lane_here() == 0)
            add_scaled(partial, of_weights, of_tokens, sums)
            stages.advance()
    else:
        comptime assert False, "two stages are under way: see `consume_in_turns`"


@always_inline
def consume_in_turns[
    tokens: Int, //, Operands: DenseOperands
](
    mut stages: DenseStages[tokens, Operands.SCALES_STAGES, Operands.STAGES_WEIGHTS],
    num_steps: Int,
    group: UInt32,
    mut even: TileSums[tokens],
    mut sums: TileSums[tokens],
):
    """Multiplies the stages of a tile, two under way in turn; the first one is started.

    Registers in flight keep their names.
    """
    sums = TileSums[tokens](fill=0)
    var odd = TileSums[tokens](fill=0)
    var previous = stages
    stages.advance()
    for _ in range((num_steps - 1) // 2):
        start[Operands](stages, group, odd)
        wgmma_wait_group_sync[1]()
        add_up(previous, even, sums)
        previous = stages
        stages.advance()
        start[Operands](stages, group, even)
        wgmma_wait_group_sync[1]()
        add_up(previous, odd, sums)
        previous = stages
        stages.advance()
    if num_steps % 2 == 0:
        start[Operands](stages, group, odd)
        wgmma_wait_group_sync[1]()
        add_up(previous, even, sums)
        previous = stages
        stages.advance()
        wgmma_wait_group_sync[0]()
        add_up(previous, odd, sums)
    else:
        wgmma_wait_group_sync[0]()
        add_up(previous, even, sums)


def launch[
    Operands: DenseOperands, tokens: Int
](operands: Operands, grid: Grid, problem: Problem, ranks: Int, mut queue: Some[Queue]) raises:
    """Launches the kernel for operands that are prepared; ranks are for weights that are not."""
    queue.launch[matmul_dense[Operands, tokens]](
        grid,
        operands,
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(neighbours_of(problem.n) if Operands.STAGES_WEIGHTS else ranks),
    )


def grid(m: Int, n: Int, tokens: Int, ranks: Int, has_factors: Bool, stages_weights: Bool) -> Grid:
    """Returns the grid for C of [m, n]: groups take tiles in turn, clusters one each."""
    var shared_bytes = 0
    comptime for known in DENSE_TOKENS:
        if tokens == known:
            shared_bytes = DenseStages[known, False, True].NUM_BYTES
            if has_factors:
                shared_bytes = DenseStages[known, True, True].NUM_BYTES
    var tiles = ceildiv(m, tokens) * ceildiv(n, COLUMNS)
    var cluster = neighbours_of(n) if stages_weights else ranks
    return Grid(
        tiles * ranks if ranks > 1 else min(tiles, MULTIPROCESSORS),
        threads=threads_of[True]() if stages_weights else threads_of[False](),
        cluster=cluster if cluster > 1 else 0,
        shared_bytes=shared_bytes,
        # As in `mapped.launch`: of some rounds neighbours stay neighbours.
        starts_early=not stages_weights or tiles <= MULTIPROCESSORS,
    )
