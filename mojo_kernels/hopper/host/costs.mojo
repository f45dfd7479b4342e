"""What a plan is expected to take: a sum of terms, each with a cost that was fitted to times.

CTAs run in rounds, of as many as the multiprocessors and clusters have places for, and take their
share of K in steps:

    term                                                   what its cost stands for, us
    1                                                      the launch
    log2 ranks; of E5M2 rows of a tile, if shared          a cluster's launch; what ranks exchange
    rounds; of E5M2 1 where ranks are 1                    begin and end of a CTA
    rounds * steps; stream-K: steps of a CTA               a step
    rounds * (ranks - 1); stream-K: CTAs of a tile         ranks add up, or the fix-up
    CTAs / multiprocessors                                 CTAs beside each other
    m * k / 2**20                                          operand preparation: rows of A
    n * k / 2**20                                          operand preparation: rows of B
    rounds of two CTAs a multiprocessor * steps            stream: a step of both
    rounds, if a warp has more than `SHORT` blocks         stream: loads ahead begin
    rounds * (stages of A - 1)                             stream: all wait for the next stage;
      or m * k * tiles of columns / 2**20                    ss_bf16: rows of A are read
    rounds, if the last loads ahead are not all needed     stream: they end one by one
      or 1, if K is up to `SHORT_ROW`                        ss_e5m2: rows are ready when CTAs begin to wait
      or 1, if tiles have several CTAs                       stream-K: CTAs meet
    rounds, if ranks are 1; stream-K: tiles of a CTA       E5M2: a CTA goes on to another tile

Plans whose tensor cores take E4M3 have fewer:

    1                                                      the launches
    rounds                                                 begin and end of a CTA
    rounds * steps                                         a step
    rounds, if ranks are 2; if 4; if 8                     ranks add up
    m * k / 2**20, if weights are prepared                 operand preparation: rows of A
    n * k / 2**20, if weights are prepared                 operand preparation: rows of B
    else: n * k / 2**20                                    weights are read
      rounds, if ranks are more, * rows of a tile / 64     ranks add up rows
      rounds * steps * rows of a tile / 64                 a step, by rows that are there
      CTAs * steps / multiprocessors                       all read at once

`python -m bench.cuda_tune table` asks here for the terms of what was measured, and writes the costs
to `measured`. The portable kernel has none. Plans that differ in their ranks alone are reckoned
at once, in the lanes of a vector.
"""

from std.builtin.globals import global_constant
from std.math import ceil, ceildiv

from ..layout import BLOCK
from ..plan import Kernel, MAX_RANKS, MULTIPROCESSORS, MainLoop, NARROW_COLUMNS, OperandType, Plan
from ..plan import Scheduler
from ..shapes import (
    BYTE_STEP_BLOCKS as FP8_STEP_BLOCKS,
    SHORT,
    STEP_BLOCKS,
    StreamConfig,
    WIDE_ROWS,
)
from .gemm import Pair, stream_k_ctas
from .measured import COSTS

comptime Lanes = SIMD[DType.float64, 4]
"""A number for each of `RANKS`."""
comptime RANKS = Lanes(1, 2, 4, MAX_RANKS)
"""The sizes that clusters may have."""
comptime LOG_RANKS = Lanes(0, 1, 2, 3)
"""Their logarithms."""
comptime PLACES = Lanes(MULTIPROCESSORS, MULTIPROCESSORS, 4 * 30, 8 * 14)
"""CTAs of a round, one on each multiprocessor.

Clusters lie within a part of the device each, not all of whose multiprocessors they can use: 30
clusters of four and 14 of eight are what fits the measured times best.
"""
comptime E4M3_PLACES = Lanes(MULTIPROCESSORS, MULTIPROCESSORS, 4 * 28, 8 * 12)
"""The same where tensor cores take E4M3: 28 and 12 clusters run at once, 32 and 16 do not."""
comptime NEVER = Float64.MAX
"""What plans take that are not for a product."""
comptime NUM_TERMS = 11
"""Terms of a plan's time."""
comptime Terms = Array[Lanes, NUM_TERMS]
"""The terms of the plans of a family."""
comptime BF16 = OperandType.BF16
comptime E5M2 = OperandType.E5M2
comptime E4M3 = OperandType.E4M3
comptime ANY_ROWS = Int.MAX
"""No more rows of activations than all."""
comptime MANY_ROWS = 512
"""Beyond so many rows, there are tiles enough: K is split less."""
comptime SHORT_ROW = 1024
"""Up to so long a K, one CTA has all of a tile of weights that becomes bytes."""
comptime MOST_STREAM_K_64 = 512
"""Up to so many rows, stream-K has tiles of 64."""
comptime MOST_STREAM_K_128 = 2048
"""Up to so many rows, it has tiles of 128."""
comptime MOST_STREAM_K_256 = 1536
"""Up to so many rows, it has tiles of 256: neighbours have other weights, which then come twice."""
comptime MOST_RS_E5M2 = 1536
"""Up to so many rows, weights may become bytes in registers, again for each tile of rows."""
comptime MOST_MAPPED = 2048
"""Up to so many rows, tiles have half of the columns, and rows of A are mapped."""
comptime MAX_BF16_RANKS = 4
"""The most ranks of `rs_bf16`, but of tiles of 64 x 128: eight were never the fastest."""
comptime MAX_PREPARED_RANKS = 2
"""The most ranks where E4M3 weights are prepared: more would be for few rows."""


@fieldwise_init
struct Family(TrivialRegisterPassable):
    """Plans that differ in their ranks alone, and what they are for.

    Beyond their rows of activations they were not measured.
    """

    var plan: Plan
    """The one of one rank."""
    var pair: Pair
    var first_m: Int
    var last_m: Int

    def has(self, m: Int, pair: Pair) -> Bool:
        """Says whether plans are for so many rows of such a product."""
        if m < self.first_m or m > self.last_m:
            return False
        var is_for_any = self.pair == Pair.MXFP4_WEIGHTS and not pair.is_eight_bits()
        return is_for_any or self.pair == pair

    def max_ranks(self, m: Int, k: Int) -> Int:
        """Returns the most ranks that are worth a try: each has a step of K."""
        var most = MAX_RANKS
        var kernel = self.plan.kernel
        if kernel.operand == E4M3:
            most = MAX_PREPARED_RANKS if kernel.is_prepared else self.plan.most_ranks()
        elif kernel.main_loop == MainLoop.SS or self.plan.is_stream_k():
            return 1
        elif self.plan.rows == WIDE_ROWS and not self.plan.maps_rows():
            return 1
        elif kernel == Kernel.RS_BF16 and (self.plan.maps_rows() or self.plan.rows > 64):
            most = MAX_BF16_RANKS
        elif kernel != Kernel.STREAM and m > MANY_ROWS:
            most = self.plan.rows // 32
        var num_steps = ceildiv(ceildiv(k, BLOCK), _step_blocks(kernel))
        return self.plan.with_ranks(most).within(num_steps).ranks


def _stream(tile_rows: Int, columns: Int, first_m: Int, last_m: Int) -> Family:
    return Family(Plan.stream(tile_rows, columns), Pair.MXFP4_WEIGHTS, first_m, last_m)


def _rs(operand: OperandType, tile_rows: Int, first_m: Int, last_m: Int = ANY_ROWS) -> Family:
    var pair = Pair.MXFP4 if operand == E5M2 else Pair.MXFP4_WEIGHTS
    return Family(Plan.rs(operand, tile_rows), pair, first_m, last_m)


def _stream_k(operand: OperandType, tile_rows: Int, first_m: Int, last_m: Int = ANY_ROWS) -> Family:
    var pair = Pair.MXFP4 if operand == E5M2 else Pair.MXFP4_WEIGHTS
    return Family(Plan.stream_k(operand, tile_rows), pair, first_m, last_m)


def _mapped(tile_rows: Int, first_m: Int, last_m: Int = MOST_MAPPED) -> Family:
    var plan = Plan(Kernel.RS_BF16, tile_rows, NARROW_COLUMNS, 1, Scheduler.TILES)
    return Family(plan, Pair.KEPT, first_m, last_m)


def _any_rows(plan: Plan, pair: Pair, first_m: Int = 1) -> Family:
    return Family(plan, pair, first_m, ANY_ROWS)


comptime FAMILIES = [
    _stream(8, 32, 1, 8),
    _stream(8, 64, 1, 8),
    _stream(8, 128, 1, 8),
    _stream(8, 256, 1, 8),
    _stream(16, 32, 9, 16),
    _stream(16, 64, 9, 16),
    _stream(16, 128, 9, 16),
    _stream(16, 256, 9, 16),
    _stream(32, 32, 17, 64),
    _stream(32, 64, 17, 64),
    _stream(32, 128, 17, 64),
    _stream(32, 256, 17, 64),
    _stream(64, 64, 33, 128),
    _stream(64, 128, 33, 128),
    _rs(BF16, 64, 17),
    _rs(BF16, 128, 65),
    _rs(BF16, 256, 33),
    _any_rows(Plan.ss(Kernel.SS_E5M2, 128, 128), Pair.MXFP4, 64),
    _rs(E5M2, 64, 9, MOST_RS_E5M2),
    _rs(E5M2, 128, 65, MOST_RS_E5M2),
    _stream_k(E5M2, 64, 9, MOST_RS_E5M2),
    _stream_k(E5M2, 128, 65),
    _any_rows(Plan.ss(Kernel.SS_BF16, 128, 128), Pair.KEPT, 65),
    _stream_k(BF16, 64, 17, MOST_STREAM_K_64),
    _stream_k(BF16, 128, 65, MOST_STREAM_K_128),
    _stream_k(BF16, 256, 129, MOST_STREAM_K_256),
    _rs(E5M2, 256, 129),
    _stream_k(E5M2, 256, 129),
    _any_rows(Plan.ss(Kernel.SS_E4M3, 64, 64), Pair.ROWS),
    _any_rows(Plan.ss(Kernel.SS_E4M3, 64, 128), Pair.ROWS),
    _any_rows(Plan.ss(Kernel.SS_E4M3, 128, 128), Pair.ROWS),
    _any_rows(Plan.ss(Kernel.SS_E4M3, 64, 64), Pair.BLOCKS),
    _any_rows(Plan.ss(Kernel.SS_E4M3, 64, 128), Pair.BLOCKS),
    _any_rows(Plan.ss(Kernel.SS_E4M3, 128, 128), Pair.BLOCKS),
    _any_rows(Plan.ss(Kernel.SS_E4M3_PREPARED, 64, 256), Pair.MXFP8),
    _any_rows(Plan.ss(Kernel.SS_E4M3_PREPARED, 128, 128), Pair.MXFP8),
    _any_rows(Plan.rs(E4M3, 64), Pair.MXFP8),
    _any_rows(Plan.rs(E4M3, 128), Pair.MXFP8),
    _any_rows(Plan.ss(Kernel.SS_E4M3_PREPARED, 64, 256), Pair.MXFP8_MXFP4),
    _any_rows(Plan.ss(Kernel.SS_E4M3_PREPARED, 128, 128), Pair.MXFP8_MXFP4),
    _any_rows(Plan.rs(E4M3, 64), Pair.MXFP8_MXFP4),
    _any_rows(Plan.rs(E4M3, 128), Pair.MXFP8_MXFP4),
    _mapped(64, 17, 256),
    _mapped(128, 33),
    _mapped(256, 129),
]
"""All plans, in the order of `COSTS`."""


@no_inline
def terms_of(family: Family, m: Int, n: Int, k: Int) -> Terms:
    """Returns the terms of a family's plans for a product."""
    var plan, kernel = family.plan, family.plan.kernel
    var ctas = Lanes(plan.ctas(m, n)) * RANKS
    var rounds = ceil(ctas / (E4M3_PLACES if kernel.operand == E4M3 else PLACES))
    var share = ceil(Lanes(ceildiv(k, BLOCK)) / (RANKS * Lanes(_step_blocks(kernel))))
    var steps = share
    var terms = Terms(fill=0)
    terms[0] = 1
    terms[2] = rounds
    if kernel.operand == E4M3:
        terms[3] = rounds * steps
        terms[4] = RANKS.eq(2).select(rounds, 0)
        if kernel.is_prepared:
            terms[6] = Lanes(m * k) / (1 << 20)
            terms[7] = Lanes(n * k) / (1 << 20)
        elif kernel.main_loop == MainLoop.SS:
            var rows = Lanes(min(m, plan.rows)) / 64
            terms[1] = RANKS.gt(1).select(rounds * rows, 0)
            terms[5] = rounds * steps * rows
            terms[7] = Lanes(n * k) / (1 << 20)
            terms[8] = ctas * steps / MULTIPROCESSORS
        terms[9] = RANKS.eq(4).select(rounds, 0)
        terms[10] = RANKS.eq(8).select(rounds, 0)
        return terms^
    terms[1] = LOG_RANKS
    if kernel == Kernel.STREAM:
        var config = StreamConfig.dense(plan, 1 << 30)
        steps = ceil(share / Lanes(config.k_warps))
        if config.min_ctas() > 1:
            terms[7] = ceil(ctas / (PLACES * Lanes(config.min_ctas()))) * steps
        terms[8] = steps.gt(Lanes(SHORT)).select(rounds, 0)
        terms[9] = rounds * (ceil(share / Lanes(config.stage_blocks())) - 1)
        var ahead = steps / Lanes(config.loads_ahead())
        terms[10] = ceil(ahead).gt(ahead).select(rounds, 0)
    if kernel.operand == E5M2 or kernel == Kernel.SS_BF16:
        terms[7] = Lanes(n * k) / (1 << 20)
    if kernel == Kernel.SS_BF16:
        terms[9] = Lanes(m * k * plan.tiles(m, n).columns) / (1 << 20)
    if kernel.operand == E5M2:
        # Stages of the next tile are on the way before a tile ends.
        terms[2] = RANKS.eq(1).select(Lanes(1), rounds)
        terms[8] = RANKS.eq(1).select(rounds, Lanes(0))
        terms[1] = RANKS.eq(1).select(Lanes(0), Lanes(min(m, plan.rows)))
    terms[3] = rounds * steps
    terms[4] = rounds * (RANKS - 1)
    terms[5] = ctas / MULTIPROCESSORS
    terms[6] = Lanes(m * k) / (1 << 20)
    if kernel == Kernel.SS_E5M2:
        terms[10] = Lanes(1 if k <= SHORT_ROW else 0)
    if plan.is_stream_k():
        var tiles = plan.ctas(m, n)
        var tile_steps = ceildiv(k // BLOCK, _step_blocks(kernel))
        var num_ctas = stream_k_ctas(tiles, tile_steps)
        var cta_steps = ceildiv(tiles * tile_steps, num_ctas)
        terms[2] = 1
        terms[3] = Lanes(cta_steps)
        # Of most tiles. Of whole tiles there are no parts.
        var has_parts = tiles % num_ctas != 0
        terms[4] = Lanes(ceildiv(tile_steps, cta_steps) if has_parts else 0)
        terms[10] = Lanes(1 if has_parts else 0)
        terms[5] = Lanes(num_ctas) / MULTIPROCESSORS
        terms[8] = Lanes(ceildiv(cta_steps, tile_steps))
    return terms^


@no_inline
def costs_of(family: Int, terms: Terms, m: Int, k: Int) -> Lanes:
    """Returns the microseconds that a family's plans are expected to take, `NEVER` for no plan."""
    ref costs = global_constant[COSTS]()[family]
    var us = Lanes(0)
    for i in range(NUM_TERMS):
        us += costs[i] * terms[i]
    var most = global_constant[FAMILIES]()[family].max_ranks(m, k)
    return RANKS.gt(Lanes(most)).select(NEVER, us)


def _step_blocks(kernel: Kernel) -> Int:
    """Returns the blocks of a step of K; ranks have whole steps."""
    if kernel == Kernel.STREAM:
        return 1
    return STEP_BLOCKS if kernel.operand == BF16 else FP8_STEP_BLOCKS
