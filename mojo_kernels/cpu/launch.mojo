"""From ranges of rows to panels: what all kernels of the CPU share once the left side is prepared."""

from std.math import ceildiv

from ..layouts import LAYOUTS
from ..numbers.formats import FORMATS, Format, block_of
from ..operands import Operand
from ..problem import Known, Right, may_be
from .block_order import Decoding
from .matmul import MatmulPanels
from .panel import PANEL_COLUMNS, PanelProduct
from .quantize import ELEMENTS_PER_TASK
from .ranges import RangeWork, RangedProblem, RowRange, run_on_ranges
from .result import PanelStore
from .threads import Team
from .weight_readers import cpu_tiles
from .weights import WeightTiles, decoding_of as decoding_of_tiles

comptime MIN_SHARED_PRODUCTS = 1 << 22
"""Fewer products than this take some 10 us on one thread (AVX-512), less than waking a team
that sleeps, which takes 40 us and more. Measured on one machine, 2026-11-21."""


def decoding_of(right: Right) -> Decoding:
    """Returns what it takes to decode the weights each time they are loaded."""
    comptime for i in range(len(FORMATS)):
        comptime for j in range(len(LAYOUTS)):
            comptime decoding = decoding_of_tiles[cpu_tiles[FORMATS[i].kin()][j]]()
            comptime if decoding != Decoding.DEAR:
                if right.format == i and right.layout == j:
                    return decoding
    return Decoding.DEAR


def prepare[W: RangeWork, T: Team](work: W, problem: RangedProblem, team: T):
    """Prepares the left side of all ranges."""
    var is_shared = problem.ranges.rows * problem.k > ELEMENTS_PER_TASK
    run_on_ranges(work, problem.ranges, is_shared, team)


comptime MIN_TASK_PRODUCTS = 1 << 16
"""Panels of a range with fewer are a task together: finding out which range it is, and what its
panels share, takes as long as 4,000 products (Zen 4, 2026-11-30)."""


@fieldwise_init
struct RangedPanels[Product: PanelProduct, Tiles: WeightTiles](RangeWork):
    """The panels of each range with its expert."""

    var left: Self.Product
    """All rows."""
    var problem: RangedProblem

    @no_inline
    def panels(self, rows: RowRange) -> MatmulPanels[Self.Product, Self.Tiles]:
        """Returns the panels of a range."""
        var experts = self.problem.experts
        var weights = Operand[Self.Tiles.Layout, Self.Tiles.format].at(
            experts.codes(rows.expert),
            experts.scales(rows.expert),
            self.problem.n,
            self.problem.k,
            block_of(experts.right.format),
        )
        return MatmulPanels(
            self.left.of_range(rows), Self.Tiles.of(weights), PanelStore.of(self.problem, rows)
        )

    def num_tasks(self, rows: RowRange) -> Int:
        """Returns in how many tasks the panels of a range are computed."""
        return ceildiv(self.panels(rows).num_tasks(), self._panels_per_task(rows))

    def _panels_per_task(self, rows: RowRange) -> Int:
        return max(1, MIN_TASK_PRODUCTS // (rows.count * PANEL_COLUMNS * self.problem.k))

    def run(self, rows: RowRange, task: Int):
        """Computes some panels of a range."""
        var panels = self.panels(rows)
        var count = self._panels_per_task(rows)
        for panel in range(task * count, min((task + 1) * count, panels.num_tasks())):
            panels.run(panel)


def multiply_panels[
    known: Known, format: Format, Product: PanelProduct, T: Team
](left: Product, problem: RangedProblem, team: T):
    """Computes a problem, its left side prepared, for weights of a format in any layout."""
    comptime for i in range(len(LAYOUTS)):
        comptime if may_be(known.layout, i):
            if problem.experts.right.layout == i:
                comptime Tiles = cpu_tiles[format][i]
                _run(RangedPanels[Product, Tiles](left, problem), team)


def _run[
    Product: PanelProduct, Tiles: WeightTiles, T: Team
](work: RangedPanels[Product, Tiles], team: T):
    """Runs the panels on the team, or here where that is not worth waking it."""
    var problem = work.problem
    var is_shared = problem.ranges.rows * problem.n * problem.k >= MIN_SHARED_PRODUCTS
    if problem.ranges.count == 1:
        # What panels share is worked out once, not for each.
        var panels = work.panels(problem.ranges.range(0))
        var num_tasks = panels.num_tasks()
        team.run_all(panels^, num_tasks, is_shared)
    else:
        run_on_ranges(work, problem.ranges, is_shared, team)
