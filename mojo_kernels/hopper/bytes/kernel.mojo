"""Rows of E4M3 codes on both sides: FP8 tensor cores, twice the rate of bfloat16.

The kernel is that of `fp8` but for its operands: weights are codes that need no decoding, or
those of four bits, all of which E4M3 has. Two warp groups of consumers take turns, fillers copy
stages of 128 steps of K:

    group 0      multiply   add up, load     multiply   add up, load     ...
    group 1                 multiply         add up, load     multiply   ...

After a stage its sums are added to those in float32 registers. Where a side has a scale for each
128 elements they are first multiplied by the factors of both rows; where both sides have one scale
a row, sums are multiplied in the end. Of MX formats sums of each block of 32 are: 285 instructions
of both warps that share a scheduler, for 192 cycles of tensor cores. That is 2280 cycles a stage,
where codes that became bfloat16 numbers would take 1536, and their decoding.

An instruction adds 32 products to what there is so far, each cut off 13 bits below the largest one,
which would grow with K if the tensor core went on adding. So an element of C is as far from the
exact product as float32 sums are, and for each instruction at most 33 * 2 ** -13 times its largest
addend: less than bfloat16 and float16 show, but more than float32 does.

A warp with a weight scale beyond 2 ** -116 .. 2 ** 64 (of MX: above it) computes its columns once
more, in float64.
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
from ...numbers.elements import Element
from ...numbers.formats import FORMATS, Format, WHOLE_ROW
from ...numbers.scales import Scale
from ...problem import ANY, Known, LeftKind, Problem, may_be
from ...simt.arguments import Activations, Result, Weights
from ...simt.matmul import is_aligned
from ...simt.views import FLOAT32
from ..fp8.bases import STEP_BLOCKS
from ..fp8.kernel import CONSUMERS, CONSUMER_REGISTERS, FILLER_REGISTERS, multiply_stage, turn_of
from ..fp8.result import store_tokens
from ..instructions.shared_memory import (
    arrive,
    load_word,
    pass_turn,
    shared_base,
    store_word,
    wait_phase,
    wait_turn,
)
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    FP8_K,
    FP8_TOKENS,
    Fp8Sums,
    PART_SUMS,
    ROW_BYTES,
    UNIT_BYTES,
    limit_registers,
    lower_word,
    multiply_bytes,
    settle,
)
from ..many.kernel import CONSUMER_WARPS, MAX_SHARED_TILES, MULTIPROCESSORS, THREADS
from ..many.result import stores_in_halves
from ..plan import PRESHUFFLED, Plan
from ..staged.stages import TILES, bands_of, first_of
from ..staged.weights import first_row_of
from .exact import store_exactly
from .result import TileFactors, add_scaled
from .rows import prepare
from .stages import (
    FACTORS_BYTES,
    MX_SETS,
    Scaling,
    Source,
    Stages,
    TokenStages,
    factors_at,
    fill_first_stages,
    fill_stages,
)
from .weights import (
    RowScales,
    WeightScales,
    flag_extremes,
    flag_large,
    load_operand,
    load_operands,
    mx_factors,
)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_bytes[
    scaling: Scaling
](stages: TokenStages, a: Activations, w: Weights, scales: WeightScales, result: Result):
    """Computes tiles of 128 columns of C for 192 rows."""
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var pipeline = Stages[scaling.sets](base, 0, 0)
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
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            pipeline.parity = 1
            var num_filled = UInt32(pipeline.STAGES)
            while index < num_tiles:
                var token, column = first_of[FP8_TOKENS](schedule.tile(Int(index)))
                var filler = warp - UInt32(CONSUMER_WARPS)
                var source = Source[scaling].of(
                    stages, w, token, column, result.columns, length, filler
                )
                if num_filled > 0:
                    fill_first_stages(pipeline, source, stages.num_steps)
                fill_stages(pipeline, source, stages.num_steps, num_filled)
                num_filled = 0
                index += UInt32(grid_dim.x)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = Fp8Sums(uninitialized=True)
        wait_on_dependent_grids()
        if warp >= UInt32(TILES):
            pass_turn[CONSUMERS](turn_of(0))
        while index < num_tiles:
            var token, column = first_of[FP8_TOKENS](schedule.tile(Int(index)))
            column += first_row_of(warp)
            index += UInt32(grid_dim.x)
            comptime if scaling.sets == MX_SETS:
                consume_blocks[scaling](pipeline, length, warp, sums)
            else:
                var rows = RowScales.of(scales, column, result.columns)
                consume[scaling](pipeline, length, warp, rows, sums)
            if index >= num_tiles:
                launch_dependent_grids()
            var factors = TileFactors[scaling == Scaling.ROWS](stages, scales)
            if stores_in_halves(result):
                store_tokens[True](sums, pipeline.room(warp), factors, result, token, column)
            else:
                keep_branch()
                store_tokens[False](sums, pipeline.room(warp), factors, result, token, column)
            if any_lane(load_word(pipeline.flag(warp)) != 0):
                keep_branch()
                for row in range(token, min(token + UInt32(FP8_TOKENS), result.rows)):
                    store_exactly[scaling](stages, w, scales, result, row, column, length)


@always_inline
def consume[
    scaling: Scaling
](
    mut pipeline: Stages[scaling.sets],
    length: UInt32,
    warp: UInt32,
    rows: RowScales,
    mut sums: Fp8Sums,
):
    """Multiplies the stages of a tile as they fill; raises the warp's flag for extreme factors.

    Factors are those of a stage, or wait for the end.

    The warp groups take turns: one adds up and loads while the instructions of the other run.
    """
    var partial = Fp8Sums(fill=0)
    sums = Fp8Sums(fill=0)
    var num_blocks = length // UInt32(FP8_K)
    var num_steps = (num_blocks + UInt32(STEP_BLOCKS - 1)) // UInt32(STEP_BLOCKS)
    var group = warp // UInt32(TILES)
    var is_first_lane = lane_here() == 0
    var factors = rows.load(0)
    store_word(pipeline.flag(warp), 0)
    flag_extremes(factors, pipeline.flag(warp))
    wait_phase(pipeline.full(), pipeline.parity)
    var operands = load_operands[scaling](pipeline, warp, num_blocks)
    for step in range(num_steps):
        wait_turn[CONSUMERS](turn_of(group))
        multiply_stage["e4m3"](operands, lower_word(pipeline.tokens()), partial)
        pass_turn[CONSUMERS](turn_of(1 - group))

        var previous = pipeline
        pipeline.advance()
        var next_factors = factors
        comptime if scaling == Scaling.STAGES:
            if step + 1 < num_steps:
                next_factors = rows.load(step + 1)
        wgmma_wait_group_sync[0]()
        settle(partial)
        comptime if scaling == Scaling.STAGES:
            add_scaled(partial, factors_at[scaling.sets](previous), factors, sums)
            flag_extremes(next_factors, pipeline.flag(warp))
            factors = next_factors
        else:
            comptime for i in range(FP8_TOKENS // 2 // PART_SUMS):
                sums[i] += partial[i]
        if is_first_lane:
            arrive(previous.empty())
        # Not before the wait: instructions read their operands until then, and the compiler, which
        # does not know that, loads into the same registers.
        if step + 1 < num_steps:
            wait_phase(pipeline.full(), pipeline.parity)
            var blocks_left = num_blocks - (step + 1) * UInt32(STEP_BLOCKS)
            operands = load_operands[scaling](pipeline, warp, blocks_left)


@always_inline
def consume_blocks[
    scaling: Scaling
](mut pipeline: Stages[scaling.sets], length: UInt32, warp: UInt32, mut sums: Fp8Sums):
    """The same of MX formats: sums of each block are multiplied by its factors."""
    var partial = Fp8Sums(fill=0)
    sums = Fp8Sums(fill=0)
    var group = warp // UInt32(TILES)
    var is_first_lane = lane_here() == 0
    var num_blocks = length // UInt32(FP8_K)
    store_word(pipeline.flag(warp), 0)
    for index in range(num_blocks):
        var block = index % UInt32(STEP_BLOCKS)
        if block == 0:
            wait_phase(pipeline.full(), pipeline.parity)
        var operand = load_operand[scaling](pipeline, warp, block)
        var factors = mx_factors(pipeline, warp, block)
        flag_large(factors, pipeline.flag(warp))

        wait_turn[CONSUMERS](turn_of(group))
        wgmma_fence_aligned()
        var tokens = lower_word(pipeline.tokens()) + block * UInt32(FP8_K // UNIT_BYTES)
        multiply_bytes["e4m3", False](operand, tokens, partial)
        wgmma_commit_group_sync()
        pass_turn[CONSUMERS](turn_of(1 - group))

        wgmma_wait_group_sync[0]()
        settle(partial)
        var tokens_at = factors_at[scaling.sets](pipeline) + block * UInt32(FACTORS_BYTES)
        add_scaled(partial, tokens_at, factors, sums)
        if block == UInt32(STEP_BLOCKS - 1) or index + 1 == num_blocks:
            if is_first_lane:
                arrive(pipeline.empty())
            pipeline.advance()


comptime IS_ON = True
"""Whether products get the kernel; else the portable one."""
comptime MX_IS_ON = True
"""Whether those of MX formats do."""


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that the kernel takes it."""
    comptime if not may_be(known.layout, PRESHUFFLED):
        return False
    elif known.left_format == ANY or known.right_format == ANY:
        return True
    else:
        return takes_formats(known.left_format, known.right_format)


def takes_formats(left: Int, right: Int) -> Bool:
    """Says whether the kernel takes a pair of formats: float scales on both sides, or MX."""
    comptime MXFP8, MXFP4 = Format.MXFP8.code(), Format.MXFP4.code()
    comptime if MX_IS_ON:
        if left == MXFP8 and right in (MXFP8, MXFP4):
            return True
    comptime if IS_ON:
        return has_stages(left) and has_stages(right)
    else:
        return False


def has_stages(format: Int) -> Bool:
    """Says whether a format is E4M3 with a float32 scale for 128 elements or a row."""
    comptime for i in range(len(FORMATS)):
        comptime F = FORMATS[i]
        comptime has_blocks = F.block_k == ROW_BYTES or F.block_k == WHOLE_ROW
        comptime if F.element == Element.E4M3 and F.scale == Scale.FLOAT32 and has_blocks:
            if format == i:
                return True
    return False


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: codes on both sides, C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        problem.left.kind != LeftKind.KEPT
        and takes_formats(problem.left.format, problem.right.format)
        and problem.right.layout == PRESHUFFLED
        and is_aligned(problem)
        and Int32(problem.result.dtype) != FLOAT32
    )


def launch(problem: Problem, mut queue: Some[Queue]) raises:
    """Prepares the rows and multiplies."""
    var scaling = Scaling.of(problem.left.format, problem.right.format, problem.k)
    var stages = prepare(problem, scaling, queue)
    comptime for known in [Scaling.ROWS, Scaling.STAGES, Scaling.MXFP8, Scaling.MXFP4]:
        if scaling == known:
            queue.launch[matmul_bytes[known]](
                grid(problem.m, problem.n, known),
                stages,
                Activations(problem),
                Weights(problem),
                WeightScales.of(problem),
                Result(problem),
            )


def grid(m: Int, n: Int, scaling: Scaling) -> Grid:
    """Returns the grid for C of [m, n]; see that of `many`."""
    var tiles = Plan.BYTES.groups(m, n)
    return Grid(
        min(tiles, MULTIPROCESSORS) if tiles <= MAX_SHARED_TILES else tiles,
        threads=THREADS,
        shared_bytes=Stages[MX_SETS].NUM_BYTES if scaling.sets == MX_SETS else Stages[1].NUM_BYTES,
        starts_early=True,
    )
