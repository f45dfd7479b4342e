"""One element of C in float64, for operands that bfloat16 cannot hold.

Kernels notice such operands by their scales: under the two largest, the codes 4 and
6 overflow. They then compute the elements of their tile here, one after the other.
"""

from ..layouts import PreshuffledCuda
from ..simt.launch import DevicePointer
from ..simt.matmul import warp_sums
from ..simt.problem import Activations, Result


@always_inline
def compute_exactly(
    a: Activations,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    result: Result,
    rows: UInt32,
    row: UInt32,
    column: UInt32,
    lane: UInt32,
):
    """Computes one element of C in float64 where bfloat16 cannot hold an operand."""
    if row >= rows or Int(column) >= result.columns:
        return
    var sum = warp_sums[PreshuffledCuda, True, 1](
        a, codes, scales, result.columns, Int(row), Int(column), Int(lane)
    )
    if lane == 0:
        result.store[1, 1](Int(row), Int(column), sum)
