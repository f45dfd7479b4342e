"""Rows of which some elements of C are computed once more, in float64.

All warps of a group find the same marks, so that they take the same way.
"""

from max.gpu.sync import syncwarp

from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import ANY_BITS
from ..exact import compute_exactly
from ..instructions.warp import any_lane, lane_here
from ..instructions.wgmma import INSTRUCTION_ROWS
from ..layout import TILE_ROWS
from ..staged.stages import WARP_ROWS
from .operands import ProductOperands


@fieldwise_init
struct Marks(TrivialRegisterPassable):
    """A lane's share of the marks of a tile."""

    var of_tokens: UInt8
    var of_weights: UInt8

    @staticmethod
    @always_inline
    def load[
        tokens: Int
    ](
        operands: Some[ProductOperands], first_token: UInt32, first_column: UInt32, result: Result
    ) -> Self:
        """Loads those of a warp group's tile before the products: nobody waits for them."""
        var found = Self(0, 0)
        comptime for first in range(0, INSTRUCTION_ROWS, TILE_ROWS):
            var column = min(first_column + UInt32(first), result.columns - 1)
            found.of_weights |= operands.mark_of_weights(column)
        comptime for i in range(tokens // 32):
            var row = min(first_token + UInt32(32 * i) + lane_here(), result.rows - 1)
            found.of_tokens |= operands.mark_of_token(row)
        return found

    @always_inline
    def is_any(self) -> Bool:
        """Says whether a row of the tile is marked."""
        return any_lane(self.of_tokens | self.of_weights != 0)


@always_inline
def store_marked[
    tokens: Int
](
    operands: Some[ProductOperands],
    marks: Marks,
    a: Activations,
    w: Weights,
    result: Result,
    first_token: UInt32,
    first_column: UInt32,
):
    """Computes a warp's elements of C once more where a row is marked, in float64."""
    var lane = lane_here()
    var all = any_lane(marks.of_weights != 0)
    # The sums that other lanes stored before are not to overtake these.
    syncwarp()
    for row in range(first_token, min(first_token + UInt32(tokens), result.rows)):
        if all or operands.mark_of_token(row) != 0:
            for column in range(first_column, first_column + UInt32(WARP_ROWS)):
                compute_exactly[ANY_BITS](a, w, result, row, column, lane)
