"""Launches of products of experts on Hopper.

    grouped    lay_out_groups, prepare, gemm_rs_bf16
    experts    route_slots, prepare, gemm_rs_bf16 with a gate, prepare, gemm_rs_bf16, add_slots

Which kernels take what, and where things lie, is decided in `host.moe`.
"""


from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue, device_pointer
from ...numbers.gates import Gate
from ...problem import Known, Left
from ...simt import experts as portable
from ...simt.arguments import Activations, Result
from ...simt.host import FLOAT32, is_left_aligned
from ...simt.routing import ExpertWeights, Groups, Slots
from ..byte_experts import dispatch as of_bytes
from ..epilogue.target import Target
from ..host.moe import (
    Memory,
    TILE_ROWS,
    bytes_take,
    grid_of_lists,
    grid_of_stages,
    grid_of_tiles,
    may_take_operands,
    num_groups_of,
    streaming_takes,
    supports,
    tile_rows_of,
    workspace_of,
)
from ..gemm_rs_bf16 import gemm_rs_bf16
from ..prepare.bf16 import BF16Stages, prepare_bf16_places
from ..product import Gating, GroupedProduct
from ..shapes import RsConfig
from ..streaming import kernel as streaming
from . import groups, slots
from .groups import Lists
from .slots import Places


def multiply_grouped[known: Known](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    comptime if may_take_operands[known]():
        if supports(problem):
            if streaming_takes(problem):
                return streaming.multiply_grouped(problem, queue)
            if bytes_take(problem):
                return of_bytes.multiply_grouped(problem, queue)
            return _multiply_grouped(problem, queue)
    portable.multiply_grouped[known](problem, queue)


def _multiply_grouped(problem: GroupedProblem, mut queue: Some[Queue]) raises:
    if problem.m == 0 or problem.n == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var tile_rows = tile_rows_of(problem.m, problem.experts.count)
    var lists = Lists.at(memory.lists, are_gathered=False)
    queue.launch[groups.lay_out_groups](grid_of_lists(), Groups(problem), lists, UInt32(tile_rows))
    var result = Result(problem.values, problem.dtype, problem.m, problem.n)
    var target = Target(result, Gate.NONE)
    _product[False](
        problem.left,
        problem.k,
        problem.experts,
        problem.n,
        lists,
        memory,
        0,
        target,
        tile_rows,
        queue,
    )


def multiply_experts[
    known_gate_up: Known, known_down: Known
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    comptime if may_take_operands[known_gate_up]() and may_take_operands[known_down]():
        if supports(problem):
            if streaming_takes(problem):
                return streaming.multiply_experts(problem, queue)
            if bytes_take(problem):
                return of_bytes.multiply_experts(problem, queue)
            return _multiply_experts(problem, queue)
    portable.multiply_experts[known_gate_up, known_down](problem, queue)


def _multiply_experts(problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    if problem.routing.tokens == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var tile_rows = tile_rows_of(count, problem.gate_up.count)
    var lists = Lists.at(memory.lists, are_gathered=True)
    var routing = Slots(problem.routing)
    queue.launch[groups.route_slots](
        grid_of_lists(), routing, UInt32(problem.gate_up.count), lists, UInt32(tile_rows)
    )
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    _product[True](
        problem.left,
        width,
        problem.gate_up,
        2 * inner,
        lists,
        memory,
        0,
        Target(hidden, problem.gate),
        tile_rows,
        queue,
    )

    var left = problem.hidden_at(memory.hidden)
    # Hidden numbers are where their places are.
    lists.are_gathered = False
    var of_slots = Result(memory.rows, Int(FLOAT32), count, width)
    _product[False](
        left,
        inner,
        problem.down,
        width,
        lists,
        memory,
        1,
        Target(of_slots, Gate.NONE),
        tile_rows,
        queue,
    )
    slots.launch_sums(problem, memory.rows, Places.listed_at(lists.places), queue)


def _product[
    is_gated: Bool
](
    left: Left,
    k: Int,
    experts: Experts,
    n: Int,
    lists: Lists,
    memory: Memory,
    product: Int,
    target: Target,
    tile_rows: Int,
    mut queue: Some[Queue],
) raises:
    """Launches the staging of rows and their product with [n, k] weights."""
    var a = Activations(left, k)
    var num_tiles = Int(lists.num_tiles)
    var num_places = memory.lists.num_places
    var staged = BF16Stages(
        device_pointer[DType.uint8](memory.first),
        device_pointer[DType.uint8](memory.lists.marks + product * num_places),
    )
    queue.launch[prepare_bf16_places](
        grid_of_stages(tile_rows, num_tiles, k),
        a,
        UInt32(1 if is_left_aligned(left) else 0),
        lists,
        staged.tokens,
        staged.flags,
        UInt32(num_places),
    )
    comptime gating = Gating.EITHER if is_gated else Gating.NONE
    var column_tiles = num_groups_of(Int(target.rows.columns), is_gated)
    comptime for i in range(len(TILE_ROWS)):
        comptime rows_of_tile = TILE_ROWS[i]
        if tile_rows == rows_of_tile:
            comptime config = RsConfig.grouped(rows_of_tile)
            comptime Product = GroupedProduct[rows_of_tile, gating]
            queue.launch[gemm_rs_bf16[config, Product]](
                grid_of_tiles(rows_of_tile, num_tiles, column_tiles), staged, UInt32(num_places), a,
                ExpertWeights(experts, n), target, lists, UInt32(1),
            )  # fmt: skip
