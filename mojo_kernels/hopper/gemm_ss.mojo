"""The product of rows times rows, of bytes or of numbers, both as they lie.

    thread         starts copies of boxes, one stage after the other, see `pipeline.boxes`
    warp           puts factors beside them
    2 consumers    warp groups: 64 rows of A each, by half of the columns or all, see `mainloop.ss`
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ..launch.queue import Queue
from ..launch.tensor_map import MappedRows, TensorMap
from ..problem import Problem
from ..simt.arguments import Activations, Result, Weights
from .epilogue.reduce import Cluster
from .accumulator import PartPlace
from .epilogue.ss import finish, store_columns
from .host.gemm import Scaling, grid_of_ss
from .instructions.shared_memory import prefetch_map, shared_base
from .instructions.warp import keep_branch, keep_here, lane_here
from .instructions.wgmma import limit_registers
from .gemm_operands import SsOperands
from .mainloop.ss import Pair, PartWords, Sums, multiply_tile, start, starts_early
from .pipeline.boxes import copy_boxes, put_factors
from .pipeline.slots import TileFacts
from .pipeline.stages import SsRing, slot_of
from .plan import Plan
from .scheduler import DenseScheduler
from .shapes import CONSUMER_WARPS, GROUPS, NUMBER_BYTES, ROW_BYTES, SsTile, THREADS


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
@__llvm_arg_metadata(left, `nvvm.grid_constant`)
@__llvm_arg_metadata(right, `nvvm.grid_constant`)
def gemm_ss[
    Operands: SsOperands, shape: SsTile
](
    left: TensorMap,
    right: TensorMap,
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
    ranks: UInt32,
):
    """Computes tiles of C, one after the other.

    A cluster's groups split the K of one tile.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var ring = SsRing[shape](base, 0, 0)
    if thread_idx.x == 0:
        ring.init_barriers()
    barrier()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    comptime NUMBERS = Operands.SCALING.is_of_numbers()
    comptime STAGE_NUMBERS = UInt32(ROW_BYTES // (NUMBER_BYTES if NUMBERS else 1))
    var num_steps = (UInt32(a.k) + STAGE_NUMBERS - 1) // STAGE_NUMBERS
    comptime Scheduler = DenseScheduler[shape.rows, columns=shape.columns]
    var scheduler = Scheduler.of(result, num_steps, ranks)
    if warp >= UInt32(CONSUMER_WARPS):
        comptime REGISTERS = consumer_registers(Operands.SCALING)
        limit_registers["dec", 3 * 168 - 2 * REGISTERS]()
        var role = warp - UInt32(CONSUMER_WARPS)
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        ring.parity = 1
        if role == 0:
            if lane_here() == 0:
                prefetch_map(Int(Pointer(to=left)))
                prefetch_map(Int(Pointer(to=right)))
                wait_on_dependent_grids()
                copy_boxes(ring, Int(Pointer(to=left)), Int(Pointer(to=right)), scheduler)
        elif role == 1:
            wait_on_dependent_grids()
            put_factors(ring, operands, scheduler, result)
    else:
        comptime REGISTERS = consumer_registers(Operands.SCALING)
        limit_registers["inc", REGISTERS]()
        var sums = Sums[shape](uninitialized=True)
        # Of the first stage, whose instructions are started early.
        var ahead = Sums[shape](fill=0)
        var group = warp // UInt32(CONSUMER_WARPS // GROUPS)
        # Of registers that the loop keeps there are few left: where a lane is follows from this.
        var entry = PartPlace[shape].of_warp(warp).entry
        var words = PartWords.of(ring, group)
        wait_on_dependent_grids()
        var num_stages = scheduler.end_step - scheduler.first_step
        # Every group has a tile.
        while True:
            var of_first = Pair(1)
            comptime if starts_early(Operands.SCALING, shape):
                of_first = start[Operands](ring, words, entry, ahead)
            var last = multiply_tile[Operands](
                ring, num_stages, words, entry, of_first, ahead, sums
            )
            var tile = TileFacts.load(slot_of(last))
            var place = PartPlace[shape].here()
            if tile.is_last:
                launch_dependent_grids()
            if ranks > 1:
                keep_branch()
                store_columns(sums, last, tile, place, Cluster.here(ranks), operands, a, w, result)
                break
            finish(sums, last, tile, place, operands, a, w, result)
            if tile.is_last:
                break


def consumer_registers(scaling: Scaling) -> Int:
    """Returns the registers of a consumer thread: more than its even share of 168."""
    return 224 if scaling == Scaling.ROWS else 184


def launch[
    Operands: SsOperands, //, shape: SsTile
](
    problem: Problem,
    operands: Operands,
    left: MappedRows,
    right: MappedRows,
    plan: Plan,
    mut queue: Some[Queue],
) raises:
    """Launches the kernel for rows of both sides."""
    queue.launch[gemm_ss[Operands, shape]](
        grid_of_ss(problem.m, problem.n, plan),
        queue.tensor_map(left),
        queue.tensor_map(right),
        operands,
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(plan.ranks),
    )
