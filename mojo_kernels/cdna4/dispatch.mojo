"""How the plan that was chosen for a product is launched, without knowing why it was chosen.

A row of the table (host/table.mojo) names a kernel and how its workgroups cut the work; the kernel's
own `launch` knows the rest. MAX ops and the HIP modules go through `launch` below.
"""

from ..launch.queue import Queue
from ..problem import Left, Problem
from .chip import MAX_TENSOR_BYTES, TILE
from .streaming.kernel import StreamingKernel
from .interleaved.kernel import InterleavedKernel
from .ping_pong.kernel import PingPongKernel
from .prepare.quantize import QuantizeKernel
from .types import ProductTypes, float_bytes
from .host.plan import Family
from .host.table import ANY, CHOICES, Chosen, KnownWeights, quantized_workspace


def launch[
    Q: Queue, //, types: ProductTypes, known: KnownWeights = KnownWeights.NOTHING
](problem: Problem, chosen: Chosen, mut queue: Q) raises:
    """Launches what was chosen, as often as it takes for all rows of activations.

    `known`: Sizes of the weights; kernels that they rule out are not compiled.

    Args:
        problem: The product; its activations are contiguous.
        chosen: The rows of the table for it.
        queue: Where the launches go.
    """
    if not types.match(problem):
        raise Error("got a product of other formats, types or layout than was compiled for gfx950")
    comptime last = len(CHOICES) - 1
    comptime if not types.formats.are_plain():
        comptime assert CHOICES[last].max_rows(ANY, ANY, types) == ANY, "the last row covers all"
    var row_bytes = max(types.row_bytes(problem.k), problem.n * float_bytes(types.out))
    var sizes = [types.formats.right.packed_bytes(problem.n * problem.k), row_bytes]
    for num_bytes in sizes:
        if num_bytes >= MAX_TENSOR_BYTES:
            raise Error(
                String(
                    "got a tensor of at least ", num_bytes, " bytes for (M, N, K) = (", problem.m,
                    ", ", problem.n, ", ", problem.k, "), expected less than 2 GiB"
                )
            )  # fmt: skip
    var at_once = types.rows_at_once(problem.n, problem.k)
    comptime if types.formats.are_columns:
        if problem.m % TILE != 0 or problem.n % TILE != 0 or problem.m > at_once:
            raise Error(
                String(
                    "got codes by columns of ", problem.m, " and ", problem.n,
                    " rows, expected multiples of 16, of activations at most ", at_once
                )
            )  # fmt: skip
    for first in range(0, problem.m, at_once):
        var part = rows_of[types](problem, first, min(at_once, problem.m - first))
        var row = chosen.most if part.m == at_once or first == 0 else chosen.last
        comptime if types.quantizes_first():
            part = _quantized[types](part, queue)
        _launch_row[types.of_launch(), known](part, row, queue)


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


def _launch_row[
    types: ProductTypes, known: KnownWeights, Q: Queue
](problem: Problem, row: Int, mut queue: Q) raises:
    """Launches a row of the table for a product that a launch can take."""
    comptime for i in range(len(CHOICES)):
        comptime if known.allows(i, types):
            comptime choice = CHOICES[i]
            if row == i:
                comptime for k_tail in [False, True]:
                    comptime known_tail = choice.plan.has_tail(known.k, types.formats)
                    comptime can_end_so = known.k == 0 or known_tail == k_tail
                    comptime if can_end_so and (choice.any_k or not k_tail):
                        if choice.plan.has_tail(problem.k, types.formats) == k_tail:
                            comptime if choice.plan.family == Family.STREAMING:
                                comptime shape = choice.plan.streaming_of(k_tail)
                                return StreamingKernel[types, shape].launch(problem, queue)
                            elif choice.plan.family == Family.INTERLEAVED:
                                comptime shape = choice.plan.interleaved_of(types)
                                comptime Kernel = InterleavedKernel[types.encoded(), shape, k_tail]
                                var part = problem
                                comptime if choice.quantizes_first(types):
                                    part = _quantized[types](problem, queue)
                                return Kernel.launch(part, queue)
                            else:
                                comptime Kernel = PingPongKernel[types, choice.plan.m_tiles, k_tail]
                                return Kernel.launch(problem, queue)
    raise Error("no kernel was compiled for what was chosen")
