"""From a problem to panels: what all kernels of the CPU share once the left side is prepared."""

from layout import Coord

from ..layouts import LAYOUTS
from ..numbers.floats import FLOAT_TYPES
from ..numbers.formats import FORMATS, Format
from ..operands import Flat, Operand, allocate, flat
from ..problem import Known, Problem, Result, may_be
from .matmul import MatmulPanels, PanelStore
from .panel import PanelProduct
from .quantize import rows_per_task
from .threads import Team
from .weight_readers import cpu_tiles
from .weights import WeightTiles, is_decoding_cheap as tiles_are_cheap

comptime MIN_SHARED_PRODUCTS = 1 << 22
"""Fewer products than this take some 10 us on one thread (AVX-512), less than waking a team
that sleeps, which takes 40 us and more. Measured on one machine, 2026-11-21."""


def groups_per_task(k: Int, group_rows: Int) -> Int:
    """Returns how many groups of rows of the left side are worth a task of their own."""
    return rows_per_task(k, group_rows) // group_rows


def is_decoding_cheap(problem: Problem) -> Bool:
    """Says whether it may pay to decode the weights each time they are loaded."""
    comptime for i in range(len(FORMATS)):
        comptime for j in range(len(LAYOUTS)):
            comptime if tiles_are_cheap[cpu_tiles[FORMATS[i]][j]]():
                if problem.right.format == i and problem.right.layout == j:
                    return True
    return False


def multiply_panels[
    known: Known, format: Format, Product: PanelProduct, T: Team
](left: Product, problem: Problem, team: T):
    """Computes a problem, its left side prepared, for weights of a format in any layout."""
    var right = problem.right
    comptime for i in range(len(LAYOUTS)):
        comptime if may_be(known.layout, i):
            if right.layout == i:
                comptime Tiles = cpu_tiles[format][i]
                var weights = Operand[Tiles.Layout, Tiles.format].at(
                    right.codes, right.scales, problem.n, problem.k
                )
                var bias = _widened_bias(problem.result, problem.n)
                var out = PanelStore(problem.result, bias, problem.m, problem.n)
                _run(MatmulPanels(left, Tiles.of(weights), out), problem, team)
                bias.ptr.unsafe_free()


def _run[
    Product: PanelProduct, Tiles: WeightTiles, T: Team
](var panels: MatmulPanels[Product, Tiles], problem: Problem, team: T):
    """Runs the panels on the team, or here where that is not worth waking it."""
    var num_tasks = panels.num_tasks()
    if problem.m * problem.n * problem.k < MIN_SHARED_PRODUCTS:
        for task in range(num_tasks):
            panels.run(task)
    else:
        team.run_all(panels^, num_tasks)


def _widened_bias(result: Result, n: Int) -> Flat[DType.float32]:
    """Copies the bias to float32; the caller frees it. Empty if there is none."""
    var count = n if result.has_bias() else 0
    var wide = allocate[DType.float32](count)
    comptime for i in range(len(FLOAT_TYPES)):
        if result.bias_dtype == i:
            var bias = flat[FLOAT_TYPES[i]](result.bias, count)
            for column in range(count):
                var value = bias.load[width=1, alignment=1](Coord(column))
                wide.store(Coord(column), value.cast[DType.float32]())
    return wide
