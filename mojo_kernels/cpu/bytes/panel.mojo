"""Quantized activations times a panel of weights: an integer dot product a block.

For every block the loop takes the integer dot product of each row with each column,
converts it once, and adds it to a float32 sum, blocks in order:

    sum = float32(dot) * ((a_scale * a_unit) * (b_scale * b_unit)) + sum, rounded once

The product of the scales takes one integer addition of exponents. That is the whole
arithmetic of C.
"""

from layout import Coord
from std.collections import Array
from std.memory import bitcast

from ...layouts import OperandShape
from ...numbers.elements import Element
from ...numbers.formats import Format
from ...numbers.scales import E8M0_NAN, decode_scale
from ...operands import Tiles, on_stack
from ..panel import DecodedStretch, PANEL_TILES, PanelProduct, PanelSums, WeightPanel
from ..vectors import LANES, STEP_BYTES, Sums, Words, add_exact_product
from ..weights import WeightTiles
from ..window import ScaleWindow
from .activations import Activations, GROUP_ROWS, STRETCH_BLOCKS
from .dot import ActivationBytes, BlockDot, Lanes, Reach, WeightBytes
from .integers import BLOCK, VECTORS, place_of, unit_shift, weight_bytes


trait ByteSource(TrivialRegisterPassable):
    """The weights of a panel as offset bytes, block by block."""

    comptime Codes: TrivialRegisterPassable
    """What stands for the codes of a tile in one block."""

    def codes(self, tile: Int, block: Int) -> Self.Codes:
        """Returns the codes of tile `tile` of the panel."""
        ...

    def bytes[vector: Int](self, codes: Self.Codes) -> WeightBytes:
        """Returns one vector of them."""
        ...

    def unit_scales(self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of the scales of tile `tile`, times the unit."""
        ...


@fieldwise_init
struct _DirectBytes[Weights: WeightTiles](ByteSource):
    """Weights that are decoded in registers each time they are loaded."""

    comptime Codes = Self.Weights.Codes

    var panel: WeightPanel[Self.Weights]

    @always_inline
    def codes(self, tile: Int, block: Int) -> Self.Codes:
        return self.panel.codes(tile, block)

    @always_inline
    def bytes[vector: Int](self, codes: Self.Codes) -> WeightBytes:
        return weight_bytes[vector](self.panel.tiles, codes)

    @always_inline
    def unit_scales(self, tile: Int, block: Int) -> Words:
        return self.panel.scale_bits[unit_shift[Self.Weights.format.element]()](tile, block)


@fieldwise_init
struct DecodedBytes(ByteSource, DecodedStretch):
    """A stretch of a panel that was decoded beforehand.

    stored    [block and tile, vector, 64]
    scales    [block and tile, 16]
    """

    comptime Codes = Int
    """The number of the tile, counted block by block."""
    comptime TILES = STRETCH_BLOCKS * PANEL_TILES

    var stored: Tiles[DType.uint8, Self.TILES, VECTORS, STEP_BYTES]
    """The unsigned weights."""
    var scales: Tiles[DType.uint32, Self.TILES, LANES]
    """The float32 bits of the scales times the unit."""

    @staticmethod
    @always_inline
    def on_stack() -> Self:
        """Returns memory for a stretch that lives as long as the calling function."""
        return Self(
            on_stack[DType.uint8, Self.TILES, VECTORS, STEP_BYTES](),
            on_stack[DType.uint32, Self.TILES, LANES](),
        )

    def decode[Weights: WeightTiles](self, panel: WeightPanel[Weights], num_blocks: Int):
        """Decodes the first `num_blocks` blocks of `panel`."""
        var source = _DirectBytes(panel)
        for block in range(num_blocks):
            comptime for tile in range(PANEL_TILES):
                var codes = source.codes(tile, block)
                var at = self.codes(tile, block)
                comptime for vector in range(VECTORS):
                    self.stored.store(Coord(at, vector, 0), source.bytes[vector](codes))
                self.scales.store(Coord(at, 0), source.unit_scales(tile, block))

    @always_inline
    def codes(self, tile: Int, block: Int) -> Int:
        """Returns the number of tile `tile`."""
        return block * PANEL_TILES + tile

    @always_inline
    def bytes[vector: Int](self, codes: Int) -> WeightBytes:
        """Returns one vector."""
        return self.stored.load[width=STEP_BYTES](Coord(codes, vector, 0))

    @always_inline
    def unit_scales(self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of the scales of tile `tile`, times the unit."""
        return self.scales.load[width=LANES](Coord(self.codes(tile, block), 0))


@always_inline
def _broadcast_run(a: Activations, offset: Int) -> ActivationBytes:
    """Repeats four neighbouring activation bytes in every lane."""
    var run = bitcast[DType.int32, 1](a.values.load[width=4](Coord(offset)))
    return bitcast[DType.int8, STEP_BYTES](Lanes(run[0]))


def _add_stretch[
    reach: Reach, num_rows: Int, Source: ByteSource
](
    a: Activations,
    first_row: Int,
    source: Source,
    first_block: Int,
    num_blocks: Int,
    sums: PanelSums,
    sums_row: Int,
):
    """Adds a stretch of K to the sums of one group, which start at row `sums_row`.

    The stretch starts at block `first_block` of the activations and at block 0 of the source.
    """
    comptime NUM_SUMS = num_rows * PANEL_TILES
    var total = Array[Sums, NUM_SUMS](uninitialized=True)
    comptime for i in range(NUM_SUMS):
        total[i] = Sums(0)
    if first_block > 0:
        comptime for i in range(NUM_SUMS):
            comptime row, tile = divmod(i, PANEL_TILES)
            total[i] = sums.load[width=LANES](Coord(sums_row + row, tile * LANES))

    var first_index = a.order().index(first_row, first_block)
    for block in range(num_blocks):
        var index = first_index + block * num_rows
        var dots = Array[BlockDot[reach].Accumulator, NUM_SUMS](uninitialized=True)
        comptime for row in range(num_rows):
            var start = BlockDot[reach].start(a.corrections.load[width=1](Coord(index + row)))
            comptime for tile in range(PANEL_TILES):
                dots[row * PANEL_TILES + tile] = start

        var codes = Array[Source.Codes, PANEL_TILES](uninitialized=True)
        comptime for tile in range(PANEL_TILES):
            codes[tile] = source.codes(tile, block)
        comptime for vector in range(VECTORS):
            var weights = Array[WeightBytes, PANEL_TILES](uninitialized=True)
            comptime for tile in range(PANEL_TILES):
                weights[tile] = source.bytes[vector](codes[tile])
            comptime for row in range(num_rows):
                var run = _broadcast_run(a, index * BLOCK + (row * BLOCK + place_of(vector)))
                comptime for tile in range(PANEL_TILES):
                    comptime i = row * PANEL_TILES + tile
                    dots[i] = BlockDot[reach].step(dots[i], weights[tile], run)

        comptime for tile in range(PANEL_TILES):
            var unit_scales = source.unit_scales(tile, block)
            comptime for row in range(num_rows):
                comptime i = row * PANEL_TILES + tile
                var exponent = Words(a.exponents.load[width=1](Coord(index + row)))
                var scale = bitcast[DType.float32, LANES](unit_scales + exponent)
                var dot = BlockDot[reach].finish(dots[i]).cast[DType.float32]()
                total[i] = add_exact_product(dot, scale, total[i])

    comptime for i in range(NUM_SUMS):
        comptime row, tile = divmod(i, PANEL_TILES)
        sums.store(Coord(sums_row + row, tile * LANES), total[i])


@fieldwise_init
struct ByteProduct[reach: Reach](PanelProduct):
    """Activations as integers."""

    comptime GROUP_ROWS = GROUP_ROWS
    """Rows whose sums fit in the vector registers together."""
    comptime STRETCH_BLOCKS = STRETCH_BLOCKS
    """Blocks of K that are decoded at a time."""
    comptime Decoded = DecodedBytes
    """Where a stretch of weights is decoded to."""

    var a: Activations
    """The activations, [M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.a.shape

    @always_inline
    def row_bytes(self) -> Int:
        """Returns the bytes that a row of activations takes."""
        return self.a.shape.k

    @always_inline
    def add_panel[
        num_rows: Int, Weights: WeightTiles
    ](self, panel: WeightPanel[Weights], sums: PanelSums):
        """Sums all of K for the only group of rows."""
        # The blocks of a single group are contiguous across stretches.
        var num_blocks = self.a.shape.k // BLOCK
        _add_stretch[Self.reach, num_rows](self.a, 0, _DirectBytes(panel), 0, num_blocks, sums, 0)

    @always_inline
    def add_decoded[
        num_rows: Int
    ](
        self,
        first_row: Int,
        decoded: DecodedBytes,
        first_block: Int,
        num_blocks: Int,
        sums: PanelSums,
        sums_row: Int,
    ):
        """Adds a stretch of K to the sums of a group."""
        _add_stretch[Self.reach, num_rows](
            self.a, first_row, decoded, first_block, num_blocks, sums, sums_row
        )

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the scale window of some rows."""
        return self.a.windows.of(first_row, num_rows)

    @staticmethod
    def is_regular[format: Format](rows: ScaleWindow, weights: ScaleWindow) -> Bool:
        """Says whether the scales times their units, and their products, are regular float32."""
        comptime HALVINGS = unit_shift[format.element]() - 1
        var halves = weights
        halves.low -= HALVINGS
        if halves.high < E8M0_NAN:
            halves.high -= HALVINGS
        return rows.multiplies_regularly(halves)

    def sum_in_float64[Weights: WeightTiles](self, row: Int, tiles: Weights, tile: Int) -> Sums:
        """Returns the sums of one row and one tile, for scales that float32 cannot multiply.

        Products of scales are exact in float64, and a NaN scale makes its sums NaN.
        """
        comptime RIGHT_SHIFT = unit_shift[Weights.format.element]()
        var units = Float64(1) / Float64(1 << (self.a.unit_shift + RIGHT_SHIFT))
        var total = SIMD[DType.float64, LANES](0)
        for block in range(self.a.shape.k // BLOCK):
            var index = self.a.order().index(row, block)
            var codes = tiles.codes(tile, block)
            var dots = BlockDot[Self.reach].start(self.a.corrections.load[width=1](Coord(index)))
            comptime for vector in range(VECTORS):
                dots = BlockDot[Self.reach].step(
                    dots,
                    weight_bytes[vector](tiles, codes),
                    _broadcast_run(self.a, index * BLOCK + place_of(vector)),
                )
            var a_scale = decode_scale[1](self.a.scales.load[width=1](Coord(index)))
            var b_scales = decode_scale(tiles.scales(tile, block).cast[DType.uint8]())
            var values = BlockDot[Self.reach].finish(dots).cast[DType.float64]() * units
            total += values * (b_scales * a_scale)
        return total.cast[DType.float32]()

    @staticmethod
    def decodes_in_registers[Weights: WeightTiles]() -> Bool:
        """Says whether a single group of rows decodes weights each time they are loaded."""
        return Weights.IS_FAST and Weights.format.element == Element.E2M1
