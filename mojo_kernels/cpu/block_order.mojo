"""How rows of activations are cut into groups, and the order in which their blocks are stored.

The rows of a group are multiplied together, their sums in registers. Sizes differ by
one at most, so that none is left over that pays for the weights alone. Weights are
decoded in registers for each group again, or once for all groups:

    in registers    groups as tall as registers allow: one tile after the other
    beforehand      some tiles of a panel at once, which share the loads of the rows

Sums over K stay in registers beside those of a block where there are 32 of 64 bytes; where there
are fewer, those of a block have them all.

Blocks lie in the order of the inner loops. Stretches of K come one after the other; in a
stretch, groups of rows; in a group, blocks; and for a block, its rows. With at most two
rows a group and two blocks a stretch, five rows and three blocks lie like this:

    block        0    1    2
    row 0        0    2   10
    row 1        1    3   11
    row 2        4    6   12
    row 3        5    7   13
    row 4        8    9   14

The last stretch may be smaller.
"""

from std.math import ceildiv
from std.sys import CompilationTarget


@fieldwise_init
struct RowGroups(TrivialRegisterPassable):
    """Rows, cut into groups; larger groups come first."""

    var rows: Int
    """M."""
    var count: Int
    """Groups."""
    var small_size: Int
    """Rows of the smaller groups."""
    var num_larger: Int
    """Groups that have one row more."""
    var in_registers: Bool
    """Whether each group decodes the weights in registers."""

    @staticmethod
    def of(rows: Int, max_size: Int, in_registers: Bool) -> Self:
        """Cuts one row or more into as few groups as their size allows."""
        var count = ceildiv(rows, max_size)
        var small_size, num_larger = divmod(rows, count)
        return Self(rows, count, small_size, num_larger, in_registers)

    @always_inline
    def start(self, group: Int) -> Int:
        """Returns the first row of a group; M for the one behind the last."""
        return group * self.small_size + min(group, self.num_larger)

    @always_inline
    def size(self, group: Int) -> Int:
        """Returns the rows of a group."""
        return self.small_size + (1 if group < self.num_larger else 0)

    @always_inline
    def largest(self) -> Int:
        """Returns the rows of the largest group."""
        return self.size(0)

    @always_inline
    def group_of(self, row: Int) -> Int:
        """Returns the group of a row."""
        var first_small = self.num_larger * (self.small_size + 1)
        if row < first_small:
            return row // (self.small_size + 1)
        return self.num_larger + (row - first_small) // self.small_size


@fieldwise_init
struct Decoding(Equatable, TrivialRegisterPassable):
    """What it takes to decode weights in registers each time they are loaded."""

    var code: Int

    comptime DEAR = Self(0)
    """Too much: they are decoded beforehand."""
    comptime OF_BYTES = Self(1)
    """An instruction or two for each vector: integers as they lie in memory."""
    comptime OF_NIBBLES = Self(2)
    """The same, of half the memory."""


comptime KEEPS_SUMS = CompilationTarget.has_avx512f()
"""Whether registers hold sums over K beside those of a block."""
comptime GROUP_TILES = 2 if KEEPS_SUMS else 1
"""Tiles of a group whose weights were decoded beforehand: a divisor of `PANEL_TILES`."""


@fieldwise_init
struct RowLimits(TrivialRegisterPassable):
    """How many rows are taken at once by weights of one kind, see `GroupLimits`."""

    var in_registers: Int
    var most: Int
    """The most rows of a product whose groups decode weights in registers."""
    var decoded: Int

    def cut(self, rows: Int) -> RowGroups:
        """Cuts the rows of a product."""
        var in_registers = rows <= self.most
        return RowGroups.of(rows, self.in_registers if in_registers else self.decoded, in_registers)


@fieldwise_init
struct GroupLimits(TrivialRegisterPassable):
    """How many rows an arithmetic takes at once: what was fastest, see `limits`."""

    var in_registers: Int
    """The most rows of a group that decodes weights in registers, for one tile."""
    var rows_of_nibbles: Int
    """The most rows of a product whose groups do, for weights of four bits."""
    var rows_of_bytes: Int
    """The same for integers of eight bits."""
    var decoded: Int
    """The most rows of a group whose weights were decoded beforehand, for `GROUP_TILES`."""

    def largest(self) -> Int:
        """Returns the most rows of a group."""
        return max(self.in_registers, self.decoded)

    def of(self, decoding: Decoding) -> RowLimits:
        """Returns those for weights whose decoding takes so much."""
        var most = 0
        if decoding != Decoding.DEAR:
            var is_of_bytes = decoding == Decoding.OF_BYTES
            most = self.rows_of_bytes if is_of_bytes else self.rows_of_nibbles
        return RowLimits(self.in_registers, most, self.decoded)


@fieldwise_init
struct BlockOrder[stretch_blocks: Int](TrivialRegisterPassable):
    """Maps (row, block) to the place of the block."""

    var groups: RowGroups
    var k_blocks: Int
    """Blocks of a row."""

    @always_inline
    def of_group(self, group: Int, first_block: Int) -> Int:
        """Returns the place of a group's first row in the stretch that begins at a block."""
        var num_blocks = min(Self.stretch_blocks, self.k_blocks - first_block)
        return self.groups.rows * first_block + self.groups.start(group) * num_blocks

    @always_inline
    def index(self, row: Int, block: Int) -> Int:
        """Returns the place of (`row`, `block`).

        In a stretch, the rows of a group and then its blocks count up from its first.
        """
        var group = self.groups.group_of(row)
        var stretch_block = block % Self.stretch_blocks
        var first = self.of_group(group, block - stretch_block)
        return first + stretch_block * self.groups.size(group) + row - self.groups.start(group)
