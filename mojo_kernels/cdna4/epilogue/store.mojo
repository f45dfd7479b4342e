"""From the sums of a prefill wave to C, in whole sectors of memory.

A lane holds four neighbouring columns of a row of a tile, which are 8 bytes of
16-bit values: a row of a tile is half a sector. Of two tiles side by side, P and
Q, the lanes of a row exchange their values, and each stores 16 bytes:

    lanes     0 .. 15    16 .. 31    32 .. 47    48 .. 63
    hold      P0, Q0     P1, Q1      P2, Q2      P3, Q3
    store     P0, P1     P2, P3      Q0, Q1      Q2, Q3
"""

from max.gpu.intrinsics import permlane_swap
from max.gpu.memory import CacheOperation
from std.memory import bitcast
from std.sys import size_of

from ...tiles import RegisterTile, in_registers
from ..chip import PAIR, SUMS, TILE
from ..instructions.matrix import SumTile, Sums
from ..instructions.vector import here
from ..operands.memory import OUT_OF_RANGE, quotient
from .target import Target

comptime LANE_COLUMNS = 8
"""Columns that a lane stores at once."""


@always_inline
def bias_of_tiles[
    dtype: DType, bias_dtype: Optional[DType], //, n_tiles: Int
](target: Target[dtype, bias_dtype], first_column: Int32, lane: Int32) -> SumTile[n_tiles]:
    """Starts loading the bias of tiles side by side."""
    var bias = in_registers[DType.float32, SUMS, n_tiles]()
    comptime for n_tile in range(n_tiles):
        bias[n_tile] = target.bias_of(first_column + Int32(n_tile * TILE), lane)
    return bias


@always_inline
def rounded_tiles[
    dtype: DType, bias_dtype: Optional[DType], m_tiles: Int, n_tiles: Int, //
](
    target: Target[dtype, bias_dtype], sums: SumTile[m_tiles, n_tiles], bias: SumTile[n_tiles]
) -> RegisterTile[dtype, SUMS, m_tiles, n_tiles]:
    """Returns C here, before the wave waits for others; of 32-bit values nothing."""
    var values = in_registers[dtype, SUMS, m_tiles, n_tiles]()
    comptime if size_of[dtype]() == 2:
        comptime for m_tile in range(m_tiles):
            comptime for n_tile in range(n_tiles):
                values[m_tile, n_tile] = _rounded(target, sums[m_tile, n_tile], bias[n_tile])
    return values


@always_inline
def _rounded[
    dtype: DType, bias_dtype: Optional[DType], //
](target: Target[dtype, bias_dtype], sums: Sums, bias: Sums) -> SIMD[dtype, SUMS]:
    """Returns 16-bit values of a tile; the compiler computes them neither earlier nor later."""
    var total = target.biased[0](sums, bias).cast[dtype]()
    return bitcast[dtype, SUMS](here(bitcast[DType.uint64, 1](total)))


def _one_below_the_other(m_tile: Int) -> Int:
    """Returns the first row of a tile."""
    return m_tile * TILE


@always_inline
def store_rounded_tiles[
    dtype: DType,
    bias_dtype: Optional[DType],
    m_tiles: Int,
    n_tiles: Int,
    //,
    row_of: def(Int) thin -> Int = _one_below_the_other,
](
    target: Target[dtype, bias_dtype],
    sums: SumTile[m_tiles, n_tiles],
    bias: SumTile[n_tiles],
    values: RegisterTile[dtype, SUMS, m_tiles, n_tiles],
    first_row: Int32,
    first_column: Int32,
    lane: Int32,
):
    """Stores tiles with their bias, `rounded_tiles` where C has 16-bit values.

    Parameters:
        dtype: The type of C.
        bias_dtype: The type of the bias.
        m_tiles: Tiles below each other.
        n_tiles: Tiles side by side.
        row_of: Says where a tile's rows begin, counted from the first one's.
    """
    comptime if size_of[dtype]() == 2 and n_tiles % PAIR == 0:
        if target.n % Int32(LANE_COLUMNS) == 0:
            comptime for m_tile in range(m_tiles):
                comptime for n_tile in range(0, n_tiles, PAIR):
                    var row = first_row + Int32(row_of(m_tile))
                    var column = first_column + Int32(n_tile * TILE)
                    var left, right = values[m_tile, n_tile], values[m_tile, n_tile + 1]
                    _store_pair(target, left, right, _place(target, row, column, lane))
            return
    _store_each[0, row_of](target, sums, bias, first_row, first_column, lane)


@always_inline
def store_tiles[
    dtype: DType, bias_dtype: Optional[DType], m_tiles: Int, n_tiles: Int, //
](
    target: Target[dtype, bias_dtype],
    sums: SumTile[m_tiles, n_tiles],
    bias: SumTile[n_tiles],
    first_row: Int32,
    first_column: Int32,
    lane: Int32,
):
    """Stores tiles with their bias; the first are on their way while others are rounded."""
    comptime if size_of[dtype]() == 2:
        if target.n % Int32(LANE_COLUMNS) == 0:
            comptime PAIRED = n_tiles - n_tiles % PAIR
            var places = in_registers[DType.int32, 1, max(PAIRED, 1)]()
            comptime for n_tile in range(0, PAIRED, PAIR):
                var column = first_column + Int32(n_tile * TILE)
                places[n_tile] = _place(target, first_row, column, lane)
            comptime for m_tile in range(m_tiles):
                comptime ROWS_BYTES = Int32(m_tile * TILE * size_of[dtype]())
                comptime for n_tile in range(0, PAIRED, PAIR):
                    var left = _rounded(target, sums[m_tile, n_tile], bias[n_tile])
                    var right = _rounded(target, sums[m_tile, n_tile + 1], bias[n_tile + 1])
                    _store_pair(target, left, right, places[n_tile][0] + ROWS_BYTES * target.n)
            _store_each[PAIRED](target, sums, bias, first_row, first_column, lane)
            return
    _store_each[0](target, sums, bias, first_row, first_column, lane)


@always_inline
def _store_each[
    dtype: DType,
    bias_dtype: Optional[DType],
    m_tiles: Int,
    n_tiles: Int,
    //,
    first: Int,
    row_of: def(Int) thin -> Int = _one_below_the_other,
](
    target: Target[dtype, bias_dtype],
    sums: SumTile[m_tiles, n_tiles],
    bias: SumTile[n_tiles],
    first_row: Int32,
    first_column: Int32,
    lane: Int32,
):
    """Stores the tiles from column `first` of tiles on, one by one."""
    comptime for m_tile in range(m_tiles):
        comptime for n_tile in range(first, n_tiles):
            var row = first_row + Int32(row_of(m_tile))
            var column = first_column + Int32(n_tile * TILE)
            target.store(sums[m_tile, n_tile], bias[n_tile], row, column, lane)


@always_inline
def _place[
    dtype: DType, bias_dtype: Optional[DType], //
](target: Target[dtype, bias_dtype], first_row: Int32, first_column: Int32, lane: Int32) -> Int32:
    """Returns the byte from which on a lane stores its part of two tiles side by side."""
    var row = first_row + lane % TILE
    var column = first_column + quotient[TILE](lane) * Int32(LANE_COLUMNS)
    var offset = (row * target.n + column) * Int32(size_of[dtype]())
    return offset if column < target.n else OUT_OF_RANGE


@always_inline
def _store_pair[
    dtype: DType, bias_dtype: Optional[DType], //
](
    target: Target[dtype, bias_dtype],
    left: SIMD[dtype, SUMS],
    right: SIMD[dtype, SUMS],
    place: Int32,
):
    """Stores two tiles side by side; what lies beyond M and N is dropped."""
    var p, q = bitcast[DType.uint32, 2](left), bitcast[DType.uint32, 2](right)
    var words = SIMD[DType.uint32, 4](0)
    comptime for i in range(2):
        var halves = permlane_swap[32](p[i], q[i])
        var quarters = permlane_swap[16](halves[0], halves[1])
        words[i] = quarters[0]
        words[2 + i] = quarters[1]
    target.values.store[cache_policy=CacheOperation.STREAMING](
        place, bitcast[DType.uint8, 16](words)
    )
