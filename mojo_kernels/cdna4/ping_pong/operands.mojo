"""Both sides of a product of the ping-pong kernel, of which a tile of C takes its part.

    dense      rows one behind another
    grouped    rows of a group, or those that a list names: whole stages, zeros at their end; their
               scales lie by tiles, and so do codes of six bits, in the order of the groups;
               weights and bias of one of several matrices
"""

from max.gpu.intrinsics import AMDBufferResource

from ..arguments import Grouping
from ..chip import TILE, TILE_BLOCKS
from ..scheduler import TileOfC
from ..instructions.lds import Lds
from ..instructions.memory import scalar_here
from ..operands.memory import Bytes, quotient
from ..operands.shared import OperandRows
from ..prologue.shape import first_tiled_row, lies_by_tiles
from ..types import ProductTypes
from .shape import COLUMNS, N_TILES, STAGE_BLOCKS, WAVES_N
from .main_loop import PingPongLoop


@fieldwise_init
struct PingPongOperands[types: ProductTypes, m_tiles: Int, k_tail: Bool, grouping: Grouping](
    TrivialRegisterPassable
):
    """Both sides."""

    comptime ARE_TILED = lies_by_tiles(Self.types.formats.left)
    comptime MainLoop = PingPongLoop[Self.types.formats, Self.m_tiles, Self.k_tail, Self.ARE_TILED]
    comptime Codes = Self.MainLoop.Rows
    comptime ROWS = Self.MainLoop.Tile.ROWS

    var a: Bytes
    """Codes of activations, or floats."""
    var a_scales: Bytes
    """Their scales; anything for floats."""
    var count: Int32
    var w_codes: Bytes
    var w_scales: Bytes
    var codes_step: Int32
    """Bytes from the codes of a group's weights to the next one's."""
    var scales_step: Int32
    var n: Int32
    var k_blocks: Int32
    var wave: Int32

    @always_inline
    def anew(self) -> Self:
        """Returns the same; what follows from it is computed here, and not kept until here."""
        var same = self
        same.n = scalar_here(self.n)
        same.k_blocks = scalar_here(self.k_blocks)
        same.wave = scalar_here(self.wave)
        return same

    @always_inline
    def row_blocks(self) -> Int32:
        """Returns the blocks of a row of activations; in groups, whole stages."""
        comptime if not Self.grouping.is_grouped:
            return self.k_blocks
        return quotient[STAGE_BLOCKS](self.k_blocks + Int32(STAGE_BLOCKS - 1)) * Int32(STAGE_BLOCKS)

    @always_inline
    def listed(self, list: AMDBufferResource, tile: TileOfC, lane: Int32) -> Self.Codes.Listed:
        """Starts looking up which rows of a list a tile has."""
        comptime Loads = Self.Codes.Loads
        comptime if Self.ARE_TILED:
            return Self.Codes.Listed()
        return Loads.listed[Self.Codes.rounds](list, tile.row * Int32(Self.ROWS), self.wave, lane)

    @always_inline
    def codes(self, tile: TileOfC, lane: Int32) -> Self.MainLoop.Codes:
        var rows = OperandRows(self.a, tile.rows.end_row, self.row_blocks(), tile.rows.first_row)
        comptime if Self.ARE_TILED and Self.grouping.is_grouped:
            rows.first = first_tiled_row(tile.rows.first_row, tile.row)
            rows.count = rows.first + tile.count()
        return Self.MainLoop.Codes.of(rows, self.wave, lane)

    @always_inline
    def codes(self, tile: TileOfC, listed: Self.Codes.Listed, lane: Int32) -> Self.MainLoop.Codes:
        """Returns the same, of the rows that are `listed` if rows are gathered."""
        comptime if Self.ARE_TILED or not Self.grouping.is_gathered:
            return self.codes(tile, lane)
        else:
            var rows = OperandRows(self.a, self.count, self.row_blocks(), 0)
            return rebind[Self.MainLoop.Codes](Self.Codes.of_list(rows, listed, self.wave, lane))

    @always_inline
    def scales(self, tile: TileOfC, lane: Int32) -> Self.MainLoop.Scales:
        var rows = OperandRows(self.a_scales, self.count, self.k_blocks, tile.rows.first_row)
        comptime if Self.grouping.is_grouped:
            var place = Int(tile.row) * Self.ROWS * Int(self.row_blocks())
            var first = self.a_scales.unsafe_offset(place)
            rows = OperandRows(first, Int32(Self.ROWS), self.row_blocks(), 0)
        return Self.MainLoop.Scales.of(rows, self.wave, lane)

    @always_inline
    def weights(self, tile: TileOfC, lane: Int32) -> Self.MainLoop.Weights:
        var rows = self._columns(tile, self.w_codes, self.codes_step)
        return Self.MainLoop.Weights.of(rows, self.wave, lane)

    @always_inline
    def weight_scales(self, tile: TileOfC, lane: Int32) -> Self.MainLoop.WeightScales:
        var rows = self._columns(tile, self.w_scales, self.scales_step)
        return Self.MainLoop.WeightScales.of(rows, self.wave, lane)

    @always_inline
    def _columns(self, tile: TileOfC, bytes: Bytes, step: Int32) -> OperandRows:
        """Returns a tile's columns of what lies `step` bytes behind that of the group before."""
        var own = bytes
        comptime if Self.grouping.is_grouped:
            own = bytes.unsafe_offset(Int(tile.rows.expert) * Int(step))
        return OperandRows(own, self.n, self.k_blocks, tile.column * Int32(COLUMNS))

    @always_inline
    def main_loop(
        self, tile: TileOfC, codes: Self.MainLoop.Codes, lds: Lds, lane: Int32
    ) -> Self.MainLoop:
        """Returns the wave's way along K for its first tile."""
        return Self.MainLoop(
            codes,
            self.scales(tile, lane),
            self.weight_scales(tile, lane),
            self.weights(tile, lane),
            Self.MainLoop.Fragments.of(self.wave, lane),
            lds,
        )

    @always_inline
    def slices(self) -> Int32:
        return quotient[TILE_BLOCKS](self.k_blocks + Int32(TILE_BLOCKS - 1))

    @always_inline
    def first_column(self, tile: TileOfC) -> Int32:
        var in_tile = self.wave % Int32(WAVES_N) * Int32(N_TILES * TILE)
        return tile.column * Int32(COLUMNS) + in_tile
