"""C in memory: sums and their bias, rounded and stored, in tiles of 16 x 16.

Lane l holds row l % 16, columns 4 * (l / 16) .. + 3 of a tile, which are 8 bytes of 16-bit values: a
row of a tile is half a sector. Of two tiles side by side, P and Q, the lanes of a row exchange their
values, and each stores 16 bytes, so that a wave stores whole sectors:

    lanes     0 .. 15    16 .. 31    32 .. 47    48 .. 63
    hold      P0, Q0     P1, Q1      P2, Q2      P3, Q3
    store     P0, P1     P2, P3      Q0, Q1      Q2, Q3
"""

from max.gpu.intrinsics import AMDBufferResource, permlane_swap
from max.gpu.memory import CacheOperation
from std.memory import bitcast
from std.sys import size_of

from ...tiles import RegisterTile, in_registers
from ..chip import PAIR, SUMS, TILE
from ..instructions.matrix import SumTile, Sums
from ..instructions.vector import here
from ..operands.memory import OUT_OF_RANGE, Span, quotient

comptime NO_BIAS = Optional[DType]()
"""The bias type of a kernel without one."""
comptime PAIR_COLUMNS = 8
"""Columns of two tiles that a lane stores at once."""


trait Destination(TrivialRegisterPassable):
    """Where the sums of tiles go."""

    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the bias of a lane's columns of a tile; any value beyond N."""
        ...

    def store(self, sums: Sums, bias: Sums, first_row: Int32, first_column: Int32, lane: Int32):
        """Stores a tile with its bias; what lies beyond M and N is dropped."""
        ...


def _one_below_the_other(m_tile: Int) -> Int:
    """Returns the first row of a tile."""
    return m_tile * TILE


@fieldwise_init
struct Target[dtype: DType, bias_dtype: Optional[DType]](Destination):
    """C = sums + bias, [M, N] and contiguous."""

    comptime BYTES = size_of[Self.dtype]()
    """Bytes of a value."""

    var values: AMDBufferResource
    var bias: AMDBufferResource
    var n: Int32

    @staticmethod
    @always_inline
    def of(
        values: MutPointer[Scalar[Self.dtype], _], bias: ImmPointer[UInt8, _], m: Int32, n: Int32
    ) -> Self:
        """Describes C and its bias; the bias is not read if there is none."""
        comptime BIAS_BYTES = size_of[Self.bias_dtype.or_else(DType.uint8)]()
        return Self(
            AMDBufferResource(values, Int(m * n)), Span.of(bias, n * Int32(BIAS_BYTES)).after(0), n
        )

    @always_inline
    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        var bias = Sums(0)
        comptime if Self.bias_dtype:
            comptime bias_dtype = Self.bias_dtype.value()
            comptime BYTES = size_of[bias_dtype]()
            var column = first_column + quotient[TILE](lane) * Int32(SUMS)
            comptime for i in range(SUMS):
                var bytes = self.bias.load[DType.uint8, BYTES]((column + Int32(i)) * Int32(BYTES))
                bias[i] = bitcast[bias_dtype, 1](bytes).cast[DType.float32]()
        return bias

    @always_inline
    def bias_of_tiles[n_tiles: Int](self, first_column: Int32, lane: Int32) -> SumTile[n_tiles]:
        """Starts loading the bias of tiles side by side."""
        var bias = in_registers[DType.float32, SUMS, n_tiles]()
        comptime for n_tile in range(n_tiles):
            bias[n_tile] = self.bias_of(first_column + Int32(n_tile * TILE), lane)
        return bias

    @staticmethod
    @always_inline
    def biased(sums: Sums, bias: Sums) -> Sums:
        comptime if Self.bias_dtype:
            return sums + bias
        else:
            return sums

    @staticmethod
    @always_inline
    def place(first_row: Int32, first_column: Int32, lane: Int32) -> Tuple[Int32, Int32]:
        """Returns row and first column of what a lane holds of a tile."""
        var column = first_column + quotient[TILE](lane) * Int32(SUMS)
        return (first_row + lane % TILE, column)

    @always_inline
    def store(self, sums: Sums, bias: Sums, first_row: Int32, first_column: Int32, lane: Int32):
        var row, column = self.place(first_row, first_column, lane)
        var values = self.biased(sums, bias).cast[Self.dtype]()
        var offset = (row * self.n + column) * Int32(Self.BYTES)
        if self.n % Int32(SUMS) == 0:
            self.values.store[cache_policy=CacheOperation.STREAMING](
                offset if column < self.n else OUT_OF_RANGE,
                bitcast[DType.uint8, SUMS * Self.BYTES](values),
            )
        else:
            comptime for i in range(SUMS):
                var place = offset + Int32(i * Self.BYTES)
                self.values.store(
                    place if column + Int32(i) < self.n else OUT_OF_RANGE,
                    bitcast[DType.uint8, Self.BYTES](values[i]),
                )

    @always_inline
    def store_tiles[
        m_tiles: Int, n_tiles: Int, //
    ](
        self,
        sums: SumTile[m_tiles, n_tiles],
        bias: SumTile[n_tiles],
        first_row: Int32,
        first_column: Int32,
        lane: Int32,
    ):
        """Stores tiles with their bias; the first are on their way while others are rounded."""
        comptime if Self.BYTES == 2:
            if self.n % Int32(PAIR_COLUMNS) == 0:
                comptime PAIRED = n_tiles - n_tiles % PAIR
                var places = in_registers[DType.int32, 1, max(PAIRED, 1)]()
                comptime for n_tile in range(0, PAIRED, PAIR):
                    var column = first_column + Int32(n_tile * TILE)
                    places[n_tile] = self._place_of_pair(first_row, column, lane)
                comptime for m_tile in range(m_tiles):
                    comptime ROWS_BYTES = Int32(m_tile * TILE * Self.BYTES)
                    comptime for n_tile in range(0, PAIRED, PAIR):
                        var left = self._rounded(sums[m_tile, n_tile], bias[n_tile])
                        var right = self._rounded(sums[m_tile, n_tile + 1], bias[n_tile + 1])
                        self._store_pair(left, right, places[n_tile][0] + ROWS_BYTES * self.n)
                self._store_each[PAIRED](sums, bias, first_row, first_column, lane)
                return
        self._store_each[0](sums, bias, first_row, first_column, lane)

    @always_inline
    def rounded_tiles[
        m_tiles: Int, n_tiles: Int, //
    ](self, sums: SumTile[m_tiles, n_tiles], bias: SumTile[n_tiles]) -> RegisterTile[
        Self.dtype, SUMS, m_tiles, n_tiles
    ]:
        """Returns C here, before the wave waits for others; of 32-bit values nothing."""
        var values = in_registers[Self.dtype, SUMS, m_tiles, n_tiles]()
        comptime if Self.BYTES == 2:
            comptime for m_tile in range(m_tiles):
                comptime for n_tile in range(n_tiles):
                    values[m_tile, n_tile] = self._rounded(sums[m_tile, n_tile], bias[n_tile])
        return values

    @always_inline
    def store_rounded_tiles[
        m_tiles: Int, n_tiles: Int, //, row_of: def(Int) thin -> Int
    ](
        self,
        sums: SumTile[m_tiles, n_tiles],
        bias: SumTile[n_tiles],
        values: RegisterTile[Self.dtype, SUMS, m_tiles, n_tiles],
        first_row: Int32,
        first_column: Int32,
        lane: Int32,
    ):
        """Stores tiles with their bias, `rounded_tiles` where C has 16-bit values.

        `row_of` says where a tile's rows begin, counted from the first one's.
        """
        comptime if Self.BYTES == 2 and n_tiles % PAIR == 0:
            if self.n % Int32(PAIR_COLUMNS) == 0:
                comptime for m_tile in range(m_tiles):
                    comptime for n_tile in range(0, n_tiles, PAIR):
                        var row = first_row + Int32(row_of(m_tile))
                        var column = first_column + Int32(n_tile * TILE)
                        var left, right = values[m_tile, n_tile], values[m_tile, n_tile + 1]
                        self._store_pair(left, right, self._place_of_pair(row, column, lane))
                return
        self._store_each[0, row_of](sums, bias, first_row, first_column, lane)

    @always_inline
    def _rounded(self, sums: Sums, bias: Sums) -> SIMD[Self.dtype, SUMS]:
        """Returns 16-bit values of a tile; the compiler computes them neither earlier nor later."""
        var total = self.biased(sums, bias).cast[Self.dtype]()
        return bitcast[Self.dtype, SUMS](here(bitcast[DType.uint64, 1](total)))

    @always_inline
    def _store_each[
        m_tiles: Int,
        n_tiles: Int,
        //,
        first: Int,
        row_of: def(Int) thin -> Int = _one_below_the_other,
    ](
        self,
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
                self.store(sums[m_tile, n_tile], bias[n_tile], row, column, lane)

    @always_inline
    def _place_of_pair(self, first_row: Int32, first_column: Int32, lane: Int32) -> Int32:
        """Returns the byte from which on a lane stores its part of two tiles side by side."""
        var row = first_row + lane % TILE
        var column = first_column + quotient[TILE](lane) * Int32(PAIR_COLUMNS)
        var offset = (row * self.n + column) * Int32(Self.BYTES)
        return offset if column < self.n else OUT_OF_RANGE

    @always_inline
    def _store_pair(
        self, left: SIMD[Self.dtype, SUMS], right: SIMD[Self.dtype, SUMS], place: Int32
    ):
        """Stores two tiles side by side; what lies beyond M and N is dropped."""
        comptime HALVES, ODD_ROWS = 32, 16
        var p, q = bitcast[DType.uint32, 2](left), bitcast[DType.uint32, 2](right)
        var words = SIMD[DType.uint32, 4](0)
        comptime for i in range(2):
            var halves = permlane_swap[HALVES](p[i], q[i])
            var quarters = permlane_swap[ODD_ROWS](halves[0], halves[1])
            words[i] = quarters[0]
            words[2 + i] = quarters[1]
        self.values.store[cache_policy=CacheOperation.STREAMING](
            place, bitcast[DType.uint8, 16](words)
        )
