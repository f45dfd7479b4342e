"""Launches of products of experts on FP8 tensor cores, and which of them they take.

    grouped    begin_groups, prepare, multiply_bytes
    experts    begin_slots, prepare, multiply_bytes with a gate, prepare, multiply_bytes, add_slots

Activations are rounded to MXFP4 or MXFP8, weights are MXFP4. Sums lose what bfloat16 and float16 do not
show but float32 may: results of float32 are for other kernels.
"""

from std.math import align_up, ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue, Workspace
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...problem import Left, LeftKind
from ...simt.arguments import Activations, Result
from ...simt.matmul import bytes_of, is_left_aligned
from ...simt.routing import ExpertWeights, Groups, Slots
from ...simt.views import FLOAT32
from ..aligned.operands import AlignedRows
from ..dense.stages import ALL_ROWS
from ..direct.operands import DirectOperands
from ..experts import slots
from ..experts.groups import ALIGNMENT, Lists
from ..experts.result import Target
from ..experts.slots import Places
from ..fp8.bases import ByteRows
from ..fp8.rows import MAX_K
from ..layout import TILE_ROWS
from . import begin
from .begin import Matrices, begin_groups, begin_slots
from .columns import Gating
from .kernel import CAPACITY, grid, multiply_bytes
from .rows import prepare

comptime MXFP4 = Format.MXFP4.code()
comptime MXFP8 = Format.MXFP8.code()


def takes(left: Left, k: Int, dtype: Int) -> Bool:
    """Says whether the kernels are for activations and a result, of what fast kernels take."""
    return (
        left.kind == LeftKind.QUANTIZED
        and left.format in (MXFP4, MXFP8)
        and is_left_aligned(left)
        and k <= MAX_K
        and Int32(dtype) != FLOAT32
    )


def takes(problem: GroupedProblem) -> Bool:
    """Says whether the kernels are for a grouped product."""
    return takes(problem.left, problem.k, problem.dtype)


def takes(problem: ExpertsProblem) -> Bool:
    """Says whether the kernels are for a layer of experts."""
    var k = max(problem.width, problem.inner)
    return problem.gate.has_quotients() and takes(problem.left, k, problem.dtype)


@fieldwise_init
struct Memory(TrivialRegisterPassable):
    """Where in the workspace lie what launches hand over, in bytes."""

    var lists: Lists
    var first: Int
    """Operands of the first product."""
    var second: Int
    """Operands of the second one."""
    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    @staticmethod
    def of(problem: GroupedProblem, address: Int) -> Self:
        """Lays out a grouped product."""
        var count = problem.experts.count
        var lists = Lists.at(address, problem.m, count, CAPACITY, 0, True)
        # Places have sources: rows of the left side are found by them.
        lists.are_gathered = True
        var first = lists.end()
        var end = end_of(problem.left, lists, count, problem.n, problem.k, first)
        return Self(lists, first, end, end, end, end - address + ALIGNMENT)

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        var slots, count = problem.routing.count(), problem.gate_up.count
        var width, inner = problem.width, problem.inner
        var lists = Lists.at(address, slots, count, CAPACITY, slots, True)
        var places = Int(lists.num_sources)
        var first = lists.end()
        var second = end_of(problem.left, lists, count, 2 * inner, width, first)
        var hidden = end_of(problem.left, lists, count, width, inner, second)
        var hidden_bytes = places * inner * bytes_of(problem.left.dtype)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var end = rows + places * width * bytes_of(Int(FLOAT32))
        return Self(lists, first, second, hidden, rows, end - address + ALIGNMENT)


def byte_rows(lists: Lists, experts: Int, n: Int, k: Int, address: Int) -> ByteRows[False]:
    """Returns the operands of a product with [n, k] weights of MXFP4 activations."""
    var weight_rows = experts * align_up(n, TILE_ROWS)
    return ByteRows[False].at(Int(lists.num_sources), weight_rows, k, ALL_ROWS, address)


def aligned_rows(lists: Lists, experts: Int, n: Int, k: Int, address: Int) -> AlignedRows[4, False]:
    """Returns the operands of a product with [n, k] weights of MXFP8 activations."""
    var weight_rows = experts * align_up(n, TILE_ROWS)
    return AlignedRows[4, False].at(Int(lists.num_sources), weight_rows, k, ALL_ROWS, address)


def end_of(left: Left, lists: Lists, experts: Int, n: Int, k: Int, address: Int) -> Int:
    """Returns the first aligned address behind the operands of a product."""
    var places = Int(lists.num_sources)
    var end = byte_rows(lists, experts, n, k, address).bases.end_of(places, k)
    if left.format == MXFP8:
        end = aligned_rows(lists, experts, n, k, address).end_of(places)
    return align_up(end, ALIGNMENT)


def workspace_of(problem: GroupedProblem) -> Workspace:
    """Returns the workspace of a grouped product."""
    return Workspace(0, Memory.of(problem, 0).num_bytes)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer."""
    return Workspace(0, Memory.of(problem, 0).num_bytes)


def multiply_grouped(problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var n, k = problem.n, problem.k
    var lists, experts = memory.lists, problem.experts
    var bases = byte_rows(lists, experts.count, n, k, memory.first).bases
    var matrices = Matrices.of(experts, n, k, bases)
    queue.launch[begin_groups](
        begin.grid(Int(matrices.num_tiles())),
        Groups(problem),
        lists,
        UInt32(CAPACITY),
        matrices,
    )
    var target = Target(Result(problem.values, problem.dtype, problem.m, n), Gate.NONE)
    _product(problem.left, k, experts, n, lists, memory.first, target, queue)


def multiply_experts(problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    if problem.routing.tokens == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var lists, routing = memory.lists, Slots(problem.routing)
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var experts = problem.gate_up.count
    var of_first = byte_rows(lists, experts, 2 * inner, width, memory.first).bases
    var of_second = byte_rows(lists, experts, width, inner, memory.second).bases
    var gate_up = Matrices.of(problem.gate_up, 2 * inner, width, of_first)
    var down = Matrices.of(problem.down, width, inner, of_second)
    queue.launch[begin_slots](
        begin.grid(Int(gate_up.num_tiles() + down.num_tiles())),
        routing,
        lists,
        UInt32(CAPACITY),
        gate_up,
        down,
    )
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    var gated = Target(hidden, problem.gate)
    _product(problem.left, width, problem.gate_up, 2 * inner, lists, memory.first, gated, queue)

    var left = problem.hidden_at(memory.hidden)
    # Hidden numbers are where their places are.
    lists.are_gathered = False
    var of_slots = Target(Result(memory.rows, Int(FLOAT32), count, width), Gate.NONE)
    _product(left, inner, problem.down, width, lists, memory.second, of_slots, queue)
    slots.launch_sums(problem, memory.rows, Places.listed_at(lists.places), queue)


def _product(
    left: Left,
    k: Int,
    experts: Experts,
    n: Int,
    lists: Lists,
    address: Int,
    target: Target,
    mut queue: Some[Queue],
) raises:
    """Launches the preparation of rows and their product with [n, k] weights."""
    var a = Activations(left, k)
    if left.format == MXFP8:
        var operands = aligned_rows(lists, experts.count, n, k, address)
        prepare(a, operands, lists, queue)
        return _multiply(a, operands, experts, n, lists, target, queue)
    var operands = byte_rows(lists, experts.count, n, k, address)
    prepare(a, operands, lists, queue)
    _multiply(a, operands, experts, n, lists, target, queue)


def _multiply[
    Operands: DirectOperands, //
](
    a: Activations,
    operands: Operands,
    experts: Experts,
    n: Int,
    lists: Lists,
    target: Target,
    mut queue: Some[Queue],
) raises:
    """Launches the product."""
    var gating, half = Gating.NONE, 0
    if target.gate().is_there():
        gating = Gating.NEIGHBOURS if target.gate().is_interleaved() else Gating.HALVES
    if gating == Gating.HALVES:
        half = n // 2
    var num_groups = ceildiv(Int(target.rows.columns), Int(target.columns_step()))
    comptime for known in range(Gating.COUNT):
        if gating.code == known:
            queue.launch[multiply_bytes[Operands, known]](
                grid[Operands](Int(lists.num_tiles), num_groups),
                operands,
                a,
                lists,
                ExpertWeights(experts, n),
                target,
                UInt32(num_groups),
                UInt32(half),
            )
