"""Rows of which some elements of C are computed once more, in float64.

All warps of a group find the same marks, so that they take the same way, and share the work.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, vote

from ...simt.arguments import Activations, Result, Weights
from ..exact import TokenOctet
from ..instructions.shared_memory import wait_at
from ..instructions.warp import lane_here
from ..layout import TILE_ROWS
from ..shapes import INSTRUCTION_ROWS, OCTET, WARPS, WARP_GROUP, WARP_ROWS
from .operands import ProductOperands

comptime FIRST_GROUP = 8
"""The hardware barrier of the first warp group's threads; the next group's follows."""
comptime LANES = 32
"""Rows of tokens whose marks a warp looks at together."""


@always_inline
def wait_for_group(group: UInt32):
    """Waits for the warps of a consumer; earlier writes are visible to them afterwards."""
    wait_at[WARP_GROUP](UInt32(FIRST_GROUP) + group)


@always_inline
def any_marked[
    tokens: Int
](
    operands: Some[ProductOperands], first_token: UInt32, first_column: UInt32, result: Result
) -> Bool:
    """Returns a lane's share of whether a row of a warp group's tile is marked."""
    var found = False
    comptime for first in range(0, INSTRUCTION_ROWS, TILE_ROWS):
        found |= operands.mark_of_weights(min(first_column + UInt32(first), result.columns - 1))
    comptime for first in range(0, tokens, LANES):
        var row = first_token + UInt32(first) + lane_here()
        found |= operands.mark_of_token(min(row, result.rows - 1))
    return found


@always_inline
def store_marked[
    tokens: Int
](
    operands: Some[ProductOperands],
    a: Activations,
    w: Weights,
    result: Result,
    first_token: UInt32,
    first_column: UInt32,
):
    """Computes what is marked of a warp group's tile: its warps call it, and take octets in turns.

    A warp has other columns of the next octet: neither a row nor a column is one warp's.
    """
    comptime PARTS = UInt32(TILE_ROWS // WARP_ROWS * LANES // OCTET)
    # Broadcast, as warps are in kernels: branches that lanes might not take together cost kernels
    # the uniform registers of their loops.
    var group, warp = divmod(broadcast(UInt32(thread_idx.x) // UInt32(LANES)), UInt32(WARPS))
    # The sums that other warps stored before are not to overtake these.
    wait_for_group(group)
    var end = min(first_token + UInt32(tokens), result.rows)
    # Loaded once more: kernels have no registers for marks.
    for column in range(first_column, first_column + UInt32(INSTRUCTION_ROWS), UInt32(TILE_ROWS)):
        var of_weights = operands.mark_of_weights(min(column, result.columns - 1))
        var of_columns = vote[DType.uint32](of_weights)
        for row in range(first_token, end, UInt32(LANES)):
            var of_token = operands.mark_of_token(min(row + lane_here(), end - 1))
            var of_rows = vote[DType.uint32](of_token)
            for part in range(PARTS):
                var octet, half = divmod(part, UInt32(TILE_ROWS // WARP_ROWS))
                var columns = column // UInt32(WARP_ROWS) + half
                var marks = (of_rows >> (octet * UInt32(OCTET))) & 0xFF
                marks |= (of_columns >> (half * UInt32(WARP_ROWS))) & 0xFFFF
                if marks != 0 and (octet + columns) % UInt32(WARPS) == warp:
                    var first = row + octet * UInt32(OCTET)
                    operands.store_marked(
                        a, w, result, TokenOctet(first, 1, end), columns * UInt32(WARP_ROWS)
                    )
