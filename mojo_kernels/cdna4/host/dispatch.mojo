"""Which kernel computes a product on CDNA4, and how it is launched.

`CHOICES` (choices.mojo) is the whole policy: the first row that covers (M, N, K) is taken, and
the last row covers every shape. Of MXFP4 that row competes with all that have costs, and
the cheapest is taken; those that multiply codes encode floats in a launch
before. A row names a kernel, how its workgroups cut the work, and the reason; the kernel's own
`launch` knows the rest. MAX ops and the HIP modules go through `launch` below;
`mx_kernels.explain` and the benchmark ask the table.
"""

from std.math import align_up

from ...launch.queue import Queue, Workspace
from ...numbers.formats import Format
from ...problem import Left, Problem
from ..chip import MAX_ROWS, MAX_TENSOR_BYTES, rows_at_once
from ..decode.kernel import DecodeKernel
from ..instructions.matrix import TILE
from ..middle.kernel import MiddleKernel
from ..prefill.kernel import PrefillKernel
from ..quantize.kernel import QuantizeKernel
from ..types import Formats, ProductTypes, float_bytes
from .choices import ANY, CHOICES, Family

comptime SHORT_K = 2048
"""Up to which decode kernels are not compared with others for more than a tile of rows."""


def choose(m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
    """Returns the row of `CHOICES` for a shape."""
    var first = _first(m, n, k, types)
    if types.formats != Formats.MXFP4:
        return first
    var result, least = first, ANY
    comptime for i in range(len(CHOICES)):
        comptime choice = CHOICES[i]
        comptime if choice.family == Family.DECODE:
            var is_short = k <= SHORT_K and not types.x
            if i == first and (m <= TILE or is_short):
                return first
        if (i == first or choice.has_cost(types)) and m <= choice.max_rows(n, k, types):
            var cycles = choice.cycles(m, n, k, types)
            if cycles < least:
                result, least = i, cycles
    return result


def _first(m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
    """Returns the first row that covers a shape."""
    comptime last = len(CHOICES) - 1
    comptime for i in range(last):
        comptime choice = CHOICES[i]
        if not choice.quantizes_first(types) and m <= choice.max_rows(n, k, types):
            return i
    return last


@fieldwise_init
struct KnownWeights(TrivialRegisterPassable):
    """What is known of the weights [n, k] when a launch is compiled."""

    var n: Int
    """Rows, rounded up to whole tiles or not; 0 if unknown."""
    var k: Int
    """Elements of a row; 0 if unknown."""

    comptime NOTHING = Self(0, 0)

    def allows(self, row: Int, types: ProductTypes) -> Bool:
        """Says whether `choose` may return `row` for some M that one launch takes."""
        var n = self.n if self.n > 0 else ANY
        var covered = 0
        comptime for i in range(len(CHOICES)):
            comptime choice = CHOICES[i]
            var is_unknown = self.k == 0
            if i == row:
                if is_unknown:
                    return choice.sources.include(types) and choice.fits(types)
                if choice.has_cost(types) and types.formats == Formats.MXFP4:
                    return choice.max_rows(n, self.k, types) > 0
                return choice.max_rows(n, self.k, types) > covered < self._most_rows(types)
            if not choice.quantizes_first(types):
                if is_unknown and choice.max_rows(ANY, ANY, types) >= MAX_ROWS:
                    return False
                if not is_unknown:
                    covered = max(covered, choice.max_rows(n, self.k, types))
        return False

    def _most_rows(self, types: ProductTypes) -> Int:
        """Returns the rows of a launch."""
        return rows_at_once(max(types.row_bytes(self.k), self.n * float_bytes(types.out)))


def launch[
    Q: Queue, //, types: ProductTypes, known: KnownWeights = KnownWeights.NOTHING
](problem: Problem, mut queue: Q) raises:
    """Launches what the table chooses, as often as it takes for all rows of activations.

    Parameters:
        Q: The kind of queue.
        types: What the problem is of.
        known: Sizes of the weights; kernels that they rule out are not compiled.

    Args:
        problem: The product; its activations are contiguous.
        queue: Where the launches go.
    """
    if not types.match(problem):
        raise Error("got a product of other formats, types or layout than was compiled for gfx950")
    comptime last = len(CHOICES) - 1
    comptime if not types.formats.are_columns:
        comptime assert CHOICES[last].max_rows(ANY, ANY, types) == ANY, "the last row covers all"
    var row_bytes = max(types.row_bytes(problem.k), problem.n * float_bytes(types.out))
    var sizes = [types.formats.right.packed_bytes(problem.n * problem.k), row_bytes]
    for num_bytes in sizes:
        if num_bytes >= MAX_TENSOR_BYTES:
            raise Error(
                String(
                    "got a tensor of at least ", num_bytes, " bytes for (M, N, K) = (", problem.m,
                    ", ", problem.n, ", ", problem.k, "), expected less than 2 GiB",
                )
            )  # fmt: skip
    var at_once = rows_at_once(row_bytes)
    comptime if types.formats.are_columns:
        if problem.m % TILE != 0 or problem.n % TILE != 0 or problem.m > at_once:
            raise Error(
                String(
                    "got codes by columns of ", problem.m, " and ", problem.n,
                    " rows, expected multiples of 16, of activations at most ", at_once,
                )
            )  # fmt: skip
    for row in range(0, problem.m, at_once):
        var part = rows_of[types](problem, row, min(at_once, problem.m - row))
        comptime if types.quantizes_first():
            part = _quantized[types](part, queue)
            _launch_chosen[types.encoded(), known](part, queue)
        else:
            _launch_chosen[types, known](part, queue)


def rows_of[types: ProductTypes](problem: Problem, row: Int, count: Int) -> Problem:
    """Returns the product of some rows of activations."""
    var part = problem
    part.m = count
    part.left.values += row * types.row_bytes(problem.k)
    part.left.scales += types.formats.left.scale_bytes(row, problem.k)
    part.result.values += row * problem.n * float_bytes(types.out)
    return part


def _quantized[types: ProductTypes, Q: Queue](problem: Problem, mut queue: Q) raises -> Problem:
    """Launches what makes codes and scales of floats; returns their product.

    They are handed over in the workspace, where the kernels of codes have nothing but counters.
    """
    comptime format, dtype = types.formats.left, types.floats()
    var m, k = problem.m, problem.k
    var space = quantized_workspace(format, m, k)
    var scales = queue.workspace(space)
    var codes = scales + space.num_bytes() - format.packed_bytes(m * k)
    comptime Kernel = QuantizeKernel[format, dtype, types.rounding]
    Kernel.launch(problem.left.values, codes, scales, m, k, queue)
    var part = problem
    part.left = Left.encoded(codes, scales, format.code())
    return part


def quantized_workspace(format: Format, m: Int, k: Int) -> Workspace:
    """Returns the memory of scales and, behind them, codes of a quantized left side."""
    comptime ALIGNMENT = 256
    var scale_bytes = align_up(format.scale_bytes(m, k), ALIGNMENT)
    return Workspace(0, scale_bytes + format.packed_bytes(m * k))


def _launch_chosen[
    types: ProductTypes, known: KnownWeights, Q: Queue
](problem: Problem, mut queue: Q) raises:
    """Launches a product that a launch can take."""
    var row = choose(problem.m, problem.n, problem.k, types)
    comptime for i in range(len(CHOICES)):
        comptime if known.allows(i, types):
            comptime choice = CHOICES[i]
            if row == i:
                comptime for k_tail in [False, True]:
                    comptime can_end_so = known.k == 0 or choice.has_tail(known.k) == k_tail
                    comptime if can_end_so and (choice.any_k or not k_tail):
                        if choice.has_tail(problem.k) == k_tail:
                            comptime if choice.family == Family.DECODE:
                                comptime shape = choice.shape_of(k_tail)
                                return DecodeKernel[types, shape].launch(problem, queue)
                            elif choice.family == Family.MIDDLE:
                                comptime shape = choice.middle()
                                comptime Kernel = MiddleKernel[types.encoded(), shape, k_tail]
                                var part = problem
                                comptime if choice.quantizes_first(types):
                                    part = _quantized[types](problem, queue)
                                return Kernel.launch(part, queue)
                            else:
                                comptime Kernel = PrefillKernel[types, choice.m_tiles, k_tail]
                                return Kernel.launch(problem, queue)
    raise Error(String("no kernel was compiled for row ", row, " of the dispatch table"))
