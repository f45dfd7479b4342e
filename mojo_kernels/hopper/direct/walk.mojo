"""A consumer's way along K: stages decoded, multiplied and added up.

Sums begin anew, and are added to those in float32 registers, see `mapped.kernel` for what that cuts off:
those of a stage if its tokens have factors, or else of two. Products of four-bit codes have four bits,
so that tensor cores add up two stages of them before they cut off what a block of the same scale has.

    products of a stage    0    1    2
    decoded meanwhile      1    2    3
    added up                    0, 1

Who decodes while others multiply is slowed down by them, 1.6 times: tensor cores read and write their
sums in the same registers. With factors there are no registers left for the next stage, and groups take
turns, see `turns`.

Tiles of 256 rows decode half as much. Their sums are begun for half of them at a time, of two stages
too, which are decoded while the other group multiplies:

    first group     decodes 0, 1    half of 0, 1    the other half
    second group    the other half                  decodes 0, 1
"""

from layout import Coord, row_major
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from std.memory import bitcast

from ..dense.result import PAIR
from ..instructions.shared_memory import arrive, load_pair, wait_phase
from ..instructions.warp import lane_here
from ..instructions.wgmma import (
    PART_SUMS,
    STEP_BYTES,
    TileSums,
    UNIT_BYTES,
    add_here,
    lower_word,
    multiply_add_here,
    multiply_fragment,
    settle_sums,
)
from ..layout import K_LANES
from ..shapes import FACTOR_BYTES, OCTET, ROW_BYTES
from ..staged.weights import ROWS
from .operands import DirectOperands
from .stages import DirectStages
from .turns import begin_turn, end_turn
from .weights import Fragments, INSTRUCTIONS, WordReader, fragments_of

comptime TURNS_TOKENS = 128
"""Tokens from which on groups take turns: up to a tenth faster, measured; with 64 no faster."""
comptime Factors[tokens: Int] = Array[SIMD[DType.uint32, PAIR], tokens // OCTET]
"""The bits of the factors of a thread's tokens, two neighbours of every eight."""


@always_inline
def multiply_steps[
    tokens: Int, at_once: Int, //, Operands: DirectOperands, looks_ahead: Bool = True
](
    rows: Operands.Rows,
    places: Some[WordReader],
    group: UInt32,
    mut stages: DirectStages[_, Operands.CODE_BITS, Operands.SCALES_STAGES],
    mut partial: TileSums[at_once],
    mut sums: TileSums[tokens],
    first_step: UInt32,
    end_step: UInt32,
):
    """Multiplies stages as they fill, of which there is one at least.

    Without factors the next stage is decoded ahead, where registers suffice.
    """
    comptime if at_once < tokens:
        multiply_wide[Operands](rows, places, stages, partial, sums, first_step, end_step)
    elif Operands.SCALES_STAGES:
        multiply_in_turns[Operands](
            rows, places, group, stages, partial, sums, first_step, end_step
        )
    elif looks_ahead:
        multiply_ahead[Operands](rows, places, stages, partial, sums, first_step, end_step)
    else:
        multiply_pairs[Operands](rows, places, stages, partial, sums, first_step, end_step)


@always_inline
def multiply_in_turns[
    tokens: Int, at_once: Int, //, Operands: DirectOperands
](
    rows: Operands.Rows,
    places: Some[WordReader],
    group: UInt32,
    mut stages: DirectStages[_, Operands.CODE_BITS, Operands.SCALES_STAGES],
    mut partial: TileSums[at_once],
    mut sums: TileSums[tokens],
    first_step: UInt32,
    end_step: UInt32,
):
    """Multiplies stages that have factors, one at a time."""
    comptime takes_turns = tokens >= TURNS_TOKENS
    for _ in range(first_step, end_step):
        var fragments = decode_stage[Operands](rows, places, stages)
        comptime if takes_turns:
            begin_turn(group)
        start[Operands.TYPE, False](fragments, stages.tokens_at(), partial)
        var factors = load_factors[tokens](stages)
        wgmma_wait_group_sync[0]()
        settle_sums(partial)
        comptime if takes_turns:
            end_turn(group)
        release(stages)
        add_up(factors, partial, sums)
        stages.advance()


@always_inline
def multiply_ahead[
    tokens: Int, at_once: Int, //, Operands: DirectOperands
](
    rows: Operands.Rows,
    places: Some[WordReader],
    mut stages: DirectStages[_, Operands.CODE_BITS, Operands.SCALES_STAGES],
    mut partial: TileSums[at_once],
    mut sums: TileSums[tokens],
    first_step: UInt32,
    end_step: UInt32,
):
    """Multiplies two stages before sums are added, and decodes the next one meanwhile."""
    var step = first_step
    var fragments = decode_stage[Operands](rows, places, stages)
    while step + 2 < end_step:
        var begun = stages
        start[Operands.TYPE, False](fragments, stages.tokens_at(), partial)
        stages.advance()
        var second = decode_stage[Operands](rows, places, stages)
        var ended = stages
        start[Operands.TYPE, True](second, stages.tokens_at(), partial)
        stages.advance()
        # What the first products read is written anew.
        wgmma_wait_group_sync[1]()
        release(begun)
        fragments = decode_stage[Operands](rows, places, stages)
        end(ended, partial, sums)
        step += 2
    var begun = stages
    start[Operands.TYPE, False](fragments, stages.tokens_at(), partial)
    stages.advance()
    if step + 1 < end_step:
        fragments = decode_stage[Operands](rows, places, stages)
        end(begun, partial, sums)
        begun = stages
        start[Operands.TYPE, False](fragments, stages.tokens_at(), partial)
        stages.advance()
    end(begun, partial, sums)


@always_inline
def multiply_pairs[
    tokens: Int, at_once: Int, //, Operands: DirectOperands
](
    rows: Operands.Rows,
    places: Some[WordReader],
    mut stages: DirectStages[_, Operands.CODE_BITS, Operands.SCALES_STAGES],
    mut partial: TileSums[at_once],
    mut sums: TileSums[tokens],
    first_step: UInt32,
    end_step: UInt32,
):
    """Multiplies two stages before sums are added, and decodes the second one meanwhile."""
    var step = first_step
    while step + 1 < end_step:
        var begun = stages
        var fragments = decode_stage[Operands](rows, places, stages)
        start[Operands.TYPE, False](fragments, stages.tokens_at(), partial)
        stages.advance()
        var second = decode_stage[Operands](rows, places, stages)
        start[Operands.TYPE, True](second, stages.tokens_at(), partial)
        end(stages, partial, sums)
        release(begun)
        stages.advance()
        step += 2
    if step < end_step:
        var fragments = decode_stage[Operands](rows, places, stages)
        start[Operands.TYPE, False](fragments, stages.tokens_at(), partial)
        end(stages, partial, sums)
        stages.advance()


@always_inline
def multiply_wide[
    tokens: Int, at_once: Int, //, Operands: DirectOperands
](
    rows: Operands.Rows,
    places: Some[WordReader],
    mut stages: DirectStages[_, Operands.CODE_BITS, Operands.SCALES_STAGES],
    mut partial: TileSums[at_once],
    mut sums: TileSums[tokens],
    first_step: UInt32,
    end_step: UInt32,
):
    """Decodes two stages, and multiplies them with so many tokens at once, then with others."""
    var step = first_step
    while step + 1 < end_step:
        var begun = stages
        var fragments = decode_stage[Operands](rows, places, stages)
        stages.advance()
        var second = decode_stage[Operands](rows, places, stages)
        comptime for first in range(0, tokens, at_once):
            comptime AT = UInt32(first * ROW_BYTES)
            start[Operands.TYPE, False](fragments, begun.tokens_at() + AT, partial)
            start[Operands.TYPE, True](second, stages.tokens_at() + AT, partial)
            wgmma_wait_group_sync[0]()
            settle_sums(partial)
            comptime if first + at_once == tokens:
                release(begun)
                release(stages)
            add_up[first](partial, sums)
        stages.advance()
        step += 2
    if step < end_step:
        var fragments = decode_stage[Operands](rows, places, stages)
        comptime for first in range(0, tokens, at_once):
            comptime AT = UInt32(first * ROW_BYTES)
            start[Operands.TYPE, False](fragments, stages.tokens_at() + AT, partial)
            wgmma_wait_group_sync[0]()
            settle_sums(partial)
            comptime if first + at_once == tokens:
                release(stages)
            add_up[first](partial, sums)
        stages.advance()


@always_inline
def decode_stage[
    Operands: DirectOperands
](
    rows: Operands.Rows,
    places: Some[WordReader],
    stages: DirectStages[_, Operands.CODE_BITS, Operands.SCALES_STAGES],
) -> Fragments:
    """Returns the weights of a stage as soon as it is full."""
    wait_phase(stages.full(), stages.parity)
    return fragments_of[Operands](rows, stages, places)


@always_inline
def end[
    tokens: Int, at_once: Int, //
](stages: DirectStages[...], mut partial: TileSums[at_once], mut sums: TileSums[tokens]):
    """Waits for all products, lets go of a stage and adds up."""
    wgmma_wait_group_sync[0]()
    settle_sums(partial)
    release(stages)
    add_up(partial, sums)


@always_inline
def release(stages: DirectStages[...]):
    """Says that a lane has read a stage."""
    arrive(stages.empty())


@always_inline
def start[
    tokens: Int, //, type: StaticString, adds: Bool
](weights: Fragments, tokens_at: UInt32, mut sums: TileSums[tokens]):
    """Starts the products of a stage, whose sums begin anew or go on."""
    var of_tokens = lower_word(tokens_at)
    wgmma_fence_aligned()
    comptime for i in range(INSTRUCTIONS):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_fragment[type, adds or i > 0](weights[i], of_tokens + at, sums)
    wgmma_commit_group_sync()


@always_inline
def load_factors[tokens: Int](stages: DirectStages[...]) -> Factors[tokens]:
    """Returns the factors of a thread's tokens in a stage."""
    var found = Factors[tokens](fill=0)
    var pairs = stages.factors_at() + lane_here() % UInt32(K_LANES) * UInt32(FACTOR_BYTES * PAIR)
    comptime for octet in range(tokens // OCTET):
        found[octet] = load_pair(pairs + UInt32(FACTOR_BYTES * OCTET * octet))
    return found^


@always_inline
def add_up[
    tokens: Int, at_once: Int, //, first: Int = 0
](partial: TileSums[at_once], mut sums: TileSums[tokens]):
    """Adds the sums of stages, which are there, in this place: those of tokens from one on."""
    comptime for i in range(at_once // 2):
        comptime part, at = divmod(i, PART_SUMS)
        comptime of_all, there = divmod(first // 2 + i, PART_SUMS)
        sums[of_all][there] = add_here(partial[part][at], sums[of_all][there])


@always_inline
def add_up[
    tokens: Int, at_once: Int, //
](factors: Factors[tokens], partial: TileSums[at_once], mut sums: TileSums[tokens]):
    """The same, times factors of all tokens."""
    comptime order = row_major[tokens // OCTET, ROWS, PAIR]()
    comptime for octet in range(tokens // OCTET):
        var of_tokens = bitcast[DType.float32, PAIR](factors[octet])
        comptime for row in range(ROWS):
            comptime for token in range(PAIR):
                comptime part, at = divmod(Int(order(Coord(octet, row, token))), PART_SUMS)
                sums[part][at] = multiply_add_here(
                    partial[part][at], of_tokens[token], sums[part][at]
                )
