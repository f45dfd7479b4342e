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
from ...numbers.formats import Format
from ...numbers.scales import E8M0_NAN, decode_scale
from ...operands import Tiles, on_stack
from ..block_order import RowGroups
from ..ranges import RowRange
from ..panel import DecodedStretch, PANEL_TILES, PanelPart, PanelProduct, WeightPanel
from ..vectors import BLOCK, LANES, STEP_BYTES, Sums, Words, add_exact_product
from ..weights import WeightTiles
from ..window import ScaleWindow
from .activations import ExpandedRows, LIMITS, STRETCH_BLOCKS
from .dot import ActivationBytes, BlockDot, Lanes, Reach, WeightBytes
from .integers import VECTORS, place_of, unit_shift, weight_bytes


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
def _broadcast_run(a: ExpandedRows, offset: Int) -> ActivationBytes:
    """Repeats four neighbouring activation bytes in every lane."""
    var run = bitcast[DType.int32, 1](a.values.load[width=4](Coord(offset)))
    return bitcast[DType.int8, STEP_BYTES](Lanes(run[0]))


def _add_part[
    reach: Reach, num_rows: Int, num_tiles: Int, Source: ByteSource
](a: ExpandedRows, part: PanelPart, first_tile: Int, source: Source):
    """Adds a part to the sums of its group, for tiles from `first_tile` on.

    The part starts at block 0 of the source.
    """
    comptime NUM_SUMS = num_rows * num_tiles
    var total = Array[Sums, NUM_SUMS](uninitialized=True)
    comptime for i in range(NUM_SUMS):
        total[i] = Sums(0)
    if part.first_block > 0:
        comptime for i in range(NUM_SUMS):
            comptime row, tile = divmod(i, num_tiles)
            var column = (first_tile + tile) * LANES
            total[i] = part.sums.load[width=LANES](Coord(part.sums_row + row, column))

    var first_index = a.order().of_group(part.group, part.first_block)
    for block in range(part.num_blocks):
        var index = first_index + block * num_rows
        var dots = Array[BlockDot[reach].Accumulator, NUM_SUMS](uninitialized=True)
        comptime for row in range(num_rows):
            var start = BlockDot[reach].start(a.corrections.load[width=1](Coord(index + row)))
            comptime for tile in range(num_tiles):
                dots[row * num_tiles + tile] = start

        var codes = Array[Source.Codes, num_tiles](uninitialized=True)
        comptime for tile in range(num_tiles):
            codes[tile] = source.codes(first_tile + tile, block)
        comptime for vector in range(VECTORS):
            var weights = Array[WeightBytes, num_tiles](uninitialized=True)
            comptime for tile in range(num_tiles):
                weights[tile] = source.bytes[vector](codes[tile])
            comptime for row in range(num_rows):
                var run = _broadcast_run(a, index * BLOCK + (row * BLOCK + place_of(vector)))
                comptime for tile in range(num_tiles):
                    comptime i = row * num_tiles + tile
                    dots[i] = BlockDot[reach].step(dots[i], weights[tile], run)

        comptime for tile in range(num_tiles):
            var unit_scales = source.unit_scales(first_tile + tile, block)
            comptime for row in range(num_rows):
                comptime i = row * num_tiles + tile
                var exponent = Words(a.exponents.load[width=1](Coord(index + row)))
                var scale = bitcast[DType.float32, LANES](unit_scales + exponent)
                var dot = BlockDot[reach].finish(dots[i]).cast[DType.float32]()
                total[i] = add_exact_product(dot, scale, total[i])

    comptime for i in range(NUM_SUMS):
        comptime row, tile = divmod(i, num_tiles)
        var column = (first_tile + tile) * LANES
        part.sums.store(Coord(part.sums_row + row, column), total[i])


@fieldwise_init
struct ByteProduct[reach: Reach](PanelProduct):
    """Activations as integers."""

    comptime LIMITS = LIMITS
    """How many rows are multiplied together."""
    comptime STRETCH_BLOCKS = STRETCH_BLOCKS
    """Blocks of K that are decoded at a time."""
    comptime Decoded = DecodedBytes
    """Where a stretch of weights is decoded to."""

    var a: ExpandedRows
    """The activations, [M, k]."""

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.a.shape

    @always_inline
    def of_range(self, rows: RowRange) -> Self:
        """Returns a part of the rows."""
        return Self(self.a.of_range(rows))

    @always_inline
    def groups(self) -> RowGroups:
        """Returns how the rows are cut."""
        return self.a.groups

    @always_inline
    def row_bytes(self) -> Int:
        """Returns the bytes that a row of activations takes."""
        return self.a.shape.k

    @always_inline
    def add[
        num_rows: Int, Weights: WeightTiles
    ](self, part: PanelPart, tile: Int, panel: WeightPanel[Weights]):
        """Adds a part for one tile of the panel, decoding it in registers."""
        _add_part[Self.reach, num_rows, 1](self.a, part, tile, _DirectBytes(panel))

    @always_inline
    def add_decoded[num_rows: Int](self, part: PanelPart, decoded: DecodedBytes):
        """Adds a part for all tiles of a panel."""
        _add_part[Self.reach, num_rows, PANEL_TILES](self.a, part, 0, decoded)

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the scale window of some rows."""
        return self.a.windows.of(first_row, num_rows)

    @staticmethod
    def is_regular[format: Format](rows: ScaleWindow, weights: ScaleWindow) -> Bool:
        """Says whether the scales times their units, their products and all sums are regular
        float32.

        A block's sum of products of integers is below 2**BLOCK_BITS.
        """
        comptime BLOCK_BITS = 20
        comptime NUM_BLOCKS_BITS = 32
        comptime HALVINGS = unit_shift[format.element]() - 1
        var halves = weights
        halves.low -= HALVINGS
        if halves.high < E8M0_NAN:
            halves.high -= HALVINGS
        return rows.multiplies_regularly[BLOCK_BITS + NUM_BLOCKS_BITS](halves)

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
