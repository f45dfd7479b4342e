"""C = A @ B.T on the CPU: panels of C as tasks of a team.

A task computes up to `PANEL_ROWS` rows of one panel of columns. Few rows
decode the weights in registers; many rows share a decoded stretch of K that
stays in the first-level cache:

    few rows     for groups of rows:  add all blocks, weights decoded in registers
    many rows    for stretches of K:  decode the stretch of the panel
                     for groups of rows:  add the stretch

Where a product of factors leaves the float32 range, or a scale is NaN, the
sums of that row and tile are replaced by ones taken in float64.
"""

from layout import Coord
from std.math import ceildiv
from std.sys import size_of

from ..codec import round_to
from ..operands import Flat, Matrix, allocate, flat
from .activations import Activations
from .dot import LANES
from .panel import (
    DecodedPanel,
    DirectPanel,
    PANEL_COLUMNS,
    PANEL_TILES,
    PanelSource,
    Sums,
    add_blocks,
    sum_in_float64,
)
from .threads import Work
from .weights import WeightTiles, tile_window

comptime PANEL_ROWS = 256
"""Rows of a task at most."""
comptime GROUP_ROWS = 6
"""Rows whose sums stay in registers together."""
comptime STRETCH_BLOCKS = 16
"""Blocks of K that are decoded at a time: 16 KiB of a panel."""
comptime MAX_DIRECT_ROWS = 2 * GROUP_ROWS
"""Up to this many rows, decoding in registers is cheaper."""


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
        return self._column_panels() * ceildiv(self.a.shape.rows, PANEL_ROWS)

    def run(self, task: Int):
        """Computes panel `task`."""
        var panel_row, panel_column = divmod(task, self._column_panels())
        var first_row = panel_row * PANEL_ROWS
        var num_rows = min(PANEL_ROWS, self.a.shape.rows - first_row)
        var source = DirectPanel(
            self.b, panel_column * PANEL_TILES, ceildiv(self.b.shape().rows, LANES) - 1
        )

        var sums = allocate[DType.float32](num_rows * PANEL_COLUMNS)
        for i in range(0, num_rows * PANEL_COLUMNS, LANES):
            sums.store(Coord(i), Sums(0))

        if num_rows <= MAX_DIRECT_ROWS:
            add_rows(self.a, first_row, num_rows, source, 0, self.a.shape.k_blocks(), sums)
        else:
            self._add_stretches(first_row, num_rows, source, sums)
        self._store(first_row, num_rows, source, sums)
        sums.ptr.unsafe_free()

    def _column_panels(self) -> Int:
        return ceildiv(self.b.shape().rows, PANEL_COLUMNS)

    def _add_stretches(
        self,
        first_row: Int,
        num_rows: Int,
        source: DirectPanel[Self.Tiles],
        sums: Flat[DType.float32],
    ):
        """Adds all of K, one decoded stretch after the other."""
        var k_blocks = self.a.shape.k_blocks()
        var decoded = DecodedPanel.allocate(min(STRETCH_BLOCKS, k_blocks))
        for first_block in range(0, k_blocks, STRETCH_BLOCKS):
            var num_blocks = min(STRETCH_BLOCKS, k_blocks - first_block)
            decoded.decode(source, first_block, num_blocks)
            add_rows(self.a, first_row, num_rows, decoded, first_block, num_blocks, sums)
        decoded.free()

    def _store(
        self,
        first_row: Int,
        num_rows: Int,
        source: DirectPanel[Self.Tiles],
        sums: Flat[DType.float32],
    ):
        """Replaces sums that float32 could not take, adds the bias and writes C."""
        var num_columns = self.b.shape().rows
        for tile in range(PANEL_TILES):
            var column = (source.first_tile + tile) * LANES
            if column >= num_columns:
                return
            var window = tile_window(self.b, source.first_tile + tile)
            for row in range(num_rows):
                var total = sums.load[width=LANES](Coord(row * PANEL_COLUMNS + tile * LANES))
                if not window.multiplies_regularly(self.a.window(first_row + row)):
                    total = sum_in_float64(
                        self.a, first_row + row, self.b, source.first_tile + tile
                    )
                self._store_tile(first_row + row, column, total)

    @always_inline
    def _store_tile(self, row: Int, column: Int, total: Sums):
        """Writes up to 16 columns of one row."""
        var count = min(LANES, self.b.shape().rows - column)
        var has_bias = Int(self.bias.dim[0]()) > 0
        if count == LANES:
            var biased = total
            if has_bias:
                biased += self.bias.load[width=LANES, alignment=1](Coord(column))
            self.out.store[alignment=1](Coord(row, column), round_to[Self.dtype](biased))
            return
        for i in range(count):
            var biased = total[i]
            if has_bias:
                biased += self.bias.load[width=1](Coord(column + i))
            self.out.store[alignment=1](Coord(row, column + i), round_to[Self.dtype](biased))


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
    """Adds blocks to the sums of any number of rows, in groups that fit the registers."""
    var row = 0
    while row < num_rows:
        var rest = flat[DType.float32](
            Int(sums.ptr) + size_of[DType.float32]() * row * PANEL_COLUMNS,
            (num_rows - row) * PANEL_COLUMNS,
        )
        var group = min(GROUP_ROWS, num_rows - row)
        comptime for size in range(1, GROUP_ROWS + 1):
            if group == size:
                add_blocks[size](a, first_row + row, source, first_block, num_blocks, rest)
        row += group
