"""The order in which blocks of activations are stored: the order of the inner loops.

Stretches of K come one after the other; in a stretch, groups of rows; in a group,
blocks; and for a block, its rows. With two rows a group and two blocks a stretch,
five rows and three blocks lie like this:

    block        0    1    2
    row 0        0    2   10
    row 1        1    3   11
    row 2        4    6   12
    row 3        5    7   13
    row 4        8    9   14

The last stretch and the last group may be smaller.
"""


@fieldwise_init
struct BlockOrder[group_rows: Int, stretch_blocks: Int](TrivialRegisterPassable):
    """Maps (row, block) to the place of the block."""

    var rows: Int
    """M."""
    var k_blocks: Int
    """Blocks of a row."""

    @always_inline
    def rows_of_group(self, row: Int) -> Int:
        """Returns the size of the group of `row`."""
        return min(Self.group_rows, self.rows - row + row % Self.group_rows)

    @always_inline
    def index(self, row: Int, block: Int) -> Int:
        """Returns the place of (`row`, `block`).

        In a stretch, the rows of a group and then its blocks count up from its first.
        """
        var group_row = row % Self.group_rows
        var stretch_block = block % Self.stretch_blocks
        var first_block = block - stretch_block
        var num_blocks = min(Self.stretch_blocks, self.k_blocks - first_block)
        var group = self.rows * first_block + (row - group_row) * num_blocks
        return group + stretch_block * self.rows_of_group(row) + group_row
