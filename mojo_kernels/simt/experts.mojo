"""Products of experts: every row finds its expert itself, and nothing is sorted.

    kernel          a warp computes                        its expert
    product_warps   eight columns of a row of C            of the first group that ends behind the row
    hidden_warps    four hidden numbers of a slot (t, j),  ids[t, j]
                    eight of ups alone
    token_warps     eight columns of a token t             slot after slot, ids[t, 0], ids[t, 1], ...

Sizes and ids are read on the device, where they may be any numbers: a row that no group has is
zero, a slot with a negative id adds nothing, and one with the id of no expert makes its token NaN.
Hidden numbers wait in the workspace; those of slots without an expert are neither written nor read.
"""

from max.gpu import thread_idx
from std.utils.numerics import nan

from ..experts import ExpertsProblem, GroupedProblem
from ..launch.queue import DevicePointer, Queue, device_pointer
from ..layouts import OperandLayout
from ..numbers.gates import Gate
from ..problem import Known, Left
from ..routing.slots import NO_EXPERT, Slots
from .arguments import Activations, ExpertWeights, Result
from .host import COLUMNS, PAIRS, WARPS, WARP_THREADS, grid_of_warps, workspace_of
from .matmul import WarpLaunch, launch, launch_instance, of_lane, warp_sums, warp_sums_at
from .views import AnyFloats, tile_here


def hidden_warps[
    Layout: OperandLayout, bits: Int, aligned: Bool
](
    x: Activations,
    experts: ExpertWeights,
    slots: Slots,
    gate_word: Int32,
    limit: Float32,
    alpha: Float32,
    hidden: DevicePointer[DType.uint8],
):
    """Computes hidden numbers of a slot, as many as a warp has sums for."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var gate = Gate.of_word(gate_word, limit, alpha)
    var inner, count = Int(experts.columns), COLUMNS
    if gate.is_there():
        inner, count = inner // 2, PAIRS
    var first = (tile.column * WARPS + warp) * count
    if first >= inner or tile.row >= slots.count():
        return
    var expert = slots.expert_of(tile.row)
    if not experts.has(expert):
        return

    var step = 2 if gate.is_interleaved() else 1
    var to_up = PAIRS
    if gate.is_there():
        to_up = 1 if gate.is_interleaved() else inner
    var columns = SIMD[DType.int32, COLUMNS]()
    comptime for i in range(PAIRS):
        columns[i] = Int32((first + i) * step)
        columns[PAIRS + i] = Int32((first + i) * step + to_up)
    var token = tile.row // Int(slots.per_token)
    var sums = warp_sums_at[Layout, bits, aligned, COLUMNS](
        x, experts.of(expert), token, columns, lane
    )

    if not gate.is_there():
        if lane < COLUMNS:
            var up = experts.biased(expert, first + lane, of_lane(sums, lane))
            var number = gate.of_sums(SIMD[DType.float32, 1](up))
            AnyFloats(hidden, inner, x.dtype).store[1, 1](tile.row, first + lane, number)
    elif lane < PAIRS:
        var column = (first + lane) * step
        var gated = experts.biased(expert, column, of_lane(sums, lane))
        var up = experts.biased(expert, column + to_up, of_lane(sums, PAIRS + lane))
        var number = gate.of(SIMD[DType.float32, 1](gated), SIMD[DType.float32, 1](up))
        AnyFloats(hidden, inner, x.dtype).store[1, 1](tile.row, first + lane, number)


def token_warps[
    Layout: OperandLayout, bits: Int
](hidden: Activations, experts: ExpertWeights, slots: Slots, result: Result):
    """Computes eight columns of a token a warp; the rows of its slots are added in order."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var columns = Int(result.columns)
    var first_column = (tile.column * WARPS + warp) * COLUMNS
    if first_column >= columns or tile.row >= Int(result.rows):
        return

    var column = first_column + lane
    var is_mine = lane < COLUMNS and column < columns
    var total = Float32(0)
    for i in range(Int(slots.per_token)):
        var slot = tile.row * Int(slots.per_token) + i
        var expert = slots.expert_of(slot)
        if expert == NO_EXPERT:
            continue
        if not experts.has(expert):
            total = nan[DType.float32]()
            break
        var sums = warp_sums[Layout, bits, True, COLUMNS](
            hidden, experts.of(expert), columns, slot, first_column, lane
        )
        if is_mine:
            var addend = experts.biased(expert, column, of_lane(sums, lane))
            total = addend.fma(slots.weight_of(slot), total)

    if is_mine:
        result.store[1, 1](tile.row, column, SIMD[DType.float32, 1](total))


def multiply_grouped[known: Known](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m > 0 and problem.n > 0:
        launch[known](problem, queue)


def multiply_experts[
    known_gate_up: Known, known_down: Known
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches both products of a layer of experts."""
    if problem.routing.tokens == 0:
        return
    var hidden = queue.workspace(workspace_of(problem))
    if problem.routing.slots > 0:
        var warps = HiddenWarps(problem, hidden)
        launch_instance[known_gate_up](warps, problem.left, problem.gate_up.right, queue)
    var left = problem.hidden_at(hidden)
    launch_instance[known_down](TokenWarps(problem, left), left, problem.down.right, queue)


@fieldwise_init
struct HiddenWarps(WarpLaunch):
    """The launch of `hidden_warps`, the first product."""

    var problem: ExpertsProblem
    var hidden: Int

    def start[Layout: OperandLayout, bits: Int, aligned: Bool](self, mut queue: Some[Queue]) raises:
        var gate = self.problem.gate
        queue.launch[hidden_warps[Layout, bits, aligned]](
            grid_of_warps(self.problem.routing.count(), self.problem.sums()),
            Activations(self.problem.left, self.problem.width),
            ExpertWeights(self.problem.gate_up, self.problem.sums()),
            Slots(self.problem.routing),
            gate.word(),
            gate.limit,
            gate.alpha,
            device_pointer[DType.uint8](self.hidden),
        )


@fieldwise_init
struct TokenWarps(WarpLaunch):
    """The launch of `token_warps`, the second product and the sums over slots."""

    var problem: ExpertsProblem
    var hidden: Left

    def start[Layout: OperandLayout, bits: Int, aligned: Bool](self, mut queue: Some[Queue]) raises:
        var tokens, width = self.problem.routing.tokens, self.problem.width
        queue.launch[token_warps[Layout, bits]](
            grid_of_warps(tokens, width),
            Activations(self.hidden, self.problem.inner),
            ExpertWeights(self.problem.down, width),
            Slots(self.problem.routing),
            Result(self.problem.values, self.problem.dtype, tokens, width),
        )
