"""C = A @ B.T with one warp for a row and a few columns: any shape, layout and pair of formats.

Dense is grouped with one group: otherwise a row finds the first group that ends behind it.

Lane l takes the chunks l, l + 32, ... of K, so that four lanes hold a block.
Products of two chunks are summed in float32, which is exact for MXFP4, and
blocks in float64, where no scale overflows or vanishes. Other kernels call
`warp_sums` where their own arithmetic may leave the float32 range.

One instance of the kernel knows that both sides are MXFP4, or the left one floats; another one
learns at run time what they are.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import sum as warp_sum

from ..experts import Experts, GroupedProblem
from ..launch.queue import Queue
from ..layouts import LAYOUTS, OperandLayout
from ..numbers.formats import FORMATS, Format, NO_FORMAT
from ..problem import ANY, Known, Left, LeftKind, Problem, Right, may_be
from ..routing.groups import Groups
from ..routing.slots import NO_EXPERT
from .arguments import Activations, ExpertWeights, Result, Weights
from .codec import ANY_BITS, LANES_PER_BLOCK
from .host import CHUNK, COLUMNS, WARPS, WARP_THREADS, grid_of_warps, is_left_aligned
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
    Layout: OperandLayout, bits: Int, aligned: Bool, num_columns: Int, is_part: Bool = False
](
    a: Activations,
    w: Weights,
    row: Int,
    columns: SIMD[DType.int32, num_columns],
    lane: Int,
    first_chunk: Int = 0,
    part_chunks: Int = 0,
) -> SIMD[DType.float32, num_columns]:
    """Returns the same at any columns, of all K or of some chunks, which are a part of it."""
    var begin, end = 0, a.k // CHUNK
    comptime if is_part:
        begin, end = first_chunk, first_chunk + part_chunks
    var sums = SIMD[DType.float64, num_columns](0)
    var row_amax = a.amax_of_row[bits, aligned](row, lane)
    for first in range(begin, end, WARP_THREADS):
        # Lanes past the end repeat the last block, whole blocks at a time.
        var in_range = first + lane < end
        var chunk = first + lane
        if not in_range:
            chunk = end - LANES_PER_BLOCK + lane % LANES_PER_BLOCK
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


def product_warps[
    Layout: OperandLayout, bits: Int, aligned: Bool, is_grouped: Bool
](a: Activations, weights: ExpertWeights, groups: Groups, result: Result):
    """Computes eight columns of a row of C a warp, each row by the weights of its group."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var columns = Int(result.columns)
    var first_column = (tile.column * WARPS + warp) * COLUMNS
    if first_column >= columns or tile.row >= Int(result.rows):
        return

    var group = 0
    comptime if is_grouped:
        group = groups.expert_of[WARP_THREADS](tile.row, lane)
    var sums = SIMD[DType.float32, COLUMNS](0)
    if group != NO_EXPERT:
        sums = warp_sums[Layout, bits, aligned, COLUMNS](
            a, weights.of(group), columns, tile.row, first_column, lane
        )

    var column = first_column + lane
    if lane < COLUMNS and column < columns:
        var sum = of_lane(sums, lane)
        if group != NO_EXPERT:
            sum = weights.biased(group, column, sum)
        result.store[1, 1](tile.row, column, SIMD[DType.float32, 1](sum))


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


def bits_of(left_format: Int, right_format: Int) -> Int:
    """Returns the bits that an instance of a kernel knows: MXFP4's, or `ANY_BITS`.

    MXFP4's are for MXFP4 weights, where activations are MXFP4 too or floats that are kept.
    """
    var are_mxfp4 = right_format == MXFP4 and left_format in (MXFP4, NO_FORMAT)
    comptime bits = Format.MXFP4.element.bits
    return bits if are_mxfp4 else ANY_BITS


def may_have[known: Known](bits: Int) -> Bool:
    """Says whether a product of which this is known may want the instance of `bits`."""
    if known.left_format != ANY and known.right_format != ANY:
        return bits_of(known.left_format, known.right_format) == bits
    return bits == ANY_BITS or (
        may_be(known.right_format, MXFP4)
        and (may_be(known.left_format, MXFP4) or known.left_format == NO_FORMAT)
    )


trait WarpLaunch:
    """A launch of warps, whichever instance of the kernel operands want."""

    def start[Layout: OperandLayout, bits: Int, aligned: Bool](self, mut queue: Some[Queue]) raises:
        """Launches an instance."""
        ...


def launch_instance[
    known: Known
](warps: Some[WarpLaunch], left: Left, right: Right, mut queue: Some[Queue]) raises:
    """Launches the instance for a layout, for MXFP4 or any formats, and an alignment of A."""
    comptime for i in range(len(LAYOUTS)):
        comptime for bits in [Format.MXFP4.element.bits, ANY_BITS]:
            comptime for aligned in [False, True]:
                comptime if may_be(known.layout, i) and may_have[known](bits):
                    if (
                        right.layout == i
                        and bits_of(left.format, right.format) == bits
                        and is_left_aligned(left) == aligned
                    ):
                        return warps.start[LAYOUTS[i], bits, aligned](queue)
    raise Error(String("unknown layout, code ", right.layout))


@fieldwise_init
struct ProductWarps[is_grouped: Bool](WarpLaunch):
    """The launch of `product_warps`."""

    var a: Activations
    var weights: ExpertWeights
    var groups: Groups
    var result: Result

    def start[Layout: OperandLayout, bits: Int, aligned: Bool](self, mut queue: Some[Queue]) raises:
        queue.launch[product_warps[Layout, bits, aligned, Self.is_grouped]](
            grid_of_warps(Int(self.result.rows), Int(self.result.columns)),
            self.a, self.weights, self.groups, self.result,
        )  # fmt: skip


def launch[known: Known](problem: Problem, mut queue: Some[Queue]) raises:
    """Launches the kernel for a problem that it supports."""
    var warps = ProductWarps[False](
        Activations(problem),
        ExpertWeights(Experts.only(problem.right, problem.result), problem.n),
        Groups.none(),
        Result(problem.result.values, problem.result.dtype, problem.m, problem.n),
    )
    launch_instance[known](warps, problem.left, problem.right, queue)


def launch[known: Known](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches the kernel for a grouped problem."""
    var warps = ProductWarps[True](
        Activations(problem.left, problem.k),
        ExpertWeights(problem.experts, problem.n),
        Groups(problem),
        Result(problem.values, problem.dtype, problem.m, problem.n),
    )
    launch_instance[known](warps, problem.left, problem.experts.right, queue)
