"""Which kernel computes a product on Hopper, and why.

The policy is a table of what was fastest, `measured`: over a grid of shapes, every plan was timed
on the device. A shape gets the plan of its neighbour in the grid:

    rows          the next number of rows in the grid, or the last one
    (N, K)        the weight with the least |log2 N / N'| + |log2 K / K'|

FP8 tensor cores are for MXFP4 activations and results of two bytes, see `hopper.fp8`.
`PORTABLE` is for operands that no fast kernel takes.
"""

from std.math import log2

from ..plan import Plan
from .measured import BYTES, PLANS, ROWS, WEIGHTS

comptime MAX_FEW_ROWS = 16
"""Up to this many rows of activations, no plan of the table wants a workspace."""
comptime NO_ROW = -1
"""Stands for the row of the portable kernel, which is none of the table."""


@fieldwise_init
struct Choice(TrivialRegisterPassable):
    """A plan, and the shape of the grid whose fastest it is."""

    var plan: Plan
    var row: Int
    """The line of the table, then the weight in it; `NO_ROW` for the portable kernel."""
    var m: Int
    """The rows of activations for which it was measured."""
    var n: Int
    """The rows of the weight for which it was measured."""
    var k: Int
    """The length of those rows."""

    def reason(self) -> String:
        """Returns why the plan was chosen."""
        if self.row == NO_ROW:
            return (
                "fast kernels take MXFP4 weights, preshuffled for CUDA, with MXFP4 or bfloat16"
                " activations"
            )
        return String("the fastest plan measured for ", self.m, " x ", self.n, " x ", self.k)


comptime PORTABLE = Choice(Plan.PORTABLE, NO_ROW, 0, 0, 0)
"""For everything else."""


def choose(m: Int, n: Int, k: Int, takes_bytes: Bool) -> Choice:
    """Returns the plan for a shape; `takes_bytes` says whether FP8 tensor cores may have it."""
    comptime LAST = len(ROWS) - 1
    comptime for i in range(LAST):
        comptime rows = ROWS[i]
        if m <= rows:
            return _nearest[i](n, k, takes_bytes)
    return _nearest[LAST](n, k, takes_bytes)


def _nearest[line: Int](n: Int, k: Int, takes_bytes: Bool) -> Choice:
    """Returns the plan in a line of the table for a weight."""
    var log_n, log_k = log2(Float32(n)), log2(Float32(k))
    var found, least = 0, Float32.MAX
    comptime for i in range(len(WEIGHTS)):
        comptime log_of_n = log2(Float32(WEIGHTS[i][0]))
        comptime log_of_k = log2(Float32(WEIGHTS[i][1]))
        var distance = abs(log_n - log_of_n) + abs(log_k - log_of_k)
        if distance < least:
            found, least = i, distance
    comptime for i in range(len(WEIGHTS)):
        comptime plan = Plan.from_code(PLANS[line][i])
        comptime row = line * len(WEIGHTS) + i
        comptime choice = Choice(plan, row, ROWS[line], WEIGHTS[i][0], WEIGHTS[i][1])
        if found == i:
            var chosen = materialize[choice]()
            comptime if BYTES[line][i] == 1:
                if takes_bytes:
                    chosen.plan = Plan.FP8
            return chosen
    return materialize[PORTABLE]()
