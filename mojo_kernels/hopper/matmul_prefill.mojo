"""Many rows of activations: decoded weights meet tokens in shared memory.

A group computes 128 columns of C for `TOKEN_TILE` rows. Warp groups have roles:

    producers     in turn: start the copy of a tile of tokens, decode a tile of weights, both
                  bfloat16, into the next free stage: 64 steps of K, rows of 128 bytes
    consumers     64 columns each: C^T += weights @ tokens^T straight from the stage

Rows of a stage are swizzled: sixteen-byte part p of row r lies at part p ^ (r % 8),
which is what the instruction expects of its descriptor and free of bank conflicts.
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

from ..formats import BLOCK
from ..simt.codec import CHUNK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations, FLOATS, Result
from .exact import compute_exactly
from .expand_tokens import ROW_BYTES, STEP
from .fragments import (
    Pairs,
    any_lane,
    any_overflows,
    in_natural_order,
    keep_branch,
    load_streaming,
    multiply_pairs,
    needs_two_factors,
    scale_in_both_halves,
    scaled_pairs_of_any,
    single_factor,
    unscaled_pairs,
)
from .layout import K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from .shared_memory import (
    arrive,
    copy_bulk,
    init_barrier,
    load_quad,
    load_word,
    publish_to_tensor_cores,
    shared_base,
    store_quad,
    store_word,
    wait_phase,
    wait_some_threads,
)

comptime WARP_GROUP = 128
"""Threads that issue an instruction together."""
comptime CONSUMERS = 2
"""Warp groups that multiply."""
comptime CONSUMER_THREADS = CONSUMERS * WARP_GROUP
"""Threads that multiply, and store in the end."""
comptime WEIGHT_ROWS = 128
"""Columns of C that a group computes."""
comptime HALF_ROWS = 64
"""Columns of C that a consumer computes."""
comptime PART_BYTES = 16
"""Bytes that are swizzled as one."""
comptime CONSUMER_REGISTERS = 168
"""Registers of a consumer thread that sums 256 tokens: more than its even share."""
comptime PRODUCER_REGISTERS = 88
"""Registers of a producer thread: what such consumers leave."""
comptime MAX_INSTRUCTION_TOKENS = 128
"""Tokens of one instruction: its sums have to fit a thread's even share of registers."""
comptime K_INSTRUCTION = 16
"""Steps of K of one instruction."""
comptime STEP_BLOCKS = STEP // BLOCK
"""Blocks of K in a stage."""
comptime WEIGHTS_BYTES = WEIGHT_ROWS * ROW_BYTES
"""Bytes of decoded weights in a stage."""
comptime HEADER_BYTES = 1024
"""Barriers and the flag, before the stages."""
comptime MAX_STAGES = 6
"""More stages help nothing."""
comptime SHARED_BYTES = 227 * 1024
"""What a group can have."""
comptime SUM_STRIDE = WEIGHT_ROWS + 4
"""Words from one token's sums to the next, against bank conflicts."""


def num_producers[token_tile: Int]() -> Int:
    """Returns the warp groups that fill stages: fewer tokens leave less time to decode."""
    return 2 if token_tile == 256 else 3


def num_threads[token_tile: Int]() -> Int:
    """Returns the threads of a group: the consumers, then the producers."""
    return (CONSUMERS + num_producers[token_tile]()) * WARP_GROUP


def stage_bytes[token_tile: Int]() -> Int:
    """Returns the bytes of a stage: weights, then tokens."""
    return WEIGHTS_BYTES + token_tile * ROW_BYTES


def num_stages[token_tile: Int]() -> Int:
    """Returns how many stages fit."""
    return min(MAX_STAGES, (SHARED_BYTES - HEADER_BYTES) // stage_bytes[token_tile]())


def shared_bytes[token_tile: Int]() -> Int:
    """Returns the dynamic shared memory of a group: the stages, in the end the sums."""
    var sums = token_tile * SUM_STRIDE * 4
    return HEADER_BYTES + max(num_stages[token_tile]() * stage_bytes[token_tile](), sums)


@fieldwise_init
struct Pipeline[token_tile: Int](TrivialRegisterPassable):
    """Where stages and their barriers lie, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    comptime STAGES = num_stages[Self.token_tile]()
    """Number of stages."""

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that the stage is filled."""
        return self.base + 8 * self.stage

    @always_inline
    def empty(self) -> UInt32:
        """Returns the barrier that says that the stage is read."""
        return self.base + UInt32(8 * Self.STAGES) + 8 * self.stage

    @always_inline
    def flag(self) -> UInt32:
        """Returns the word that says that bfloat16 could not hold an operand."""
        return self.base + UInt32(16 * Self.STAGES)

    @always_inline
    def weights(self) -> UInt32:
        """Returns where the stage's weights are."""
        return (
            self.base + UInt32(HEADER_BYTES) + self.stage * UInt32(stage_bytes[Self.token_tile]())
        )

    @always_inline
    def tokens(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return self.weights() + UInt32(WEIGHTS_BYTES)

    @always_inline
    def advance(mut self):
        """Goes on to the next stage."""
        self.stage += 1
        if self.stage == UInt32(Self.STAGES):
            self.stage = 0
            self.parity ^= 1


@always_inline
def descriptor(address: UInt32) -> WGMMADescriptor[DType.bfloat16]:
    """Describes rows of 128 swizzled bytes that start at `address`."""
    comptime EIGHT_ROWS = Int64(8 * ROW_BYTES // PART_BYTES)
    comptime SWIZZLE_128 = Int64(1) << 62
    var part = ((address & 0x3FFFF) // UInt32(PART_BYTES)).cast[DType.int64]()
    return WGMMADescriptor[DType.bfloat16](part | (1 << 16) | (EIGHT_ROWS << 32) | SWIZZLE_128)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(num_threads[TOKEN_TILE]())),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_many_rows[
    TOKEN_TILE: Int
](
    tokens: DevicePointer[DType.uint8],
    token_overflows: DevicePointer[DType.uint8],
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
    """Computes 128 columns of C for `TOKEN_TILE` rows.

    `tokens` are the stages of `expand_tokens`; `x` is what they were made from, for the rows that
    `token_overflows` marks: those that bfloat16 cannot hold.
    """
    # Who am I: eight groups in a row share their weights, for the second-level cache.
    comptime SHARING = UInt32(8)
    var band = UInt32(block_idx.x) // (SHARING * column_groups)
    var in_band = UInt32(block_idx.x) % (SHARING * column_groups)
    var band_width = min(SHARING, token_groups - band * SHARING)
    var first_token = (band * SHARING + in_band % band_width) * UInt32(TOKEN_TILE)
    var first_column = (in_band // band_width) * UInt32(WEIGHT_ROWS)
    var num_steps = (k + UInt32(STEP - 1)) // UInt32(STEP)
    var warp_group = UInt32(thread_idx.x) // UInt32(WARP_GROUP)
    var pipeline = Pipeline[TOKEN_TILE](shared_base(), 0, 0)
    if thread_idx.x == 0:
        store_word(pipeline.flag(), 0)
        comptime for i in range(pipeline.STAGES):
            init_barrier(pipeline.base + UInt32(8 * i), UInt32(WARP_GROUP))
            init_barrier(pipeline.base + UInt32(8 * (pipeline.STAGES + i)), UInt32(CONSUMERS))
    barrier()
    wait_on_dependent_grids()

    if warp_group >= UInt32(CONSUMERS):
        comptime if TOKEN_TILE == 256:
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
        comptime if TOKEN_TILE == 256:
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
            token_overflows,
            result,
            rows,
            first_token,
            first_column,
        )


@always_inline
def limit_registers[direction: StaticString, count: Int]():
    """Takes registers from, or gives them to, the groups that call the other direction."""
    inlined_assembly[
        "setmaxnreg." + direction + ".sync.aligned.u32 $0;",
        NoneType,
        constraints="n",
        has_side_effect=True,
    ](Int32(count))


@always_inline
def store_sums[
    token_tile: Int
](
    pipeline: Pipeline[token_tile],
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
        UInt32(thread_idx.x), UInt32(token_tile) * ROW_CHUNKS, UInt32(CONSUMER_THREADS)
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
def store_exactly[
    token_tile: Int
](
    pipeline: Pipeline[token_tile],
    a: Activations,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    token_overflows: DevicePointer[DType.uint8],
    result: Result,
    rows: UInt32,
    first_token: UInt32,
    first_column: UInt32,
):
    """Stores once more, a row a warp, where bfloat16 could not hold an operand."""
    var weights_overflow = load_word(pipeline.flag()) != 0
    if a.kind == Int32(FLOATS) and not weights_overflow:
        return
    # The sums stored before are not to overtake those stored now.
    wait_some_threads[CONSUMER_THREADS]()
    var lane = UInt32(thread_idx.x) % 32
    var last_row = min(first_token + UInt32(token_tile), rows)
    var last_column = min(first_column + UInt32(WEIGHT_ROWS), UInt32(result.columns))
    var first_row = first_token + UInt32(thread_idx.x) // 32
    for row in range(first_row, last_row, UInt32(CONSUMER_THREADS // 32)):
        var overflow = weights_overflow
        if a.kind != Int32(FLOATS):
            overflow |= token_overflows[unsafe_offset=Int(row)] != 0
        if overflow:
            keep_branch()
            for column in range(first_column, last_column):
                compute_exactly(a, codes, scales, result, rows, row, column, lane)


@always_inline
def consume[
    token_tile: Int
](var pipeline: Pipeline[token_tile], num_steps: UInt32, warp_group: UInt32):
    """Multiplies the stages as they fill, then leaves the sums as [token][column]."""
    comptime INSTRUCTION_TOKENS = min(MAX_INSTRUCTION_TOKENS, token_tile)
    comptime INSTRUCTIONS = token_tile // INSTRUCTION_TOKENS
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
    wait_some_threads[CONSUMER_THREADS]()
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
    wait_some_threads[CONSUMER_THREADS]()


@always_inline
def produce[
    token_tile: Int
](
    var pipeline: Pipeline[token_tile],
    tokens: DevicePointer[DType.uint8],
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    columns: UInt32,
    k: UInt32,
    first_token: UInt32,
    first_column: UInt32,
    producer: UInt32,
):
    """Fills every so many stages: one tile of 32 weight rows a warp, tokens by one copy."""
    comptime PRODUCERS = num_producers[token_tile]()
    var thread = UInt32(thread_idx.x) % UInt32(WARP_GROUP)
    var k_blocks = k // UInt32(BLOCK)
    var num_steps = (k + UInt32(STEP - 1)) // UInt32(STEP)
    var source = WeightSource(codes, scales, columns, k_blocks, first_column, thread)
    var next = source.load(producer * UInt32(STEP_BLOCKS))
    comptime TILE_BYTES_OF_TOKENS = token_tile * ROW_BYTES
    var stages = tokens.unsafe_offset(
        Int(first_token // UInt32(token_tile)) * Int(num_steps) * TILE_BYTES_OF_TOKENS
    )
    # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
    pipeline.parity = 1
    for _ in range(producer):
        pipeline.advance()
    for step in range(producer, num_steps, UInt32(PRODUCERS)):
        # Before the next loads start: a wait for these would wait for those too.
        var current = next
        var needs_two = current.arrived_and_needs_two()
        wait_phase(pipeline.empty(), pipeline.parity)
        if thread == 0:
            copy_bulk(
                pipeline.tokens(),
                stages.unsafe_offset(Int(step) * TILE_BYTES_OF_TOKENS),
                UInt32(TILE_BYTES_OF_TOKENS),
                pipeline.full(),
            )
        next = source.load((step + UInt32(PRODUCERS)) * UInt32(STEP_BLOCKS))
        if store_weights(pipeline.weights(), current, needs_two, thread):
            store_word(pipeline.flag(), 1)
        publish_to_tensor_cores()
        arrive(pipeline.full())
        comptime for _ in range(PRODUCERS):
            pipeline.advance()


@fieldwise_init
struct LaneWeights(TrivialRegisterPassable):
    """What a lane has of its warp's tile: four rows, two blocks."""

    var words: SIMD[DType.uint32, 8]
    """Words of codes, the first block's four rows first."""
    var scales: SIMD[DType.uint32, 2]
    """Four scales a word, one word a block."""

    @always_inline
    def arrived_and_needs_two(self) -> Bool:
        """Waits for the loads; says whether the warp has to decode with two factors.

        Words of ones alone say so as well, which is right and only slower: it is what makes
        the answer depend on every load.
        """
        var all_words = self.words.reduce_and()
        return any_lane(
            needs_two_factors(self.scales[0])
            or needs_two_factors(self.scales[1])
            or all_words == UInt32.MAX
        )


@fieldwise_init
struct WeightSource(TrivialRegisterPassable):
    """The tile of 32 weight rows that a producer warp decodes."""

    var codes: DevicePointer[DType.uint32]
    """The lane's words of the tile's first block."""
    var scales: DevicePointer[DType.uint32]
    """The lane's scales of the tile's first block."""
    var num_blocks: UInt32
    """Blocks of K; zero where there is no tile."""

    @always_inline
    def __init__(
        out self,
        codes: DevicePointer[DType.uint8],
        scales: DevicePointer[DType.uint8],
        columns: UInt32,
        k_blocks: UInt32,
        first_column: UInt32,
        thread: UInt32,
    ):
        """Finds the tile of this thread's warp."""
        var lane = thread % 32
        var tile = first_column // UInt32(TILE_ROWS) + thread // 32
        self.num_blocks = k_blocks if tile * UInt32(TILE_ROWS) < columns else 0
        var first = Int(tile) * Int(k_blocks) if self.num_blocks > 0 else 0
        self.codes = codes.unsafe_bitcast[UInt32]().unsafe_offset(
            first * (TILE_BYTES // 4) + Int(lane) * ROWS_PER_LANE
        )
        self.scales = scales.unsafe_bitcast[UInt32]().unsafe_offset(
            first * ROW_LANES + Int(lane // UInt32(K_LANES))
        )

    @always_inline
    def load(self, first_block: UInt32) -> LaneWeights:
        """Starts loading two blocks; blocks past the end are zeros."""
        var loaded = LaneWeights(0, 0)
        comptime for i in range(STEP_BLOCKS):
            var block = first_block + UInt32(i)
            if block < self.num_blocks:
                loaded.words = loaded.words.insert[offset=4 * i](
                    load_streaming(self.codes.unsafe_offset(Int(block) * (TILE_BYTES // 4)))
                )
                loaded.scales[i] = self.scales[unsafe_offset=Int(block) * ROW_LANES]
        return loaded


@always_inline
def store_weights(target: UInt32, weights: LaneWeights, needs_two: Bool, thread: UInt32) -> Bool:
    """Decodes a lane's words into the stage; says whether bfloat16 cannot hold them.

    Lanes of odd rows store the second block first, so that eight lanes, two rows of
    four parts, touch all banks.
    """
    var lane = thread % 32
    var row_lane = lane // UInt32(K_LANES)
    var k_lane = lane % UInt32(K_LANES)
    var is_odd = row_lane % 2 == 1
    var row_at = target + (thread // 32 * UInt32(TILE_ROWS) + row_lane) * UInt32(ROW_BYTES)
    comptime for order in range(STEP_BLOCKS):
        var takes_second = is_odd if order == 0 else not is_odd
        var scales = weights.scales[1] if takes_second else weights.scales[0]
        var part = k_lane + (UInt32(K_LANES) if takes_second else 0)
        var part_at = row_at + (part ^ row_lane) * UInt32(PART_BYTES)
        comptime for i in range(ROWS_PER_LANE):
            var word = weights.words[4 + i] if takes_second else weights.words[i]
            var pairs: Pairs
            if needs_two:
                pairs = scaled_pairs_of_any(word, (scales >> UInt32(8 * i)) & 0xFF)
            else:
                pairs = multiply_pairs(
                    unscaled_pairs(word), single_factor(scale_in_both_halves[i](scales))
                )
            store_quad(part_at + UInt32(i * ROW_LANES * ROW_BYTES), in_natural_order(pairs))
    return needs_two and (any_overflows(weights.scales[0]) or any_overflows(weights.scales[1]))
