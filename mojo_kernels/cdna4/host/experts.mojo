"""Which kernels are launched for experts, with which shape, and where a layer's memory lies.

All that the host knows of the sizes of groups is their average. Streaming tiles have as many rows: an
expert's weights are read once for each tile, and a tile has rows of one expert. Encoded rows take
interleaved tiles, as high as most groups: `choices.mojo` says which. A stage of eight-bit codes is half as
long along K as one of four-bit codes, and there are twice as many of them on their way.
"""

from std.math import align_up, ceildiv, sqrt

from ...experts import ExpertsProblem
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ...numbers.scales import Scale
from ..chip import CUS, TILE, WORD_BYTES
from ..streaming.shape import StreamingShape
from ..arguments import OrderedRows
from ..moe_shape import code_bytes, encoded_bytes, list_bytes, record_bytes, scale_bytes
from ..moe_shape import is_fused, tiled_bytes
from ..prologue.shape import lies_by_tiles
from ..interleaved.shape import InterleavedShape, slices_of
from ..types import Formats, KEPT, ProductTypes, float_bytes
from .plan import has_room


def _shape(m_tiles: Int, n_tiles: Int, waves: Int, depth: Int) -> StreamingShape:
    """Returns a shape whose waves share K, which may end anywhere."""
    return StreamingShape(m_tiles, n_tiles, 1, waves, depth, True, 1)


comptime STREAMING_SHAPES = [
    _shape(1, 4, 8, 1),
    _shape(1, 8, 2, 1),
    _shape(2, 4, 4, 1),
    _shape(4, 4, 2, 1),
]
"""For few workgroups, then for groups of more and more rows.

The fewer waves share K, the more workgroups have room, and the less often do all wait to add up:
of the second shape six are on a compute unit, of one with four waves and 12 tiles of columns two.
"""
comptime FEW_WORKGROUPS = 2 * CUS
"""Fewer of the second shape leave compute units waiting."""


def has_kernel(shape: StreamingShape, types: ProductTypes) -> Bool:
    """Says whether LDS has room, and nothing spills: decoding under E4M3 scales takes registers."""
    comptime MOST_TILES = 2
    var has_registers = shape.m_tiles <= MOST_TILES or types.formats.right.scale != Scale.E4M3
    return has_room(shape, types) and has_registers


def choose_streaming(m: Int, n: Int, groups: Int, types: ProductTypes) -> Int:
    """Returns the position in `STREAMING_SHAPES` of the first that covers an average group, or of the last.

    The first is for so few rows that the second would leave compute units without work.
    """
    var found = 0
    comptime for i in range(len(STREAMING_SHAPES)):
        comptime shape = STREAMING_SHAPES[i]
        if has_kernel(shape, types):
            found = i
            comptime next_columns = STREAMING_SHAPES[1].n_tiles * TILE
            var workgroups = min(m, groups) * ceildiv(n, next_columns)
            var fills = i > 0 or workgroups < FEW_WORKGROUPS
            if fills and ceildiv(m, max(groups, 1)) <= shape.m_tiles * TILE:
                return i
    return found


comptime INTERLEAVED_SHAPES = [
    InterleavedShape(4, 3, 3, 1),
    InterleavedShape(4, 4, 2, 1),
    InterleavedShape(6, 3, 2, 1),
    InterleavedShape(6, 4, 2, 1),
    InterleavedShape(10, 3, 2, 1),
    InterleavedShape(10, 4, 2, 1),
    InterleavedShape(12, 3, 2, 1),
    InterleavedShape(12, 4, 2, 1),
]
"""For encoded rows, of groups of more and more rows. In a stage of wider formats fewer fit."""


def has_shape(shape: InterleavedShape, types: ProductTypes, are_gated: Bool) -> Bool:
    """Says whether a shape is for products: where hidden numbers are encoded, a wave has whole blocks
    of them, and where they are float32 before, the largest takes too many registers."""
    comptime WHOLE_BLOCKS, HIGH, HIGHEST = 4, 10, 12
    var is_wide = shape.n_tiles == WHOLE_BLOCKS
    if not are_gated:
        return not is_wide or shape.m_tiles >= HIGH
    return is_wide and (shape.m_tiles < HIGHEST or types.out != DType.float32)


def shape_of(left: Format, place: Int) -> InterleavedShape:
    """Returns the shape at a place of `INTERLEAVED_SHAPES`, for rows of a format."""
    var shape = materialize[INTERLEAVED_SHAPES]()[place]
    var bits = left.element.bits
    return InterleavedShape(
        shape.m_tiles, shape.n_tiles, shape.depth * shape.slices // slices_of(bits), 1, bits
    )


def most_rows() -> Int:
    """Returns the rows of the largest tile."""
    comptime last = len(INTERLEAVED_SHAPES) - 1
    comptime shape = INTERLEAVED_SHAPES[last]
    return shape.rows()


@fieldwise_init
struct LayerShapes(TrivialRegisterPassable):
    """Of the products of a layer whose rows are encoded before: places in `INTERLEAVED_SHAPES`."""

    var gate_up: Int
    var down: Int

    @staticmethod
    def parse(text: String, left: Format) raises -> Self:
        """Returns the shapes of a text: a name for each product."""
        var places = List[Int]()
        for name in text.split(" "):
            for i in range(len(materialize[INTERLEAVED_SHAPES]())):
                if shape_of(left, i).name() == name:
                    places.append(i)
        if len(places) != 2:
            raise Error(String("got the shapes '", text, "', expected two of INTERLEAVED_SHAPES"))
        return Self(places[0], places[1])

    def text(self, left: Format) -> String:
        return String(shape_of(left, self.gate_up).name(), " ", shape_of(left, self.down).name())


def usual_rows(m: Int, groups: Int) -> Int:
    """Returns how many rows few groups exceed, if m rows find their groups by chance."""
    var mean = Float64(m) / Float64(max(groups, 1))
    return Int(mean + 2 * sqrt(mean))


@fieldwise_init
struct LayerTypes(Copyable, ImplicitlyCopyable, Movable):
    """What a layer is compiled for."""

    var left: Format
    var x: DType
    var rounding: Rounding
    var gate_up: Format
    var gate_up_bias: Optional[DType]
    var down: Format
    var down_bias: Optional[DType]
    var out: DType
    var gates: Int
    """Whether the first product gates its sums: 1, 0 or `ANY`."""

    @staticmethod
    def of(gate_up: ProductTypes, down: ProductTypes, result: DType, gates: Int) -> Self:
        """Returns those of both products, whose activations are alike."""
        var formats, bias = gate_up.formats, gate_up.bias
        return Self(
            formats.left, gate_up.floats(), gate_up.rounding, formats.right, bias,
            down.formats.right, down.bias, result, gates,
        )  # fmt: skip

    def has_encoded_kernels(self) -> Bool:
        """Says whether there are kernels for rows that are encoded before: in more than four bits
        only of bfloat16, as other hidden numbers take too many registers."""
        comptime MXFP4 = Format.MXFP4
        var is_wide = self.left != KEPT and self.left != MXFP4
        var is_known = self.left == MXFP4 or (is_wide and self.x == DType.bfloat16)
        return is_known and self.gate_up == MXFP4 and self.down == MXFP4

    def encodes_before(self, slots: Int, groups: Int) -> Bool:
        """Says whether rows are encoded before the products: not if groups have few."""
        return self.has_encoded_kernels() and usual_rows(slots, groups) > TILE

    def orders(self, slots: Int, groups: Int) -> Bool:
        """Says whether encoded rows are ordered by tiles: if groups have hundreds."""
        return self.has_encoded_kernels() and usual_rows(slots, groups) > most_rows()

    def may_gate(self) -> Bool:
        return self.gates != 0

    def may_leave_sums(self) -> Bool:
        """Says whether the sums may be gated by a launch of their own."""
        return self.gates != 1

    def first(self, result: DType) -> ProductTypes:
        var formats = Formats(self.left, self.gate_up)
        return ProductTypes(formats, Optional(self.x), self.rounding, result, self.gate_up_bias)

    def second(self) -> ProductTypes:
        var formats = Formats(self.left, self.down)
        var x = Optional(self.x)
        return ProductTypes(formats, x, self.rounding, DType.float32, self.down_bias)


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
    """[slots, width], float32; before, if a launch gates them, the sums of hidden numbers."""
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
    comptime NOT_ORDERED = OrderedRows(-1, -1, -1, -1)

    def orders(self) -> Bool:
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
        var gates = is_fused(problem.gate)
        var orders = encodes and types.orders(slots, problem.gate_up.count)
        var experts = problem.gate_up.count
        var hidden_bytes = slots * problem.inner * float_bytes(types.x)
        if encodes and gates:
            hidden_bytes = encoded_bytes(slots, problem.inner, types.left)
            if orders:
                hidden_bytes = code_bytes(slots, problem.inner, types.left)
                if lies_by_tiles(types.left):
                    hidden_bytes = tiled_bytes(slots, experts, problem.inner, types.left)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var columns = problem.width
        if not gates:
            columns = max(columns, problem.sums())
        var end = rows + slots * columns * WORD_BYTES
        var encoded = Self.NOT_ENCODED
        if encodes:
            encoded = align_up(end, ALIGNMENT)
            var bytes = encoded_bytes(problem.routing.tokens, problem.width, types.left)
            if not gates:
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
            if lies_by_tiles(types.left):
                var longest = problem.width if gates else max(problem.width, problem.inner)
                ordered.codes = align_up(end, ALIGNMENT)
                end = ordered.codes + tiled_bytes(slots, experts, longest, types.left)
        var num_bytes = end - places + ALIGNMENT
        return Self(places, tokens, sizes, hidden, rows, encoded, ordered, hidden_scales, num_bytes)
