"""Which plan a product of eight-bit codes gets: the one that is expected to take the least.

Groups run in rounds, of one on each multiprocessor, and take the stages of K one by one. Stages of
weights are made once, in the workspace, or by each group that needs them, which takes longer:

    plan         before the rounds          a round                         a stage of 128 x 128
    bytes        all weights                begin and end, all stages       the least
    bytes_few    nothing                    begin and end, a rank's stages  more: it is made here
                                            ranks add up

Costs are a fit to times of 24 shapes of 24 to 4096 rows, and every plan of each: of float scales
on an H200 (2026-11-24), of MX formats on an H100 (2026-11-25), where what they choose takes 1.06 times
what the fastest plan took at most. Clusters of four and eight groups do not fill the device: a
processing cluster of the chip has to have room for a whole one.
"""

from std.math import ceildiv

from ..many.kernel import MULTIPROCESSORS
from ..plan import Plan
from .operands import Scaling

comptime ALL_RANKS = [1, 2, 4, 8]
"""Ranks of a cluster."""
comptime CLUSTERS = [MULTIPROCESSORS, MULTIPROCESSORS // 2, 28, 12]
"""How many clusters of so many ranks run at once. 28 and 12 do, 32 and 16 do not."""


@fieldwise_init
struct Costs(TrivialRegisterPassable):
    """What some steps take, in microseconds."""

    var staged: SIMD[DType.float64, 4]
    """With weights in the workspace: once, 2 ** 20 weights, a round, a stage of 128 rows."""
    var made_of_64: SIMD[DType.float64, 2]
    """Where 64 rows make them: a round, a stage."""
    var made_of_128: SIMD[DType.float64, 2]
    """The same of 128 rows."""
    var made: Float64
    """Of both: once."""
    var together: SIMD[DType.float64, 4]
    """Adding up in a round, by binary logarithm of the ranks."""

    @staticmethod
    def of(scaling: Scaling, weight_bits: Int) -> Self:
        """Returns those of a pair of formats."""
        if scaling == Scaling.ROWS:
            return Self(
                [3.67, 0.535, 2.40, 0.358], [2.48, 0.274], [3.08, 0.422], 1.77,
                [0, 2.26, 1.85, 2.06],
            )  # fmt: skip
        if scaling == Scaling.STAGES:
            return Self(
                [6.92, 0.568, -0.47, 0.627], [1.09, 0.427], [1.77, 0.627], 2.24,
                [0, 2.58, 2.61, 3.08],
            )  # fmt: skip
        if weight_bits == 4:
            return Self(
                [-5.40, 1.052, 5.16, 0.378], [0, 0.484], [1.08, 0.563], 3.47,
                [0, 2.62, 2.81, 3.23],
            )  # fmt: skip
        return Self(
            [-5.50, 1.214, 5.19, 0.379], [0, 0.488], [1.23, 0.562], 3.73, [0, 2.81, 2.96, 3.24]
        )


def choose_plan(m: Int, n: Int, k: Int, scaling: Scaling, weight_bits: Int) -> Plan:
    """Returns the plan for C of [m, n] and codes [.., k]."""
    var costs = Costs.of(scaling, weight_bits)
    var num_steps = ceildiv(k, 64 if scaling == Scaling.NUMBERS else 128)
    var best = Plan.bytes()
    var rounds = Float64(ceildiv(best.groups(m, n), MULTIPROCESSORS))
    var least = costs.staged[0] + costs.staged[1] * Float64(n * k) / (1 << 20)
    least += rounds * (costs.staged[2] + costs.staged[3] * Float64(num_steps))
    for tokens in [64, 128]:
        var made = costs.made_of_128 if tokens == 128 else costs.made_of_64
        comptime for log_ranks in range(len(ALL_RANKS)):
            comptime ranks = ALL_RANKS[log_ranks]
            comptime clusters = CLUSTERS[log_ranks]
            var plan = Plan.bytes_few(tokens, ranks)
            var tiles = plan.tiles(m, n).num_tiles()
            rounds = Float64(ceildiv(tiles, clusters))
            var round_us = made[0] + made[1] * Float64(ceildiv(num_steps, ranks))
            var us = costs.made + rounds * (round_us + costs.together[log_ranks])
            if us < least and plan == plan.within(num_steps):
                best, least = plan, us
    return best
