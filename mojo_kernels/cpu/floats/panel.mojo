"""Bfloat16 activations times a panel of weights of any format: float32 sums, block by block.

For every block the loop adds the products of each row with each column, in the order
of `float_dot`, starting from zero, and adds the scaled sum to the sum of the blocks
before:

    block_sum = twice the products, one after the other, each addition rounded
    sum = block_sum * (b_scale / 2) + sum, rounded once

That is the whole arithmetic of C: a term takes part in at most 32 + K / 32 roundings. Where scales
of the activations are floats, `b_scale / 2` is their product with half the weights', rounded too.
Sums that might leave the regular numbers of float32, as far as the exponents of a row
and the scales of a tile tell, are taken in float64 instead.
"""

from layout import Coord
from std.collections import Array
from std.memory import bitcast

from ...layouts import OperandShape
from ...numbers.floats import F32_EXPONENT_BIAS, FloatBits
from ...numbers.formats import Format
from ...numbers.scales import E8M0_BIAS, E8M0_NAN, Scale
from ...operands import Tiles, on_stack
from ..block_order import GROUP_TILES, KEEPS_SUMS, RowGroups
from ..e4m3_scales import E4M3Stretch
from ..ranges import RowRange
from ..panel import (
    DecodedStretch,
    GroupSums,
    PANEL_TILES,
    PanelPart,
    PanelProduct,
    PanelTile,
    WeightPanel,
)
from ..vectors import BLOCK, HAS_FMA, LANES, Sums, Words, add_exact_product
from ..weights import WeightTiles, float64_scales, infinite_or_one
from ..window import ScaleWindow
from .activations import FloatActivations, LIMITS, STRETCH_BLOCKS
from .dot import (
    STEPS,
    TileBlock,
    add_products,
    add_products_in_float64,
)


trait PanelWeights(TrivialRegisterPassable):
    """The weights of a panel as words of steps, block by block."""

    comptime Codes: TrivialRegisterPassable
    """What stands for the codes of a tile in one block."""

    def codes(self, tile: Int, block: Int) -> Self.Codes:
        """Returns the codes of tile `tile` of the panel."""
        ...

    def words[step: Int](self, codes: Self.Codes) -> Words:
        """Returns the words of a step."""
        ...

    def half_scales(self, tile: Int, block: Int) -> Sums:
        """Returns half the scales of tile `tile`."""
        ...


@fieldwise_init
struct _DirectFloats[Weights: WeightTiles](PanelWeights):
    """Weights that are decoded in registers each time they are loaded."""

    comptime Codes = TileBlock[Self.Weights]

    var panel: WeightPanel[Self.Weights]
    var e4m3: E4M3Stretch[STRETCH_BLOCKS]
    """Of formats that have such scales."""

    @always_inline
    def codes(self, tile: Int, block: Int) -> Self.Codes:
        return Self.Codes.of(self.panel.codes(tile, block), self.e4m3, tile, block)

    @always_inline
    def words[step: Int](self, codes: Self.Codes) -> Words:
        return codes.words[step](self.panel.tiles)

    @always_inline
    def half_scales(self, tile: Int, block: Int) -> Sums:
        return self.panel.half_scales(tile, block)


@fieldwise_init
struct DecodedFloats(DecodedStretch, PanelWeights):
    """A stretch of a panel that was decoded beforehand.

    decoded    [block, step, tile, 16]
    scales     [block, tile, 16]
    """

    comptime Codes = PanelTile

    var decoded: Tiles[DType.uint32, STRETCH_BLOCKS, STEPS, PANEL_TILES, LANES]
    var scales: Tiles[DType.float32, STRETCH_BLOCKS, PANEL_TILES, LANES]
    """Half the scales."""

    @staticmethod
    @always_inline
    def on_stack() -> Self:
        """Returns memory for a stretch that lives as long as the calling function."""
        return Self(
            on_stack[DType.uint32, STRETCH_BLOCKS, STEPS, PANEL_TILES, LANES](),
            on_stack[DType.float32, STRETCH_BLOCKS, PANEL_TILES, LANES](),
        )

    def decode[Weights: WeightTiles](self, panel: WeightPanel[Weights], num_blocks: Int):
        """Decodes the first `num_blocks` blocks of `panel`."""
        var e4m3 = E4M3Stretch[STRETCH_BLOCKS].on_stack()
        var source = _DirectFloats(panel, e4m3)
        e4m3.decode(panel, 0, PANEL_TILES, num_blocks)
        for block in range(num_blocks):
            comptime for tile in range(PANEL_TILES):
                self._decode(source, tile, block)

    @always_inline
    def _decode(self, source: _DirectFloats[_], tile: Int, block: Int):
        """Decodes one block of a tile."""
        var codes = source.codes(tile, block)
        comptime for step in range(STEPS):
            self.decoded.store(Coord(block, step, tile, 0), source.words[step](codes))
        self.scales.store(Coord(block, tile, 0), source.half_scales(tile, block))

    @always_inline
    def codes(self, tile: Int, block: Int) -> PanelTile:
        """Returns where the words of tile `tile` are."""
        return PanelTile(block, tile)

    @always_inline
    def words[step: Int](self, codes: PanelTile) -> Words:
        """Returns the words of a step."""
        return self.decoded.load[width=LANES](Coord(codes.block, step, codes.tile, 0))

    @always_inline
    def half_scales(self, tile: Int, block: Int) -> Sums:
        """Returns half the scales of tile `tile`."""
        return self.scales.load[width=LANES](Coord(block, tile, 0))


@fieldwise_init
struct SumScaling(Equatable, TrivialRegisterPassable):
    """How the sums of a block are scaled and added."""

    var code: Int

    comptime EXACT = Self(0)
    """By powers of two."""
    comptime FUSED = Self(1)
    """By other scales of the weights, rounded once even where no instruction does that."""
    comptime FACTORS = Self(2)
    """The same, by scales of the activations too."""


def _add_part[
    num_rows: Int, num_tiles: Int, scaling: SumScaling, Source: PanelWeights
](a: FloatActivations, part: PanelPart, first_tile: Int, source: Source):
    """Adds a part to the sums of its group, for tiles from `first_tile` on.

    The part starts at block 0 of the source.
    """
    comptime NUM_SUMS = num_rows * num_tiles
    var total = GroupSums[num_rows, num_tiles, KEEPS_SUMS](part, first_tile)
    var first_index = a.order().of_group(part.group, part.first_block)
    for block in range(part.num_blocks):
        total.begin_block()
        var block_sums = Array[Sums, NUM_SUMS](uninitialized=True)
        comptime for i in range(NUM_SUMS):
            block_sums[i] = Sums(0)
        var codes = Array[Source.Codes, num_tiles](uninitialized=True)
        comptime for tile in range(num_tiles):
            codes[tile] = source.codes(first_tile + tile, block)

        var first_word = (first_index + block * num_rows) * STEPS
        comptime for step in range(STEPS):
            var weights = Array[Words, num_tiles](uninitialized=True)
            comptime for tile in range(num_tiles):
                weights[tile] = source.words[step](codes[tile])
            comptime for row in range(num_rows):
                var x = a.words.load[width=1](Coord(first_word + row * STEPS + step))
                comptime for tile in range(num_tiles):
                    comptime i = row * num_tiles + tile
                    block_sums[i] = add_products(block_sums[i], weights[tile], x)

        comptime for tile in range(num_tiles):
            var half_scales = source.half_scales(first_tile + tile, block)
            comptime for row in range(num_rows):
                comptime i = row * num_tiles + tile
                comptime if scaling == SumScaling.EXACT:
                    total.put[i](add_exact_product(block_sums[i], half_scales, total.get[i]()))
                else:
                    var scales = half_scales
                    comptime if scaling == SumScaling.FACTORS:
                        var index = first_index + block * num_rows + row
                        scales *= a.factors.load[width=1](Coord(index))
                    total.put[i](block_sums[i].fma(scales, total.get[i]()))
    total.store()


def _log2_of_block() -> Int:
    comptime LOG2 = 5
    comptime assert BLOCK == 1 << LOG2, "blocks of another size have another bound"
    return LOG2


@fieldwise_init
struct FloatProduct(PanelProduct):
    """Activations as bfloat16."""

    comptime LIMITS = LIMITS
    """How many rows are multiplied together."""
    comptime STRETCH_BLOCKS = STRETCH_BLOCKS
    """Blocks of K that are decoded at a time."""
    comptime Decoded = DecodedFloats
    """Where a stretch of weights is decoded to."""
    comptime Scales = E4M3Stretch[STRETCH_BLOCKS]
    """Where E4M3 scales are decoded to."""
    comptime SCALES_BLOCKS = STRETCH_BLOCKS
    """Blocks of K whose scales that takes."""
    comptime TAKES_E4M3_IN_REGISTERS = False
    """Numbers under such scales are decoded beforehand."""
    comptime HAS_ROW_FACTORS = False
    """Each block's sum is multiplied."""
    comptime HAS_COLUMN_FACTORS = False
    """Each block's sum is multiplied."""

    var a: FloatActivations
    """The activations, [M, k]."""
    var weights_have_float_scales: Bool

    @always_inline
    def shape(self) -> OperandShape:
        """Returns M and k."""
        return self.a.shape

    @always_inline
    def of_range(self, rows: RowRange) -> Self:
        """Returns a part of the rows."""
        return Self(self.a.of_range(rows), self.weights_have_float_scales)

    @always_inline
    def groups(self) -> RowGroups:
        """Returns how the rows are cut."""
        return self.a.groups

    @always_inline
    def row_bytes(self) -> Int:
        """Returns the bytes that a row of activations takes."""
        comptime WORD_BYTES = 4
        return (self.a.shape.k // BLOCK) * STEPS * WORD_BYTES

    @always_inline
    def add[
        num_rows: Int, Weights: WeightTiles
    ](self, part: PanelPart, tile: Int, panel: WeightPanel[Weights], e4m3: Self.Scales):
        """Adds a part for one tile of the panel, decoding it in registers; without factors."""
        comptime assert Weights.format.scale != Scale.E4M3, "decoded beforehand"
        var source = _DirectFloats(panel, e4m3)
        _add_part[num_rows, 1, SumScaling.EXACT](self.a, part, tile, source)

    @always_inline
    def add_decoded[num_rows: Int](self, part: PanelPart, decoded: DecodedFloats):
        """Adds a part for all tiles of a panel, scaled as its scales want it."""
        if self.a.has_factors:
            return self._add_all[num_rows, SumScaling.FACTORS](part, decoded)
        comptime if not HAS_FMA:
            if self.weights_have_float_scales:
                return self._add_all[num_rows, SumScaling.FUSED](part, decoded)
        self._add_all[num_rows, SumScaling.EXACT](part, decoded)

    @always_inline
    def _add_all[num_rows: Int, scaling: SumScaling](self, part: PanelPart, decoded: DecodedFloats):
        for tile in range(0, PANEL_TILES, GROUP_TILES):
            _add_part[num_rows, GROUP_TILES, scaling](self.a, part, tile, decoded)

    def takes_bytes(self) -> Bool:
        """Says no."""
        return False

    def row_factor(self, row: Int) -> Float32:
        """Returns one."""
        return 1

    def window(self, first_row: Int, num_rows: Int) -> ScaleWindow:
        """Returns the exponent window of some rows."""
        return self.a.windows.of(first_row, num_rows)

    @staticmethod
    def is_regular[format: Format](rows: ScaleWindow, weights: ScaleWindow) -> Bool:
        """Says whether every product and sum of some rows and a tile is regular or zero.

        An activation of exponent field e is a multiple of 2**(e - 134) and below
        2**(e - 126); twice an element is a multiple of twice its unit and below twice its bound;
        half a scale is 2**(scale - 128). So a block's products and sums are multiples of the
        units' product, and below 32 times the bounds'.
        """
        comptime MIN_EXPONENT = 1 - F32_EXPONENT_BIAS
        comptime MAX_EXPONENT = F32_EXPONENT_BIAS
        comptime LAST_BIT = F32_EXPONENT_BIAS + FloatBits[DType.bfloat16].MANTISSA_BITS
        comptime TOP = F32_EXPONENT_BIAS - 1
        comptime HALF_SCALE_BIAS = E8M0_BIAS + 1
        comptime UNIT = format.unit_exponent() + 1
        # Bits of a sum of a block's largest elements, and of the number of blocks.
        comptime BLOCK_BITS = _log2_of_block() + format.bound_exponent() + 1
        comptime NUM_BLOCKS_BITS = 32

        var low = rows.low - LAST_BIT + UNIT
        var high = rows.high - TOP + BLOCK_BITS
        return (
            weights.low >= 2
            and weights.high < E8M0_NAN
            and low >= MIN_EXPONENT
            and low + weights.low - HALF_SCALE_BIAS >= MIN_EXPONENT
            and high <= MAX_EXPONENT
            and high + weights.high - HALF_SCALE_BIAS + NUM_BLOCKS_BITS <= MAX_EXPONENT
        )

    def sum_in_float64[Weights: WeightTiles](self, row: Int, tiles: Weights, tile: Int) -> Sums:
        """Returns the sums of one row and one tile, products and scales exact in float64.

        A NaN or infinity on either side reaches the sums as IEEE arithmetic says, elements being
        multiplied by their scale first where that is infinite; every NaN comes out the same.
        """
        comptime F64 = SIMD[DType.float64, LANES]
        comptime NAN = Sums(bitcast[DType.float32](UInt32(0x7FC00000)))
        var total = F64(0)
        var e4m3 = E4M3Stretch[1].on_stack()
        for block in range((self.a.shape.k // BLOCK)):
            var first_word = self.a.order().index(row, block) * STEPS
            comptime if Weights.format.scale == Scale.E4M3:
                e4m3.decode_tile(tiles, PanelTile(block, tile), 0, 1, tile)
            var codes = TileBlock[Weights].of(tiles.codes(tile, block), e4m3, 0, 0)
            var scales = float64_scales[Weights.format.scale](tiles.scales(tile, block))
            var row_scale = self.a.scale(row, block)
            var block_sums = F64(0)
            comptime for step in range(STEPS):
                var words = codes.words[step](tiles)
                var x = self.a.words.load[width=1](Coord(first_word + step))
                block_sums = add_products_in_float64(
                    block_sums, words, x, infinite_or_one(scales), infinite_or_one(row_scale)
                )
            total += block_sums * 0.5 * scales * row_scale
        var sums = total.cast[DType.float32]()
        return sums.eq(sums).select(sums, NAN)
