"""The size of a prefill workgroup's tile of C, and what that means for its LDS.

A wave computes 128 x 64 of C, 8 x 4 tiles, or 64 x 64; there are two by four waves. In
LDS is a stage of 256 along K, and the next ones on their way:

    activations    256 or 128 rows x 8 blocks of codes, 3 stages    96 or 48 KiB
    weights        256 rows x 4 or 8 blocks of codes, 3 phases      48 or 96 KiB
    scales         of both, in words of four, 3 stages                    12 KiB
"""

from std.math import ceildiv

from ...launch.queue import Grid
from ...schedule.xcd import XcdBands
from ..instructions.matrix import LANES, TILE, TILE_BLOCKS
from ..operands.tiles import GROUP_BLOCKS, PAIR
from ..types import Formats

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
comptime DEPTH = 3
"""Stages of activations and scales, and phases of weights, in LDS."""
comptime PHASE_TILES = 32
"""Tiles of C times slices that a wave multiplies in a phase."""

comptime SCALE_GROUP_BYTES = PAIR * TILE * GROUP_BLOCKS
"""Bytes of the scales of two tiles of rows in a stage."""
comptime SCALE_GROUP_ROWS = PAIR * TILE
"""Rows whose scales share words."""
comptime A_SCALE_BYTES = WAVES * SCALE_GROUP_BYTES
"""Bytes for the scales of the activations of a stage: each wave has a place for a group."""
comptime SCALE_BYTES = A_SCALE_BYTES + COLUMNS * STAGE_BLOCKS
"""Bytes of all scales of a stage."""
comptime THREADS = WAVES * LANES
"""Threads of a workgroup."""


struct PrefillTile[formats: Formats, m_tiles: Int]:
    """The size of a workgroup's tile of C, and what follows from it.

    Parameters:
        formats: What is multiplied.
        m_tiles: Tiles of rows of a wave.
    """

    comptime ROWS = rows_of(Self.m_tiles)
    """Rows of C."""
    comptime ROW_BYTES = STAGE_BLOCKS * Self.formats.left.block_bytes()
    """Bytes of a row of activations in a stage."""
    comptime A_TILE_BYTES = TILE * Self.ROW_BYTES
    """Bytes of a tile of rows in a stage."""
    comptime A_BYTES = Self.ROWS * Self.ROW_BYTES
    """Bytes of the activations of a stage."""
    comptime PHASE_SLICES = PHASE_TILES // (Self.m_tiles * N_TILES)
    comptime B_TILE_BYTES = TILE * TILE_BLOCKS * Self.formats.right.block_bytes()
    """Bytes of a tile of weights."""
    comptime B_SLICE_BYTES = COLUMNS // TILE * Self.B_TILE_BYTES
    """Bytes of the weights of a slice."""
    comptime B_BYTES = Self.PHASE_SLICES * Self.B_SLICE_BYTES
    """Bytes of the weights of a phase."""
    comptime B_PLACE = DEPTH * Self.A_BYTES
    """Where weights begin in LDS; the first place is the last one to be filled."""
    comptime FREE_BYTES = Self.B_PLACE + Self.B_BYTES
    """Bytes that are free until the first activations are fetched."""
    comptime SCALE_PLACE = Self.B_PLACE + DEPTH * Self.B_BYTES
    """Where scales begin."""
    comptime LDS_BYTES = Self.SCALE_PLACE + DEPTH * SCALE_BYTES
    """Bytes of LDS of a workgroup."""


def rows_of(m_tiles: Int) -> Int:
    """Returns the rows of C of a workgroup whose waves have so many tiles of rows."""
    return WAVES_M * m_tiles * TILE


def tiles_of_c(m_tiles: Int, m: Int, n: Int) -> XcdBands:
    """Returns the tiles of C that workgroups compute."""
    return XcdBands(ceildiv(m, rows_of(m_tiles)), ceildiv(n, COLUMNS))


def grid_of(m_tiles: Int, m: Int, n: Int) -> Grid:
    """Returns the grid of a launch."""
    return Grid(tiles_of_c(m_tiles, m, n).num_workgroups(), threads=THREADS)
