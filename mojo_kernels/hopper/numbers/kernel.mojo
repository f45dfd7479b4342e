"""Products of bfloat16 activations that are kept with MXFP4 weights: many rows, bfloat16 numbers.

Weights are preshuffled; they become rows of numbers in the workspace, see `rows`, which nothing rounds,
and `mapped` multiplies. Activations are read as they lie.
"""

from ...launch.queue import Grid, Queue
from ...problem import LeftKind, Problem
from ...simt.views import BFLOAT16
from ..dense.result import DENSE_TOKENS
from ..instructions.wgmma import NUMBER_BYTES
from ..mapped.launch import grid as grid_of_rows, multiply as multiply_rows
from ..mapped.stages import columns_of
from ..plan import Plan, takes_operands
from .rows import prepare


def supports(problem: Problem) -> Bool:
    """Says whether activations are bfloat16 numbers, which are kept; rows may not overlap."""
    var left = problem.left
    return (
        left.kind == LeftKind.KEPT
        and Int32(left.dtype) == BFLOAT16
        and left.row_stride >= problem.k
    )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the weights and multiplies."""
    if not (supports(problem) and takes_operands(problem)):
        raise Error("plan: numbers are for bfloat16 activations that are kept")
    comptime for tokens in DENSE_TOKENS:
        if plan.tokens == tokens:
            var operands = prepare(problem, queue)
            var left = operands.right.mapped(problem.m, tokens)
            left.address = problem.left.values
            left.row_bytes = NUMBER_BYTES * problem.k
            left.stride_bytes = NUMBER_BYTES * problem.left.row_stride
            return multiply_rows[tokens=tokens](
                problem,
                operands,
                left,
                operands.right.mapped(problem.n, columns_of(tokens)),
                plan.within(Int(operands.num_steps())),
                queue,
            )
    raise Error(String("plan: no tile of numbers has ", plan.tokens, " rows"))


def grid(m: Int, n: Int, plan: Plan) -> Grid:
    """Returns the grid for C of [m, n]."""
    return grid_of_rows(m, n, Plan.mapped(plan.tokens, plan.ranks))
