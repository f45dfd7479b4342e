"""Products of bfloat16 activations that are kept with MXFP4 weights: many rows, bfloat16 numbers.

Weights are preshuffled; they become rows of numbers in the workspace, see `rows`, which nothing rounds,
and `mapped` multiplies. Activations are read as they lie.
"""

from ...launch.queue import Queue
from ...problem import Problem
from ..host.gemm import is_kept_bfloat16
from ..mapped.launch import multiply as multiply_rows
from ..plan import Plan, takes_operands
from ..shapes import DENSE_TOKENS, NUMBER_BYTES, columns_of
from .rows import prepare


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the weights and multiplies."""
    if not (is_kept_bfloat16(problem) and takes_operands(problem)):
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
