"""Dozens to hundreds of rows: as for many, but more warps decode, and groups split K.

A group computes 128 columns of C for 64 or 128 rows, and the groups of its cluster ("ranks")
split K. Warp groups have roles, and registers to suit:

    4 fillers      warps that start the copies of stages: 64 steps of K of tokens and weights
    4 consumers    two take the even steps, two the odd ones; each warp decodes 16 weight rows,
                   C^T += weights @ tokens^T

With fewer tokens a weight is decoded for fewer products: that, not the tensor cores, takes the
time, hence twice the warps. In the end all sums meet in shared memory, see `result`.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.compute.mma import wgmma_wait_group_sync
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...launch.queue import Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..host.gemm import grid_of_middle
from ..instructions.shared_memory import arrive, shared_base, store_word, wait_phase
from ..instructions.warp import keep_here, lane_here
from ..instructions.wgmma import TokenSums, limit_registers, lower_word, multiply_block
from ..layout import BLOCK
from ..pipeline.stages import RsRing
from ..plan import Plan
from ..shapes import (
    MIDDLE_CONSUMER_WARPS as CONSUMER_WARPS,
    MIDDLE_THREADS as THREADS,
    PARITIES,
    RsLayout,
    STEP_BLOCKS,
    num_steps_of,
)
from ..prepare.bf16 import BF16Stages, prepare_bf16
from ..staged.exact import Exact, Marks
from ..staged.stages import (
    Source,
    bands_of,
    fill_first_stages,
    fill_stages,
    first_of,
    flag_of,
)
from ..staged.weights import StepWeights
from .result import Share, leave_sums, store_exactly, store_share

comptime CONSUMER_REGISTERS = 112
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 32
"""Registers of the other threads: what consumers leave."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_middle[
    TOKENS: Int
](staged: BF16Stages, a: Activations, w: Weights, result: Result, ranks: UInt32):
    """Computes a tile of C of `TOKENS` rows with its cluster.

    `staged` is what `prepare_bf16` made of `a`, which is read again for the rows that are
    marked: those that bfloat16 cannot hold.
    """
    comptime LAYOUT = RsLayout.bf16(TOKENS)
    # Who am I: a tile of C, and a share of K.
    var rank = UInt32(block_idx.x) % ranks
    var group = UInt32(block_idx.x) // ranks
    var k = UInt32(a.k)
    var schedule = bands_of[TOKENS](result)
    var first_token, first_column = first_of[TOKENS](schedule.tile(Int(group)))
    var share = (num_steps_of(k) + ranks - 1) // ranks
    var first_step = min(rank * share, num_steps_of(k))
    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var num_steps = broadcast(min(share, num_steps_of(k) - first_step))
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var ring = RsRing[LAYOUT](base, 0, 0)
    if thread_idx.x == 0:
        ring.init_barriers()
    barrier()

    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var filler = warp - UInt32(CONSUMER_WARPS)
            var source = Source[LAYOUT].of_dense(
                staged.tokens, w, first_token, first_column, result.columns, k, first_step, filler
            )
            fill_first_stages(ring, source, num_steps)
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            ring.parity = 1
            fill_stages(ring, source, num_steps, UInt32(ring.STAGES))
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = TokenSums[TOKENS](uninitialized=True)
        var num_blocks = k // UInt32(BLOCK) - min(
            first_step * UInt32(STEP_BLOCKS), k // UInt32(BLOCK)
        )
        consume(ring, num_steps, num_blocks, warp, sums)
        wait_on_dependent_grids()
        launch_dependent_grids()
        var marked = Marks[TOKENS].read(staged, a, result.rows, first_token)
        leave_sums[TOKENS](base, sums, warp)
        var part = Share(rank, ranks, first_token, first_column)
        store_share[TOKENS](base, part, result)
        store_exactly(base, part, marked, result, Exact(a, w))


@always_inline
def consume[
    layout: RsLayout, tokens: Int, //
](
    var ring: RsRing[layout],
    num_steps: UInt32,
    num_blocks: UInt32,
    warp: UInt32,
    mut sums: TokenSums[tokens],
):
    """Multiplies every other stage as it fills."""
    sums[0] = 0
    var flag = flag_of(ring.base, warp)
    store_word(flag, 0)
    var is_first_lane = lane_here() == 0
    var step = warp // UInt32(CONSUMER_WARPS // PARITIES)
    if step >= num_steps:
        return
    ring.advance_within(step)
    wait_phase(ring.full(), ring.parity)
    var weights = StepWeights.load(ring.here(), warp, num_blocks - step * UInt32(STEP_BLOCKS))
    var may_need_two = weights.may_need_two()
    var first = weights.decode[0](may_need_two, flag)
    var previous = ring
    var is_started = False
    while step < num_steps:
        var token_rows = lower_word(ring.here().base)
        multiply_block[tokens, 0](first, token_rows, sums)
        if is_started and is_first_lane:
            arrive(previous.empty())
        is_started = True

        previous = ring
        ring.advance[PARITIES]()
        step += UInt32(PARITIES)
        var next = weights
        if step < num_steps:
            wait_phase(ring.full(), ring.parity)
            next = StepWeights.load(ring.here(), warp, num_blocks - step * UInt32(STEP_BLOCKS))
        var second = weights.decode[1](may_need_two, flag)
        multiply_block[tokens, 1](second, token_rows, sums)
        weights = next
        may_need_two = weights.may_need_two()
        first = weights.decode[0](may_need_two, flag)
    wgmma_wait_group_sync[0]()


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Expands the activations, and multiplies as planned."""
    comptime for tokens in [64, 128]:
        if plan.tokens == tokens:
            var staged = prepare_bf16(problem, tokens, queue)
            return queue.launch[matmul_middle[tokens]](
                grid_of_middle(problem.m, problem.n, plan),
                staged,
                Activations(problem),
                Weights(problem),
                Result(problem),
                UInt32(plan.ranks),
            )
    raise Error(String("plan: got ", plan.tokens, " rows of a group, expected 64 or 128"))
