"""Elements of C whose row or column is marked, see `operands`: computed again, in float64.

A group looks at the marks of a tile, and ends if there are none.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import Queue
from ...layouts import LAYOUTS, OperandLayout
from ...problem import Known, Problem, may_be
from ..arguments import Activations, Result, Weights
from ..codec import ANY_BITS
from ..host import WARPS, WARP_THREADS
from ..instructions import any_lane, any_thread
from ..matmul import of_lane, warp_sums
from ..views import flat_of
from .operands import FactoredRows

comptime COLUMNS = 2
"""Columns of a warp at a time."""
comptime THREADS = WARPS * WARP_THREADS
"""Threads of a group."""
comptime TILE = THREADS
"""Rows and columns of a tile: a thread looks at the marks of one of each."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def compute_marked[
    Layout: OperandLayout
](a: Activations, w: Weights, staged: FactoredRows, result: Result):
    """Computes the marked elements of a tile."""
    var tile_columns = (result.columns + UInt32(TILE - 1)) // UInt32(TILE)
    var tile_row, tile_column = divmod(UInt32(block_idx.x), tile_columns)
    var first_row, first_column = tile_row * UInt32(TILE), tile_column * UInt32(TILE)
    var thread = UInt32(thread_idx.x)
    var is_marked = is_row_marked(staged, first_row + thread)
    is_marked |= is_column_marked(staged, first_column + thread, result.columns)
    if not any_thread[THREADS](is_marked):
        return

    var warp, lane = divmod(Int(thread), WARP_THREADS)
    var end_row = min(Int(first_row) + TILE, Int(result.rows))
    var end_column = min(Int(first_column) + TILE, Int(result.columns))
    for row in range(Int(first_row) + warp, end_row, WARPS):
        var whole_row = is_row_marked(staged, UInt32(row))
        for first in range(Int(first_column), end_column, COLUMNS):
            var mine = first + lane
            var is_wanted = lane < COLUMNS and mine < end_column
            is_wanted = is_wanted and (
                whole_row or is_column_marked(staged, UInt32(mine), result.columns)
            )
            if any_lane(is_wanted):
                var sums = warp_sums[Layout, ANY_BITS, False, COLUMNS](
                    a, w, Int(result.columns), row, first, lane
                )
                if is_wanted:
                    result.store[1, 1](row, mine, SIMD[DType.float32, 1](of_lane(sums, lane)))


@always_inline
def is_row_marked(staged: FactoredRows, row: UInt32) -> Bool:
    """Says whether a row has a mark; one past the end has none."""
    var found = False
    if row < staged.rows:
        for part in range(staged.row_parts):
            found |= flat_of(staged.row_marks)[Int(row * staged.row_parts + part)] != 0
    return found


@always_inline
def is_column_marked(staged: FactoredRows, column: UInt32, columns: UInt32) -> Bool:
    """Says whether a column has a mark; one past the end has none."""
    var found = False
    if column < columns:
        for part in range(staged.column_parts):
            found |= flat_of(staged.column_marks)[Int(part * columns + column)] != 0
    return found


def launch[known: Known](problem: Problem, staged: FactoredRows, mut queue: Some[Queue]) raises:
    """Launches the kernel."""
    comptime for i in range(len(LAYOUTS)):
        comptime if may_be(known.layout, i):
            if problem.right.layout == i:
                queue.launch[compute_marked[LAYOUTS[i]]](
                    Grid(ceildiv(problem.m, TILE) * ceildiv(problem.n, TILE), threads=THREADS),
                    Activations(problem),
                    Weights(problem),
                    staged,
                    Result(problem),
                )
