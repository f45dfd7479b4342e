"""How the sums of a panel get to memory: bias, gate, rounding, store.

    no gate    32 columns of the result       sums + bias, or hidden numbers of ups alone, rounded
    a gate     16 columns of hidden numbers   of both tiles of the panel: gates and their ups
"""

from layout import Coord
from std.collections import Array

from ..numbers.floats import FLOAT_TYPES, round_to
from ..numbers.gates import Gate
from ..operands import flat, matrix
from .panel import PANEL_COLUMNS, PANEL_TILES, PanelSums, PanelTiles
from .ranges import RangedProblem, RowRange
from .vectors import LANES, Sums

comptime _Panel = SIMD[DType.float32, PANEL_COLUMNS]


@fieldwise_init
struct PanelStore(TrivialRegisterPassable):
    """Writes the panels of some rows and an expert."""

    var values: Int
    """Address of the result."""
    var dtype: Int
    var bias: Int
    """Address of the biases of all experts."""
    var bias_dtype: Int
    var n: Int
    """Rows of the weights."""
    var gate: Gate
    var rows: RowRange

    @staticmethod
    def of(problem: RangedProblem, rows: RowRange) -> Self:
        """Returns what writes the rows of a range."""
        var experts = problem.experts
        return Self(
            problem.values,
            problem.dtype,
            experts.bias,
            experts.bias_dtype,
            problem.n,
            problem.gate,
            rows,
        )

    def panel_tiles(self) -> PanelTiles:
        """Returns which tiles make a panel: gates and their ups are in one."""
        if self.gate.is_there() and not self.gate.is_interleaved():
            return PanelTiles.halves(self.n // LANES)
        return PanelTiles.NEIGHBOURS

    def store(self, first_row: Int, num_rows: Int, panel: Int, sums: PanelSums):
        """Writes some rows of the range in a panel."""
        comptime for i in range(len(FLOAT_TYPES)):
            if self.dtype == i:
                if self.gate.is_there():
                    self._store_gated[FLOAT_TYPES[i]](first_row, num_rows, panel, sums)
                else:
                    self._store_as[FLOAT_TYPES[i]](first_row, num_rows, panel, sums)

    def _store_as[dtype: DType](self, first_row: Int, num_rows: Int, panel: Int, sums: PanelSums):
        var out = matrix[dtype](self.values, self.rows.first + self.rows.count, self.n, self.n)
        var first_tile = panel * PANEL_TILES
        var bias = Array[Sums, PANEL_TILES](fill=Sums(0))
        comptime for tile in range(PANEL_TILES):
            bias[tile] = self._bias_of(first_tile + tile)
        var is_full = (first_tile + PANEL_TILES) * LANES <= self.n
        for i in range(num_rows):
            var row = self.rows.first + first_row + i
            comptime for tile in range(PANEL_TILES):
                var total = sums.load[width=LANES](Coord(i, tile * LANES))
                var rounded = round_to[dtype](self.gate.of_sums(total + bias[tile]))
                var column = (first_tile + tile) * LANES
                if is_full:
                    out.store[alignment=1](Coord(row, column), rounded)
                else:
                    for lane in range(min(LANES, self.n - column)):
                        out.store[alignment=1](Coord(row, column + lane), rounded[lane])

    def _store_gated[
        dtype: DType
    ](self, first_row: Int, num_rows: Int, panel: Int, sums: PanelSums):
        """Writes hidden numbers; the panels of gates are full."""
        var columns = self.n // 2
        var out = matrix[dtype](self.values, self.rows.first + self.rows.count, columns, columns)
        var tiles = self.panel_tiles()
        var first_tile = tiles.first(panel)
        var bias = self._bias_of(first_tile).join(self._bias_of(first_tile + tiles.next))
        for i in range(num_rows):
            var total = sums.load[width=PANEL_COLUMNS](Coord(i, 0)) + rebind[_Panel](bias)
            var gates = total.slice[LANES]()
            var ups = total.slice[LANES, offset=LANES]()
            if self.gate.is_interleaved():
                var pairs = total.deinterleave()
                gates, ups = rebind[Sums](pairs[0]), rebind[Sums](pairs[1])
            var row = self.rows.first + first_row + i
            var hidden = round_to[dtype](self.gate.of(gates, ups))
            out.store[alignment=1](Coord(row, panel * LANES), hidden)

    def _bias_of(self, tile: Int) -> Sums:
        """Returns the bias of a tile's columns, zero without one."""
        var bias = Sums(0)
        var first = tile * LANES
        var count = min(LANES, self.n - first)
        comptime for i in range(len(FLOAT_TYPES)):
            if self.bias_dtype == i:
                var all = flat[FLOAT_TYPES[i]](self.bias, (self.rows.expert + 1) * self.n)
                var at = self.rows.expert * self.n + first
                if count == LANES:
                    return all.load[width=LANES, alignment=1](Coord(at)).cast[DType.float32]()
                for lane in range(count):
                    var value = all.load[width=1, alignment=1](Coord(at + lane))
                    bias[lane] = value.cast[DType.float32]()
        return bias
