"""The E4M3 scales of tiles of weights, decoded for a stretch of K before its codes are used.

Bytes of sixteen rows are turned to columns, sixteen at a time. A column becomes words, or stays:

    floats       float32 bits, `doublings` added to the exponent
    looked up    1.m * 2**(e - 7): e and m where a float has them, and m again in the lowest bits;
                 zero and NaN: a float's bits and 8
    halved       floats that are 2**120 too small; others where one scale is not regular
    bytes        `halved` makes these of them

Words of regular scales, positive numbers that are not subnormal, take two instructions. A word
that is looked up picks one of the sixteen of a factor's table (`products_by_word`); the sum of
both is the bits of the product: what of a scale is a power of two is added to an exponent.
"""

from layout import Coord
from std.math import iota
from std.memory import bitcast

from ..numbers.decode import decode
from ..numbers.elements import Element
from ..numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FloatBits
from ..numbers.formats import E4M3_BLOCK
from ..numbers.scales import Scale
from ..operands import Tiles, on_stack
from .panel import PANEL_TILES, PanelTile, ScaleStretch, WeightPanel
from .vectors import BLOCK, LANES, STEP_BYTES, Words
from .weights import E4M3_COLUMNS, WeightTiles

comptime _SHIFT = UInt32(F32_MANTISSA_BITS - Element.E4M3.mantissa_bits)
comptime _FRACTION = UInt32((1 << Element.E4M3.mantissa_bits) - 1)
comptime _SPECIAL = _FRACTION + 1
"""What marks words that no table changes, and the least code of a regular number."""
comptime BYTE_HALVINGS = F32_EXPONENT_BIAS - Element.E4M3.bias
"""How often a scale is halved whose exponent stands in a float's."""


@always_inline
def products_by_word(factor: Float32) -> Words:
    """Returns the table that makes a word of a scale the bits of its product with a number."""
    var places = iota[DType.uint32, LANES]()
    var numbers = bitcast[DType.float32, LANES](
        ((places & _FRACTION) << _SHIFT) + UInt32(BYTE_HALVINGS << F32_MANTISSA_BITS)
    )
    var products = bitcast[DType.uint32, LANES](numbers * factor) - (places << _SHIFT)
    return places.ge(_SPECIAL).select(Words(0), products) - places


@always_inline
def _word[is_regular: Bool, is_looked_up: Bool, doublings: Int](codes: Words) -> Words:
    """Returns the words of numbers; if they are regular, they are positive and not subnormal."""
    comptime if is_regular and is_looked_up:
        return (codes << _SHIFT) | (codes & _FRACTION)
    elif is_regular:
        return (codes << _SHIFT) + UInt32((BYTE_HALVINGS + doublings) << F32_MANTISSA_BITS)
    else:
        comptime NAN = UInt32(Element.E4M3.nan_code)
        comptime MAGNITUDE = UInt32(FloatBits[DType.float32].MAGNITUDE)
        var magnitudes = codes & UInt32(Element.E4M3.magnitude_mask())
        var is_nan = magnitudes.eq(NAN)
        comptime DOUBLINGS = 0 if is_looked_up else doublings
        var bits = bitcast[DType.uint32, LANES](decode[Element.E4M3, doublings=DOUBLINGS](codes))
        # Every NaN is the same.
        bits = is_nan.select(bits & MAGNITUDE, bits)
        comptime if is_looked_up:
            var words = bits - UInt32(BYTE_HALVINGS << F32_MANTISSA_BITS)
            words += (bits >> _SHIFT) & _FRACTION
            return (is_nan | magnitudes.eq(0)).select(bits | _SPECIAL, words)
        else:
            return bits


@fieldwise_init
struct E4M3Stretch[
    blocks: Int, doublings: Int = 0, is_looked_up: Bool = False, is_halved: Bool = False
](ScaleStretch):
    """The E4M3 scales of a panel in a stretch of K, as words: [block, tile, part, 16]."""

    comptime PARTS = BLOCK // E4M3_BLOCK
    comptime AT_ONCE = E4M3_COLUMNS // Self.PARTS
    """Blocks of a square; as much lies before the stretch, for squares that end where K does."""

    comptime BLOCKS = Self.blocks + Self.AT_ONCE

    var words: Tiles[DType.uint32, Self.BLOCKS, PANEL_TILES, Self.PARTS, LANES]
    var columns: Tiles[DType.uint8, PANEL_TILES, Self.BLOCKS, Self.PARTS, LANES]
    """Their bytes."""
    var are_regular: Tiles[DType.bool, 1]
    """Whether all tiles that were decoded together have regular scales alone."""

    @staticmethod
    @always_inline
    def on_stack() -> Self:
        """Returns memory that lives as long as the calling function."""
        return Self(
            on_stack[DType.uint32, Self.BLOCKS, PANEL_TILES, Self.PARTS, LANES](),
            on_stack[DType.uint8, PANEL_TILES, Self.BLOCKS, Self.PARTS, LANES](),
            on_stack[DType.bool, 1](),
        )

    @always_inline
    def decode[
        Weights: WeightTiles
    ](
        self,
        panel: WeightPanel[Weights],
        first_tile: Int,
        last_tile: Int,
        num_blocks: Int,
        takes_bytes: Bool = False,
    ):
        """Decodes the scales of some tiles in the first `num_blocks` blocks, if they are E4M3; they
        may stay bytes where they are regular.

        As a call it would be taken for one that writes nothing, and loads go ahead of it.
        """
        comptime if Weights.format.scale == Scale.E4M3:
            var are_regular = True
            for slot in range(first_tile, last_tile):
                var at, ahead = panel.place(slot, 0), panel.order.at(panel.panel + 1, slot)
                var is_regular = self._turn(panel.tiles, at, slot, num_blocks, ahead)
                are_regular = are_regular and is_regular
            self.are_regular.store(Coord(0), are_regular)
            for slot in range(first_tile, last_tile):
                if not takes_bytes:
                    self._put_words(slot, num_blocks, are_regular)
                elif not are_regular:
                    self._put[False, False](slot, num_blocks)

    @always_inline
    def decode_tile[
        Weights: WeightTiles
    ](self, weights: Weights, at: PanelTile, slot: Int, num_blocks: Int, ahead: Int):
        """Decodes the scales of some blocks of a tile, and asks for those of a tile ahead."""
        self._put_words(slot, num_blocks, self._turn(weights, at, slot, num_blocks, ahead))

    @always_inline
    def _turn[
        Weights: WeightTiles
    ](self, weights: Weights, at: PanelTile, slot: Int, num_blocks: Int, ahead: Int) -> Bool:
        """Turns the bytes of a tile to columns; says whether all are regular."""
        for block in range(num_blocks):
            weights.prefetch_e4m3(ahead, at.block + block)
        comptime COUNT = UInt8(UInt32(Element.E4M3.nan_code) - _SPECIAL)
        var last_square = weights.shape().k_blocks[Weights.format]() - Self.AT_ONCE
        var largest = SIMD[DType.uint8, STEP_BYTES](0)
        for block in range(0, num_blocks, Self.AT_ONCE if last_square >= 0 else 1):
            if last_square < 0:
                var words = weights.e4m3_scales(at.tile, at.block + block)
                comptime for part in range(Self.PARTS):
                    var bytes = (words >> UInt32(8 * part)).cast[DType.uint8]()
                    self.columns.store(Coord(slot, Self.AT_ONCE + block, part, 0), bytes)
            else:
                var start = min(at.block + block, last_square)
                var square = weights.e4m3_columns(at.tile, start)
                comptime for i in range(E4M3_COLUMNS * LANES // STEP_BYTES):
                    var quarter = square.slice[STEP_BYTES, offset=i * STEP_BYTES]()
                    largest = max(largest, quarter - UInt8(_SPECIAL))
                self.columns.store(Coord(slot, Self.AT_ONCE + start - at.block, 0, 0), square)
        return last_square >= 0 and largest.lt(COUNT).reduce_and()

    @always_inline
    def _put_words(self, slot: Int, num_blocks: Int, are_regular: Bool):
        if are_regular:
            self._put[True, Self.is_looked_up](slot, num_blocks)
        else:
            self._put[False, Self.is_looked_up](slot, num_blocks)

    @always_inline
    def _put[are_regular: Bool, are_looked_up: Bool](self, slot: Int, num_blocks: Int):
        """Stores the words of the columns of a tile."""
        comptime HALVED = are_regular and Self.is_halved
        comptime DOUBLINGS = -BYTE_HALVINGS if HALVED else Self.doublings
        comptime word = _word[are_regular, are_looked_up, DOUBLINGS]
        for block in range(num_blocks):
            comptime for part in range(Self.PARTS):
                var words = word(self._codes(slot, block, part))
                self.words.store(Coord(Self.AT_ONCE + block, slot, part, 0), words)

    @always_inline
    def of(self, slot: Int, block: Int, part: Int) -> Words:
        """Returns the scales of a part of a block of a tile."""
        return self.words.load[width=LANES](Coord(block + Self.AT_ONCE, slot, part, 0))

    @always_inline
    def halved(self, slot: Int, block: Int, part: Int) -> Words:
        """Returns scales that stayed bytes as floats, halved `BYTE_HALVINGS` times."""
        return self._codes(slot, block, part) << _SHIFT

    @always_inline
    def _codes(self, slot: Int, block: Int, part: Int) -> Words:
        var codes = self.columns.load[width=LANES](Coord(slot, block + Self.AT_ONCE, part, 0))
        return codes.cast[DType.uint32]()
