"""A workgroup of a prefill kernel: its tile of C, its waves, and how the tile is computed.

Eight waves, two by four, compute 128 x 64 (or 64 x 64) each from what they share in LDS
(stages.mojo). They form two groups of four, a wave of each on every SIMD; while one
group multiplies, the other reads the fragments of its next phase and fetches later ones
(order.mojo):

    wave    0 .. 3    group 0    rows   0 .. 127    columns 64 * (wave % 4) .. + 63
            4 .. 7    group 1    rows 128 .. 255
"""

from max.gpu import block_idx, thread_idx
from std.sys.intrinsics import readfirstlane

from ...schedule.xcd import XcdBands
from ..chip import BLOCK, LANES, TILE, TILE_BLOCKS
from ..instructions.lds import Lds
from ..instructions.wave import lane_here
from ..operands.memory import Bytes, bytes_of, quotient
from ..operands.row_scales import RowScales
from ..operands.target import Target
from ..types import Formats
from .crew import Crew, Meeting
from .result import bias_of_tiles, rounded_tiles, store_rounded_tiles
from .shape import (
    COLUMNS,
    N_TILES,
    PrefillTile,
    SCALE_GROUP_ROWS,
    WAVES,
    WAVES_N,
)
from .stages import Reader
from .walk import PrefillWalk


@fieldwise_init
struct Workgroup[formats: Formats, m_tiles: Int](TrivialRegisterPassable):
    """Who a wave is: its workgroup's tile of C, and its place there.

    Parameters:
        formats: What is multiplied.
        m_tiles: Tiles of rows of a wave.
    """

    comptime Tile = PrefillTile[Self.formats, Self.m_tiles]
    """The workgroup's tile of C."""
    comptime WorkCrew = Crew[Self.Tile.ROWS // SCALE_GROUP_ROWS, WAVES]
    """The workgroups of the same rows."""

    var row: Int32
    """The tile's row."""
    var column: Int32
    """The tile's column."""
    var tiles_m: Int32
    """Tiles of rows of C."""
    var tiles_n: Int32
    """Tiles of columns of C."""
    var wave: Int32
    var lane: Int32

    @staticmethod
    @always_inline
    def this(m: Int32, n: Int32) -> Self:
        """Returns the caller's."""
        comptime ROWS = Self.Tile.ROWS
        var tiles_m = quotient[ROWS](m + Int32(ROWS - 1))
        var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
        var tile = XcdBands(Int(tiles_m), Int(tiles_n)).tile(Int(block_idx.x))
        var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
        return Self(
            Int32(tile.row), Int32(tile.column), tiles_m, tiles_n, wave, Int32(thread_idx.x) % LANES
        )

    @always_inline
    def has_tile(self) -> Bool:
        """Says whether there is work: the grid is rounded up to a multiple of the XCDs."""
        return self.row < self.tiles_m

    @always_inline
    def pair(self) -> Int32:
        """Returns which pair of tiles of rows the wave prepares, within the tile of C."""
        return self.wave % Int32(self.WorkCrew.pairs)

    @always_inline
    def first_shared_row(self) -> Int32:
        """Returns the first row of that pair."""
        return self.row * Int32(self.Tile.ROWS) + self.pair() * Int32(SCALE_GROUP_ROWS)

    @always_inline
    def crew(self, workspace: MutPointer[UInt8, _], parts: Int32) -> Self.WorkCrew:
        """Returns the crew, which shares `parts` parts of each pair."""
        return Self.WorkCrew.of(workspace, self.row, self.tiles_n, parts)


@fieldwise_init
struct Inputs(TrivialRegisterPassable):
    """What is multiplied: plain codes or floats, all else preshuffled."""

    var a_codes: Bytes
    """Codes of activations, or floats."""
    var a_scales: Bytes
    """Their scales; anything for floats."""
    var w_codes: Bytes
    """Codes of weights."""
    var w_scales: Bytes
    var m: Int32
    """Rows of activations."""
    var n: Int32
    """Rows of weights."""
    var k: Int32
    """Elements of a row."""

    @staticmethod
    @always_inline
    def of(
        a_codes: Pointer[...],
        a_scales: Pointer[...],
        w_codes: Pointer[...],
        w_scales: Pointer[...],
        m: Int32,
        n: Int32,
        k: Int32,
    ) -> Self:
        """Describes operands; those of activations may still be on their way."""
        return Self(
            bytes_of(a_codes),
            bytes_of(a_scales),
            bytes_of(w_codes),
            bytes_of(w_scales),
            m,
            n,
            k,
        )


@always_inline
def multiply_tile[
    formats: Formats,
    m_tiles: Int,
    out_dtype: DType,
    bias_dtype: Optional[DType],
    Others: Meeting,
    //,
    k_tail: Bool,
](
    inputs: Inputs,
    target: Target[out_dtype, bias_dtype],
    workgroup: Workgroup[formats, m_tiles],
    others: Others,
    lds: Lds,
):
    """Computes the workgroup's tile of C, once others too have prepared the activations."""
    comptime Walk = PrefillWalk[formats, m_tiles, k_tail]
    var wave, lane = workgroup.wave, workgroup.lane
    var first_row = workgroup.row * Int32(Walk.Tile.ROWS)
    var first_column = workgroup.column * Int32(COLUMNS)
    var m, n, k_blocks = inputs.m, inputs.n, quotient[BLOCK](inputs.k)

    # Along K.
    var walk = Walk(
        Walk.Codes.of(inputs.a_codes, m, k_blocks, first_row, wave, lane),
        Walk.Scales.of(inputs.a_scales, m, k_blocks, first_row, wave, lane),
        Walk.WeightScales.of(inputs.w_scales, n, k_blocks, first_column, wave, lane),
        Walk.Weights.of(inputs.w_codes, n, k_blocks, first_column, wave, lane),
        Reader[formats, m_tiles].of(wave, lane),
        lds,
    )
    walk.fetch_weights()
    walk.clear()
    others.meet(wave, lane)
    var num_slices = quotient[TILE_BLOCKS](k_blocks + Int32(TILE_BLOCKS - 1))
    var group = quotient[WAVES_N](wave)
    walk.walk(group, num_slices)

    # To memory, by lanes that nobody has kept all along K.
    lane = lane_here()
    first_row += group * Int32(Walk.Tile.NEXT_WAVE * TILE)
    first_column += wave % Int32(WAVES_N) * Int32(N_TILES * TILE)
    comptime if formats.left.has_row_scales():
        comptime assert not formats.are_columns, "tiles of rows lie one below the other"
        var scales = RowScales.of(inputs.a_scales, inputs.w_scales, m, n)
        scales.apply(walk.sums, first_row, first_column, lane)
    var bias = bias_of_tiles[N_TILES](target, first_column, lane)
    var values = rounded_tiles(target, walk.sums, bias)
    walk.leave(group)
    store_rounded_tiles[row_of=Walk.Tile.first_row](
        target, walk.sums, bias, values, first_row, first_column, lane
    )
