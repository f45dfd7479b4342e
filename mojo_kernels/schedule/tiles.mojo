"""The tiles of C in some order: index -> (row, column).

A kernel that computes tiles asks an order which one an index stands for, and derives nothing by
itself. Rows of tiles are those of one product, or of all groups of a grouped one: whose a row of
tiles is, no order knows, but the tile scheduler that has found the groups.

    RowMajor, 2 x 3 tiles     0  1  2
                              3  4  5
"""


@fieldwise_init
struct Tile(TrivialRegisterPassable):
    """The place of a tile of C, counted in tiles."""

    var row: Int
    var column: Int


@fieldwise_init
struct RowMajor(TrivialRegisterPassable):
    """Neighbours of a row of tiles follow each other."""

    var rows: Int
    """Tiles of a column."""
    var columns: Int
    """Tiles of a row."""

    @always_inline
    def num_tiles(self) -> Int:
        """Returns how many indices stand for a tile."""
        return self.rows * self.columns

    @always_inline
    def tile(self, index: Int) -> Tile:
        """Returns the tile that an index stands for."""
        var row, column = divmod(index, self.columns)
        return Tile(row, column)
