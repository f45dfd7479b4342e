"""The factors of a stage's sums: float scales of both sides, loaded while the stage is multiplied.

    total += sum * (factor of the row * factor of the column)

Where one of them is so small that their product may not be regular, the larger one comes first, so
that only C may be too small.
"""

from std.memory import bitcast

from max.gpu import thread_idx

from ...launch.queue import DevicePointer
from ...layouts import LAYOUTS, Plain, e4m3_offset_in
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import E4M3_BLOCK, block_of, has_float_scales
from ...tiles import RegisterTile
from ..arguments import Result, Weights
from ..host import STAGE, TileShape, WARP_COLUMNS
from ..instructions import FRAGMENT_SUMS, here, keep_branch
from ..views import flat_of, load_unaligned
from .flags import Flags
from .operands import LARGEST_FACTOR_BITS, FactoredRows, is_extreme, scaled, stages_of
from .place import FRAGMENT_COLUMNS, FRAGMENT_ROWS

comptime Sums[rows: Int] = RegisterTile[
    DType.float32,
    FRAGMENT_SUMS,
    rows // FRAGMENT_ROWS,
    WARP_COLUMNS // FRAGMENT_COLUMNS,
]
"""The sums of a lane, of so many rows of its warp: fragments below, and beside each other."""
comptime PAIR = 2
"""Neighbouring columns of a lane, and rows of a lane in a fragment."""
comptime LANE_COLUMNS = PAIR * WARP_COLUMNS // FRAGMENT_COLUMNS
"""Columns of a lane."""
comptime lane_rows[warp_rows: Int] = PAIR * warp_rows // FRAGMENT_ROWS
"""Rows of a lane."""
comptime SMALL_FACTOR = UInt32((F32_EXPONENT_BIAS - 40) << F32_MANTISSA_BITS)
"""The bits of 2 ** -40: two factors that are no smaller have a regular product."""


@fieldwise_init
struct LaneScales[warp_rows: Int](TrivialRegisterPassable):
    """The factors of a lane's rows and columns, in a stage."""

    var of_rows: SIMD[DType.float32, lane_rows[Self.warp_rows]]
    var of_columns: SIMD[DType.float32, LANE_COLUMNS]

    @always_inline
    def are_usual(self) -> Bool:
        """Says whether products of two factors are regular, and none is extreme or zero."""
        var rows = bitcast[DType.uint32, lane_rows[Self.warp_rows]](self.of_rows)
        var columns = bitcast[DType.uint32, LANE_COLUMNS](self.of_columns)
        var least = min(rows.reduce_min(), columns.reduce_min())
        var largest = max(rows.reduce_max(), columns.reduce_max())
        return least >= SMALL_FACTOR and largest <= LARGEST_FACTOR_BITS

    @always_inline
    def apply(self, sums: Sums[Self.warp_rows]):
        """Multiplies sums by their factors."""
        comptime for i in range(lane_rows[Self.warp_rows] // PAIR):
            comptime for j in range(LANE_COLUMNS // PAIR):
                comptime for at in range(FRAGMENT_SUMS):
                    comptime row, column = divmod(at, PAIR)
                    var of_row, of_column = (
                        self.of_rows[PAIR * i + row],
                        self.of_columns[PAIR * j + column],
                    )
                    sums[i, j][at] = scaled(sums[i, j][at], of_row, of_column)

    @always_inline
    def add_usual(self, sums: Sums[Self.warp_rows], totals: Sums[Self.warp_rows]):
        """Adds the sums of a stage times their factors, which are usual ones."""
        comptime for i in range(lane_rows[Self.warp_rows] // PAIR):
            comptime for j in range(LANE_COLUMNS // PAIR):
                comptime for at in range(FRAGMENT_SUMS):
                    comptime row, column = divmod(at, PAIR)
                    var factor = self.of_rows[PAIR * i + row] * self.of_columns[PAIR * j + column]
                    totals[i, j][at] = sums[i, j][at].fma(factor, totals[i, j][at])

    @always_inline
    def add_any(self, sums: Sums[Self.warp_rows], totals: Sums[Self.warp_rows]):
        """Adds the sums of a stage times their factors."""
        self.apply(sums)
        comptime for i in range(lane_rows[Self.warp_rows] // PAIR):
            comptime for j in range(LANE_COLUMNS // PAIR):
                totals[i, j] += sums[i, j]


@fieldwise_init
struct FactorPlaces[tile: TileShape, has_e4m3: Bool](TrivialRegisterPassable):
    """Where a lane finds its factors."""

    comptime Found = LaneScales[Self.tile.warp_rows()]

    var left: DevicePointer[DType.float32]
    """Those of the left side, [row, stage]."""
    var row: UInt32
    """The lane's first row."""
    var rows: UInt32
    """How many there are; those of the last one stand in for those past the end."""
    var k: UInt32
    """Elements of a row."""
    var right: DevicePointer[DType.uint8]
    """Those of the weights. What follows counts floats, or where scales are E4M3 columns."""
    var layout: Int32
    """The position in `LAYOUTS` of E4M3 scales."""
    var column: UInt32
    """Where those of the lane's first column are."""
    var next_column: UInt32
    """From those of a column to those of the next: nothing if all of a tile share them."""
    var last_column: UInt32
    """Where those of the last column are."""
    var next_stage: UInt32
    """From those of a stage of the weights to those of the next."""
    var has_columns: Bool
    """Whether weights have any."""

    @staticmethod
    @always_inline
    def of(
        staged: FactoredRows,
        w: Weights,
        layout: Int32,
        first_row: UInt32,
        first_column: UInt32,
        result: Result,
    ) -> Self:
        """Finds those of a tile."""
        var row, in_tile = Self._place_of(here(UInt32(thread_idx.x)))
        comptime if Self.has_e4m3:
            return Self(
                staged.factors, first_row + row, staged.rows, staged.k, w.scales, layout,
                first_column + in_tile, 1, result.columns - 1, 0, True,
            )  # fmt: skip
        var block, k = block_of(Int(w.format)), Int(staged.k)
        # A block has one row of weights, or as many as a tile has columns.
        return Self(
            staged.factors,
            first_row + row,
            staged.rows,
            staged.k,
            w.scales,
            layout,
            UInt32(block.index(Int(first_column + in_tile), 0, k)),
            UInt32(block.index(1, 0, k)),
            UInt32(block.index(Int(result.columns - 1), 0, k)),
            UInt32(block.index(0, STAGE, k)) if k > STAGE else 0,
            has_float_scales(Int(w.format)),
        )

    @always_inline
    def load(self, stage: UInt32) -> Self.Found:
        """Loads those of a stage."""
        var found = Self.Found(1, 1)
        var row, column = here(self.row), here(self.column)
        var stages = stages_of(here(self.k))
        comptime for i in range(lane_rows[Self.tile.warp_rows()]):
            comptime fragment, half = divmod(i, PAIR)
            comptime BELOW = UInt32(fragment * FRAGMENT_ROWS + half * FRAGMENT_ROWS // PAIR)
            var at = min(row + BELOW, self.rows - 1) * stages + stage
            found.of_rows[i] = flat_of(self.left)[Int(at)]
        if self.has_columns:
            keep_branch()
            var first = min(column, self.last_column)
            found.of_columns = self._right(first + stage * self.next_stage)
            if self.next_column != 0:
                keep_branch()
                comptime for j in range(1, LANE_COLUMNS):
                    var at = min(column + in_fragments(j) * self.next_column, self.last_column)
                    found.of_columns[j] = self._right(at + stage * self.next_stage)
        return found

    @always_inline
    def _right(self, at: UInt32) -> Float32:
        """Loads a factor of the weights."""
        comptime if Self.has_e4m3:
            var column, k = Int(at), Int(here(self.k))
            comptime for i in range(len(LAYOUTS)):
                comptime if LAYOUTS[i].E4M3_RUN > 0:
                    if self.layout == Int32(i):
                        var step = e4m3_offset_in[LAYOUTS[i]](0, E4M3_BLOCK, k)
                        var first = e4m3_offset_in[LAYOUTS[i]](column, k, k)
                        return load_unaligned(self.right, first, step)
            return load_unaligned(self.right, e4m3_offset_in[Plain](column, k, k))
        else:
            return flat_of(self.right.unsafe_bitcast[Float32]())[Int(at)]

    @staticmethod
    @always_inline
    def flag(found: Self.Found, flags: Flags[_]):
        """Flags columns whose factors are extreme, when these are there: loading does not wait."""
        var _, first = Self._place_of(here(UInt32(thread_idx.x)))
        comptime for j in range(LANE_COLUMNS):
            if is_extreme(found.of_columns[j]):
                flags.set(first + in_fragments(j))

    @staticmethod
    @always_inline
    def _place_of(thread: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns a lane's first row and column in the tile."""
        var warp, lane = divmod(thread, UInt32(32))
        var row_warp, column_warp = divmod(warp, UInt32(Self.tile.column_warps()))
        return (
            row_warp * UInt32(Self.tile.warp_rows()) + lane // 4,
            column_warp * UInt32(WARP_COLUMNS) + lane % 4 * UInt32(PAIR),
        )


@always_inline
def in_fragments(index: Int) -> UInt32:
    """Returns how far a lane's column is from its first one."""
    var fragment, column = divmod(index, PAIR)
    return UInt32(fragment * FRAGMENT_COLUMNS + column)
