"""Both sides of a product of the interleaved kernel, of which a tile of C takes its part.

    dense      rows one behind another, of a part of K where workgroups share it
    grouped    rows of a group, or those that a list names; they are whole stages, zeros at their
               end, with their scales behind all codes; weights of one of several matrices
"""

from ...arguments import Grouping
from ...chip import BLOCK, LANE_BYTES, TILE_BLOCKS
from ..groups import GroupTile
from ...operands.memory import Bytes, quotient
from ...types import Formats
from .shape import InterleavedShape, ROW_BYTES, STAGE_BLOCKS, STAGE_K
from .main_loop import InterleavedLoop


@fieldwise_init
struct InterleavedOperands[
    formats: Formats, shape: InterleavedShape, k_tail: Bool, grouping: Grouping
](TrivialRegisterPassable):
    """Both sides.

    Parameters:
        formats: What is multiplied.
        shape: How a workgroup cuts its work.
        k_tail: Whether K may end within a stage.
        grouping: Whose rows these are.
    """

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
    """Who takes them."""
    comptime CODE_BYTES = Int32(LANE_BYTES[Self.formats.left])
    """Bytes of the codes of a block."""

    var a: Bytes
    """Codes of rows."""
    var a_scales: Bytes
    """Their scales, unless these are behind the codes."""
    var count: Int32
    """How many rows these are."""
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
        """Returns the stages along K."""
        comptime BLOCKS = Self.shape.slices * TILE_BLOCKS
        return quotient[BLOCKS](quotient[BLOCK](self.k) + Int32(BLOCKS - 1))

    @always_inline
    def row_blocks(self) -> Int32:
        """Returns the blocks of a row of activations; in groups, whole stages of four-bit codes."""
        comptime if not Self.grouping.is_grouped:
            return quotient[BLOCK](self.k)
        return quotient[STAGE_K](self.k + Int32(STAGE_K - 1)) * Int32(STAGE_BLOCKS)

    @always_inline
    def codes(self, tile: GroupTile, wave: Int32, lane: Int32) -> Self.MainLoop.Rows:
        """Returns the codes of a tile's rows; of a list, none of them yet."""
        var row_bytes = self.row_blocks() * Self.CODE_BYTES
        comptime if Self.grouping.is_gathered:
            return Self.MainLoop.Rows.of_no_list(self.a, self.count, row_bytes, wave)
        else:
            return Self.MainLoop.Rows.of(
                self.a, tile.end_row, row_bytes, tile.first_row,
                self.first_stage * Int32(ROW_BYTES), wave, lane,
            )  # fmt: skip

    @always_inline
    def scales(self, tile: GroupTile, wave: Int32, lane: Int32) -> Self.MainLoop.ScaleRows:
        """Returns their scales."""
        comptime STAGE = Int32(Self.shape.slices * TILE_BLOCKS)
        comptime of = Self.MainLoop.ScaleRows.of_lines if Self.HAS_LINES else Self.MainLoop.ScaleRows.of
        var blocks = self.row_blocks()
        comptime if not Self.grouping.is_grouped:
            var first = Int32(0) if Self.k_tail else self.first_stage * STAGE
            return of(self.a_scales, tile.end_row, blocks, tile.first_row, first, wave, lane)
        var scales = self.a.unsafe_offset(Int(self.count) * Int(blocks * Self.CODE_BYTES))
        comptime if Self.grouping.is_gathered:
            return Self.MainLoop.ScaleRows.of_no_list(scales, self.count, blocks, wave)
        else:
            return of(scales, tile.end_row, blocks, tile.first_row, 0, wave, lane)

    @always_inline
    def weights(self, group: Int32, first_tile: Int32) -> Self.MainLoop.Weights:
        """Returns a wave's weights of a group, from a tile of 16 columns on."""
        var codes, scales = self.w_codes, self.w_scales
        comptime if Self.grouping.is_grouped:
            codes = codes.unsafe_offset(Int(group) * Int(self.codes_step))
            scales = scales.unsafe_offset(Int(group) * Int(self.scales_step))
        return Self.MainLoop.Weights.of(codes, scales, self.n, quotient[BLOCK](self.k), first_tile)
