"""Launches of products of experts on Hopper, and which of them its kernels take.

    grouped    lay_out_groups, stage_rows, multiply_tiles
    experts    route_slots, stage_rows, multiply_tiles with a gate, stage_rows, multiply_tiles,
               add_slots

Of tiles with many rows, `multiply_many_rows` takes the place of `multiply_tiles`.

Few rows of each expert go to `few_experts`, which has no lists and no stages; activations of MXFP4 or
MXFP8, for results of two bytes, to `byte_experts`. Weights are MXFP4, preshuffled for CUDA; activations
are floats, kept or rounded to an MX format.
All else is for the portable kernels. The host knows rows and experts, not who has how many: tiles
are as high as experts with twice their share of the rows want, so that weights are decoded once.
"""

from std.math import align_up, ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue, Workspace, device_pointer
from ...numbers.formats import has_float_scales
from ...numbers.gates import Gate
from ...problem import Known, Left, LeftKind, may_be
from ...simt import experts as portable
from ...simt.arguments import Activations, Result
from ...simt.matmul import bytes_of, is_left_aligned
from ...simt.routing import ExpertWeights, Groups, Slots
from ...simt.views import FLOAT32, VECTOR_BYTES
from ..layout import OPERANDS
from ..plan import PRESHUFFLED
from ..staged.activations import num_steps_of
from ..byte_experts import dispatch as of_bytes
from ..few_experts import dispatch as few
from ..instructions.wgmma import ROW_BYTES
from . import groups, kernel, rows, slots
from .groups import ALIGNMENT, Lists, MAX_EXPERTS, MAX_ROWS, most_places, most_tiles
from .kernel import GatheredRows, MANY_ROWS, multiply_tiles
from .many import grid as grid_of_many, multiply_many_rows
from .result import Target
from .slots import Places

comptime MOST_TILE_ROWS = 256
"""The most rows of a tile."""
comptime TILE_ROWS = [16, 32, 64, 128, MOST_TILE_ROWS]
"""Rows of a tile."""
comptime USUAL_SHARE = 2
"""What an expert has at most, mostly, of its share of the rows. Guess."""
comptime MAX_GRID = 65535
"""Tiles of a launch, and columns of groups."""


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a product leaves it possible that the kernels take it."""
    comptime is_right = may_be(known.right_format, OPERANDS.code())
    return is_right and may_be(known.layout, PRESHUFFLED)


def tile_rows_of(rows: Int, experts: Int) -> Int:
    """Returns the rows of a tile."""
    var usual = USUAL_SHARE * ceildiv(rows, experts)
    comptime for i in range(len(TILE_ROWS)):
        comptime rows_of_tile = TILE_ROWS[i]
        if usual <= rows_of_tile:
            return rows_of_tile
    return MOST_TILE_ROWS


def takes_experts(left: Left, experts: Experts, rows: Int) -> Bool:
    """Says whether the kernels take a product of so many rows."""
    var right = experts.right
    var addresses = right.codes | right.scales | experts.codes_step | experts.scales_step
    var is_left = left.kind == LeftKind.KEPT or (
        left.kind == LeftKind.QUANTIZED and not has_float_scales(left.format)
    )
    return (
        is_left
        and right.format == OPERANDS.code()
        and right.layout == PRESHUFFLED
        and addresses % VECTOR_BYTES == 0
        and 0 < experts.count <= MAX_EXPERTS
        and rows <= MAX_ROWS
        and most_tiles(rows, experts.count, tile_rows_of(rows, experts.count)) <= MAX_GRID
    )


def supports(problem: GroupedProblem) -> Bool:
    """Says whether the kernels take a grouped product."""
    return (
        takes_experts(problem.left, problem.experts, problem.m)
        and problem.values % VECTOR_BYTES == 0
    )


def supports(problem: ExpertsProblem) -> Bool:
    """Says whether the kernels take a layer of experts."""
    var count = problem.routing.count()
    return (
        takes_experts(problem.left, problem.gate_up, count)
        and takes_experts(problem.left, problem.down, count)
        and problem.values % VECTOR_BYTES == 0
        and count > 0
    )


@fieldwise_init
struct Memory(TrivialRegisterPassable):
    """Where in the workspace lie what launches hand over, in bytes."""

    var lists: Lists
    var stages: Int
    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32."""
    var num_places: Int
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    @staticmethod
    def of(
        address: Int, rows: Int, experts: Int, k: Int, slots: Int, hidden_bytes: Int, width: Int
    ) -> Self:
        """Lays out rows whose products have K up to `k`; no slots for a grouped product."""
        var tile_rows = tile_rows_of(rows, experts)
        var places = most_places(rows, experts, tile_rows)
        var lists = Lists.at(address, rows, experts, tile_rows, slots, False)
        var stages = lists.end()
        var stages_bytes = Int(num_steps_of(UInt32(k))) * places * ROW_BYTES
        var hidden = align_up(stages + stages_bytes, ALIGNMENT)
        var of_rows = align_up(hidden + places * hidden_bytes, ALIGNMENT)
        var end = of_rows + places * width * bytes_of(Int(FLOAT32))
        return Self(lists, stages, hidden, of_rows, places, end - address + ALIGNMENT)

    @staticmethod
    def of(problem: GroupedProblem, address: Int) -> Self:
        """Lays out a grouped product."""
        return Self.of(address, problem.m, problem.experts.count, problem.k, 0, 0, 0)

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        return Self.of(
            address,
            problem.routing.count(),
            problem.gate_up.count,
            max(problem.width, problem.inner),
            problem.routing.count(),
            problem.inner * bytes_of(problem.left.dtype),
            problem.width,
        )

    def staged(self, product: Int) -> GatheredRows:
        """Returns the left side of a layer's first or second product."""
        var marks = Int(self.lists.marks) + product * self.num_places
        return GatheredRows(
            device_pointer[DType.uint8](self.stages),
            device_pointer[DType.uint8](marks),
            UInt32(self.num_places),
        )


def workspace_of(problem: GroupedProblem) -> Workspace:
    """Returns the workspace of a grouped product."""
    if not supports(problem) or few.takes(problem):
        return Workspace(0, 0)
    if of_bytes.takes(problem):
        return of_bytes.workspace_of(problem)
    return Workspace(0, Memory.of(problem, 0).num_bytes)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    if not supports(problem):
        return portable.workspace_of(problem)
    if few.takes(problem):
        return few.workspace_of(problem)
    if of_bytes.takes(problem):
        return of_bytes.workspace_of(problem)
    return Workspace(0, Memory.of(problem, 0).num_bytes)


def multiply_grouped[known: Known](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    comptime if may_take_operands[known]():
        if supports(problem):
            if few.takes(problem):
                return few.multiply_grouped(problem, queue)
            if of_bytes.takes(problem):
                return of_bytes.multiply_grouped(problem, queue)
            return _multiply_grouped(problem, queue)
    portable.multiply_grouped[known](problem, queue)


def _multiply_grouped(problem: GroupedProblem, mut queue: Some[Queue]) raises:
    if problem.m == 0 or problem.n == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var tile_rows = tile_rows_of(problem.m, problem.experts.count)
    queue.launch[groups.lay_out_groups](
        groups.grid(), Groups(problem), memory.lists, UInt32(tile_rows)
    )
    var result = Result(problem.values, problem.dtype, problem.m, problem.n)
    var target = Target(result, Gate.NONE)
    _product[False](
        problem.left, problem.k, problem.experts, problem.n, memory, 0, target, tile_rows, queue
    )


def multiply_experts[
    known_gate_up: Known, known_down: Known
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    comptime if may_take_operands[known_gate_up]() and may_take_operands[known_down]():
        if supports(problem):
            if few.takes(problem):
                return few.multiply_experts(problem, queue)
            if of_bytes.takes(problem):
                return of_bytes.multiply_experts(problem, queue)
            return _multiply_experts(problem, queue)
    portable.multiply_experts[known_gate_up, known_down](problem, queue)


def _multiply_experts(problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    if problem.routing.tokens == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var tile_rows = tile_rows_of(count, problem.gate_up.count)
    var routing = Slots(problem.routing)
    queue.launch[groups.route_slots](
        groups.grid(), routing, UInt32(problem.gate_up.count), memory.lists, UInt32(tile_rows)
    )
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    _product[True](
        problem.left,
        width,
        problem.gate_up,
        2 * inner,
        memory,
        0,
        Target(hidden, problem.gate),
        tile_rows,
        queue,
    )

    var left = problem.hidden_at(memory.hidden)
    # Hidden numbers are where their places are.
    memory.lists.are_gathered = False
    var of_slots = Result(memory.rows, Int(FLOAT32), count, width)
    _product[False](
        left,
        inner,
        problem.down,
        width,
        memory,
        1,
        Target(of_slots, Gate.NONE),
        tile_rows,
        queue,
    )
    slots.launch_sums(problem, memory.rows, Places.listed_at(memory.lists.places), queue)


def _product[
    is_gated: Bool
](
    left: Left,
    k: Int,
    experts: Experts,
    n: Int,
    memory: Memory,
    product: Int,
    target: Target,
    tile_rows: Int,
    mut queue: Some[Queue],
) raises:
    """Launches the staging of rows and their product with [n, k] weights."""
    var a, staged = Activations(left, k), memory.staged(product)
    var num_tiles = Int(memory.lists.num_tiles)
    queue.launch[rows.stage_rows](
        rows.grid(tile_rows, num_tiles, k),
        a,
        UInt32(1 if is_left_aligned(left) else 0),
        memory.lists,
        staged.stages,
        staged.marks,
        staged.num_places,
    )
    var half = 0
    if is_gated and not target.gate().is_interleaved():
        half = n // 2
    var num_groups = ceildiv(Int(target.rows.columns), Int(target.columns_step()))
    comptime for i in range(len(TILE_ROWS)):
        comptime tokens = TILE_ROWS[i]
        if tile_rows == tokens:
            var w = ExpertWeights(experts, n)
            var groups, of_half = UInt32(num_groups), UInt32(half)
            comptime if tokens >= MANY_ROWS:
                queue.launch[multiply_many_rows[tokens, is_gated]](
                    grid_of_many[tokens](num_tiles, num_groups),
                    a, memory.lists, staged, w, target, groups, of_half,
                )  # fmt: skip
            else:
                queue.launch[multiply_tiles[tokens, is_gated]](
                    kernel.grid[tokens](num_tiles, num_groups),
                    a, memory.lists, staged, w, target, groups, of_half,
                )  # fmt: skip
