"""Rows made ready for FP8 tensor cores: stages of bytes, and the base of every row.

One kernel: a group takes rows of tokens, or a tile of weight rows: its scales, and some of its
stages if they are to be in the workspace.

A row whose blocks differ too much has no base, see `bases`: each of its blocks has its own then, its
scale. In a stage a block's bytes lie as words of codes give them: part p, 16 bytes, of
k = 8 j + 4 p + 0 .. 3 for j = 0 to 3. What becomes of tokens: see `tokens`.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import DevicePointer, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Weights
from ..dense.lanes import LaneOfRow, RowLanes
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..host.workspace import (
    MANY_CHUNKS,
    MAX_K,
    PREPARE_THREADS as THREADS,
    PREPARE_WARPS as WARPS,
    RESIDENT_GROUPS,
    workspace_of_fp8,
)
from ..instructions.global_memory import clear_counters
from ..instructions.shared_memory import shared_base
from ..layout import BLOCK, TILE_ROWS
from ..plan import MULTIPROCESSORS, Plan
from ..shapes import BYTE_STEP_BLOCKS as STEP_BLOCKS, GROUPS
from .bases import ByteRows, meetings_at
from .tokens import CHUNK_COUNTS, prepare_token
from .weights import SHARED_BYTES, find_bases


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
        clear_counters(
            counters,
            num_counters,
            index * UInt32(THREADS) + UInt32(thread_idx.x),
            (UInt32(grid_dim.x) - num_groups) * UInt32(THREADS),
        )
        prepare_token[CHUNKS](a, rows, LaneOfRow(lanes, index))
        return
    var tile, group = divmod(index, tile_groups)
    comptime if stages_weights:
        var units = TileUnits[ByteRows[stages_weights]].of(w, UInt32(a.k), tile)
        var loaded = load_stage(rows, units, first_step_of[WARPS](group))
        units.rows = find_bases[4](w, rows.bases, tile, UInt32(a.k))
        comptime for part in range(units.UNITS):
            loaded[part].rows = units.rows
        store_stages[WARPS](rows, units, loaded^, tile, shared_base(), group, tile_groups)
    else:
        _ = find_bases[4](w, rows.bases, tile, UInt32(a.k))


def prepare[
    stages_weights: Bool, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises -> ByteRows[stages_weights]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var space = workspace_of_fp8(problem.m, problem.n, problem.k, plan)
    var tile_groups = groups_of_tile(problem.n, problem.k) if stages_weights else 1
    var rows = ByteRows[stages_weights].at(
        problem.m, problem.n, problem.k, tokens, queue.workspace(space)
    )
    var counters = meetings_at[tokens](problem.m, problem.n, problem.k, rows).counters
    var num_counters = 0
    if plan.is_stream_k():
        num_counters = GROUPS * plan.tiles(problem.m, problem.n).num_tiles()
    var lanes = RowLanes.of(problem.m, problem.k, MANY_CHUNKS)
    var num_groups = ceildiv(problem.n, TILE_ROWS) * tile_groups
    var chunks = lanes.chunks(problem.k)
    comptime for known in CHUNK_COUNTS:
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
