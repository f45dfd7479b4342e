"""What the dispatch does with a product, in words and numbers, without a launch."""

from std.math import ceildiv

from ...launch.queue import Grid, Workspace
from ...numbers.formats import FORMATS, NO_FORMAT
from ...simt import matmul as portable
from ...simt.tiles import kernel as tiles
from ...simt.tiles.cut import Cut
from ...simt.tiles.factors import factors_of
from ..aligned import kernel as aligned
from ..few import kernel as few
from ..fp8 import kernel as fp8
from ..few.shape import SHORT, Shape, TOKENS
from ..layout import BLOCK, TILE_ROWS
from ..many import kernel as many
from ..mapped import launch as mapped
from ..middle import kernel as middle
from ..numbers import kernel as numbers
from ..plan import Kernel, PRESHUFFLED, Plan, takes_formats
from .choices import Choice, choice_of_mapped, choice_of_mxfp8, choice_of_portable, choose
from .dispatch import workspace_of


@fieldwise_init
struct Explanation(TrivialRegisterPassable):
    """The choice for a product, and its launch."""

    var choice: Choice
    var grid: Grid
    var workspace: Workspace


def explain(m: Int, n: Int, k: Int, left_format: Int, right_format: Int) raises -> Explanation:
    """Returns what happens to weights [n, k] as `preshuffle` leaves them.

    The result is bfloat16, and so are activations that are kept.
    """
    if mapped.takes_formats(left_format, right_format):
        var choice = choice_of_mapped(m, n, k, left_format, right_format)
        return Explanation(choice, mapped.grid(m, n, choice.plan), mapped.workspace_of(m, k))
    var workspace = workspace_of(m, n, k, left_format, right_format, PRESHUFFLED)
    if aligned.takes_formats(left_format, right_format):
        var bits = materialize[FORMATS]()[right_format].element.bits
        var choice = choice_of_mxfp8(m, n, k, right_format)
        return Explanation(choice, aligned.grid(m, n, bits, choice.plan), workspace)
    if not takes_formats(left_format, right_format):
        var choice = choice_of_portable(m, n, k, left_format, right_format)
        if choice.plan.kernel == Kernel.TILES:
            var factors = factors_of(left_format, right_format, k)
            var grid = tiles.grid(m, n, Cut.of(m, n, k), factors)
            return Explanation(choice, grid, tiles.workspace_of(m, n, k))
        return Explanation(choice, portable.grid(m, n), Workspace(0, 0))
    var choice = choose(m, n, k, fp8.takes(left_format, k), left_format == NO_FORMAT)
    return Explanation(choice, _grid(choice.plan, m, n, k), workspace)


def _grid(plan: Plan, m: Int, n: Int, k: Int) -> Grid:
    """Returns the grid of a plan for a fast kernel."""
    if plan.kernel == Kernel.FEW:
        var share = ceildiv(k // BLOCK, plan.ranks)
        var shape = Shape(plan.tokens // TOKENS, plan.columns // TILE_ROWS, False)
        shape.is_short = share <= SHORT * shape.k_warps()
        return few.grid(m, n, plan, shape, share)
    if plan.kernel == Kernel.MIDDLE:
        return middle.grid[64](m, n, plan) if plan.tokens == 64 else middle.grid[128](m, n, plan)
    if plan.kernel == Kernel.NUMBERS:
        return numbers.grid(m, n, plan)
    return fp8.grid(m, n, k, plan) if plan.kernel.wants_bytes() else many.grid(m, n, k, plan)
