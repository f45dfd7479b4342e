"""How grouped products and layers of experts are launched on CDNA4, and with which cut.

A cut has tiles of as many rows as a group has on average, which is all that the host knows: an
expert's weights are read once for each tile of its rows, and a tile has rows of one expert.

    grouped product    one launch

    layer              route_slots      ids -> rows of tokens, sorted by expert
                       experts_decode   tokens, gathered -> hidden numbers, gated on the way
                       experts_decode   hidden numbers -> rows, float32
                       add_slots        rows, by token and in the order of slots -> y

With more rows than tiles of the decode kernel are made for, a layer of four-bit or eight-bit
activations encodes its tokens before, once (`encoded.mojo`):

                       quantize_rows    tokens -> codes
                       experts_middle   codes, gathered -> hidden numbers, gated and encoded
                       experts_middle   codes -> rows

With more rows than tiles of these have, products are `experts_prefill` (`prefill.mojo`), and
`order_rows` comes before the first one.

Gates that are not neighbours of their ups take launches of their own between the products:
`gate_sums`, and `quantize_rows` again for what it makes. What the launches hand over lies in the
workspace, see `LayerMemory`.
"""

from std.math import align_up, ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.queue import Queue, Workspace
from ...numbers.floats import float_code
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...problem import ANY, Known, Left
from ..chip import CUS, LDS_BYTES, MAX_TENSOR_BYTES
from ..decode.shape import DecodeLds, DecodeShape
from ..instructions.matrix import TILE, TILE_K
from ..operands.gate import QuickGate
from ..operands.memory import WORD_BYTES
from ..types import Formats, ProductTypes, float_bytes
from .cuts import usual_rows
from .encoded import (
    CodeRows,
    EncodedRows,
    code_bytes,
    encoded_bytes,
    launch_encoded,
    launch_quantize,
)
from .groups import most_tiles
from .kernel import ExpertRows, ExpertsKernel, Rows
from .prefill import OrderedRows, has_prefill, launch_order, launch_prefill, list_bytes
from .prefill import record_bytes, scale_bytes
from .routing import route
from .slots import launch_gates, launch_sums

comptime MAX_GRID_Y = (1 << 16) - 1
"""What HIP takes."""


def _cut(m_tiles: Int, n_tiles: Int, waves: Int, depth: Int) -> DecodeShape:
    """Returns a cut whose waves share K, which may end anywhere."""
    return DecodeShape(m_tiles, n_tiles, 1, waves, depth, True, 1)


comptime CUTS = [_cut(1, 4, 8, 1), _cut(1, 8, 2, 1), _cut(2, 4, 4, 1), _cut(4, 4, 2, 1)]
"""For few workgroups, then for groups of more and more rows.

The fewer waves share K, the more workgroups have room, and the less often do all wait to add up:
of the second cut six are on a compute unit, of one with four waves and 12 tiles of columns two.
"""
comptime FEW_WORKGROUPS = 2 * CUS
"""Fewer of the second cut leave compute units waiting."""


def fits(cut: DecodeShape, types: ProductTypes) -> Bool:
    """Says whether LDS has room for the activations of `types`."""
    var tile_bytes = TILE * TILE_K * float_bytes(types.floats())
    return DecodeLds(cut, tile_bytes, types.formats.left).num_bytes() <= LDS_BYTES


def choose(m: Int, n: Int, groups: Int, types: ProductTypes) -> Int:
    """Returns the position in `CUTS` of the first that covers an average group, or of the last.

    The first is for so few rows that the second would leave compute units without work.
    """
    var found = 0
    comptime for i in range(len(CUTS)):
        comptime cut = CUTS[i]
        if fits(cut, types):
            found = i
            comptime next_columns = CUTS[1].n_tiles * TILE
            var workgroups = min(m, groups) * ceildiv(n, next_columns)
            var fills = i > 0 or workgroups < FEW_WORKGROUPS
            if fills and ceildiv(m, max(groups, 1)) <= cut.m_tiles * TILE:
                return i
    return found


def multiply_grouped[types: ProductTypes](problem: GroupedProblem, mut queue: Some[Queue]) raises:
    """Launches a grouped product."""
    if problem.m == 0 or problem.n == 0:
        return
    _check[types](problem.left, problem.experts, problem.n, problem.k)
    if problem.dtype != float_code(types.out):
        raise Error("got a result of another type than was compiled for gfx950")
    var rows = ExpertRows(
        problem.left.values, problem.sizes, problem.m, 0, problem.m, problem.values
    )
    launch[types, Rows.GROUPED](rows, problem.experts, Gate.NONE, problem.n, problem.k, queue)


def launch[
    types: ProductTypes, rows: Rows
](of: ExpertRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches a product of experts with the cut that is chosen for it."""
    _check_all_bytes[types](of, experts, n, k)
    var choice = choose(of.m, n, experts.count, types)
    comptime for i in range(len(CUTS)):
        comptime cut = CUTS[i]
        comptime if fits(cut, types):
            if choice == i:
                var tiles = most_tiles(of.m, experts.count, cut.m_tiles * TILE)
                if tiles > MAX_GRID_Y:
                    raise Error(
                        String(
                            "got ", of.m, " rows of ", experts.count, " experts, which can be ",
                            tiles, " tiles, expected at most ", MAX_GRID_Y,
                            ": call with fewer rows at a time",
                        )
                    )  # fmt: skip
                return ExpertsKernel[types, cut, rows].launch(of, experts, gate, n, k, queue)


def _check[types: ProductTypes](left: Left, experts: Experts, n: Int, k: Int) raises:
    """Raises unless a product is of what was compiled."""
    var problem = types.problem(1, n, k)
    problem.left = left
    problem.right = experts.right
    problem.result.bias_dtype = experts.bias_dtype
    if not types.match(problem) or (left.row_stride != k):
        raise Error("got experts of other formats, types or layout than were compiled for gfx950")


def _check_all_bytes[types: ProductTypes](of: ExpertRows, experts: Experts, n: Int, k: Int) raises:
    """Raises unless kernels can count the bytes of all tensors."""
    _check_bytes("activations", of.num_tokens * types.row_bytes(k), of.m, n, k)
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


@fieldwise_init
struct LayerMemory(TrivialRegisterPassable):
    """Where in the workspace lie what the launches of a layer hand over, in bytes."""

    var places: Int
    """Of slots, [slots]."""
    var tokens: Int
    """Of rows, [slots]."""
    var sizes: Int
    """Of groups, [experts]."""
    var hidden: Int
    """[slots, inner], floats like the tokens; or codes and scales, if the first product encodes
    them."""
    var rows: Int
    """[slots, width], float32; before, if gates are halves, the sums [slots, 2 * inner]."""
    var encoded: Int
    """Codes and scales of tokens, then of hidden numbers that a launch of its own encodes;
    `NOT_ENCODED` if the products encode them."""
    var ordered: OrderedRows
    """Rows of tokens by tiles; `NOT_ORDERED` if products take them as they are."""
    var hidden_scales: Int
    """Scales of hidden numbers by tiles."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    comptime NOT_ENCODED = -1
    comptime NOT_ORDERED = OrderedRows(-1, -1, -1)

    def orders(self) -> Bool:
        """Says whether rows are ordered by tiles."""
        return self.ordered.tiles != materialize[Self.NOT_ORDERED]().tiles

    @staticmethod
    def of(types: LayerTypes, problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer from an address on."""
        comptime ALIGNMENT = 256
        var slots = problem.routing.count()
        var places = align_up(address, ALIGNMENT)
        var tokens = align_up(places + slots * WORD_BYTES, ALIGNMENT)
        var sizes = align_up(tokens + slots * WORD_BYTES, ALIGNMENT)
        var hidden = align_up(sizes + problem.gate_up.count * WORD_BYTES, ALIGNMENT)
        var encodes = types.encodes_before(slots, problem.gate_up.count)
        var is_interleaved = problem.gate.is_interleaved()
        encodes &= not is_interleaved or QuickGate.takes(problem.gate)
        var orders = encodes and types.orders(slots, problem.gate_up.count)
        var experts = problem.gate_up.count
        var hidden_bytes = slots * problem.inner * float_bytes(types.x)
        if encodes and is_interleaved:
            hidden_bytes = encoded_bytes(slots, problem.inner, types.left)
            if orders:
                hidden_bytes = code_bytes(slots, problem.inner, types.left)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var columns = problem.width
        if not is_interleaved:
            columns = max(columns, 2 * problem.inner)
        var end = rows + slots * columns * WORD_BYTES
        var encoded = Self.NOT_ENCODED
        if encodes:
            encoded = align_up(end, ALIGNMENT)
            var bytes = encoded_bytes(problem.routing.tokens, problem.width, types.left)
            if not is_interleaved:
                bytes = max(bytes, encoded_bytes(slots, problem.inner, types.left))
            end = encoded + bytes
        var ordered, hidden_scales = materialize[Self.NOT_ORDERED](), end
        if orders:
            ordered.tiles = align_up(end, ALIGNMENT)
            ordered.rows = align_up(ordered.tiles + record_bytes(slots, experts), ALIGNMENT)
            ordered.scales = align_up(ordered.rows + list_bytes(slots, experts), ALIGNMENT)
            end = ordered.scales + scale_bytes(slots, experts, problem.width)
            hidden_scales = align_up(end, ALIGNMENT)
            end = hidden_scales + scale_bytes(slots, experts, problem.inner)
        var num_bytes = end - places + ALIGNMENT
        return Self(places, tokens, sizes, hidden, rows, encoded, ordered, hidden_scales, num_bytes)


@fieldwise_init
struct LayerTypes(Copyable, ImplicitlyCopyable, Movable):
    """What a layer is compiled for."""

    var left: Format
    """What activations are rounded to."""
    var x: DType
    """The type of the tokens."""
    var rounding: Rounding
    var gate_up: Format
    var gate_up_bias: Optional[DType]
    var down: Format
    var down_bias: Optional[DType]
    var out: DType
    var gate: Int
    """Position in `GATES`, or `ANY`."""

    @staticmethod
    def of(gate_up: Known, down: Known, result: DType, gate: Int) -> Self:
        """Returns what is known of both products; all of it but their layouts must be."""
        var first, second = ProductTypes.of(gate_up), ProductTypes.of(down)
        return Self(
            first.formats.left,
            first.floats(),
            first.rounding,
            first.formats.right,
            first.bias,
            second.formats.right,
            second.bias,
            result,
            gate,
        )

    def has_encoded_kernels(self) -> Bool:
        """Says whether there are kernels for rows that are encoded before: in eight bits only of
        bfloat16, as other hidden numbers take too many registers."""
        comptime MXFP4 = Format.MXFP4
        var is_wide = self.left == Format.MXFP8 or self.left == Format.MXFP8_E5M2
        var is_known = self.left == MXFP4 or (is_wide and self.x == DType.bfloat16)
        return is_known and self.gate_up == MXFP4 and self.down == MXFP4

    def encodes_before(self, slots: Int, groups: Int) -> Bool:
        """Says whether rows are encoded before the products: not if groups have few."""
        return self.has_encoded_kernels() and usual_rows(slots, groups) > TILE

    def has_ordered_kernels(self) -> Bool:
        """Says whether there are kernels for rows that are ordered by tiles."""
        return self.has_encoded_kernels()

    def orders(self, slots: Int, groups: Int) -> Bool:
        """Says whether encoded rows are ordered by tiles: if groups have hundreds."""
        return self.has_ordered_kernels() and has_prefill(slots, groups)

    def may_be_neighbours(self) -> Bool:
        """Says whether gates may be neighbours of their ups."""
        return self.gate == ANY or Gate(self.gate, 0, 0).is_interleaved()

    def may_be_halves(self) -> Bool:
        """Says whether gates may be one half of a row, and ups the other."""
        return self.gate == ANY or not Gate(self.gate, 0, 0).is_interleaved()

    def first(self, result: DType) -> ProductTypes:
        """Returns the types of the first product, whose results are of type `result`."""
        var formats = Formats(self.left, self.gate_up)
        return ProductTypes(formats, Optional(self.x), self.rounding, result, self.gate_up_bias)

    def second(self) -> ProductTypes:
        """Returns the types of the second product."""
        var formats = Formats(self.left, self.down)
        var x = Optional(self.x)
        return ProductTypes(formats, x, self.rounding, DType.float32, self.down_bias)


def workspace_of[types: LayerTypes](problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    return Workspace(0, LayerMemory.of(types, problem, 0).num_bytes)


def multiply_experts[types: LayerTypes](problem: ExpertsProblem, mut queue: Some[Queue]) raises:
    """Launches a layer of experts."""
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
                _multiply_codes[types](problem, at, queue)
    launch_sums[types.out](at.rows, at.places, problem.routing, problem.values, width, queue)


def _multiply[
    types: LayerTypes
](problem: ExpertsProblem, at: LayerMemory, mut queue: Some[Queue]) raises:
    """Launches the products of a layer, which encode floats on their way."""
    comptime neighbours, halves = types.first(types.x), types.first(DType.float32)
    var n, k, slots = 2 * problem.inner, problem.width, problem.routing.count()
    var rows = ExpertRows(
        problem.left.values, at.sizes, slots, at.tokens, problem.routing.tokens, at.hidden
    )
    if problem.gate.is_interleaved():
        comptime if types.may_be_neighbours():
            launch[neighbours, Rows.HIDDEN](rows, problem.gate_up, problem.gate, n, k, queue)
    else:
        comptime if types.may_be_halves():
            rows.result = at.rows
            launch[halves, Rows.SUMS](rows, problem.gate_up, Gate.NONE, n, k, queue)
            launch_gates[types.x](at.rows, at.hidden, slots, problem.inner, queue)
    var hidden = ExpertRows(at.hidden, at.sizes, slots, 0, slots, at.rows)
    launch[types.second(), Rows.DOWN](
        hidden, problem.down, Gate.NONE, problem.width, problem.inner, queue
    )


def _multiply_codes[
    types: LayerTypes
](problem: ExpertsProblem, at: LayerMemory, mut queue: Some[Queue]) raises:
    """Launches the products of a layer from codes."""
    comptime neighbours, halves = types.first(types.x), types.first(DType.float32)
    comptime second, rounding = types.second(), types.rounding
    var width, inner, slots = problem.width, problem.inner, problem.routing.count()
    var tokens = problem.routing.tokens
    var x = ExpertRows(problem.left.values, at.sizes, slots, at.tokens, tokens, at.hidden)
    _check_all_bytes[neighbours](x, problem.gate_up, 2 * inner, width)
    var floats = ExpertRows(at.hidden, at.sizes, slots, 0, slots, at.rows)
    _check_all_bytes[second](floats, problem.down, width, inner)

    launch_quantize[types.left, types.x, rounding](x.x, at.encoded, tokens, width, queue)
    var rows = EncodedRows(at.encoded, tokens, at.tokens, at.sizes, slots, at.hidden)
    var hidden = EncodedRows(at.hidden, slots, 0, at.sizes, slots, at.rows)
    var of_hidden = OrderedRows(at.ordered.tiles, at.ordered.rows, at.hidden_scales)
    comptime if types.has_ordered_kernels():
        if at.orders():
            launch_order[types.left, True](rows, at.ordered, problem.gate_up.count, width, queue)
    if problem.gate.is_interleaved():
        comptime if types.may_be_neighbours():
            _launch_codes[neighbours, rounding, CodeRows.HIDDEN](
                rows, at, at.ordered, problem.gate_up, problem.gate, 2 * inner, width, queue
            )
    else:
        comptime if types.may_be_halves():
            rows.result = at.rows
            _launch_codes[halves, rounding, CodeRows.SUMS](
                rows, at, at.ordered, problem.gate_up, Gate.NONE, 2 * inner, width, queue
            )
            launch_gates[types.x](at.rows, at.hidden, slots, inner, queue)
            launch_quantize[types.left, types.x, rounding](
                at.hidden, at.encoded, slots, inner, queue
            )
            hidden.encoded = at.encoded
            comptime if types.has_ordered_kernels():
                if at.orders():
                    var experts = problem.down.count
                    launch_order[types.left, False](hidden, of_hidden, experts, inner, queue)
    _launch_codes[second, rounding, CodeRows.DOWN](
        hidden, at, of_hidden, problem.down, Gate.NONE, width, inner, queue
    )


def _launch_codes[
    types: ProductTypes, rounding: Rounding, rows: CodeRows
](
    of: EncodedRows,
    at: LayerMemory,
    ordered: OrderedRows,
    experts: Experts,
    gate: Gate,
    n: Int,
    k: Int,
    mut queue: Some[Queue],
) raises:
    """Launches a product of encoded rows, by tiles if they are ordered."""
    if at.orders():
        return launch_prefill[types, rounding, rows](
            of, ordered, at.hidden_scales, experts, gate, n, k, queue
        )
    launch_encoded[types, rounding, rows](of, experts, gate, n, k, queue)
