"""Products of E4M3 rows under float scales, both sides plain: which problems, and the launches.

    floats    become codes and scales in the workspace, see `rows`
    codes     are multiplied as they lie
"""

from std.math import ceildiv

from ...launch.queue import Queue
from ...launch.tensor_map import MappedRows
from ...numbers.formats import block_of
from ...problem import LeftKind, Problem
from ...simt.arguments import Activations, Result, Weights
from ..host.gemm import Scaling, grid_of_mapped
from ..host.workspace import scales_at, workspace_of_mapped
from ..plan import Plan
from ..shapes import DENSE_TOKENS, ROW_BYTES, columns_of
from .kernel import matmul_mapped
from .operands import FloatOperands, MappedOperands
from .rows import encode_left
from .scales import FloatScales


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Encodes floats, and multiplies."""
    var scaling = Scaling.of(problem.left.format, problem.right.format, problem.k)
    comptime for known in [Scaling.ROWS, Scaling.TILES, Scaling.COLUMNS]:
        comptime for tokens in DENSE_TOKENS:
            if scaling == known and plan.tokens == tokens:
                return _launch[known, tokens](problem, plan, queue)
    raise Error(String("plan: no tile has ", plan.tokens, " rows"))


def _launch[
    scaling: Scaling, tokens: Int
](problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Does so with tiles of so many rows."""
    var m, n, k = problem.m, problem.n, problem.k
    var codes, scales = problem.left.values, problem.left.scales
    if problem.left.kind == LeftKind.QUANTIZED:
        codes = queue.workspace(workspace_of_mapped(m, k))
        scales = codes + scales_at(m, k)
        encode_left(problem, codes, scales, queue)
    var cut = plan.within(ceildiv(k, ROW_BYTES))
    var operands = FloatOperands[scaling](
        FloatScales.at(scales, m, block_of(problem.left.format), k),
        FloatScales.at(problem.right.scales, n, block_of(problem.right.format), k),
    )
    multiply[tokens=tokens](
        problem,
        operands,
        MappedRows(codes, m, k, k, tokens),
        MappedRows(problem.right.codes, n, k, k, columns_of(tokens)),
        cut,
        queue,
    )


def multiply[
    Operands: MappedOperands, //, tokens: Int
](
    problem: Problem,
    operands: Operands,
    left: MappedRows,
    right: MappedRows,
    plan: Plan,
    mut queue: Some[Queue],
) raises:
    """Launches the kernel for rows of both sides."""
    queue.launch[matmul_mapped[Operands, tokens]](
        grid_of_mapped(problem.m, problem.n, plan),
        queue.tensor_map(left),
        queue.tensor_map(right),
        operands,
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(plan.ranks),
    )
