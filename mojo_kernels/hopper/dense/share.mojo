"""The share of a group: which tiles of C, and which stages of K.

    groups              tiles of C                              K
    ranks, to split K   one                                     a stretch for each of a cluster
    neighbours          next to each other along a row of C;    all
                        one after the other, in turns
    even shares         as many stages as others have, of       all, but for the first and the
                        tiles one after the other               last tile

Neighbours want the same tokens at the same time, which is all they have to do with each other: a
cluster's groups are neighbours in hardware too, and begin together, so that one answer of the
second-level cache may do for both. Copies for all (`.multicast::cluster`) gain nothing over that.
"""

from max.gpu import block_idx, grid_dim
from max.gpu.primitives.warp import broadcast
from std.math import ceildiv

from ...schedule.clusters import Bands
from ...schedule.tiles import Tile
from ...simt.arguments import Result
from ..instructions.shared_memory import cluster_barrier
from ..staged.stages import COLUMNS, bands_of

comptime NEIGHBOURS = 2
"""Groups of a cluster that does not split K, where they divide the tiles of a row of C."""


def neighbours_of(n: Int) -> Int:
    """Returns the neighbours of a cluster, for C of n columns."""
    return NEIGHBOURS if ceildiv(n, COLUMNS) % NEIGHBOURS == 0 else 1


@fieldwise_init
struct Share[tokens: Int, even: Bool = False, columns: Int = COLUMNS](TrivialRegisterPassable):
    """What a group computes, of tiles of so many rows and columns."""

    var schedule: Bands
    """The tiles of C; neighbours' tiles are one."""
    var neighbours: UInt32
    """Neighbours of the cluster."""
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
    def here(result: Result, num_steps: UInt32, ranks: UInt32) -> Self:
        """Returns the share of this group; every rank has a stage, if there are as many."""
        var rank = UInt32(block_idx.x) % ranks
        return Self(
            bands_of[Self.tokens, Self.columns](result),
            1,
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
        var all_steps = UInt64(schedule.rows * schedule.columns * num_steps)
        var group, groups = UInt64(block_idx.x), UInt64(grid_dim.x)
        return Self(
            schedule,
            1,
            UInt32(group),
            UInt32(groups),
            broadcast(UInt32(all_steps * group // groups)),
            broadcast(UInt32(all_steps * (group + 1) // groups)),
            num_steps,
        )

    @staticmethod
    @always_inline
    def of_neighbours(result: Result, num_steps: UInt32, neighbours: UInt32) -> Self:
        """Returns the share of one of so many neighbours, which divide the tiles of a row of C."""
        var schedule = bands_of[Self.tokens, Self.columns](result)
        schedule.columns //= neighbours
        var rank = UInt32(block_idx.x) % neighbours
        return Self(schedule, neighbours, rank, 1, 0, num_steps, num_steps)

    @always_inline
    def meet(self):
        """Waits for the neighbours, all threads call it: they are to begin at the same time."""
        if self.neighbours > 1:
            cluster_barrier()

    @always_inline
    def first(self) -> UInt32:
        """Returns the first tile."""
        comptime if Self.even:
            return broadcast(self.first_step // self.num_steps)
        return UInt32(block_idx.x) // (self.ranks * self.neighbours)

    @always_inline
    def after(self, tile: UInt32) -> UInt32:
        """Returns the tile after another one."""
        comptime if Self.even:
            return tile + 1
        return tile + UInt32(grid_dim.x) // (self.ranks * self.neighbours)

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
        var all_steps = UInt64(self.schedule.rows * self.schedule.columns * self.num_steps)
        return UInt32((UInt64(step + 1) * UInt64(self.ranks) - 1) // all_steps)

    @always_inline
    def tile(self, index: UInt32) -> Tile:
        """Returns where this group's part of a tile is."""
        var found = self.schedule.tile(Int(index))
        if self.neighbours == 1:
            return found
        return Tile(0, found.row, found.column * Int(self.neighbours) + Int(self.rank))
