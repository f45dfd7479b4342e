"""Rows made ready for FP8 tensor cores: stages of bytes, and the base of every row.

One kernel: a group takes rows of tokens, or a tile of weight rows: its scales, and some of its
stages if they are to be in the workspace.

A token's codes stay in registers until its largest scale is known. A row whose blocks differ too
much has no base, see `bases`: each of its blocks has its own then, its scale. In a stage a
block's bytes lie as words of codes give them: part p, 16 bytes, of k = 8 j + 4 p + 0 .. 3 for j = 0
to 3.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Grid, Queue
from ...operands import Matrix
from ...problem import Problem
from ...simt.arguments import Activations, Weights
from ...simt.codec import CHUNK, encode_chunk, pack, scale_of_block
from ...simt.views import BFLOAT16, flat_of, rows_of
from ..dense.lanes import LANE_CHUNKS, LaneOfRow, LaneSteps, RESIDENT_GROUPS, RowLanes
from ..dense.lanes import THREADS, WARPS
from ..dense.result import GROUPS
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..instructions.packed import LOW_BYTES, Pairs, packed_max, packed_min
from ..instructions.shared_memory import any_thread, load_quad, load_word, shared_base
from ..instructions.shared_memory import store_quad, store_word
from ..instructions.warp import keep_branch, lane_here
from ..layout import BLOCK, K_LANES, OPERANDS, ROW_LANES, ROWS_PER_LANE, TILE_BYTES, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..operands.activations import encode_neighbours, load_neighbours, scale_of_neighbours
from ..plan import Kernel, Plan
from .bases import ByteRows, meetings_at, workspace_of
from .codes import ByteTable, EMPTY_BASE, MAGNITUDES, NO_BASE, SPAN, fits, is_base, scale_at
from .places import STEP_BLOCKS

comptime ENDS_BYTES = 16
"""Bytes of the largest and smallest scales of a lane's four rows."""
comptime SHARED_BYTES = ENDS_BYTES * ROW_LANES * WARPS
"""Shared memory of a group: those of each warp."""
comptime SCALES_BATCH = 4
"""Words of scales of a thread that are on the way at once."""
comptime MANY_CHUNKS = 8
"""Chunks of a lane, of many rows: what is done once for all of them takes as long as for three."""
comptime MAX_CHUNKS = 16
"""The most chunks of a lane."""
comptime MAX_K = MAX_CHUNKS * THREADS * CHUNK
"""The longest row."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def prepare_rows[
    CHUNKS: Int, stages_weights: Bool
](
    a: Activations,
    w: Weights,
    rows: ByteRows[stages_weights],
    lanes: RowLanes,
    tile_groups: UInt32,
    num_groups: UInt32,
    counters: DevicePointer[DType.uint32],
    num_counters: UInt32,
):
    """Prepares rows of tokens, a lane `CHUNKS` chunks of one, or a part of a tile of weights.

    The groups of weights come first, so many for a tile. Counters become zero.
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    var index = UInt32(block_idx.x)
    var counter = index * UInt32(THREADS) + UInt32(thread_idx.x)
    while counter < num_counters:
        flat_of(counters)[Int(counter)] = 0
        counter += UInt32(grid_dim.x) * UInt32(THREADS)
    if index >= num_groups:
        prepare_token[CHUNKS](a, rows, lanes, index - num_groups)
        return
    var tile, group = divmod(index, tile_groups)
    comptime if stages_weights:
        var units = TileUnits[ByteRows[stages_weights]].of(w, UInt32(a.k), tile)
        var loaded = load_stage(rows, units, first_step_of[WARPS](group))
        units.rows = find_bases(w, rows, tile, UInt32(a.k))
        comptime for part in range(units.UNITS):
            loaded[part].rows = units.rows
        store_stages[WARPS](rows, units, loaded^, tile, shared_base(), group, tile_groups)
    else:
        _ = find_bases(w, rows, tile, UInt32(a.k))


@always_inline
def prepare_token[CHUNKS: Int](a: Activations, rows: ByteRows[_], lanes: RowLanes, group: UInt32):
    """Writes the bytes and the base of this thread's row of tokens."""
    comptime BATCH = CHUNKS // ceildiv(CHUNKS, LANE_CHUNKS)
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var place = LaneOfRow(lanes, group)
    var token, lane = Int(place.row), place.lane
    var words = Array[UInt32, CHUNKS](fill=0)
    var scales = Array[UInt32, CHUNKS](fill=0)
    comptime for first in range(0, CHUNKS, BATCH):
        if place.has_any(UInt32(first), row_chunks):
            load_batch[first, BATCH](a, place, row_chunks, words, scales)

    var largest = UInt32(0)
    var smallest = UInt32.MAX
    comptime for i in range(CHUNKS):
        largest = max(largest, scales[i])
        if words[i] & MAGNITUDES != 0:
            smallest = min(smallest, scales[i])
    var ends = lanes.largest(SIMD[DType.uint32, 2](largest, ~smallest))
    var base = ends[0] if ends[0] > 0 else EMPTY_BASE
    smallest = ~ends[1]
    var has_base = is_base(base) and (base <= smallest or base - smallest <= UInt32(SPAN))
    if lane == 0 and place.is_there:
        rows.bases.of_tokens()[token] = base.cast[DType.uint8]() if has_base else NO_BASE
    if not has_base:
        keep_branch()
        var block_bases = rows.bases.of_blocks(UInt32(a.k))
        comptime for i in range(CHUNKS):
            var chunk = place.chunk(UInt32(i))
            if chunk < row_chunks and chunk % UInt32(K_LANES) == 0 and place.is_there:
                var block = Int(chunk // UInt32(K_LANES))
                block_bases[token, block] = scales[i].cast[DType.uint8]()
            scales[i] = base

    var table = ByteTable.of_base(base)
    var is_odd = lane % 2 == 1
    comptime STEP_CHUNKS = STEP_BLOCKS * K_LANES
    var part = lane % UInt32(STEP_CHUNKS) // UInt32(K_LANES) * 2 + lane % 2
    var half = lane % UInt32(K_LANES) // 2
    var steps = LaneSteps.of[STEP_CHUNKS](rows.left, place)
    var first_bytes = rows.left.part(place.row, steps.first, part).unsafe_offset(8 * Int(half))
    comptime for i in range(CHUNKS):
        var bytes = table.bytes(words[i], scales[i])
        # Lanes 2 j and 2 j + 1 exchange: one gets the first part of both chunks.
        var received = shuffle_xor(bytes[0] if is_odd else bytes[1], 1)
        if steps.step(UInt32(i)) < rows.left.num_steps and place.is_there:
            var first = received if is_odd else bytes[0]
            var to = steps.from_first(first_bytes, UInt32(i)).unsafe_bitcast[UInt32]()
            flat_of(to).store[alignment=8](
                Coord(0), SIMD[DType.uint32, 2](first, bytes[1] if is_odd else received)
            )


@always_inline
def load_batch[
    CHUNKS: Int, //, first: Int, BATCH: Int
](
    a: Activations,
    place: LaneOfRow,
    row_chunks: UInt32,
    mut words: Array[UInt32, CHUNKS],
    mut scales: Array[UInt32, CHUNKS],
):
    """Loads chunks as codes and scales; those past the end of a row are zeros."""
    # Whole blocks are in or out of range; lanes outside repeat the last block.
    var last = row_chunks - UInt32(K_LANES) + place.lane % UInt32(K_LANES)
    var token = Int(place.row)
    if a.is_encoded():
        keep_branch()
        var k_blocks = Int(row_chunks) // K_LANES
        var all_words = rows_of(a.values.unsafe_bitcast[UInt32](), k_blocks * K_LANES)
        var all_scales = rows_of(a.scales, k_blocks)
        comptime for i in range(BATCH):
            var chunk = Int(min(place.chunk(UInt32(first + i)), last))
            words[first + i] = all_words[token, chunk]
            var scale = all_scales[token, chunk // K_LANES]
            scales[first + i] = scale.cast[DType.uint32]()
    elif a.dtype == BFLOAT16:
        keep_branch()
        var neighbours = Array[Pairs, BATCH](uninitialized=True)
        comptime for i in range(BATCH):
            var chunk = min(place.chunk(UInt32(first + i)), last)
            neighbours[i] = load_neighbours(a, place.row, chunk)
        comptime for i in range(BATCH):
            scales[first + i] = scale_of_neighbours(neighbours[i], a.carry)[0]
            words[first + i] = encode_neighbours(neighbours[i], scales[first + i])
    else:
        comptime for i in range(BATCH):
            var chunk = min(place.chunk(UInt32(first + i)), last)
            var x = a.floats().load[CHUNK, CHUNK](token, Int(chunk) * CHUNK)
            scales[first + i] = scale_of_block(x, a.carry, materialize[OPERANDS.element]())
            var codes = encode_chunk[False](x, scales[first + i], materialize[OPERANDS.element]())
            words[first + i] = pack[OPERANDS.element.bits](codes)[0]
    comptime for i in range(BATCH):
        if place.chunk(UInt32(first + i)) >= row_chunks:
            words[first + i] = 0
            scales[first + i] = 0


@always_inline
def find_bases(w: Weights, rows: ByteRows[_], tile: UInt32, k: UInt32) -> UInt32:
    """Writes the bases of a tile of weight rows; a thread looks at words of four rows' scales.

    Returns the largest scales of a lane's rows, a byte each, as `ByteRows.put` wants them.
    """
    var base = shared_base()
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var num_words = k // UInt32(BLOCK) * UInt32(ROW_LANES)
    var scales = rows_of(w.scales.unsafe_bitcast[UInt32](), Int(num_words))
    # Largest and smallest scales of rows 0 and 2 of a word, then of rows 1 and 3.
    var ends = SIMD[DType.uint32, 4](0, 0, LOW_BYTES, LOW_BYTES)
    # The last words of the rows stand in for those past the end.
    var last = num_words - UInt32(ROW_LANES) + UInt32(thread_idx.x) % UInt32(ROW_LANES)
    for first in range(UInt32(thread_idx.x), num_words, UInt32(SCALES_BATCH * THREADS)):
        var words = SIMD[DType.uint32, SCALES_BATCH]()
        comptime for i in range(SCALES_BATCH):
            words[i] = scales[Int(tile), Int(min(UInt32(first) + UInt32(i * THREADS), last))]
        comptime for i in range(SCALES_BATCH):
            var even, odd = words[i] & LOW_BYTES, (words[i] >> 8) & LOW_BYTES
            ends = joined_ends(ends, {even, odd, even, odd})
    comptime for log_step in range(log2_floor(ROW_LANES), log2_floor(32)):
        var others = SIMD[DType.uint32, 4]()
        comptime for i in range(4):
            others[i] = shuffle_xor(ends[i], UInt32(1 << log_step))
        ends = joined_ends(ends, others)
    if lane < UInt32(ROW_LANES):
        store_quad(base + UInt32(ENDS_BYTES) * (warp * UInt32(ROW_LANES) + lane), ends)
    barrier()
    var row_lane = lane // UInt32(K_LANES)
    ends = load_quad(base + UInt32(ENDS_BYTES) * row_lane)
    comptime for other in range(1, WARPS):
        var at = UInt32(other * ROW_LANES) + row_lane
        ends = joined_ends(ends, load_quad(base + UInt32(ENDS_BYTES) * at))

    var word = UInt32(0)
    var may_miss = False
    comptime for row in range(ROWS_PER_LANE):
        comptime half, odd = divmod(row, 2)
        var largest = (ends[odd] >> UInt32(16 * half)) & 0xFF
        var smallest = (ends[2 + odd] >> UInt32(16 * half)) & 0xFF
        if largest == 0:
            largest = EMPTY_BASE
        may_miss |= not (is_base(largest) and fits(UInt32.MAX, smallest, largest))
        word |= largest << UInt32(8 * row)
    var missing = UInt32(0)
    # What stages are put together in is read until here.
    if any_thread[THREADS](may_miss):
        keep_branch()
        missing = find_missing(w, scales, tile, num_words, word)
    if warp == 0 and lane % UInt32(K_LANES) == 0:
        comptime for row in range(ROWS_PER_LANE):
            var found = scale_at(word, UInt32(row)).cast[DType.uint8]()
            if missing & UInt32(1 << row) != 0:
                found = NO_BASE
            rows.bases.of_weights()[Int(tile) * TILE_ROWS + row * ROW_LANES + Int(row_lane)] = found
    return word


@always_inline
def joined_ends(
    ends: SIMD[DType.uint32, 4], others: SIMD[DType.uint32, 4]
) -> SIMD[DType.uint32, 4]:
    """Returns the larger halves of the first two registers, the smaller ones of the others."""
    return {
        packed_max(ends[0], others[0]),
        packed_max(ends[1], others[1]),
        packed_min(ends[2], others[2]),
        packed_min(ends[3], others[3]),
    }


@no_inline
def find_missing(
    w: Weights, scales: Matrix[DType.uint32], tile: UInt32, num_words: UInt32, largest: UInt32
) -> UInt32:
    """Returns a bit for each of a lane's four rows: set if it has no base.

    That is so where a small scale comes with codes that are not all zero, which is rare. `largest`
    are the largest scales of the rows, a byte each. All threads call it.
    """
    var base = shared_base()
    var lane = lane_here()
    var row_lane = lane // UInt32(K_LANES)
    var flags = base + 4 * UInt32(ROWS_PER_LANE) * row_lane
    if thread_idx.x < TILE_ROWS:
        store_word(base + 4 * UInt32(thread_idx.x), 0)
    barrier()
    # Four lanes have the same rows: each looks at every fourth word of them.
    var num_blocks = num_words // UInt32(ROW_LANES)
    var first = UInt32(thread_idx.x) // 32 * UInt32(K_LANES) + lane % UInt32(K_LANES)
    var codes = rows_of(w.codes.unsafe_bitcast[UInt32](), TILE_BYTES // 4)
    for block in range(first, num_blocks, UInt32(WARPS * K_LANES)):
        var found = scales[Int(tile), Int(block) * ROW_LANES + Int(row_lane)]
        comptime for row in range(ROWS_PER_LANE):
            var scale, base = scale_at(found, UInt32(row)), scale_at(largest, UInt32(row))
            if not fits(UInt32.MAX, scale, base):
                var of_tile = Int(tile * num_blocks + UInt32(block))
                var any_code = UInt32(0)
                comptime for k_lane in range(K_LANES):
                    var at = row_lane * UInt32(K_LANES) + UInt32(k_lane)
                    any_code |= codes[of_tile, Int(at) * ROWS_PER_LANE + row]
                if not fits(any_code, scale, base):
                    store_word(flags + UInt32(4 * row), 1)
    barrier()
    var missing = UInt32(0)
    comptime for row in range(ROWS_PER_LANE):
        var is_missing = not is_base(scale_at(largest, UInt32(row)))
        if is_missing or load_word(flags + UInt32(4 * row)) != 0:
            missing |= UInt32(1 << row)
    barrier()
    return missing


def prepare[
    stages_weights: Bool, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises -> ByteRows[stages_weights]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var space = workspace_of(problem.m, problem.n, problem.k, plan)
    var tile_groups = groups_of_tile(problem.n, problem.k) if stages_weights else 1
    var rows = ByteRows[stages_weights].at(
        problem.m, problem.n, problem.k, tokens, queue.workspace(space)
    )
    var counters = meetings_at[tokens](problem.m, problem.n, problem.k, rows).counters
    var num_counters = 0
    if plan.kernel == Kernel.FP8_EVEN:
        num_counters = GROUPS * plan.tiles(problem.m, problem.n).num_tiles()
    var lanes = RowLanes.of(problem.m, problem.k, MANY_CHUNKS)
    var num_groups = ceildiv(problem.n, TILE_ROWS) * tile_groups
    var chunks = lanes.chunks(problem.k)
    comptime for known in [1, 2, 3, 4, 6, MANY_CHUNKS, MAX_CHUNKS]:
        if chunks <= known:
            queue.launch[prepare_rows[known, stages_weights]](
                Grid(
                    num_groups + lanes.num_groups(),
                    threads=THREADS,
                    shared_bytes=WARPS * StageRows.NUM_BYTES if stages_weights else SHARED_BYTES,
                    starts_early=True,
                ),
                Activations(problem),
                Weights(problem),
                rows,
                lanes,
                UInt32(tile_groups),
                UInt32(num_groups),
                counters,
                UInt32(num_counters),
            )
            return rows
    raise Error(String("k: got ", problem.k, ", expected at most ", materialize[MAX_K]()))


def groups_of_tile(n: Int, k: Int) -> Int:
    """Returns the groups that share a tile of weights: enough for the device, work for each."""
    comptime FEWEST_BLOCKS = STEP_BLOCKS * WARPS
    var wanted = ceildiv(RESIDENT_GROUPS * MULTIPROCESSORS, ceildiv(n, TILE_ROWS))
    return max(min(wanted, k // (BLOCK * FEWEST_BLOCKS)), 1)
