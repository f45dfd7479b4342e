"""Few rows of activations: each warp streams 32 rows of weights through its registers.

A group computes `ROW_WARPS` tiles of 32 weight rows for up to 8 * TOKEN_TILES rows
of activations ("tokens"); its other warps, and the groups of its cluster, split K:

    cluster rank        0             1          ...
    blocks of K         0 .. n-1      n .. 2n-1
    stage               tokens, quantized once for the group, in fragment order
    multiply            words of codes -> bfloat16 pairs -> m16n8k16, several loads ahead
    reduce              each rank sums over its warps, then its share over all ranks, in order

Weights are the left operand of the instruction and tokens the right one, so the
sums of a lane are C^T: rows g, g + 8 of a tile and tokens 2 t, 2 t + 1.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.sync import barrier
from std.bit import log2_ceil, log2_floor
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Queue
from ...problem import Problem
from ...schedule.tiles import Tile
from ...simt.arguments import Activations, Result, Weights
from ...tiles import in_registers
from ..host.gemm import grid_of_few
from ..instructions.packed import weight_fragment
from ..instructions.shared_memory import load_quad, shared_base, store_word
from ..instructions.warp import FRAGMENT_SUMS, any_lane, keep_branch, keep_here, multiply_add
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, TILE_ROWS
from ..operands.weights import (
    Rows,
    any_overflows,
    decode_rows,
    decode_rows_of_any,
    needs_two_factors,
)
from ..plan import Plan
from ..shapes import (
    FEW_HEADER_BYTES as HEADER_BYTES,
    FEW_THREADS as THREADS,
    FRAGMENT_TOKENS as TOKENS,
    LANE_BYTES,
    SHORT,
    STEP,
    Shape,
)
from .activations import Fragments, StagedChunks, TokenStage
from .exchange import Exchange, ITEM
from .result import HALVES, Partials, WarpSums, compute_share_exactly, store_sums
from .weights import WeightStream


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(SHAPE.min_groups()),
)
def matmul_few[
    SHAPE: Shape
](
    a: Activations,
    w: Weights,
    result: Result,
    ranks: UInt32,
    share: UInt32,
    log_blocks_at_once: UInt32,
):
    """Computes `SHAPE`'s columns of C for its tokens, with its cluster of `ranks` groups.

    `share` is the blocks of K of a rank.
    """
    comptime TOKEN_TILES = SHAPE.token_tiles
    comptime ROW_WARPS = SHAPE.row_warps
    comptime K_WARPS = SHAPE.k_warps()
    comptime AHEAD = SHAPE.loads_ahead()
    comptime STAGE_BLOCKS = SHAPE.stage_blocks()

    # Who am I: the tile of weights and the blocks of K that this warp multiplies.
    var place = Tile(0, Int(block_idx.z), Int(block_idx.y))
    var warp = UInt32(thread_idx.x) // 32
    var lane = UInt32(thread_idx.x) % 32
    var rank = UInt32(block_idx.x)
    var row_warp = warp // UInt32(K_WARPS)
    var k_warp = warp % UInt32(K_WARPS)
    var group_tile = UInt32(place.column) * UInt32(ROW_WARPS)
    var tile = min(group_tile + row_warp, (result.columns - 1) // UInt32(TILE_ROWS))
    var first_token = UInt32(place.row) * UInt32(TOKENS * TOKEN_TILES)
    var k_blocks = UInt32(a.k) // UInt32(BLOCK)
    var first_block = min(rank * share, k_blocks)
    var num_blocks = min(share, k_blocks - first_block)
    var flag = shared_base()
    var fragments = Fragments[TOKEN_TILES](flag + UInt32(HEADER_BYTES + SHAPE.items() * LANE_BYTES))
    var exchange = Exchange[SHAPE].of(flag, rank, ranks)
    exchange.begin()

    # Start the first loads: a warp takes every K_WARPS-th block of the group's share. Weights
    # do not come from the kernel before, everything else may.
    var stream = WeightStream[AHEAD, K_WARPS](
        w,
        Int(tile) * Int(k_blocks) + Int(first_block + k_warp),
        (num_blocks + UInt32(K_WARPS - 1) - k_warp) // UInt32(K_WARPS),
        lane,
    )

    wait_on_dependent_grids()
    launch_dependent_grids()
    var num_tokens = min(result.rows - first_token, UInt32(TOKENS * TOKEN_TILES))
    var staging = TokenStage[TOKEN_TILES, THREADS](
        a,
        first_token,
        first_block,
        StagedChunks[TOKEN_TILES, THREADS](
            num_tokens, min(UInt32(STAGE_BLOCKS), num_blocks), log_blocks_at_once, fragments, 0, 0
        ),
    )

    var sums = in_registers[DType.float32, FRAGMENT_SUMS, TOKEN_TILES, HALVES]()
    comptime for tile in range(TOKEN_TILES):
        comptime for half in range(HALVES):
            sums[tile, half] = 0

    for stage in range(UInt32(0), num_blocks, UInt32(STAGE_BLOCKS)):
        var stage_blocks = min(UInt32(STAGE_BLOCKS), num_blocks - stage)
        if stage > 0:
            barrier()
            staging = TokenStage[TOKEN_TILES, THREADS](
                a,
                first_token,
                first_block + stage,
                StagedChunks[TOKEN_TILES, THREADS](
                    num_tokens, stage_blocks, log_blocks_at_once, fragments, 0, 0
                ),
            )
        var overflow = staging.finish()
        barrier()
        if overflow:
            store_word(flag, 1)

        # Multiply, several blocks a round.
        var tokens = fragments.starting_at(Coord(k_warp, 0, lane, 0))
        multiply_stage(stream, k_warp, stage_blocks, tokens, flag, sums)

    # Reduce: all partial sums into shared memory, then each rank sums its share.
    barrier()
    var partials = Partials[TOKEN_TILES](fragments.base)
    store_sums(sums, partials, warp, lane)
    barrier()
    var num_items = num_tokens * UInt32(SHAPE.columns() // ITEM)
    if ranks > 1:
        keep_branch()
        exchange.send(partials, num_items)
    var first_column = group_tile * UInt32(TILE_ROWS)
    if exchange.any_flag():
        keep_branch()
        compute_share_exactly[TOKEN_TILES, ROW_WARPS](
            a, w, rank, ranks, result, first_token, first_column
        )
    else:
        exchange.store(partials, num_items, result, first_token, first_column)


@always_inline
def multiply_stage[
    AHEAD: Int, STEP: Int, TOKEN_TILES: Int, //
](
    mut stream: WeightStream[AHEAD, STEP],
    first_block: UInt32,
    num_blocks: UInt32,
    var tokens: Fragments[TOKEN_TILES],
    flag: UInt32,
    sums: WarpSums[TOKEN_TILES],
):
    """Adds the products of a warp's blocks of a stage; flags what bfloat16 cannot hold."""
    for block in range(first_block, num_blocks, UInt32(STEP * AHEAD)):
        var blocks_left = (num_blocks - block + UInt32(STEP - 1)) // UInt32(STEP)
        var is_simple = blocks_left >= UInt32(AHEAD) and not stream.may_need_two_factors()
        stream.advance()
        if is_simple and stream.left >= UInt32(2 * AHEAD):
            multiply_round[True](stream, tokens, sums)
        elif is_simple and stream.left == UInt32(AHEAD):
            multiply_round[False](stream, tokens, sums)
        else:
            keep_branch()
            if multiply_any_round(stream, blocks_left, tokens, sums):
                store_word(flag, 1)
        stream.end_round()
        tokens = tokens.starting_at(Coord(AHEAD * STEP, 0, 0, 0))


@always_inline
def multiply_round[
    AHEAD: Int, STEP: Int, TOKEN_TILES: Int, //, LOAD: Bool
](
    mut stream: WeightStream[AHEAD, STEP],
    tokens: Fragments[TOKEN_TILES],
    sums: WarpSums[TOKEN_TILES],
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
        add_block(decoded, tokens.starting_at(Coord(i * STEP, 0, 0, 0)), sums)


@always_inline
def multiply_any_round[
    AHEAD: Int, STEP: Int, TOKEN_TILES: Int, //
](
    mut stream: WeightStream[AHEAD, STEP],
    num_blocks: UInt32,
    tokens: Fragments[TOKEN_TILES],
    sums: WarpSums[TOKEN_TILES],
) -> Bool:
    """Adds the products of up to `num_blocks` blocks; says if bfloat16 cannot hold some weight."""
    var overflow = False
    comptime for i in range(AHEAD):
        if stream.has_next(i):
            stream.load_scales[i]()
    comptime for i in range(AHEAD):
        if UInt32(i) < num_blocks:
            var decoded: Rows[ROWS_PER_LANE]
            if any_lane(needs_two_factors(stream.word_scales[i])):
                decoded = decode_rows_of_any(stream.words[i], stream.word_scales[i])
                overflow |= any_overflows(stream.word_scales[i])
            else:
                decoded = decode_rows(stream.words[i], stream.word_scales[i])
            if stream.has_next(i):
                stream.load_codes[i]()
            add_block(decoded, tokens.starting_at(Coord(i * STEP, 0, 0, 0)), sums)
    return overflow


@always_inline
def add_block[
    TOKEN_TILES: Int, //
](decoded: Rows[ROWS_PER_LANE], fragments: Fragments[TOKEN_TILES], sums: WarpSums[TOKEN_TILES]):
    """Adds the products of one block: two fragments of rows, all tokens, K in two steps."""
    comptime for tile in range(TOKEN_TILES):
        var tokens = load_quad(fragments.at(Coord(0, tile, 0, 0)))
        comptime for half in range(HALVES):
            comptime for step in range(2):
                comptime row, pair = 2 * half, 2 * step
                sums[tile, half] = multiply_add(
                    weight_fragment[pair](decoded[row], decoded[row + 1]),
                    SIMD[DType.uint32, 2](tokens[pair], tokens[pair + 1]),
                    sums[tile, half],
                )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Launches the kernel as planned, with no more ranks than have blocks of K."""
    var cut = plan.within(problem.k // BLOCK)
    var share = ceildiv(problem.k // BLOCK, cut.ranks)
    comptime for log_tiles in range(4):
        comptime for log_warps in range(4):
            comptime for is_short in [False, True]:
                comptime shape = Shape(1 << log_tiles, 1 << log_warps, is_short)
                comptime if Plan.stream(shape.tokens(), shape.columns()).exists():
                    var is_planned = (
                        plan.tokens == shape.tokens()
                        and plan.columns == shape.columns()
                        and is_short == (share <= SHORT * shape.k_warps())
                    )
                    if is_planned:
                        return _launch[shape](problem, cut, share, queue)
    raise Error(
        String(
            "plan: got ", plan.columns // TILE_ROWS, " row warps for ", plan.tokens,
            " rows, expected more",
        )
    )  # fmt: skip


def _launch[shape: Shape](problem: Problem, plan: Plan, share: Int, mut queue: Some[Queue]) raises:
    """Launches the kernel of one shape of group."""
    queue.launch[matmul_few[shape]](
        grid_of_few(problem.m, problem.n, plan, shape, share),
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(plan.ranks),
        UInt32(share),
        UInt32(min(log2_ceil(share), log2_floor(THREADS // K_LANES))),
    )
