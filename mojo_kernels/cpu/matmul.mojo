"""C = A @ B.T on the CPU: panels of C as tasks of a team.

A task computes one panel of columns for some rows, see `MAX_PANEL_BYTES`:

    for stretches of K:
        decode the panel's weights into the first-level cache
        for groups of rows:
            add the stretch to their sums
    add the bias, round, store

Or each group decodes the weights in registers, see `block_order`. The arithmetic is
a `PanelProduct`. Where it leaves the regular numbers of float32, or a number or a
scale is not finite, the sums of that row and tile are replaced by ones taken in float64.
"""

from layout import Coord
from std.collections import Array
from std.math import ceildiv

from ..numbers.floats import FLOAT_TYPES, round_to
from ..operands import Flat, allocate, matrix, on_stack
from ..problem import Result
from ..schedule.tiles import RowMajor
from .panel import (
    PANEL_COLUMNS,
    PANEL_TILES,
    PanelProduct,
    PanelSums,
    Part,
    WeightPanel,
    panel_sums,
)
from .threads import Work
from .vectors import LANES, Sums
from .weights import WeightTiles, is_decoding_cheap, tile_window

comptime MAX_PANEL_BYTES = 1024 * 1024
"""Activations of a task at most. They are read once for each panel of columns, which the last-level
cache is fast enough for, and every part of them decodes the weights again: at 64 x 4096 x 14336
parts of 384 KiB took a fifth longer (Zen 4, 2026-11-22)."""


@fieldwise_init
struct PanelStore(TrivialRegisterPassable):
    """Writes the panels of C: adds the bias, rounds."""

    var out: Result
    """Where C goes, [M, N]."""
    var bias: Flat[DType.float32]
    """Added to every row, [N]; empty for none."""
    var m: Int
    var n: Int

    def store(self, first_row: Int, num_rows: Int, first_tile: Int, sums: PanelSums):
        """Writes the panel of some rows that begins at tile `first_tile`."""
        comptime for i in range(len(FLOAT_TYPES)):
            if self.out.dtype == i:
                self._store_as[FLOAT_TYPES[i]](first_row, num_rows, first_tile, sums)

    def _store_as[
        dtype: DType
    ](self, first_row: Int, num_rows: Int, first_tile: Int, sums: PanelSums):
        var out = matrix[dtype](self.out.values, self.m, self.n, self.n)
        var bias = Array[Sums, PANEL_TILES](fill=Sums(0))
        comptime for tile in range(PANEL_TILES):
            bias[tile] = self._bias_of(first_tile + tile)
        var is_full = (first_tile + PANEL_TILES) * LANES <= self.n
        for i in range(num_rows):
            comptime for tile in range(PANEL_TILES):
                var total = sums.load[width=LANES](Coord(i, tile * LANES))
                var rounded = round_to[dtype](total + bias[tile])
                var column = (first_tile + tile) * LANES
                if is_full:
                    out.store[alignment=1](Coord(first_row + i, column), rounded)
                else:
                    for lane in range(min(LANES, self.n - column)):
                        out.store[alignment=1](Coord(first_row + i, column + lane), rounded[lane])

    def _bias_of(self, tile: Int) -> Sums:
        """Returns the bias of a tile's columns, zero without one."""
        var bias = Sums(0)
        for column in range(tile * LANES, min((tile + 1) * LANES, Int(self.bias.dim[0]()))):
            bias[column - tile * LANES] = self.bias.load[width=1](Coord(column))
        return bias


struct MatmulPanels[Product: PanelProduct, Tiles: WeightTiles](Work):
    """Computes C, one panel a task."""

    comptime GROUP_ROWS = Self.Product.LIMITS.largest()
    """Rows of a group at most."""

    var a: Self.Product
    """The activations, [M, k]."""
    var b: Self.Tiles
    """The weights, [N, k]."""
    var out: PanelStore
    """Where C goes."""
    var panel_groups: Int
    """Groups of rows of a panel, spread evenly over the panels."""
    var schedule: RowMajor
    """The order of the panels: those that share activations follow each other."""

    def __init__(out self, a: Self.Product, b: Self.Tiles, store: PanelStore):
        """Cuts C into panels."""
        self.a = a
        self.b = b
        self.out = store
        var groups = a.groups()
        var max_groups = max(1, MAX_PANEL_BYTES // (groups.largest() * a.row_bytes()))
        self.panel_groups = ceildiv(groups.count, ceildiv(groups.count, max_groups))
        self.schedule = RowMajor(
            ceildiv(groups.count, self.panel_groups), ceildiv(b.shape().rows, PANEL_COLUMNS)
        )

    def num_tasks(self) -> Int:
        """Returns the number of panels."""
        return self.schedule.num_tiles()

    def run(self, task: Int):
        """Computes panel `task`."""
        var tile = self.schedule.tile(task)
        var groups = self.a.groups()
        var first_group = tile.row * self.panel_groups
        var last_group = min(first_group + self.panel_groups, groups.count)
        var first_row = groups.start(first_group)
        var num_rows = groups.start(last_group) - first_row
        var first_tile = tile.column * PANEL_TILES
        var of_a_group = on_stack[DType.float32, Self.GROUP_ROWS, PANEL_COLUMNS]()
        var sums = panel_sums(Int(of_a_group.ptr), Self.GROUP_ROWS)
        if num_rows > Self.GROUP_ROWS:
            var memory = allocate[DType.float32](num_rows * PANEL_COLUMNS)
            sums = panel_sums(Int(memory.ptr), num_rows)
        self._sum(first_group, last_group, first_tile, sums)
        self._replace_irregular(first_row, num_rows, first_tile, sums)
        self.out.store(first_row, num_rows, first_tile, sums)
        if num_rows > Self.GROUP_ROWS:
            sums.ptr.unsafe_free()

    def _num_tiles(self) -> Int:
        return ceildiv(self.b.shape().rows, LANES)

    def _sum(self, first_group: Int, last_group: Int, first_tile: Int, sums: PanelSums):
        """Sums over all of K, stretch by stretch."""
        comptime STRETCH_BLOCKS = Self.Product.STRETCH_BLOCKS
        var last_tile = self._num_tiles() - 1
        var k_blocks = self.b.shape().k_blocks[Self.Tiles.format]()
        var groups = self.a.groups()
        var first_row = groups.start(first_group)
        comptime if is_decoding_cheap[Self.Tiles]():
            if groups.in_registers:
                # The blocks of a single group are contiguous across stretches.
                var step = k_blocks if groups.count == 1 else STRETCH_BLOCKS
                for first_block in range(0, k_blocks, step):
                    var panel = WeightPanel(self.b, first_tile, last_tile, first_block)
                    var num_blocks = min(step, k_blocks - first_block)
                    for group in range(first_group, last_group):
                        var sums_row = groups.start(group) - first_row
                        var part = Part(group, first_block, num_blocks, sums, sums_row)
                        self._add(groups.size(group), part, panel)
                return

        var decoded = Self.Product.Decoded.on_stack()
        for first_block in range(0, k_blocks, STRETCH_BLOCKS):
            var num_blocks = min(STRETCH_BLOCKS, k_blocks - first_block)
            var panel = WeightPanel(self.b, first_tile, last_tile, first_block)
            decoded.decode(panel, num_blocks)
            for group in range(first_group, last_group):
                var sums_row = groups.start(group) - first_row
                var part = Part(group, first_block, num_blocks, sums, sums_row)
                self._add_decoded(groups.size(group), part, decoded)

    def _add(self, num_rows: Int, part: Part, panel: WeightPanel[Self.Tiles]):
        """Adds a part of some rows, decoding weights in registers."""
        comptime for size in range(1, Self.Product.LIMITS.in_registers + 1):
            if num_rows == size:
                for tile in range(PANEL_TILES):
                    self.a.add[size](part, tile, panel)

    def _add_decoded(self, num_rows: Int, part: Part, decoded: Self.Product.Decoded):
        """Adds a part of some rows, weights decoded beforehand."""
        comptime for size in range(1, Self.Product.LIMITS.decoded + 1):
            if num_rows == size:
                self.a.add_decoded[size](part, decoded)

    def _replace_irregular(self, first_row: Int, num_rows: Int, first_tile: Int, sums: PanelSums):
        """Replaces sums that float32 could not take."""
        var all_rows = self.a.window(first_row, num_rows)
        for tile in range(first_tile, min(first_tile + PANEL_TILES, self._num_tiles())):
            comptime is_regular = Self.Product.is_regular[Self.Tiles.format]
            comptime MAY_BE_INFINITE = Self.Tiles.format.element.has_non_finite()
            var weights = tile_window(self.b, tile)
            var is_tile_regular = is_regular(all_rows, weights)
            comptime if not MAY_BE_INFINITE:
                if is_tile_regular:
                    continue
            for i in range(num_rows):
                var row = first_row + i
                var column = (tile - first_tile) * LANES
                var is_row_regular = is_tile_regular or is_regular(self.a.window(row, 1), weights)
                comptime if MAY_BE_INFINITE:
                    # Codes of the weights that are not finite show in the sums.
                    var found = sums.load[width=LANES](Coord(i, column))
                    is_row_regular = is_row_regular and not (found - found).ne(0).reduce_or()
                if not is_row_regular:
                    sums.store(Coord(i, column), self.a.sum_in_float64(row, self.b, tile))
