"""Weights in layouts that are not the CPU's own: a granule of 16 rows becomes four vectors.

`cpu_tiles` pairs every layout with its tiles.
"""

from layout import Coord
from std.memory import bitcast

from ..layouts import GRANULE_BYTES, Plain, PreshuffledCdna4, PreshuffledCuda
from ..numbers.formats import Format
from ..operands import Operand
from .vectors import LANES, STEP_BYTES, Words
from .weights import (
    CpuTiles,
    GRANULE_RUNS,
    GranuleReader,
    GranuleTiles,
    GranuleWords,
    WeightTiles,
    prefetch_line,
    prefetch_tile,
)

comptime GranulePairs = SIMD[DType.uint64, GRANULE_RUNS * LANES // 2]
"""The codes of one granule of a tile, two words at a time."""


@always_inline
def _transposed(rows: GranuleWords) -> GranuleWords:
    """Turns 16 rows of four words into four vectors of 16 words."""
    var halves = rows.deinterleave()
    var even = halves[0].deinterleave()
    var odd = halves[1].deinterleave()
    var first = rebind[Words](even[0]).join(rebind[Words](odd[0]))
    var last = rebind[Words](even[1]).join(rebind[Words](odd[1]))
    return rebind[GranuleWords](first.join(last))


struct PlainReader(GranuleReader):
    """Row major: gathered from 16 rows, the last one repeated."""

    comptime Layout = Plain

    @staticmethod
    @always_inline
    def granule[
        format: Format
    ](operand: Operand[Plain, format], tile: Int, granule: Int) -> GranuleWords:
        var last = operand.shape.rows - 1
        var rows = GranuleWords(0)
        comptime for lane in range(LANES):
            var row = min(tile * LANES + lane, last)
            var bytes = operand.codes_of[GRANULE_BYTES](row, granule * GRANULE_BYTES)
            rows = rows.insert[offset=lane * GRANULE_RUNS](
                bitcast[DType.uint32, GRANULE_RUNS](bytes)
            )
        return _transposed(rows)

    @staticmethod
    @always_inline
    def scales[format: Format](operand: Operand[Plain, format], tile: Int, block: Int) -> Words:
        var last = operand.shape.rows - 1
        var scales = SIMD[DType.uint8, LANES](0)
        comptime for lane in range(LANES):
            scales[lane] = operand.scale(min(tile * LANES + lane, last), block)
        return scales.cast[DType.uint32]()

    @staticmethod
    @always_inline
    def prefetch[format: Format](operand: Operand[Plain, format], tile: Int, block: Int):
        # Once for each cache line.
        if block % (STEP_BYTES // format.block_bytes()) == 0:
            comptime for lane in range(LANES):
                var row = min(tile * LANES + lane, operand.shape.rows - 1)
                prefetch_line(operand.codes, operand.code_offset(row, block * format.block_bytes()))


struct Cdna4Reader(GranuleReader):
    """Preshuffled for CDNA4: contiguous, but row by row."""

    comptime Layout = PreshuffledCdna4

    @staticmethod
    @always_inline
    def granule[
        format: Format
    ](operand: Operand[PreshuffledCdna4, format], tile: Int, granule: Int) -> GranuleWords:
        comptime COUNT = LANES * GRANULE_BYTES
        var bytes = operand.codes_of[COUNT](tile * LANES, granule * GRANULE_BYTES)
        return _transposed(bitcast[DType.uint32, GRANULE_RUNS * LANES](bytes))

    @staticmethod
    @always_inline
    def scales[
        format: Format
    ](operand: Operand[PreshuffledCdna4, format], tile: Int, block: Int) -> Words:
        # The tile's scales are one byte of each of 16 neighbouring words.
        comptime WORD_BYTES = 4
        var word, byte = divmod(operand.scale_offset(tile * LANES, block), WORD_BYTES)
        var bytes = operand.scales.load[width=LANES * WORD_BYTES, alignment=1](
            Coord(word * WORD_BYTES)
        )
        return (bitcast[DType.uint32, LANES](bytes) >> UInt32(8 * byte)) & 0xFF

    @staticmethod
    @always_inline
    def prefetch[format: Format](operand: Operand[PreshuffledCdna4, format], tile: Int, block: Int):
        prefetch_tile(operand, tile, block)


struct CudaReader(GranuleReader):
    """Preshuffled for CUDA: halves of its tiles, pairs of rows side by side."""

    comptime Layout = PreshuffledCuda
    comptime HALVES = PreshuffledCuda.ROW_MULTIPLE // LANES
    """Tiles of 16 rows in a tile of the layout."""

    @staticmethod
    @always_inline
    def granule[
        format: Format
    ](operand: Operand[PreshuffledCuda, format], tile: Int, granule: Int) -> GranuleWords:
        comptime COUNT = PreshuffledCuda.TILE_BYTES
        var both, half = divmod(tile, Self.HALVES)
        var at = operand.code_offset(both * Self.HALVES * LANES, granule * GRANULE_BYTES)
        var bytes = operand.codes.load[width=COUNT, alignment=1](Coord(at))
        # A lane's four words are rows r, r + 8 | r + 16, r + 24: two words for each half.
        var halves = bitcast[DType.uint64, GRANULE_RUNS * LANES](bytes).deinterleave()
        var pairs = rebind[GranulePairs](halves[1] if half == 1 else halves[0])
        var rows = bitcast[DType.uint32, GRANULE_RUNS * LANES](pairs).deinterleave()
        return _transposed(rebind[GranuleWords](rows[0].join(rows[1])))

    @staticmethod
    @always_inline
    def scales[
        format: Format
    ](operand: Operand[PreshuffledCuda, format], tile: Int, block: Int) -> Words:
        var both, half = divmod(tile, Self.HALVES)
        var at = operand.scale_offset(both * Self.HALVES * LANES, block)
        var bytes = operand.scales.load[width=Self.HALVES * LANES, alignment=1](Coord(at))
        var halves = bitcast[DType.uint16, LANES](bytes).deinterleave()
        var pairs = rebind[SIMD[DType.uint16, LANES // 2]](halves[1] if half == 1 else halves[0])
        var rows = bitcast[DType.uint8, LANES](pairs).deinterleave()
        return rebind[SIMD[DType.uint8, LANES]](rows[0].join(rows[1])).cast[DType.uint32]()

    @staticmethod
    @always_inline
    def prefetch[format: Format](operand: Operand[PreshuffledCuda, format], tile: Int, block: Int):
        # Both halves of a tile of the layout lie together: each asks for its own half.
        var both, half = divmod(tile, Self.HALVES)
        var codes = operand.code_offset(both * Self.HALVES * LANES, block * format.block_bytes())
        comptime for j in range(format.block_bytes() // 4):
            prefetch_line(
                operand.codes, codes + (half * (format.block_bytes() // 4) + j) * STEP_BYTES
            )


comptime _List[*Tiles: WeightTiles] = Tiles
comptime cpu_tiles[format: Format] = _List[
    GranuleTiles[PlainReader, format],
    GranuleTiles[Cdna4Reader, format],
    CpuTiles[format],
    GranuleTiles[CudaReader, format],
]
"""The tiles of every layout, in the order of `LAYOUTS`."""
