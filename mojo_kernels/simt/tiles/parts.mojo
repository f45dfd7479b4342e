"""C from the sums of parts of K: added in the order of parts, so that bits are the same every time.

    sums    [part][row][column], float32; a row has whole chunks of columns
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import align_up, ceildiv
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import DevicePointer, Queue
from ...problem import Problem
from ..arguments import Result
from ..host import CHUNK, FLOAT32
from ..views import flat_of

comptime THREADS = 128
"""Threads of a group."""


@always_inline
def of_part(result: Result, sums: DevicePointer[DType.float32], part: UInt32) -> Result:
    """Returns where a part's sums go, as if they were all of C."""
    var rows, columns = Int(result.rows), align_up(Int(result.columns), CHUNK)
    var first = sums.unsafe_offset(Int(part) * rows * columns)
    return Result(Int(first), Int(FLOAT32), rows, columns)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def add_parts(sums: DevicePointer[DType.float32], parts: UInt32, result: Result):
    """Adds up a chunk of a row a thread."""
    var row_chunks = (result.columns + UInt32(CHUNK - 1)) // UInt32(CHUNK)
    var index = Int(block_idx.x) * THREADS + Int(thread_idx.x)
    var row, chunk = divmod(index, Int(row_chunks))
    if row >= Int(result.rows):
        return
    var total = SIMD[DType.float32, CHUNK](0)
    for part in range(parts):
        var at = (Int(part) * Int(result.rows) + row) * Int(row_chunks) + chunk
        total += flat_of(sums).load[width=CHUNK, alignment=16](Coord(CHUNK * at))
    result.store_columns[CHUNK](UInt32(row), UInt32(CHUNK * chunk), total)


def launch(
    problem: Problem, sums: DevicePointer[DType.float32], parts: Int, mut queue: Some[Queue]
) raises:
    """Launches the kernel."""
    var chunks = problem.m * ceildiv(problem.n, CHUNK)
    queue.launch[add_parts](
        Grid(ceildiv(chunks, THREADS), threads=THREADS), sums, UInt32(parts), Result(problem)
    )
