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

from ..formats import BLOCK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations, Result
from .expand_tokens import num_steps_of
from .fragments import any_lane, keep_branch, keep_here
from .prefill_result import Exact, Marks, lane_here, store_sums, stores_in_halves
from .prefill_stages import (
    COLUMNS,
    Pipeline,
    READERS,
    STEP_BLOCKS,
    Source,
    WARP_GROUP,
    fill_first_stages,
    fill_stages,
    place_of,
)
from .prefill_weights import StepWeights, first_row_of, half_of
from .shared_memory import arrive, load_word, shared_base, store_word, wait_phase
from .wgmma import (
    MAX_INSTRUCTION_TOKENS,
    TokenSums,
    limit_registers,
    lower_word,
    multiply_block,
)

comptime CONSUMER_REGISTERS = 232
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 40
"""Registers of the other threads: what consumers leave."""
comptime CONSUMER_WARPS = READERS
"""Warps that multiply: all read every stage."""
comptime THREADS = 32 * CONSUMER_WARPS + WARP_GROUP
"""Threads of a group: the consumers, then the fillers."""
comptime TOKENS = 256
"""Rows of C of a group."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_many_rows(
    expanded: DevicePointer[DType.uint8],
    marks: DevicePointer[DType.uint8],
    x: DevicePointer[DType.uint8],
    x_scales: DevicePointer[DType.uint8],
    row_stride: Int64,
    kind: Int32,
    x_dtype: Int32,
    carry: UInt32,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    rows: UInt32,
    columns: UInt32,
    k: UInt32,
    bias: DevicePointer[DType.uint8],
    bias_dtype: Int32,
    output: DevicePointer[DType.uint8],
    out_dtype: Int32,
):
    """Computes tiles of 128 columns of C for 256 rows.

    `expanded` are the stages of `expand_tokens`; `x` is what they were made from, for the rows
    that `marks` marks: those that bfloat16 cannot hold.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var pipeline = Pipeline[TOKENS](base, 0, 0)
    if thread_idx.x == 0:
        pipeline.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var token_groups = (rows + UInt32(TOKENS - 1)) // UInt32(TOKENS)
    var column_groups = (columns + UInt32(COLUMNS - 1)) // UInt32(COLUMNS)
    var num_tiles = token_groups * column_groups
    var index = UInt32(block_idx.x)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var num_steps = num_steps_of(k)
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            pipeline.parity = 1
            var num_filled = UInt32(pipeline.STAGES)
            while index < num_tiles:
                var token, column = place_of[TOKENS](index, token_groups, column_groups)
                var filler = warp - UInt32(CONSUMER_WARPS)
                var source = Source[TOKENS].of(
                    expanded, codes, scales, token, column, columns, k, 0, filler
                )
                if num_filled > 0:
                    fill_first_stages(pipeline, source, num_steps)
                fill_stages(pipeline, source, num_steps, num_filled)
                num_filled = 0
                index += UInt32(grid_dim.x)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
        var result = Result(output, out_dtype, bias, bias_dtype, Int(columns))
        var first_row = first_row_of(warp)
        var sums = TokenSums[TOKENS](uninitialized=True)
        wait_on_dependent_grids()
        while index < num_tiles:
            var token, column = place_of[TOKENS](index, token_groups, column_groups)
            column += first_row
            index += UInt32(grid_dim.x)
            var marked = Marks[TOKENS].read(marks, a, rows, token)
            consume(pipeline, k, warp, sums)
            if index >= num_tiles:
                launch_dependent_grids()
            if stores_in_halves(result):
                store_sums[TOKENS, True](sums, pipeline.room(warp), result, rows, token, column)
            else:
                keep_branch()
                store_sums[TOKENS, False](sums, pipeline.room(warp), result, rows, token, column)
            # All lanes look before the flag is cleared for the next tile.
            var overflow = any_lane(load_word(pipeline.flag(warp)) != 0)
            if overflow or marked.words.reduce_or() != 0:
                var exact = Exact(a, codes, scales, rows)
                for i in range(min(UInt32(TOKENS), rows - token)):
                    if overflow or marked.has(UInt32(i)):
                        exact.store(result, token + UInt32(i), column)


@always_inline
def consume(mut pipeline: Pipeline[TOKENS], k: UInt32, warp: UInt32, mut sums: TokenSums[TOKENS]):
    """Multiplies the stages of a tile as they fill."""
    comptime for i in range(TOKENS // MAX_INSTRUCTION_TOKENS):
        sums[i] = 0
    var num_steps = num_steps_of(k)
    var num_blocks = k // UInt32(BLOCK)
    var half = half_of(warp)
    var flag = pipeline.flag(warp)
    store_word(flag, 0)
    var is_first_lane = lane_here() == 0
    wait_phase(pipeline.full(), pipeline.parity)
    var weights = StepWeights.load(pipeline, warp, num_blocks)
    var may_need_two = weights.may_need_two()
    var first = weights.decode[0](half, may_need_two, flag)
    var previous = pipeline
    for step in range(num_steps):
        var tokens = lower_word(pipeline.tokens())
        multiply_block[TOKENS, 0](first, tokens, sums)
        if step > 0 and is_first_lane:
            arrive(previous.empty())

        previous = pipeline
        pipeline.advance()
        var next = weights
        if step + 1 < num_steps:
            wait_phase(pipeline.full(), pipeline.parity)
            var blocks_left = num_blocks - (step + 1) * UInt32(STEP_BLOCKS)
            next = StepWeights.load(pipeline, warp, blocks_left)
        var second = weights.decode[1](half, may_need_two, flag)
        multiply_block[TOKENS, 1](second, tokens, sums)
        weights = next
        may_need_two = weights.may_need_two()
        first = weights.decode[0](half, may_need_two, flag)
    wgmma_wait_group_sync[0]()
    if is_first_lane:
        arrive(previous.empty())
