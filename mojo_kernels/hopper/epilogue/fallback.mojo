"""The fallback: elements of C that FP8 operands or float32 sums cannot give are computed once more, exactly.

Rows of A, and rows of weights, are marked where they are prepared. All warps of a warp group find the
same marks, so that they take the same way, and share the work.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, vote

from ...simt.arguments import Activations, Result, Weights
from ..decode.fp8 import group_numbers
from ..exact import TokenOctet
from .exact import Fallback
from ..instructions.warp import any_lane, lane_here
from ..layout import TILE_ROWS
from ..gemm_operands import RsOperands
from ..pipeline.named_barriers import wait_for_group
from ..product import Gating, RsProduct
from ..scheduler import WorkTile
from ..shapes import INSTRUCTION_ROWS, OCTET, TILES, WARPS, WARP_ROWS

comptime LANES = 32
"""Rows of A whose marks a warp looks at together."""


@fieldwise_init
struct TileMarks(TrivialRegisterPassable):
    """A lane's share of the marks of a warp group's tile."""

    var of_rows: Bool
    """Whether one of the lane's rows of A is marked."""
    var of_weights: SIMD[DType.bool, 2]
    """The lane's rows of both tiles of weight rows."""

    @staticmethod
    @always_inline
    def load[
        Product: RsProduct, //, width: Int
    ](
        operands: Some[RsOperands], product: Product, tile: WorkTile, first: UInt32, group: UInt32
    ) -> Self:
        """Loads those of a tile of so many rows, of weights that begin with a row."""
        var found = Self(False, SIMD[DType.bool, 2](fill=False))
        comptime for i in range(width // LANES):
            var row = min(UInt32(LANES * i) + lane_here(), tile.rows - 1)
            found.of_rows |= operands.mark_of_token(tile.place + row)
        var weights = product.weight_tiles(tile.column)
        comptime for i in range(2):
            var which = UInt32(i * TILES // 2) + group
            comptime if Product.GATING != Gating.HALVES:
                which = group * UInt32(TILES // 2) + UInt32(i)
            var row = (weights.first + weights.behind(which)) * UInt32(TILE_ROWS)
            found.of_weights[i] = operands.mark_of_weights(first + row)
        return found

    @always_inline
    def any(self) -> Bool:
        """Says in all lanes whether there are any."""
        return any_lane(self.of_rows or self.of_weights.reduce_or())


@always_inline
def store_marked[
    Product: RsProduct, //
](
    operands: Some[RsOperands],
    a: Activations,
    product: Product,
    marks: TileMarks,
    tile: WorkTile,
    result: Result,
    warp: UInt32,
):
    """Computes what is marked of a warp group's tile; its warps call it."""
    comptime if Product.Scheduler.IS_LIST:
        store_marked_elements(operands, a, product, marks, tile, result, warp)
    else:
        var column = tile.column + warp // UInt32(WARPS) * UInt32(INSTRUCTION_ROWS)
        store_marked_octets(operands, a, product.weights(0), result, tile, column)


@always_inline
def store_marked_elements[
    Product: RsProduct, //
](
    operands: Some[RsOperands],
    a: Activations,
    product: Product,
    marks: TileMarks,
    tile: WorkTile,
    result: Result,
    warp: UInt32,
):
    """Does so element by element, which may be gated; warps take rows in turns."""
    comptime GATING = Product.GATING
    comptime COUNT = group_numbers[GATING]
    var group, in_group = divmod(warp, UInt32(WARPS))
    # The sums that other warps stored before are not to overtake these.
    wait_for_group(group)
    var begin = tile.column + group * UInt32(COUNT)
    var exactly = Fallback(a, product.weights(tile.group), product.num_weights())
    var of_columns = marked_columns[GATING](
        {vote[DType.uint32](marks.of_weights[0]), vote[DType.uint32](marks.of_weights[1])}
    )
    for row in range(in_group, tile.rows, UInt32(WARPS)):
        var all = any_lane(operands.mark_of_token(tile.place + UInt32(row)))
        for column in range(UInt32(COUNT)):
            var of_tile = of_columns[0] if column < UInt32(TILE_ROWS) else of_columns[1]
            var is_there = begin + column < result.columns
            if is_there and (all or of_tile >> (column % UInt32(TILE_ROWS)) & 1 != 0):
                exactly.store[GATING != Gating.NONE](
                    product.source(tile, UInt32(row)),
                    product.half(),
                    product.gate(),
                    result,
                    UInt32(row),
                    begin + column,
                    begin + column + 1,
                )


@always_inline
def marked_columns[gating: Gating](of_rows: SIMD[DType.uint32, 2]) -> type_of(of_rows):
    """Returns a bit for each of a warp group's numbers, of bits of the rows of two tiles."""
    comptime if gating == Gating.NONE:
        return of_rows
    elif gating == Gating.HALVES:
        return {of_rows[0] | of_rows[1], 0}
    else:
        var found = UInt32(0)
        comptime for tile in range(2):
            for pair in range(UInt32(TILE_ROWS // 2)):
                if of_rows[tile] >> (2 * pair) & 3 != 0:
                    found |= UInt32(1) << (UInt32(tile * TILE_ROWS // 2) + pair)
        return {found, 0}


@always_inline
def store_marked_octets(
    operands: Some[RsOperands],
    a: Activations,
    w: Weights,
    result: Result,
    tile: WorkTile,
    first_column: UInt32,
):
    """Does so in octets of rows of A and sixteen columns, which warps take in turns.

    A warp has other columns of the next octet: neither a row nor a column is one warp's.
    """
    comptime PARTS = UInt32(TILE_ROWS // WARP_ROWS * LANES // OCTET)
    # Broadcast, as warps are in kernels: branches that lanes might not take together cost kernels
    # the uniform registers of their loops.
    var group, warp = divmod(broadcast(UInt32(thread_idx.x) // UInt32(LANES)), UInt32(WARPS))
    # The sums that other warps stored before are not to overtake these.
    wait_for_group(group)
    var end = tile.row + tile.rows
    # Loaded once more: kernels have no registers for marks.
    for column in range(first_column, first_column + UInt32(INSTRUCTION_ROWS), UInt32(TILE_ROWS)):
        var of_weights = operands.mark_of_weights(min(column, result.columns - 1))
        var of_columns = vote[DType.uint32](of_weights)
        for row in range(tile.row, end, UInt32(LANES)):
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
