"""Weights become rows of bfloat16 numbers in the workspace: a kernel of its own."""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import Queue
from ...problem import Problem
from ...simt.arguments import Weights
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..host.workspace import (
    PREPARE_THREADS as THREADS,
    PREPARE_WARPS as WARPS,
    RESIDENT_GROUPS,
    workspace_of_numbers,
)
from ..instructions.shared_memory import shared_base
from ..layout import TILE_ROWS
from ..plan import MULTIPROCESSORS
from .operands import NumberRows
from .weights import mark_weights

comptime MAX_TILE_GROUPS = 32
"""The most groups that share a tile of weights."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def prepare_numbers(w: Weights, operands: NumberRows, k: UInt32, tile_groups: UInt32):
    """Prepares a part of a tile of weights, so many a tile."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    var tile, group = divmod(UInt32(block_idx.x), tile_groups)
    var units = TileUnits[NumberRows].of(w, k, tile)
    var loaded = load_stage(operands, units, first_step_of[WARPS](group))
    if group == 0:
        mark_weights(w, operands, tile, k)
    store_stages[WARPS](operands, units, loaded^, tile, shared_base(), group, tile_groups)


def prepare(problem: Problem, mut queue: Some[Queue]) raises -> NumberRows:
    """Launches the kernel; returns where all will be."""
    var n, k = problem.n, problem.k
    var operands = NumberRows.at(n, k, queue.workspace(workspace_of_numbers(n, k)))
    var tiles = ceildiv(n, TILE_ROWS)
    # Enough for the device.
    var tile_groups = min(ceildiv(RESIDENT_GROUPS * MULTIPROCESSORS, tiles), MAX_TILE_GROUPS)
    queue.launch[prepare_numbers](
        Grid(
            tiles * tile_groups,
            threads=THREADS,
            shared_bytes=WARPS * StageRows.NUM_BYTES,
            starts_early=True,
        ),
        Weights(problem),
        operands,
        UInt32(k),
        UInt32(tile_groups),
    )
    return operands
