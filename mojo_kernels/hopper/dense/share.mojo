"""The share of a group: which tiles of C, and which stages of K.

    ranks    tiles of C                         K
    1        one after the other, in turns      all
    more     one of each cluster                a stretch for each group of the cluster
"""

from max.gpu import block_idx, grid_dim
from max.gpu.primitives.warp import broadcast

from ...schedule.clusters import Bands
from ...simt.arguments import Result
from ..staged.stages import bands_of


@fieldwise_init
struct Share[tokens: Int](TrivialRegisterPassable):
    """What a group computes, of tiles of so many rows."""

    var schedule: Bands
    """The tiles of C."""
    var rank: UInt32
    """This group's place in its cluster."""
    var ranks: UInt32
    """Groups of the cluster."""
    var first_step: UInt32
    """The first stage of K."""
    var end_step: UInt32
    """The stage behind the last one."""

    @staticmethod
    @always_inline
    def here(result: Result, num_steps: UInt32, ranks: UInt32) -> Self:
        """Returns the share of this group; every rank has a stage, if there are as many."""
        var rank = UInt32(block_idx.x) % ranks
        return Self(
            bands_of[Self.tokens](result),
            rank,
            ranks,
            broadcast(num_steps * rank // ranks),
            broadcast(num_steps * (rank + 1) // ranks),
        )

    @always_inline
    def first(self) -> UInt32:
        """Returns the first tile."""
        return UInt32(block_idx.x) // self.ranks

    @always_inline
    def after(self, tile: UInt32) -> UInt32:
        """Returns the tile after another one."""
        return tile + UInt32(grid_dim.x) // self.ranks

    @always_inline
    def has(self, tile: UInt32) -> Bool:
        """Says whether there is a tile."""
        return tile < self.schedule.rows * self.schedule.columns
