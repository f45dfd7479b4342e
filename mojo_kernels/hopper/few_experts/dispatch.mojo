"""Launches for few rows of each expert, and how few they are.

    grouped    multiply_few_rows
    experts    multiply_few_rows with a gate, multiply_few_rows, add_slots

The host knows rows and experts, not who has how many: tiles have room for what most experts get if
ids are drawn at random, and an expert with more rows has several tiles.
"""

from std.math import align_up, ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue, Workspace
from ...numbers.gates import Gate
from ...problem import Left, LeftKind
from ...simt.arguments import Activations, Result
from ...simt.matmul import bytes_of, is_left_aligned
from ...simt.routing import ExpertWeights
from ...simt.views import FLOAT32
from ..experts import slots
from ..experts.groups import most_tiles
from ..experts.result import Target
from ..experts.slots import Places
from . import kernel
from .deal import Deal
from .kernel import multiply_few_rows
from .shape import MAX_SHARED_BYTES, MAX_TOKEN_TILES, Shape

comptime MAX_ROWS = 4608
"""Rows whose experts every group finds for itself. Guess."""
comptime SHARES = [4, 12, 18, 28]
"""Rows of an expert, on average, up to which tiles have eight, 16, 24 and 32. The last one is measured: with
28 rows tiles of 32 are 6 % ahead of `many`, with 32 they are 11 % behind, because many experts want two."""
comptime MAX_SHARE = 12
"""Rows of an expert, on average, up to which the kernel takes activations that are not kept: more
are for FP8 tensor cores. Guess."""


def shape_of(rows: Int, experts: Int, is_gated: Bool) -> Shape:
    """Returns the shape of groups."""
    var token_tiles = 1
    comptime for i in range(MAX_TOKEN_TILES - 1):
        comptime share = SHARES[i]
        if rows > share * experts:
            token_tiles = i + 2
    return Shape.of(token_tiles, is_gated)


def takes(left: Left, rows: Int, experts: Int, slots: Int, k: Int, is_gated: Bool) -> Bool:
    """Says whether the kernel is for so many rows, of what fast kernels take."""
    var bytes = shape_of(rows, experts, is_gated).shared_bytes(experts, slots, k)
    comptime KEPT_SHARE = SHARES[MAX_TOKEN_TILES - 1]
    var share = KEPT_SHARE if left.kind == LeftKind.KEPT else MAX_SHARE
    return rows <= min(MAX_ROWS, share * experts) and bytes <= MAX_SHARED_BYTES


def takes(problem: GroupedProblem) -> Bool:
    """Says whether the kernel is for a grouped product, of those that fast kernels take."""
    return takes(problem.left, problem.m, problem.experts.count, 0, problem.k, False)


def takes(problem: ExpertsProblem) -> Bool:
    """Says whether the kernel is for a layer of experts, of those that fast kernels take."""
    var count, experts = problem.routing.count(), problem.gate_up.count
    return takes(problem.left, count, experts, count, problem.width, True) and takes(
        problem.left, count, experts, count, problem.inner, False
    )


@fieldwise_init
struct Memory(TrivialRegisterPassable):
    """Where in the workspace lie what launches of a layer hand over, in bytes."""

    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        comptime ALIGNMENT = 1024
        var count = problem.routing.count()
        var hidden = align_up(address, ALIGNMENT)
        var hidden_bytes = count * problem.inner * bytes_of(problem.left.dtype)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var end = rows + count * problem.width * bytes_of(Int(FLOAT32))
        return Self(hidden, rows, end - hidden + ALIGNMENT)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer."""
    return Workspace(0, Memory.of(problem, 0).num_bytes)


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
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
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
        comptime shape = Shape.of(token_tiles, is_gated)
        if planned.token_tiles == token_tiles:
            var num_parts = ceildiv(Int(target.rows.columns), shape.columns())
            var slots = 0 if deal.is_sorted else rows
            var bytes = shape.shared_bytes(count, slots, k)
            var most_items = most_tiles(rows, count, shape.rows()) * num_parts
            queue.launch[multiply_few_rows[shape]](
                kernel.grid(shape, bytes, most_items),
                Activations(left, k),
                UInt32(1 if is_left_aligned(left) else 0),
                deal,
                ExpertWeights(experts, n),
                target,
                UInt32(half),
                UInt32(num_parts),
                UInt32(1 if is_early else 0),
            )
