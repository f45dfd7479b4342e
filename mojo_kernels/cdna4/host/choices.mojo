"""Which rows of the table compute a product on CDNA4, and which shapes a layer of experts.

The first row that covers (M, N, K) competes with all that have costs (costs.mojo), and the cheapest
is taken. Floats become codes of four bits or six in a launch of their own where that and an
interleaved kernel are expected to take less than the row of floats. No kernel depends on this file,
nor on a cost: who launches is told what was chosen.
"""

from std.builtin.globals import global_constant

from ...experts import ExpertsProblem
from ...launch.grid import Workspace, larger
from ..chip import TILE
from ..moe_shape import is_fused
from ..types import ProductTypes
from .costs import Costs, cycles_of_experts
from .experts import LayerShapes, LayerTypes, INTERLEAVED_SHAPES, shape_of, has_shape, most_rows
from .experts import usual_rows
from .plan import Family
from .table import ANY, CHOICES, Choice, Chosen, quantized_workspace

comptime SHORT_K = 2048
"""Up to which streaming kernels of codes of four bits or six are not compared with others."""


def choose(m: Int, n: Int, k: Int, types: ProductTypes) -> Chosen:
    """Returns the rows of `CHOICES` for all launches of a product."""
    var at_once, of = types.rows_at_once(n, k), types.of_launch()
    var most = row_of(min(m, at_once), n, k, of)
    var is_even = m <= at_once or m % at_once == 0
    return Chosen(most, most if is_even else row_of(m % at_once, n, k, of))


def row_of(m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
    """Returns the row of `CHOICES` for a launch."""
    ref table = global_constant[CHOICES]()
    var first = _first(m, n, k, types)
    var is_quick = types.formats.multiply_at_once()
    var costs = materialize[Costs.TABLE]()
    var is_short = is_quick and (m <= TILE or (k <= SHORT_K and not types.x))
    var result, least = first, ANY
    for i in range(len(table)):
        ref choice = table[i]
        if i == first and choice.plan.family == Family.STREAMING and is_short:
            return first
        if (i == first or choice.has_cost(types)) and m <= choice.max_rows(n, k, types):
            var cycles = costs.of(choice.plan, m, n, k, types)
            if cycles < least:
                result, least = i, cycles
    return result


def _first(m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
    """Returns the first row that covers a shape."""
    ref table = global_constant[CHOICES]()
    for i in range(len(table) - 1):
        if not table[i].quantizes_first(types) and m <= table[i].max_rows(n, k, types):
            return i
    return len(table) - 1


def workspace_of(chosen: Chosen, m: Int, n: Int, k: Int, types: ProductTypes) -> Workspace:
    """Returns the memory that is enough for all launches of a product."""
    ref table = global_constant[CHOICES]()
    var at_once = types.rows_at_once(n, k)
    var most = workspace_of(table[chosen.most], min(m, at_once), n, k, types)
    if m <= at_once:
        return most
    return larger(most, workspace_of(table[chosen.last], m % at_once, n, k, types))


def workspace_of(choice: Choice, m: Int, n: Int, k: Int, types: ProductTypes) -> Workspace:
    """Returns the memory of a launch, and of that which makes codes of floats before."""
    var left = types.formats.left
    var space = choice.plan.workspace(left, m, n, k, has_codes=Bool(types.x))
    if types.quantizes_first() or choice.quantizes_first(types):
        space.handed_over_bytes = quantized_workspace(left, m, k).handed_over_bytes
    return space


def shape_of_experts(
    m: Int, n: Int, k: Int, groups: Int, types: ProductTypes, are_gated: Bool
) -> Int:
    """Returns the place in `INTERLEAVED_SHAPES` for a product of m rows [m, k] and experts [groups, n, k].

    Its tiles are the lowest with room for most groups, or the highest; of several, those that are
    expected to take the shortest time.
    """
    var left = types.formats.left
    var usual = min(usual_rows(m, groups), most_rows())
    var best, best_rows, least = 0, 0, 0
    for i in range(len(materialize[INTERLEAVED_SHAPES]())):
        var shape = shape_of(left, i)
        if not has_shape(shape, types, are_gated):
            continue
        var cycles = cycles_of_experts(shape, m, n, k, groups, left)
        var is_first = best_rows < min(usual, shape.rows())
        if is_first or (shape.rows() == best_rows and cycles < least):
            best, best_rows, least = i, shape.rows(), cycles
    return best


def shapes_of_layer(types: LayerTypes, problem: ExpertsProblem) -> LayerShapes:
    """Returns the shapes of both products of a layer."""
    var slots, experts = problem.routing.count(), problem.gate_up.count
    var width, inner, are_gated = problem.width, problem.inner, is_fused(problem.gate)
    var first = types.first(types.x if are_gated else DType.float32)
    return LayerShapes(
        shape_of_experts(slots, problem.sums(), width, experts, first, are_gated),
        shape_of_experts(slots, width, inner, experts, types.second(), False),
    )
