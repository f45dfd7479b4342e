"""Tokens in stages times weights that become bytes in shared memory: tiles of 128 columns of C.

    8 fillers      warps that make stages of weights, 128 steps of K, and have tokens copied
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ tokens^T

The sums of a stage begin anew, and are added to those in float32 registers, times the factors of the
stage's tokens; see `mapped.kernel` for what that cuts off. In the end they meet those of weights. That
is for so few rows that a weight becomes a byte a few times only: `mapped` has to have all of them in
the workspace before.
"""

from layout import Coord, row_major
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.math import ceildiv, fma
from std.memory import bitcast
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..instructions.shared_memory import arrive, load_pair, shared_base, wait_phase
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    INSTRUCTION_ROWS,
    OCTET,
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
from ..layout import K_LANES
from ..many.kernel import CONSUMER_WARPS, MULTIPROCESSORS
from ..staged.stages import COLUMNS, WARP_ROWS, first_of
from ..staged.weights import ROWS
from .fillers import make_stages
from .marks import any_marked, store_marked
from .operands import DenseOperands
from .pipeline import DenseStages, FILLER_WARPS
from .result import FACTOR_BYTES, LaneFactors, PAIR, WARPS, WarpColumns
from .result import scale_sums, store_tokens
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
        var partial = TileSums[tokens](fill=0)
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
            var factors = LaneFactors[tokens].load(operands, token, columns, result)
            consume[Operands.TYPE](
                stages, Int(share.end_step - share.first_step), group, partial, sums
            )
            if not share.has(index):
                launch_dependent_grids()
            if ranks > 1:
                keep_branch()
                store_together(sums, base, columns, share, facts, operands, a, w, result)
                break
            scale_sums(sums, operands, factors, stages.room(warp))
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
        multiply_staged[type, i > 0](weights + at, of_tokens + at, sums)
    wgmma_commit_group_sync()


@always_inline
def consume[
    tokens: Int, //, type: StaticString
](
    mut stages: DenseStages[tokens],
    num_steps: Int,
    group: UInt32,
    mut partial: TileSums[tokens],
    mut sums: TileSums[tokens],
):
    """Multiplies the stages of a tile as they fill."""
    sums = TileSums[tokens](fill=0)
    for _ in range(num_steps):
        start[type](stages, group, partial)
        wgmma_wait_group_sync[0]()
        add_up(stages, partial, sums)
        release(stages)
        stages.advance()


@always_inline
def add_up[
    tokens: Int, //
](stages: DenseStages[tokens], mut partial: TileSums[tokens], mut sums: TileSums[tokens]):
    """Adds the sums of a stage, which are there, times the factors of its tokens."""
    settle_sums(partial)
    comptime order = row_major[tokens // OCTET, ROWS, PAIR]()
    var pairs = stages.factors_at() + lane_here() % UInt32(K_LANES) * UInt32(FACTOR_BYTES * PAIR)
    comptime for octet in range(tokens // OCTET):
        var of_tokens = bitcast[DType.float32, PAIR](
            load_pair(pairs + UInt32(FACTOR_BYTES * OCTET * octet))
        )
        comptime for row in range(ROWS):
            comptime for token in range(PAIR):
                comptime part, at = divmod(Int(order(Coord(octet, row, token))), PART_SUMS)
                sums[part][at] = fma(partial[part][at], of_tokens[token], sums[part][at])


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
