"""Products of experts: every row finds its expert itself, and nothing is sorted.

    kernel          a warp computes                        its expert
    grouped_warps   eight columns of a row of C            of the first group that ends behind the row
    hidden_warps    four hidden numbers of a slot (t, j)   ids[t, j]
    token_warps     eight columns of a token t             slot after slot, ids[t, 0], ids[t, 1], ...

Sizes and ids are read on the device, where they may be any numbers: a row that no group has is
zero, a slot with a negative id adds nothing, and one with the id of no expert makes its token NaN.
Hidden numbers wait in the workspace; those of slots without an expert are neither written nor read.
"""

from max.gpu import thread_idx
from std.utils.numerics import nan

from ..experts import ExpertsProblem, GroupedProblem
from ..launch.queue import DevicePointer, Queue, device_pointer
from ..layouts import LAYOUTS, OperandLayout
from ..numbers.formats import Format
from ..numbers.gates import Gate
from ..problem import ANY, Known, may_be
from ..routing.groups import Groups
from ..routing.slots import NO_EXPERT, Slots
from .arguments import Activations, ExpertWeights, Result
from .codec import ANY_BITS
from .host import COLUMNS, PAIRS, WARPS, WARP_THREADS, grid_of_warps, is_left_aligned, workspace_of
from .matmul import (
    MXFP4,
    are_mxfp4,
    of_lane,
    warp_sums,
    warp_sums_at,
)
from .views import AnyFloats, tile_here


def grouped_warps[
    Layout: OperandLayout, bits: Int, aligned: Bool
](a: Activations, experts: ExpertWeights, groups: Groups, result: Result):
    """Computes eight columns of a row of C a warp."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var columns = Int(result.columns)
    var first_column = (tile.column * WARPS + warp) * COLUMNS
    if first_column >= columns or tile.row >= Int(result.rows):
        return

    var expert = groups.expert_of[WARP_THREADS](tile.row, lane)
    var sums = SIMD[DType.float32, COLUMNS](0)
    if expert != NO_EXPERT:
        sums = warp_sums[Layout, bits, aligned, COLUMNS](
            a, experts.of(expert), columns, tile.row, first_column, lane
        )

    var column = first_column + lane
    if lane < COLUMNS and column < columns:
        var sum = of_lane(sums, lane)
        if expert != NO_EXPERT:
            sum = experts.biased(expert, column, sum)
        result.store[1, 1](tile.row, column, SIMD[DType.float32, 1](sum))


def hidden_warps[
    Layout: OperandLayout, bits: Int, aligned: Bool
](
    x: Activations,
    experts: ExpertWeights,
    slots: Slots,
    gate_code: Int32,
    limit: Float32,
    alpha: Float32,
    hidden: DevicePointer[DType.uint8],
):
    """Computes four hidden numbers of a slot a warp."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var inner = Int(experts.columns) // 2
    var first = (tile.column * WARPS + warp) * PAIRS
    if first >= inner or tile.row >= slots.count():
        return
    var expert = slots.expert_of(tile.row)
    if not experts.has(expert):
        return

    var gate = Gate(Int(gate_code), limit, alpha)
    var step = 2 if gate.is_interleaved() else 1
    var to_up = 1 if gate.is_interleaved() else inner
    var columns = SIMD[DType.int32, COLUMNS]()
    comptime for i in range(PAIRS):
        columns[i] = Int32((first + i) * step)
        columns[PAIRS + i] = Int32((first + i) * step + to_up)
    var token = tile.row // Int(slots.per_token)
    var sums = warp_sums_at[Layout, bits, aligned, COLUMNS](
        x, experts.of(expert), token, columns, lane
    )

    if lane < PAIRS:
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
    if problem.m == 0 or problem.n == 0:
        return
    var right = problem.experts.right
    comptime for i in range(len(LAYOUTS)):
        comptime for bits in [Format.MXFP4.element.bits, ANY_BITS]:
            comptime for aligned in [False, True]:
                comptime if may_be(known.layout, i) and may_have[known](bits):
                    if (
                        right.layout == i
                        and bits_of(problem.left.format, right.format) == bits
                        and is_left_aligned(problem.left) == aligned
                    ):
                        return queue.launch[grouped_warps[LAYOUTS[i], bits, aligned]](
                            grid_of_warps(problem.m, problem.n),
                            Activations(problem.left, problem.k),
                            ExpertWeights(problem.experts, problem.n),
                            Groups(problem),
                            Result(problem.values, problem.dtype, problem.m, problem.n),
                        )
    raise Error(String("unknown layout, code ", right.layout))


def multiply_experts[
    known_gate_up: Known, known_down: Known
](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches both products of a layer of experts."""
    if problem.routing.tokens == 0:
        return
    var hidden = queue.workspace(workspace_of(problem))
    if problem.routing.slots > 0:
        _launch_hidden[known_gate_up](problem, hidden, queue)
    _launch_tokens[known_down](problem, hidden, queue)


def _launch_hidden[
    known: Known
](problem: ExpertsProblem, hidden: Int, mut queue: Some[Queue]) raises:
    """Launches the first product, which leaves hidden numbers."""
    var right, gate = problem.gate_up.right, problem.gate
    comptime for i in range(len(LAYOUTS)):
        comptime for bits in [Format.MXFP4.element.bits, ANY_BITS]:
            comptime for aligned in [False, True]:
                comptime if may_be(known.layout, i) and may_have[known](bits):
                    if (
                        right.layout == i
                        and bits_of(problem.left.format, right.format) == bits
                        and is_left_aligned(problem.left) == aligned
                    ):
                        return queue.launch[hidden_warps[LAYOUTS[i], bits, aligned]](
                            grid_of_warps(problem.routing.count(), 2 * problem.inner),
                            Activations(problem.left, problem.width),
                            ExpertWeights(problem.gate_up, 2 * problem.inner),
                            Slots(problem.routing),
                            Int32(gate.code),
                            gate.limit,
                            gate.alpha,
                            device_pointer[DType.uint8](hidden),
                        )
    raise Error(String("unknown layout, code ", right.layout))


def _launch_tokens[
    known: Known
](problem: ExpertsProblem, hidden: Int, mut queue: Some[Queue]) raises:
    """Launches the second product and the sums over slots."""
    var right, left = problem.down.right, problem.hidden_at(hidden)
    comptime for i in range(len(LAYOUTS)):
        comptime for bits in [Format.MXFP4.element.bits, ANY_BITS]:
            comptime if may_be(known.layout, i) and may_have[known](bits):
                if right.layout == i and bits_of(left.format, right.format) == bits:
                    return queue.launch[token_warps[LAYOUTS[i], bits]](
                        grid_of_warps(problem.routing.tokens, problem.width),
                        Activations(left, problem.inner),
                        ExpertWeights(problem.down, problem.width),
                        Slots(problem.routing),
                        Result(
                            problem.values, problem.dtype, problem.routing.tokens, problem.width
                        ),
                    )
    raise Error(String("unknown layout, code ", right.layout))


def bits_of(left_format: Int, right_format: Int) -> Int:
    """Returns the bits that an instance of a kernel knows: MXFP4's, or none."""
    comptime bits = Format.MXFP4.element.bits
    return bits if are_mxfp4(left_format, right_format) else ANY_BITS


def may_have[known: Known](bits: Int) -> Bool:
    """Says whether a product of which this is known may want the instance of `bits`."""
    if known.left_format == ANY or known.right_format == ANY:
        return bits == ANY_BITS or (
            may_be(known.right_format, MXFP4) and known.left_format in (ANY, MXFP4)
        )
    return bits_of(known.left_format, known.right_format) == bits
