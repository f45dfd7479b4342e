"""One element of C in float64, for operands that bfloat16 cannot hold.

Kernels notice such operands by their scales: under the two largest, the codes 4 and
6 overflow. They then compute the elements of their tile here, one after the other.
"""

from ..layouts import OperandLayout, PreshuffledCuda
from ..simt.arguments import Activations, Result, Weights
from ..simt.codec import ANY_BITS
from ..simt.matmul import warp_sums
from .instructions.warp import keep_here, lane_here
from .layout import OPERANDS
from .shapes import OCTET, WARP_ROWS


@fieldwise_init
struct TokenOctet(TrivialRegisterPassable):
    """Up to eight rows of tokens, some steps apart."""

    var first: UInt32
    var step: UInt32
    var end: UInt32
    """Rows from here on do not count."""

    @always_inline
    def row(self, i: UInt32) -> UInt32:
        """Returns one of the rows."""
        return self.first + self.step * i


@always_inline
def compute_exactly[
    bits: Int = OPERANDS.element.bits, Layout: OperandLayout = PreshuffledCuda
](a: Activations, w: Weights, result: Result, row: UInt32, column: UInt32, lane: UInt32):
    """Computes one element of C in float64 where bfloat16 cannot hold an operand.

    `bits` are those of the elements of both sides, or `ANY_BITS`.
    """
    if row >= result.rows or column >= result.columns:
        return
    var left, right = kept_here(a, w)
    var sum = warp_sums[Layout, bits, True, 1](
        left, right, Int(result.columns), Int(row), Int(column), Int(lane)
    )
    if lane == 0:
        result.store[1, 1](Int(row), Int(column), sum)


@always_inline
def compute_marked[
    Layout: OperandLayout
](
    a: Activations,
    w: Weights,
    result: Result,
    tokens: TokenOctet,
    first_column: UInt32,
    of_rows: UInt32,
    of_columns: UInt32,
):
    """Computes what is marked of some rows and sixteen columns, a bit each; a warp calls it."""
    for i in range(UInt32(OCTET)):
        var row = tokens.row(i)
        for j in range(UInt32(WARP_ROWS)):
            if row < tokens.end and (of_rows >> i | of_columns >> j) % 2 == 1:
                compute_exactly[ANY_BITS, Layout](a, w, result, row, first_column + j, lane_here())


@always_inline
def kept_here(a: Activations, w: Weights) -> Tuple[Activations, Weights]:
    """Returns both sides; what follows from sizes and formats is computed here.

    The compiler would find it out before all tiles, and keep twenty registers for what is hardly
    ever wanted.
    """
    var words = keep_here(
        SIMD[DType.uint32, 8](
            UInt32(a.k), UInt32(a.kind), UInt32(a.dtype), UInt32(a.format), a.carry,
            UInt32(w.format), 0, 0,
        )
    )  # fmt: skip
    var left, right = a, w
    left.k = Int(words[0])
    left.kind, left.dtype, left.format = Int32(words[1]), Int32(words[2]), Int32(words[3])
    left.carry = words[4]
    right.format = Int32(words[5])
    return (left, right)
