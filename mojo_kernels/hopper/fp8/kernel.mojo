"""Many rows of MXFP4 activations: FP8 tensor cores, at twice the rate of bfloat16.

As in `many`, fillers copy stages and two warp groups of consumers decode weights in registers;
here a stage has 128 steps of K, and tokens and decoded weights are E5M2 bytes, see `codes`.
The groups take turns, so that the tensor cores have work while one of them is busy:

    group 0      multiply   add up, decode   multiply   add up, decode   ...
    group 1                 multiply         add up, decode   multiply   ...

After a stage its sums are added to those in float32 registers, and in the end both rows' powers
of two are applied. Products and scales are exact. An instruction adds 32 products to what there
is so far, each cut off 13 bits below the largest one: so an element of C is as far from the exact
product as float32 sums are, and for each instruction at most 33 * 2 ** -13 times its largest
addend. Blocks with equal scales lose nothing.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ...simt.views import FLOAT32, flat_of
from ..instructions.shared_memory import (
    any_thread,
    arrive,
    pass_turn,
    shared_base,
    wait_phase,
    wait_turn,
)
from ..instructions.warp import keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    FP8_K,
    FP8_TOKENS,
    Fp8Sums,
    PART_SUMS,
    UNIT_BYTES,
    limit_registers,
    lower_word,
    multiply_bytes,
    settle,
)
from ..layout import BLOCK, OPERANDS
from ..many import kernel as many
from ..many.kernel import CONSUMER_WARPS, MAX_SHARED_TILES, MULTIPROCESSORS, THREADS
from ..many.result import stores_in_halves
from ..plan import Plan, takes_operands
from ..staged.activations import StagedTokens, expand_chunks, marks_of_row, num_steps_of
from ..staged.stages import (
    Pipeline,
    Source,
    TILES,
    bands_of,
    fill_first_stages,
    fill_stages,
    first_of,
)
from ..staged.weights import first_row_of
from .bases import ByteRows, STEP_BLOCKS
from .result import store_tokens
from .rows import MAX_K, prepare
from .weights import Operand, RowTables, StepCodes

comptime CONSUMER_REGISTERS = 240
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 24
"""Registers of the other threads: what consumers leave."""
comptime CONSUMERS = 32 * CONSUMER_WARPS
"""Threads that multiply."""
comptime Stages = Pipeline[FP8_TOKENS, STEP_BLOCKS]
"""Stages of bytes."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_fp8(rows: ByteRows, a: Activations, w: Weights, result: Result, staged: StagedTokens):
    """Computes tiles of 128 columns of C for 192 rows.

    If a row has no base, C is wrong, and the groups write `staged` for the kernel that follows.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var pipeline = Stages(base, 0, 0)
    if thread_idx.x == 0:
        pipeline.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var schedule = bands_of[FP8_TOKENS](result)
    var num_tiles = UInt32(schedule.num_tiles())
    var index = UInt32(block_idx.x)
    var length = UInt32(a.k)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var num_steps = num_steps_of[STEP_BLOCKS](length)
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            pipeline.parity = 1
            var num_filled = UInt32(pipeline.STAGES)
            while index < num_tiles:
                var token, column = first_of[FP8_TOKENS](schedule.tile(Int(index)))
                var filler = warp - UInt32(CONSUMER_WARPS)
                var source = Source[FP8_TOKENS, STEP_BLOCKS].of(
                    rows.tokens, w, token, column, result.columns, length, 0, filler
                )
                if num_filled > 0:
                    fill_first_stages(pipeline, source, num_steps)
                fill_stages(pipeline, source, num_steps, num_filled)
                num_filled = 0
                index += UInt32(grid_dim.x)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = Fp8Sums(uninitialized=True)
        wait_on_dependent_grids()
        var misses = rows.misses_base[CONSUMERS](result.rows, result.columns)
        if warp >= UInt32(TILES):
            pass_turn[CONSUMERS](turn_of(0))
        while index < num_tiles:
            var token, column = first_of[FP8_TOKENS](schedule.tile(Int(index)))
            column += first_row_of(warp)
            index += UInt32(grid_dim.x)
            var tables = RowTables.load(rows, column, result.columns)
            consume(pipeline, length, warp, tables, sums)
            if index >= num_tiles:
                launch_dependent_grids()
            if stores_in_halves(result):
                store_tokens[True](sums, pipeline.room(warp), rows, result, token, column)
            else:
                keep_branch()
                store_tokens[False](sums, pipeline.room(warp), rows, result, token, column)
        misses = any_thread[CONSUMERS](misses)
        if block_idx.x == 0 and thread_idx.x == 0:
            flat_of(rows.gate().word)[0] = UInt32(1) if misses else UInt32(0)
        if misses:
            keep_branch()
            expand_rows(a, staged, result.rows)


@always_inline
def turn_of(group: UInt32) -> UInt32:
    """Returns the hardware barrier at which a warp group waits for its turn."""
    return 1 + group


@always_inline
def expand_rows(a: Activations, staged: StagedTokens, num_rows: UInt32):
    """Writes the rows of this group as bfloat16 numbers, as `matmul_many` wants them."""
    for row in range(UInt32(block_idx.x), num_rows, UInt32(grid_dim.x)):
        for mark in range(marks_of_row(UInt32(a.k))):
            expand_chunks(a, staged, row, mark, UInt32(many.TOKENS))


@always_inline
def multiply_stage[
    type: StaticString
](operands: Array[Operand, STEP_BLOCKS], token_rows: UInt32, mut partial: Fp8Sums):
    """Starts the products of a stage; those of its first block begin new sums."""
    wgmma_fence_aligned()
    comptime for block in range(STEP_BLOCKS):
        comptime at = block * FP8_K // UNIT_BYTES
        multiply_bytes[type, block > 0](operands[block], token_rows + UInt32(at), partial)
    wgmma_commit_group_sync()


@always_inline
def consume(
    mut pipeline: Stages,
    length: UInt32,
    warp: UInt32,
    tables: RowTables,
    mut sums: Fp8Sums,
):
    """Multiplies the stages of a tile as they fill.

    The warp groups take turns: one decodes and adds up while the instructions of the other run.
    """
    var partial = Fp8Sums(fill=0)
    sums = Fp8Sums(fill=0)
    var num_steps = num_steps_of[STEP_BLOCKS](length)
    var num_blocks = length // UInt32(BLOCK)
    var group = warp // UInt32(TILES)
    var is_first_lane = lane_here() == 0
    wait_phase(pipeline.full(), pipeline.parity)
    var codes = StepCodes.load(pipeline, warp, num_blocks)
    var operands = codes.decode(tables, warp)
    for step in range(num_steps):
        wait_turn[CONSUMERS](turn_of(group))
        multiply_stage["e5m2"](operands, lower_word(pipeline.tokens()), partial)
        pass_turn[CONSUMERS](turn_of(1 - group))

        var previous = pipeline
        pipeline.advance()
        if step + 1 < num_steps:
            wait_phase(pipeline.full(), pipeline.parity)
            var blocks_left = num_blocks - (step + 1) * UInt32(STEP_BLOCKS)
            codes = StepCodes.load(pipeline, warp, blocks_left)
        # Others than those in use: instructions read their operands until the wait.
        var next = codes.decode(tables, warp)
        wgmma_wait_group_sync[0]()
        if is_first_lane:
            arrive(previous.empty())
        settle(partial)
        comptime for i in range(FP8_TOKENS // 2 // PART_SUMS):
            sums[i] += partial[i]
        operands = next^


def takes(left_format: Int, k: Int) -> Bool:
    """Says whether the kernel takes activations: of no format, they are kept as they are."""
    return left_format == OPERANDS.code() and k <= MAX_K


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: MXFP4 on both sides, C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        takes_operands(problem)
        and takes(problem.left.format, problem.k)
        and Int32(problem.result.dtype) != FLOAT32
    )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the rows and multiplies; what cannot be bytes is computed once more."""
    if not supports(problem):
        raise Error("plan: FP8 is for MXFP4 activations, and for bfloat16 or float16 results")
    var rows = prepare(problem, FP8_TOKENS, queue)
    var staged = StagedTokens.at(Int(rows.tokens), problem.m, problem.k)
    queue.launch[matmul_fp8](
        grid(problem.m, problem.n),
        rows,
        Activations(problem),
        Weights(problem),
        Result(problem),
        staged,
    )
    many.launch_product(problem, staged, rows.gate(), queue)


def grid(m: Int, n: Int) -> Grid:
    """Returns the grid for C of [m, n]; see that of `many`."""
    var tiles = Plan.FP8.groups(m, n)
    return Grid(
        min(tiles, MULTIPROCESSORS) if tiles <= MAX_SHARED_TILES else tiles,
        threads=THREADS,
        shared_bytes=Stages.NUM_BYTES,
        starts_early=True,
    )
