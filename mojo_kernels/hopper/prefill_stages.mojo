"""The stages of a product of many rows: weights decoded once for all tokens of a group.

A stage holds 64 steps of K of 128 weight rows and 256 tokens, bfloat16, rows of 128 bytes.
Producers fill stages in turn: one starts the copy of the tokens and decodes the weights.

Rows are swizzled: sixteen-byte part p of row r lies at part p ^ (r % 8), which is what the
instruction expects of its descriptor and free of bank conflicts.
"""

from max.gpu import thread_idx

from ..formats import BLOCK
from ..simt.launch import DevicePointer
from .expand_tokens import ROW_BYTES, STEP
from .fragments import (
    Pairs,
    any_lane,
    any_overflows,
    in_natural_order,
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
    expect_copies,
    publish_to_tensor_cores,
    store_quad,
    store_word,
    wait_phase,
)

comptime TOKEN_TILE = 256
"""Rows of C that a group computes."""
comptime WARP_GROUP = 128
"""Threads that issue an instruction together."""
comptime CONSUMERS = 2
"""Warp groups that multiply."""
comptime CONSUMER_THREADS = CONSUMERS * WARP_GROUP
"""Threads that multiply, and store in the end."""
comptime PRODUCERS = 2
"""Warp groups that fill stages."""
comptime THREADS = (CONSUMERS + PRODUCERS) * WARP_GROUP
"""Threads of a group: the consumers, then the producers."""
comptime WEIGHT_ROWS = 128
"""Columns of C that a group computes."""
comptime HALF_ROWS = 64
"""Columns of C that a consumer computes."""
comptime PART_BYTES = 16
"""Bytes that are swizzled as one."""
comptime STEP_BLOCKS = STEP // BLOCK
"""Blocks of K in a stage."""
comptime WEIGHTS_BYTES = WEIGHT_ROWS * ROW_BYTES
"""Bytes of decoded weights in a stage."""
comptime HEADER_BYTES = 1024
"""Barriers and the flag, before the stages."""
comptime SHARED_BYTES = 227 * 1024
"""What a group can have."""
comptime SUM_STRIDE = WEIGHT_ROWS + 4
"""Words from one token's sums to the next, against bank conflicts."""
comptime STAGE_BYTES = WEIGHTS_BYTES + TOKEN_TILE * ROW_BYTES
"""Bytes of a stage: weights, then tokens."""
comptime STAGES = (SHARED_BYTES - HEADER_BYTES) // STAGE_BYTES
"""Stages that fit."""
comptime NUM_BYTES = HEADER_BYTES + max(STAGES * STAGE_BYTES, TOKEN_TILE * SUM_STRIDE * 4)
"""Dynamic shared memory of a group: the stages, in the end the sums."""


@fieldwise_init
struct Pipeline(TrivialRegisterPassable):
    """Where stages and their barriers lie, and which one is next."""

    var base: UInt32
    """Start of the shared memory."""
    var stage: UInt32
    """The stage of the next step."""
    var parity: UInt32
    """The parity of the stage's current phase."""

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that the stage is filled."""
        return self.base + 8 * self.stage

    @always_inline
    def empty(self) -> UInt32:
        """Returns the barrier that says that the stage is read."""
        return self.base + UInt32(8 * STAGES) + 8 * self.stage

    @always_inline
    def flag(self) -> UInt32:
        """Returns the word that says that bfloat16 could not hold an operand."""
        return self.base + UInt32(16 * STAGES)

    @always_inline
    def weights(self) -> UInt32:
        """Returns where the stage's weights are."""
        return self.base + UInt32(HEADER_BYTES) + self.stage * UInt32(STAGE_BYTES)

    @always_inline
    def tokens(self) -> UInt32:
        """Returns where the stage's tokens are."""
        return self.weights() + UInt32(WEIGHTS_BYTES)

    @always_inline
    def advance(mut self):
        """Goes on to the next stage."""
        self.stage += 1
        if self.stage == UInt32(STAGES):
            self.stage = 0
            self.parity ^= 1


@always_inline
def produce(
    var pipeline: Pipeline,
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
    var thread = UInt32(thread_idx.x) % UInt32(WARP_GROUP)
    var k_blocks = k // UInt32(BLOCK)
    var num_steps = (k + UInt32(STEP - 1)) // UInt32(STEP)
    var source = WeightSource(codes, scales, columns, k_blocks, first_column, thread)
    var next = source.load(producer * UInt32(STEP_BLOCKS))
    comptime TILE_BYTES_OF_TOKENS = TOKEN_TILE * ROW_BYTES
    var stages = tokens.unsafe_offset(
        Int(first_token // UInt32(TOKEN_TILE)) * Int(num_steps) * TILE_BYTES_OF_TOKENS
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
            expect_copies(pipeline.full(), UInt32(TILE_BYTES_OF_TOKENS))
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
