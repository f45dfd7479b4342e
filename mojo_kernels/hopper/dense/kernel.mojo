"""Tokens in stages times weights that become numbers in shared memory: tiles of 128 columns of C.

    8 fillers      warps that make stages of weights, 64 steps of K, and have tokens copied
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ tokens^T

Numbers are bfloat16: instructions add to one sum. That is for so few rows that a weight becomes
numbers a few times only: `mapped` has to have them in the workspace before.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..instructions.shared_memory import arrive, shared_base, wait_phase
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    INSTRUCTION_ROWS,
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
from ..staged.stages import COLUMNS, WARP_ROWS, first_of
from .fillers import make_stages
from .marks import any_marked, store_marked
from .operands import DenseOperands
from .pipeline import DenseStages, FILLER_WARPS
from .result import WARPS, WarpColumns, store_tokens
from .share import Share
from .together import ShareFacts, init_meeting, store_together

comptime THREADS = 32 * (CONSUMER_WARPS + FILLER_WARPS)
"""Threads of a group."""
comptime CONSUMER_REGISTERS = 176
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 80
"""Registers of the other threads: what consumers leave."""
comptime DENSE_TOKENS: List[Int] = [64, 128]
"""Rows of C of a tile."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_dense[
    Operands: DenseOperands, tokens: Int
](operands: Operands, a: Activations, w: Weights, result: Result, ranks: UInt32):
    """Computes tiles of 128 columns of C for so many rows, one after the other.

    Ranks are the groups of a cluster, which split the K of one tile; 1 without clusters.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = DenseStages[tokens](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
        init_meeting(base)
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var share = Share[tokens].here(result, operands.num_steps(), ranks)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        wait_on_dependent_grids()
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        stages.parity = 1
        make_stages(stages, operands, share, w, UInt32(a.k), result.columns)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = TileSums[tokens](uninitialized=True)
        var group = warp // UInt32(WARPS)
        wait_on_dependent_grids()
        var index = share.first()
        while share.has(index):
            var token, first_column = first_of[tokens](share.tile(index))
            var columns = WarpColumns.in_order(first_column + warp * UInt32(WARP_ROWS))
            index = share.after(index)
            var group_column = first_column + group * UInt32(INSTRUCTION_ROWS)
            # Loaded before the products: nobody waits for them.
            var facts = ShareFacts[tokens].load(share, operands, result)
            var may_be_marked = any_marked[tokens](operands, token, group_column, result)
            consume[Operands.TYPE](stages, Int(share.end_step - share.first_step), group, sums)
            if not share.has(index):
                launch_dependent_grids()
            if ranks > 1:
                keep_branch()
                store_together(sums, base, columns, share, facts, operands, a, w, result)
                break
            store_tokens(sums, stages.room(warp), result, token, columns)
            if any_lane(may_be_marked):
                keep_branch()
                store_marked[tokens](operands, a, w, result, token, group_column)


@always_inline
def start[
    tokens: Int, //, type: StaticString
](stages: DenseStages[tokens], group: UInt32, mut sums: TileSums[tokens]):
    """Starts the products of a stage as soon as it is full."""
    comptime GROUP_BYTES = INSTRUCTION_ROWS * ROW_BYTES
    wait_phase(stages.full(), stages.parity)
    var weights = lower_word(stages.weights() + group * UInt32(GROUP_BYTES))
    var of_tokens = lower_word(stages.tokens_at())
    wgmma_fence_aligned()
    comptime for i in range(ROW_BYTES // STEP_BYTES):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_staged[type, True](weights + at, of_tokens + at, sums)
    wgmma_commit_group_sync()


@always_inline
def consume[
    tokens: Int, //, type: StaticString
](mut stages: DenseStages[tokens], num_steps: Int, group: UInt32, mut sums: TileSums[tokens]):
    """Multiplies the stages of a tile as they fill."""
    sums = TileSums[tokens](fill=0)
    var previous = stages
    for step in range(num_steps):
        start[type](stages, group, sums)
        wgmma_wait_group_sync[1]()
        if step > 0:
            release(previous)
        previous = stages
        stages.advance()
    wgmma_wait_group_sync[0]()
    settle_sums(sums)
    release(previous)


@always_inline
def release(stages: DenseStages[...]):
    """Says that a warp has read a stage."""
    if lane_here() == 0:
        arrive(stages.empty())


def launch[
    Operands: DenseOperands, tokens: Int
](operands: Operands, grid: Grid, problem: Problem, ranks: Int, mut queue: Some[Queue]) raises:
    """Launches the kernel for operands whose tokens are prepared."""
    queue.launch[matmul_dense[Operands, tokens]](
        grid,
        operands,
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(ranks),
    )


def grid(m: Int, n: Int, tokens: Int, ranks: Int) -> Grid:
    """Returns the grid for C of [m, n]: groups take tiles in turn, clusters one each."""
    var shared_bytes = 0
    comptime for known in DENSE_TOKENS:
        if tokens == known:
            shared_bytes = DenseStages[known].NUM_BYTES
    var tiles = ceildiv(m, tokens) * ceildiv(n, COLUMNS)
    return Grid(
        tiles * ranks if ranks > 1 else min(tiles, MULTIPROCESSORS),
        threads=THREADS,
        cluster=ranks if ranks > 1 else 0,
        shared_bytes=shared_bytes,
        starts_early=True,
    )
