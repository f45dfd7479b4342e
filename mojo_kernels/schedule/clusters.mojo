"""The tiles of C as the CTAs of an NVIDIA grid take them, with or without clusters.

    Bands            tiles in one line; neighbours share weights and activations in the
                     second-level cache: up to `height` tiles of rows, then the next column
    GridRows         a row of C and some columns; rows go on along the third axis, because
                     hardware limits the second one to 16 bits

Bands, 3 x 2 tiles, height 2:

    0  2
    1  3
    4  5
"""

from std.math import ceildiv

from .tiles import Tile


comptime HEIGHT = 8
"""Tiles of rows that share their weights: tiles that are computed at once then want about as much of
either side, if they are about square."""


def height_of(rows: Int, columns: Int) -> Int:
    """Returns the height of bands of tiles of so many rows and columns: more if they are wide."""
    return HEIGHT * 2 if columns >= 4 * rows else HEIGHT


@fieldwise_init
struct Bands[height: Int = HEIGHT](TrivialRegisterPassable):
    """Column after column of a band of tiles, band after band."""

    var rows: UInt32
    """Tiles of a column."""
    var columns: UInt32
    """Tiles of a row."""

    @always_inline
    def tile(self, index: Int) -> Tile:
        """Returns the tile that an index stands for."""
        var band, in_band = divmod(UInt32(index), UInt32(Self.height) * self.columns)
        var first = band * UInt32(Self.height)
        var column, row = divmod(in_band, min(UInt32(Self.height), self.rows - first))
        return Tile(Int(first + row), Int(column))


@fieldwise_init
struct GridRows(TrivialRegisterPassable):
    """Row after row; a tile is one row of C."""

    comptime MAX_Y = 32768
    """Rows that one slice of the grid covers."""

    var rows: Int
    """Rows of C."""
    var columns: Int
    """Tiles of a row."""

    def grid(self) -> Tuple[Int, Int, Int]:
        """Returns the grid; the last slice may reach past the last row."""
        return (self.columns, min(self.rows, Self.MAX_Y), ceildiv(self.rows, Self.MAX_Y))

    @staticmethod
    @always_inline
    def row_of(y: Int, z: Int) -> Int:
        """Returns the row of a CTA, by its place in the grid."""
        return y + z * Self.MAX_Y
