"""MXFP8 activations on FP8 tensor cores, at twice the rate of bfloat16: any number of rows.

    left     right            on tensor cores
    MXFP8    MXFP8, MXFP4     E4M3 by E4M3, or by E5M2

Tokens become bytes in the workspace, see `rows`, under a scale for each 128 elements of K; a weight row
has one. Weights are preshuffled: they become bytes there too, which `mapped` multiplies, or of few rows
in registers, see `direct`. Four bits are as they were; of eight bits the smallest elements
are rounded once more, see `codes` for by how much.
"""

from ...launch.queue import Queue
from ...problem import Problem
from ..direct.kernel import launch as launch_few
from ..host.gemm import MXFP4, aligned_takes, grid_of_aligned
from ..mapped.launch import multiply as multiply_rows
from ..plan import Kernel, Plan
from ..shapes import DENSE_TOKENS, columns_of
from .rows import prepare


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the operands and multiplies."""
    if not aligned_takes(problem):
        raise Error("plan: aligned bytes are for MXFP8 activations, bfloat16 or float16 results")
    comptime for tokens in DENSE_TOKENS:
        if plan.tokens == tokens:
            if problem.right.format == MXFP4:
                return _launch[4, tokens](problem, plan, queue)
            return _launch[8, tokens](problem, plan, queue)
    raise Error(String("plan: no tile of these formats has ", plan.tokens, " rows"))


def _launch[bits: Int, tokens: Int](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with weights of so many bits."""
    if plan.kernel == Kernel.RS_E4M3:
        var operands = prepare[bits, False](problem, tokens, queue)
        var cut = plan.within(Int(operands.num_steps()))
        return launch_few[tokens=tokens](
            operands, grid_of_aligned(problem.m, problem.n, bits, cut), problem, cut.ranks, queue
        )
    var rows = prepare[bits, True](problem, tokens, queue)
    multiply_rows[tokens=tokens](
        problem,
        rows,
        rows.left.mapped(problem.m, tokens),
        rows.right.mapped(problem.n, columns_of(tokens)),
        plan.within(Int(rows.num_steps())),
        queue,
    )
