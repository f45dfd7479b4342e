"""Many rows of activations: decoded weights meet tokens in shared memory.

A group computes 128 columns of C for 256 rows. Warp groups have roles, and registers to suit:

    2 producers   fill stages in turn, see `prefill_stages`
    2 consumers   64 columns each: C^T += weights @ tokens^T straight from the stage
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.compute.mma import (
    WGMMADescriptor,
    wgmma_async,
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from max.gpu.sync import barrier
from std.memory import bitcast
from std.sys._assembly import inlined_assembly
from std.utils import StaticTuple

from ..simt.codec import CHUNK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations, FLOATS, Result
from .exact import compute_exactly
from .expand_tokens import ROW_BYTES, STEP, marks_of_row, num_steps_of
from .fragments import any_lane, keep_branch
from .layout import K_LANES, ROW_LANES
from .prefill_stages import (
    CONSUMERS,
    CONSUMER_THREADS,
    HALF_ROWS,
    HEADER_BYTES,
    PART_BYTES,
    Pipeline,
    STAGES,
    SUM_STRIDE,
    THREADS,
    TOKEN_TILE,
    WARP_GROUP,
    WEIGHT_ROWS,
    produce,
)
from .shared_memory import (
    arrive,
    init_barrier,
    load_quad,
    load_word,
    shared_base,
    store_word,
    wait_at,
    wait_phase,
)
from .wgmma import descriptor, limit_registers

comptime CONSUMER_REGISTERS = 168
"""Registers of a consumer thread more than its even share."""
comptime PRODUCER_REGISTERS = 88
"""Registers of a producer thread: what consumers leave."""
comptime INSTRUCTION_TOKENS = 128
"""Tokens of one instruction: its sums have to fit a thread's even share of registers."""
comptime K_INSTRUCTION = 16
"""Steps of K of one instruction."""
comptime SUMS_BARRIER = UInt32(1)
"""The hardware barrier of the consumers."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_many_rows(
    tokens: DevicePointer[DType.uint8],
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
):
    """Computes 128 columns of C for 256 rows.

    `tokens` are the stages of `expand_tokens`; `x` is what they were made from, for the rows that
    `marks` marks: those that bfloat16 cannot hold.
    """
    # Who am I: eight groups in a row share their weights, for the second-level cache.
    comptime SHARING = UInt32(8)
    var band = UInt32(block_idx.x) // (SHARING * column_groups)
    var in_band = UInt32(block_idx.x) % (SHARING * column_groups)
    var band_width = min(SHARING, token_groups - band * SHARING)
    var first_token = (band * SHARING + in_band % band_width) * UInt32(TOKEN_TILE)
    var first_column = (in_band // band_width) * UInt32(WEIGHT_ROWS)
    var num_steps = num_steps_of(k)
    var warp_group = UInt32(thread_idx.x) // UInt32(WARP_GROUP)
    var pipeline = Pipeline(shared_base(), 0, 0)
    if thread_idx.x == 0:
        store_word(pipeline.flag(), 0)
        comptime for i in range(STAGES):
            init_barrier(pipeline.base + UInt32(8 * i), UInt32(WARP_GROUP))
            init_barrier(pipeline.base + UInt32(8 * (STAGES + i)), UInt32(CONSUMERS))
    barrier()
    wait_on_dependent_grids()

    if warp_group >= UInt32(CONSUMERS):
        limit_registers["dec", PRODUCER_REGISTERS]()
        produce(
            pipeline,
            tokens,
            codes,
            scales,
            columns,
            k,
            first_token,
            first_column,
            warp_group - UInt32(CONSUMERS),
        )
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        consume(pipeline, num_steps, warp_group)
        var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
        var result = Result(output, out_dtype, bias, bias_dtype, Int(columns))
        store_sums(pipeline, result, rows, first_token, first_column)
        store_exactly(
            pipeline,
            a,
            codes,
            scales,
            marks,
            result,
            rows,
            first_token,
            first_column,
        )


@always_inline
def store_sums(
    pipeline: Pipeline,
    result: Result,
    rows: UInt32,
    first_token: UInt32,
    first_column: UInt32,
):
    """Stores eight columns of a row a thread, from the sums in shared memory."""
    comptime ROW_CHUNKS = UInt32(WEIGHT_ROWS // CHUNK)
    var columns = UInt32(result.columns)
    var sums_at = pipeline.base + UInt32(HEADER_BYTES)
    for item in range(
        UInt32(thread_idx.x), UInt32(TOKEN_TILE) * ROW_CHUNKS, UInt32(CONSUMER_THREADS)
    ):
        var token = item // ROW_CHUNKS
        var chunk = item % ROW_CHUNKS
        var row = first_token + token
        var column = first_column + chunk * UInt32(CHUNK)
        if row >= rows or column >= columns:
            continue
        var at = sums_at + 4 * (token * UInt32(SUM_STRIDE) + chunk * UInt32(CHUNK))
        var low = bitcast[DType.float32, 4](load_quad(at))
        var high = bitcast[DType.float32, 4](load_quad(at + UInt32(PART_BYTES)))
        if columns % UInt32(CHUNK) == 0:
            result.store[8, 8](Int(row), Int(column), low.join(high))
        else:
            keep_branch()
            comptime for i in range(CHUNK):
                if column + UInt32(i) < columns:
                    var sum = low[i] if i < 4 else high[i - 4]
                    result.store[1, 1](Int(row), Int(column) + i, SIMD[DType.float32, 1](sum))


@always_inline
def store_exactly(
    pipeline: Pipeline,
    a: Activations,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    marks: DevicePointer[DType.uint8],
    result: Result,
    rows: UInt32,
    first_token: UInt32,
    first_column: UInt32,
):
    """Stores once more, one row of a warp after the other, what bfloat16 operands cannot give."""
    var weights_overflow = load_word(pipeline.flag()) != 0
    if a.kind == Int32(FLOATS) and not weights_overflow:
        return
    # The sums stored before are not to overtake those stored now.
    wait_at[CONSUMER_THREADS](SUMS_BARRIER)
    # Each lane looks at one row; the warp computes those that its lanes found.
    var lane = UInt32(thread_idx.x) % 32
    var row = first_token + UInt32(thread_idx.x)
    var overflow = weights_overflow
    if a.kind != Int32(FLOATS) and row < rows:
        var num_marks = marks_of_row(UInt32(a.k))
        for i in range(num_marks):
            overflow |= marks[unsafe_offset=Int(row) * Int(num_marks) + Int(i)] != 0
    if not any_lane(overflow):
        return
    var last_column = min(first_column + UInt32(WEIGHT_ROWS), UInt32(result.columns))
    for i in range(UInt32(32)):
        if any_lane(overflow and lane == i):
            for column in range(first_column, last_column):
                compute_exactly(a, codes, scales, result, rows, row - lane + i, column, lane)


@always_inline
def consume(var pipeline: Pipeline, num_steps: UInt32, warp_group: UInt32):
    """Multiplies the stages as they fill, then leaves the sums as [token][column]."""
    comptime INSTRUCTIONS = TOKEN_TILE // INSTRUCTION_TOKENS
    comptime WIDTH = HALF_ROWS * INSTRUCTION_TOKENS // WARP_GROUP
    var sums = Array[StaticTuple[Float32, WIDTH], INSTRUCTIONS](uninitialized=True)
    comptime for i in range(INSTRUCTIONS):
        sums[i] = StaticTuple[Float32, WIDTH](fill=0)
    var previous = pipeline
    for step in range(num_steps):
        wait_phase(pipeline.full(), pipeline.parity)
        var weights_at = pipeline.weights() + warp_group * UInt32(HALF_ROWS * ROW_BYTES)
        wgmma_fence_aligned()
        comptime for part in range(STEP // K_INSTRUCTION):
            comptime offset = UInt32(2 * K_INSTRUCTION * part)
            comptime for i in range(INSTRUCTIONS):
                comptime first_row = UInt32(i * INSTRUCTION_TOKENS * ROW_BYTES)
                sums[i] = wgmma_async[
                    HALF_ROWS,
                    INSTRUCTION_TOKENS,
                    K_INSTRUCTION,
                    DType.float32,
                    WIDTH,
                    a_type=DType.bfloat16,
                    b_type=DType.bfloat16,
                ](
                    descriptor(weights_at + offset),
                    descriptor(pipeline.tokens() + first_row + offset),
                    sums[i],
                )
        wgmma_commit_group_sync()
        wgmma_wait_group_sync[1]()
        if step > 0 and thread_idx.x % WARP_GROUP == 0:
            arrive(previous.empty())
        previous = pipeline
        pipeline.advance()
    wgmma_wait_group_sync[0]()

    # The stages become room for the sums when both consumers have read them all.
    wait_at[CONSUMER_THREADS](SUMS_BARRIER)
    var lane = UInt32(thread_idx.x) % 32
    var warp = (UInt32(thread_idx.x) % UInt32(WARP_GROUP)) // 32
    var row = warp_group * UInt32(HALF_ROWS) + warp * 16 + lane // UInt32(K_LANES)
    var sums_at = pipeline.base + UInt32(HEADER_BYTES) + 4 * row
    comptime for i in range(WIDTH * INSTRUCTIONS):
        comptime tile = i // 4
        comptime row_offset = ROW_LANES * (i % 4 // 2)
        var token = UInt32(8 * tile + i % 2) + 2 * (lane % UInt32(K_LANES))
        store_word(
            sums_at + 4 * (token * UInt32(SUM_STRIDE) + UInt32(row_offset)),
            bitcast[DType.uint32](sums[i // WIDTH][i % WIDTH]),
        )
    wait_at[CONSUMER_THREADS](SUMS_BARRIER)
