"""The SS main loop: both sides are rows in shared memory, C += A @ weights^T.

Instructions of numbers add to one sum. Those of bytes add 32 products to what there is so far, each
cut off 13 bits below the largest one. So the sums of a stage begin anew, and are promoted to those in
float32 registers, times its factors if there are such; meanwhile the next stage is multiplied, if there
are registers for two:

    instructions    stage 0    stage 1    stage 2    ..
    promotion                  stage 0    stage 1    ..

An element of C is as far from the exact product as float32 sums are, and for each instruction of
bytes at most 33 * 2 ** -13 times its largest addend: less than bfloat16 and float16 show.
"""

from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from std.math import fma

from ..accumulator import PartPlace, ROWS, place_of
from ..host.gemm import Scaling
from ..instructions.shared_memory import wait_phase
from ..instructions.wgmma import (
    STEP_BYTES,
    Accumulator,
    UNIT_BYTES,
    lower_word,
    multiply_staged,
    settle_sums,
)
from ..pipeline.slots import load_float, load_floats
from ..pipeline.stages import SsRing, release, slot_of
from ..shapes import COLUMNS, OCTET, ROW_BYTES, SsTile, WORD
from ..gemm_operands import SsOperands

comptime Sums[shape: SsTile] = Accumulator[shape.part_columns()]
"""A thread's sums: two rows of A of every pair of columns of a consumer."""
comptime Pair = SIMD[DType.float32, ROWS]
"""Factors of a thread's rows of A."""


@fieldwise_init
struct PartWords(TrivialRegisterPassable):
    """Where a consumer's part of the first stage is, as lower words of descriptors."""

    var of_rows: UInt32
    var of_weights: UInt32

    @staticmethod
    @always_inline
    def of(ring: SsRing[_], group: UInt32) -> Self:
        """Returns those of a consumer; the stage is the first one."""
        return Self(
            lower_word(ring.here().rows_of(group)), lower_word(ring.here().weights_of(group))
        )


def starts_early(scaling: Scaling, shape: SsTile) -> Bool:
    """Says whether two stages are under way: else the producer of factors wants their registers."""
    var is_narrow = shape.part_columns() < COLUMNS
    return scaling == Scaling.ROWS or (scaling.is_of_stages() and is_narrow)


@always_inline
def start[
    shape: SsTile, //, Operands: SsOperands
](ring: SsRing[shape], words: PartWords, entry: UInt32, mut sums: Sums[shape]) -> Pair:
    """Starts the products of a stage as soon as it is full; returns the factors of its rows of A.

    Sums of bytes begin anew, those of numbers go on.
    """
    comptime ADDS = Operands.SCALING.is_of_numbers()
    wait_phase(ring.full(), ring.parity)
    var of_stage = ring.stage * UInt32(ring.SPACE.stage_bytes // UNIT_BYTES)
    var of_rows, of_weights = words.of_rows + of_stage, words.of_weights + of_stage
    wgmma_fence_aligned()
    comptime for i in range(ROW_BYTES // STEP_BYTES):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_staged[Operands.TYPE, ADDS or i > 0](of_rows + at, of_weights + at, sums)
    wgmma_commit_group_sync()
    var factors = Pair(1)
    comptime if Operands.SCALING.is_of_stages():
        comptime for i in range(ROWS):
            factors[i] = load_float(slot_of(ring).factor_at(entry + UInt32(OCTET * i)))
    return factors


@always_inline
def promote[
    shape: SsTile, //, scaling: Scaling, in_flight: Int, releases: Bool = True
](
    ring: SsRing[shape],
    entry: UInt32,
    factors: Pair,
    mut partial: Sums[shape],
    mut sums: Sums[shape],
):
    """Promotes the sums of a stage, which is multiplied when only so many are; lets go of it."""
    wgmma_wait_group_sync[in_flight]()
    settle_sums(partial)
    comptime if releases and scaling != Scaling.COLUMNS:
        release(ring)
    var ends_at = slot_of(ring).end_at(PartPlace[shape].column_of(entry))
    comptime for octet in range(shape.part_columns() // OCTET):
        var of_columns = Pair(1)
        comptime if scaling == Scaling.COLUMNS:
            of_columns = load_floats(ends_at + UInt32(WORD * OCTET * octet))
        comptime for row in range(ROWS):
            comptime for i in range(2):
                comptime part, at = place_of(octet, row, i)
                var sum = partial[part][at]
                comptime if scaling == Scaling.ROWS:
                    sums[part][at] += sum
                else:
                    comptime if scaling == Scaling.COLUMNS:
                        sum *= of_columns[i]
                    sums[part][at] = fma(sum, factors[row], sums[part][at])
    comptime if releases and scaling == Scaling.COLUMNS:
        release(ring)


@always_inline
def multiply_tile[
    shape: SsTile, //, Operands: SsOperands
](
    mut ring: SsRing[shape],
    num_steps: UInt32,
    words: PartWords,
    entry: UInt32,
    of_first: Pair,
    mut even: Sums[shape],
    mut sums: Sums[shape],
) -> SsRing[shape]:
    """Multiplies the stages of a tile, two under way in turn; the first one may be started.

    Returns the last one, which the caller has to release. Registers in flight keep their names.
    """
    sums = Sums[shape](fill=0)
    var previous = ring
    comptime if Operands.SCALING.is_of_numbers():
        for step in range(num_steps):
            _ = start[Operands](ring, words, entry, sums)
            wgmma_wait_group_sync[1]()
            if step > 0:
                release(previous)
            previous = ring
            ring.advance()
        wgmma_wait_group_sync[0]()
        settle_sums(sums)
        return previous
    comptime if not starts_early(Operands.SCALING, shape):
        for _ in range(num_steps - 1):
            var factors = start[Operands](ring, words, entry, even)
            promote[Operands.SCALING, 0](ring, entry, factors, even, sums)
            ring.advance()
        previous = ring
        var factors = start[Operands](ring, words, entry, even)
        ring.advance()
        promote[Operands.SCALING, 0, False](previous, entry, factors, even, sums)
        return previous
    var odd = Sums[shape](fill=0)
    var of_even = of_first
    var of_odd: Pair
    ring.advance()
    for _ in range((num_steps - 1) // 2):
        of_odd = start[Operands](ring, words, entry, odd)
        promote[Operands.SCALING, 1](previous, entry, of_even, even, sums)
        previous = ring
        ring.advance()
        of_even = start[Operands](ring, words, entry, even)
        promote[Operands.SCALING, 1](previous, entry, of_odd, odd, sums)
        previous = ring
        ring.advance()
    if num_steps % 2 == 0:
        of_odd = start[Operands](ring, words, entry, odd)
        promote[Operands.SCALING, 1](previous, entry, of_even, even, sums)
        previous = ring
        ring.advance()
        promote[Operands.SCALING, 0, False](previous, entry, of_odd, odd, sums)
    else:
        promote[Operands.SCALING, 0, False](previous, entry, of_even, even, sums)
    return previous
