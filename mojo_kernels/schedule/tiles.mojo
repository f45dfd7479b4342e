"""The tiles of C in some order: index -> (group, row, column).

A kernel that computes tiles asks a schedule which one an index stands for, and derives nothing by
itself. A group is one product of several that share a launch; dense products have group 0 alone.

    RowMajor, 2 x 3 tiles     0  1  2
                              3  4  5
"""


@fieldwise_init
struct Tile(TrivialRegisterPassable):
    """The place of a tile of C, counted in tiles."""

    var group: Int
    var row: Int
    var column: Int


trait TileSchedule(TrivialRegisterPassable):
    """An order of tiles."""

    def num_tiles(self) -> Int:
        """Returns how many indices stand for a tile."""
        ...

    def tile(self, index: Int) -> Tile:
        """Returns the tile that `index` stands for."""
        ...


@fieldwise_init
struct RowMajor(TileSchedule):
    """Neighbours of a row of tiles follow each other."""

    var rows: Int
    """Tiles of a column."""
    var columns: Int
    """Tiles of a row."""

    @always_inline
    def num_tiles(self) -> Int:
        return self.rows * self.columns

    @always_inline
    def tile(self, index: Int) -> Tile:
        var row, column = divmod(index, self.columns)
        return Tile(0, row, column)
