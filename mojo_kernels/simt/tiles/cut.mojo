"""How a product is cut into groups: the rows of a tile of C, and parts of K.

A tile has 128 rows if there are more than 64 and tiles enough. Where tiles are few, several groups have
a part of K of the same one, whole stages of 128, and leave sums in the workspace, see `parts`.
"""

from std.math import ceildiv

from .operands import STAGE
from .shape import COLUMNS, STEP

comptime MANY_ROWS = 128
"""Rows of a large tile."""
comptime ALL_ROWS = [64, MANY_ROWS]
"""Rows of a tile."""
comptime MANY_GROUPS = 96
"""So many groups of large tiles leave no GPU idle. Guess."""
comptime WANTED_GROUPS = 256
"""Parts of K make no more groups than that: two for each of 128 multiprocessors."""
comptime FEWEST_STAGES = 2
"""Stages of a part. Guess."""
comptime MAX_PARTS = 16
"""Parts of K. Guess."""
comptime STAGE_STEPS = STAGE // STEP
"""Steps of a stage."""


@fieldwise_init
struct Cut(Equatable, TrivialRegisterPassable):
    """Rows of a tile, and parts of K."""

    var rows: Int
    var parts: Int

    @staticmethod
    def of(m: Int, n: Int, k: Int) -> Self:
        """Returns that of a product."""
        var large = Self._of_rows(MANY_ROWS, m, n, k)
        if m > MANY_ROWS // 2 and large.num_groups(m, n) >= MANY_GROUPS:
            return large
        return Self._of_rows(MANY_ROWS // 2, m, n, k)

    @staticmethod
    def _of_rows(rows: Int, m: Int, n: Int, k: Int) -> Self:
        # Nothing has no tiles.
        var tiles = max(Self(rows, 1).num_groups(m, n), 1)
        var most = min(k // (STAGE * FEWEST_STAGES), MAX_PARTS)
        return Self(rows, max(min(WANTED_GROUPS // tiles, most), 1))

    def num_groups(self, m: Int, n: Int, columns: Int = COLUMNS) -> Int:
        """Returns the groups of C of [m, n], in tiles of so many columns."""
        return ceildiv(m, self.rows) * ceildiv(n, columns) * self.parts


@fieldwise_init
struct Steps(TrivialRegisterPassable):
    """The steps of a part of K, from the first one to before the end."""

    var first: UInt32
    var end: UInt32

    @staticmethod
    @always_inline
    def of(part: UInt32, parts: UInt32, k: UInt32) -> Self:
        """Returns those of a part, of which there are no more than stages."""
        var stages = (k + UInt32(STAGE - 1)) // UInt32(STAGE)
        var steps = (k + UInt32(STEP - 1)) // UInt32(STEP)
        var first = part * stages // parts * UInt32(STAGE_STEPS)
        var end = (part + 1) * stages // parts * UInt32(STAGE_STEPS)
        return Self(first, min(end, steps))
