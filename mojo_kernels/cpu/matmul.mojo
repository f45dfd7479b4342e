"""C = A @ B.T on the CPU: panels of C as tasks of a team.

A task computes one panel of columns for some rows, as many as the
second-level cache holds:

    for stretches of K:
        decode the panel's weights into the first-level cache
        for groups of rows:
            add the stretch to their sums
    add the bias, round, store

A single group of rows decodes the weights in registers instead. The arithmetic is
a `PanelProduct`. Where it leaves the regular numbers of float32, or a number or a
scale is not finite, the sums of that row and tile are replaced by ones taken in float64.
"""

from layout import Coord
from std.collections import Array
from std.math import ceildiv

from ..numbers.floats import FLOAT_TYPES, round_to
from ..operands import Flat, allocate, matrix, on_stack
from ..problem import Result
from ..schedule.tiles import RowMajor, TileSchedule
from .panel import (
    PANEL_COLUMNS,
    PANEL_TILES,
    PanelProduct,
    PanelSums,
    WeightPanel,
    panel_sums,
)
from .threads import Work
from .vectors import LANES, Sums
from .weights import WeightTiles, tile_window

comptime MAX_PANEL_BYTES = 384 * 1024
"""Activations of a task at most: they stay in the second-level cache from panel to panel."""


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

    comptime GROUP_ROWS = Self.Product.GROUP_ROWS
    """Rows whose sums fit in the vector registers together."""

    var a: Self.Product
    """The activations, [M, k]."""
    var b: Self.Tiles
    """The weights, [N, k]."""
    var out: PanelStore
    """Where C goes."""
    var panel_rows: Int
    """Rows of a panel: whole groups, spread evenly over the panels."""
    var schedule: RowMajor
    """The order of the panels: those that share activations follow each other."""

    def __init__(out self, a: Self.Product, b: Self.Tiles, store: PanelStore):
        """Cuts C into panels."""
        self.a = a
        self.b = b
        self.out = store
        var groups = ceildiv(a.shape().rows, Self.GROUP_ROWS)
        var max_groups = max(1, MAX_PANEL_BYTES // (Self.GROUP_ROWS * a.row_bytes()))
        self.panel_rows = ceildiv(groups, ceildiv(groups, max_groups)) * Self.GROUP_ROWS
        self.schedule = RowMajor(
            ceildiv(a.shape().rows, self.panel_rows), ceildiv(b.shape().rows, PANEL_COLUMNS)
        )

    def num_tasks(self) -> Int:
        """Returns the number of panels."""
        return self.schedule.num_tiles()

    def run(self, task: Int):
        """Computes panel `task`."""
        var panel = self.schedule.tile(task)
        var panel_column = panel.column
        var first_row = panel.row * self.panel_rows
        var num_rows = min(self.panel_rows, self.a.shape().rows - first_row)
        var of_a_group = on_stack[DType.float32, Self.GROUP_ROWS, PANEL_COLUMNS]()
        var sums = panel_sums(Int(of_a_group.ptr), Self.GROUP_ROWS)
        if num_rows > Self.GROUP_ROWS:
            var memory = allocate[DType.float32](num_rows * PANEL_COLUMNS)
            sums = panel_sums(Int(memory.ptr), num_rows)
        self._sum(first_row, num_rows, panel_column * PANEL_TILES, sums)
        self._replace_irregular(first_row, num_rows, panel_column * PANEL_TILES, sums)
        self.out.store(first_row, num_rows, panel_column * PANEL_TILES, sums)
        if num_rows > Self.GROUP_ROWS:
            sums.ptr.unsafe_free()

    def _num_tiles(self) -> Int:
        return ceildiv(self.b.shape().rows, LANES)

    def _sum(self, first_row: Int, num_rows: Int, first_tile: Int, sums: PanelSums):
        """Sums over all of K, stretch by stretch."""
        var last_tile = self._num_tiles() - 1
        comptime if Self.Product.decodes_in_registers[Self.Tiles]():
            if self.a.shape().rows <= Self.GROUP_ROWS:
                var panel = WeightPanel(self.b, first_tile, last_tile, 0)
                comptime for size in range(1, Self.GROUP_ROWS + 1):
                    if num_rows == size:
                        self.a.add_panel[size](panel, sums)
                return

        comptime STRETCH_BLOCKS = Self.Product.STRETCH_BLOCKS
        var k_blocks = self.b.shape().k_blocks[Self.Tiles.format]()
        var decoded = Self.Product.Decoded.on_stack()
        for first_block in range(0, k_blocks, STRETCH_BLOCKS):
            var num_blocks = min(STRETCH_BLOCKS, k_blocks - first_block)
            decoded.decode(WeightPanel(self.b, first_tile, last_tile, first_block), num_blocks)
            add_rows(self.a, first_row, num_rows, decoded, first_block, num_blocks, sums)

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


def add_rows[
    Product: PanelProduct
](
    a: Product,
    first_row: Int,
    num_rows: Int,
    decoded: Product.Decoded,
    first_block: Int,
    num_blocks: Int,
    sums: PanelSums,
):
    """Adds a stretch to the sums of any number of rows, in groups that fit the registers."""
    var row = 0
    while row < num_rows:
        var group = min(Product.GROUP_ROWS, num_rows - row)
        comptime for size in range(1, Product.GROUP_ROWS + 1):
            if group == size:
                a.add_decoded[size](first_row + row, decoded, first_block, num_blocks, sums, row)
        row += group
