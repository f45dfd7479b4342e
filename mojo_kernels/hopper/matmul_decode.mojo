"""Few rows of activations: each warp streams 32 rows of weights through its registers.

A group computes `ROW_WARPS` tiles of 32 weight rows for up to 8 * TOKEN_TILES rows
of activations ("tokens"). The groups of a cluster share the tiles and split K:

    cluster rank        0             1          ...
    blocks of K         0 .. n-1      n .. 2n-1
    stage               tokens, quantized once for the group, in fragment order
    multiply            words of codes -> bfloat16 pairs -> m16n8k16, 8 loads ahead
    reduce              each rank sums its share over all ranks, in rank order

Weights are the left operand of the instruction and tokens the right one, so the
sums of a lane are C^T: rows g, g + 8 of a tile and tokens 2 t, 2 t + 1.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.cluster import block_rank_in_cluster
from max.gpu.sync import barrier
from std.math import ceildiv
from std.memory import bitcast
from std.utils import StaticTuple

from ..formats import BLOCK, FORMAT
from ..simt.codec import CHUNK, f32_of_scale
from ..simt.launch import DevicePointer
from ..simt.matmul import warp_sums
from ..simt.problem import Activations, Result
from .fragments import (
    Pairs,
    any_lane,
    load_streaming,
    multiply_add,
    multiply_pairs,
    needs_two_factors,
    overflows,
    scaled_pairs_of_any,
    single_factor,
    unscaled_pairs,
)
from .layout import K_LANES, PreshuffledCuda, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from .shared_memory import (
    cluster_barrier,
    load_peer_quad,
    load_peer_word,
    load_quad,
    peer_address,
    shared_base,
    store_quad,
    store_word,
)

comptime WARPS = 8
"""Warps of a group."""
comptime THREADS = 32 * WARPS
"""Threads of a group."""
comptime TOKENS = 8
"""Tokens of one fragment."""
comptime AHEAD = 8
"""Blocks whose weights a warp has on the way."""
comptime STAGE_TILES = 128
"""Fragments of tokens, half a KiB each, that are staged at a time."""
comptime FRAGMENT_BYTES = 512
"""Bytes of a token fragment over one block of K."""
comptime TOKEN_STRIDE = 36
"""Words from one token's sums to the next: four more than rows, against bank conflicts."""


def shared_bytes[token_tiles: Int]() -> Int:
    """Returns the dynamic shared memory that a group needs: tokens or sums, and a flag."""
    comptime sums = WARPS * token_tiles * TOKENS * TOKEN_STRIDE * 4
    return max(STAGE_TILES * FRAGMENT_BYTES, sums) + 16


@always_inline
def bf16_pairs(values: SIMD[DType.float32, CHUNK]) -> Pairs:
    """Packs numbers that bfloat16 holds: neighbours four apart share a register."""
    var bits = bitcast[DType.uint32, CHUNK](values)
    var pairs = Pairs()
    comptime for i in range(CHUNK // 2):
        pairs[i] = (bits[i] >> 16) | (bits[i + CHUNK // 2] & 0xFFFF0000)
    return pairs


@always_inline
def stage_tokens[
    token_tiles: Int
](
    a: Activations,
    rows: Int,
    first_token: Int,
    first_block: Int,
    num_blocks: Int,
    base: UInt32,
    warp: Int,
    lane: Int,
) -> Bool:
    """Puts token fragments of some blocks into shared memory; says if one overflows."""
    var overflow = False
    var row_lane, k_lane = divmod(lane, K_LANES)
    for fragment in range(warp, num_blocks * token_tiles, WARPS):
        var block, tile = divmod(fragment, token_tiles)
        var token = first_token + tile * TOKENS + row_lane
        var x, scale = a.chunk[True](
            min(token, rows - 1), (first_block + block) * K_LANES + k_lane
        )
        var values = x * f32_of_scale(scale)
        overflow |= overflows(scale)
        store_quad(
            base + UInt32(fragment * FRAGMENT_BYTES + lane * 16), bf16_pairs(values)
        )
    return overflow


@always_inline
def decode_rows(words: SIMD[DType.uint32, 4], scales: UInt32) -> SIMD[DType.uint32, 16]:
    """Decodes the words of a lane's four rows under their four scales."""
    var decoded = SIMD[DType.uint32, 16]()
    if any_lane(needs_two_factors(scales)):
        comptime for i in range(ROWS_PER_LANE):
            var scale = (scales >> UInt32(8 * i)) & 0xFF
            decoded = decoded.insert[offset = 4 * i](scaled_pairs_of_any(words[i], scale))
    else:
        comptime for i in range(ROWS_PER_LANE):
            var scale = (scales >> UInt32(8 * i)) & 0xFF
            decoded = decoded.insert[offset = 4 * i](
                multiply_pairs(unscaled_pairs(words[i]), single_factor(scale))
            )
    return decoded


@always_inline
def any_overflows(scales: UInt32) -> Bool:
    """Says whether some codes under one of four scale bytes are too large."""
    var result = False
    comptime for i in range(ROWS_PER_LANE):
        result |= overflows((scales >> UInt32(8 * i)) & 0xFF)
    return result


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(2 if TOKEN_TILES < 8 else 1),
)
def matmul_few_rows[
    TOKEN_TILES: Int, ROW_WARPS: Int
](
    x: DevicePointer[DType.uint8],
    x_scales: DevicePointer[DType.uint8],
    row_stride: Int64,
    kind: Int32,
    x_dtype: Int32,
    carry: UInt32,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    rows: Int32,
    columns: Int32,
    k: Int32,
    bias: DevicePointer[DType.uint8],
    bias_dtype: Int32,
    output: DevicePointer[DType.uint8],
    out_dtype: Int32,
    ranks: Int32,
):
    """Computes `ROW_WARPS` * 32 columns of C for 8 * `TOKEN_TILES` rows, with its cluster."""
    comptime K_WARPS = WARPS // ROW_WARPS
    comptime STAGE_BLOCKS = STAGE_TILES // TOKEN_TILES

    # Who am I: the tile of weights and the blocks of K that this warp multiplies.
    var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
    var warp, lane = divmod(Int(thread_idx.x), 32)
    var rank = Int(block_rank_in_cluster())
    var row_warp, k_warp = divmod(warp, K_WARPS)
    var group_tile = Int(block_idx.x) // Int(ranks) * ROW_WARPS
    var num_tiles = ceildiv(Int(columns), TILE_ROWS)
    var tile = min(group_tile + row_warp, num_tiles - 1)
    var first_token = Int(block_idx.y) * TOKENS * TOKEN_TILES
    var k_blocks = Int(k) // BLOCK
    var share = ceildiv(k_blocks, Int(ranks))
    var first_block = min(rank * share, k_blocks)
    var num_blocks = min(share, k_blocks - first_block)
    var base = shared_base()
    var flag = base + UInt32(shared_bytes[TOKEN_TILES]() - 16)
    if thread_idx.x == 0:
        store_word(flag, 0)

    # Start the first loads: a warp takes every K_WARPS-th block of the group's share.
    var num_mine = ceildiv(num_blocks - k_warp, K_WARPS)
    var tile_codes = codes.unsafe_bitcast[UInt32]().unsafe_offset(
        (tile * k_blocks + first_block + k_warp) * (TILE_BYTES // 4) + lane * 4
    )
    var tile_scales = scales.unsafe_bitcast[UInt32]().unsafe_offset(
        (tile * k_blocks + first_block + k_warp) * ROW_LANES + lane // K_LANES
    )
    var words = Array[SIMD[DType.uint32, 4], AHEAD](uninitialized=True)
    var word_scales = Array[UInt32, AHEAD](uninitialized=True)
    comptime for i in range(AHEAD):
        words[i] = SIMD[DType.uint32, 4](0)
        word_scales[i] = 0
        if i < num_mine:
            words[i] = load_streaming(tile_codes.unsafe_offset(i * K_WARPS * (TILE_BYTES // 4)))
            word_scales[i] = tile_scales[unsafe_offset = i * K_WARPS * ROW_LANES]

    var sums = Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES](uninitialized=True)
    comptime for i in range(2 * TOKEN_TILES):
        sums[i] = SIMD[DType.float32, 4](0)
    var overflow = False

    var mine = 0
    for stage in range(0, num_blocks, STAGE_BLOCKS):
        var stage_blocks = min(STAGE_BLOCKS, num_blocks - stage)
        barrier()
        overflow |= stage_tokens[TOKEN_TILES](
            a, Int(rows), first_token, first_block + stage, stage_blocks, base, warp, lane
        )
        barrier()

        # Multiply: decode one block, start the load AHEAD blocks later.
        for block in range(k_warp, stage_blocks, K_WARPS * AHEAD):
            comptime for i in range(AHEAD):
                var at = block + i * K_WARPS
                if at < stage_blocks:
                    var decoded = decode_rows(words[i], word_scales[i])
                    overflow |= any_overflows(word_scales[i])
                    var next = mine + i + AHEAD
                    if next < num_mine:
                        words[i] = load_streaming(
                            tile_codes.unsafe_offset(next * K_WARPS * (TILE_BYTES // 4))
                        )
                        word_scales[i] = tile_scales[unsafe_offset = next * K_WARPS * ROW_LANES]
                    add_block[TOKEN_TILES](
                        decoded,
                        base + UInt32(at * TOKEN_TILES * FRAGMENT_BYTES + lane * 16),
                        sums,
                    )
            mine += AHEAD

    # Reduce: all partial sums into shared memory, then each rank sums its share.
    barrier()
    store_sums[TOKEN_TILES](sums, base, warp, lane)
    if overflow:
        store_word(flag, 1)
    cluster_barrier()
    var result = Result(output, out_dtype, bias, bias_dtype, Int(columns))
    var first_column = group_tile * TILE_ROWS
    var overflowed = UInt32(0)
    for peer in range(Int(ranks)):
        overflowed |= load_peer_word(peer_address(flag, UInt32(peer)))
    if overflowed == 0:
        reduce_share[TOKEN_TILES, ROW_WARPS](
            base, rank, Int(ranks), result, Int(rows), first_token, first_column
        )
    else:
        for item in range(
            rank * WARPS + warp, TOKENS * TOKEN_TILES * ROW_WARPS * TILE_ROWS, Int(ranks) * WARPS
        ):
            var token, row = divmod(item, ROW_WARPS * TILE_ROWS)
            compute_exactly(
                a, codes, scales, result, Int(rows), first_token + token, first_column + row, lane
            )
    cluster_barrier()


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
](sums: Array[SIMD[DType.float32, 4], 2 * TOKEN_TILES], base: UInt32, warp: Int, lane: Int):
    """Stores a warp's sums as [token][row of the tile]."""
    var row_lane, pair = divmod(lane, K_LANES)
    comptime for tile in range(TOKEN_TILES):
        comptime for half in range(2):
            comptime for i in range(4):
                var token = warp * TOKEN_TILES * TOKENS + tile * TOKENS + 2 * pair + i % 2
                var row = 2 * ROW_LANES * half + ROW_LANES * (i // 2) + row_lane
                store_word(
                    base + UInt32(4 * (token * TOKEN_STRIDE + row)),
                    bitcast[DType.uint32](sums[2 * tile + half][i]),
                )


@always_inline
def reduce_share[
    TOKEN_TILES: Int, ROW_WARPS: Int
](
    base: UInt32,
    rank: Int,
    ranks: Int,
    result: Result,
    rows: Int,
    first_token: Int,
    first_column: Int,
):
    """Sums four neighbouring columns a thread over all warps and ranks, and stores them."""
    comptime K_WARPS = WARPS // ROW_WARPS
    comptime PARTS = TILE_ROWS // 4
    comptime ITEMS = TOKENS * TOKEN_TILES * ROW_WARPS * PARTS
    for item in range(rank * THREADS + Int(thread_idx.x), ITEMS, ranks * THREADS):
        var token, rest = divmod(item, ROW_WARPS * PARTS)
        var row_warp, part = divmod(rest, PARTS)
        var row = first_token + token
        var column = first_column + row_warp * TILE_ROWS + part * 4
        if row >= rows or column >= result.columns:
            continue
        var total = SIMD[DType.float32, 4](0)
        for peer in range(ranks):
            comptime for k_warp in range(K_WARPS):
                var line = (row_warp * K_WARPS + k_warp) * TOKEN_TILES * TOKENS + token
                var at = base + UInt32(4 * (line * TOKEN_STRIDE + part * 4))
                total += load_peer_quad(peer_address(at, UInt32(peer)))
        if column + 4 <= result.columns and result.columns % 4 == 0:
            result.store[4, 4](row, column, total)
        else:
            comptime for i in range(4):
                if column + i < result.columns:
                    result.store[1, 1](row, column + i, SIMD[DType.float32, 1](total[i]))


@always_inline
def compute_exactly(
    a: Activations,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    result: Result,
    rows: Int,
    row: Int,
    column: Int,
    lane: Int,
):
    """Computes one element of C in float64 where bfloat16 cannot hold an operand."""
    if row >= rows or column >= result.columns:
        return
    var sum = warp_sums[PreshuffledCuda, True, 1](
        a, codes, scales, result.columns, row, column, lane
    )
    if lane == 0:
        result.store[1, 1](row, column, sum)
