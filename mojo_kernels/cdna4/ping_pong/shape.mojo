"""The size of a ping-pong workgroup's tile of C, and what that means for its LDS.

A wave computes 128 x 64 of C, 8 x 4 tiles, or 64 x 64; there are two by four waves. In
LDS is what they multiply, and what comes next, on its way. Activations take places of a line of
memory a row at least: two slices of 128 along K, a stage, or one slice of more than four bits.
Six-bit codes of a slice are three quarters of a line:

    four bits      activations    256 or 128 rows x 8 blocks, 3 stages       96 or 48 KiB
                   weights        256 rows x 4 or 8 blocks, 3 phases         48 or 96 KiB
    six bits       activations    256 or 128 rows x 4 blocks, 3 slices       74 or 37 KiB
                   weights        256 rows x 4 blocks, 3 slices              48 KiB
    eight bits     activations    256 or 128 rows x 4 blocks, 2 or 3 slices  64 or 48 KiB
                   weights        256 rows x 4 blocks, 2 or 3 slices         64 or 96 KiB
    floats         as of eight bits, each block of 16 numbers
    bfloat16       activations    128 rows x 4 blocks, 2 slices              64 KiB
                   weights        256 rows x 4 blocks, 2 slices              32 KiB
    scales         of both, in words of four, 3 stages                             12 KiB
                   floats of blocks, 2 runs of 4 or 2 stages                 20 or 12 KiB

Float scales lie row by row: of a run of stages a wave loads a part of its rows in each stage, so
that a row's scales are one access of 32 or 16 bytes, not of 8.
"""

from std.math import ceildiv

from ...numbers.formats import Format
from ...numbers.scales import Scale
from ...schedule.xcd import XcdBands
from ..chip import CODE_LOAD_BYTES, CODE_PIECE_BYTES, GROUP_BLOCKS, LANES, LANE_BYTES, LANE_SCALES
from ..chip import PIECE_BYTES, TILE, TILE_BLOCKS, scale_load_bytes
from ..prologue.shape import CooperativeMemory, is_prepared, lies_by_tiles
from ..types import Formats, KEPT, ProductTypes
from ...launch.grid import Grid, Workspace

comptime WAVES_M = 2
"""Waves along the rows of C, one for each ping-pong group."""
comptime WAVES_N = 4
"""Waves along the columns of C, one for each SIMD."""
comptime WAVES = WAVES_M * WAVES_N
"""Waves of a workgroup."""
comptime N_TILES = 4
"""Tiles of columns of a wave."""
comptime COLUMNS = WAVES_N * N_TILES * TILE
"""Columns of C of a workgroup."""
comptime STAGE_BLOCKS = GROUP_BLOCKS
"""Blocks of a stage along K."""
comptime LINE_BYTES = 128
"""Bytes of a line of memory."""
comptime AHEAD = 2
"""Stages of scales, slices or stages of activations, phases of weights: those on their way."""
comptime MAX_KEPT_TILES = 4
"""Tiles of rows of a wave for which LDS has room, of floats that are kept."""
comptime PHASE_CYCLES = 512
"""What a wave multiplies in a phase, in cycles of the matrix pipes."""

comptime THREADS = WAVES * LANES
"""Threads of a workgroup."""


struct PingPongTile[formats: Formats, m_tiles: Int]:
    """The size of a workgroup's tile of C, and what follows from it.

    `m_tiles`: Tiles of rows of a wave.
    """

    comptime ROWS = rows_of(Self.m_tiles)
    comptime SLICE_CYCLES = Self.m_tiles * N_TILES * tile_cycles(Self.formats)
    """Cycles of the matrix pipes that a wave's tiles of a slice take."""
    comptime PARTS = ceildiv(Self.SLICE_CYCLES, PHASE_CYCLES)
    comptime CUTS_COLUMNS = Self.formats.left == KEPT and LANE_SCALES[Self.formats.right] > 1
    """Whether parts are of columns, so that all decode as much; otherwise they are of rows."""
    comptime PART_TILES = Self.m_tiles if Self.CUTS_COLUMNS else Self.m_tiles // Self.PARTS
    comptime PART_COLUMNS = N_TILES // Self.PARTS if Self.CUTS_COLUMNS else N_TILES
    """Tiles of columns of a part."""
    comptime NEXT_WAVE = Self.PART_TILES if Self.formats.are_columns else Self.m_tiles
    """Tiles of rows from the first of a wave to the first of the wave below: of codes by columns
    those of a part lie side by side, so that a part is whole lines of memory."""
    comptime NEXT_PART = WAVES_M * Self.PART_TILES if Self.formats.are_columns else Self.PART_TILES
    """Tiles of rows from a part of a wave's to its next."""
    comptime PIECE = CODE_PIECE_BYTES[Self.formats.left]
    comptime HAS_SIXES = Self.formats.left.element.bits == 6
    """Whether a block of activations is no multiple of a piece."""
    comptime ROW_BYTES = max(
        LINE_BYTES // PIECE_BYTES * Self.PIECE, TILE_BLOCKS * LANE_BYTES[Self.formats.left]
    )
    comptime ROW_PIECES = Self.ROW_BYTES // Self.PIECE
    comptime LOAD_ROWS = LANES // Self.ROW_PIECES
    comptime PLACE_BLOCKS = Self.ROW_BYTES // LANE_BYTES[Self.formats.left]
    comptime PLACE_SLICES = Self.PLACE_BLOCKS // TILE_BLOCKS
    comptime PHASE_SLICES = min(ceildiv(PHASE_CYCLES, Self.SLICE_CYCLES), Self.PLACE_SLICES)
    comptime FETCHES = 2 if Self.PLACE_SLICES == 2 else Self.PARTS
    """Parts in which the activations of a place are fetched."""
    comptime DEPTH = AHEAD if Self.PARTS > 1 else AHEAD + 1
    """Places of activations, and phases or slices of weights, in LDS."""
    comptime A_TILE_BYTES = TILE // Self.LOAD_ROWS * CODE_LOAD_BYTES[Self.formats.left]
    comptime A_BYTES = Self.ROWS // TILE * Self.A_TILE_BYTES
    comptime B_TILE_BYTES = TILE * TILE_BLOCKS * LANE_BYTES[Self.formats.right]
    comptime B_SLICE_BYTES = COLUMNS // TILE * Self.B_TILE_BYTES
    comptime B_BYTES = Self.PHASE_SLICES * Self.B_SLICE_BYTES
    comptime B_PLACE = Self.DEPTH * Self.A_BYTES
    """Where weights begin in LDS; the first place is the last one to be filled."""
    comptime FREE_BYTES = Self.B_PLACE + (Self.DEPTH - AHEAD) * Self.B_BYTES
    """Bytes that are free until the first activations are fetched."""
    comptime SCALE_PLACE = Self.B_PLACE + Self.DEPTH * Self.B_BYTES
    comptime HAS_FLOATS = (
        Self.formats.left.scale == Scale.FLOAT32 and not Self.formats.left.has_row_scales()
    )
    """Whether scales are floats of blocks."""
    comptime SCALE_RUN = (4 if Self.m_tiles > MAX_KEPT_TILES else 2) if Self.HAS_FLOATS else 1
    """Stages whose scales are in LDS together."""
    comptime SCALE_DEPTH = AHEAD if Self.HAS_FLOATS else AHEAD + 1
    """Runs of stages whose scales are in LDS."""
    comptime A_SCALE_BYTES = WAVES * Self.SCALE_RUN * scale_load_bytes(Self.SCALE_RUN)
    """Bytes for the scales of the activations of a run: each wave has a place for a group."""
    comptime SCALE_BYTES = Self.A_SCALE_BYTES + COLUMNS * STAGE_BLOCKS
    """Bytes of all scales of a run."""
    comptime B_SCALE_PLACE = Self.A_SCALE_BYTES if LANE_SCALES[Self.formats.right] == 1 else 0
    """Where those of weights begin in a run: two of a lane take the place of activations'."""
    comptime LDS_BYTES = Self.SCALE_PLACE + Self.SCALE_DEPTH * Self.SCALE_BYTES

    @staticmethod
    def first_row(m_tile: Int) -> Int:
        """Returns the first row of a wave's tile, counted from that of its first one."""
        var part, tile = divmod(m_tile, Self.PART_TILES)
        return (part * Self.NEXT_PART + tile) * TILE


def has_tile(types: ProductTypes, m_tiles: Int) -> Bool:
    """Says whether there is such a kernel: floats that are kept come as they are multiplied."""
    if types.formats.left != KEPT:
        return True
    return types.x.value() == DType.bfloat16 and m_tiles == MAX_KEPT_TILES


def tile_cycles(formats: Formats) -> Int:
    """Returns the cycles of the matrix pipes that a tile of C takes for a slice."""
    comptime FOUR_BITS, EIGHT_BITS, FLOATS = 16, 32, 64
    if formats.left == KEPT:
        return FLOATS
    return FOUR_BITS if formats.multiply_at_once() else EIGHT_BITS


def rows_of(m_tiles: Int) -> Int:
    """Returns the rows of C of a workgroup whose waves have so many tiles of rows."""
    return WAVES_M * m_tiles * TILE


def tiles_of_c(m_tiles: Int, m: Int, n: Int) -> XcdBands[]:
    """Returns the tiles of C that workgroups compute."""
    return XcdBands(ceildiv(m, rows_of(m_tiles)), ceildiv(n, COLUMNS))


def grid_of(m_tiles: Int, m: Int, n: Int) -> Grid:
    """Returns the grid of a launch."""
    return Grid(tiles_of_c(m_tiles, m, n).num_workgroups(), threads=THREADS)


def workspace_of(format: Format, m_tiles: Int, rows: Int, k: Int, *, has_codes: Bool) -> Workspace:
    """Returns the memory of a launch, which has codes if activations come as floats, or come plain
    and are to lie by tiles."""
    if not is_prepared(format):
        return Workspace(0, 0)
    var memory = CooperativeMemory.of(format, ceildiv(rows, rows_of(m_tiles)), rows, k)
    var num_bytes = memory.num_bytes if has_codes or lies_by_tiles(format) else memory.codes
    return Workspace(memory.counter_bytes, num_bytes - memory.counter_bytes)
