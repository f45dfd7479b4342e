"""What the dispatch does with experts, in words and numbers, without a launch.

Launches stand in the order in which they run: those of `multiply_grouped`, or of a layer.
"""

from ...experts import Experts, ExpertsProblem, Routing
from ...launch.explained import Explained
from ...launch.queue import Grid
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import ANY, Left, NO_BIAS, Right
from ..instructions.matrix import BLOCK
from ..middle.shape import STAGE_K
from ..operands.quantizer import QUANTIZED_ROWS
from ..prefill.activations import PART_BLOCKS
from ..prefill.shape import COLUMNS
from ..quantize.kernel import WAVES
from ..types import Formats, ProductTypes, has_expert_kernels, unsupported
from . import cuts, encoded, kernel, prefill, slots
from .dispatch import CUTS, LayerMemory, LayerTypes, choose
from .routing import route_grid

comptime X = DType.bfloat16
"""The floats that are asked about."""


@fieldwise_init
struct LayerSizes(TrivialRegisterPassable):
    """The sizes of a layer, and what its gates are."""

    var tokens: Int
    var slots: Int
    """Of a token."""
    var experts: Int
    var width: Int
    var inner: Int
    var is_interleaved: Bool
    """Whether gates and ups are neighbours."""

    def problem(self) -> ExpertsProblem:
        """Returns a layer of that size, without memory."""
        var right = Right(0, 0, 0, 0)
        var experts = Experts(right, self.experts, 0, 0, 0, NO_BIAS)
        var gate = Gate(Gate.SWIGLU_OAI if self.is_interleaved else Gate.SILU, 0, 0)
        var routing = Routing(0, 0, 0, 0, self.tokens, self.slots)
        var left = Left.encoded(0, 0, 0)
        return ExpertsProblem(
            left, experts, experts, routing, gate, 0, 0, self.width, self.inner
        )  # fmt: skip


def explain_grouped(
    m: Int, n: Int, k: Int, experts: Int, formats: Formats
) raises -> List[Explained]:
    """Returns the launch of a grouped product of bfloat16 rows."""
    _check(formats)
    return [_decode("product", m, n, experts, formats)]


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
    var is_gated = sizes.is_interleaved
    launches.append(
        _product("gate_up", m, 2 * inner, width, sizes.experts, formats, encodes, is_gated)
    )
    if not sizes.is_interleaved:
        var reason = StaticString("gates are not neighbours of their ups")
        launches.append(
            _helper("gate", "cdna4/experts/slots.mojo", reason, slots.grid_of(m, inner))
        )
        if encodes:
            launches.append(_encode("hidden numbers are encoded once, not by each tile", m, inner))
        if orders:
            launches.append(_order(m, sizes.experts, inner))
    launches.append(_product("down", m, width, inner, sizes.experts, formats, encodes, False))
    var reason = StaticString("rows of a token are added in the order of its slots")
    launches.append(
        _helper("add", "cdna4/experts/slots.mojo", reason, slots.grid_of(sizes.tokens, width))
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
    var right = formats.right
    return LayerTypes(formats.left, X, Rounding.EVEN, right, None, right, None, X, ANY)


def _helper(name: StaticString, file: StaticString, reason: StaticString, grid: Grid) -> Explained:
    """Returns a launch that multiplies nothing."""
    return Explained(name, file, reason, "", 0, 0, grid)


def _encode(reason: StaticString, m: Int, k: Int) -> Explained:
    """Returns the launch that encodes the rows of a product."""
    var tile_k = WAVES * STAGE_K
    var grid = encoded.quantize_grid(m, k)
    return Explained(
        "encode", "cdna4/experts/encoded.mojo", reason, "", QUANTIZED_ROWS, tile_k, grid
    )


def _order(m: Int, experts: Int, k: Int) -> Explained:
    """Returns the launch that orders the rows of a product by tiles."""
    var reason = StaticString("scales of a tile's rows share words")
    var grid = prefill.order_grid(m, experts, k)
    var tile_k = PART_BLOCKS * BLOCK
    return Explained(
        "order", "cdna4/experts/prefill.mojo", reason, "", prefill.ROWS, tile_k, grid
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
        return _decode(name, m, n, experts, formats)
    if _types(formats).orders(m, experts):
        var words = String("prefill", prefill.ROWS, "x", COLUMNS)
        return Explained(
            name, "cdna4/experts/prefill.mojo", "codes: most groups have hundreds of rows", words,
            prefill.ROWS, COLUMNS, prefill.grid_of(m, n, experts),
        )  # fmt: skip
    var choice = cuts.choose(m, n, k, experts, formats.left, is_gated)
    var cut = cuts.cut_of(formats.left, choice, is_gated)
    var reason = StaticString("codes: tiles have the rows of most groups")
    var words = String("middle", cut.rows(), "x", cut.columns())
    return Explained(
        name, "cdna4/experts/encoded.mojo", reason, words, cut.rows(), cut.columns(),
        encoded.grid_of(cut, m, n, experts),
    )  # fmt: skip


def _decode(name: StaticString, m: Int, n: Int, experts: Int, formats: Formats) -> Explained:
    """Returns the launch of a product that encodes floats on the way, or keeps them."""
    var types = ProductTypes(formats, Optional(X), Rounding.EVEN, X, None)
    var choice = choose(m, n, experts, types)
    var cut = materialize[CUTS]()[choice]
    var grid = kernel.grid_of(cut, m, n, experts)
    var tile_m, tile_n = cut.tile()
    var reason = StaticString("tiles have the rows of an average group")
    if choice == 0:
        reason = "few groups have rows: narrow tiles, so that more compute units have work"
    elif experts * tile_m < m:
        reason = "an average group has more rows than the largest tile"
    return Explained(name, "cdna4/experts/kernel.mojo", reason, cut.name(), tile_m, tile_n, grid)
