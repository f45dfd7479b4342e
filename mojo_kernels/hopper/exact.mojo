"""One element of C in float64, for operands that bfloat16 cannot hold.

Kernels notice such operands by their scales: under the two largest, the codes 4 and
6 overflow. They then compute the elements of their tile here, one after the other.
"""

from ..layouts import PreshuffledCuda
from ..simt.arguments import Activations, Result, Weights
from ..simt.matmul import warp_sums
from .layout import OPERANDS


@always_inline
def compute_exactly[
    bits: Int = OPERANDS.element.bits
](a: Activations, w: Weights, result: Result, row: UInt32, column: UInt32, lane: UInt32):
    """Computes one element of C in float64 where bfloat16 cannot hold an operand.

    `bits` are those of the elements of both sides, or `ANY_BITS`.
    """
    if row >= result.rows or column >= result.columns:
        return
    var sum = warp_sums[PreshuffledCuda, bits, True, 1](
        a, w, Int(result.columns), Int(row), Int(column), Int(lane)
    )
    if lane == 0:
        result.store[1, 1](Int(row), Int(column), sum)
