"""Orders of tiles for CDNA4: what an XCD runs together shares its L2.

Workgroups are dealt to the XCDs in turn: workgroup i runs on XCD i % 8.

    XcdBands       many tiles: each XCD gets neighbours, a block of C about as wide as high
    XcdColumns     workgroup (x, y) has the tile of row y, column x; those of a column, which
                   read the same weights, run on one XCD
"""

from std.math import align_up

from .tiles import Tile

comptime NUM_XCDS = 8
"""XCDs, to which workgroups are dealt in turn."""


@always_inline
def _quotient(a: UInt32, b: UInt32) -> UInt32:
    """Returns a // b for a < 2**23, which a GPU divides fastest as floats.

    (a + 0.5) / b is at least 0.5 / b from any integer, which is more than it is rounded by.
    """
    return ((Float32(a) + 0.5) / Float32(b)).cast[DType.uint32]()


@fieldwise_init
struct XcdBands[band_rows: Int = 8](TrivialRegisterPassable):
    """Bands of rows of tiles, gone through column by column; each XCD has a stretch of them.

    Indices beyond the last tile have a row beyond the last row: a grid is a multiple of the XCDs.

    `band_rows`: Tiles of rows of C that workgroups go through before the next column. Guess.
    """

    var rows: Int
    """Tiles of a column."""
    var columns: Int
    """Tiles of a row."""

    def num_workgroups(self) -> Int:
        """Returns the workgroups of a launch."""
        return align_up(self.rows * self.columns, NUM_XCDS)

    @always_inline
    def has_tile(self, index: Int) -> Bool:
        """Says whether a workgroup of the launch, or one behind it, has a tile."""
        comptime XCDS = UInt32(NUM_XCDS)
        var per_xcd = (UInt32(self.rows) * UInt32(self.columns) + (XCDS - 1)) // XCDS
        var is_of_launch = UInt32(index) // XCDS < per_xcd
        return is_of_launch and self._number(index) < UInt32(self.rows) * UInt32(self.columns)

    @always_inline
    def _number(self, index: Int) -> UInt32:
        """Returns where a workgroup's tile is in the order: that of its XCD's stretch."""
        comptime XCDS = UInt32(NUM_XCDS)
        var per_xcd = (UInt32(self.rows) * UInt32(self.columns) + (XCDS - 1)) // XCDS
        return UInt32(index) % XCDS * per_xcd + UInt32(index) // XCDS

    @always_inline
    def tile(self, index: Int) -> Tile:
        """Returns the tile that an index stands for."""
        var rows, columns = UInt32(self.rows), UInt32(self.columns)
        var number = self._number(index)
        var band = UInt32(0)
        if rows > UInt32(Self.band_rows):
            band = _quotient(number, UInt32(Self.band_rows) * columns)
        var in_band = number - band * UInt32(Self.band_rows) * columns
        var height = min(rows - band * UInt32(Self.band_rows), UInt32(Self.band_rows))
        if number >= rows * columns:
            return Tile(self.rows, self.columns)
        var column = _quotient(in_band, height)
        var row = band * UInt32(Self.band_rows) + in_band - column * height
        return Tile(Int(row), Int(column))


@fieldwise_init
struct XcdColumns(TrivialRegisterPassable):
    """A grid of two dimensions, so that nothing divides: y counts rows, x columns.

    Where a column has several tiles, the grid's x extent is a multiple of the XCDs; what is
    beyond the last column has no tile. Of fewer columns than XCDs each goes to several, so that
    none idles.
    """

    var rows: Int
    """Tiles of a column."""
    var columns: Int
    """Tiles of a row."""

    def grid(self) -> Tuple[Int, Int]:
        """Returns the extents of the grid."""
        var fills_xcds = self.rows > 1 and self.columns >= NUM_XCDS
        return (align_up(self.columns, NUM_XCDS) if fills_xcds else self.columns, self.rows)

    @staticmethod
    @always_inline
    def tile(x: Int, y: Int) -> Tile:
        """Returns the tile of workgroup (`x`, `y`)."""
        return Tile(y, x)
