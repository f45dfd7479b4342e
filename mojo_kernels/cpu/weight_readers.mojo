"""Weights in layouts that are not the CPU's own: a granule of 16 rows becomes four vectors.

Blocks are whole granules, but of six-bit codes, whose blocks are one and a half:

    granule of 16 bytes    0         1              2
    block                  0         0         1    1
    bytes of the block     0 .. 15   16 .. 23  0 .. 7    8 .. 23

`cpu_tiles` pairs every layout with its tiles.
"""

from layout import Coord
from std.math import ceildiv
from std.memory import bitcast

from ..layouts import GRANULE_BYTES, OperandLayout, Plain, PreshuffledCdna4, PreshuffledCuda
from ..layouts import RUN_BYTES
from ..numbers.formats import Format
from ..operands import Operand
from .vectors import LANES, STEP_BYTES, Words
from .weights import (
    CpuTiles,
    GRANULE_RUNS,
    GranuleReader,
    GranuleTiles,
    GranuleWords,
    TileWords,
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


trait WholeGranules:
    """How a layout that keeps granules together gives up one."""

    comptime Layout: OperandLayout

    @staticmethod
    def granule[
        format: Format
    ](operand: Operand[Self.Layout, format], tile: Int, granule: Int) -> GranuleWords:
        """Returns the four vectors of a tile's codes in one granule."""
        ...


@always_inline
def _codes_of_granules[
    Granules: WholeGranules, format: Format
](operand: Operand[Granules.Layout, format], tile: Int, block: Int) -> TileWords[format]:
    """Returns the vectors of a tile's codes in one block."""
    comptime BYTES = format.block_bytes()
    comptime GRANULES = ceildiv(BYTES, GRANULE_BYTES)
    var first = block * BYTES // GRANULE_BYTES
    var words = TileWords[format](0)
    comptime for i in range(GRANULES):
        var granule = Granules.granule(operand, tile, first + i)
        words = words.insert[offset=i * GRANULE_RUNS * LANES](granule)
    comptime if BYTES % GRANULE_BYTES != 0:
        comptime HALF = GRANULE_RUNS // 2 * LANES
        if block % 2 == 1:
            var others = TileWords[format](0)
            comptime for i in range(BYTES * 2 // GRANULE_BYTES):
                others = others.insert[offset=i * HALF](words.slice[HALF, offset=(i + 1) * HALF]())
            return others
    return words


struct PlainReader(GranuleReader):
    """Row major: gathered from 16 rows, the last one repeated."""

    comptime Layout = Plain

    @staticmethod
    @always_inline
    def codes[
        format: Format
    ](operand: Operand[Plain, format], tile: Int, block: Int) -> TileWords[format]:
        comptime BYTES = format.block_bytes()
        var last = operand.shape.rows - 1
        var words = TileWords[format](0)
        comptime for first in range(0, BYTES, GRANULE_BYTES):
            comptime COUNT = min(GRANULE_BYTES, BYTES - first)
            var rows = GranuleWords(0)
            comptime for lane in range(LANES):
                var row = min(tile * LANES + lane, last)
                var bytes = operand.codes_of[COUNT](row, block * BYTES + first)
                rows = rows.insert[offset=lane * GRANULE_RUNS](
                    bitcast[DType.uint32, COUNT // RUN_BYTES](bytes)
                )
            words = words.insert[offset=first // RUN_BYTES * LANES](_transposed(rows))
        return words

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


struct Cdna4Reader(GranuleReader, WholeGranules):
    """Preshuffled for CDNA4: contiguous, but row by row."""

    comptime Layout = PreshuffledCdna4

    @staticmethod
    @always_inline
    def codes[
        format: Format
    ](operand: Operand[PreshuffledCdna4, format], tile: Int, block: Int) -> TileWords[format]:
        return _codes_of_granules[Self](operand, tile, block)

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


struct CudaReader(GranuleReader, WholeGranules):
    """Preshuffled for CUDA: halves of its tiles, pairs of rows side by side."""

    comptime Layout = PreshuffledCuda
    comptime HALVES = PreshuffledCuda.ROW_MULTIPLE // LANES
    """Tiles of 16 rows in a tile of the layout."""

    @staticmethod
    @always_inline
    def codes[
        format: Format
    ](operand: Operand[PreshuffledCuda, format], tile: Int, block: Int) -> TileWords[format]:
        return _codes_of_granules[Self](operand, tile, block)

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
