"""Weights decoded in registers meet bytes in shared memory: tiles of 128 columns of C.

    4 fillers      three warps copy codes and scales, every third stage each; of the last one a thread
                   copies tokens
    2 consumers    warp groups, 64 weight rows each: C^T += weights @ tokens^T

That is for so few rows that a weight is decoded a few times only: `mapped` has to have all weights
prepared before.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import Queue
from ...problem import Problem
from ...simt.arguments import Activations, Result, Weights
from ..dense.marks import any_marked, store_marked, wait_for_group
from ..dense.result import (
    LaneFactors,
    WarpColumns,
    scale_sums,
    store_any,
    store_group_rows,
    turn_any,
)
from ..dense.together import ShareFacts, init_meeting, store_together
from ..instructions.shared_memory import shared_base
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    MAX_INSTRUCTION_TOKENS,
    PART_SUMS,
    TileSums,
    limit_registers,
)
from ..layout import ROWS_PER_LANE, ROW_LANES
from ..many.result import stores_in_halves
from ..scheduler import DenseScheduler, Schedule
from ..shapes import (
    CONSUMER_WARPS,
    INSTRUCTION_ROWS,
    OCTET,
    THREADS,
    WARPS,
    WIDE_TOKENS,
    room_tokens,
)
from .meeting import Meetings
from .operands import DirectOperands
from .stages import DirectStages, WEIGHT_FILLERS
from .turns import begin_turns, end_turns
from .walk import multiply_steps
from .weights import LanePlaces, columns_of

comptime CONSUMER_REGISTERS = 232
"""Registers of a consumer thread: more than its even share."""
comptime FILLER_REGISTERS = 40
"""Registers of the other threads: what consumers leave."""
comptime WIDE_CONSUMER_REGISTERS = 240
"""Registers of a consumer thread of the widest tiles."""
comptime WIDE_FILLER_REGISTERS = 24
"""What these leave."""


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

    Ranks are the groups of a cluster, which split the K of one tile; 1 without clusters, and for the
    widest tiles. Even shares have parts of tiles, of which groups meet.
    """
    comptime IS_WIDE = tokens == WIDE_TOKENS
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = DirectStages[tokens, Operands.CODE_BITS, Operands.SCALES_STAGES](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
        init_meeting(base)
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    comptime SCHEDULE = Schedule.STREAM_K if even else Schedule.CLUSTERS
    var scheduler = DenseScheduler[tokens, SCHEDULE].of(result, operands.num_steps(), ranks)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", WIDE_FILLER_REGISTERS if IS_WIDE else FILLER_REGISTERS]()
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        stages.parity = 1
        var filler = warp - UInt32(CONSUMER_WARPS)
        if filler < UInt32(WEIGHT_FILLERS):
            stages.copy_weights(filler, scheduler, w, UInt32(a.k), result.columns)
        elif lane_here() == 0:
            stages.copy_tokens(scheduler, operands)
    else:
        limit_registers["inc", WIDE_CONSUMER_REGISTERS if IS_WIDE else CONSUMER_REGISTERS]()
        comptime PART = min(tokens, MAX_INSTRUCTION_TOKENS)
        var partial = TileSums[PART](fill=0)
        var group = warp // UInt32(WARPS)
        var places = LanePlaces.of_warp(stages, warp)
        var index = scheduler.first()
        # Divided out before rows are waited for.
        var corner = keep_here(scheduler.corner(index))
        wait_on_dependent_grids()
        comptime if Operands.SCALES_STAGES:
            begin_turns(group)
        while scheduler.has(index):
            var tile_index, tile = index, scheduler.tile(index, corner)
            var token, first_column = tile.row, tile.column
            var columns = columns_of(first_column, warp)
            index = scheduler.after(index)
            corner = scheduler.corner(index)
            var rows = rows_of_lane(operands, columns)
            var group_column = first_column + group * UInt32(INSTRUCTION_ROWS)
            # Loaded before the products: nobody waits for them.
            var factors = LaneFactors[tokens].load(operands, token, columns, result)
            var facts = ShareFacts[tokens].none()
            comptime if not even and not IS_WIDE:
                facts = ShareFacts[tokens].load(
                    rebind[DenseScheduler[tokens]](scheduler), operands, result
                )
            var may_be_marked = any_marked[tokens](operands, token, group_column, result)
            var sums = TileSums[tokens](fill=0)
            multiply_steps[Operands](
                rows, places, group, stages, partial, sums, tile.first_step, tile.end_step
            )
            if not scheduler.has(index):
                launch_dependent_grids()
            comptime if even:
                if tile.num_steps() < scheduler.num_steps:
                    keep_branch()
                    if not meetings.leave(scheduler, tile_index, base, sums).is_last:
                        continue
            elif not IS_WIDE:
                if ranks > 1:
                    keep_branch()
                    store_together(
                        sums,
                        base,
                        columns,
                        rebind[DenseScheduler[tokens]](scheduler),
                        facts,
                        operands,
                        a,
                        w,
                        result,
                    )
                    break
            comptime ROOM = room_tokens(tokens)
            comptime for first in range(0, tokens, ROOM):
                var part = part_of[first, ROOM](sums)
                var first_token = token + UInt32(first)
                scale_sums(part, operands, factors.part[first, ROOM](), stages.room(warp))
                if stores_in_halves(result):
                    turn_any(part, stages.room(warp), result, columns)
                    wait_for_group(group)
                    store_group_rows(stages.room(warp), result, first_token, group_column)
                    # Before the next turn.
                    wait_for_group(group)
                else:
                    keep_branch()
                    store_any(part, result, first_token, columns)
            if any_lane(may_be_marked):
                keep_branch()
                store_marked[tokens](operands, a, w, result, token, group_column)
        comptime if Operands.SCALES_STAGES:
            end_turns(group)


@always_inline
def part_of[tokens: Int, //, first: Int, count: Int](sums: TileSums[tokens]) -> TileSums[count]:
    """Returns the sums of some tokens of a tile."""
    var found = TileSums[count](fill=0)
    comptime for i in range(count // 2):
        comptime part, at = divmod(first // 2 + i, PART_SUMS)
        comptime to, here = divmod(i, PART_SUMS)
        found[to][here] = sums[part][at]
    return found^


@always_inline
def rows_of_lane[
    Operands: DirectOperands, //
](operands: Operands, columns: WarpColumns) -> Operands.Rows:
    """Returns what there is to know of a lane's rows, which are an octet apart."""
    var row = columns.of_lane
    return operands.rows_at(
        row, row + UInt32(OCTET), row // UInt32(ROW_LANES) % UInt32(ROWS_PER_LANE)
    )


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
