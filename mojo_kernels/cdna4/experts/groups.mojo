"""Which rows a workgroup takes, and of which expert: found on the device, from the sizes of groups.

Rows are sorted by expert, so tiles of rows are too; no tile has rows of two groups:

    sizes             5     0     2 3        of 12 rows, tiles of 4
    rows              0 .. 4      5 6 | 7 8 9 | 10 11
    tile 0, 1, ..     0-3 4       5-6 | 7-9   | 10-11
    expert            0   0       2     3       none

Every wave of a workgroup looks at 64 sizes at a time. They may be any numbers: negative ones are
taken for 0, and groups end where the rows end.
"""

from ..instructions.matrix import LANES
from ..instructions.wave import count, of_lane, sums_up_to, votes
from ..operands.memory import Input, Span, WORD_BYTES, load_word, quotient


def most_tiles(m: Int, groups: Int, rows: Int) -> Int:
    """Returns the most tiles of `rows` rows that m rows can make, some of which have no group."""
    return min(m, (m + (groups + 1) * (rows - 1)) // rows)


@always_inline
def count_tiles[
    rows: Int
](sizes: Input[DType.int32], groups: Int32, m: Int32, lane: Int32) -> Int32:
    """Returns how many tiles of `rows` rows the groups have."""
    var memory = Span.of(sizes, groups).after(0)
    var row, tiles = Int32(0), Int32(0)
    for first in range(Int32(0), groups, LANES):
        var size = min(max(load_word(memory, (first + lane) * Int32(WORD_BYTES)), 0), m)
        var end = row + sums_up_to(size)
        var inside = max(min(end, m) - (end - size), 0)
        tiles += of_lane(sums_up_to(quotient[rows](inside + Int32(rows - 1))), Int32(LANES - 1))
        row = min(of_lane(end, Int32(LANES - 1)), m)
    return tiles


@fieldwise_init
struct GroupTile(TrivialRegisterPassable):
    """Rows of one group."""

    var expert: Int32
    """Whose they are; the number of experts for rows behind the last group."""
    var first_row: Int32
    var end_row: Int32
    """Where the group ends; none of the tile's rows are left if that is not behind the first."""

    @staticmethod
    @always_inline
    def find[
        rows: Int
    ](sizes: Input[DType.int32], groups: Int32, m: Int32, index: Int32, lane: Int32) -> Self:
        """Returns tile `index` of `rows` rows of all m."""
        var memory = Span.of(sizes, groups).after(0)
        # Rows and tiles before those of the groups that the lanes see.
        var row, tile = Int32(0), Int32(0)
        for first in range(Int32(0), groups, LANES):
            var size = min(max(load_word(memory, (first + lane) * Int32(WORD_BYTES)), 0), m)
            var end = row + sums_up_to(size)
            var tiles = quotient[rows](size + Int32(rows - 1))
            var end_tile = tile + sums_up_to(tiles)
            var group = count(votes(end_tile <= index))
            if group < LANES:
                var begin = of_lane(end - size, group)
                var in_group = index - of_lane(end_tile - tiles, group)
                var end_row = min(of_lane(end, group), m)
                return Self(first + group, begin + in_group * Int32(rows), end_row)
            row = min(of_lane(end, Int32(LANES - 1)), m)
            tile = of_lane(end_tile, Int32(LANES - 1))
        return Self(groups, row + (index - tile) * Int32(rows), m)

    @always_inline
    def is_empty(self) -> Bool:
        """Says whether there are no such rows."""
        return self.first_row >= self.end_row
