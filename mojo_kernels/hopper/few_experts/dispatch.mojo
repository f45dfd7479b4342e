"""Launches for few rows of each expert.

    grouped    multiply_few_rows
    experts    multiply_few_rows with a gate, multiply_few_rows, add_slots
"""

from std.math import ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue
from ...numbers.gates import Gate
from ...problem import Left
from ...simt.arguments import Activations, Result
from ...simt.host import FLOAT32, is_left_aligned
from ...simt.routing import ExpertWeights
from ..experts import slots
from ..experts.result import Target
from ..experts.slots import Places
from ..host.moe import FewMemory, grid_of_few, shape_of, workspace_of
from ..shapes import ItemShape, MAX_TOKEN_TILES
from .deal import Deal
from .kernel import multiply_few_rows


def multiply_grouped(problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    var result = Result(problem.values, problem.dtype, problem.m, problem.n)
    _product[False](
        problem.left,
        problem.k,
        Deal.of(problem),
        problem.experts,
        problem.n,
        Target(result, Gate.NONE),
        False,
        queue,
    )


def multiply_experts(problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    if problem.routing.tokens == 0:
        return
    var memory = FewMemory.of(problem, queue.workspace(workspace_of(problem)))
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var deal = Deal.of(problem)
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    _product[True](
        problem.left,
        width,
        deal,
        problem.gate_up,
        2 * inner,
        Target(hidden, problem.gate),
        False,
        queue,
    )

    var left = problem.hidden_at(memory.hidden)
    var of_slots = Result(memory.rows, Int(FLOAT32), count, width)
    # Before the launch that is awaited, another one has waited for what the deal is made of.
    _product[False](
        left,
        inner,
        deal.of_slots(),
        problem.down,
        width,
        Target(of_slots, Gate.NONE),
        True,
        queue,
    )
    slots.launch_sums(problem, memory.rows, Places.as_slots(problem.down.count), queue)


def _product[
    is_gated: Bool
](
    left: Left,
    k: Int,
    deal: Deal,
    experts: Experts,
    n: Int,
    target: Target,
    is_early: Bool,
    mut queue: Some[Queue],
) raises:
    """Launches the product with [n, k] weights."""
    var half = 0
    if is_gated and not target.gate().is_interleaved():
        half = n // 2
    var rows, count = Int(deal.rows), experts.count
    var planned = shape_of(rows, count, is_gated)
    comptime for token_tiles in range(1, MAX_TOKEN_TILES + 1):
        comptime shape = ItemShape.of(token_tiles, is_gated)
        if planned.token_tiles == token_tiles:
            var num_parts = ceildiv(Int(target.rows.columns), shape.columns())
            var slots = 0 if deal.is_sorted else rows
            var columns = Int(target.rows.columns)
            queue.launch[multiply_few_rows[shape]](
                grid_of_few(planned, rows, count, slots, columns, k),
                Activations(left, k),
                UInt32(1 if is_left_aligned(left) else 0),
                deal,
                ExpertWeights(experts, n),
                target,
                UInt32(half),
                UInt32(num_parts),
                UInt32(1 if is_early else 0),
            )
