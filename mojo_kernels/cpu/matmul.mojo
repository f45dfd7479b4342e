"""C = A @ B.T on the CPU: panels of C as tasks of a team.

A task computes one panel of columns for some rows, as many as the
second-level cache holds:

    for stretches of K:
        decode the panel's weights into the first-level cache
        for groups of rows:
            add the stretch to their sums
    add the bias, round, store

A single group of rows decodes the weights in registers instead. Where a product of scales
leaves the float32 range, or a scale is NaN, the sums of that row and tile
are replaced by ones taken in float64.
"""

from layout import Coord
from std.collections import Array
from std.math import ceildiv
from std.memory import stack_allocation
from std.sys import size_of

from ..codec import round_to
from ..operands import Flat, Matrix, allocate, flat
from .activations import Activations, GROUP_ROWS, STRETCH_BLOCKS
from .dot import LANES
from .panel import (
    DecodedPanel,
    DirectPanel,
    PANEL_COLUMNS,
    PANEL_TILES,
    PanelSource,
    Sums,
    add_stretch,
    sum_in_float64,
)
from .threads import Work
from .weights import WeightTiles, tile_window

comptime MAX_PANEL_BYTES = 384 * 1024
"""Activations of a task at most: they stay in the second-level cache from panel to panel."""


@fieldwise_init
struct MatmulPanels[Tiles: WeightTiles, dtype: DType](Work):
    """Computes C, one panel a task."""

    var a: Activations
    """The activations, [M, k]."""
    var b: Self.Tiles
    """The weights, [N, k]."""
    var bias: Flat[DType.float32]
    """Added to every row, [N]; empty for none."""
    var out: Matrix[Self.dtype]
    """C, [M, N]."""

    def num_tasks(self) -> Int:
        """Returns the number of panels."""
        return self._column_panels() * ceildiv(self.a.shape.rows, self._panel_rows())

    def run(self, task: Int):
        """Computes panel `task`."""
        var panel_row, panel_column = divmod(task, self._column_panels())
        var first_row = panel_row * self._panel_rows()
        var num_rows = min(self._panel_rows(), self.a.shape.rows - first_row)
        comptime GROUP_SUMS = GROUP_ROWS * PANEL_COLUMNS
        var on_stack = stack_allocation[GROUP_SUMS, DType.float32, alignment=4 * LANES]()
        var sums = flat[DType.float32](Int(on_stack), GROUP_SUMS)
        if num_rows > GROUP_ROWS:
            sums = allocate[DType.float32](num_rows * PANEL_COLUMNS)
        self._sum(first_row, num_rows, panel_column * PANEL_TILES, sums)
        self._store(first_row, num_rows, panel_column * PANEL_TILES, sums)
        if num_rows > GROUP_ROWS:
            sums.ptr.unsafe_free()

    def _panel_rows(self) -> Int:
        """Returns the rows of a panel: whole groups, spread evenly over the panels."""
        var groups = ceildiv(self.a.shape.rows, GROUP_ROWS)
        var max_groups = max(1, MAX_PANEL_BYTES // (GROUP_ROWS * self.a.shape.k))
        return ceildiv(groups, ceildiv(groups, max_groups)) * GROUP_ROWS

    def _num_tiles(self) -> Int:
        return ceildiv(self.b.shape().rows, LANES)

    def _column_panels(self) -> Int:
        return ceildiv(self.b.shape().rows, PANEL_COLUMNS)

    def _sum(self, first_row: Int, num_rows: Int, first_tile: Int, sums: Flat[DType.float32]):
        """Sums over all of K, stretch by stretch."""
        var last_tile = self._num_tiles() - 1
        var k_blocks = self.a.shape.k_blocks()
        if self.a.shape.rows <= GROUP_ROWS:
            # The blocks of a single group are contiguous across stretches.
            var source = DirectPanel(self.b, first_tile, last_tile, 0)
            return add_rows(self.a, 0, num_rows, source, 0, k_blocks, sums)

        var decoded = DecodedPanel.on_stack()
        for first_block in range(0, k_blocks, STRETCH_BLOCKS):
            var num_blocks = min(STRETCH_BLOCKS, k_blocks - first_block)
            var source = DirectPanel(self.b, first_tile, last_tile, first_block)
            decoded.decode(source, num_blocks)
            add_rows(self.a, first_row, num_rows, decoded, first_block, num_blocks, sums)

    def _store(self, first_row: Int, num_rows: Int, first_tile: Int, sums: Flat[DType.float32]):
        """Replaces sums that float32 could not take, and writes the panel."""
        var rows_window = self.a.window(first_row, num_rows)
        for tile in range(first_tile, min(first_tile + PANEL_TILES, self._num_tiles())):
            var window = tile_window(self.b, tile)
            if window.multiplies_regularly(rows_window):
                continue
            for i in range(num_rows):
                var row = first_row + i
                if not window.multiplies_regularly(self.a.window(row, 1)):
                    var at = i * PANEL_COLUMNS + (tile - first_tile) * LANES
                    sums.store(Coord(at), sum_in_float64(self.a, row, self.b, tile))

        var bias = Array[Sums, PANEL_TILES](fill=Sums(0))
        comptime for tile in range(PANEL_TILES):
            bias[tile] = self._bias_of(first_tile + tile)
        var is_full = (first_tile + PANEL_TILES) * LANES <= self.b.shape().rows
        for i in range(num_rows):
            comptime for tile in range(PANEL_TILES):
                var total = sums.load[width=LANES](Coord(i * PANEL_COLUMNS + tile * LANES))
                var rounded = round_to[Self.dtype](total + bias[tile])
                var column = (first_tile + tile) * LANES
                if is_full:
                    self.out.store[alignment=1](Coord(first_row + i, column), rounded)
                else:
                    self._store_some(first_row + i, column, rounded)

    def _bias_of(self, tile: Int) -> Sums:
        """Returns the bias of a tile's columns, zero without one."""
        var bias = Sums(0)
        for column in range(tile * LANES, min((tile + 1) * LANES, Int(self.bias.dim[0]()))):
            bias[column - tile * LANES] = self.bias.load[width=1](Coord(column))
        return bias

    def _store_some(self, row: Int, column: Int, values: SIMD[Self.dtype, LANES]):
        """Writes the columns of a tile that C has."""
        for i in range(min(LANES, self.b.shape().rows - column)):
            self.out.store[alignment=1](Coord(row, column + i), values[i])


def add_rows[
    Source: PanelSource
](
    a: Activations,
    first_row: Int,
    num_rows: Int,
    source: Source,
    first_block: Int,
    num_blocks: Int,
    sums: Flat[DType.float32],
):
    """Adds a stretch to the sums of any number of rows, in groups that fit the registers."""
    var row = 0
    while row < num_rows:
        var group = min(GROUP_ROWS, num_rows - row)
        var rest = sums_from(row, sums)
        comptime for size in range(1, GROUP_ROWS + 1):
            if group == size:
                add_stretch[size](a, first_row + row, source, first_block, num_blocks, rest)
        row += group


def sums_from(row: Int, sums: Flat[DType.float32]) -> Flat[DType.float32]:
    """Returns the sums of the rows from `row` on."""
    var skipped = row * PANEL_COLUMNS
    return flat[DType.float32](
        Int(sums.ptr) + size_of[DType.float32]() * skipped, Int(sums.dim[0]()) - skipped
    )
