"""Few rows of activations: each warp streams 32 rows of weights through its registers.

A group computes `ROW_WARPS` tiles of 32 weight rows for up to 8 * TOKEN_TILES rows
of activations ("tokens"); its other warps, and the groups of its cluster, split K:

    cluster rank        0             1          ...
    blocks of K         0 .. n-1      n .. 2n-1
    stage               tokens, quantized once for the group, in fragment order
    multiply            words of codes -> bfloat16 pairs -> m16n8k16, several loads ahead
    reduce              each rank sums its share over all warps and ranks, in order

Weights are the left operand of the instruction and tokens the right one, so the
sums of a lane are C^T: rows g, g + 8 of a tile and tokens 2 t, 2 t + 1.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.sync import barrier
from std.memory import bitcast
from std.utils import StaticTuple

from ..formats import BLOCK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations, Result
from .exact import compute_exactly
from .fragments import (
    any_lane,
    any_overflows,
    decode_rows,
    decode_rows_of_any,
    keep_branch,
    keep_here,
    load_streaming,
    may_need_two_factors,
    multiply_add,
    needs_two_factors,
)
from .layout import K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from .shared_memory import (
    cluster_barrier,
    leave_cluster,
    load_peer_quad,
    load_peer_word,
    load_quad,
    peer_address,
    shared_base,
    store_word,
)
from .tokens import FRAGMENT_BYTES, LANE_BYTES, StagedChunks, TOKENS, TokenStage

comptime WARPS = 8
"""Warps of a group."""
comptime THREADS = 32 * WARPS
"""Threads of a group."""
comptime STAGE_TILES = 128
"""Fragments of tokens that are staged at a time, or a few more."""
comptime TOKEN_STRIDE = 36
"""Words from one token's sums to the next: four more than rows, against bank conflicts."""
comptime SHORT = 2
"""Blocks of a warp up to which K is short."""
comptime WORDS_PER_TILE = TILE_BYTES // 4
"""Words of a tile's codes."""


def loads_ahead[token_tiles: Int, is_short: Bool]() -> Int:
    """Returns the blocks whose weights a warp has on the way: as the registers allow.

    A short K has no more than `SHORT` blocks for a warp, and its time is that of fetching the
    instructions: as many fewer.
    """
    return SHORT if is_short else (8 if token_tiles <= 4 else 4)


def min_groups[token_tiles: Int]() -> Int:
    """Returns how many groups a multiprocessor must hold: the registers allow no more."""
    return 1 if token_tiles >= 4 else 2


def stage_blocks_of[token_tiles: Int, row_warps: Int, is_short: Bool]() -> Int:
    """Returns the blocks staged at a time: every warp's loads ahead come out even."""
    comptime once_ahead = loads_ahead[token_tiles, is_short]() * WARPS // row_warps
    return max(STAGE_TILES // token_tiles // once_ahead, 1) * once_ahead


def shared_bytes[token_tiles: Int, row_warps: Int, is_short: Bool](num_blocks: Int) -> Int:
    """Returns the dynamic shared memory of a group with `num_blocks` blocks of K.

    Sixteen bytes for the flag, then tokens, or in their place the sums.
    """
    var sums = WARPS * token_tiles * TOKENS * TOKEN_STRIDE * 4
    var blocks = min(num_blocks, stage_blocks_of[token_tiles, row_warps, is_short]())
    return LANE_BYTES + max(blocks * token_tiles * FRAGMENT_BYTES, sums)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(min_groups[TOKEN_TILES]()),
)
def matmul_few_rows[
    TOKEN_TILES: Int, ROW_WARPS: Int, IS_SHORT: Bool
](
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
    ranks: UInt32,
    share: UInt32,
    log_blocks_at_once: UInt32,
):
    """Computes `ROW_WARPS` * 32 columns of C for 8 * `TOKEN_TILES` rows, with its cluster.

    The grid is (ranks, groups of columns, groups of rows); `share` is the blocks of a rank.
    """
    comptime K_WARPS = WARPS // ROW_WARPS
    comptime AHEAD = loads_ahead[TOKEN_TILES, IS_SHORT]()
    comptime STAGE_BLOCKS = stage_blocks_of[TOKEN_TILES, ROW_WARPS, IS_SHORT]()

    # Who am I: the tile of weights and the blocks of K that this warp multiplies.
    var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
    var warp = UInt32(thread_idx.x) // 32
    var lane = UInt32(thread_idx.x) % 32
    var rank = UInt32(block_idx.x)
    var row_warp = warp // UInt32(K_WARPS)
    var k_warp = warp % UInt32(K_WARPS)
    var group_tile = UInt32(block_idx.y) * UInt32(ROW_WARPS)
    var tile = min(group_tile + row_warp, (columns - 1) // UInt32(TILE_ROWS))
    var first_token = UInt32(block_idx.z) * UInt32(TOKENS * TOKEN_TILES)
    var k_blocks = k // UInt32(BLOCK)
    var first_block = min(rank * share, k_blocks)
    var num_blocks = min(share, k_blocks - first_block)
    var flag = shared_base()
    var base = flag + UInt32(LANE_BYTES)
    if thread_idx.x == 0:
        store_word(flag, 0)

    # Start the first loads: a warp takes every K_WARPS-th block of the group's share. Weights
    # do not come from the kernel before, everything else may.
    var stream = WeightStream[AHEAD, K_WARPS](
        codes,
        scales,
        Int(tile) * Int(k_blocks) + Int(first_block + k_warp),
        (num_blocks + UInt32(K_WARPS - 1) - k_warp) // UInt32(K_WARPS),
        lane,
    )

    wait_on_dependent_grids()
    launch_dependent_grids()
    var num_tokens = min(rows - first_token, UInt32(TOKENS * TOKEN_TILES))
    var staging = TokenStage[TOKEN_TILES, THREADS](
        a,
        first_token,
        first_block,
        StagedChunks[TOKEN_TILES, THREADS](
            num_tokens, min(UInt32(STAGE_BLOCKS), num_blocks), log_blocks_at_once, base, 0, 0
        ),
    )

    var sums = Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES](uninitialized=True)
    comptime for i in range(2 * TOKEN_TILES):
        sums[i] = SIMD[DType.float32, 4](0)

    for stage in range(UInt32(0), num_blocks, UInt32(STAGE_BLOCKS)):
        var stage_blocks = min(UInt32(STAGE_BLOCKS), num_blocks - stage)
        if stage > 0:
            barrier()
            staging = TokenStage[TOKEN_TILES, THREADS](
                a,
                first_token,
                first_block + stage,
                StagedChunks[TOKEN_TILES, THREADS](
                    num_tokens, stage_blocks, log_blocks_at_once, base, 0, 0
                ),
            )
        var overflow = staging.finish()
        barrier()
        if overflow:
            store_word(flag, 1)

        # Multiply, several blocks a round.
        var tokens_at = base + k_warp * UInt32(TOKEN_TILES * FRAGMENT_BYTES)
        tokens_at += lane * UInt32(LANE_BYTES)
        multiply_stage[TOKEN_TILES](stream, k_warp, stage_blocks, tokens_at, flag, sums)

    # Reduce: all partial sums into shared memory, then each rank sums its share.
    barrier()
    store_sums[TOKEN_TILES](sums, base, warp, lane)
    if ranks == 1:
        barrier()
    else:
        cluster_barrier()
    var result = Result(output, out_dtype, bias, bias_dtype, Int(columns))
    var first_column = group_tile * UInt32(TILE_ROWS)
    var overflowed = UInt32(0)
    for peer in range(ranks):
        overflowed |= load_peer_word(peer_address(flag, UInt32(peer)))
    if overflowed == 0:
        reduce_share[TOKEN_TILES, ROW_WARPS](
            base, rank, ranks, result, rows, first_token, first_column
        )
    else:
        compute_share_exactly[TOKEN_TILES, ROW_WARPS](
            a, codes, scales, rank, ranks, result, rows, first_token, first_column
        )
    if ranks > 1:
        leave_cluster()


struct WeightStream[ahead: Int, step: Int](Movable):
    """A warp's way along one tile of weights: every `step`-th block, `ahead` of them a round.

    Codes are loaded a round before they are used, each in the place of the one that was just
    decoded; scales all at the start of the round before, so that it can be known of a whole
    round what they need.
    """

    var codes: DevicePointer[DType.uint32]
    """This lane's codes of the round's first block."""
    var scales: DevicePointer[DType.uint32]
    """This lane's scales of the round's first block."""
    var left: UInt32
    """Blocks from the one of this round's start on."""
    var words: Array[SIMD[DType.uint32, 4], Self.ahead]
    """The codes of the round's blocks."""
    var word_scales: Array[UInt32, Self.ahead]
    """The scales of the round's blocks."""
    var next_scales: Array[UInt32, Self.ahead]
    """The scales of the next round's blocks."""

    @always_inline
    def __init__(
        out self,
        codes: DevicePointer[DType.uint8],
        scales: DevicePointer[DType.uint8],
        first: Int,
        left: UInt32,
        lane: UInt32,
    ):
        """Starts the loads of the first round, which begins at block `first` of all tiles."""
        self.codes = codes.unsafe_bitcast[UInt32]().unsafe_offset(
            first * WORDS_PER_TILE + Int(lane) * ROWS_PER_LANE
        )
        self.scales = scales.unsafe_bitcast[UInt32]().unsafe_offset(
            first * ROW_LANES + Int(lane // UInt32(K_LANES))
        )
        self.left = left
        self.words = Array[SIMD[DType.uint32, 4], Self.ahead](fill=SIMD[DType.uint32, 4](0))
        self.word_scales = Array[UInt32, Self.ahead](fill=0)
        self.next_scales = Array[UInt32, Self.ahead](uninitialized=True)
        comptime for i in range(Self.ahead):
            if UInt32(i) < left:
                self.word_scales[i] = self.scales[unsafe_offset=i * Self.step * ROW_LANES]
                self.words[i] = load_streaming(
                    self.codes.unsafe_offset(i * Self.step * WORDS_PER_TILE)
                )

    @always_inline
    def advance(mut self):
        """Points to the next round."""
        self.codes = self.codes.unsafe_offset(Self.ahead * Self.step * WORDS_PER_TILE)
        self.scales = self.scales.unsafe_offset(Self.ahead * Self.step * ROW_LANES)

    @always_inline
    def has_next(self, i: Int) -> Bool:
        """Says whether the next round has a block `i`."""
        return UInt32(i + Self.ahead) < self.left

    @always_inline
    def load_scales[i: Int](mut self):
        """Starts the load of the scales of the next round's block `i`."""
        self.next_scales[i] = self.scales[unsafe_offset=i * Self.step * ROW_LANES]

    @always_inline
    def load_codes[i: Int](mut self):
        """Starts the load of the next round's block `i` in place of this round's."""
        self.words[i] = load_streaming(self.codes.unsafe_offset(i * Self.step * WORDS_PER_TILE))

    @always_inline
    def end_round(mut self):
        """Goes on to the next round."""
        self.left -= min(self.left, UInt32(Self.ahead))
        comptime for i in range(Self.ahead):
            self.word_scales[i] = self.next_scales[i]

    @always_inline
    def may_need_two_factors(self) -> Bool:
        """Says, the same to all lanes, whether the round has scales for `decode_rows_of_any`."""
        var all_bits = UInt32(0)
        comptime for i in range(Self.ahead):
            all_bits |= self.word_scales[i]
        return any_lane(may_need_two_factors(all_bits))


@always_inline
def multiply_stage[
    AHEAD: Int, STEP: Int, //, TOKEN_TILES: Int
](
    mut stream: WeightStream[AHEAD, STEP],
    first_block: UInt32,
    num_blocks: UInt32,
    var tokens_at: UInt32,
    flag: UInt32,
    mut sums: Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES],
):
    """Adds the products of a warp's blocks of a stage; flags what bfloat16 cannot hold."""
    for block in range(first_block, num_blocks, UInt32(STEP * AHEAD)):
        var blocks_left = (num_blocks - block + UInt32(STEP - 1)) // UInt32(STEP)
        var is_simple = blocks_left >= UInt32(AHEAD) and not stream.may_need_two_factors()
        stream.advance()
        if is_simple and stream.left >= UInt32(2 * AHEAD):
            multiply_round[TOKEN_TILES, True](stream, tokens_at, sums)
        elif is_simple and stream.left == UInt32(AHEAD):
            multiply_round[TOKEN_TILES, False](stream, tokens_at, sums)
        else:
            keep_branch()
            if multiply_any_round[TOKEN_TILES](stream, blocks_left, tokens_at, sums):
                store_word(flag, 1)
        stream.end_round()
        tokens_at += UInt32(AHEAD * STEP * TOKEN_TILES * FRAGMENT_BYTES)


@always_inline
def multiply_round[
    AHEAD: Int, STEP: Int, //, TOKEN_TILES: Int, LOAD: Bool
](
    mut stream: WeightStream[AHEAD, STEP],
    tokens_at: UInt32,
    mut sums: Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES],
):
    """Adds the products of a whole round under scales that one factor applies.

    `LOAD` says whether the next round is a whole one, or there is none.
    """
    comptime if LOAD:
        comptime for i in range(AHEAD):
            stream.load_scales[i]()
    comptime for i in range(AHEAD):
        var decoded = decode_rows(keep_here(stream.words[i]), keep_here(stream.word_scales[i]))
        comptime if LOAD:
            stream.load_codes[i]()
        add_block[TOKEN_TILES](
            decoded, tokens_at + UInt32(i * STEP * TOKEN_TILES * FRAGMENT_BYTES), sums
        )


@always_inline
def multiply_any_round[
    AHEAD: Int, STEP: Int, //, TOKEN_TILES: Int
](
    mut stream: WeightStream[AHEAD, STEP],
    num_blocks: UInt32,
    tokens_at: UInt32,
    mut sums: Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES],
) -> Bool:
    """Adds the products of up to `num_blocks` blocks; says if bfloat16 cannot hold some weight."""
    var overflow = False
    comptime for i in range(AHEAD):
        if stream.has_next(i):
            stream.load_scales[i]()
    comptime for i in range(AHEAD):
        if UInt32(i) < num_blocks:
            var decoded: SIMD[DType.uint32, 16]
            if any_lane(needs_two_factors(stream.word_scales[i])):
                decoded = decode_rows_of_any(stream.words[i], stream.word_scales[i])
                overflow |= any_overflows(stream.word_scales[i])
            else:
                decoded = decode_rows(stream.words[i], stream.word_scales[i])
            if stream.has_next(i):
                stream.load_codes[i]()
            add_block[TOKEN_TILES](
                decoded, tokens_at + UInt32(i * STEP * TOKEN_TILES * FRAGMENT_BYTES), sums
            )
    return overflow


@always_inline
def add_block[
    TOKEN_TILES: Int
](
    decoded: SIMD[DType.uint32, 16],
    tokens_at: UInt32,
    mut sums: Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES],
):
    """Adds the products of one block: two fragments of rows, all tokens, K in two steps."""
    comptime for tile in range(TOKEN_TILES):
        var tokens = load_quad(tokens_at + UInt32(tile * FRAGMENT_BYTES))
        comptime for half in range(2):
            comptime for step in range(2):
                comptime at = 8 * half + 2 * step
                sums[2 * tile + half] = multiply_add(
                    SIMD[DType.uint32, 4](
                        decoded[at], decoded[at + 4], decoded[at + 1], decoded[at + 5]
                    ),
                    SIMD[DType.uint32, 2](tokens[2 * step], tokens[2 * step + 1]),
                    sums[2 * tile + half],
                )


@always_inline
def store_sums[
    TOKEN_TILES: Int
](sums: Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES], base: UInt32, warp: UInt32, lane: UInt32):
    """Stores a warp's sums as [token][row of the tile]."""
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    comptime for tile in range(TOKEN_TILES):
        comptime for half in range(2):
            comptime for i in range(4):
                var token = (
                    warp * UInt32(TOKEN_TILES * TOKENS) + 2 * pair + UInt32(tile * TOKENS + i % 2)
                )
                var row = UInt32(2 * ROW_LANES * half + ROW_LANES * (i // 2)) + row_lane
                store_word(
                    base + UInt32(4 * (token * UInt32(TOKEN_STRIDE) + row)),
                    bitcast[DType.uint32](sums[2 * tile + half][i]),
                )


@always_inline
def reduce_share[
    TOKEN_TILES: Int, ROW_WARPS: Int
](
    base: UInt32,
    rank: UInt32,
    ranks: UInt32,
    result: Result,
    rows: UInt32,
    first_token: UInt32,
    first_column: UInt32,
):
    """Sums four neighbouring columns a thread over all warps and ranks, and stores them."""
    comptime K_WARPS = WARPS // ROW_WARPS
    comptime PARTS = TILE_ROWS // 4
    comptime ITEMS = TOKENS * TOKEN_TILES * ROW_WARPS * PARTS
    var columns = UInt32(result.columns)
    for item in range(
        rank * UInt32(THREADS) + UInt32(thread_idx.x), UInt32(ITEMS), ranks * UInt32(THREADS)
    ):
        var token, rest = divmod(item, UInt32(ROW_WARPS * PARTS))
        var row_warp, part = divmod(rest, UInt32(PARTS))
        var row = first_token + token
        var column = first_column + row_warp * UInt32(TILE_ROWS) + part * 4
        if row >= rows or column >= columns:
            continue
        var total = SIMD[DType.float32, 4](0)
        for peer in range(ranks):
            comptime for k_warp in range(K_WARPS):
                var line = (row_warp * UInt32(K_WARPS) + UInt32(k_warp)) * UInt32(
                    TOKEN_TILES * TOKENS
                ) + token
                var at = base + UInt32(4 * (line * UInt32(TOKEN_STRIDE) + part * 4))
                total += load_peer_quad(peer_address(at, UInt32(peer)))
        if column + 4 <= columns and columns % 4 == 0:
            result.store[4, 4](Int(row), Int(column), total)
        else:
            comptime for i in range(4):
                if column + UInt32(i) < columns:
                    result.store[1, 1](Int(row), Int(column) + i, SIMD[DType.float32, 1](total[i]))


@always_inline
def compute_share_exactly[
    TOKEN_TILES: Int, ROW_WARPS: Int
](
    a: Activations,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    rank: UInt32,
    ranks: UInt32,
    result: Result,
    rows: UInt32,
    first_token: UInt32,
    first_column: UInt32,
):
    """Computes and stores this rank's elements where bfloat16 cannot hold an operand."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    for item in range(
        rank * UInt32(WARPS) + warp,
        UInt32(TOKENS * TOKEN_TILES * ROW_WARPS * TILE_ROWS),
        ranks * UInt32(WARPS),
    ):
        var token, row = divmod(item, UInt32(ROW_WARPS * TILE_ROWS))
        compute_exactly(
            a, codes, scales, result, rows, first_token + token, first_column + row, lane
        )
