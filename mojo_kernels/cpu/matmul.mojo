"""C = A @ B.T on the CPU: panels of C as tasks of a team.

A task computes one panel of columns for some rows, see `MAX_PANEL_BYTES`:

    for stretches of K:
        decode the panel's weights into the first-level cache
        for groups of rows:
            add the stretch to their sums
    store, see `result`

Or each group decodes the weights in registers, see `block_order`. The arithmetic is
a `PanelProduct`. Where it leaves the regular numbers of float32, or a number or a
scale is not finite, the sums of that row and tile are replaced by ones taken in float64.
"""

from layout import Coord
from std.math import ceildiv
from std.memory import bitcast

from ..numbers.scales import Scale
from ..operands import on_stack
from ..schedule.tiles import RowMajor
from .block_order import Decoding
from .panel import (
    PANEL_COLUMNS,
    PANEL_TILES,
    PanelProduct,
    PanelSums,
    PanelTiles,
    PanelPart,
    WeightPanel,
    panel_sums,
)
from .result import PanelStore
from .scratch import free, try_allocate
from .threads import Work
from .vectors import LANES, Sums
from .weights import WeightTiles, decoding_of, tile_window

comptime MAX_PANEL_BYTES = 1024 * 1024
"""Activations of a task at most. They are read once for each panel of columns, which the last-level
cache is fast enough for, and every part of them decodes the weights again: at 64 x 4096 x 14336
parts of 384 KiB took a fifth longer (Zen 4, 2026-11-22)."""


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
    var tiles: PanelTiles
    """Which tiles make a panel."""
    var panel_groups: Int
    """Groups of rows of a panel, spread evenly over the panels."""
    var schedule: RowMajor
    """The order of the panels: those that share activations follow each other."""

    def __init__(out self, a: Self.Product, b: Self.Tiles, store: PanelStore):
        """Cuts C into panels."""
        self.a = a
        self.b = b
        self.out = store
        self.tiles = store.panel_tiles()
        var groups = a.groups()
        var max_groups = max(1, MAX_PANEL_BYTES // (groups.largest() * a.row_bytes()))
        self.panel_groups = ceildiv(groups.count, ceildiv(groups.count, max_groups))
        self.schedule = RowMajor(
            ceildiv(groups.count, self.panel_groups), ceildiv(b.shape().rows, PANEL_COLUMNS)
        )

    def num_tasks(self) -> Int:
        """Returns the number of panels."""
        return self.schedule.num_tiles()

    @no_inline
    def run(self, task: Int):
        """Computes panel `task`; the same code for products and for ranges of them."""
        var tile = self.schedule.tile(task)
        var groups = self.a.groups()
        var first_group = tile.row * self.panel_groups
        var last_group = min(first_group + self.panel_groups, groups.count)
        var num_rows = groups.start(last_group) - groups.start(first_group)
        var of_a_group = on_stack[DType.float32, Self.GROUP_ROWS, PANEL_COLUMNS]()
        var sums, step = panel_sums(Int(of_a_group.ptr), Self.GROUP_ROWS), self.panel_groups
        var memory = 0
        if num_rows > Self.GROUP_ROWS:
            comptime FLOAT_BYTES = 4
            memory = try_allocate(num_rows * PANEL_COLUMNS * FLOAT_BYTES)
            if memory != 0:
                sums = panel_sums(memory, num_rows)
            else:
                # A group at a time has the same sums, and its weights are decoded again.
                step = 1
        for group in range(first_group, last_group, step):
            self._compute(group, min(group + step, last_group), tile.column, sums)
        free(memory)

    def _compute(self, first_group: Int, last_group: Int, panel: Int, sums: PanelSums):
        """Computes some groups of rows of a panel, and stores them."""
        var groups = self.a.groups()
        var first_row = groups.start(first_group)
        var num_rows = groups.start(last_group) - first_row
        self._sum(first_group, last_group, panel, sums)
        comptime if Self.Product.HAS_ROW_FACTORS or Self.Product.HAS_COLUMN_FACTORS:
            self._multiply_factors(first_row, num_rows, panel, sums)
        self._replace_irregular(first_row, num_rows, panel, sums)
        self.out.store(first_row, num_rows, panel, sums)

    def _num_tiles(self) -> Int:
        return ceildiv(self.b.shape().rows, LANES)

    def _panel(self, panel: Int, first_block: Int) -> WeightPanel[Self.Tiles]:
        return WeightPanel(self.b, self.tiles, panel, self._num_tiles() - 1, first_block)

    def _sum(self, first_group: Int, last_group: Int, panel_idx: Int, sums: PanelSums):
        """Sums over all of K, stretch by stretch."""
        comptime STRETCH_BLOCKS = Self.Product.STRETCH_BLOCKS
        var k_blocks = self.b.shape().k_blocks[Self.Tiles.format]()
        var groups = self.a.groups()
        var first_row = groups.start(first_group)
        comptime HAS_E4M3 = Self.Tiles.format.scale == Scale.E4M3
        comptime MAY_BE_DIRECT = Self.Product.TAKES_E4M3_IN_REGISTERS or not HAS_E4M3
        comptime if MAY_BE_DIRECT and decoding_of[Self.Tiles]() != Decoding.DEAR:
            if groups.in_registers:
                # The blocks of a single group are contiguous across stretches. So are those of a
                # tile in memory, one tile after the other.
                var step, tiles = STRETCH_BLOCKS, PANEL_TILES
                if groups.count == 1:
                    step, tiles = Self.Product.SCALES_BLOCKS if HAS_E4M3 else k_blocks, 1
                var scales = Self.Product.Scales.on_stack()
                for tile in range(0, PANEL_TILES, tiles):
                    for first_block in range(0, k_blocks, step):
                        var panel = self._panel(panel_idx, first_block)
                        var num_blocks = min(step, k_blocks - first_block)
                        scales.decode(panel, tile, tile + tiles, num_blocks, self.a.takes_bytes())
                        for group in range(first_group, last_group):
                            var sums_row = groups.start(group) - first_row
                            var part = PanelPart(group, first_block, num_blocks, sums, sums_row)
                            self._add(groups.size(group), part, panel, scales, tile, tile + tiles)
                return

        var decoded = Self.Product.Decoded.on_stack()
        for first_block in range(0, k_blocks, STRETCH_BLOCKS):
            var num_blocks = min(STRETCH_BLOCKS, k_blocks - first_block)
            var panel = self._panel(panel_idx, first_block)
            decoded.decode(panel, num_blocks)
            for group in range(first_group, last_group):
                var sums_row = groups.start(group) - first_row
                var part = PanelPart(group, first_block, num_blocks, sums, sums_row)
                self._add_decoded(groups.size(group), part, decoded)

    def _add(
        self,
        num_rows: Int,
        part: PanelPart,
        panel: WeightPanel[Self.Tiles],
        scales: Self.Product.Scales,
        first_tile: Int,
        last_tile: Int,
    ):
        """Adds a part of some rows, decoding weights in registers."""
        comptime for size in range(1, Self.Product.LIMITS.in_registers + 1):
            if num_rows == size:
                for tile in range(first_tile, last_tile):
                    self.a.add[size](part, tile, panel, scales)

    def _add_decoded(self, num_rows: Int, part: PanelPart, decoded: Self.Product.Decoded):
        """Adds a part of some rows, weights decoded beforehand."""
        comptime for size in range(1, Self.Product.LIMITS.decoded + 1):
            if num_rows == size:
                self.a.add_decoded[size](part, decoded)

    def _multiply_factors(self, first_row: Int, num_rows: Int, panel: Int, sums: PanelSums):
        """Multiplies sums over K by the factors of their rows and columns."""
        for place in range(PANEL_TILES):
            var tile = min(self.tiles.at(panel, place), self._num_tiles() - 1)
            var of_columns = Sums(1)
            comptime if Self.Product.HAS_COLUMN_FACTORS:
                of_columns = bitcast[DType.float32, LANES](self.b.scales(tile, 0))
            for i in range(num_rows):
                var at = Coord(i, place * LANES)
                var factors = of_columns * self.a.row_factor(first_row + i)
                sums.store(at, sums.load[width=LANES](at) * factors)

    def _replace_irregular(self, first_row: Int, num_rows: Int, panel_idx: Int, sums: PanelSums):
        """Replaces sums that float32 could not take."""
        var all_rows = self.a.window(first_row, num_rows)
        for place in range(PANEL_TILES):
            var tile = self.tiles.at(panel_idx, place)
            if tile >= self._num_tiles():
                break
            comptime is_regular = Self.Product.is_regular[Self.Tiles.format]
            comptime MAY_BE_INFINITE = Self.Tiles.format.has_non_finite()
            var weights = tile_window(self.b, tile)
            var is_tile_regular = is_regular(all_rows, weights)
            comptime if not MAY_BE_INFINITE:
                if is_tile_regular:
                    continue
            for i in range(num_rows):
                var row = first_row + i
                var column = place * LANES
                var is_row_regular = is_tile_regular or is_regular(self.a.window(row, 1), weights)
                comptime if MAY_BE_INFINITE:
                    # Codes of the weights that are not finite show in the sums.
                    var found = sums.load[width=LANES](Coord(i, column))
                    is_row_regular = is_row_regular and not (found - found).ne(0).reduce_or()
                if not is_row_regular:
                    sums.store(Coord(i, column), self.a.sum_in_float64(row, self.b, tile))
