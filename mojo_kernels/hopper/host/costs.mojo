"""What a plan is expected to take: a sum of terms, each with a cost that was fitted to times.

Groups run in rounds, of as many as the multiprocessors and clusters have places for, and walk
their share of K in steps:

    term                                                 what its cost stands for, us
    1                                                    the launch
    log2 ranks; of bytes tokens of a tile, if shared     a cluster's launch; what ranks exchange
    rounds; of bytes 1 where ranks are 1                 begin and end of a group
    rounds * steps; even: steps of a group               a step
    rounds * (ranks - 1); even: parts of a tile          ranks add up, or the last one there
    groups / multiprocessors                             groups beside each other
    m * k / 2**20                                        encoding the activations
    n * k / 2**20                                        fp8: the weights become bytes, or are read;
                                                         numbers: they become numbers
    rounds of two groups a multiprocessor * steps        few: a step of both
    rounds, if a warp has more than `SHORT` blocks       few: loads ahead begin
    rounds * (stages of activations - 1)                 few: all wait for the next stage;
      or m * k * tiles of columns / 2**20                  numbers: activations are read
    rounds, if the last loads ahead are not all needed   few: they end one by one
      or 1, if K is up to `SHORT_ROW`                      fp8: rows are ready when groups begin to wait
      or 1, if tiles have parts                            even: groups meet
    rounds, if ranks are 1; even: tiles of a group       fp8: a group goes on to another tile

`python -m bench.cuda_tune table` asks here for the terms of what was measured, and writes the costs
to `measured`. The portable kernel has none. Plans that differ in their ranks alone are reckoned
at once, in the lanes of a vector.
"""

from std.math import ceil, ceildiv

from ..layout import BLOCK, TILE_ROWS
from ..plan import Kernel, MAX_RANKS, MULTIPROCESSORS, Plan
from ..shapes import (
    BYTE_STEP_BLOCKS as FP8_STEP_BLOCKS,
    FRAGMENT_TOKENS as TOKENS,
    SHORT,
    STEP_BLOCKS,
    Shape,
    WIDE_TOKENS,
)
from .gemm import groups_of
from .measured import COSTS

comptime Lanes = SIMD[DType.float64, 4]
"""A number for each of `RANKS`."""
comptime RANKS = Lanes(1, 2, 4, MAX_RANKS)
"""The sizes that clusters may have."""
comptime LOG_RANKS = Lanes(0, 1, 2, 3)
"""Their logarithms."""
comptime PLACES = Lanes(MULTIPROCESSORS, MULTIPROCESSORS, 4 * 30, 8 * 14)
"""Groups of a round, one on each multiprocessor.

Clusters lie within a part of the device each, not all of whose multiprocessors they can use: 30
clusters of four and 14 of eight are what fits the measured times best.
"""
comptime NEVER = Float64.MAX
"""What plans take that are not for a product."""
comptime NUM_TERMS = 11
"""Terms of a plan's time."""
comptime Terms = Array[Lanes, NUM_TERMS]
"""The terms of the plans of a family."""
comptime ANY_ROWS = Int.MAX
"""No more rows of activations than all."""
comptime MANY_ROWS = 512
"""Beyond so many rows, there are tiles enough: K is split less."""
comptime SHORT_ROW = 1024
"""Up to so long a K, one group has all of a tile of weights that becomes bytes."""
comptime MOST_EVEN_64 = 512
"""Up to so many rows, even shares are of tiles of 64."""
comptime MOST_EVEN_128 = 2048
"""Up to so many rows, they are of tiles of 128."""
comptime MOST_EVEN_256 = 1536
"""Up to so many rows, they are of tiles of 256: neighbours have other weights, which then come twice."""
comptime MOST_FEW_BYTES = 1536
"""Up to so many rows, groups may make bytes of weights as they multiply."""


@fieldwise_init
struct Family(TrivialRegisterPassable):
    """Plans that differ in their ranks alone, and the rows of activations they are for.

    Beyond those rows they were not measured.
    """

    var plan: Plan
    """The one of one rank."""
    var first_m: Int
    var last_m: Int

    def has(self, m: Int) -> Bool:
        """Says whether plans are for so many rows."""
        return self.first_m <= m and m <= self.last_m

    def max_ranks(self, m: Int, k: Int) -> Int:
        """Returns the most ranks that are worth a try: each has a step of K."""
        var most = MAX_RANKS
        var kernel = self.plan.kernel
        if kernel in (Kernel.MANY, Kernel.FP8, Kernel.NUMBERS) or kernel.is_even():
            return 1
        if kernel == Kernel.FP8_FEW and self.plan.tokens == WIDE_TOKENS:
            return 1
        if self.plan.kernel != Kernel.FEW and m > MANY_ROWS:
            most = self.plan.tokens // 32
        var num_steps = ceildiv(k // BLOCK, _step_blocks(self.plan.kernel))
        return self.plan.with_ranks(most).within(num_steps).ranks


def _few(tokens: Int, columns: Int, first_m: Int, last_m: Int) -> Family:
    return Family(Plan.few(tokens, columns, 1), first_m, last_m)


comptime FAMILIES = [
    _few(8, 32, 1, 8),
    _few(8, 64, 1, 8),
    _few(8, 128, 1, 8),
    _few(8, 256, 1, 8),
    _few(16, 32, 9, 16),
    _few(16, 64, 9, 16),
    _few(16, 128, 9, 16),
    _few(16, 256, 9, 16),
    _few(32, 32, 17, 64),
    _few(32, 64, 17, 64),
    _few(32, 128, 17, 64),
    _few(32, 256, 17, 64),
    _few(64, 64, 33, 128),
    _few(64, 128, 33, 128),
    _few(64, 256, 33, 128),
    Family(Plan.middle(64, 1), 17, ANY_ROWS),
    Family(Plan.middle(128, 1), 65, ANY_ROWS),
    Family(Plan.MANY, 33, ANY_ROWS),
    Family(Plan.fp8(128), 64, ANY_ROWS),
    Family(Plan.fp8_few(64, 1), 9, MOST_FEW_BYTES),
    Family(Plan.fp8_few(128, 1), 65, MOST_FEW_BYTES),
    Family(Plan.fp8_even(64), 9, MOST_FEW_BYTES),
    Family(Plan.fp8_even(128), 65, ANY_ROWS),
    Family(Plan.numbers(128, 1), 65, ANY_ROWS),
    Family(Plan.many_even(64), 17, MOST_EVEN_64),
    Family(Plan.many_even(128), 65, MOST_EVEN_128),
    Family(Plan.many_even(256), 129, MOST_EVEN_256),
    Family(Plan.fp8_few(256, 1), 129, ANY_ROWS),
    Family(Plan.fp8_even(256), 129, ANY_ROWS),
]
"""All plans, in the order of `COSTS`."""


@always_inline
def terms_of[family: Family](m: Int, n: Int, k: Int) -> Terms:
    """Returns the terms of a family's plans for a product."""
    comptime KERNEL = family.plan.kernel
    var groups = Lanes(family.plan.groups(m, n)) * RANKS
    var rounds = ceil(groups / PLACES)
    var share = ceil(Lanes(k // BLOCK) / (RANKS * Lanes(_step_blocks(KERNEL))))
    var steps = share
    var terms = Terms(fill=0)
    terms[1] = LOG_RANKS
    comptime if KERNEL == Kernel.FEW:
        comptime shape = Shape(
            family.plan.tokens // TOKENS, family.plan.columns // TILE_ROWS, False
        )
        steps = ceil(share / Lanes(shape.k_warps()))
        comptime if shape.min_groups() > 1:
            terms[7] = ceil(groups / (PLACES * Lanes(shape.min_groups()))) * steps
        terms[8] = steps.gt(Lanes(SHORT)).select(rounds, 0)
        terms[9] = rounds * (ceil(share / Lanes(shape.stage_blocks())) - 1)
        var ahead = steps / Lanes(shape.loads_ahead())
        terms[10] = ceil(ahead).gt(ahead).select(rounds, 0)
    comptime if KERNEL.wants_bytes() or KERNEL == Kernel.NUMBERS:
        terms[7] = Lanes(n * k) / (1 << 20)
    comptime if KERNEL == Kernel.NUMBERS:
        terms[9] = Lanes(m * k * family.plan.tiles(m, n).columns) / (1 << 20)
    terms[0] = 1
    terms[2] = rounds
    comptime if KERNEL.wants_bytes():
        # Stages of the next tile are on the way before a tile ends.
        terms[2] = RANKS.eq(1).select(Lanes(1), rounds)
        terms[8] = RANKS.eq(1).select(rounds, Lanes(0))
        terms[1] = RANKS.eq(1).select(Lanes(0), Lanes(min(m, family.plan.tokens)))
    terms[3] = rounds * steps
    terms[4] = rounds * (RANKS - 1)
    terms[5] = groups / MULTIPROCESSORS
    terms[6] = Lanes(m * k) / (1 << 20)
    comptime if KERNEL == Kernel.FP8:
        terms[10] = Lanes(1 if k <= SHORT_ROW else 0)
    comptime if KERNEL.is_even():
        var tiles = family.plan.groups(m, n)
        var tile_steps = ceildiv(k // BLOCK, _step_blocks(KERNEL))
        var num_groups = groups_of(tiles, tile_steps)
        var group_steps = ceildiv(tiles * tile_steps, num_groups)
        terms[2] = 1
        terms[3] = Lanes(group_steps)
        # Of most tiles. Of whole tiles there are no parts.
        var has_parts = tiles % num_groups != 0
        terms[4] = Lanes(ceildiv(tile_steps, group_steps) if has_parts else 0)
        terms[10] = Lanes(1 if has_parts else 0)
        terms[5] = Lanes(num_groups) / MULTIPROCESSORS
        terms[8] = Lanes(ceildiv(group_steps, tile_steps))
    return terms^


@always_inline
def costs_of[family: Int](terms: Terms, m: Int, k: Int) -> Lanes:
    """Returns the microseconds that a family's plans are expected to take, `NEVER` for no plan."""
    comptime of_family = FAMILIES[family]
    var us = Lanes(0)
    comptime for i in range(NUM_TERMS):
        comptime cost = COSTS[family][i]
        comptime if cost != 0:
            us += cost * terms[i]
    return RANKS.gt(Lanes(of_family.max_ranks(m, k))).select(NEVER, us)


def _step_blocks(kernel: Kernel) -> Int:
    """Returns the blocks of a step of K; ranks have whole steps."""
    if kernel == Kernel.FEW:
        return 1
    return FP8_STEP_BLOCKS if kernel.wants_bytes() else STEP_BLOCKS
