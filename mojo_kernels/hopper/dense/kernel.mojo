"""Stages times stages: tiles of 128 columns of C, both sides in shared memory.

    1 filler       a thread that copies stages: 128 bytes of K of weights and tokens
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ tokens^T

Operands say what a number is, and where sums meet factors, see `DenseOperands`:

    bytes       an instruction adds 32 products to what there is so far, each cut off 13 bits below
                the largest one. So the sums of a stage begin anew, and are added to those in
                float32 registers, times the stage's factors if there are such
    bfloat16    instructions add to one sum

A consumer has the instructions of the next stage under way while it adds up:

    instructions    stage 0    stage 1    stage 2    ...
    adding up                  stage 0    stage 1    ...

An element of C that bytes made is as far from the exact product as float32 sums are, and for each
instruction at most 33 * 2 ** -13 times its largest addend: less than bfloat16 and float16 show, but
more than float32 does. Sums of codes whose blocks share a scale lose nothing.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.math import ceildiv
from std.memory import bitcast
from std.utils import StaticTuple

from ...launch.queue import Grid
from ...simt.arguments import Activations, Result, Weights
from ..instructions.shared_memory import arrive, load_word, shared_base, wait_phase
from ..instructions.warp import keep_here, lane_here
from ..instructions.wgmma import (
    INSTRUCTION_ROWS,
    OCTET,
    PART_SUMS,
    ROW_BYTES,
    STEP_BYTES,
    TileSums,
    UNIT_BYTES,
    limit_registers,
    lower_word,
    multiply_staged,
    settle_sums,
)
from ..layout import K_LANES
from ..many.kernel import CONSUMER_WARPS, MULTIPROCESSORS, THREADS
from ..staged.stages import COLUMNS, WARP_ROWS, bands_of, first_of
from ..staged.weights import ROWS
from .marks import Marks, store_marked
from .operands import DenseOperands
from .pipeline import DenseStages
from .result import LaneFactors, RowPair, add_scaled, store_tokens
from .stages import FACTOR_BYTES

comptime CONSUMER_REGISTERS = 240
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 24
"""Registers of the other threads: what consumers leave."""
comptime CONSUMERS = 32 * CONSUMER_WARPS
"""Threads that multiply; the others are the group of the filler."""
comptime DENSE_TOKENS: List[Int] = [64, 128]
"""Rows of C of a tile."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_dense[
    Operands: DenseOperands, tokens: Int
](operands: Operands, a: Activations, w: Weights, result: Result):
    """Computes tiles of 128 columns of C for so many rows, one after the other."""
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = DenseStages[tokens, Operands.SCALES_STAGES](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var schedule = bands_of[tokens](result)
    var num_tiles = UInt32(schedule.num_tiles())
    var index = UInt32(block_idx.x)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x == CONSUMERS:
            wait_on_dependent_grids()
            # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
            stages.parity = 1
            while index < num_tiles:
                var tile = schedule.tile(Int(index))
                stages.fill(
                    operands.tokens(), UInt32(tile.row), operands.weights(), UInt32(tile.column)
                )
                index += UInt32(grid_dim.x)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = TileSums[tokens](uninitialized=True)
        wait_on_dependent_grids()
        var found = operands.begin(result)
        while index < num_tiles:
            var tile = schedule.tile(Int(index))
            var token, column = first_of[tokens](tile)
            column += warp * UInt32(WARP_ROWS)
            index += UInt32(grid_dim.x)
            var factors = LaneFactors[tokens].load(operands, token, column, result)
            var marks = Marks.load[tokens](operands, token, column, result)
            consume[Operands](stages, operands, warp, sums)
            if index >= num_tiles:
                launch_dependent_grids()
            store_tokens(sums, stages.room(warp), operands, factors, result, token, column)
            comptime if Operands.HAS_MARKS:
                store_marked[tokens](operands, marks, a, w, result, token, column)
        operands.end(found, a, result)


@always_inline
def start[
    tokens: Int, //, Operands: DenseOperands
](stages: DenseStages[tokens, Operands.SCALES_STAGES], group: UInt32, mut sums: TileSums[tokens],):
    """Starts the products of a stage as soon as it is full: bytes begin new sums."""
    wait_phase(stages.full(), stages.parity)
    comptime ADDS = Operands.TYPE == "bf16"
    comptime GROUP_BYTES = INSTRUCTION_ROWS * ROW_BYTES
    var weights = lower_word(stages.weights() + group * UInt32(GROUP_BYTES))
    var of_tokens = lower_word(stages.tokens_at())
    wgmma_fence_aligned()
    comptime for i in range(ROW_BYTES // STEP_BYTES):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_staged[Operands.TYPE, ADDS or i > 0](weights + at, of_tokens + at, sums)
    wgmma_commit_group_sync()


@always_inline
def release(stages: DenseStages[...], is_first_lane: Bool):
    """Says that a warp has read a stage."""
    if is_first_lane:
        arrive(stages.empty())


@always_inline
def add_up[
    tokens: Int, //, Operands: DenseOperands
](
    stages: DenseStages[tokens, Operands.SCALES_STAGES],
    warp: UInt32,
    mut partial: TileSums[tokens],
    mut sums: TileSums[tokens],
):
    """Adds the sums of a stage that is multiplied, and lets go of it."""
    settle_sums(partial)
    comptime if Operands.SCALES_STAGES:
        var lane = lane_here()
        var rows_at = stages.weights() + UInt32(COLUMNS * ROW_BYTES)
        rows_at += (warp * UInt32(WARP_ROWS) + lane // UInt32(K_LANES)) * UInt32(FACTOR_BYTES)
        var factors = RowPair()
        comptime for i in range(ROWS):
            factors[i] = bitcast[DType.float32](
                load_word(rows_at + UInt32(i * OCTET * FACTOR_BYTES))
            )
        add_scaled(partial, stages.tokens_at() + UInt32(tokens * ROW_BYTES), factors, sums)
    else:
        comptime for i in range(tokens // 2 // PART_SUMS):
            sums[i] += partial[i]
    release(stages, lane_here() == 0)


@always_inline
def consume[
    tokens: Int, //, Operands: DenseOperands
](
    mut stages: DenseStages[tokens, Operands.SCALES_STAGES],
    operands: Operands,
    warp: UInt32,
    mut sums: TileSums[tokens],
):
    """Multiplies the stages of a tile as they fill."""
    var group = warp // 4
    var num_steps = Int(operands.weights().num_steps)
    sums = TileSums[tokens](fill=0)
    comptime if Operands.TYPE == "bf16":
        var previous = stages
        for step in range(num_steps):
            start[Operands](stages, group, sums)
            wgmma_wait_group_sync[1]()
            if step > 0:
                release(previous, lane_here() == 0)
            previous = stages
            stages.advance()
        wgmma_wait_group_sync[0]()
        settle_sums(sums)
        release(previous, lane_here() == 0)
    else:
        # Two stages under way in turn: registers in flight keep their names.
        var even = TileSums[tokens](fill=0)
        var odd = TileSums[tokens](fill=0)
        var previous = stages
        start[Operands](stages, group, even)
        stages.advance()
        for _ in range((num_steps - 1) // 2):
            start[Operands](stages, group, odd)
            wgmma_wait_group_sync[1]()
            add_up[Operands](previous, warp, even, sums)
            previous = stages
            stages.advance()
            start[Operands](stages, group, even)
            wgmma_wait_group_sync[1]()
            add_up[Operands](previous, warp, odd, sums)
            previous = stages
            stages.advance()
        if num_steps % 2 == 0:
            start[Operands](stages, group, odd)
            wgmma_wait_group_sync[1]()
            add_up[Operands](previous, warp, even, sums)
            previous = stages
            stages.advance()
            wgmma_wait_group_sync[0]()
            add_up[Operands](previous, warp, odd, sums)
        else:
            wgmma_wait_group_sync[0]()
            add_up[Operands](previous, warp, even, sums)


def grid(m: Int, n: Int, tokens: Int, has_factors: Bool) -> Grid:
    """Returns the grid for C of [m, n]: groups take tiles in turn."""
    var shared_bytes = 0
    comptime for known in DENSE_TOKENS:
        if tokens == known:
            shared_bytes = DenseStages[known, False].NUM_BYTES
            if has_factors:
                shared_bytes = DenseStages[known, True].NUM_BYTES
    return Grid(
        min(ceildiv(m, tokens) * ceildiv(n, COLUMNS), MULTIPROCESSORS),
        threads=THREADS,
        shared_bytes=shared_bytes,
        starts_early=True,
    )


def best_tokens(m: Int, n: Int) -> Int:
    """Returns the rows of a tile that take the least time: rounds of groups, each of so long.

    A tile of 64 rows takes 0.6 of one of 128. Guess, after what shared memory has to read.
    """
    var columns = ceildiv(n, COLUMNS)
    var of_128 = 10 * ceildiv(ceildiv(m, 128) * columns, MULTIPROCESSORS)
    var of_64 = 6 * ceildiv(ceildiv(m, 64) * columns, MULTIPROCESSORS)
    return 64 if of_64 < of_128 else 128
