"""The tile scheduler: which tiles of C a CTA computes, and which steps of K of each.

    scheduler            a CTA's tiles                                its steps of a tile
    Schedule.CLUSTERS    one after the other, the grid's width        those of its rank in the cluster:
                         apart (persistent)                           all, or a stretch (split-K)
    Schedule.STREAM_K    those that its stretch of all steps meets    all, but of the first and the last
    ListScheduler        those of a list that the device has made:    all
                         rows of one group of a grouped product

A kernel goes from index to index, and dense products are those of group 0:

    var index = scheduler.first()
    while scheduler.has(index):
        var tile = scheduler.tile(index)
        index = scheduler.after(index)

CTAs next to each other want the same weights at the same time, so that one answer of the second-level
cache may do for several. Clusters of neighbours, and copies for all of them (`.multicast::cluster`),
are slower than that.
"""

from max.gpu import block_idx, grid_dim
from max.gpu.primitives.warp import broadcast

from ..schedule.clusters import Bands, height_of
from ..simt.arguments import Result
from .routing import Lists, RowTile
from .shapes import COLUMNS

comptime Corner = SIMD[DType.uint32, 2]
"""The first row and column of a tile."""


@fieldwise_init
struct WorkTile(TrivialRegisterPassable):
    """A tile of C, and a CTA's steps of it."""

    var group: Int32
    """Whose weights: 0 of a dense product; `NO_EXPERT` for rows whose results are zero."""
    var place: UInt32
    """The first row of prepared activations: of a list, a multiple of eight."""
    var row: UInt32
    """The first row of C."""
    var rows: UInt32
    """Rows of A that there are: of a list none behind its end."""
    var column: UInt32
    """The first column of C."""
    var first_step: UInt32
    """The CTA's first step of K."""
    var end_step: UInt32
    """The step behind its last one."""

    @always_inline
    def num_steps(self) -> UInt32:
        """Returns how many steps of the tile the CTA has."""
        return self.end_step - self.first_step

    @always_inline
    def row_tile(self) -> RowTile:
        """Returns its rows as a list has them."""
        return RowTile(self.group, self.place, self.row, self.rows)

    @always_inline
    def of_warp(self) -> Self:
        """Returns it as all lanes have it: else the compiler knows of no branch that they share.

        Loops that may be left by some lanes alone keep nothing in uniform registers.
        """
        var tile = self
        tile.group, tile.place = broadcast(self.group), broadcast(self.place)
        tile.row, tile.rows = broadcast(self.row), broadcast(self.rows)
        return tile


@fieldwise_init
struct TileParts(TrivialRegisterPassable):
    """The CTAs of stream-K that have steps of a tile, as one of them sees it."""

    var first: UInt32
    """The one that has the first step."""
    var last: UInt32
    """The one that has the last step."""
    var here: UInt32
    """This one."""
    var begins: Bool
    """Whether this one has the first step."""


trait TileScheduler(TrivialRegisterPassable):
    """The tiles of a CTA, one after the other."""

    comptime IS_LIST: Bool
    """Whether tiles are those of a list."""
    comptime IS_STREAM_K: Bool
    """Whether CTAs may have some steps of a tile."""

    def first(self) -> UInt32:
        """Returns the index of the first tile."""
        ...

    def after(self, index: UInt32) -> UInt32:
        """Returns the index of the tile after another one."""
        ...

    def has(self, index: UInt32) -> Bool:
        """Says whether an index stands for a tile."""
        ...

    def corner(self, index: UInt32) -> Corner:
        """Returns what is worth finding before others are waited for: it divides."""
        ...

    def tile(self, index: UInt32, corner: Corner) -> WorkTile:
        """Returns the tile whose corner is found."""
        ...

    @always_inline
    def tile(self, index: UInt32) -> WorkTile:
        """Returns a tile."""
        return self.tile(index, self.corner(index))

    @always_inline
    def parts(self, index: UInt32) -> TileParts:
        """Returns who has steps of a tile, of stream-K."""
        return TileParts(0, 0, 0, True)

    @always_inline
    def is_part(self, tile: WorkTile) -> Bool:
        """Says whether others have steps of a tile, of stream-K."""
        return False


@fieldwise_init
struct Schedule(Equatable, TrivialRegisterPassable):
    """How the tiles of one product, and K, are dealt to CTAs."""

    var code: Int

    comptime CLUSTERS = Self(0)
    """Ranks of a cluster have stretches of K that differ by one step at most."""
    comptime CEILED_CLUSTERS = Self(1)
    """The same, but the last ranks have fewer steps, or none."""
    comptime STREAM_K = Self(2)
    """Every CTA has as many steps; those of a tile that several have meet in a fix-up."""


@fieldwise_init
struct DenseScheduler[rows: Int, schedule: Schedule = Schedule.CLUSTERS, columns: Int = COLUMNS](
    TileScheduler
):
    """Tiles of C of so many rows and columns."""

    var num_rows: UInt32
    """Rows of C."""
    var bands: Self.Order
    """The order of the tiles."""
    var rank: UInt32
    """The CTA's rank in its cluster; of stream-K, its place in the grid."""
    var ranks: UInt32
    """CTAs of a cluster; of stream-K, those of the grid."""
    var first_step: UInt32
    """The first step of K; of stream-K, of the steps of all tiles."""
    var end_step: UInt32
    """The step behind the last one."""
    var num_steps: UInt32
    """The steps of a tile."""

    comptime Order = Bands[height_of(Self.rows, Self.columns)]
    comptime IS_LIST = False
    comptime IS_STREAM_K = Self.schedule == Schedule.STREAM_K

    @staticmethod
    @always_inline
    def of(result: Result, num_steps: UInt32, ranks: UInt32) -> Self:
        """Returns that of this CTA; stream-K has as many ranks as the grid has CTAs."""
        var bands: Self.Order = {
            (result.rows + UInt32(Self.rows - 1)) // UInt32(Self.rows),
            (result.columns + UInt32(Self.columns - 1)) // UInt32(Self.columns),
        }
        var rank: UInt32
        var count, all_steps = ranks, num_steps
        comptime if Self.IS_STREAM_K:
            # No more than 32 bits hold, see `host.workspace.may_share`.
            all_steps = bands.rows * bands.columns * num_steps
            rank, count = UInt32(block_idx.x), UInt32(grid_dim.x)
        else:
            rank = UInt32(block_idx.x) % ranks
        var first = broadcast(all_steps * rank // count)
        var end = broadcast(all_steps * (rank + 1) // count)
        comptime if Self.schedule == Schedule.CEILED_CLUSTERS:
            var most = (num_steps + ranks - 1) // ranks
            first = min(rank * most, num_steps)
            # Broadcast, or the loop over them is taken for one whose lanes part.
            end = first + broadcast(min(most, num_steps - first))
        return Self(result.rows, bands, rank, count, first, end, num_steps)

    @always_inline
    def first(self) -> UInt32:
        comptime if Self.IS_STREAM_K:
            return broadcast(self.first_step // self.num_steps)
        return UInt32(block_idx.x) // self.ranks

    @always_inline
    def after(self, index: UInt32) -> UInt32:
        comptime if Self.IS_STREAM_K:
            return index + 1
        return index + UInt32(grid_dim.x) // self.ranks

    @always_inline
    def has(self, index: UInt32) -> Bool:
        comptime if Self.IS_STREAM_K:
            return index * self.num_steps < self.end_step
        return index < self.bands.rows * self.bands.columns

    @always_inline
    def corner(self, index: UInt32) -> Corner:
        var tile = self.bands.tile(Int(index))
        return {UInt32(tile.row) * UInt32(Self.rows), UInt32(tile.column) * UInt32(Self.columns)}

    @always_inline
    def tile(self, index: UInt32, corner: Corner) -> WorkTile:
        var first, end = self.first_step, self.end_step
        comptime if Self.IS_STREAM_K:
            first = max(self.first_step, index * self.num_steps) - index * self.num_steps
            end = min(self.end_step - index * self.num_steps, self.num_steps)
        var count = min(UInt32(Self.rows), self.num_rows - corner[0])
        return WorkTile(0, corner[0], corner[0], count, corner[1], first, end)

    @always_inline
    def parts(self, index: UInt32) -> TileParts:
        var first = index * self.num_steps
        return TileParts(
            self._cta_of(first),
            self._cta_of(first + self.num_steps - 1),
            self.rank,
            first >= self.first_step,
        )

    @always_inline
    def is_part(self, tile: WorkTile) -> Bool:
        comptime if Self.IS_STREAM_K:
            return tile.num_steps() < self.num_steps
        return False

    @always_inline
    def _cta_of(self, step: UInt32) -> UInt32:
        """Returns the CTA of stream-K that has a step, of those of all tiles."""
        var all_steps = self.bands.rows * self.bands.columns * self.num_steps
        return broadcast(((step + 1) * self.ranks - 1) // all_steps)


@fieldwise_init
struct ListScheduler[columns: Int](TileScheduler):
    """The tiles of a list, each by so many columns: those of a tile of rows follow each other."""

    var lists: Lists
    var column_tiles: UInt32
    """Tiles of a row of C."""
    var num_steps: UInt32
    """The steps of a tile."""

    comptime IS_LIST = True
    comptime IS_STREAM_K = False

    @always_inline
    def first(self) -> UInt32:
        return UInt32(block_idx.x)

    @always_inline
    def after(self, index: UInt32) -> UInt32:
        return index + UInt32(grid_dim.x)

    @always_inline
    def has(self, index: UInt32) -> Bool:
        return index < self.lists.num_tiles * self.column_tiles

    @always_inline
    def corner(self, index: UInt32) -> Corner:
        # Found with the tile: the list is another kernel's.
        return 0

    @always_inline
    def tile(self, index: UInt32, corner: Corner) -> WorkTile:
        var at, column = divmod(index, self.column_tiles)
        var tile = self.lists.tile(at)
        return WorkTile(
            tile.expert,
            tile.first_place,
            tile.first_row,
            tile.rows,
            column * UInt32(Self.columns),
            0,
            self.num_steps,
        )
