"""MXFP8 activations on FP8 tensor cores, at twice the rate of bfloat16: any number of rows.

    left     right            on tensor cores
    MXFP8    MXFP8, MXFP4     E4M3 by E4M3, or by E5M2

Tokens become bytes in the workspace, see `rows`, under a scale for each 128 elements of K; a weight row
has one. Weights are preshuffled: they become bytes there too, which `mapped` multiplies, or of few rows
in registers, see `direct`. Four bits are as they were; of eight bits the smallest elements
are rounded once more, see `codes` for by how much.
"""

from ...launch.queue import Grid, Queue, Workspace
from ...numbers.formats import Format
from ...problem import ANY, Known, LeftKind, Problem, may_be
from ...simt.matmul import is_aligned
from ...simt.views import FLOAT32
from ..dense.result import DENSE_TOKENS
from ..direct.kernel import grid as grid_of_few, launch as launch_few
from ..mapped.launch import grid as grid_of_rows, multiply as multiply_rows
from ..mapped.stages import columns_of
from ..plan import Kernel, PRESHUFFLED, Plan
from .operands import workspace_of as workspace_of_rows
from .rows import prepare

comptime MXFP8 = Format.MXFP8.code()
comptime MXFP4 = Format.MXFP4.code()


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that the kernels take it."""
    comptime if not may_be(known.layout, PRESHUFFLED):
        return False
    elif known.left_format == ANY or known.right_format == ANY:
        return True
    else:
        return takes_formats(known.left_format, known.right_format)


def takes_formats(left: Int, right: Int) -> Bool:
    """Says whether no other fast kernel takes a pair: MXFP8 left."""
    return left == MXFP8 and right in (MXFP8, MXFP4)


def supports(problem: Problem) -> Bool:
    """Says whether the kernels take a problem that no other fast one does, C of two-byte floats.

    They cut off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        problem.left.kind != LeftKind.KEPT
        and takes_formats(problem.left.format, problem.right.format)
        and problem.right.layout == PRESHUFFLED
        and is_aligned(problem)
        and Int32(problem.result.dtype) != FLOAT32
    )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the operands and multiplies."""
    if not supports(problem):
        raise Error("plan: aligned bytes are for MXFP8 activations, bfloat16 or float16 results")
    comptime for tokens in DENSE_TOKENS:
        if plan.tokens == tokens:
            if problem.right.format == MXFP4:
                return _launch[4, tokens](problem, plan, queue)
            return _launch[8, tokens](problem, plan, queue)
    raise Error(String("plan: no tile of these formats has ", plan.tokens, " rows"))


def _launch[bits: Int, tokens: Int](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with weights of so many bits."""
    if plan.kernel == Kernel.ALIGNED_FEW:
        var operands = prepare[bits, False](problem, tokens, queue)
        var cut = plan.within(Int(operands.num_steps()))
        return launch_few[tokens=tokens](
            operands, grid(problem.m, problem.n, bits, cut), problem, cut.ranks, queue
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


def workspace_of(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace that a product wants."""
    return workspace_of_rows(m, n, k, plan.tokens, plan.kernel == Kernel.ALIGNED)


def grid(m: Int, n: Int, weight_bits: Int, plan: Plan) -> Grid:
    """Returns the grid for C of [m, n] and weights of so many bits."""
    if plan.kernel == Kernel.ALIGNED:
        return grid_of_rows(m, n, Plan.mapped(plan.tokens, plan.ranks))
    if weight_bits == 4:
        return grid_of_few[4, True](m, n, plan.tokens, plan.ranks)
    return grid_of_few[8, True](m, n, plan.tokens, plan.ranks)
