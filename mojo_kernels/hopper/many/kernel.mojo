"""Many rows of activations: weights decoded in registers meet tokens in shared memory.

A group computes 128 columns of C for 256 rows, one such tile after the other, or has an even share of
the stages of all tiles, of 64, 128 or 256 rows: where a tile's parts meet, see `epilogue.stream_k`. Warp
groups have roles, and registers to suit:

    4 fillers      warps that start the copies of stages: 64 steps of K of tokens and weights
    2 consumers    each warp decodes 16 weight rows, C^T += weights @ tokens^T

A consumer decodes one block of K while the tensor cores multiply the block before:

    instructions    block 0     block 1     block 0 of the next step     ...
    decoding        block 1     block 0 of the next step     ...

Each warp stores its own sums, while the stages of the next tile fill.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.compute.mma import wgmma_wait_group_sync
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier, syncwarp
from std.math import align_up
from std.utils import StaticTuple

from ...launch.queue import Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..epilogue.stream_k import FixUp
from ..host.gemm import grid_of_many
from ..host.workspace import PADDED, bf16_bytes, is_shared, workspace_of_many
from ..instructions.shared_memory import arrive, load_word, shared_base, store_word, wait_phase
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    TokenSums,
    limit_registers,
    lower_word,
    multiply_block,
    part_tokens,
)
from ..layout import BLOCK
from ..pipeline.stages import RsRing
from ..plan import Plan
from ..scheduler import DenseScheduler, Schedule
from ..shapes import (
    CONSUMER_WARPS,
    EVEN_TOKENS,
    GROUPS,
    RsLayout,
    STEP_BLOCKS,
    THREADS,
    num_steps_of,
)
from ..prepare.bf16 import BF16Stages, prepare_bf16
from ..staged.exact import Exact, Marks
from ..staged.stages import (
    Source,
    fill_first_stages,
    fill_stages,
    flag_of,
    room_of,
)
from ..staged.weights import HalfTile, WeightReader, first_row_of
from .result import store_tokens, stores_in_halves

comptime CONSUMER_REGISTERS = 232
"""Registers of a consumer thread: more than its even scheduler."""
comptime FILLER_REGISTERS = 40
"""Registers of the other threads: what consumers leave."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_many[
    tokens: Int, even: Bool
](staged: BF16Stages, a: Activations, w: Weights, result: Result, meetings: FixUp[tokens]):
    """Computes tiles of 128 columns of C for so many rows.

    `staged` is what `prepare_bf16` made of `a`, which is read again for the rows that are
    marked: those that bfloat16 cannot hold. Even shares have parts of tiles, of which groups meet.
    """
    comptime LAYOUT = RsLayout.bf16(tokens)
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var ring = RsRing[LAYOUT](base, 0, 0)
    if thread_idx.x == 0:
        ring.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var k = UInt32(a.k)
    comptime SCHEDULE = Schedule.STREAM_K if even else Schedule.CLUSTERS
    var scheduler = DenseScheduler[tokens, SCHEDULE].of(result, num_steps_of(k), 1)
    var index = scheduler.first()
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            ring.parity = 1
            var num_filled = UInt32(ring.STAGES)
            while scheduler.has(index):
                var tile = scheduler.tile(index)
                var num_steps = tile.num_steps()
                var filler = warp - UInt32(CONSUMER_WARPS)
                var source = Source[LAYOUT].of_dense(
                    staged.tokens,
                    w,
                    tile.row,
                    tile.column,
                    result.columns,
                    k,
                    tile.first_step,
                    filler,
                )
                if num_filled > 0:
                    fill_first_stages(ring, source, num_steps)
                fill_stages(ring, source, num_steps, num_filled)
                num_filled = 0
                index = scheduler.after(index)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var first_row = first_row_of(warp)
        var sums = TokenSums[tokens](uninitialized=True)
        wait_on_dependent_grids()
        while scheduler.has(index):
            var tile_index, tile = index, scheduler.tile(index)
            var token, column = tile.row, tile.column + first_row
            var num_steps = tile.num_steps()
            var num_blocks = k // UInt32(BLOCK) - tile.first_step * UInt32(STEP_BLOCKS)
            index = scheduler.after(index)
            var marked = Marks[tokens].read(staged, a, result.rows, token)
            var flag = flag_of(ring.base, warp)
            consume(ring, num_steps, num_blocks, HalfTile(warp), flag, sums)
            if not scheduler.has(index):
                launch_dependent_grids()
            # All lanes look before the flag is cleared for the next tile.
            var overflow = any_lane(load_word(flag) != 0)
            comptime if even:
                if num_steps < scheduler.num_steps:
                    keep_branch()
                    var meeting = meetings.leave(scheduler, tile_index, base, sums, overflow)
                    if not meeting.is_last:
                        continue
                    overflow |= meeting.is_marked
            if stores_in_halves(result):
                store_tokens[True](sums, room_of(ring.base, warp), result, token, column)
            else:
                keep_branch()
                store_tokens[False](sums, room_of(ring.base, warp), result, token, column)
            if overflow or marked.words.reduce_or() != 0:
                var exact = Exact(a, w)
                for i in range(min(UInt32(tokens), result.rows - token)):
                    if overflow or marked.has(UInt32(i)):
                        exact.store(result, token + UInt32(i), column)


@always_inline
def consume[
    layout: RsLayout, used: Int, //
](
    mut ring: RsRing[layout],
    num_steps: UInt32,
    num_blocks: UInt32,
    reader: Some[WeightReader],
    flag: UInt32,
    mut sums: TokenSums[used],
):
    """Multiplies so many stages of a tile as they fill, with some of their tokens.

    Of K there are so many blocks from the first one on.
    """
    comptime for i in range(used // part_tokens(used)):
        sums[i] = 0
    store_word(flag, 0)
    # Before a lane raises the flag, and before all look at it: what else keeps lanes together
    # compute-sanitizer does not see.
    syncwarp()
    var is_first_lane = lane_here() == 0
    wait_phase(ring.full(), ring.parity)
    var weights = reader.load(ring.here(), num_blocks)
    var may_need_two = weights.may_need_two()
    var first = weights.decode[0](may_need_two, flag)
    var previous = ring
    for step in range(num_steps):
        var token_rows = lower_word(ring.here().base)
        multiply_block[used, 0](first, token_rows, sums)
        if step > 0 and is_first_lane:
            arrive(previous.empty())

        previous = ring
        ring.advance()
        var next = weights
        if step + 1 < num_steps:
            wait_phase(ring.full(), ring.parity)
            var blocks_left = num_blocks - (step + 1) * UInt32(STEP_BLOCKS)
            next = reader.load(ring.here(), blocks_left)
        var second = weights.decode[1](may_need_two, flag)
        multiply_block[used, 1](second, token_rows, sums)
        weights = next
        may_need_two = weights.may_need_two()
        first = weights.decode[0](may_need_two, flag)
    wgmma_wait_group_sync[0]()
    syncwarp()
    if is_first_lane:
        arrive(previous.empty())


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Expands the activations, and multiplies; stages that are too many to be shared are not."""
    if is_shared(problem.m, problem.n, problem.k, plan):
        comptime for tokens in EVEN_TOKENS:
            if plan.tokens == tokens:
                return _launch[tokens, True](problem, plan, queue)
        raise Error(String("plan: got ", plan.tokens, " rows of a group, expected 64, 128 or 256"))
    _launch[Plan.MANY.tokens, False](problem, Plan.MANY, queue)


def _launch[tokens: Int, even: Bool](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with tiles of so many rows."""
    var m, n, k = problem.m, problem.n, problem.k
    var workspace = queue.workspace(workspace_of_many(m, n, k, plan))
    var tiles = plan.tiles(m, n).num_tiles() if even else 0
    var meetings_at = workspace + align_up(bf16_bytes(m, k), PADDED)
    var staged = prepare_bf16(problem, tokens, workspace, meetings_at, GROUPS * tiles, queue)
    queue.launch[matmul_many[tokens, even]](
        grid_of_many(m, n, k, plan),
        staged,
        Activations(problem),
        Weights(problem),
        Result(problem),
        FixUp[tokens].at(tiles, meetings_at),
    )
