"""Dozens to hundreds of rows: weights decoded in registers meet tokens in shared memory.

A group computes 128 columns of C for 64 or 128 rows, and the groups of its cluster ("ranks")
split K. Warp groups have roles, and registers to suit:

    filler        starts the copies of stages: 64 steps of K of the tokens
    2 consumers   take every other stage: each warp copies and decodes 32 weight rows,
                  C^T += weights @ tokens^T

In the end all sums meet in shared memory, each rank adds up its share over consumers and ranks,
in order, and stores it.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.compute.mma import (
    wgmma_async,
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.memory import bitcast
from std.utils import StaticTuple

from ..formats import BLOCK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations, Result
from .expand_tokens import num_steps_of
from .layout import TILE_ROWS
from .middle_stages import (
    COLUMNS,
    CONSUMERS,
    GroupShape,
    Pipeline,
    THREADS,
    WARP_GROUP,
    fill_stages,
    read_marks,
)
from .middle_sums import Exact, Share, leave_sums, store_share
from .middle_weights import STEP_BLOCKS, WeightRing
from .shared_memory import arrive, shared_base, wait_copies, wait_phase
from .wgmma import UNIT_BYTES, descriptor, limit_registers, lower_word

comptime CONSUMER_REGISTERS = 240
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 24
"""Registers of the other threads: what consumers leave."""
comptime INSTRUCTION_ROWS = 64
"""Weight rows of one instruction: half of each warp's."""
comptime INSTRUCTION_K = 16
"""Steps of K of one instruction."""
comptime INSTRUCTIONS = COLUMNS // INSTRUCTION_ROWS
"""Instructions that take all rows of a consumer."""
comptime TILES = COLUMNS // TILE_ROWS
"""Tiles of weight rows of a group."""
comptime SHARING = UInt32(8)
"""Groups in a row that share their weights, for the second-level cache."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_some_rows[
    TOKENS: Int
](
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
    token_groups: UInt32,
    column_groups: UInt32,
    ranks: UInt32,
):
    """Computes a tile of C of `TOKENS` rows with its cluster.

    `expanded` are the stages of `expand_tokens`; `x` is what they were made from, for the rows
    that `marks` marks: those that bfloat16 cannot hold.
    """
    # Who am I: a tile of C, and a share of K.
    comptime Shape = GroupShape[TOKENS]
    var rank = UInt32(block_idx.x) % ranks
    var group = UInt32(block_idx.x) // ranks
    var band = group // (SHARING * column_groups)
    var in_band = group % (SHARING * column_groups)
    var band_width = min(SHARING, token_groups - band * SHARING)
    var token_group = band * SHARING + in_band % band_width
    var first_column = (in_band // band_width) * UInt32(COLUMNS)
    var first_tile = first_column // UInt32(TILE_ROWS)
    var num_tiles = min(
        UInt32(TILES), (columns + UInt32(TILE_ROWS - 1)) // UInt32(TILE_ROWS) - first_tile
    )
    var share = (num_steps_of(k) + ranks - 1) // ranks
    var first_step = min(rank * share, num_steps_of(k))
    var num_steps = min(share, num_steps_of(k) - first_step)
    var first_token = token_group * UInt32(TOKENS)
    var pipeline = Pipeline[TOKENS](shared_base(), 0, 0)
    if thread_idx.x == 0:
        pipeline.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var warp_group = warp // UInt32(WARP_GROUP // 32)
    if warp_group == UInt32(CONSUMERS):
        limit_registers["dec", FILLER_REGISTERS]()
        var thread = UInt32(thread_idx.x) % UInt32(WARP_GROUP)
        if thread == 0:
            var first_stage = Int(token_group) * Int(num_steps_of(k)) + Int(first_step)
            var source = expanded.unsafe_offset(first_stage * Shape.STAGE_BYTES)
            fill_stages(pipeline, source, num_steps)
        elif thread >= 32:
            read_marks(pipeline, marks, k, rows, first_token, thread - 32)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var tile = warp % UInt32(TILES)
        var ring = WeightRing.start(
            pipeline.ring(warp),
            codes,
            scales,
            first_tile + tile,
            first_tile + num_tiles,
            k // UInt32(BLOCK),
            (first_step + warp_group) * UInt32(STEP_BLOCKS),
            min(k // UInt32(BLOCK), (first_step + num_steps) * UInt32(STEP_BLOCKS)),
            UInt32(CONSUMERS * STEP_BLOCKS),
        )
        consume(pipeline, ring, num_steps, warp_group, tile)
        wait_phase(pipeline.marked(), 0)
        wait_on_dependent_grids()
        launch_dependent_grids()
        store_share(
            pipeline,
            Share(rank, ranks, rows, first_token, first_column),
            Result(output, out_dtype, bias, bias_dtype, Int(columns)),
            Exact(
                Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k)),
                codes,
                scales,
            ),
        )


@always_inline
def consume[
    tokens: Int
](
    var pipeline: Pipeline[tokens],
    var ring: WeightRing,
    num_steps: UInt32,
    consumer: UInt32,
    tile: UInt32,
):
    """Multiplies the stages as they fill, then leaves the sums in shared memory."""
    comptime WIDTH = INSTRUCTION_ROWS * tokens // WARP_GROUP
    var sums = Array[SIMD[DType.float32, WIDTH], INSTRUCTIONS](uninitialized=True)
    comptime for i in range(INSTRUCTIONS):
        sums[i] = SIMD[DType.float32, WIDTH](0)
    pipeline.advance(Int(consumer))
    var weights = ring.next()
    var first = weights.decode[0](pipeline.flag())
    var second = weights.decode[1](pipeline.flag())
    var step = consumer
    while step < num_steps:
        wait_phase(pipeline.full(), pipeline.parity)
        wgmma_fence_aligned()
        multiply_block[0](first, pipeline.token_rows(), sums)
        wgmma_commit_group_sync()
        multiply_block[1](second, pipeline.token_rows(), sums)
        wgmma_commit_group_sync()

        weights = ring.next()
        wgmma_wait_group_sync[1]()
        first = weights.decode[0](pipeline.flag())
        wgmma_wait_group_sync[0]()
        if thread_idx.x % 32 == 0:
            arrive(pipeline.empty())
        second = weights.decode[1](pipeline.flag())
        pipeline.advance(CONSUMERS)
        step += UInt32(CONSUMERS)
    wait_copies[0]()
    leave_sums(pipeline, sums, tile, consumer)


@always_inline
def multiply_block[
    width: Int, //, block: Int
](
    decoded: SIMD[DType.uint32, 16],
    token_rows: UInt32,
    mut sums: Array[SIMD[DType.float32, width], INSTRUCTIONS],
):
    """Starts the products of one block: both halves of the warps' rows, K in two steps."""
    comptime TOKENS = width * WARP_GROUP // INSTRUCTION_ROWS
    comptime for k_step in range(BLOCK // INSTRUCTION_K):
        comptime offset = UInt32(2 * (BLOCK * block + INSTRUCTION_K * k_step) // UNIT_BYTES)
        comptime for half in range(INSTRUCTIONS):
            comptime at = 8 * half + 2 * k_step
            sums[half] = wgmma_async[
                INSTRUCTION_ROWS,
                TOKENS,
                INSTRUCTION_K,
                DType.bfloat16,
                DType.float32,
                8,
                width,
                a_type=DType.bfloat16,
                b_type=DType.bfloat16,
            ](
                bitcast[DType.bfloat16, 8](
                    SIMD[DType.uint32, 4](
                        decoded[at], decoded[at + 4], decoded[at + 1], decoded[at + 5]
                    )
                ),
                descriptor(lower_word(token_rows) + offset),
                sums[half],
            )
