"""Rows times rows, of bytes or of numbers, both as they lie: tensor maps bring tiles of them.

    thread         starts copies of boxes, one stage after the other, see `fill`
    warp           puts factors beside them
    2 threads      copy parts of C out, see `handover`
    2 consumers    warp groups: 64 tokens by 128 columns each, C += tokens @ weights^T

Instructions of numbers add to one sum. Those of bytes add 32 products to what there is so far, each
cut off 13 bits below the largest one. So the sums of a stage begin anew, and are added to those in
float32 registers, times its factors if there are such; meanwhile the next stage is multiplied:

    instructions    stage 0    stage 1    stage 2    ..
    adding up                  stage 0    stage 1    ..

An element of C is as far from the exact product as float32 sums are, and for each instruction of
bytes at most 33 * 2 ** -13 times its largest addend: less than bfloat16 and float16 show.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.math import fma
from std.utils import StaticTuple

from ...launch.tensor_map import TensorMap
from ...simt.arguments import Activations, Result, Weights
from ..host.gemm import Scaling
from ..instructions.shared_memory import prefetch_map, shared_base, wait_phase
from ..instructions.warp import keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    PART_SUMS,
    STEP_BYTES,
    TileSums,
    UNIT_BYTES,
    limit_registers,
    lower_word,
    multiply_staged,
    settle_sums,
)
from ..many.result import stores_in_halves
from ..shapes import (
    CONSUMER_WARPS,
    GROUPS,
    NUMBER_BYTES,
    OCTET,
    PART_COLUMNS,
    ROW_BYTES,
    THREADS,
    WORD,
    columns_of,
)
from ..scheduler import DenseScheduler
from .fill import copy_boxes, put_factors
from .handover import Handover
from .operands import MappedOperands
from .result import PartPlace, ROWS, finish, place_of, store_parts, store_together
from .slots import TileFacts, load_float, load_floats
from .stages import MappedStages

comptime Sums = TileSums[PART_COLUMNS]
"""A thread's sums: two tokens of every pair of columns of a consumer."""
comptime Pair = SIMD[DType.float32, ROWS]
"""Factors of a thread's tokens."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
@__llvm_arg_metadata(left, `nvvm.grid_constant`)
@__llvm_arg_metadata(right, `nvvm.grid_constant`)
def matmul_mapped[
    Operands: MappedOperands, tokens: Int
](
    left: TensorMap,
    right: TensorMap,
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
    ranks: UInt32,
):
    """Computes tiles of C of so many rows, one after the other.

    A cluster's groups split the K of one tile.
    """
    # Kept, or the compiler finds out anew in every step where schedulerd memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = MappedStages[tokens](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
        Handover.init_barriers(base)
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    comptime NUMBERS = Operands.SCALING == Scaling.NUMBERS
    comptime STAGE_NUMBERS = UInt32(ROW_BYTES // (NUMBER_BYTES if NUMBERS else 1))
    var num_steps = (UInt32(a.k) + STAGE_NUMBERS - 1) // STAGE_NUMBERS
    comptime Scheduler = DenseScheduler[tokens, columns=columns_of(tokens)]
    var scheduler = Scheduler.of(result, num_steps, ranks)
    if warp >= UInt32(CONSUMER_WARPS):
        comptime REGISTERS = filler_registers(Operands.SCALING)
        limit_registers["dec", REGISTERS]()
        var role = warp - UInt32(CONSUMER_WARPS)
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        stages.parity = 1
        if role == 0:
            if lane_here() == 0:
                prefetch_map(Int(Pointer(to=left)))
                prefetch_map(Int(Pointer(to=right)))
                wait_on_dependent_grids()
                copy_boxes(stages, Int(Pointer(to=left)), Int(Pointer(to=right)), scheduler)
        elif role <= UInt32(GROUPS):
            if lane_here() == 0 and ranks == 1 and stores_in_halves(result):
                store_parts(stages, Handover.of_storer(base, role - 1), scheduler, result)
        else:
            wait_on_dependent_grids()
            put_factors(stages, operands, scheduler, result)
    else:
        comptime REGISTERS = consumer_registers(Operands.SCALING)
        limit_registers["inc", REGISTERS]()
        var sums = Sums(uninitialized=True)
        # Of the first stage, whose instructions are started early.
        var ahead = Sums(fill=0)
        var group = warp // UInt32(CONSUMER_WARPS // GROUPS)
        # Of registers that the loop keeps there are few left: where a lane is follows from this.
        var entry = PartPlace[tokens].of_warp(warp).entry
        var words = PartWords.of(stages, group)
        var handover = Handover.of_consumers(base, group)
        wait_on_dependent_grids()
        var num_stages = scheduler.end_step - scheduler.first_step
        # Every group has a tile.
        while True:
            var of_first = Pair(1)
            comptime if starts_early(Operands.SCALING):
                of_first = start[Operands](stages, words, entry, ahead)
            var last = consume[Operands](stages, num_stages, words, entry, of_first, ahead, sums)
            var tile = TileFacts.load(last.slot())
            var place = PartPlace[tokens].here()
            if tile.is_last:
                launch_dependent_grids()
            if ranks > 1:
                keep_branch()
                store_together(sums, last, tile, place, scheduler, operands, a, w, result)
                break
            finish(sums, last, tile, place, handover, operands, a, w, result)
            if tile.is_last:
                break


@fieldwise_init
struct PartWords(TrivialRegisterPassable):
    """Where a consumer's part of the first stage is, as lower words of descriptors."""

    var of_tokens: UInt32
    var of_weights: UInt32

    @staticmethod
    @always_inline
    def of(stages: MappedStages[_], group: UInt32) -> Self:
        """Returns those of a consumer; the stage is the first one."""
        return Self(lower_word(stages.tokens_of(group)), lower_word(stages.weights_of(group)))


def consumer_registers(scaling: Scaling) -> Int:
    """Returns the registers of a consumer thread: more than its even scheduler."""
    return 224 if starts_early(scaling) else 184


def filler_registers(scaling: Scaling) -> Int:
    """Returns the registers of the other threads: what consumers leave."""
    return 3 * 168 - 2 * consumer_registers(scaling)


def starts_early(scaling: Scaling) -> Bool:
    """Says whether two stages are under way: who puts factors wants their registers else."""
    return scaling == Scaling.ROWS


@always_inline
def start[
    tokens: Int, //, Operands: MappedOperands
](stages: MappedStages[tokens], words: PartWords, entry: UInt32, mut sums: Sums) -> Pair:
    """Starts the products of a stage as soon as it is full; returns its factors of tokens.

    Sums of bytes begin anew, those of numbers go on.
    """
    comptime ADDS = Operands.SCALING == Scaling.NUMBERS
    wait_phase(stages.full(), stages.parity)
    var of_stage = stages.stage * UInt32(stages.STAGE_BYTES // UNIT_BYTES)
    var of_tokens, of_weights = words.of_tokens + of_stage, words.of_weights + of_stage
    wgmma_fence_aligned()
    comptime for i in range(ROW_BYTES // STEP_BYTES):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_staged[Operands.TYPE, ADDS or i > 0](of_tokens + at, of_weights + at, sums)
    wgmma_commit_group_sync()
    var factors = Pair(1)
    comptime if Operands.SCALING.is_of_stages():
        comptime for i in range(ROWS):
            factors[i] = load_float(stages.slot().factor_at(entry + UInt32(OCTET * i)))
    return factors


@always_inline
def add_up[
    tokens: Int, //, scaling: Scaling, in_flight: Int, releases: Bool = True
](stages: MappedStages[tokens], entry: UInt32, factors: Pair, mut partial: Sums, mut sums: Sums,):
    """Adds the sums of a stage, which is multiplied when only so many are; lets go of it."""
    wgmma_wait_group_sync[in_flight]()
    settle_sums(partial)
    comptime if releases and scaling != Scaling.COLUMNS:
        stages.release()
    comptime if scaling == Scaling.ROWS:
        comptime for i in range(PART_COLUMNS // 2 // PART_SUMS):
            sums[i] += partial[i]
    else:
        var ends_at = stages.slot().end_at(PartPlace[tokens].column_of(entry))
        comptime for octet in range(PART_COLUMNS // OCTET):
            var of_columns = Pair(1)
            comptime if scaling == Scaling.COLUMNS:
                of_columns = load_floats(ends_at + UInt32(WORD * OCTET * octet))
            comptime for row in range(ROWS):
                comptime for i in range(2):
                    comptime part, at = place_of(octet, row, i)
                    var sum = partial[part][at]
                    comptime if scaling == Scaling.COLUMNS:
                        sum *= of_columns[i]
                    sums[part][at] = fma(sum, factors[row], sums[part][at])
        comptime if releases and scaling == Scaling.COLUMNS:
            stages.release()


@always_inline
def consume[
    tokens: Int, //, Operands: MappedOperands
](
    mut stages: MappedStages[tokens],
    num_steps: UInt32,
    words: PartWords,
    entry: UInt32,
    of_first: Pair,
    mut even: Sums,
    mut sums: Sums,
) -> MappedStages[tokens]:
    """Multiplies the stages of a tile, two under way in turn; the first one may be started.

    Returns the last one, which the caller has to release. Registers in flight keep their names.
    """
    sums = Sums(fill=0)
    var previous = stages
    comptime if Operands.SCALING == Scaling.NUMBERS:
        for step in range(num_steps):
            _ = start[Operands](stages, words, entry, sums)
            wgmma_wait_group_sync[1]()
            if step > 0:
                previous.release()
            previous = stages
            stages.advance()
        wgmma_wait_group_sync[0]()
        settle_sums(sums)
        return previous
    comptime if not starts_early(Operands.SCALING):
        for _ in range(num_steps - 1):
            var factors = start[Operands](stages, words, entry, even)
            add_up[Operands.SCALING, 0](stages, entry, factors, even, sums)
            stages.advance()
        previous = stages
        var factors = start[Operands](stages, words, entry, even)
        stages.advance()
        add_up[Operands.SCALING, 0, False](previous, entry, factors, even, sums)
        return previous
    var odd = Sums(fill=0)
    var of_even = of_first
    var of_odd: Pair
    stages.advance()
    for _ in range((num_steps - 1) // 2):
        of_odd = start[Operands](stages, words, entry, odd)
        add_up[Operands.SCALING, 1](previous, entry, of_even, even, sums)
        previous = stages
        stages.advance()
        of_even = start[Operands](stages, words, entry, even)
        add_up[Operands.SCALING, 1](previous, entry, of_odd, odd, sums)
        previous = stages
        stages.advance()
    if num_steps % 2 == 0:
        of_odd = start[Operands](stages, words, entry, odd)
        add_up[Operands.SCALING, 1](previous, entry, of_even, even, sums)
        previous = stages
        stages.advance()
        add_up[Operands.SCALING, 0, False](previous, entry, of_odd, odd, sums)
    else:
        add_up[Operands.SCALING, 0, False](previous, entry, of_even, even, sums)
    return previous
