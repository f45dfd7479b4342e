"""Products of experts on Hopper, one launch after the other: grouped products, and layers.

    grouped    list rows, prepare, multiply
    layer      list rows, prepare, multiply with a gate, prepare, multiply, add slots
               ups without gates: multiply, activate sums

    rows of A become      rows are listed by                 prepared by            multiplied by
    bfloat16              lay_out_groups, route_slots        prepare_bf16_places;   gemm_rs_bf16
                                                             of NVFP4
                                                             prepare_operands
    E5M2, E4M3            begin_groups, begin_slots, with    prepare_operands       gemm_rs_fp8
                          exponents of all rows of B

Few rows of each expert are for `streaming`, which has launches of its own. Who takes what, and where
things lie, is decided in `host.moe`.
"""

from std.math import align_up

from ..experts import Experts, ExpertsProblem, GroupedProblem
from ..launch.queue import Queue, device_pointer
from ..numbers.gates import Gate
from ..problem import Known, Left
from ..routing.groups import Groups
from ..routing.slots import Slots
from ..simt import experts as portable
from ..simt.arguments import Activations, ExpertWeights, Result
from ..simt.host import FLOAT32, is_left_aligned
from .target import Target, launch_activation
from .gemm_rs_bf16 import gemm_rs_bf16
from .gemm_rs_fp8 import gemm_rs_fp8
from .host.moe import (
    ALL_OPERANDS,
    TILE_ROWS,
    Memory,
    OperandFormats,
    column_tiles_of,
    grid_of_begin,
    grid_of_lists,
    grid_of_stages,
    grid_of_tiles,
    is_fused,
    kernel_of,
    may_take_operands,
    workspace_of,
)
from .host.workspace import ALL_ROWS, LANE_CHUNKS, MANY_CHUNKS
from .layout import TILE_ROWS as WEIGHT_ROWS
from .plan import Kernel, OperandType
from .prepare.bf16 import prepare_bf16_places
from .prepare.experts import Matrices, begin_groups, begin_slots
from .prepare.kept import RoundedNumbers
from .prepare.kernel import TilesOfB, launch_prepare
from .prepare.operands import PreparedRows
from .prepare.source import SourceRows
from .gemm_operands import StagedRows
from .product import Gating, GroupedProduct
from .routing import Lists, Places, launch_sums, lay_out_groups, route_slots
from .shapes import EXPERT_CAPACITY, NUMBER_BYTES, RsConfig
from .streaming import kernel as streaming


def multiply_grouped[known: Known](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    var kernel = kernel_of(problem)
    comptime for operands in ALL_OPERANDS:
        comptime if may_take_operands[known](operands.weights):
            if kernel != Kernel.PORTABLE and operands.are_of(problem.left, problem.experts.right):
                if kernel == Kernel.STREAM:
                    return streaming.multiply_grouped[operands](problem, queue)
                return _multiply_grouped[operands](problem, queue)
    portable.multiply_grouped[known](problem, queue)


def multiply_experts[
    known_gate_up: Known, known_down: Known
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
    var kernel = kernel_of(problem)
    comptime for operands in ALL_OPERANDS:
        comptime may_take = may_take_operands[known_gate_up](operands.weights)
        comptime if may_take and may_take_operands[known_down](operands.weights):
            if kernel != Kernel.PORTABLE and operands.are_of(problem.left, problem.gate_up.right):
                if kernel == Kernel.STREAM:
                    return streaming.multiply_experts[operands](problem, queue)
                return _multiply_experts[operands](problem, queue)
    portable.multiply_experts[known_gate_up, known_down](problem, queue)


def _multiply_grouped[
    operands: OperandFormats
](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    if problem.m == 0 or problem.n == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var product = _Product(
        problem.left, problem.experts, problem.n, problem.k, memory.first, memory.lists.marks
    )
    # Rows of A that become bytes, or are rounded, are found by the places of lists.
    var lists = Lists.at(memory.lists, are_gathered=memory.goes_by_places())
    var sizes, tile_rows = Groups(problem), UInt32(memory.tile_rows)
    if memory.is_fp8():
        var matrices = product.matrices(lists)
        var grid = grid_of_begin(Int(matrices.num_tiles()))
        queue.launch[begin_groups](grid, sizes, lists, tile_rows, matrices)
    else:
        queue.launch[lay_out_groups](grid_of_lists(), sizes, lists, tile_rows)
    var target = Target(Result(problem.values, problem.dtype, problem.m, problem.n), Gate.NONE)
    product.launch[False, operands](memory, lists, target, queue)


def _multiply_experts[
    operands: OperandFormats
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    if problem.routing.tokens == 0:
        return
    var memory = Memory.of(problem, queue.workspace(workspace_of(problem)))
    var width, inner, count = problem.width, problem.inner, problem.routing.count()
    var marks, sums = memory.lists.marks, problem.sums()
    var gate_up = _Product(problem.left, problem.gate_up, sums, width, memory.first, marks)
    marks += memory.lists.num_places
    var left = problem.hidden_at(memory.hidden)
    var down = _Product(left, problem.down, width, inner, memory.second, marks)
    var lists = Lists.at(memory.lists, are_gathered=True)
    var routing, tile_rows = Slots(problem.routing), UInt32(memory.tile_rows)
    if memory.is_fp8():
        var first, second = gate_up.matrices(lists), down.matrices(lists)
        var grid = grid_of_begin(Int(first.num_tiles() + second.num_tiles()))
        queue.launch[begin_slots](grid, routing, lists, tile_rows, first, second)
    else:
        var experts = UInt32(problem.gate_up.count)
        queue.launch[route_slots](grid_of_lists(), routing, experts, lists, tile_rows)
    var hidden = Result(memory.hidden, problem.left.dtype, count, inner)
    if is_fused(problem.gate):
        gate_up.launch[True, operands](memory, lists, Target(hidden, problem.gate), queue)
    else:
        var of_sums = Result(memory.rows, Int(FLOAT32), count, sums)
        gate_up.launch[False, operands](memory, lists, Target(of_sums, Gate.NONE), queue)
        hidden.rows = UInt32(memory.lists.num_places)
        launch_activation(memory.rows, problem.gate, hidden, queue)
    # Hidden numbers are where their places are.
    lists.are_gathered = False
    var of_slots = Result(memory.rows, Int(FLOAT32), count, width)
    down.launch[False, operands](memory, lists, Target(of_slots, Gate.NONE), queue)
    launch_sums(problem, memory.rows, Places.listed_at(lists.places), queue)


@fieldwise_init
struct _Product(TrivialRegisterPassable):
    """The product of listed rows and [n, k] weights of their experts."""

    comptime Rows[operand: OperandType] = PreparedRows[operand, 4, False]

    var left: Left
    var experts: Experts
    var n: Int
    var k: Int
    var rows: Int
    """Where rows of A are prepared; of bytes, where exponents of both sides are, too."""
    var marks: Int
    """Where the fallback flags of places are, of bfloat16."""

    def operands[operand: OperandType](self, lists: Lists) -> Self.Rows[operand]:
        """Returns both sides as bytes."""
        var weight_rows = self.experts.count * align_up(self.n, WEIGHT_ROWS)
        var places = Int(lists.num_sources)
        return Self.Rows[operand].at(places, weight_rows, self.k, ALL_ROWS, self.rows)

    def matrices(self, lists: Lists) -> Matrices:
        """Returns the weights, whose shared exponents are wanted."""
        var exponents = self.operands[OperandType.E5M2](lists).exponents
        return Matrices.of(self.experts, self.n, self.k, exponents)

    def launch[
        is_gated: Bool, operands: OperandFormats
    ](self, memory: Memory, lists: Lists, target: Target, mut queue: Some[Queue]) raises:
        """Launches the preparation of rows, and the product."""
        comptime if operands == OperandFormats.MXFP4:
            if memory.kernel == Kernel.RS_E4M3:
                return self._launch_fp8[OperandType.E4M3, is_gated](memory, lists, target, queue)
            if memory.is_fp8():
                return self._launch_fp8[OperandType.E5M2, is_gated](memory, lists, target, queue)
        self._launch_bf16[is_gated, operands](memory, lists, target, queue)

    def _launch_bf16[
        is_gated: Bool, operands: OperandFormats
    ](self, memory: Memory, lists: Lists, target: Target, mut queue: Some[Queue]) raises:
        var a = Activations(self.left, self.k)
        var num_places = memory.lists.num_places
        var rows_of_a = StagedRows.at(self.rows, NUMBER_BYTES * self.k, num_places, ALL_ROWS)
        var flags = device_pointer[DType.uint8](self.marks)
        var num_tiles = Int(lists.num_tiles)
        comptime if operands.has_factors:
            var factors = device_pointer[DType.float32](memory.factors_at(self.rows, self.k))
            var to = RoundedNumbers[True](rows_of_a, factors)
            var places = SourceRows[True].of(
                num_places, self.k, LANE_CHUNKS, lists.sources, lists.are_gathered
            )
            launch_prepare(a, TilesOfB.none(), to, places, queue)
            a = Activations(to.left(), self.k)
        else:
            queue.launch[prepare_bf16_places](
                grid_of_stages(memory.tile_rows, num_tiles, self.k),
                a,
                UInt32(1 if is_left_aligned(self.left) else 0),
                lists,
                rows_of_a.first,
                flags,
                UInt32(num_places),
            )
        var column_tiles = column_tiles_of(Int(target.rows.columns), is_gated)
        var weights = ExpertWeights(self.experts, self.n)
        comptime gating = Gating.EITHER if is_gated else Gating.NONE
        comptime for rows in TILE_ROWS:
            if memory.tile_rows == rows:
                comptime Product = GroupedProduct[rows, gating]
                comptime CONFIG = RsConfig.grouped(rows).under(
                    operands.weights.scale, operands.has_factors
                )
                queue.launch[gemm_rs_bf16[CONFIG, Product]](
                    grid_of_tiles(memory.kernel, rows, num_tiles, column_tiles),
                    rows_of_a, flags, a, weights, target, lists, UInt32(1),
                )  # fmt: skip

    def _launch_fp8[
        operand: OperandType, is_gated: Bool
    ](self, memory: Memory, lists: Lists, target: Target, mut queue: Some[Queue]) raises:
        comptime Rows = Self.Rows[operand]
        comptime MOST_CHUNKS = LANE_CHUNKS if operand == OperandType.E4M3 else MANY_CHUNKS
        var a = Activations(self.left, self.k)
        var operands = self.operands[operand](lists)
        var places = SourceRows[True].of(
            Int(lists.num_sources), self.k, MOST_CHUNKS, lists.sources, lists.are_gathered
        )
        launch_prepare(a, TilesOfB.none(), operands, places, queue)
        var is_halves = is_gated and not target.gate().is_interleaved()
        var column_tiles = column_tiles_of(Int(target.rows.columns), is_gated)
        var weights = ExpertWeights(self.experts, self.n)
        var num_tiles = Int(lists.num_tiles)
        var grid = grid_of_tiles(memory.kernel, memory.tile_rows, num_tiles, column_tiles)
        comptime for gating in [Gating.NONE, Gating.NEIGHBOURS, Gating.HALVES]:
            comptime if (gating != Gating.NONE) == is_gated:
                if is_halves == (gating == Gating.HALVES):
                    comptime Product = GroupedProduct[EXPERT_CAPACITY, gating]
                    queue.launch[gemm_rs_fp8[Rows, Product]](
                        grid,
                        operands,
                        a,
                        Product(weights, target, UInt32(1), lists),
                    )
