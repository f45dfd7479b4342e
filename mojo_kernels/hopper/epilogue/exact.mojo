"""The exact fallback: elements of C whose operands bfloat16 cannot hold, in float64."""

from max.gpu.sync import syncwarp

from ...layouts import PreshuffledCuda
from ...numbers.gates import Gate
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import ANY_BITS
from ...simt.matmul import warp_sums
from ..instructions.warp import lane_here


@fieldwise_init
struct Fallback(TrivialRegisterPassable):
    """The operands of a tile as they came, of any format."""

    var a: Activations
    """All activations."""
    var w: Weights
    """The weights of the tile."""
    var columns: UInt32
    """Rows of the weights."""

    @always_inline
    def sum(self, row: Int, column: UInt32, lane: UInt32) -> Float32:
        """Returns one sum, in all lanes of a warp."""
        return warp_sums[PreshuffledCuda, ANY_BITS, False, 1](
            self.a, self.w, Int(self.columns), row, Int(column), Int(lane)
        )[0]

    @no_inline
    def store[
        is_gated: Bool
    ](
        self,
        row: Int,
        half: UInt32,
        gate: Gate,
        result: Result,
        result_row: UInt32,
        first: UInt32,
        end: UInt32,
    ):
        """Computes and stores columns of a row of activations; a warp calls it.

        `half` are the columns of the weights from a gate to its up, 0 for neighbours.
        """
        # The sums that other lanes stored before are not to overtake these.
        syncwarp()
        var lane = lane_here()
        for column in range(first, min(end, result.columns)):
            comptime if is_gated:
                var of_gate = UInt32(column) if half != 0 else UInt32(2) * UInt32(column)
                var of_up = of_gate + (half if half != 0 else UInt32(1))
                var gated = self.sum(row, of_gate, lane)
                var up = self.sum(row, of_up, lane)
                if result.has_bias():
                    gated += result.bias_of[1](Int(of_gate))[0]
                    up += result.bias_of[1](Int(of_up))[0]
                var number = gate.of(SIMD[DType.float32, 1](gated), SIMD[DType.float32, 1](up))
                if lane == 0:
                    result.elements().store[1, 1](Int(result_row), Int(column), number)
            else:
                var sum = self.sum(row, UInt32(column), lane)
                if lane == 0:
                    result.store[1, 1](Int(result_row), Int(column), SIMD[DType.float32, 1](sum))
