"""The share of a group: which tiles of C, and which stages of K.

    groups              tiles of C                              K
    ranks, to split K   one                                     a stretch for each of a cluster
    others              one after the other, in turns           all
    even shares         as many stages as others have, of       all, but for the first and the
                        tiles one after the other               last tile

Groups next to each other want the same weights at the same time, and so one answer of the
second-level cache may do for several. Clusters of neighbours, and copies for all of them
(`.multicast::cluster`), are slower than that.
"""

from max.gpu import block_idx, grid_dim
from max.gpu.primitives.warp import broadcast

from ...schedule.clusters import Bands, height_of
from ...schedule.tiles import Tile
from ...simt.arguments import Result
from ..shapes import COLUMNS
from ..staged.stages import bands_of


@fieldwise_init
struct Share[tokens: Int, even: Bool = False, columns: Int = COLUMNS](TrivialRegisterPassable):
    """What a group computes, of tiles of so many rows and columns."""

    var schedule: Bands[height_of(Self.tokens, Self.columns)]
    """The tiles of C."""
    var rank: UInt32
    """This group's place in its cluster; of even shares, among all groups."""
    var ranks: UInt32
    """Groups that split K, or that have even shares."""
    var first_step: UInt32
    """The first stage of K; of even shares, of the stages of all tiles."""
    var end_step: UInt32
    """The stage behind the last one."""
    var num_steps: UInt32
    """The stages of a tile."""

    @staticmethod
    @always_inline
    def of(result: Result, num_steps: UInt32, ranks: UInt32) -> Self:
        """Returns the share of this group, even or with so many ranks."""
        comptime if Self.even:
            return Self.evenly(result, num_steps)
        else:
            return Self.here(result, num_steps, ranks)

    @staticmethod
    @always_inline
    def here(result: Result, num_steps: UInt32, ranks: UInt32) -> Self:
        """Returns the share of this group; every rank has a stage, if there are as many."""
        var rank = UInt32(block_idx.x) % ranks
        return Self(
            bands_of[Self.tokens, Self.columns](result),
            rank,
            ranks,
            broadcast(num_steps * rank // ranks),
            broadcast(num_steps * (rank + 1) // ranks),
            num_steps,
        )

    @staticmethod
    @always_inline
    def evenly(result: Result, num_steps: UInt32) -> Self:
        """Returns the share of this group, of as many as the grid has."""
        var schedule = bands_of[Self.tokens, Self.columns](result)
        # No more than 32 bits hold, see `host.workspace.may_share`.
        var all_steps = schedule.rows * schedule.columns * num_steps
        var group, groups = UInt32(block_idx.x), UInt32(grid_dim.x)
        return Self(
            schedule,
            group,
            groups,
            broadcast(all_steps * group // groups),
            broadcast(all_steps * (group + 1) // groups),
            num_steps,
        )

    @always_inline
    def first(self) -> UInt32:
        """Returns the first tile."""
        comptime if Self.even:
            return broadcast(self.first_step // self.num_steps)
        return UInt32(block_idx.x) // self.ranks

    @always_inline
    def after(self, tile: UInt32) -> UInt32:
        """Returns the tile after another one."""
        comptime if Self.even:
            return tile + 1
        return tile + UInt32(grid_dim.x) // self.ranks

    @always_inline
    def has(self, tile: UInt32) -> Bool:
        """Says whether there is a tile."""
        comptime if Self.even:
            return tile * self.num_steps < self.end_step
        return tile < self.schedule.rows * self.schedule.columns

    @always_inline
    def first_of(self, tile: UInt32) -> UInt32:
        """Returns the group's first stage of a tile."""
        comptime if Self.even:
            return max(self.first_step, tile * self.num_steps) - tile * self.num_steps
        return self.first_step

    @always_inline
    def end_of(self, tile: UInt32) -> UInt32:
        """Returns the stage behind the group's last one of a tile."""
        comptime if Self.even:
            return min(self.end_step - tile * self.num_steps, self.num_steps)
        return self.end_step

    @always_inline
    def group_of(self, step: UInt32) -> UInt32:
        """Returns the group that has a stage, of those of all tiles, in its even share."""
        var all_steps = self.schedule.rows * self.schedule.columns * self.num_steps
        return broadcast(((step + 1) * self.ranks - 1) // all_steps)

    @always_inline
    def tile(self, index: UInt32) -> Tile:
        """Returns where this group's part of a tile is."""
        return self.schedule.tile(Int(index))
