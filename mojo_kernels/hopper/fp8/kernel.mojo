"""Many rows of MXFP4 activations: FP8 tensor cores, at twice the rate of bfloat16.

Tokens and weights become E5M2 bytes, see `codes`, in rows, see `rows`, which `mapped` multiplies;
of fewer rows `direct` has weights become bytes in registers, again for each tile of C; its groups
have whole tiles, parts of K, or even shares of all stages, whatever the number of tiles. In the end
both rows' powers of two are applied. What has no base is computed once more, see `spread`: nothing
waits for the host.
"""


from ...launch.queue import Queue
from ...problem import Problem
from ..direct.kernel import launch as launch_direct
from ..host.gemm import fp8_takes, grid_of_fp8, shareable
from ..mapped.launch import multiply as multiply_mapped
from ..plan import Kernel, Plan
from ..shapes import DENSE_TOKENS, DIRECT_TOKENS, columns_of
from .bases import ByteRows, meetings_at
from .rows import prepare


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Prepares the rows and multiplies; stages that are too many to be shared are not."""
    var cut = shareable(problem.m, problem.n, problem.k, plan)
    if not fp8_takes(problem):
        raise Error("plan: FP8 is for MXFP4 activations, and for bfloat16 or float16 results")
    if plan.kernel == Kernel.SS_E5M2:
        comptime for tokens in DENSE_TOKENS:
            if plan.tokens == tokens:
                return _launch[True, tokens](problem, cut, queue)
    else:
        comptime for tokens in DIRECT_TOKENS:
            if plan.tokens == tokens:
                return _launch[False, tokens](problem, cut, queue)
    raise Error(String("plan: no tile of FP8 has ", plan.tokens, " rows"))


def _launch[
    stages_weights: Bool, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so, with the stages of weights in the workspace or without."""
    var m, n, k = problem.m, problem.n, problem.k
    var rows = prepare[stages_weights, tokens](problem, plan, queue)
    var cut = plan.within(Int(rows.num_steps()))
    var groups = grid_of_fp8(m, n, k, cut)
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
        if plan.is_stream_k():
            launch_direct[ByteRows[stages_weights], tokens, even=True](
                rows, groups, problem, 1, queue, meetings_at[tokens](m, n, k, rows)
            )
        else:
            launch_direct[ByteRows[stages_weights], tokens](rows, groups, problem, cut.ranks, queue)
