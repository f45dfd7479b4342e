"""How grouped products and layers of experts are launched on CDNA4; host/ chooses cuts.

    grouped product    one launch

    layer              route_slots      ids -> rows of tokens, sorted by expert
                       gemm_streaming   tokens, gathered -> hidden numbers, gated on the way
                       gemm_streaming   hidden numbers -> rows, float32
                       add_slots        rows, by token and in the order of slots -> y

With more rows than tiles of the streaming schedule are made for, a layer of four-bit or eight-bit
activations encodes its tokens before, once (prepare/quantize.mojo):

                       quantize_rows    tokens -> codes
                       gemm_interleaved codes, gathered -> hidden numbers, gated and encoded
                       gemm_interleaved codes -> rows

With more rows than tiles of these have, products are `gemm_ping_pong`, and
`order_rows` (prepare/order.mojo) comes before the first one.

Gates that are not neighbours of their ups take launches of their own between the products:
`gate_sums`, and `quantize_rows` again for what it makes. What the launches hand over lies in the
workspace, see `LayerMemory`.
"""

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.grid import Workspace
from ...launch.queue import Queue
from ...numbers.floats import float_code
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import Left
from ..arguments import GemmArguments, GroupedRows, Grouping, OrderedRows, most_tiles
from ..chip import MAX_TENSOR_BYTES, TILE
from ..schedules.streaming.kernel import launch_streaming
from ..host.experts import (
    DECODE_CUTS,
    LayerCuts,
    LayerMemory,
    LayerTypes,
    MIDDLE_CUTS,
    choose_decode,
    cut_of,
    has_cut,
)
from ..host.plan import has_room
from ..schedules.interleaved.kernel import launch_interleaved
from ..schedules.ping_pong.kernel import launch_ping_pong
from ..prepare.quantize import QuantizeKernel
from ..types import ProductTypes, float_bytes, has_expert_kernels, unsupported
from ..prepare.order import launch_order
from .routing import route
from .shape import M_TILES, code_bytes, encoded_blocks, decode_grid, middle_grid, prefill_grid
from .slots import launch_gates, launch_sums

comptime MAX_GRID_Y = (1 << 16) - 1
"""What HIP takes."""


def multiply_grouped[types: ProductTypes](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    _check[types](problem.left, problem.experts, problem.n, problem.k)
    if problem.dtype != float_code(types.out):
        raise Error("got a result of another type than was compiled for gfx950")
    var m = problem.m
    var rows = GroupedRows(problem.left.values, m, 0, problem.sizes, m, problem.values)
    launch[types, Grouping.GROUPED](
        GemmArguments.of_groups(rows, problem.experts, Gate.NONE, problem.n, problem.k), queue
    )


def launch[
    types: ProductTypes, grouping: Grouping
](of: GemmArguments, mut queue: Some[Queue]) raises:
    """Launches a product of floats with the cut that is chosen for it."""
    comptime assert has_expert_kernels(types.formats), unsupported(types.formats)
    _check_all_bytes[types](of.rows, of.experts, of.n, of.k)
    var m, groups = of.rows.m, of.experts.count
    var choice = choose_decode(m, of.n, groups, types)
    comptime for i in range(len(DECODE_CUTS)):
        comptime cut = DECODE_CUTS[i]
        comptime if has_room(cut, types):
            if choice == i:
                var tiles = most_tiles(m, groups, cut.m_tiles * TILE)
                if tiles > MAX_GRID_Y:
                    raise Error(
                        String(
                            "got ", m, " rows of ", groups, " experts, which can be ",
                            tiles, " tiles, expected at most ", MAX_GRID_Y,
                            ": call with fewer rows at a time",
                        )
                    )  # fmt: skip
                var grid = decode_grid(cut, m, of.n, groups)
                return launch_streaming[types, cut, grouping](of, grid, queue)


def _check[types: ProductTypes](left: Left, experts: Experts, n: Int, k: Int) raises:
    """Raises unless a product is of what was compiled."""
    var problem = types.problem(1, n, k)
    problem.left = left
    problem.right = experts.right
    problem.result.bias_dtype = experts.bias_dtype
    if not types.match(problem) or (left.row_stride != k):
        raise Error("got experts of other formats, types or layout than were compiled for gfx950")


def _check_all_bytes[types: ProductTypes](of: GroupedRows, experts: Experts, n: Int, k: Int) raises:
    """Raises unless kernels can count the bytes of all tensors."""
    _check_bytes("activations", of.count * types.row_bytes(k), of.m, n, k)
    _check_bytes("results", of.m * n * float_bytes(types.out), of.m, n, k)
    var weights = max(types.formats.right.packed_bytes(n * k), experts.codes_step)
    _check_bytes("an expert's weights", weights, of.m, n, k)


def _check_bytes(name: String, num_bytes: Int, m: Int, n: Int, k: Int) raises:
    """Raises unless a tensor has fewer bytes than a kernel can count."""
    if num_bytes >= MAX_TENSOR_BYTES:
        raise Error(
            String(
                "got ", name, " of ", num_bytes, " bytes for (M, N, K) = (", m, ", ", n, ", ", k,
                "), expected less than 2 GiB",
            )
        )  # fmt: skip


def workspace_of[types: LayerTypes](problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    return Workspace(0, LayerMemory.of(types, problem, 0).num_bytes)


def multiply_experts[
    types: LayerTypes
](problem: ExpertsProblem, cuts: LayerCuts, mut queue: Some[Queue]) raises:
    """Launches a layer of experts; `cuts` are for rows that are encoded before."""
    if problem.routing.tokens == 0:
        return
    comptime hidden_types = types.first(types.x)
    var width, inner, slots = problem.width, problem.inner, problem.routing.count()
    _check[hidden_types](problem.left, problem.gate_up, 2 * inner, width)
    _check[types.second()](problem.hidden_at(0), problem.down, width, inner)
    if problem.dtype != float_code(types.out):
        raise Error("got a result of another type than was compiled for gfx950")
    _check_bytes(
        "results", problem.routing.tokens * width * float_bytes(types.out), slots, width, inner
    )

    var space = workspace_of[types](problem)
    var at = LayerMemory.of(types, problem, queue.workspace(space))
    if slots > 0:
        route(problem.routing, problem.gate_up.count, at.sizes, at.tokens, at.places, queue)
        if at.encoded == LayerMemory.NOT_ENCODED:
            _multiply[types](problem, at, queue)
        else:
            comptime if types.has_encoded_kernels():
                _multiply_codes[types](problem, cuts, at, queue)
    launch_sums[types.out](at.rows, at.places, problem.routing, problem.values, width, queue)


def _multiply[
    types: LayerTypes
](problem: ExpertsProblem, at: LayerMemory, mut queue: Some[Queue]) raises:
    """Launches the products of a layer, which encode floats on their way."""
    comptime neighbours, halves = types.first(types.x), types.first(DType.float32)
    var n, k, slots = 2 * problem.inner, problem.width, problem.routing.count()
    var rows = GroupedRows(
        problem.left.values, problem.routing.tokens, at.tokens, at.sizes, slots, at.hidden
    )
    if problem.gate.is_interleaved():
        comptime if types.may_be_neighbours():
            launch[neighbours, Grouping.HIDDEN](
                GemmArguments.of_groups(rows, problem.gate_up, problem.gate, n, k), queue
            )
    else:
        comptime if types.may_be_halves():
            rows.result = at.rows
            launch[halves, Grouping.SUMS](
                GemmArguments.of_groups(rows, problem.gate_up, Gate.NONE, n, k), queue
            )
            launch_gates[types.x](at.rows, at.hidden, slots, problem.inner, queue)
    var hidden = GroupedRows(at.hidden, slots, 0, at.sizes, slots, at.rows)
    launch[types.second(), Grouping.DOWN](
        GemmArguments.of_groups(hidden, problem.down, Gate.NONE, problem.width, problem.inner),
        queue,
    )


def _multiply_codes[
    types: LayerTypes
](problem: ExpertsProblem, cuts: LayerCuts, at: LayerMemory, mut queue: Some[Queue]) raises:
    """Launches the products of a layer from codes."""
    comptime neighbours, halves = types.first(types.x), types.first(DType.float32)
    comptime second, rounding = types.second(), types.rounding
    var width, inner, slots = problem.width, problem.inner, problem.routing.count()
    var tokens = problem.routing.tokens
    var x = GroupedRows(problem.left.values, tokens, at.tokens, at.sizes, slots, at.hidden)
    _check_all_bytes[neighbours](x, problem.gate_up, 2 * inner, width)
    var floats = GroupedRows(at.hidden, slots, 0, at.sizes, slots, at.rows)
    _check_all_bytes[second](floats, problem.down, width, inner)

    _quantize[types](x.a, at.encoded, tokens, width, queue)
    var rows = GroupedRows(at.encoded, tokens, at.tokens, at.sizes, slots, at.hidden)
    var hidden = GroupedRows(at.hidden, slots, 0, at.sizes, slots, at.rows)
    var of_hidden = OrderedRows(at.ordered.tiles, at.ordered.rows, at.hidden_scales)
    comptime if types.has_ordered_kernels():
        if at.orders():
            launch_order[types.left, True](rows, at.ordered, problem.gate_up.count, width, queue)
    if problem.gate.is_interleaved():
        comptime if types.may_be_neighbours():
            _launch_codes[neighbours, rounding, Grouping.HIDDEN](
                rows,
                cuts.gate_up,
                at,
                at.ordered,
                problem.gate_up,
                problem.gate,
                2 * inner,
                width,
                queue,
            )
    else:
        comptime if types.may_be_halves():
            rows.result = at.rows
            _launch_codes[halves, rounding, Grouping.SUMS](
                rows,
                cuts.gate_up,
                at,
                at.ordered,
                problem.gate_up,
                Gate.NONE,
                2 * inner,
                width,
                queue,
            )
            launch_gates[types.x](at.rows, at.hidden, slots, inner, queue)
            _quantize[types](at.hidden, at.encoded, slots, inner, queue)
            hidden.a = at.encoded
            comptime if types.has_ordered_kernels():
                if at.orders():
                    var experts = problem.down.count
                    launch_order[types.left, False](hidden, of_hidden, experts, inner, queue)
    _launch_codes[second, rounding, Grouping.DOWN](
        hidden, cuts.down, at, of_hidden, problem.down, Gate.NONE, width, inner, queue
    )


def _quantize[
    types: LayerTypes
](x: Int, encoded: Int, m: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches the encoding of m rows of k floats: whole stages, and behind them their scales."""
    comptime Kernel = QuantizeKernel[types.left, types.x, types.rounding]
    var scales = encoded + code_bytes(m, k, types.left)
    Kernel.launch_blocks[True](x, encoded, scales, m, k, encoded_blocks(k), queue)


def _launch_codes[
    types: ProductTypes, rounding: Rounding, grouping: Grouping
](
    of: GroupedRows,
    place: Int,
    at: LayerMemory,
    ordered: OrderedRows,
    experts: Experts,
    gate: Gate,
    n: Int,
    k: Int,
    mut queue: Some[Queue],
) raises:
    """Launches a product of encoded rows, by tiles if they are ordered, else with a cut of
    `MIDDLE_CUTS`."""
    if at.orders():
        return launch_ping_pong[types.encoded(), M_TILES, True, grouping, rounding](
            GemmArguments.of_groups(of, experts, gate, n, k),
            prefill_grid(of.m, n, experts.count),
            queue,
            ordered,
            at.hidden_scales,
        )
    comptime for i in range(len(MIDDLE_CUTS)):
        comptime cut = cut_of(types.formats.left, i)
        comptime if has_cut(cut, types, grouping.is_gated):
            if place == i:
                comptime assert cut.splits == 1, "workgroups of groups share no tile"
                return launch_interleaved[types, cut, True, grouping, rounding](
                    GemmArguments.of_groups(of, experts, gate, n, k),
                    middle_grid(cut, of.m, n, experts.count),
                    queue,
                )
    raise Error("no kernel was compiled for the cut that was chosen")
