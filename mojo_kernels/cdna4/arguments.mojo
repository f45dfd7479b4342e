"""What a launch of a product tells its kernel: one record, for one matrix of weights or for several.

    dense      C = A @ W.T + bias                       `of` a problem
    grouped    rows of group g by the weights of g      `of_groups`, see `scheduler.mojo`

The kernels of all schedules take some of it, each in an order in which what it needs first is
preloaded; a kernel's launcher is the one place that knows the order. `Grouping` is what of it a
kernel is compiled for: a dense kernel is a grouped one with one group, and has no argument of
groups.
"""

from ..experts import Experts
from ..numbers.gates import Gate
from ..problem import Problem


@fieldwise_init
struct Grouping(Equatable, TrivialRegisterPassable):
    """Whose rows a kernel multiplies, where they come from, and what becomes of the sums."""

    var is_grouped: Bool
    """Whether rows are those of groups, each with weights of its own."""
    var is_gathered: Bool
    """Whether row r is one that a list names; else rows are those of the left side."""
    var is_gated: Bool
    """Whether sums are gates and ups, and hidden numbers are stored."""
    var fills: Bool
    """Whether rows of C behind the last group become zeros; else they are left alone."""

    comptime DENSE = Self(False, False, False, False)
    """One group: all rows."""
    comptime GROUPED = Self(True, False, False, True)
    """All rows of a grouped product."""
    comptime HIDDEN = Self(True, True, True, False)
    """The first product of a layer, gated."""
    comptime SUMS = Self(True, True, False, False)
    """The first product of a layer."""
    comptime DOWN = Self(True, False, False, False)
    """The second product of a layer."""


@fieldwise_init
struct GroupedRows(TrivialRegisterPassable):
    """The rows of all groups: addresses, and how many."""

    var a: Int
    """Floats; or codes, and behind them plain scales."""
    var count: Int
    var list: Int
    """Which of them are the rows of the groups, int32, if they are gathered."""
    var sizes: Int
    """Of the groups, int32."""
    var m: Int
    """Rows of all groups, and of C."""
    var result: Int


comptime RECORD = 4
"""Words that tell of a tile: its expert, its first row, where its group ends; one is free."""


@fieldwise_init
struct OrderedRows(TrivialRegisterPassable):
    """What `order_rows` makes of the rows of a product: addresses."""

    var tiles: Int
    """A record for each tile, behind how many there are."""
    var rows: Int
    """Of a list, those of each tile."""
    var scales: Int
    """Of each tile."""
    var codes: Int
    """Of each tile, if they lie by tiles too."""


@fieldwise_init
struct GemmArguments(TrivialRegisterPassable):
    """Addresses and sizes of a product."""

    var rows: GroupedRows
    var a_scales: Int
    var experts: Experts
    var gate: Gate
    var n: Int
    var k: Int
    var workspace: Int

    @staticmethod
    def of(problem: Problem, workspace: Int) -> Self:
        var m = problem.m
        return Self(
            GroupedRows(problem.left.values, m, 0, 0, m, problem.result.values),
            problem.left.scales,
            Experts.only(problem.right, problem.result),
            Gate.NONE,
            problem.n,
            problem.k,
            workspace,
        )

    @staticmethod
    def of_groups(rows: GroupedRows, experts: Experts, gate: Gate, n: Int, k: Int) -> Self:
        return Self(rows, 0, experts, gate, n, k, 0)
