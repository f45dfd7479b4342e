"""Rows made ready for FP8 tensor cores: stages of bytes, and the base of every row.

One kernel: a group takes rows of tokens, or a tile of weight rows: its scales, and some of its
stages if they are to be in the workspace.

A row whose blocks differ too much has no base, see `bases`: each of its blocks has its own then, its
scale. In a stage a block's bytes lie as words of codes give them: part p, 16 bytes, of
k = 8 j + 4 p + 0 .. 3 for j = 0 to 3. What becomes of tokens: see `tokens`.
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
from ...simt.codec import CHUNK
from ...simt.views import flat_of, rows_of
from ..dense.lanes import RESIDENT_GROUPS, RowLanes, THREADS, WARPS
from ..dense.result import GROUPS
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..instructions.packed import LOW_BYTES, packed_max, packed_min
from ..instructions.shared_memory import any_thread, load_quad, load_word, shared_base
from ..instructions.shared_memory import store_quad, store_word
from ..instructions.warp import keep_branch, lane_here
from ..layout import BLOCK, K_LANES, ROW_LANES, ROWS_PER_LANE, TILE_BYTES, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..plan import Kernel, Plan
from .bases import ByteRows, meetings_at, workspace_of
from .codes import EMPTY_BASE, NO_BASE, fits, is_base, scale_at
from .places import STEP_BLOCKS
from .tokens import MANY_CHUNKS, MAX_CHUNKS, prepare_token

comptime ENDS_BYTES = 16
"""Bytes of the largest and smallest scales of a lane's four rows."""
comptime SHARED_BYTES = ENDS_BYTES * ROW_LANES * WARPS
"""Shared memory of a group: those of each warp."""
comptime SCALES_BATCH = 4
"""Words of scales of a thread that are on the way at once."""
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

    The groups of weights come first, so many for a tile: nobody makes weights before, so that they
    wait for other kernels when they have read them. Those of tokens let counters become zero.
    """
    launch_dependent_grids()
    var index = UInt32(block_idx.x)
    if index >= num_groups:
        wait_on_dependent_grids()
        index -= num_groups
        var counter = index * UInt32(THREADS) + UInt32(thread_idx.x)
        while counter < num_counters:
            flat_of(counters)[Int(counter)] = 0
            counter += (UInt32(grid_dim.x) - num_groups) * UInt32(THREADS)
        prepare_token[CHUNKS](a, rows, lanes, index)
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
def find_bases(w: Weights, rows: ByteRows[_], tile: UInt32, k: UInt32) -> UInt32:
    """Writes the bases of a tile of weight rows; a thread looks at words of four rows' scales.

    Nothing is written before other kernels have ended, which may read what was there. Returns the
    largest scales of a lane's rows, a byte each, as `ByteRows.put` wants them.
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
    wait_on_dependent_grids()
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
