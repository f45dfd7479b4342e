"""Many rows of activations: weights decoded in registers meet tokens in shared memory.

A group computes 128 columns of C for 256 rows, one such tile after the other. Warp groups have
roles, and registers to suit:

    4 fillers      warps that start the copies of stages: 64 steps of K of tokens and weights
    2 consumers    each warp decodes 16 weight rows, C^T += weights @ tokens^T

A consumer decodes one block of K while the tensor cores multiply the block before:

    instructions    block 0     block 1     block 0 of the next step     ...
    decoding        block 1     block 0 of the next step     ...

Each warp stores its own sums, while the stages of the next tile fill.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.compute.mma import wgmma_wait_group_sync
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
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
from ..plan import Plan, takes_operands
from ..staged.activations import StagedTokens, expand, num_steps_of
from ..staged.exact import Exact, Marks
from ..staged.stages import (
    Pipeline,
    READERS,
    STEP_BLOCKS,
    Source,
    WARP_GROUP,
    bands_of,
    fill_first_stages,
    fill_stages,
    first_of,
)
from ..staged.weights import HalfTile, WeightReader, first_row_of
from .result import store_tokens, stores_in_halves

comptime CONSUMER_REGISTERS = 232
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 40
"""Registers of the other threads: what consumers leave."""
comptime CONSUMER_WARPS = READERS
"""Warps that multiply: all read every stage."""
comptime THREADS = 32 * CONSUMER_WARPS + WARP_GROUP
"""Threads of a group: the consumers, then the fillers."""
comptime TOKENS = Plan.MANY.tokens
"""Rows of C of a group."""
comptime MULTIPROCESSORS = 132
"""Of an H200: groups that keep the device busy, one on each."""
comptime MAX_SHARED_TILES = 4 * MULTIPROCESSORS
"""Up to so many tiles, a group takes several. Guess, after tiles of another shape."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_many(staged: StagedTokens, a: Activations, w: Weights, result: Result):
    """Computes tiles of 128 columns of C for 256 rows.

    `staged` is what `expand_tokens` made of `a`, which is read again for the rows that are
    marked: those that bfloat16 cannot hold.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var pipeline = Pipeline[TOKENS](base, 0, 0)
    if thread_idx.x == 0:
        pipeline.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var schedule = bands_of[TOKENS](result)
    var num_tiles = UInt32(schedule.num_tiles())
    var k = UInt32(a.k)
    var index = UInt32(block_idx.x)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var num_steps = num_steps_of(k)
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            pipeline.parity = 1
            var num_filled = UInt32(pipeline.STAGES)
            while index < num_tiles:
                var token, column = first_of[TOKENS](schedule.tile(Int(index)))
                var filler = warp - UInt32(CONSUMER_WARPS)
                var source = Source[TOKENS].of(
                    staged.tokens, w, token, column, result.columns, k, 0, filler
                )
                if num_filled > 0:
                    fill_first_stages(pipeline, source, num_steps)
                fill_stages(pipeline, source, num_steps, num_filled)
                num_filled = 0
                index += UInt32(grid_dim.x)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var first_row = first_row_of(warp)
        var sums = TokenSums[TOKENS](uninitialized=True)
        wait_on_dependent_grids()
        while index < num_tiles:
            var token, column = first_of[TOKENS](schedule.tile(Int(index)))
            column += first_row
            index += UInt32(grid_dim.x)
            var marked = Marks[TOKENS].read(staged, a, result.rows, token)
            var flag = pipeline.flag(warp)
            consume(pipeline, k, HalfTile(warp), flag, sums)
            if index >= num_tiles:
                launch_dependent_grids()
            if stores_in_halves(result):
                store_tokens[True](sums, pipeline.room(warp), result, token, column)
            else:
                keep_branch()
                store_tokens[False](sums, pipeline.room(warp), result, token, column)
            # All lanes look before the flag is cleared for the next tile.
            var overflow = any_lane(load_word(flag) != 0)
            if overflow or marked.words.reduce_or() != 0:
                var exact = Exact(a, w)
                for i in range(min(UInt32(TOKENS), result.rows - token)):
                    if overflow or marked.has(UInt32(i)):
                        exact.store(result, token + UInt32(i), column)


@always_inline
def consume[
    tokens: Int, used: Int, //
](
    mut pipeline: Pipeline[tokens],
    k: UInt32,
    reader: Some[WeightReader],
    flag: UInt32,
    mut sums: TokenSums[used],
):
    """Multiplies the stages of a tile as they fill, with so many of their tokens."""
    comptime for i in range(used // part_tokens(used)):
        sums[i] = 0
    var num_steps = num_steps_of(k)
    var num_blocks = k // UInt32(BLOCK)
    store_word(flag, 0)
    var is_first_lane = lane_here() == 0
    wait_phase(pipeline.full(), pipeline.parity)
    var weights = reader.load(pipeline, num_blocks)
    var may_need_two = weights.may_need_two()
    var first = weights.decode[0](may_need_two, flag)
    var previous = pipeline
    for step in range(num_steps):
        var token_rows = lower_word(pipeline.tokens())
        multiply_block[used, 0](first, token_rows, sums)
        if step > 0 and is_first_lane:
            arrive(previous.empty())

        previous = pipeline
        pipeline.advance()
        var next = weights
        if step + 1 < num_steps:
            wait_phase(pipeline.full(), pipeline.parity)
            var blocks_left = num_blocks - (step + 1) * UInt32(STEP_BLOCKS)
            next = reader.load(pipeline, blocks_left)
        var second = weights.decode[1](may_need_two, flag)
        multiply_block[used, 1](second, token_rows, sums)
        weights = next
        may_need_two = weights.may_need_two()
        first = weights.decode[0](may_need_two, flag)
    wgmma_wait_group_sync[0]()
    if is_first_lane:
        arrive(previous.empty())


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem; it is made for many rows, and takes any number."""
    return takes_operands(problem)


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Expands the activations, and multiplies."""
    var staged = expand(problem, TOKENS, queue)
    queue.launch[matmul_many](
        grid(problem.m, problem.n), staged, Activations(problem), Weights(problem), Result(problem)
    )


def grid(m: Int, n: Int) -> Grid:
    """Returns the grid for C of [m, n].

    Of few tiles a group takes several; many are dealt, so that slow groups get fewer.
    """
    var tiles = Plan.MANY.groups(m, n)
    return Grid(
        min(tiles, MULTIPROCESSORS) if tiles <= MAX_SHARED_TILES else tiles,
        threads=THREADS,
        shared_bytes=Pipeline[TOKENS].NUM_BYTES,
        starts_early=True,
    )
