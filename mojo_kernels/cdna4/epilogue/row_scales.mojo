"""Scales of rows: what sums over all of K are multiplied by, once, on their way to C.

    C[i, j] = sums[i, j] * left[i] * right[j]

A scale is any float32, and so is C; their product alone may be too large or too small. So a
scale is split into a mantissa and an exponent, and mantissas and exponents meet on their own:

    sums * (mantissa * mantissa), times 2 ** (exponent + exponent)

which is rounded where mantissas are multiplied, and where sums are. Lanes hold sums as in
`target.mojo`: row l % 16 of a tile, columns 4 * (l / 16) .. + 3.
"""

from std.memory import bitcast

from ...tiles import in_registers
from ..chip import SUMS, TILE, WORD_BYTES
from ..instructions.matrix import SumTile, Sums
from ..instructions.vector import exponent_of, mantissa_of, times_power
from ..operands.memory import View, quotient


@fieldwise_init
struct RowScales(TrivialRegisterPassable):
    """The scales of the rows of both operands."""

    var left: View
    """[M] float32."""
    var right: View
    """[N] float32."""

    @staticmethod
    @always_inline
    def of(left: ImmPointer[UInt8, _], right: ImmPointer[UInt8, _], m: Int32, n: Int32) -> Self:
        return Self(View.of(left, m * Int32(WORD_BYTES)), View.of(right, n * Int32(WORD_BYTES)))

    @always_inline
    def of_row(self, first_row: Int32, lane: Int32) -> Float32:
        """Starts loading the scale of a lane's row of a tile; 0 beyond M."""
        var offset = (first_row + lane % TILE) * Int32(WORD_BYTES)
        return bitcast[DType.float32, 1](self.left.load[WORD_BYTES](offset))

    @always_inline
    def of_columns(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the scales of a lane's columns of a tile; 0 beyond N."""
        var column = first_column + quotient[TILE](lane) * Int32(SUMS)
        var offset = column * Int32(WORD_BYTES)
        return bitcast[DType.float32, SUMS](self.right.load[SUMS * WORD_BYTES](offset))

    @staticmethod
    @always_inline
    def applied(sums: Sums, row: Float32, columns: Sums) -> Sums:
        var mantissas = mantissa_of(columns) * mantissa_of(Sums(row))
        return times_power(sums * mantissas, exponent_of(columns) + exponent_of(Sums(row)))

    @always_inline
    def apply[
        m_tiles: Int, n_tiles: Int, //
    ](self, sums: SumTile[m_tiles, n_tiles], first_row: Int32, first_column: Int32, lane: Int32,):
        """Scales the sums of tiles side by side and below each other."""
        var rows = in_registers[DType.float32, 1, m_tiles]()
        var columns = in_registers[DType.float32, SUMS, n_tiles]()
        comptime for m_tile in range(m_tiles):
            rows[m_tile] = self.of_row(first_row + Int32(m_tile * TILE), lane)
        comptime for n_tile in range(n_tiles):
            columns[n_tile] = self.of_columns(first_column + Int32(n_tile * TILE), lane)
        comptime for m_tile in range(m_tiles):
            comptime for n_tile in range(n_tiles):
                sums[m_tile, n_tile] = self.applied(
                    sums[m_tile, n_tile], rows[m_tile], columns[n_tile]
                )
