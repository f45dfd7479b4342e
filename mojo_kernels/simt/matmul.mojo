"""C = A @ B.T with one warp for a row and a few columns: any shape, layout and pair of formats.

Lane l takes the chunks l, l + 32, ... of K, so that four lanes hold a block.
Products of two chunks are summed in float32, which is exact for MXFP4, and
blocks in float64, where no scale overflows or vanishes. Other kernels call
`warp_sums` where their own arithmetic may leave the float32 range.

One instance of the kernel knows that both sides are MXFP4, or the left one floats; another one
learns at run time what they are.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import sum as warp_sum

from ..launch.queue import Queue
from ..layouts import LAYOUTS, OperandLayout
from ..numbers.formats import FORMATS, Format, NO_FORMAT
from ..problem import ANY, Known, LeftKind, Problem, may_be
from .arguments import Activations, Result, Weights
from .codec import ANY_BITS, LANES_PER_BLOCK
from .host import CHUNK, COLUMNS, WARPS, WARP_THREADS, grid_of_warps, is_aligned
from .views import tile_here

comptime MXFP4 = Format.MXFP4.code()
"""The format that has an instance of its own."""


@always_inline
def warp_sums[
    Layout: OperandLayout, bits: Int, aligned: Bool, num_columns: Int
](a: Activations, w: Weights, columns: Int, row: Int, first_column: Int, lane: Int) -> SIMD[
    DType.float32, num_columns
]:
    """Returns C at `row` and some neighbouring columns, the last one again for those behind it.

    In every lane of the warp. `bits` are those of the elements of both sides, or `ANY_BITS`.
    """
    var neighbours = SIMD[DType.int32, num_columns]()
    comptime for i in range(num_columns):
        neighbours[i] = Int32(min(first_column + i, columns - 1))
    return warp_sums_at[Layout, bits, aligned, num_columns](a, w, row, neighbours, lane)


@always_inline
def warp_sums_at[
    Layout: OperandLayout, bits: Int, aligned: Bool, num_columns: Int
](a: Activations, w: Weights, row: Int, columns: SIMD[DType.int32, num_columns], lane: Int) -> SIMD[
    DType.float32, num_columns
]:
    """Returns the same at any columns."""
    var num_chunks = a.k // CHUNK
    var sums = SIMD[DType.float64, num_columns](0)
    var row_amax = a.amax_of_row[bits, aligned](row, lane)
    for first in range(0, num_chunks, WARP_THREADS):
        # Lanes past the end repeat the last block, whole blocks at a time.
        var in_range = first + lane < num_chunks
        var chunk = first + lane
        if not in_range:
            chunk = num_chunks - LANES_PER_BLOCK + lane % LANES_PER_BLOCK
        var x, x_factor = a.chunk[bits, aligned](row, chunk, in_range, row_amax)
        if not in_range:
            continue

        comptime for i in range(num_columns):
            var values, scale = w.chunk[Layout, bits](Int(columns[i]), chunk, a.k)
            var factor = x_factor * scale
            if a.is_kept():
                var products = x.cast[DType.float64]() * values.cast[DType.float64]()
                sums[i] += products.reduce_add() * factor
            else:
                sums[i] += (x * values).reduce_add().cast[DType.float64]() * factor

    var result = SIMD[DType.float32, num_columns]()
    comptime for i in range(num_columns):
        result[i] = warp_sum(sums[i]).cast[DType.float32]()
    return result


def matmul_warps[
    Layout: OperandLayout, bits: Int, aligned: Bool
](a: Activations, w: Weights, result: Result):
    """Computes one row and eight columns a warp."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var columns = Int(result.columns)
    var first_column = (tile.column * WARPS + warp) * COLUMNS
    if first_column >= columns or tile.row >= Int(result.rows):
        return

    var sums = warp_sums[Layout, bits, aligned, COLUMNS](
        a, w, columns, tile.row, first_column, lane
    )

    var column = first_column + lane
    if lane < COLUMNS and column < columns:
        result.store[1, 1](tile.row, column, SIMD[DType.float32, 1](of_lane(sums, lane)))


@always_inline
def of_lane[width: SIMDLength, //](values: SIMD[DType.float32, width], lane: Int) -> Float32:
    """Returns the value at the position of a lane, 0 for lanes behind."""
    var mine = Float32(0)
    comptime for i in range(Int(width)):
        mine = values[i] if lane == i else mine
    return mine


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: any pair of formats, in any layout."""
    var left, right = problem.left, problem.right
    var left_known = left.kind == LeftKind.KEPT or 0 <= left.format < comptime (len(FORMATS))
    return left_known and (
        0 <= right.format < comptime (len(FORMATS)) and 0 <= right.layout < comptime (len(LAYOUTS))
    )


def is_mxfp4(problem: Problem) -> Bool:
    """Says whether weights are MXFP4, and activations too or floats that are kept."""
    return are_mxfp4(problem.left.format, problem.right.format)


def are_mxfp4(left_format: Int, right_format: Int) -> Bool:
    """Says the same of the positions of their formats."""
    return right_format == MXFP4 and left_format in (MXFP4, NO_FORMAT)


def launch[known: Known](problem: Problem, mut queue: Some[Queue]) raises:
    """Launches the kernel for a problem that it supports."""
    comptime for i in range(len(LAYOUTS)):
        comptime if may_be(known.layout, i):
            if problem.right.layout == i:
                comptime for aligned in [False, True]:
                    if is_aligned(problem) == aligned:
                        return _launch_bits[known, LAYOUTS[i], aligned](problem, queue)
    raise Error(String("unknown layout, code ", problem.right.layout))


def _launch_bits[
    known: Known, Layout: OperandLayout, aligned: Bool
](problem: Problem, mut queue: Some[Queue]) raises:
    """Launches the instance for MXFP4, or the one for any pair of formats."""
    comptime may_be_mxfp4 = may_be(known.right_format, MXFP4) and (
        may_be(known.left_format, MXFP4) or may_be(known.left_format, NO_FORMAT)
    )
    comptime if may_be_mxfp4:
        if is_mxfp4(problem):
            comptime bits = Format.MXFP4.element.bits
            return _launch[matmul_warps[Layout, bits, aligned]](problem, queue)
    comptime is_known = known.right_format != ANY and known.left_format != ANY
    comptime if not (may_be_mxfp4 and is_known):
        _launch[matmul_warps[Layout, ANY_BITS, aligned]](problem, queue)


def _launch[
    kernel: def(Activations, Weights, Result) thin -> None
](problem: Problem, mut queue: Some[Queue]) raises:
    """Launches an instance of the kernel."""
    queue.launch[kernel](
        grid_of_warps(problem.m, problem.n), Activations(problem), Weights(problem), Result(problem)
    )
