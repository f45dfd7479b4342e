"""Which plan a product with MXFP8 activations gets: the one that is expected to take the least.

Groups run in rounds, of one on each multiprocessor, and take the stages of K one by one. Stages of
weights are made once, in the workspace, or by each group that needs them, which takes longer:

    plan         before the rounds          a round                         a stage of 128 x 128
    aligned      all weights                begin and end, all stages       the least
    aligned_few  nothing                    begin and end, a rank's stages  more: it is made here
                                            ranks add up

Costs began with what `bench.cuda_bytes` fits to 24 shapes of 24 to 4096 rows on an H100 (2026-11-25),
every plan of each; then a random search, which no command repeats, looked for better choices. They
choose what takes at most 1.02 times as long as the fastest plan. Clusters of four and eight groups do
not fill the device: a processing cluster of the chip has to have room for a whole one.
"""

from std.math import ceildiv

from ..instructions.wgmma import ROW_BYTES
from ..many.kernel import MULTIPROCESSORS
from ..plan import Plan

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
    def of(weight_bits: Int) -> Self:
        """Returns those of weights of so many bits."""
        if weight_bits == 4:
            return Self(
                [-3.567, 1.157, 3.75, 0.344], [0, 0.439], [1.595, 0.541], 3.942,
                [0, 3.383, 2.356, 2.788],
            )  # fmt: skip
        return Self(
            [-2.972, 1.369, 2.671, 0.348], [0, 0.434], [1.54, 0.535], 4.491,
            [0, 3.607, 2.414, 2.884],
        )  # fmt: skip


def choose_plan(m: Int, n: Int, k: Int, weight_bits: Int) -> Plan:
    """Returns the plan for C of [m, n] and codes [.., k]."""
    var costs = Costs.of(weight_bits)
    var num_steps = ceildiv(k, ROW_BYTES)
    var best = Plan.aligned(128, 1)
    var rounds = Float64(ceildiv(best.groups(m, n), MULTIPROCESSORS))
    var least = costs.staged[0] + costs.staged[1] * Float64(n * k) / (1 << 20)
    least += rounds * (costs.staged[2] + costs.staged[3] * Float64(num_steps))
    for tokens in [64, 128]:
        var made = costs.made_of_128 if tokens == 128 else costs.made_of_64
        comptime for log_ranks in range(len(ALL_RANKS)):
            comptime ranks = ALL_RANKS[log_ranks]
            comptime clusters = CLUSTERS[log_ranks]
            var plan = Plan.aligned_few(tokens, ranks)
            var tiles = plan.tiles(m, n).num_tiles()
            rounds = Float64(ceildiv(tiles, clusters))
            var round_us = made[0] + made[1] * Float64(ceildiv(num_steps, ranks))
            var us = costs.made + rounds * (round_us + costs.together[log_ranks])
            if us < least and plan == plan.within(num_steps):
                best, least = plan, us
    return best
