"""Both sides of a product of the interleaved kernel, of which a tile of C takes its part.

    dense      rows one behind another, of a part of K where workgroups share it
    grouped    rows of a group, or those that a list names; they are whole stages, zeros at their
               end, with their scales behind all codes; weights of one of several matrices
"""

from ..arguments import Grouping
from ..chip import BLOCK, LANE_BYTES, TILE_BLOCKS, WORD_BYTES
from ..scheduler import GroupTile
from ..operands.memory import Bytes, Input, Span, quotient
from ..operands.shared import OperandRows
from ..types import Formats
from .shape import InterleavedShape, STAGE_BLOCKS, STAGE_K
from .main_loop import InterleavedLoop


@fieldwise_init
struct InterleavedOperands[
    formats: Formats, shape: InterleavedShape, k_tail: Bool, grouping: Grouping
](TrivialRegisterPassable):
    """Both sides."""

    comptime HAS_LINES = Self.shape.has_scale_lines() and not (
        Self.k_tail or Self.grouping.is_grouped
    )
    comptime MainLoop = InterleavedLoop[
        Self.formats,
        Self.shape,
        Self.k_tail,
        Self.grouping.is_gathered,
        scales_end=Self.k_tail and not Self.grouping.is_grouped,
        has_lines=Self.HAS_LINES,
    ]
    comptime Listed = Tuple[Self.MainLoop.Rows.Listed, Self.MainLoop.ScaleRows.Listed]
    """Which rows of a list a lane loads codes of, and scales, if these are of other rows."""
    comptime CODE_BYTES = Int32(LANE_BYTES[Self.formats.left])

    var a: Bytes
    var a_scales: Bytes
    """Their scales, unless these are behind the codes."""
    var count: Int32
    var w_codes: Bytes
    var w_scales: Bytes
    var codes_step: Int32
    """Bytes from the codes of a group's weights to the next one's."""
    var scales_step: Int32
    var n: Int32
    var k: Int32
    var first_stage: Int32
    """Where the workgroup's part of K begins."""

    @always_inline
    def stages(self) -> Int32:
        comptime BLOCKS = Self.shape.slices * TILE_BLOCKS
        return quotient[BLOCKS](quotient[BLOCK](self.k) + Int32(BLOCKS - 1))

    @always_inline
    def row_blocks(self) -> Int32:
        """Returns the blocks of a row of activations; in groups, whole stages of four-bit codes."""
        comptime if not Self.grouping.is_grouped:
            return quotient[BLOCK](self.k)
        return quotient[STAGE_K](self.k + Int32(STAGE_K - 1)) * Int32(STAGE_BLOCKS)

    @always_inline
    def listed(
        self, list: Input[DType.int32], tile: GroupTile, wave: Int32, lane: Int32
    ) -> Self.Listed:
        """Starts looking up which rows of a list a tile has."""
        comptime Loop = Self.MainLoop
        var names = Span.of(list, tile.end_row).after(tile.first_row * Int32(WORD_BYTES))
        var scales = Loop.ScaleRows.Listed()
        comptime if Self.grouping.is_gathered and not Loop.SHARES_OFFSETS:
            scales = Loop.ScaleRows.Loads.listed[Loop.LISTED_SCALE_ROUNDS](names, 0, wave, lane)
        return (Loop.Rows.Loads.listed[Loop.LISTED_ROUNDS](names, 0, wave, lane), scales)

    @staticmethod
    @always_inline
    def take(mut loop: Self.MainLoop, listed: Self.Listed, count: Int32, lane: Int32):
        """Lets a wave take the first `count` rows that were looked up."""
        loop.codes.turn_to(listed[0], count, lane)
        comptime if Self.MainLoop.SHARES_OFFSETS:
            loop.scales.turn_to(loop.codes)
        else:
            loop.scales.turn_to(listed[1], count, lane)

    @always_inline
    def codes(self, tile: GroupTile, wave: Int32, lane: Int32) -> Self.MainLoop.Rows:
        """Returns the codes of a tile's rows; of a list, none of them yet."""
        var first_byte = self.first_stage * Int32(Self.shape.row_bytes())
        var row_bytes = self.row_blocks() * Self.CODE_BYTES
        return Self.MainLoop.Rows.of(self._rows(self.a, tile), row_bytes, first_byte, wave, lane)

    @always_inline
    def scales(self, tile: GroupTile, wave: Int32, lane: Int32) -> Self.MainLoop.ScaleRows:
        comptime STAGE = Int32(Self.shape.slices * TILE_BLOCKS)
        var blocks, bytes = self.row_blocks(), self.a_scales
        var first = Int32(0) if Self.k_tail else self.first_stage * STAGE
        comptime if Self.grouping.is_grouped:
            bytes = self.a.unsafe_offset(Int(self.count) * Int(blocks * Self.CODE_BYTES))
            first = 0
        var rows = self._rows(bytes, tile)
        return Self.MainLoop.ScaleRows.of[Self.HAS_LINES](rows, blocks, first, wave, lane)

    @always_inline
    def _rows(self, bytes: Bytes, tile: GroupTile) -> OperandRows:
        """Returns a tile's rows; of a list, all of them."""
        comptime IS_GATHERED = Self.grouping.is_gathered
        var end = self.count if IS_GATHERED else tile.end_row
        return OperandRows(bytes, end, self.row_blocks(), tile.first_row)

    @always_inline
    def weights(self, group: Int32, first_tile: Int32) -> Self.MainLoop.Weights:
        """Returns a wave's weights of a group, from a tile of 16 columns on."""
        var codes, scales = self.w_codes, self.w_scales
        comptime if Self.grouping.is_grouped:
            codes = codes.unsafe_offset(Int(group) * Int(self.codes_step))
            scales = scales.unsafe_offset(Int(group) * Int(self.scales_step))
        return Self.MainLoop.Weights.of(codes, scales, self.n, quotient[BLOCK](self.k), first_tile)
