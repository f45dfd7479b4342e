"""Hidden numbers: sums of gates and ups, which are neighbours, gated and stored half as many."""

from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys import size_of

from ...numbers.gates import Gate
from ..instructions.matrix import SUMS, Sums
from ..operands.memory import OUT_OF_RANGE, quotient
from ..operands.target import Destination, Target


@fieldwise_init
struct Hidden[dtype: DType, bias_dtype: Optional[DType]](Destination):
    """Rows of hidden numbers, contiguous."""

    comptime Both = Target[Self.dtype, Self.bias_dtype]
    """Where the sums would go."""

    var sums: Self.Both
    """Their bias and their columns; its memory is that of the hidden numbers."""
    var gate: Gate

    @staticmethod
    @always_inline
    def of(
        values: MutPointer[Scalar[Self.dtype], _],
        bias: ImmPointer[UInt8, _],
        rows: Int32,
        n: Int32,
        gate: Gate,
    ) -> Self:
        """Describes `rows` rows of n / 2 hidden numbers."""
        var sums = Self.Both.of(values, bias, rows, n)
        sums.values = AMDBufferResource(values, Int(rows * quotient[2](n)))
        return Self(sums, gate)

    @always_inline
    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the bias of a lane's columns."""
        return self.sums.bias_of(first_column, lane)

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
        """Stores what becomes of a lane's sums from its column `first` on."""
        comptime BYTES = size_of[Self.dtype]()
        comptime HALF = width // 2
        var row, column = self.sums.place[first](first_row, first_column, lane)
        var gates, ups = self.sums.biased[first](sums, bias).deinterleave()
        var hidden = self.gate.of(gates, ups).cast[Self.dtype]()
        var offset = (row * quotient[2](self.sums.n) + quotient[2](column)) * Int32(BYTES)
        self.sums.values.store(
            offset if column < self.sums.n else OUT_OF_RANGE,
            bitcast[DType.uint8, HALF * BYTES](rebind[SIMD[Self.dtype, HALF]](hidden)),
        )
