"""The RS main loop on FP8: weights are decoded in registers, multiplied, and partial sums promoted.

Tensor cores cut off what they add to a sum, see `mainloop.ss`, so that sums begin anew, and are
promoted to float32 registers: those of a stage if rows of A have factors for it, or else of two.
Products of four-bit codes have four bits, so that tensor cores add up two stages of them before they
cut off what a block of the same scale has.

    loop         decodes                                       promotes
    ping-pong    a stage, while the other warp group           each stage, times its factors
                 multiplies, see `named_barriers`
    ahead        the next stage, while one is multiplied       every two stages
    pairs        the second stage of two, while the first      every two stages
                 one is multiplied
    wide         two stages; instructions have half of the     every two stages, half of the rows
                 rows at a time                                at a time

Who decodes while others multiply is slowed down by them, 1.6 times: tensor cores read and write their
sums in the same registers. With factors there are no registers left for the next stage.
"""

from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from std.memory import bitcast

from ..accumulator import PAIR, ROWS, place_of
from ..decode.fp8 import Decoder, Fragments, INSTRUCTIONS
from ..instructions.shared_memory import load_pair
from ..instructions.warp import lane_here
from ..instructions.wgmma import (
    PART_SUMS,
    STEP_BYTES,
    Accumulator,
    UNIT_BYTES,
    add_here,
    lower_word,
    multiply_add_here,
    multiply_fragment,
    settle_sums,
)
from ..layout import K_LANES
from ..instructions.named_barriers import begin_turn, end_turn
from ..pipeline.stages import RsRing, release
from ..shapes import FACTOR_BYTES, OCTET, ROW_BYTES, RsLayout
from ..gemm_operands import RsOperands

comptime PING_PONG_ROWS = 128
"""Rows from which on warp groups take turns: up to a tenth faster, measured; with 64 no faster."""
comptime Factors[rows: Int] = Array[SIMD[DType.uint32, PAIR], rows // OCTET]
"""The bits of the factors of a thread's rows of A, two neighbours of every eight."""


@always_inline
def multiply_stages[
    layout: RsLayout, rows: Int, at_once: Int, Operands: RsOperands, //, looks_ahead: Bool
](
    decoder: Decoder[Operands, layout, _],
    group: UInt32,
    mut ring: RsRing[layout],
    mut partial: Accumulator[at_once],
    mut sums: Accumulator[rows],
    num_steps: UInt32,
):
    """Multiplies stages as they fill, of which there is one at least.

    Without factors the next stage is decoded ahead, where registers suffice.
    """
    comptime if at_once < rows:
        multiply_wide(decoder, ring, partial, sums, num_steps)
    elif Operands.SCALES_STAGES:
        multiply_in_turns(decoder, group, ring, partial, sums, num_steps)
    elif looks_ahead:
        multiply_ahead(decoder, ring, partial, sums, num_steps)
    else:
        multiply_pairs(decoder, ring, partial, sums, num_steps)


@always_inline
def multiply_in_turns[
    layout: RsLayout, rows: Int, at_once: Int, Operands: RsOperands, //
](
    decoder: Decoder[Operands, layout, _],
    group: UInt32,
    mut ring: RsRing[layout],
    mut partial: Accumulator[at_once],
    mut sums: Accumulator[rows],
    num_steps: UInt32,
):
    """Promotes each stage times its factors; warp groups take turns (ping-pong)."""
    comptime takes_turns = rows >= PING_PONG_ROWS
    for _ in range(num_steps):
        var fragments = decoder.decode(ring)
        comptime if takes_turns:
            begin_turn(group)
        start[Operands.TYPE, False](fragments, ring, partial)
        var factors = load_factors[rows](ring)
        wgmma_wait_group_sync[0]()
        settle_sums(partial)
        comptime if takes_turns:
            end_turn(group)
        release(ring)
        promote(factors, partial, sums)
        ring.advance()


@always_inline
def multiply_ahead[
    layout: RsLayout, rows: Int, at_once: Int, Operands: RsOperands, //
](
    decoder: Decoder[Operands, layout, _],
    mut ring: RsRing[layout],
    mut partial: Accumulator[at_once],
    mut sums: Accumulator[rows],
    num_steps: UInt32,
):
    """Promotes every two stages, and decodes the next one meanwhile."""
    var step = UInt32(0)
    var fragments = decoder.decode(ring)
    while step + 2 < num_steps:
        var begun = ring
        start[Operands.TYPE, False](fragments, ring, partial)
        ring.advance()
        var second = decoder.decode(ring)
        var ended = ring
        start[Operands.TYPE, True](second, ring, partial)
        ring.advance()
        # What the first products read is written anew.
        wgmma_wait_group_sync[1]()
        release(begun)
        fragments = decoder.decode(ring)
        end(ended, partial, sums)
        step += 2
    var begun = ring
    start[Operands.TYPE, False](fragments, ring, partial)
    ring.advance()
    if step + 1 < num_steps:
        fragments = decoder.decode(ring)
        end(begun, partial, sums)
        begun = ring
        start[Operands.TYPE, False](fragments, ring, partial)
        ring.advance()
    end(begun, partial, sums)


@always_inline
def multiply_pairs[
    layout: RsLayout, rows: Int, at_once: Int, Operands: RsOperands, //
](
    decoder: Decoder[Operands, layout, _],
    mut ring: RsRing[layout],
    mut partial: Accumulator[at_once],
    mut sums: Accumulator[rows],
    num_steps: UInt32,
):
    """Promotes every two stages, and decodes the second one while the first is multiplied."""
    var step = UInt32(0)
    while step + 1 < num_steps:
        var begun = ring
        var fragments = decoder.decode(ring)
        start[Operands.TYPE, False](fragments, ring, partial)
        ring.advance()
        var second = decoder.decode(ring)
        start[Operands.TYPE, True](second, ring, partial)
        end(ring, partial, sums)
        release(begun)
        ring.advance()
        step += 2
    if step < num_steps:
        var fragments = decoder.decode(ring)
        start[Operands.TYPE, False](fragments, ring, partial)
        end(ring, partial, sums)
        ring.advance()


@always_inline
def multiply_wide[
    layout: RsLayout, rows: Int, at_once: Int, Operands: RsOperands, //
](
    decoder: Decoder[Operands, layout, _],
    mut ring: RsRing[layout],
    mut partial: Accumulator[at_once],
    mut sums: Accumulator[rows],
    num_steps: UInt32,
):
    """Decodes two stages, and multiplies them with some of the rows at a time."""
    var step = UInt32(0)
    while step + 1 < num_steps:
        var begun = ring
        var fragments = decoder.decode(ring)
        ring.advance()
        var second = decoder.decode(ring)
        comptime for first in range(0, rows, at_once):
            start[Operands.TYPE, False, first](fragments, begun, partial)
            start[Operands.TYPE, True, first](second, ring, partial)
            wgmma_wait_group_sync[0]()
            settle_sums(partial)
            comptime if first + at_once == rows:
                release(begun)
                release(ring)
            promote[first](partial, sums)
        ring.advance()
        step += 2
    if step < num_steps:
        var fragments = decoder.decode(ring)
        comptime for first in range(0, rows, at_once):
            start[Operands.TYPE, False, first](fragments, ring, partial)
            wgmma_wait_group_sync[0]()
            settle_sums(partial)
            comptime if first + at_once == rows:
                release(ring)
            promote[first](partial, sums)
        ring.advance()


@always_inline
def start[
    rows: Int, //, type: StaticString, adds: Bool, first: Int = 0
](weights: Fragments, ring: RsRing[_], mut sums: Accumulator[rows]):
    """Starts the products of a stage with rows from one on; their sums begin anew or go on."""
    var of_rows = lower_word(ring.here().base + UInt32(first * ROW_BYTES))
    wgmma_fence_aligned()
    comptime for i in range(INSTRUCTIONS):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_fragment[type, adds or i > 0](weights[i], of_rows + at, sums)
    wgmma_commit_group_sync()


@always_inline
def end[
    rows: Int, at_once: Int, //
](ring: RsRing[_], mut partial: Accumulator[at_once], mut sums: Accumulator[rows]):
    """Waits for all products, lets go of a stage and promotes their sums."""
    wgmma_wait_group_sync[0]()
    settle_sums(partial)
    release(ring)
    promote(partial, sums)


@always_inline
def load_factors[rows: Int](ring: RsRing[_]) -> Factors[rows]:
    """Returns the factors of a thread's rows of A in a stage."""
    var found = Factors[rows](fill=0)
    var pairs = ring.here().factors().base
    pairs += lane_here() % UInt32(K_LANES) * UInt32(FACTOR_BYTES * PAIR)
    comptime for octet in range(rows // OCTET):
        found[octet] = load_pair(pairs + UInt32(FACTOR_BYTES * OCTET * octet))
    return found^


@always_inline
def promote[
    rows: Int, at_once: Int, //, first: Int = 0
](partial: Accumulator[at_once], mut sums: Accumulator[rows]):
    """Adds partial sums, which are there, in this place: to those of rows from one on."""
    comptime for i in range(at_once // 2):
        comptime part, at = divmod(i, PART_SUMS)
        comptime of_all, there = divmod(first // 2 + i, PART_SUMS)
        sums[of_all][there] = add_here(partial[part][at], sums[of_all][there])


@always_inline
def promote[
    rows: Int, at_once: Int, //
](factors: Factors[rows], partial: Accumulator[at_once], mut sums: Accumulator[rows]):
    """Adds partial sums times the factors of their rows of A."""
    comptime for octet in range(rows // OCTET):
        var of_rows = bitcast[DType.float32, PAIR](factors[octet])
        comptime for row in range(ROWS):
            comptime for i in range(PAIR):
                comptime part, at = place_of(octet, row, i)
                sums[part][at] = multiply_add_here(partial[part][at], of_rows[i], sums[part][at])
