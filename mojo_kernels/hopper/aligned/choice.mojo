"""Which plan a product with MXFP8 activations gets: the one that is expected to take the least.

Groups run in rounds, of one on each multiprocessor, and take the stages of K one by one. Weights become
bytes once, in the workspace, or in each group that needs them, which takes longer:

    plan         before the rounds       a round                         a stage
    aligned      all weights, tokens     begin and end, a rank's stages  the least
    aligned_few  little                  begin and end, a rank's stages  more: weights become bytes
                                         ranks add up

Costs began with what `bench.cuda_bytes` fits to 24 shapes of 24 to 4096 rows on an H200 (2026-11-27),
every plan of each; then a random search, which no command repeats, looked for better choices there
and, for half as much, on an H100 (2026-11-26). They choose the fastest plan, on the H100 what takes
1.00 to 1.01 times as long as that in the mean, 1.09 at most. Clusters of four and eight groups do not
fill the device: a processing cluster of the chip has to have room for a whole one.
"""

from std.math import ceildiv

from ..plan import Kernel, MULTIPROCESSORS, Plan
from ..shapes import ROW_BYTES

comptime ALL_RANKS = [1, 2, 4, 8]
"""Ranks of a cluster."""
comptime CLUSTERS = [MULTIPROCESSORS, MULTIPROCESSORS // 2, 28, 12]
"""How many clusters of so many ranks run at once. 28 and 12 do, 32 and 16 do not."""
comptime STAGED_RANKS = 2
"""The most ranks with weights in the workspace: more would be for few rows."""


@fieldwise_init
struct Costs(TrivialRegisterPassable):
    """What some steps take, in microseconds."""

    var once: Float64
    var weights: Float64
    """2 ** 20 weights that become bytes before."""
    var tokens: Float64
    """As many elements of tokens."""
    var of_64: SIMD[DType.float64, 2]
    """Where tiles have 64 rows: a round, a stage."""
    var of_128: SIMD[DType.float64, 2]
    """The same of 128 rows."""
    var together: SIMD[DType.float64, 4]
    """Adding up in a round, by binary logarithm of the ranks."""

    @staticmethod
    def of(kernel: Kernel, weight_bits: Int) -> Self:
        """Returns those of plans of a kernel, and weights of so many bits."""
        if kernel == Kernel.ALIGNED:
            if weight_bits == 4:
                return Self(
                    0.437, 0.631, 1.371, [3.424, 0.334], [3.595, 0.313], [0, 2.463, 0, 0]
                )  # fmt: skip
            return Self(0.459, 0.87, 1.796, [3.668, 0.325], [4.386, 0.296], [0, 2.121, 0, 0])
        if weight_bits == 4:
            return Self(
                2.522, 0, 0, [1.494, 0.437], [3.075, 0.672], [0, 1.15, 1.487, 1.834]
            )  # fmt: skip
        return Self(2.54, 0, 0, [1.732, 0.526], [2.575, 0.823], [0, 1.273, 1.816, 1.938])


def choose_plan(m: Int, n: Int, k: Int, weight_bits: Int) -> Plan:
    """Returns the plan for C of [m, n] and codes [.., k]."""
    comptime MANY = Float64(1 << 20)
    var num_steps = ceildiv(k, ROW_BYTES)
    var best = Plan.aligned(128, 1)
    var least = Float64.MAX
    for kernel in [Kernel.ALIGNED, Kernel.ALIGNED_FEW]:
        var costs = Costs.of(kernel, weight_bits)
        var before = costs.once + costs.weights * Float64(n * k) / MANY
        before += costs.tokens * Float64(m * k) / MANY
        for tokens in [64, 128]:
            var of_tile = costs.of_128 if tokens == 128 else costs.of_64
            comptime for log_ranks in range(len(ALL_RANKS)):
                comptime ranks = ALL_RANKS[log_ranks]
                comptime clusters = CLUSTERS[log_ranks]
                var plan = Plan.aligned_few(tokens, ranks)
                if kernel == Kernel.ALIGNED:
                    plan = Plan.aligned(tokens, ranks)
                var rounds = Float64(ceildiv(plan.tiles(m, n).num_tiles(), clusters))
                var round_us = of_tile[0] + of_tile[1] * Float64(ceildiv(num_steps, ranks))
                var us = before + rounds * (round_us + costs.together[log_ranks])
                var is_there = kernel == Kernel.ALIGNED_FEW or ranks <= STAGED_RANKS
                if is_there and us < least and plan == plan.within(num_steps):
                    best, least = plan, us
    return best
