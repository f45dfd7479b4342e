"""Rows made ready for FP8 tensor cores: stages of bytes, and the base of every row.

One kernel: a group takes a row of tokens, or a tile of weight rows: its scales, and some of its
stages if they are to be in the workspace.

A token's codes stay in registers until its largest scale is known. A row whose blocks differ too much has no base, and a product with
such a row is computed once more, see `bases`. In a stage a block's bytes lie as words of codes give
them: part p, 16 bytes, of k = 8 j + 4 p + 0 .. 3, j = 0 .. 3.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_idx, shuffle_xor
from max.gpu.sync import barrier
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Weights
from ...simt.codec import CHUNK, encode_chunk, pack, scale_of_block
from ...simt.views import BFLOAT16, flat_of, rows_of
from ..dense.units import StageRows
from ..dense.weights import TileUnits, store_stages
from ..instructions.packed import Pairs
from ..instructions.shared_memory import load_pair, load_word, shared_base, store_pair, store_word
from ..instructions.warp import keep_branch
from ..layout import BLOCK, K_LANES, OPERANDS, ROW_LANES, ROWS_PER_LANE, TILE_BYTES, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..operands.activations import encode_neighbours, load_neighbours, scale_of_neighbours
from .bases import ByteRows, NO_BASE, STEP_BLOCKS, workspace_of
from .codes import ByteTable, EMPTY_BASE, MAGNITUDES, SPAN, fits, is_base

comptime THREADS = 256
"""Threads of a group."""
comptime WARPS = THREADS // 32
"""Warps of a group."""
comptime SHARED_BYTES = 4 * TILE_ROWS * WARPS
"""Shared memory of a group: a word for each warp and row of a tile."""
comptime MAX_BATCH = 4
"""Chunks of a thread that are on the way at once."""
comptime MAX_K = 16 * THREADS * CHUNK
"""The longest row."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(4),
)
def prepare_rows[
    CHUNKS: Int, stages_weights: Bool
](
    a: Activations,
    w: Weights,
    rows: ByteRows[stages_weights],
    num_tokens: UInt32,
    tile_groups: UInt32,
):
    """Prepares a row of tokens, a thread `CHUNKS` chunks of it, or a part of a tile of weights.

    Groups of weights come first, so many for a tile.
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    var index = UInt32(block_idx.x)
    var num_groups = UInt32(grid_dim.x) - num_tokens
    if index >= num_groups:
        prepare_token[CHUNKS](a, rows, index - num_groups)
        return
    var tile, group = divmod(index, tile_groups)
    var word = find_bases(w, rows, tile, UInt32(a.k))
    comptime if stages_weights:
        var units = TileUnits[ByteRows[stages_weights]].of(
            w, UInt32(a.k), tile, word, (tile + 1) * UInt32(TILE_ROWS)
        )
        store_stages[WARPS](rows, units, tile, shared_base(), group, tile_groups)


@always_inline
def prepare_token[CHUNKS: Int](a: Activations, rows: ByteRows[_], token: UInt32):
    """Writes a token's bytes and its base."""
    comptime BATCH = min(MAX_BATCH, CHUNKS)
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var thread = UInt32(thread_idx.x)
    var words = SIMD[DType.uint32, CHUNKS](0)
    var scales = SIMD[DType.uint32, CHUNKS](0)
    comptime for first in range(0, CHUNKS, BATCH):
        if UInt32(first * THREADS) < row_chunks:
            load_batch[first, BATCH](a, token, thread, row_chunks, words, scales)

    var largest = scales.reduce_max()
    var smallest = UInt32.MAX
    comptime for i in range(CHUNKS):
        if words[i] & MAGNITUDES != 0:
            smallest = min(smallest, scales[i])
    var ends = ends_of_group(largest, smallest)
    var base = ends[0] if ends[0] > 0 else EMPTY_BASE
    if thread == 0:
        var has_base = is_base(base) and (base <= ends[1] or base - ends[1] <= UInt32(SPAN))
        rows.token_bases()[Int(token)] = base.cast[DType.uint8]() if has_base else NO_BASE

    var table = ByteTable.of_base(base)
    var is_odd = thread % 2 == 1
    comptime for i in range(CHUNKS):
        var chunk = UInt32(i * THREADS) + thread
        var bytes = table.bytes(words[i], scales[i])
        # Lanes 2 j and 2 j + 1 exchange: one gets the first part of both chunks.
        var received = shuffle_xor(bytes[0] if is_odd else bytes[1], 1)
        var step, in_step = divmod(chunk, UInt32(STEP_BLOCKS * K_LANES))
        if step < rows.left.num_steps:
            var part = in_step // UInt32(K_LANES) * 2 + chunk % 2
            var half = chunk % UInt32(K_LANES) // 2
            var first = received if is_odd else bytes[0]
            var place = rows.left.part(token, step, part).unsafe_bitcast[UInt32]()
            flat_of(place.unsafe_offset(2 * Int(half))).store[alignment=8](
                Coord(0), SIMD[DType.uint32, 2](first, bytes[1] if is_odd else received)
            )


@always_inline
def load_batch[
    CHUNKS: SIMDLength, //, first: Int, BATCH: Int
](
    a: Activations,
    token: UInt32,
    thread: UInt32,
    row_chunks: UInt32,
    mut words: SIMD[DType.uint32, CHUNKS],
    mut scales: SIMD[DType.uint32, CHUNKS],
):
    """Loads chunks as codes and scales; those past the end of a row are zeros."""
    # Whole blocks are in or out of range; lanes outside repeat the last block.
    var last = row_chunks - UInt32(K_LANES) + thread % UInt32(K_LANES)
    if a.is_encoded():
        keep_branch()
        var k_blocks = Int(row_chunks) // K_LANES
        var all_words = rows_of(a.values.unsafe_bitcast[UInt32](), k_blocks * K_LANES)
        var all_scales = rows_of(a.scales, k_blocks)
        comptime for i in range(BATCH):
            var chunk = Int(min(UInt32((first + i) * THREADS) + thread, last))
            words[first + i] = all_words[Int(token), chunk]
            var scale = all_scales[Int(token), chunk // K_LANES]
            scales[first + i] = scale.cast[DType.uint32]()
    elif a.dtype == BFLOAT16:
        keep_branch()
        var neighbours = Array[Pairs, BATCH](uninitialized=True)
        comptime for i in range(BATCH):
            var chunk = min(UInt32((first + i) * THREADS) + thread, last)
            neighbours[i] = load_neighbours(a, token, chunk)
        comptime for i in range(BATCH):
            scales[first + i] = scale_of_neighbours(neighbours[i], a.carry)[0]
            words[first + i] = encode_neighbours(neighbours[i], scales[first + i])
    else:
        comptime for i in range(BATCH):
            var chunk = min(UInt32((first + i) * THREADS) + thread, last)
            var x = a.floats().load[CHUNK, CHUNK](Int(token), Int(chunk) * CHUNK)
            scales[first + i] = scale_of_block(x, a.carry, materialize[OPERANDS.element]())
            var codes = encode_chunk[False](x, scales[first + i], materialize[OPERANDS.element]())
            words[first + i] = pack[OPERANDS.element.bits](codes)[0]
    comptime for i in range(BATCH):
        if UInt32((first + i) * THREADS) + thread >= row_chunks:
            words[first + i] = 0
            scales[first + i] = 0


@always_inline
def ends_of_group(largest: UInt32, smallest: UInt32) -> SIMD[DType.uint32, 2]:
    """Returns the largest and the smallest of the values of all threads."""
    var most, least = largest, smallest
    comptime for step in range(5):
        most = max(most, shuffle_xor(most, UInt32(1 << step)))
        least = min(least, shuffle_xor(least, UInt32(1 << step)))
    var base = shared_base()
    if thread_idx.x % 32 == 0:
        store_pair(base + UInt32(thread_idx.x) // 4, SIMD[DType.uint32, 2](most, least))
    barrier()
    comptime for warp in range(WARPS):
        var found = load_pair(base + UInt32(8 * warp))
        most, least = max(most, found[0]), min(least, found[1])
    return {most, least}


@always_inline
def find_bases(w: Weights, rows: ByteRows[_], tile: UInt32, k: UInt32) -> UInt32:
    """Writes the bases of a tile of weight rows; a thread has the scales of four.

    Returns the largest scales of a lane's rows, a byte each, as `ByteRows.put` wants them.
    """
    var base = shared_base()
    var thread = UInt32(thread_idx.x)
    var row_lane = thread % UInt32(ROW_LANES)
    var num_words = k // UInt32(BLOCK) * UInt32(ROW_LANES)
    var scales = rows_of(w.scales.unsafe_bitcast[UInt32](), Int(num_words))
    var largest = SIMD[DType.uint32, ROWS_PER_LANE](0)
    for i in range(thread, num_words, UInt32(THREADS)):
        largest = max(largest, bytes_of(scales[Int(tile), Int(i)]))
    comptime for row in range(ROWS_PER_LANE):
        largest[row] = max(largest[row], shuffle_xor(largest[row], 8))
        largest[row] = max(largest[row], shuffle_xor(largest[row], 16))
        # [row, warp]; rows of a lane are as far apart as there are lanes.
        if thread % 32 < UInt32(ROW_LANES):
            var at = (UInt32(row * ROW_LANES) + row_lane) * UInt32(WARPS) + thread // 32
            store_word(base + 4 * at, largest[row])
    barrier()
    comptime for row in range(ROWS_PER_LANE):
        var at = base + 4 * (UInt32(row * ROW_LANES) + row_lane) * UInt32(WARPS)
        comptime for warp in range(WARPS):
            largest[row] = max(largest[row], load_word(at + UInt32(4 * warp)))
        if largest[row] == 0:
            largest[row] = EMPTY_BASE
    barrier()

    # Small scales are rare but in blocks of zeros, which fit.
    var outside = SIMD[DType.bool, ROWS_PER_LANE](fill=False)
    for i in range(thread, num_words, UInt32(THREADS)):
        var found = bytes_of(scales[Int(tile), Int(i)])
        comptime for row in range(ROWS_PER_LANE):
            if not fits(UInt32.MAX, found[row], largest[row]):
                keep_branch()
                var block = tile * (k // UInt32(BLOCK)) + i // UInt32(ROW_LANES)
                var codes = rows_of(w.codes.unsafe_bitcast[UInt32](), TILE_BYTES // 4)
                var any_code = UInt32(0)
                comptime for k_lane in range(K_LANES):
                    var lane = row_lane * UInt32(K_LANES) + UInt32(k_lane)
                    any_code |= codes[Int(block), Int(lane) * ROWS_PER_LANE + row]
                outside[row] = outside[row] or not fits(any_code, found[row], largest[row])
    comptime for row in range(ROWS_PER_LANE):
        if thread < UInt32(ROW_LANES):
            store_word(base + 4 * (UInt32(row * ROW_LANES) + row_lane), 0)
    barrier()
    comptime for row in range(ROWS_PER_LANE):
        if outside[row] or not is_base(largest[row]):
            store_word(base + 4 * (UInt32(row * ROW_LANES) + row_lane), 1)
    barrier()
    comptime for row in range(ROWS_PER_LANE):
        if thread < UInt32(ROW_LANES):
            var has_none = load_word(base + 4 * (UInt32(row * ROW_LANES) + row_lane)) != 0
            var found = NO_BASE if has_none else largest[row].cast[DType.uint8]()
            rows.weight_bases()[Int(tile) * TILE_ROWS + row * ROW_LANES + Int(row_lane)] = found
    # What stages are put together in was read before.
    barrier()
    var word = UInt32(0)
    comptime for row in range(ROWS_PER_LANE):
        # The first lanes of the warp have a row's scales each, a lane of `put` those of its quad.
        var base = shuffle_idx(largest[row], thread % 32 // UInt32(K_LANES))
        word |= base << UInt32(8 * row)
    return word


@always_inline
def bytes_of(word: UInt32) -> SIMD[DType.uint32, ROWS_PER_LANE]:
    """Returns the four bytes of a word."""
    return {word & 0xFF, (word >> 8) & 0xFF, (word >> 16) & 0xFF, word >> 24}


def prepare[
    stages_weights: Bool
](problem: Problem, tokens: Int, mut queue: Some[Queue]) raises -> ByteRows[stages_weights]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var space = workspace_of(problem.m, problem.n, problem.k, tokens, stages_weights)
    var tile_groups = groups_of_tile(problem.n, problem.k) if stages_weights else 1
    var rows = ByteRows[stages_weights].at(
        problem.m, problem.n, problem.k, tokens, queue.workspace(space)
    )
    comptime for chunks in [1, 2, 4, 8, 16]:
        comptime longest = chunks * THREADS * CHUNK
        if problem.k <= longest and (chunks == 1 or 2 * problem.k > longest):
            queue.launch[prepare_rows[chunks, stages_weights]](
                Grid(
                    problem.m + ceildiv(problem.n, TILE_ROWS) * tile_groups,
                    threads=THREADS,
                    shared_bytes=WARPS * StageRows.NUM_BYTES if stages_weights else SHARED_BYTES,
                    starts_early=True,
                ),
                Activations(problem),
                Weights(problem),
                rows,
                UInt32(problem.m),
                UInt32(tile_groups),
            )
    return rows


def groups_of_tile(n: Int, k: Int) -> Int:
    """Returns the groups that share a tile of weights: enough for the device, work for each."""
    comptime FEWEST_BLOCKS = STEP_BLOCKS * WARPS
    var wanted = ceildiv(4 * MULTIPROCESSORS, ceildiv(n, TILE_ROWS))
    return max(min(wanted, k // (BLOCK * FEWEST_BLOCKS)), 1)
