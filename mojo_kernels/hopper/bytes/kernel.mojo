"""Products with codes of eight bits: any number of rows.

    pair                                           on tensor cores       scales
    fp8 x fp8                                      E4M3 bytes            in the end
    fp8, fp8_block x fp8, fp8_block, fp8_block_2d  E4M3 bytes            after 128 of K
    mxfp8 x mxfp8, mxfp4                           bfloat16 numbers      before

Weights are preshuffled; plain ones under float scales are read as they lie, see `mapped`, and
`preshuffle` leaves them so. Weights become stages in the workspace, which `dense` multiplies, or, for
few rows, what tensor cores take as they are needed: bytes in the registers of `direct`, numbers in
stages of `dense`.

Sums of 32 products that are scaled one by one would take 2280 cycles for 192 x 128 x 128 products,
where numbers take 1536: so elements of MX formats become numbers, which rounds nothing.
"""

from ...launch.queue import Grid, Queue, Workspace
from ...numbers.formats import Format
from ...problem import ANY, Known, LeftKind, Problem, may_be
from ...simt.matmul import is_aligned
from ...simt.views import FLOAT32
from ..dense.kernel import DENSE_TOKENS, grid as grid_of_tiles, launch as launch_dense
from ..direct.kernel import grid as grid_of_direct, launch as launch_direct
from ..mapped.operands import takes_format
from ..plan import Kernel, PRESHUFFLED, Plan
from .operands import Scaling, StagedOperands
from .operands import workspace_of as workspace_of_operands
from .rows import prepare


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that the kernel takes it."""
    comptime if not may_be(known.layout, PRESHUFFLED):
        return False
    elif known.left_format == ANY or known.right_format == ANY:
        return True
    else:
        return takes_formats(known.left_format, known.right_format)


def takes_formats(left: Int, right: Int) -> Bool:
    """Says whether the kernel takes a pair: E4M3 with float scales on both sides, or MXFP8 left."""
    comptime MXFP8, MXFP4 = Format.MXFP8.code(), Format.MXFP4.code()
    if left == MXFP8:
        return right in (MXFP8, MXFP4)
    return takes_format(left) and takes_format(right)


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: codes on both sides, C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
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
    var scaling = Scaling.of(problem.left.format, problem.right.format, problem.k)
    var bits = 4 if problem.right.format == Format.MXFP4.code() else 8
    comptime for known in [Scaling.ROWS, Scaling.STAGES, Scaling.NUMBERS]:
        comptime for weight_bits in [4, 8]:
            comptime if weight_bits == 8 or known == Scaling.NUMBERS:
                if scaling == known and bits == weight_bits:
                    if plan.kernel == Kernel.BYTES:
                        return _launch[known, weight_bits, True, 128](problem, plan, queue)
                    comptime for tokens in DENSE_TOKENS:
                        if plan.tokens == tokens:
                            return _launch[known, weight_bits, False, tokens](problem, plan, queue)
    raise Error(String("plan: no tile of these formats has ", plan.tokens, " rows"))


def _launch[
    scaling: Scaling, bits: Int, stages_weights: Bool, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with one way of scaling, the stages of weights in the workspace or not."""
    var operands = prepare[scaling, bits, stages_weights](problem, tokens, queue)
    var cut = plan.within(Int(operands.num_steps()))
    var groups = grid(problem.m, problem.n, cut, scaling)
    comptime Operands = StagedOperands[scaling, bits, stages_weights]
    comptime if stages_weights or scaling == Scaling.NUMBERS:
        launch_dense[Operands, tokens](operands, groups, problem, cut.ranks, queue)
    else:
        launch_direct[Operands, tokens](operands, groups, problem, cut.ranks, queue)


def workspace_of(m: Int, n: Int, k: Int, plan: Plan, scaling: Scaling) -> Workspace:
    """Returns the workspace that a product wants."""
    return workspace_of_operands(m, n, k, plan.tokens, scaling, plan.kernel == Kernel.BYTES)


def grid(m: Int, n: Int, plan: Plan, scaling: Scaling) -> Grid:
    """Returns the grid for C of [m, n]."""
    var stages_weights = plan.kernel == Kernel.BYTES
    comptime for known in [Scaling.ROWS, Scaling.STAGES]:
        if scaling == known and not stages_weights:
            return grid_of_direct[StagedOperands[known, 8, False]](m, n, plan.tokens, plan.ranks)
    var has_factors = scaling == Scaling.STAGES
    return grid_of_tiles(m, n, plan.tokens, plan.ranks, has_factors, stages_weights)
