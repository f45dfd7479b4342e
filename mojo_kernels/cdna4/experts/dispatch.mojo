"""How grouped products and layers of experts are launched on CDNA4; host/ chooses shapes.

    grouped product    one launch

    layer              route_slots      ids -> rows of tokens, sorted by expert
                       gemm_streaming   tokens, gathered -> hidden numbers, gated on the way
                       gemm_streaming   hidden numbers -> rows, float32
                       add_slots        rows, by token and in the order of slots -> y

With more rows than tiles of the streaming schedule are made for, a layer whose activations are codes
encodes its tokens before, once (prepare/quantize.mojo):

                       quantize_rows    tokens -> codes
                       gemm_interleaved codes, gathered -> hidden numbers, gated and encoded
                       gemm_interleaved codes -> rows

With more rows than tiles of these have, products are `gemm_ping_pong`, and
`order_rows` (prepare/order.mojo) comes before the first one.

Gates that are no neighbours of their ups, or others than `swiglu_oai`, and ups without gates take
launches of their own between the products: `gate_sums`, and `quantize_rows` again for what it makes.
What the launches hand over lies in the workspace, see `LayerMemory`.
"""

from ...experts import Experts, ExpertsProblem, GroupedProblem, most_tiles
from ...launch.grid import Workspace
from ...launch.queue import Queue
from ...numbers.floats import float_code
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import Left
from ..arguments import GemmArguments, GroupedRows, Grouping, OrderedRows
from ..chip import MAX_TENSOR_BYTES, TILE
from ..streaming.kernel import launch_streaming
from ..host.experts import STREAMING_SHAPES, LayerShapes, LayerMemory, LayerTypes
from ..host.experts import INTERLEAVED_SHAPES, choose_streaming, has_kernel, has_shape, shape_of
from ..interleaved.kernel import launch_interleaved
from ..ping_pong.kernel import launch_ping_pong
from ..prepare.quantize import QuantizeKernel
from ..types import ProductTypes, float_bytes, has_expert_kernels, unsupported
from ..prepare.order import launch_order
from .routing import route
from ..moe_shape import M_TILES, code_bytes, encoded_blocks, streaming_grid, interleaved_grid
from ..moe_shape import is_fused, ping_pong_grid, tiled_bytes
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
    var m, n, k = problem.m, problem.n, problem.k
    var rows = GroupedRows(problem.left.values, m, 0, problem.sizes, m, problem.values)
    var all = GemmArguments.of_groups(rows, problem.experts, Gate.NONE, n, k)
    _launch[types, Grouping.GROUPED](all, queue)


def _launch[
    types: ProductTypes, grouping: Grouping
](of: GemmArguments, mut queue: Some[Queue]) raises:
    """Launches a product of floats with the shape that is chosen for it."""
    comptime assert has_expert_kernels(types.formats), unsupported(types.formats)
    _check_all_bytes[types](of)
    var m, groups = of.rows.m, of.experts.count
    var choice = choose_streaming(m, of.n, groups, types)
    comptime for i in range(len(STREAMING_SHAPES)):
        comptime shape = STREAMING_SHAPES[i]
        comptime if has_kernel(shape, types):
            if choice == i:
                var tiles = most_tiles(m, groups, shape.m_tiles * TILE)
                if tiles > MAX_GRID_Y:
                    raise Error(
                        String(
                            "got ", m, " rows of ", groups, " experts, which can be ",
                            tiles, " tiles, expected at most ", MAX_GRID_Y,
                            ": call with fewer rows at a time"
                        )
                    )  # fmt: skip
                var grid = streaming_grid(shape, m, of.n, groups)
                return launch_streaming[types, shape, grouping](of, grid, queue)


def _check[types: ProductTypes](left: Left, experts: Experts, n: Int, k: Int) raises:
    """Raises unless a product is of what was compiled."""
    var problem = types.problem(1, n, k)
    problem.left = left
    problem.right = experts.right
    problem.result.bias_dtype = experts.bias_dtype
    if not types.match(problem) or (left.row_stride != k):
        raise Error("got experts of other formats, types or layout than were compiled for gfx950")


def _check_all_bytes[types: ProductTypes](of: GemmArguments) raises:
    """Raises unless kernels can count the bytes of all tensors."""
    var m, n, k = of.rows.m, of.n, of.k
    _check_bytes("activations", of.rows.count * types.row_bytes(k), m, n, k)
    _check_bytes("results", m * n * float_bytes(types.out), m, n, k)
    var weights = max(types.formats.right.packed_bytes(n * k), of.experts.codes_step)
    _check_bytes("an expert's weights", weights, m, n, k)


def _check_bytes(name: String, num_bytes: Int, m: Int, n: Int, k: Int) raises:
    """Raises unless a tensor has fewer bytes than a kernel can count."""
    if num_bytes >= MAX_TENSOR_BYTES:
        raise Error(
            String(
                "got ", name, " of ", num_bytes, " bytes for (M, N, K) = (", m, ", ", n, ", ", k,
                "), expected less than 2 GiB"
            )
        )  # fmt: skip


def workspace_of[types: LayerTypes](problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    return Workspace(0, LayerMemory.of(types, problem, 0).num_bytes)


def multiply_experts[
    types: LayerTypes
](problem: ExpertsProblem, shapes: LayerShapes, mut queue: Some[Queue]) raises:
    """Launches a layer of experts; `shapes` are for rows that are encoded before."""
    if problem.routing.tokens == 0:
        return
    comptime hidden_types = types.first(types.x)
    var width, inner, slots = problem.width, problem.inner, problem.routing.count()
    _check[hidden_types](problem.left, problem.gate_up, problem.sums(), width)
    _check[types.second()](problem.hidden_at(0), problem.down, width, inner)
    if problem.dtype != float_code(types.out):
        raise Error("got a result of another type than was compiled for gfx950")
    _check_bytes(
        "results", problem.routing.tokens * width * float_bytes(types.out), slots, width, inner
    )

    var at = LayerMemory.of(types, problem, queue.workspace(workspace_of[types](problem)))
    if slots > 0:
        route(problem.routing, problem.gate_up.count, at.sizes, at.tokens, at.places, queue)
        if at.encoded == LayerMemory.NOT_ENCODED:
            _multiply[types, False](problem, shapes, at, queue)
        else:
            comptime if types.has_encoded_kernels():
                _multiply[types, True](problem, shapes, at, queue)
    launch_sums[types.out](at.rows, at.places, problem.routing, problem.values, width, queue)


def _multiply[
    types: LayerTypes, encodes: Bool
](problem: ExpertsProblem, shapes: LayerShapes, at: LayerMemory, mut queue: Some[Queue]) raises:
    """Launches the products of a layer.

    `encodes`: Whether rows are encoded before; products of floats encode them on their way.
    """
    comptime gated, sums = types.first(types.x), types.first(DType.float32)
    comptime second, rounding = types.second(), types.rounding
    var width, inner, slots = problem.width, problem.inner, problem.routing.count()
    var tokens, experts = problem.routing.tokens, problem.gate_up.count
    var rows = GroupedRows(problem.left.values, tokens, at.tokens, at.sizes, slots, at.hidden)
    var hidden = GroupedRows(at.hidden, slots, 0, at.sizes, slots, at.rows)
    var first = GemmArguments.of_groups(rows, problem.gate_up, problem.gate, problem.sums(), width)
    var last = GemmArguments.of_groups(hidden, problem.down, Gate.NONE, width, inner)
    var of_hidden = OrderedRows(at.ordered.tiles, at.ordered.rows, at.hidden_scales, at.hidden)
    comptime if encodes:
        _check_all_bytes[gated](first)
        _check_all_bytes[second](last)
        _quantize[types](rows.a, at.encoded, tokens, width, queue)
        first.rows.a = at.encoded
        if at.orders():
            var longest = max(width, inner)
            _check_bytes(
                "codes by tiles", tiled_bytes(slots, experts, longest, types.left), slots, width,
                inner,
            )  # fmt: skip
            launch_order[types.left, True](first.rows, at.ordered, experts, width, queue)
    if is_fused(problem.gate):
        comptime if types.may_gate():
            comptime if encodes:
                _launch_codes[gated, rounding, Grouping.HIDDEN](
                    first, shapes.gate_up, at, at.ordered, queue
                )
            else:
                _launch[gated, Grouping.HIDDEN](first, queue)
    else:
        comptime if types.may_leave_sums():
            first.rows.result = at.rows
            first.gate = Gate.NONE
            comptime if encodes:
                _launch_codes[sums, rounding, Grouping.SUMS](
                    first, shapes.gate_up, at, at.ordered, queue
                )
            else:
                _launch[sums, Grouping.SUMS](first, queue)
            launch_gates[types.x](problem.gate, at.rows, at.hidden, slots, inner, queue)
            comptime if encodes:
                _quantize[types](at.hidden, at.encoded, slots, inner, queue)
                last.rows.a = at.encoded
                of_hidden.codes = at.ordered.codes
                if at.orders():
                    launch_order[types.left, False](last.rows, of_hidden, experts, inner, queue)
    comptime if encodes:
        _launch_codes[second, rounding, Grouping.DOWN](last, shapes.down, at, of_hidden, queue)
    else:
        _launch[second, Grouping.DOWN](last, queue)


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
    of: GemmArguments, index: Int, at: LayerMemory, ordered: OrderedRows, mut queue: Some[Queue]
) raises:
    """Launches a product of encoded rows, by tiles if they are ordered, else with a shape of
    `INTERLEAVED_SHAPES`."""
    var m, n, groups = of.rows.m, of.n, of.experts.count
    if at.orders():
        return launch_ping_pong[types.encoded(), M_TILES, True, grouping, rounding](
            of, ping_pong_grid(m, n, groups), queue, ordered, at.hidden_scales
        )
    comptime for i in range(len(INTERLEAVED_SHAPES)):
        comptime shape = shape_of(types.formats.left, i)
        comptime if has_shape(shape, types, grouping.is_gated):
            if index == i:
                comptime assert shape.splits == 1, "workgroups of groups share no tile"
                return launch_interleaved[types, shape, True, grouping, rounding](
                    of, interleaved_grid(shape, m, n, groups), queue
                )
    raise Error("no kernel was compiled for the shape that was chosen")
