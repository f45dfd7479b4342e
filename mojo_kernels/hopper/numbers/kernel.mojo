"""Products of MX formats as bfloat16 numbers, which rounds nothing: any number of rows.

    left                       right
    MXFP8                      MXFP8, MXFP4
    bfloat16 that are kept     MXFP4

Weights are preshuffled. They become rows in the workspace, which `mapped` multiplies; of few rows,
stages in shared memory, as `dense` needs them. Activations become rows or stages too, unless they
are numbers already.

On FP8 tensor cores, sums of 32 products would have to be scaled one by one, which takes 2280 cycles for
192 x 128 x 128 products, where numbers take 1536.
"""

from ...launch.queue import Grid, Queue, Workspace
from ...numbers.formats import Format, NO_FORMAT
from ...problem import ANY, Known, LeftKind, Problem, may_be
from ...simt.matmul import is_aligned
from ...simt.views import BFLOAT16, FLOAT32
from ..dense.kernel import DENSE_TOKENS, grid as grid_of_made, launch as launch_made
from ..instructions.wgmma import NUMBER_BYTES
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
        return takes_formats(known.left_format, known.right_format) or (
            known.left_format == NO_FORMAT and known.right_format == MXFP4
        )


def takes_formats(left: Int, right: Int) -> Bool:
    """Says whether no other fast kernel takes a pair: MXFP8 left."""
    return left == MXFP8 and right in (MXFP8, MXFP4)


def supports(problem: Problem) -> Bool:
    """Says whether the kernels take a problem that no other fast one does, C of two-byte floats."""
    return (
        problem.left.kind != LeftKind.KEPT
        and takes_formats(problem.left.format, problem.right.format)
        and problem.right.layout == PRESHUFFLED
        and is_aligned(problem)
        and Int32(problem.result.dtype) != FLOAT32
    )


def are_numbers(problem: Problem) -> Bool:
    """Says whether activations are bfloat16 numbers, which are kept; rows may not overlap."""
    var left = problem.left
    return (
        left.kind == LeftKind.KEPT
        and Int32(left.dtype) == BFLOAT16
        and left.row_stride >= problem.k
    )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the operands and multiplies."""
    if not (supports(problem) or are_numbers(problem)):
        raise Error("plan: numbers are for MXFP8 activations, or bfloat16 ones that are kept")
    if problem.right.format == MXFP4:
        _launch[4](problem, plan, queue)
    else:
        _launch[8](problem, plan, queue)


def _launch[bits: Int](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with weights of so many bits."""
    comptime for tokens in DENSE_TOKENS:
        if plan.tokens == tokens:
            if plan.kernel == Kernel.NUMBERS:
                return _launch_rows[bits, tokens](problem, plan, queue)
            var operands = prepare[bits, False](problem, tokens, queue)
            var cut = plan.within(Int(operands.num_steps()))
            return launch_made[tokens=tokens](
                operands, grid(problem.m, problem.n, cut), problem, cut.ranks, queue
            )
    raise Error(String("plan: no tile of these formats has ", plan.tokens, " rows"))


def _launch_rows[
    bits: Int, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with rows in the workspace, those of activations if they are not kept."""
    var operands = prepare[bits, True](problem, tokens, queue)
    var left = operands.left.mapped(problem.m, tokens)
    if problem.left.kind == LeftKind.KEPT:
        left.address = problem.left.values
        left.row_bytes = NUMBER_BYTES * problem.k
        left.stride_bytes = NUMBER_BYTES * problem.left.row_stride
    multiply_rows[tokens=tokens](
        problem,
        operands,
        left,
        operands.right.mapped(problem.n, columns_of(tokens)),
        plan.within(Int(operands.num_steps())),
        queue,
    )


def workspace_of(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace that a product wants."""
    return workspace_of_rows(m, n, k, plan.tokens, plan.kernel == Kernel.NUMBERS)


def grid(m: Int, n: Int, plan: Plan) -> Grid:
    """Returns the grid for C of [m, n]."""
    if plan.kernel == Kernel.NUMBERS:
        return grid_of_rows(m, n, Plan.mapped(plan.tokens, plan.ranks))
    return grid_of_made(m, n, plan.tokens, plan.ranks)
