"""Which plan a product of E4M3 rows gets: the one that is expected to take the least.

Groups run in rounds, one on each multiprocessor, and take the stages of K one by one:

    us = once + rounds * (begin and end + stages of a rank * stage + ranks add up)

Costs began with what `bench.cuda_bytes` fits to 24 shapes of 24 to 4096 rows on an H200 (2026-11-27),
every plan of each; then a random search, which no command repeats, looked for better choices that
change little for few rows. They choose what takes 1.01 times as long as the fastest plan in the mean,
1.09 at most, on an H100 (2026-11-26) 1.01 to 1.02 and 1.09. Clusters of four and eight groups do not
fill the device.
"""

from std.math import ceildiv

from ..aligned.choice import ALL_RANKS, CLUSTERS
from ..host.gemm import Scaling
from ..plan import Plan
from ..shapes import PART_TOKENS, ROW_BYTES


@fieldwise_init
struct Costs(TrivialRegisterPassable):
    """What some steps take, in microseconds."""

    var once: Float64
    var of_64: SIMD[DType.float64, 2]
    """Tiles of 64 rows: begin and end, a stage."""
    var of_128: SIMD[DType.float64, 2]
    """The same of 128 rows."""
    var together_64: SIMD[DType.float64, 4]
    """Adding up such tiles, by binary logarithm of the ranks."""
    var together_128: SIMD[DType.float64, 4]

    @staticmethod
    def of(scaling: Scaling) -> Self:
        """Returns those of a way of scaling."""
        if scaling == Scaling.ROWS:
            return Self(
                1.387, [3.26, 0.371], [2.21, 0.338], [0, 3.441, 4.332, 2.319],
                [0, 2.61, 1.822, 3.606],
            )  # fmt: skip
        return Self(
            0.902, [1.782, 0.37], [1.008, 0.407], [0, 6.181, 5.23, 4.357],
            [0, 5.912, 3.723, 4.944],
        )  # fmt: skip


def choose_plan(m: Int, n: Int, k: Int, scaling: Scaling) -> Plan:
    """Returns the plan for C of [m, n] and codes [.., k]."""
    var costs = Costs.of(scaling)
    var num_steps = ceildiv(k, ROW_BYTES)
    var best = Plan.mapped(2 * PART_TOKENS, 1)
    var least = Float64.MAX
    for tokens in [PART_TOKENS, 2 * PART_TOKENS]:
        var of_tile, together = costs.of_128, costs.together_128
        if tokens == PART_TOKENS:
            of_tile, together = costs.of_64, costs.together_64
        comptime for log_ranks in range(len(ALL_RANKS)):
            comptime ranks = ALL_RANKS[log_ranks]
            comptime clusters = CLUSTERS[log_ranks]
            var plan = Plan.mapped(tokens, ranks)
            var rounds = Float64(ceildiv(plan.tiles(m, n).num_tiles(), clusters))
            var round_us = of_tile[0] + of_tile[1] * Float64(ceildiv(num_steps, ranks))
            var us = costs.once + rounds * (round_us + together[log_ranks])
            if us < least and plan == plan.within(num_steps):
                best, least = plan, us
    return best
