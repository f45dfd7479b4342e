"""What the dispatch does with a product or with experts, in words and numbers, without a launch.

Launches of experts stand in the order in which they run: those of `multiply_grouped`, or of a layer.
"""

from std.builtin.globals import global_constant

from ...experts import Experts, ExpertsProblem, Routing
from ...launch.grid import Explained, Grid, Workspace
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import ANY, Left, NO_BIAS, Right
from ..chip import BLOCK, QUANTIZED_ROWS, QUANTIZE_WAVES
from ..moe_shape import ROWS, is_fused, streaming_grid, interleaved_grid, order_grid, ping_pong_grid
from ..moe_shape import quantize_grid, route_grid, slots_grid
from ..interleaved.shape import STAGE_K
from ..ping_pong.shape import COLUMNS
from ..prologue.shape import PART_BLOCKS
from ..types import Formats, ProductTypes, has_expert_kernels, has_kernels, unsupported
from .choices import shape_of_experts, row_of, workspace_of
from .experts import STREAMING_SHAPES, LayerMemory, LayerTypes, choose_streaming, shape_of
from .table import CHOICES, Choice

comptime BF16 = DType.bfloat16
"""The floats that are asked about."""


@fieldwise_init
struct Explanation(Copyable, Movable):
    """The row of the table for a product, and its launch."""

    var choice: Choice
    var grid: Grid
    var workspace: Workspace
    var quantizes_first: Bool


def explain(m: Int, n: Int, k: Int, formats: Formats, *, is_encoded: Bool) raises -> Explanation:
    """Returns what happens to bfloat16 activations, or to codes, and to weights [n, k]."""
    if not has_kernels(formats):
        raise Error(unsupported(formats))
    var types = _product_types(formats, None if is_encoded else Optional(BF16))
    var choice = global_constant[CHOICES]()[row_of(m, n, k, types.of_launch())]
    var space, grid = workspace_of(choice, m, n, k, types), choice.plan.grid(m, n)
    var quantizes_first = types.quantizes_first() or choice.quantizes_first(types)
    return Explanation(choice, grid, space, quantizes_first)


@fieldwise_init
struct LayerSizes(TrivialRegisterPassable):
    """The sizes of a layer, and its gate."""

    var tokens: Int
    var slots: Int
    var experts: Int
    var width: Int
    var inner: Int
    var gate: Gate

    def problem(self) -> ExpertsProblem:
        var right = Right(0, 0, 0, 0)
        var experts = Experts(right, self.experts, 0, 0, 0, NO_BIAS)
        var routing = Routing(0, 0, 0, 0, self.tokens, self.slots)
        var left = Left.encoded(0, 0, 0)
        return ExpertsProblem(
            left, experts, experts, routing, self.gate, 0, 0, self.width, self.inner
        )  # fmt: skip


def explain_grouped(
    m: Int, n: Int, k: Int, experts: Int, formats: Formats
) raises -> List[Explained]:
    """Returns the launch of a grouped product of bfloat16 rows."""
    _check(formats)
    return [_streaming("product", m, n, experts, formats)]


def explain_layer(sizes: LayerSizes, formats: Formats) raises -> List[Explained]:
    """Returns the launches of a layer for bfloat16 tokens."""
    _check(formats)
    var m, width, inner = sizes.tokens * sizes.slots, sizes.width, sizes.inner
    var launches = List[Explained]()
    launches.append(
        _helper(
            "route",
            "cdna4/experts/routing.mojo",
            "rows are sorted by expert",
            route_grid(sizes.experts),
        )
    )
    var encodes = _types(formats).encodes_before(m, sizes.experts)
    if encodes:
        launches.append(_encode("tokens are encoded once, not by each tile", sizes.tokens, width))
    var orders = encodes and _types(formats).orders(m, sizes.experts)
    if orders:
        launches.append(_order(m, sizes.experts, width))
    var n, gates = sizes.gate.sums(inner), is_fused(sizes.gate)
    launches.append(_product("gate_up", m, n, width, sizes.experts, formats, encodes, gates))
    if not gates:
        var reason = StaticString("gates are not neighbours of their ups")
        if not sizes.gate.is_there():
            reason = "ups have no gates"
        elif sizes.gate.is_interleaved():
            reason = "products gate by swiglu_oai alone"
        launches.append(_helper("gate", "cdna4/experts/slots.mojo", reason, slots_grid(m, inner)))
        if encodes:
            launches.append(_encode("hidden numbers are encoded once, not by each tile", m, inner))
        if orders:
            launches.append(_order(m, sizes.experts, inner))
    launches.append(_product("down", m, width, inner, sizes.experts, formats, encodes, False))
    var reason = StaticString("rows of a token are added in the order of its slots")
    launches.append(
        _helper("add", "cdna4/experts/slots.mojo", reason, slots_grid(sizes.tokens, width))
    )
    return launches^


def workspace_bytes(sizes: LayerSizes, formats: Formats) -> Int:
    """Returns the bytes that the launches of a layer need."""
    return LayerMemory.of(_types(formats), sizes.problem(), 0).num_bytes


def _check(formats: Formats) raises:
    """Raises if nothing is compiled for a pair."""
    if not has_expert_kernels(formats):
        raise Error(unsupported(formats))


def _types(formats: Formats) -> LayerTypes:
    """Returns a layer of bfloat16 without biases."""
    var product = _product_types(formats)
    return LayerTypes.of(product, product, BF16, ANY)


def _product_types(formats: Formats, x: Optional[DType] = BF16) -> ProductTypes:
    """Returns a product of bfloat16, or of codes, without a bias."""
    return ProductTypes(formats, x, Rounding.EVEN, BF16, None)


def _helper(name: StaticString, file: StaticString, reason: StaticString, grid: Grid) -> Explained:
    """Returns a launch that multiplies nothing."""
    return Explained(name, file, reason, "", 0, 0, grid)


def _encode(reason: StaticString, m: Int, k: Int) -> Explained:
    """Returns the launch that encodes the rows of a product."""
    var tile_k = QUANTIZE_WAVES * STAGE_K
    var grid = quantize_grid(m, k)
    return Explained(
        "encode", "cdna4/prepare/quantize.mojo", reason, "", QUANTIZED_ROWS, tile_k, grid
    )


def _order(m: Int, experts: Int, k: Int) -> Explained:
    """Returns the launch that orders the rows of a product by tiles."""
    var reason = StaticString("scales of a tile's rows share words")
    var grid = order_grid(m, experts, k)
    var tile_k = PART_BLOCKS * BLOCK
    return Explained(
        "order", "cdna4/prepare/order.mojo", reason, "", ROWS, tile_k, grid
    )  # fmt: skip


def _product(
    name: StaticString,
    m: Int,
    n: Int,
    k: Int,
    experts: Int,
    formats: Formats,
    is_encoded: Bool,
    is_gated: Bool,
) -> Explained:
    """Returns the launch of a product of a layer."""
    if not is_encoded:
        return _streaming(name, m, n, experts, formats)
    if _types(formats).orders(m, experts):
        var words = String("prefill", ROWS, "x", COLUMNS)
        return Explained(
            name, "cdna4/ping_pong/kernel.mojo", "codes: most groups have hundreds of rows", words,
            ROWS, COLUMNS, ping_pong_grid(m, n, experts),
        )  # fmt: skip
    var types = _product_types(formats)
    var shape = shape_of(formats.left, shape_of_experts(m, n, k, experts, types, is_gated))
    var reason = StaticString("codes: tiles have the rows of most groups")
    var words = String("middle", shape.rows(), "x", shape.columns())
    return Explained(
        name, "cdna4/interleaved/kernel.mojo", reason, words, shape.rows(), shape.columns(),
        interleaved_grid(shape, m, n, experts),
    )  # fmt: skip


def _streaming(name: StaticString, m: Int, n: Int, experts: Int, formats: Formats) -> Explained:
    """Returns the launch of a product that encodes floats on the way, or keeps them."""
    var types = _product_types(formats)
    var choice = choose_streaming(m, n, experts, types)
    var shape = materialize[STREAMING_SHAPES]()[choice]
    var grid = streaming_grid(shape, m, n, experts)
    var tile_m, tile_n = shape.tile()
    var reason = StaticString("tiles have the rows of an average group")
    if choice == 0:
        reason = "few groups have rows: narrow tiles, so that more compute units have work"
    elif experts * tile_m < m:
        reason = "an average group has more rows than the largest tile"
    return Explained(
        name, "cdna4/streaming/kernel.mojo", reason, shape.name(), tile_m, tile_n, grid
    )
