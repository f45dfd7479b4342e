"""The inner loop of the CPU matmul: rows of activations times a panel of weights.

A panel is `PANEL_TILES` neighbouring weight tiles, 16 columns each. For every
block the loop takes the integer dot product of each row with each column,
converts it once, and adds it to a float32 sum, blocks in order:

    sum = fma(float32(dot), (a_scale / 2) * (b_scale / 2), sum)

Dots are of doubled values, and the product of the half scales takes one
integer addition of exponents. That is the whole arithmetic of C, so a result depends on neither the threads,
the number of rows, the weight layout nor the width of the machine's vectors.
The weights of the loop come from a `PanelSource`: decoded in registers as
they are loaded, or decoded beforehand for several groups of rows.
"""

from layout import Coord
from std.collections import Array
from std.memory import bitcast, stack_allocation

from ..codec import decode_scale
from ..formats import BLOCK
from ..operands import Bytes, Flat, flat
from .activations import Activations, STRETCH_BLOCKS
from .dot import ActivationBytes, BlockDot, LANES, Lanes, STEP_BYTES, WeightBytes
from .weights import (
    RUNS,
    WeightTiles,
    Words,
    half_scale_bits,
    high_nibbles,
    low_nibbles,
)

comptime Sums = SIMD[DType.float32, LANES]
"""Sums of one row and the columns of one tile."""
comptime PANEL_TILES = 2
"""Weight tiles of a panel."""
comptime PANEL_COLUMNS = PANEL_TILES * LANES
"""Columns of a panel."""

comptime PREFETCH_BLOCKS = 16
"""How far ahead of their use weights are asked for: 4 KiB of a tile."""


trait PanelSource(TrivialRegisterPassable):
    """The weights of a panel, block by block."""

    comptime Codes: TrivialRegisterPassable
    """What stands for the codes of a tile in one block."""

    def codes(self, tile: Int, block: Int) -> Self.Codes:
        """Returns the codes of tile `tile` of the panel."""
        ...

    def low[j: Int](self, codes: Self.Codes) -> WeightBytes:
        """Returns the even elements of vector `j`."""
        ...

    def high[j: Int](self, codes: Self.Codes) -> WeightBytes:
        """Returns the odd elements of vector `j`."""
        ...

    def half_scales(self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of half the scales of tile `tile`."""
        ...


@fieldwise_init
struct DirectPanel[Tiles: WeightTiles](PanelSource):
    """Weights that are decoded in registers each time they are loaded."""

    comptime Codes = Self.Tiles.Codes
    """The codes as the tiles give them."""

    var tiles: Self.Tiles
    """The weights."""
    var first_tile: Int
    """The first tile of the panel; beyond the last tile, that one repeats."""
    var last_tile: Int
    """The last tile of the weights."""
    var first_block: Int
    """The block of the weights that is block 0 here."""

    @always_inline
    def codes(self, tile: Int, block: Int) -> Self.Codes:
        """Returns the codes of tile `tile` of the panel."""
        # Past the end of a tile comes the same tile of the next panel.
        var ahead = self.first_block + block + PREFETCH_BLOCKS
        var k_blocks = self.tiles.shape().k_blocks()
        if ahead < k_blocks:
            self.tiles.prefetch(self.first_tile + tile, ahead)
        else:
            self.tiles.prefetch(self.first_tile + tile + PANEL_TILES, ahead - k_blocks)
        return self.tiles.codes(self._tile(tile), self.first_block + block)

    @always_inline
    def low[j: Int](self, codes: Self.Codes) -> WeightBytes:
        """Returns the even elements of vector `j`."""
        return low_nibbles(self.tiles.vector[j](codes))

    @always_inline
    def high[j: Int](self, codes: Self.Codes) -> WeightBytes:
        """Returns the odd elements of vector `j`."""
        return high_nibbles(self.tiles.vector[j](codes))

    @always_inline
    def _tile(self, tile: Int) -> Int:
        return min(self.first_tile + tile, self.last_tile)

    @always_inline
    def half_scales(self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of half the scales of tile `tile`."""
        var scales = self.tiles.scales(self._tile(tile), self.first_block + block)
        return half_scale_bits(scales)


@fieldwise_init
struct DecodedPanel(PanelSource):
    """A stretch of a panel that was decoded beforehand.

    bytes     [block, tile, vector, low or high, 64]
    scales    [block, tile, 16]
    """

    comptime Codes = Int
    """The offset of the tile's bytes."""
    comptime VECTORS = 2 * RUNS
    """Byte vectors of a tile in one block."""

    var bytes: Bytes
    """The offset values."""
    var scales: Flat[DType.uint32]
    """The float32 bits of half the scales."""

    @staticmethod
    @always_inline
    def on_stack() -> Self:
        """Returns memory for a stretch that lives as long as the calling function."""
        comptime TILES = STRETCH_BLOCKS * PANEL_TILES
        comptime BYTES = TILES * Self.VECTORS * STEP_BYTES
        var bytes = stack_allocation[BYTES, DType.uint8, alignment=STEP_BYTES]()
        var scales = stack_allocation[TILES * LANES, DType.uint32, alignment=STEP_BYTES]()
        return Self(
            flat[DType.uint8](Int(bytes), BYTES), flat[DType.uint32](Int(scales), TILES * LANES)
        )

    def decode[Tiles: WeightTiles](self, source: DirectPanel[Tiles], num_blocks: Int):
        """Decodes the first `num_blocks` blocks of `source`."""
        for block in range(num_blocks):
            comptime for tile in range(PANEL_TILES):
                var codes = source.codes(tile, block)
                var at = self.codes(tile, block)
                comptime for j in range(RUNS):
                    self.bytes.store(Coord(at + 2 * j * STEP_BYTES), source.low[j](codes))
                    self.bytes.store(Coord(at + (2 * j + 1) * STEP_BYTES), source.high[j](codes))
                self.scales.store(
                    Coord((block * PANEL_TILES + tile) * LANES), source.half_scales(tile, block)
                )

    @always_inline
    def codes(self, tile: Int, block: Int) -> Int:
        """Returns the offset of the bytes of tile `tile`."""
        return (block * PANEL_TILES + tile) * Self.VECTORS * STEP_BYTES

    @always_inline
    def low[j: Int](self, codes: Int) -> WeightBytes:
        """Returns the even elements of vector `j`."""
        return self.bytes.load[width=STEP_BYTES](Coord(codes + 2 * j * STEP_BYTES))

    @always_inline
    def high[j: Int](self, codes: Int) -> WeightBytes:
        """Returns the odd elements of vector `j`."""
        return self.bytes.load[width=STEP_BYTES](Coord(codes + (2 * j + 1) * STEP_BYTES))

    @always_inline
    def half_scales(self, tile: Int, block: Int) -> Words:
        """Returns the float32 bits of half the scales of tile `tile`."""
        return self.scales.load[width=LANES](Coord((block * PANEL_TILES + tile) * LANES))


@always_inline
def _broadcast_run(a: Activations, offset: Int) -> ActivationBytes:
    """Repeats four neighbouring activation bytes in every lane."""
    var run = bitcast[DType.int32, 1](a.values.load[width=4](Coord(offset)))
    return bitcast[DType.int8, STEP_BYTES](Lanes(run[0]))


def add_stretch[
    num_rows: Int, Source: PanelSource
](
    a: Activations,
    first_row: Int,
    source: Source,
    first_block: Int,
    num_blocks: Int,
    sums: Flat[DType.float32],
):
    """Adds a stretch of K to the sums of one group, [num_rows, PANEL_COLUMNS].

    The group starts at row `first_row` and has `num_rows` rows; the stretch starts
    at block `first_block` of the activations and at block 0 of the source. Sums
    start from zero at block 0.
    """
    comptime NUM_SUMS = num_rows * PANEL_TILES
    var total = Array[Sums, NUM_SUMS](uninitialized=True)
    comptime for i in range(NUM_SUMS):
        total[i] = Sums(0)
    if first_block > 0:
        comptime for i in range(NUM_SUMS):
            total[i] = sums.load[width=LANES](Coord(i * LANES))

    var first_index = a.block_index(first_row, first_block)
    for block in range(num_blocks):
        var index = first_index + block * num_rows
        var dots = Array[BlockDot.Accumulator, NUM_SUMS](uninitialized=True)
        comptime for row in range(num_rows):
            var start = BlockDot.start(a.corrections.load[width=1](Coord(index + row)))
            comptime for tile in range(PANEL_TILES):
                dots[row * PANEL_TILES + tile] = start

        var codes = Array[Source.Codes, PANEL_TILES](uninitialized=True)
        comptime for tile in range(PANEL_TILES):
            codes[tile] = source.codes(tile, block)
        comptime for j in range(RUNS):
            comptime for odd in range(2):
                var weights = Array[WeightBytes, PANEL_TILES](uninitialized=True)
                comptime for tile in range(PANEL_TILES):
                    comptime if odd == 0:
                        weights[tile] = source.low[j](codes[tile])
                    else:
                        weights[tile] = source.high[j](codes[tile])
                comptime for row in range(num_rows):
                    comptime at = row * BLOCK + odd * BLOCK // 2 + 4 * j
                    var run = _broadcast_run(a, index * BLOCK + at)
                    comptime for tile in range(PANEL_TILES):
                        comptime i = row * PANEL_TILES + tile
                        dots[i] = BlockDot.step(dots[i], weights[tile], run)

        comptime for tile in range(PANEL_TILES):
            var half_scales = source.half_scales(tile, block)
            comptime for row in range(num_rows):
                comptime i = row * PANEL_TILES + tile
                var exponent = Words(a.exponents.load[width=1](Coord(index + row)))
                var scale = bitcast[DType.float32, LANES](half_scales + exponent)
                total[i] = BlockDot.finish(dots[i]).cast[DType.float32]().fma(scale, total[i])

    comptime for i in range(NUM_SUMS):
        sums.store(Coord(i * LANES), total[i])


def sum_in_float64[Tiles: WeightTiles](a: Activations, row: Int, tiles: Tiles, tile: Int) -> Sums:
    """Returns the sums of one row and one tile, for scales that float32 cannot multiply.

    Products of scales are exact in float64, and a NaN scale makes its sums NaN.
    """
    # Dot products are of doubled values on both sides.
    comptime QUARTER = SIMD[DType.float64, LANES](0.25)
    var total = SIMD[DType.float64, LANES](0)
    for block in range(a.shape.k_blocks()):
        var index = a.block_index(row, block)
        var codes = tiles.codes(tile, block)
        var dots = BlockDot.start(a.corrections.load[width=1](Coord(index)))
        comptime for j in range(RUNS):
            var words = tiles.vector[j](codes)
            var at = index * BLOCK + 4 * j
            dots = BlockDot.step(dots, low_nibbles(words), _broadcast_run(a, at))
            dots = BlockDot.step(dots, high_nibbles(words), _broadcast_run(a, at + BLOCK // 2))
        var a_scale = decode_scale[1](a.scales.load[width=1](Coord(index)))
        var b_scales = decode_scale(tiles.scales(tile, block).cast[DType.uint8]())
        var values = BlockDot.finish(dots).cast[DType.float64]() * QUARTER
        total += values * (b_scales * a_scale)
    return total.cast[DType.float32]()
