"""Which plan a product of eight-bit codes gets: the one that is expected to take the least.

Groups run in rounds, of one on each multiprocessor, and take the stages of K one by one. Stages of
weights are made once, in the workspace, or by each group that needs them, which takes longer:

    plan         before the rounds          a round                      a stage of 128 x 128
    bytes        all weights                begin and end, all stages    the least
    bytes_few    nothing                    the same                     more: it is made here

Costs follow from times on an H200 (2026-11-23): 512 and 1024 x 4096 x 4096 and 4096 ** 3 for
`bytes`; 256 x 7168 x 2048, 512 x 4096 x 4096 and, in tiles of 64 rows, 128 x 4096 x 4096 for
`bytes_few`. Plans of several ranks were not measured: nobody gets them who does not name one.
"""

from std.math import ceildiv

from ..many.kernel import MULTIPROCESSORS
from ..plan import Plan
from .operands import Scaling

comptime ROUND_US = 2.3
"""Begin and end of a group."""


@fieldwise_init
struct Costs(TrivialRegisterPassable):
    """What some steps take, in microseconds."""

    var staged: Float64
    """A stage of 128 rows, in the workspace."""
    var made: Float64
    """A stage of 128 rows that is made."""
    var made_of_64: Float64
    """One of 64 rows."""
    var weights: Float64
    """Stages of 2 ** 20 weights in the workspace."""

    @staticmethod
    def of(scaling: Scaling, weight_bits: Int) -> Self:
        """Returns those of a pair of formats."""
        if scaling == Scaling.ROWS:
            return Self(0.39, 0.50, 0.41, 0.58)
        if scaling == Scaling.STAGES:
            return Self(0.58, 0.82, 0.47, 0.58)
        if weight_bits == 4:
            return Self(0.31, 0.58, 0.46, 1.33)
        return Self(0.35, 0.58, 0.47, 1.89)


def choose_plan(m: Int, n: Int, k: Int, scaling: Scaling, weight_bits: Int) -> Plan:
    """Returns the plan for C of [m, n] and codes [.., k]."""
    var costs = Costs.of(scaling, weight_bits)
    var num_steps = Float64(ceildiv(k, 64 if scaling == Scaling.NUMBERS else 128))
    var best = Plan.bytes()
    var weights_us = costs.weights * Float64(n * k) / (1 << 20)
    var least = weights_us + _rounds(best, m, n) * (ROUND_US + costs.staged * num_steps)
    for tokens in [64, 128]:
        var plan = Plan.bytes_few(tokens, 1)
        var step_us = costs.made if tokens == 128 else costs.made_of_64
        var us = _rounds(plan, m, n) * (ROUND_US + step_us * num_steps)
        if us < least:
            best, least = plan, us
    return best


def _rounds(plan: Plan, m: Int, n: Int) -> Float64:
    """Returns the rounds of a plan's groups."""
    return Float64(ceildiv(plan.groups(m, n), MULTIPROCESSORS))
