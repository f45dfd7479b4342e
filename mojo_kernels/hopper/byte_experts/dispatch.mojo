"""Launches of products of experts on FP8 tensor cores.

    grouped    begin_groups, prepare, gemm_rs_fp8
    experts    begin_slots, prepare, gemm_rs_fp8 with a gate, prepare, gemm_rs_fp8, add_slots
"""

from std.math import align_up

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue
from ...numbers.gates import Gate
from ...problem import Left
from ...simt.arguments import Activations, Result
from ...simt.host import FLOAT32
from ...simt.routing import ExpertWeights, Groups, Slots
from ..experts import slots
from ..experts.groups import Lists
from ..epilogue.target import Target
from ..experts.slots import Places
from ..gemm_operands import RsOperands
from ..gemm_rs_fp8 import gemm_rs_fp8
from ..host.gemm import MXFP8
from ..host.moe import Memory, grid_of_begin, grid_of_bytes, num_groups_of, workspace_of
from ..host.workspace import ALL_ROWS, LANE_CHUNKS, MANY_CHUNKS
from ..layout import TILE_ROWS
from ..prepare.kernel import TilesOfB, launch_prepare
from ..prepare.operands import E4M3Rows, E5M2Rows
from ..prepare.source import SourceRows
from ..product import Gating, GroupedProduct
from ..shapes import EXPERT_CAPACITY as CAPACITY
from .begin import Matrices, begin_groups, begin_slots


def e5m2_rows(lists: Lists, experts: Int, n: Int, k: Int, address: Int) -> E5M2Rows[False]:
    """Returns the operands of a product with [n, k] weights of MXFP4 activations."""
    var weight_rows = experts * align_up(n, TILE_ROWS)
    return E5M2Rows[False].at(Int(lists.num_sources), weight_rows, k, ALL_ROWS, address)


def gathered(lists: Lists, k: Int, most_chunks: Int) -> SourceRows[True]:
    """Returns the rows of k elements that the places of lists want."""
    var places = Int(lists.num_sources)
    return SourceRows[True].of(places, k, most_chunks, lists.sources, lists.are_gathered)


def e4m3_rows(lists: Lists, experts: Int, n: Int, k: Int, address: Int) -> E4M3Rows[4, False]:
    """Returns the operands of a product with [n, k] weights of MXFP8 activations."""
    var weight_rows = experts * align_up(n, TILE_ROWS)
    return E4M3Rows[4, False].at(Int(lists.num_sources), weight_rows, k, ALL_ROWS, address)


def multiply_grouped(problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var n, k, experts = problem.n, problem.k, problem.experts
    # Places have sources: rows of the left side are found by them.
    var lists = Lists.at(memory.lists, are_gathered=True)
    var exponents = e5m2_rows(lists, experts.count, n, k, memory.first).exponents
    var matrices = Matrices.of(experts, n, k, exponents)
    queue.launch[begin_groups](
        grid_of_begin(Int(matrices.num_tiles())),
        Groups(problem),
        lists,
        UInt32(CAPACITY),
        matrices,
    )
    var target = Target(Result(problem.values, problem.dtype, problem.m, n), Gate.NONE)
    _product(problem.left, k, experts, n, lists, memory.first, target, queue)


def multiply_experts(problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    if problem.routing.tokens == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var lists = Lists.at(memory.lists, are_gathered=True)
    var routing = Slots(problem.routing)
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var experts = problem.gate_up.count
    var of_first = e5m2_rows(lists, experts, 2 * inner, width, memory.first).exponents
    var of_second = e5m2_rows(lists, experts, width, inner, memory.second).exponents
    var gate_up = Matrices.of(problem.gate_up, 2 * inner, width, of_first)
    var down = Matrices.of(problem.down, width, inner, of_second)
    queue.launch[begin_slots](
        grid_of_begin(Int(gate_up.num_tiles() + down.num_tiles())),
        routing,
        lists,
        UInt32(CAPACITY),
        gate_up,
        down,
    )
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    var gated = Target(hidden, problem.gate)
    _product(problem.left, width, problem.gate_up, 2 * inner, lists, memory.first, gated, queue)

    var left = problem.hidden_at(memory.hidden)
    # Hidden numbers are where their places are.
    lists.are_gathered = False
    var of_slots = Target(Result(memory.rows, Int(FLOAT32), count, width), Gate.NONE)
    _product(left, inner, problem.down, width, lists, memory.second, of_slots, queue)
    slots.launch_sums(problem, memory.rows, Places.listed_at(lists.places), queue)


def _product(
    left: Left,
    k: Int,
    experts: Experts,
    n: Int,
    lists: Lists,
    address: Int,
    target: Target,
    mut queue: Some[Queue],
) raises:
    """Launches the preparation of rows and their product with [n, k] weights."""
    var a = Activations(left, k)
    if left.format == MXFP8:
        var operands = e4m3_rows(lists, experts.count, n, k, address)
        launch_prepare(a, TilesOfB.none(), operands, gathered(lists, k, LANE_CHUNKS), queue)
        return _multiply(a, operands, experts, n, lists, target, queue)
    var operands = e5m2_rows(lists, experts.count, n, k, address)
    launch_prepare(a, TilesOfB.none(), operands, gathered(lists, k, MANY_CHUNKS), queue)
    _multiply(a, operands, experts, n, lists, target, queue)


def _multiply[
    Operands: RsOperands, //
](
    a: Activations,
    operands: Operands,
    experts: Experts,
    n: Int,
    lists: Lists,
    target: Target,
    mut queue: Some[Queue],
) raises:
    """Launches the product."""
    var gating = Gating.NONE
    if target.gate().is_there():
        gating = Gating.NEIGHBOURS if target.gate().is_interleaved() else Gating.HALVES
    var num_groups = num_groups_of(Int(target.rows.columns), target.gate().is_there())
    comptime for known in range(Gating.COUNT):
        if gating.code == known:
            comptime Product = GroupedProduct[CAPACITY, Gating(known)]
            queue.launch[gemm_rs_fp8[Operands, Product]](
                grid_of_bytes(Operands.SCALES_STAGES, Int(lists.num_tiles), num_groups),
                operands,
                a,
                Product(ExpertWeights(experts, n), target, UInt32(1), lists),
            )
