"""Scales of rows: what sums over all of K are multiplied by, once, on their way to C.

    C[i, j] = sums[i, j] * left[i] * right[j]

A scale is any float32, and so is C; their product alone may be too large or too small. So a
scale is split into a mantissa and an exponent, and mantissas and exponents meet on their own:

    sums * (mantissa * mantissa), times 2 ** (exponent + exponent)

which is rounded where mantissas are multiplied, and where sums are. Tensor scales of weights are
alone, and multiply sums as they are. Lanes hold sums as in
`target.mojo`: row l % 16 of a tile, columns 4 * (l / 16) .. + 3.
"""

from std.memory import bitcast

from ...numbers.formats import Format
from ...numbers.scales import Scale
from ...tiles import in_registers
from ..chip import SCALE_GROUP_ROWS, SUMS, TILE, WORD_BYTES
from ..instructions.matrix import SumTile, Sums
from ..instructions.vector import exponent_of, mantissa_of, times_power
from ..operands.memory import View, quotient, remainder
from ..operands.weights import scale_row_bytes


@fieldwise_init
struct RowScales[format: Format](TrivialRegisterPassable):
    """The scales of the rows of both operands, or tensor scales of the right one."""

    comptime OF_BOTH = Self.format.scale == Scale.FLOAT32

    var of_left: View
    """[M] float32, or nothing."""
    var of_right: View
    """[N] float32; or such a row behind the E4M3 scales of each 32 rows, from the first one on."""
    var row_bytes: Int32
    """Bytes from one such row to the next."""

    @staticmethod
    @always_inline
    def of(
        left: ImmPointer[UInt8, _],
        right: ImmPointer[UInt8, _],
        m: Int32,
        n: Int32,
        k_blocks: Int32 = 0,
    ) -> Self:
        comptime if Self.OF_BOTH:
            var of_left = View.of(left, m * Int32(WORD_BYTES))
            return Self(of_left, View.of(right, n * Int32(WORD_BYTES)), 0)
        var row_bytes = scale_row_bytes[Self.format](k_blocks)
        var rows = quotient[SCALE_GROUP_ROWS](n + Int32(SCALE_GROUP_ROWS - 1))
        var first = row_bytes - Int32(SCALE_GROUP_ROWS * WORD_BYTES)
        return Self(View.of(left, 0), View.of(right, rows * row_bytes).moved(first), row_bytes)

    @always_inline
    def of_row(self, first_row: Int32, lane: Int32) -> Float32:
        """Starts loading the scale of a lane's row of a tile; 0 beyond M."""
        comptime if not Self.OF_BOTH:
            return 1
        var offset = (first_row + lane % TILE) * Int32(WORD_BYTES)
        return bitcast[DType.float32, 1](self.of_left.load[WORD_BYTES](offset))

    @always_inline
    def of_columns(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the scales of a lane's columns of a tile; 0 beyond N."""
        var column = first_column + quotient[TILE](lane) * Int32(SUMS)
        var offset = column * Int32(WORD_BYTES)
        comptime if not Self.OF_BOTH:
            offset = remainder[SCALE_GROUP_ROWS](column) * Int32(WORD_BYTES)
            offset += quotient[SCALE_GROUP_ROWS](column) * self.row_bytes
        return bitcast[DType.float32, SUMS](self.of_right.load[SUMS * WORD_BYTES](offset))

    @staticmethod
    @always_inline
    def applied(sums: Sums, row: Float32, columns: Sums) -> Sums:
        comptime if not Self.OF_BOTH:
            return sums * columns
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
