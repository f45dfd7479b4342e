"""C in memory: sums and their bias, rounded and stored, a tile of 16 x 16 at a time.

Lane l holds row l % 16, columns 4 * (l / 16) .. + 3 of a tile.
"""

from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from std.memory import bitcast
from std.sys import size_of

from ..chip import SUMS, TILE
from ..instructions.matrix import Sums
from ..operands.memory import OUT_OF_RANGE, Span, quotient

comptime NO_BIAS = Optional[DType]()
"""The bias type of a kernel without one."""


trait Destination(TrivialRegisterPassable):
    """Where the sums of tiles go."""

    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the bias of a lane's columns of a tile; any value beyond N."""
        ...

    def store_part[
        first: Int, width: SIMDLength
    ](
        self,
        sums: SIMD[DType.float32, width],
        bias: Sums,
        first_row: Int32,
        first_column: Int32,
        lane: Int32,
    ):
        """Stores what a lane holds of a tile from its column `first` on, with its bias."""
        ...


@fieldwise_init
struct Target[dtype: DType, bias_dtype: Optional[DType]](Destination):
    """C = sums + bias, [M, N] and contiguous."""

    var values: AMDBufferResource
    var bias: AMDBufferResource
    var n: Int32

    @staticmethod
    @always_inline
    def of(
        values: MutPointer[Scalar[Self.dtype], _],
        bias: ImmPointer[UInt8, _],
        m: Int32,
        n: Int32,
    ) -> Self:
        """Describes C and its bias; the bias is not read if there is none."""
        comptime BIAS_BYTES = size_of[Self.bias_dtype.or_else(DType.uint8)]()
        return Self(
            AMDBufferResource(values, Int(m * n)), Span.of(bias, n * Int32(BIAS_BYTES)).after(0), n
        )

    @always_inline
    def store(self, sums: Sums, bias: Sums, first_row: Int32, first_column: Int32, lane: Int32):
        """Stores a tile with its bias; what lies beyond M and N is dropped."""
        self.store_part[0, SUMS](sums, bias, first_row, first_column, lane)

    @always_inline
    def store_part[
        first: Int, width: SIMDLength
    ](
        self,
        sums: SIMD[DType.float32, width],
        bias: Sums,
        first_row: Int32,
        first_column: Int32,
        lane: Int32,
    ):
        comptime BYTES = Int32(size_of[Self.dtype]())
        var row, column = self.place[first](first_row, first_column, lane)
        var values = self.biased[first](sums, bias).cast[Self.dtype]()
        var offset = (row * self.n + column) * BYTES
        if self.n % Int32(SUMS) == 0:
            self.values.store[cache_policy=CacheOperation.STREAMING](
                offset if column < self.n else OUT_OF_RANGE,
                bitcast[DType.uint8, width * size_of[Self.dtype]()](values),
            )
        else:
            comptime for i in range(width):
                var place = offset + Int32(i) * BYTES
                self.values.store(
                    place if column + Int32(i) < self.n else OUT_OF_RANGE,
                    bitcast[DType.uint8, size_of[Self.dtype]()](values[i]),
                )

    @staticmethod
    @always_inline
    def place[
        first: Int
    ](first_row: Int32, first_column: Int32, lane: Int32) -> Tuple[Int32, Int32]:
        """Returns row and column of what a lane holds of a tile from its column `first` on."""
        var column = first_column + quotient[TILE](lane) * Int32(SUMS) + Int32(first)
        return (first_row + lane % TILE, column)

    @staticmethod
    @always_inline
    def biased[
        first: Int, width: SIMDLength
    ](sums: SIMD[DType.float32, width], bias: Sums) -> SIMD[DType.float32, width]:
        """Adds the bias to what a lane holds of a tile from its column `first` on."""
        comptime if Self.bias_dtype:
            return sums + bias.slice[width, offset=first]()
        else:
            return sums

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
