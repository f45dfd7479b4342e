"""The E4M3 scales of a tile of weights, decoded for a stretch of K before its codes are used."""

from layout import Coord
from std.memory import bitcast

from ..numbers.elements import Element
from ..numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ..numbers.formats import E4M3_BLOCK
from ..operands import Tiles, on_stack
from .vectors import BLOCK, LANES, Sums
from .weights import E4M3_COLUMNS, WeightTiles

comptime E4M3_HALVINGS = 15 - Element.E4M3.bias
"""How many times a number is halved whose bits stand in a float16's."""


@always_inline
def _e4m3_as_float16[
    width: SIMDLength
](bytes: SIMD[DType.uint8, width]) -> SIMD[DType.float16, width]:
    """Returns E4M3 numbers halved `E4M3_HALVINGS` times: their bits, on those of float16."""
    comptime Bits = SIMD[DType.uint16, width]
    comptime SHIFT = UInt16(10 - Element.E4M3.mantissa_bits)
    comptime NAN = Bits(0x7E00)
    var wide = bytes.cast[DType.uint16]()
    var magnitudes = wide & UInt16(Element.E4M3.magnitude_mask())
    var signs = (wide & UInt16(Element.E4M3.sign_code())) << 8
    var is_nan = magnitudes.eq(Bits(UInt16(Element.E4M3.nan_code)))
    return bitcast[DType.float16, width](is_nan.select(NAN, (magnitudes << SHIFT) | signs))


@fieldwise_init
struct E4M3Stretch[blocks: Int](TrivialRegisterPassable):
    """The E4M3 scales of a tile in a stretch of K, as float32: [block, part, 16]."""

    comptime PARTS = BLOCK // E4M3_BLOCK

    var numbers: Tiles[DType.float32, Self.blocks, Self.PARTS, LANES]

    @staticmethod
    @always_inline
    def on_stack() -> Self:
        """Returns memory that lives as long as the calling function."""
        return Self(on_stack[DType.float32, Self.blocks, Self.PARTS, LANES]())

    @always_inline
    def decode[
        Weights: WeightTiles, doublings: Int
    ](self, tiles: Weights, tile: Int, first_block: Int, num_blocks: Int):
        """Decodes the scales of some blocks, times 2**doublings.

        As a call it would be taken for one that writes nothing, and loads go ahead of it.
        """
        comptime AT_ONCE = E4M3_COLUMNS // Self.PARTS
        var block = 0
        while block < num_blocks:
            var at = first_block + block
            if block + AT_ONCE <= num_blocks:
                var halves = _e4m3_as_float16(tiles.e4m3_columns(tile, at))
                comptime for i in range(E4M3_COLUMNS):
                    self._store[doublings](block, i, halves.slice[LANES, offset=i * LANES]())
                block += AT_ONCE
            else:
                var words = tiles.e4m3_scales(tile, at)
                comptime for part in range(Self.PARTS):
                    var bytes = (words >> UInt32(8 * part)).cast[DType.uint8]()
                    self._store[doublings](block, part, _e4m3_as_float16(bytes))
                block += 1

    @always_inline
    def _store[doublings: Int](self, block: Int, column: Int, halves: SIMD[DType.float16, LANES]):
        comptime FACTOR = bitcast[DType.float32](
            UInt32((F32_EXPONENT_BIAS + E4M3_HALVINGS + doublings) << F32_MANTISSA_BITS)
        )
        var numbers = halves.cast[DType.float32]() * FACTOR
        self.numbers.store(Coord(block + column // Self.PARTS, column % Self.PARTS, 0), numbers)

    @always_inline
    def of(self, block: Int, part: Int) -> Sums:
        """Returns the scales of a part of a block."""
        return self.numbers.load[width=LANES](Coord(block, part, 0))
