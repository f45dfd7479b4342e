"""Products of E4M3 rows under float scales, both sides plain: which problems, and the launches.

    floats    become codes and scales in the workspace, see `rows`
    codes     are multiplied as they lie
"""

from std.math import align_up, ceildiv

from ...launch.queue import Grid, Queue, Workspace
from ...launch.tensor_map import ALIGNMENT, MappedRows
from ...layouts import Plain, layout_position
from ...numbers.formats import block_of
from ...problem import ANY, Known, LeftKind, Problem, may_be
from ...simt.arguments import Activations, Result, Weights
from ...simt.matmul import is_aligned
from ...simt.views import FLOAT32
from ..instructions.wgmma import ROW_BYTES
from ..plan import MULTIPROCESSORS, Plan
from .kernel import THREADS, matmul_mapped
from .rows import encode_left
from .operands import FloatOperands, MappedOperands, Scaling, takes_format
from .scales import FloatScales
from .stages import MappedStages, columns_of

comptime TOKENS: List[Int] = [64, 128]
"""Rows of C of a tile."""
comptime SCALES_ALIGNMENT = 256
"""Where scales begin behind codes."""
comptime PLAIN = layout_position(Plain.NAME)
"""The position in `LAYOUTS` of rows as they lie."""


def takes_formats(left: Int, right: Int) -> Bool:
    """Says whether the kernel takes a pair of formats."""
    return takes_format(left) and takes_format(right)


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a problem leaves it possible that the kernel takes it."""
    comptime if not may_be(known.layout, PLAIN):
        return False
    elif known.left_format == ANY or known.right_format == ANY:
        return True
    else:
        return takes_formats(known.left_format, known.right_format)


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: C of two-byte floats.

    It cuts off what bfloat16 and float16 do not show but float32 may.
    """
    return (
        problem.left.kind != LeftKind.KEPT
        and takes_formats(problem.left.format, problem.right.format)
        and problem.right.layout == PLAIN
        and is_aligned(problem)
        and problem.right.codes % ALIGNMENT == 0
        and problem.k % ALIGNMENT == 0
        and Int32(problem.result.dtype) != FLOAT32
    )


def workspace_of(m: Int, k: Int) -> Workspace:
    """Returns the workspace that floats want: codes, then a scale a block."""
    return Workspace(0, scales_at(m, k) + 4 * m * ceildiv(k, ROW_BYTES))


def scales_at(m: Int, k: Int) -> Int:
    """Returns where the scales lie in it, behind the codes."""
    return align_up(m * k, SCALES_ALIGNMENT)


def grid(m: Int, n: Int, plan: Plan) -> Grid:
    """Returns the grid for C of [m, n]: groups take tiles in turn, clusters that split K one."""
    var shared_bytes = 0
    comptime for tokens in TOKENS:
        if plan.tokens == tokens:
            shared_bytes = MappedStages[tokens].NUM_BYTES
    var tiles = plan.tiles(m, n).num_tiles()
    return Grid(
        tiles * plan.ranks if plan.ranks > 1 else min(tiles, MULTIPROCESSORS),
        threads=THREADS,
        cluster=plan.ranks if plan.ranks > 1 else 0,
        shared_bytes=shared_bytes,
        # Groups that begin as others end lie anywhere on the chip: those that want the same boxes at
        # the same time are no neighbours then, and products of some rounds take a quarter longer.
        starts_early=tiles * plan.ranks <= MULTIPROCESSORS,
    )


def launch(problem: Problem, plan: Plan, mut queue: Some[Queue]) raises:
    """Encodes floats, and multiplies."""
    var scaling = Scaling.of(problem.left.format, problem.right.format, problem.k)
    comptime for known in [Scaling.ROWS, Scaling.TILES, Scaling.COLUMNS]:
        comptime for tokens in TOKENS:
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
        codes = queue.workspace(workspace_of(m, k))
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
        grid(problem.m, problem.n, plan),
        queue.tensor_map(left),
        queue.tensor_map(right),
        operands,
        Activations(problem),
        Weights(problem),
        Result(problem),
        UInt32(plan.ranks),
    )
