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

from ..schedule.xcd import XcdBands
from .chip import LANES, WORD_BYTES
from .instructions.wave import count, of_lane, sums_up_to, votes
from .operands.memory import Input, Span, load_word, quotient


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
        return Self._find_from[rows](memory, groups, m, index, lane, 0, 0, 0)

    @staticmethod
    @always_inline
    def _find_from[
        rows: Int
    ](
        sizes: AMDBufferResource,
        groups: Int32,
        m: Int32,
        index: Int32,
        lane: Int32,
        first: Int32,
        rows_before: Int32,
        tiles_before: Int32,
    ) -> Self:
        """Looks for it from group `first` on, before which there are some rows and tiles."""
        var row, tile = rows_before, tiles_before
        for begin in range(first, groups, LANES):
            var look = GroupLook[rows].of(size_of(sizes, begin + lane), m, row, tile)
            if look.has(index):
                return look.tile(index, begin)
            row, tile = look.last_row(), look.last_tile()
        return Self(groups, row + (index - tile) * Int32(rows), m)

    @always_inline
    def is_empty(self) -> Bool:
        """Says whether there are no such rows."""
        return self.first_row >= self.end_row


@fieldwise_init
struct TileOfC(TrivialRegisterPassable):
    """A workgroup's tile of the result."""

    var rows: GroupTile
    """Its rows, and whose weights they are multiplied by."""
    var row: Int32
    """Tiles of rows before it."""
    var column: Int32
    """Tiles left of it."""
    var is_there: Bool
    """Whether there is such a tile; otherwise it has no rows."""

    @staticmethod
    @always_inline
    def of(order: XcdBands, index: Int32) -> Self:
        """Returns where tile `index` of an order is; its rows are those of no group yet."""
        var at = order.tile(Int(index))
        return Self(GroupTile(0, 0, 0), Int32(at.row), Int32(at.column), order.has_tile(Int(index)))

    @always_inline
    def first_tile[waves: Int, n_tiles: Int](self, wave: Int32) -> Int32:
        """Returns the first of a wave's tiles of 16 columns."""
        return (self.column * Int32(waves) + wave) * Int32(n_tiles)

    @always_inline
    def count(self) -> Int32:
        """Returns the rows from its first one to the last one of the group."""
        return self.rows.end_row - self.rows.first_row


trait TileScheduler(TrivialRegisterPassable):
    """Which tiles of C there are, in the order in which workgroups take them."""

    def rows(self) -> Int32:
        """Returns the tiles of a column."""
        ...

    def find(self, columns: Int32, index: Int32, lane: Int32) -> TileOfC:
        """Returns tile `index`, of so many in a row."""
        ...


@fieldwise_init
struct OneGroup[height: Int](TileScheduler):
    """The tiles of a dense product: one group has all rows.

    Parameters:
        height: Rows of a tile.
    """

    var m: Int32
    var tiles: Int32
    """Of a column."""

    @staticmethod
    @always_inline
    def of(m: Int32) -> Self:
        """Returns those of m rows."""
        return Self(m, quotient[Self.height](m + Int32(Self.height - 1)))

    @always_inline
    def rows(self) -> Int32:
        return self.tiles

    @always_inline
    def find(self, columns: Int32, index: Int32, lane: Int32) -> TileOfC:
        var tile = XcdBands(Int(self.tiles), Int(columns)).tile(Int(index))
        var row = Int32(tile.row)
        var all = GroupTile(0, row * Int32(Self.height), self.m)
        return TileOfC(all, row, Int32(tile.column), row < self.tiles)


@always_inline
def size_of(sizes: AMDBufferResource, group: Int32) -> Int32:
    """Loads the size of a group, or none beyond the last one."""
    return load_word(sizes, group * Int32(WORD_BYTES))


@fieldwise_init
struct GroupLook[rows: Int](TrivialRegisterPassable):
    """What the lanes see of 64 groups, one each.

    Parameters:
        rows: Of a tile.
    """

    var m: Int32
    """All rows."""
    var size: Int32
    """Of the lane's group."""
    var end: Int32
    """Where it ends, were there rows enough."""
    var tiles: Int32
    """Its tiles."""
    var end_tile: Int32
    """Tiles up to the last one of it."""

    @staticmethod
    @always_inline
    def of(size: Int32, m: Int32, row: Int32, tile: Int32) -> Self:
        """Looks at groups of any sizes behind some rows and tiles."""
        var own = min(max(size, 0), m)
        var end = row + sums_up_to(own)
        var inside = max(min(end, m) - (end - own), 0)
        var tiles = quotient[Self.rows](inside + Int32(Self.rows - 1))
        return Self(m, own, end, tiles, tile + sums_up_to(tiles))

    @always_inline
    def last_row(self) -> Int32:
        """Returns where the last group ends."""
        return min(of_lane(self.end, Int32(LANES - 1)), self.m)

    @always_inline
    def last_tile(self) -> Int32:
        """Returns the tiles up to the last group's."""
        return of_lane(self.end_tile, Int32(LANES - 1))

    @always_inline
    def has(self, index: Int32) -> Bool:
        """Says whether tile `index` is one of these groups', or of those before."""
        return index < self.last_tile()

    @always_inline
    def tile(self, index: Int32, first: Int32) -> GroupTile:
        """Returns tile `index`, which is one of these groups'; `first` is the first group."""
        var group = count(votes(self.end_tile <= index))
        var begin = of_lane(self.end - self.size, group)
        var in_group = index - of_lane(self.end_tile - self.tiles, group)
        var end_row = min(of_lane(self.end, group), self.m)
        return GroupTile(first + group, begin + in_group * Int32(Self.rows), end_row)


@fieldwise_init
struct GroupSizes(TrivialRegisterPassable):
    """The sizes of all groups, on their way."""

    var memory: AMDBufferResource
    """All of them."""
    var groups: Int32
    var m: Int32
    """All rows."""
    var low: Int32
    """Of the lane's group among the first 64."""
    var high: Int32
    """Among the next 64."""

    comptime SEEN = Int32(2 * LANES)
    """Groups in registers."""

    @staticmethod
    @always_inline
    def load(sizes: Input[DType.int32], groups: Int32, m: Int32, lane: Int32) -> Self:
        """Starts loading the first ones."""
        var memory = Span.of(sizes, groups).after(0)
        return Self(memory, groups, m, size_of(memory, lane), size_of(memory, lane + LANES))


@fieldwise_init
struct GroupTiles[height: Int](TileScheduler):
    """The tiles of all groups, for who has to know how many there are.

    Parameters:
        height: Rows of a tile.
    """

    var sizes: GroupSizes
    var low: GroupLook[Self.height]
    """The first groups."""
    var high: GroupLook[Self.height]
    """The next ones."""
    var count: Int32
    """Tiles of all groups."""

    @staticmethod
    @always_inline
    def of(sizes: GroupSizes, lane: Int32) -> Self:
        """Looks at all groups."""
        comptime Look = GroupLook[Self.height]
        var low = Look.of(sizes.low, sizes.m, 0, 0)
        var high = Look.of(sizes.high, sizes.m, low.last_row(), low.last_tile())
        var row, tile = high.last_row(), high.last_tile()
        for begin in range(GroupSizes.SEEN, sizes.groups, LANES):
            var look = Look.of(size_of(sizes.memory, begin + lane), sizes.m, row, tile)
            row, tile = look.last_row(), look.last_tile()
        return Self(sizes, low, high, tile)

    @always_inline
    def rows(self) -> Int32:
        return self.count

    @always_inline
    def find(self, columns: Int32, index: Int32, lane: Int32) -> TileOfC:
        var order = XcdBands(Int(self.count), Int(columns))
        if not order.has_tile(Int(index)):
            return TileOfC(GroupTile(0, 0, 0), 0, 0, False)
        var place = order.tile(Int(index))
        var row = Int32(place.row)
        return TileOfC(self.tile(row, lane), row, Int32(place.column), True)

    @always_inline
    def tile(self, index: Int32, lane: Int32) -> GroupTile:
        """Returns tile `index`, of which there are `count`."""
        if self.low.has(index):
            return self.low.tile(index, 0)
        if self.high.has(index):
            return self.high.tile(index, LANES)
        var row, tile = self.high.last_row(), self.high.last_tile()
        var sizes = self.sizes
        return GroupTile._find_from[Self.height](
            sizes.memory, sizes.groups, sizes.m, index, lane, GroupSizes.SEEN, row, tile
        )
