"""Weights decoded in registers meet bytes in shared memory: tiles of 128 columns of C.

    2 fillers      a thread that copies tokens, a warp that copies codes and scales
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ tokens^T

The sums of a stage begin anew, and are added to those in float32 registers, see `dense.kernel` for
what that cuts off. Tokens are multiplied in parts: while one is added up, the next one is under
way. Consumers take turns, or both would multiply at once, and both decode:

    instructions    part 0 of a stage    part 1             part 0 of the next stage    ..
    registers                            sums of part 0     sums of part 1, codes       ..

That is for so few rows that a weight is decoded a few times only: a stage takes 1.5 times what
tensor cores need for it, of four-bit codes 1.7 times, `dense` 1.2 times, which has to prepare all
weights before.
"""

from layout import Coord, row_major
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.compute.mma import (
    wgmma_commit_group_sync,
    wgmma_fence_aligned,
    wgmma_wait_group_sync,
)
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier, syncwarp
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..dense.kernel import DENSE_TOKENS
from ..dense.marks import any_marked, store_marked
from ..dense.result import (
    LaneFactors,
    PAIR,
    RowPair,
    WARPS,
    scale_sums,
    store_any,
    store_turned_rows,
    turn_any,
)
from ..dense.share import Share
from ..dense.together import store_together
from ..instructions.shared_memory import arrive, pass_turn, shared_base, wait_phase, wait_turn
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    INSTRUCTION_ROWS,
    OCTET,
    PART_SUMS,
    ROW_BYTES,
    STEP_BYTES,
    TileSums,
    UNIT_BYTES,
    add_here,
    limit_registers,
    lower_word,
    multiply_add_here,
    multiply_fragment,
    settle_sums,
)
from ..many.kernel import CONSUMER_WARPS, MULTIPROCESSORS
from ..many.result import stores_in_halves
from ..staged.stages import COLUMNS, WARP_GROUP, first_of
from ..staged.weights import ROWS
from .meeting import Meetings, groups_of
from .operands import DirectOperands
from .stages import DirectStages
from .weights import Fragments, INSTRUCTIONS, columns_of, fragments_of, wait_for_other

comptime THREADS = 32 * CONSUMER_WARPS + WARP_GROUP
"""Threads of a group: consumers, then those who copy."""
comptime CONSUMER_REGISTERS = 232
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 40
"""Registers of the other threads: what consumers leave."""
comptime PART_TOKENS = 64
"""Tokens of an instruction."""
comptime FIRST_TURN = 2
"""The hardware barrier at which the first consumer waits for its turn; the other one's is next."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def matmul_direct[
    Operands: DirectOperands, tokens: Int, even: Bool
](
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
    ranks: UInt32,
    meetings: Meetings[tokens],
):
    """Computes tiles of 128 columns of C for so many rows, one after the other.

    Ranks are the groups of a cluster, which split the K of one tile; 1 without clusters. Even shares
    have parts of tiles, of which groups meet.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = DirectStages[Operands, tokens](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var share = share_of[tokens, even](result, operands.num_steps(), ranks)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        stages.parity = 1
        if warp == UInt32(CONSUMER_WARPS):
            stages.copy_weights(share, w, UInt32(a.k), result.columns)
        elif warp == UInt32(CONSUMER_WARPS + 1) and lane_here() == 0:
            wait_on_dependent_grids()
            stages.copy_tokens(share, operands.tokens())
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var parts = Parts(TileSums[PART_TOKENS](fill=0), TileSums[PART_TOKENS](fill=0))
        var group = warp // UInt32(WARPS)
        if group == 1:
            # The first turn is the other group's.
            pass_turn[32 * CONSUMER_WARPS](UInt32(FIRST_TURN))
        wait_on_dependent_grids()
        var index = share.first()
        while share.has(index):
            var token, first_column = first_of[tokens](share.tile(index))
            var columns = columns_of(first_column, warp)
            var first_step, end_step = share.first_of(index), share.end_of(index)
            var tile = index
            index = share.after(index)
            var rows = operands.rows_at(columns.of_lane)
            var factors_at = operands.factors_at(columns.of_lane)
            var sums = TileSums[tokens](fill=0)
            for step in range(first_step, end_step):
                var of_weights = RowPair(1)
                comptime if Operands.SCALES_STAGES:
                    of_weights = operands.stage_factors(factors_at, step)
                wait_phase(stages.full(), stages.parity)
                var fragments = fragments_of(rows, stages, warp)
                var is_last = step + 1 == end_step and not share.has(index)
                multiply_stage(fragments, stages, of_weights, Turns(group, is_last), parts, sums)
                comptime if Operands.SCALES_STAGES:
                    # All lanes have read factors; one says so.
                    syncwarp()
                if lane_here() == 0:
                    arrive(stages.empty())
                stages.advance()
            if not share.has(index):
                launch_dependent_grids()
            comptime if even:
                if end_step - first_step < share.num_steps:
                    keep_branch()
                    if not meetings.is_last(share, tile, base, sums):
                        continue
            else:
                if ranks > 1:
                    keep_branch()
                    store_together(
                        sums, base, columns, rebind[Share[tokens]](share), operands, a, w, result
                    )
                    break
            var factors = LaneFactors[tokens].load(operands, token, columns, result)
            var group_column = first_column + group * UInt32(INSTRUCTION_ROWS)
            var may_be_marked = any_marked[tokens](operands, token, group_column, result)
            comptime if Operands.SCALES_IN_THE_END:
                scale_sums(sums, operands, factors, stages.room(warp))
            if stores_in_halves(result):
                turn_any(sums, stages.room(warp), result, columns)
                # What it has turned is read before its next turn, for which all warps wait.
                wait_for_other(warp)
                store_turned_rows[of_two_warps=True](
                    stages.room(warp), result, token, columns.first
                )
            else:
                keep_branch()
                store_any(sums, result, token, columns)
            if any_lane(may_be_marked):
                keep_branch()
                store_marked[tokens](operands, a, w, result, token, group_column)


@always_inline
def share_of[
    tokens: Int, even: Bool
](result: Result, num_steps: UInt32, ranks: UInt32) -> Share[tokens, even]:
    """Returns what this group computes."""
    comptime if even:
        return Share[tokens, even].evenly(result, num_steps)
    else:
        return Share[tokens, even].here(result, num_steps, ranks)


@fieldwise_init
struct Parts(Movable):
    """Sums of a stage, of some tokens each: two are under way."""

    var even: TileSums[PART_TOKENS]
    var odd: TileSums[PART_TOKENS]


@fieldwise_init
struct Turns(TrivialRegisterPassable):
    """Consumers take turns, so that one multiplies while the other one decodes and adds up."""

    var group: UInt32
    var is_last: Bool
    """Whether nobody comes after this group."""

    @always_inline
    def wait(self):
        """Waits for the group's turn."""
        wait_turn[32 * CONSUMER_WARPS](UInt32(FIRST_TURN) + self.group)

    @always_inline
    def pass_on(self):
        """Lets the other group go on."""
        if self.group == 0 or not self.is_last:
            pass_turn[32 * CONSUMER_WARPS](UInt32(FIRST_TURN + 1) - self.group)


@always_inline
def multiply_stage[
    Operands: DirectOperands, tokens: Int, //
](
    fragments: Fragments,
    stages: DirectStages[Operands, tokens],
    of_weights: RowPair,
    turns: Turns,
    mut parts: Parts,
    mut sums: TileSums[tokens],
):
    """Multiplies a stage in the group's turn, and adds up its sums."""
    turns.wait()
    start[Operands.TYPE, 0](fragments, stages.tokens_at(), parts.even)
    comptime if tokens > PART_TOKENS:
        start[Operands.TYPE, 1](fragments, stages.tokens_at(), parts.odd)
        wgmma_wait_group_sync[1]()
        turns.pass_on()
        add_up[0](stages, of_weights, parts.even, sums)
        wgmma_wait_group_sync[0]()
        add_up[1](stages, of_weights, parts.odd, sums)
    else:
        turns.pass_on()
        wgmma_wait_group_sync[0]()
        add_up[0](stages, of_weights, parts.even, sums)


@always_inline
def start[
    type: StaticString, part: Int
](weights: Fragments, tokens_at: UInt32, mut sums: TileSums[PART_TOKENS]):
    """Starts the products of a part of the tokens of a stage, whose sums begin anew."""
    var of_tokens = lower_word(tokens_at + UInt32(part * PART_TOKENS * ROW_BYTES))
    wgmma_fence_aligned()
    comptime for i in range(INSTRUCTIONS):
        comptime at = UInt32(i * STEP_BYTES // UNIT_BYTES)
        multiply_fragment[type, i > 0](weights[i], of_tokens + at, sums)
    wgmma_commit_group_sync()


@always_inline
def add_up[
    Operands: DirectOperands, tokens: Int, //, part: Int
](
    stages: DirectStages[Operands, tokens],
    of_weights: RowPair,
    mut partial: TileSums[PART_TOKENS],
    mut sums: TileSums[tokens],
):
    """Adds the sums of a part, which are there, in this place; times the factors of the stage."""
    settle_sums(partial)
    comptime if Operands.SCALES_STAGES:
        comptime order = row_major[PART_TOKENS // OCTET, ROWS, PAIR]()
        comptime for octet in range(PART_TOKENS // OCTET):
            var of_tokens = stages.factors_of_octet(part * PART_TOKENS // OCTET + octet)
            comptime for row in range(ROWS):
                comptime for token in range(PAIR):
                    comptime at = Int(order(Coord(octet, row, token)))
                    sums[part][at] = multiply_add_here(
                        partial[0][at] * of_weights[row], of_tokens[token], sums[part][at]
                    )
    else:
        comptime for at in range(PART_SUMS):
            sums[part][at] = add_here(partial[0][at], sums[part][at])


def launch[
    Operands: DirectOperands, tokens: Int, even: Bool = False
](
    operands: Operands,
    grid: Grid,
    problem: Problem,
    ranks: Int,
    mut queue: Some[Queue],
    meetings: Meetings[tokens] = Meetings[tokens].at(0, 0),
) raises:
    """Launches the kernel for operands whose tokens are prepared; meetings are for even shares."""
    queue.launch[matmul_direct[Operands, tokens, even]](
        grid,
        operands,
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(ranks),
        meetings,
    )


def grid[Operands: DirectOperands](m: Int, n: Int, tokens: Int, ranks: Int) -> Grid:
    """Returns the grid for C of [m, n]: groups take tiles in turn, clusters one each."""
    var tiles = ceildiv(m, tokens) * ceildiv(n, COLUMNS)
    var groups = tiles * ranks if ranks > 1 else min(tiles, MULTIPROCESSORS)
    return _grid[Operands](groups, tokens, ranks if ranks > 1 else 0)


def even_grid[Operands: DirectOperands](m: Int, n: Int, tokens: Int, num_steps: Int) -> Grid:
    """Returns the grid for C of [m, n] whose groups have even shares of all stages."""
    var tiles = ceildiv(m, tokens) * ceildiv(n, COLUMNS)
    return _grid[Operands](groups_of(tiles, num_steps), tokens, 0)


def _grid[Operands: DirectOperands](groups: Int, tokens: Int, cluster: Int) -> Grid:
    """Returns a grid of so many groups."""
    var shared_bytes = 0
    comptime for known in DENSE_TOKENS:
        if tokens == known:
            shared_bytes = DirectStages[Operands, known].NUM_BYTES
    return Grid(
        groups, threads=THREADS, cluster=cluster, shared_bytes=shared_bytes, starts_early=True
    )
