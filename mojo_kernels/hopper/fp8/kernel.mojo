"""Many rows of MXFP4 activations: FP8 tensor cores, at twice the rate of bfloat16.

Tokens and weights become E5M2 bytes, see `codes`, in rows, see `rows`, which `mapped` multiplies;
of fewer rows `direct` has weights become bytes in registers, again for each tile of C; its groups
have whole tiles, parts of K, or even shares of all stages, whatever the number of tiles. In the end
both rows' powers of two are applied. What has no base is computed once more, see `spread`: nothing
waits for the host.
"""

from std.math import ceildiv

from ...launch.queue import Grid, Queue
from ...problem import Problem
from ...simt.views import FLOAT32
from ..dense.result import DENSE_TOKENS
from ..direct.kernel import (
    DIRECT_TOKENS,
    even_grid,
    grid as grid_of_direct,
    launch as launch_direct,
)
from ..direct.meeting import may_share
from ..direct.stages import WIDE_TOKENS
from ..instructions.wgmma import ROW_BYTES
from ..mapped.launch import grid as grid_of_tiles, multiply as multiply_mapped
from ..mapped.stages import columns_of
from ..layout import OPERANDS
from ..plan import Kernel, Plan, takes_operands
from .bases import ByteRows, meetings_at
from .rows import MAX_K, prepare


def takes(left_format: Int, k: Int) -> Bool:
    """Says whether the kernel takes activations: of no format, they are kept as they are."""
    return left_format == OPERANDS.code() and k <= MAX_K


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: MXFP4 on both sides, C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        takes_operands(problem)
        and takes(problem.left.format, problem.k)
        and Int32(problem.result.dtype) != FLOAT32
    )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the rows and multiplies; stages that are too many to be shared are not."""
    var cut = shareable(problem.m, problem.n, problem.k, plan)
    if not supports(problem):
        raise Error("plan: FP8 is for MXFP4 activations, and for bfloat16 or float16 results")
    if plan.tokens == WIDE_TOKENS and plan.ranks != 1:
        raise Error(String("plan: got ", plan.ranks, " ranks, expected 1 for tiles of 256 rows"))
    if plan.kernel == Kernel.FP8:
        comptime for tokens in DENSE_TOKENS:
            if plan.tokens == tokens:
                return _launch[True, tokens](problem, cut, queue)
    else:
        comptime for tokens in DIRECT_TOKENS:
            if plan.tokens == tokens:
                return _launch[False, tokens](problem, cut, queue)
    raise Error(String("plan: no tile of FP8 has ", plan.tokens, " rows"))


def shareable(m: Int, n: Int, k: Int, plan: Plan) -> Plan:
    """Returns the plan, or one without even shares if those are of too many stages."""
    var is_even = plan.kernel == Kernel.FP8_EVEN
    if is_even and not may_share(plan.tiles(m, n).num_tiles(), ceildiv(k, ROW_BYTES)):
        return Plan.fp8_few(plan.tokens, 1)
    return plan


def _launch[
    stages_weights: Bool, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so, with the stages of weights in the workspace or without."""
    var m, n, k = problem.m, problem.n, problem.k
    var rows = prepare[stages_weights, tokens](problem, plan, queue)
    var cut = plan.within(Int(rows.num_steps()))
    var groups = grid(m, n, k, cut)
    comptime if stages_weights:
        multiply_mapped[tokens=tokens](
            problem,
            rows,
            rows.left.mapped(m, tokens),
            rows.right.mapped(n, columns_of(tokens)),
            Plan.mapped(tokens, 1),
            queue,
        )
    else:
        if plan.kernel == Kernel.FP8_EVEN:
            launch_direct[ByteRows[stages_weights], tokens, even=True](
                rows, groups, problem, 1, queue, meetings_at[tokens](m, n, k, rows)
            )
        else:
            launch_direct[ByteRows[stages_weights], tokens](rows, groups, problem, cut.ranks, queue)


def grid(m: Int, n: Int, k: Int, plan: Plan) -> Grid:
    """Returns the grid for C of [m, n]."""
    if plan.kernel == Kernel.FP8:
        return grid_of_tiles(m, n, Plan.mapped(plan.tokens, 1))
    if shareable(m, n, k, plan).kernel == Kernel.FP8_EVEN:
        return even_grid(m, n, plan.tokens, ceildiv(k, ROW_BYTES))
    return grid_of_direct(m, n, plan.tokens, plan.ranks)
