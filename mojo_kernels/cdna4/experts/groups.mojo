"""Which rows a workgroup takes, and of which expert: found on the device, from the sizes of groups.

Rows are sorted by expert, so tiles of rows are too; no tile has rows of two groups:

    sizes             5     0     2 3        of 12 rows, tiles of 4
    rows              0 .. 4      5 6 | 7 8 9 | 10 11
    tile 0, 1, ..     0-3 4       5-6 | 7-9   | 10-11
    expert            0   0       2     3       none

Every wave of a workgroup looks at 64 sizes at a time. They may be any numbers: negative ones are
taken for 0, and groups end where the rows end.
"""

from max.gpu.intrinsics import AMDBufferResource

from ...tiles import RegisterTile, in_registers
from ..instructions.matrix import LANES
from ..instructions.wave import count, of_lane, sums_up_to, votes
from ..operands.memory import Input, Span, WORD_BYTES, load_word, quotient


def most_tiles(m: Int, groups: Int, rows: Int) -> Int:
    """Returns the most tiles of `rows` rows that m rows can make, some of which have no group."""
    return min(m, (m + (groups + 1) * (rows - 1)) // rows)


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
        return GroupSizes[0].load(sizes, groups, m, lane).tile[rows](index, lane)

    @always_inline
    def is_empty(self) -> Bool:
        """Says whether there are no such rows."""
        return self.first_row >= self.end_row


@fieldwise_init
struct GroupSizes[kept: Int = 2](TrivialRegisterPassable):
    """The sizes of all groups, for who asks more than once.

    Parameters:
        kept: How many sizes of a lane stay in registers, of groups that are 64 apart.
    """

    var memory: AMDBufferResource
    """All of them."""
    var groups: Int32
    var m: Int32
    """All rows."""
    var sizes: RegisterTile[DType.int32, 1, max(Self.kept, 1)]
    """The first ones."""

    @staticmethod
    @always_inline
    def load(memory: Input[DType.int32], groups: Int32, m: Int32, lane: Int32) -> Self:
        """Loads the first sizes."""
        var self = Self(
            Span.of(memory, groups).after(0),
            groups,
            m,
            in_registers[DType.int32, 1, max(Self.kept, 1)](),
        )
        comptime for i in range(Self.kept):
            self.sizes[i] = self._load(Int32(i) * LANES + lane)
        return self

    @always_inline
    def _load(self, group: Int32) -> Int32:
        """Loads the size of a group, or none beyond the last one; at most all rows."""
        return min(max(load_word(self.memory, group * Int32(WORD_BYTES)), 0), self.m)

    @always_inline
    def _of(self, first: Int32, lane: Int32) -> Int32:
        """Returns the size of the lane's group, from group `first` on."""
        comptime for i in range(Self.kept):
            if first == Int32(i) * LANES:
                return self.sizes[i]
        return self._load(first + lane)

    @always_inline
    def count_tiles[rows: Int](self, lane: Int32) -> Int32:
        """Returns how many tiles of `rows` rows the groups have."""
        var row, tiles = Int32(0), Int32(0)
        for first in range(Int32(0), self.groups, LANES):
            var size = self._of(first, lane)
            var end = row + sums_up_to(size)
            var inside = max(min(end, self.m) - (end - size), 0)
            tiles += of_lane(sums_up_to(quotient[rows](inside + Int32(rows - 1))), Int32(LANES - 1))
            row = min(of_lane(end, Int32(LANES - 1)), self.m)
        return tiles

    @always_inline
    def tile[rows: Int](self, index: Int32, lane: Int32) -> GroupTile:
        """Returns tile `index` of `rows` rows."""
        # Rows and tiles before those of the groups that the lanes see.
        var row, tile = Int32(0), Int32(0)
        for first in range(Int32(0), self.groups, LANES):
            var size = self._of(first, lane)
            var end = row + sums_up_to(size)
            var tiles = quotient[rows](size + Int32(rows - 1))
            var end_tile = tile + sums_up_to(tiles)
            var group = count(votes(end_tile <= index))
            if group < LANES:
                var begin = of_lane(end - size, group)
                var in_group = index - of_lane(end_tile - tiles, group)
                var end_row = min(of_lane(end, group), self.m)
                return GroupTile(first + group, begin + in_group * Int32(rows), end_row)
            row = min(of_lane(end, Int32(LANES - 1)), self.m)
            tile = of_lane(end_tile, Int32(LANES - 1))
        return GroupTile(self.groups, row + (index - tile) * Int32(rows), self.m)
