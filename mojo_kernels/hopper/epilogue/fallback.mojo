"""The fallback: elements of C that bfloat16 or FP8 operands, or float32 sums, cannot give, in float64.

Such operands are found by their scales: under the two largest, the codes 4 and 6 overflow. Rows of A,
and rows of weights, are marked where they are prepared; elements that they lead to are computed once
more, from what the caller gave.

    compute_exactly    one element
    Fallback.store     columns of a row of a group, or hidden numbers
    compute_marked     what is marked of an octet of rows and sixteen columns
    store_marked       what is marked of a warp group's tile, of RS on FP8

All warps of a warp group find the same marks, so that they take the same way, and share the work.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, vote
from max.gpu.sync import syncwarp

from ...layouts import OperandLayout, PreshuffledCuda
from ...numbers.gates import Gate
from ...problem import LeftKind
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import ANY_BITS, LANES_PER_BLOCK
from ...simt.matmul import warp_sums, warp_sums_at
from ..decode.fp8 import group_numbers
from ..gemm_operands import RsOperands
from ..instructions.warp import any_lane, keep_here, lane_here
from ..layout import OPERANDS, TILE_ROWS
from ..instructions.named_barriers import wait_for_group
from ..product import Gating, RsProduct
from ..scheduler import WorkTile
from ..shapes import INSTRUCTION_ROWS, OCTET, TILES, WARPS, WARP_ROWS

comptime LANES = 32
"""Rows of A whose marks a warp looks at together."""


@fieldwise_init
struct RowOctet(TrivialRegisterPassable):
    """Eight rows of A."""

    var first: UInt32
    var end: UInt32
    """Rows from here on do not count."""

    @always_inline
    def row(self, i: UInt32) -> UInt32:
        """Returns one of the rows."""
        return self.first + i


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
    octet: RowOctet,
    first_column: UInt32,
    of_rows: UInt32,
    of_columns: UInt32,
):
    """Computes what is marked of some rows and sixteen columns, a bit each; a warp calls it."""
    for i in range(UInt32(OCTET)):
        var row = octet.row(i)
        for j in range(UInt32(WARP_ROWS)):
            if row < octet.end and (of_rows >> i | of_columns >> j) % 2 == 1:
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


@fieldwise_init
struct Fallback[is_part: Bool = False](TrivialRegisterPassable):
    """The operands of a tile as they came: floats, and weights of any format."""

    var a: Activations
    """All activations."""
    var w: Weights
    """The weights of the tile."""
    var first_block: UInt32
    """The first block of a part of K."""
    var num_blocks: UInt32
    """Blocks of the part."""

    @always_inline
    def sums[
        count: Int
    ](self, row: Int, columns: SIMD[DType.uint32, count], lane: UInt32) -> SIMD[
        DType.float32, count
    ]:
        """Returns sums of a row, in all lanes of a warp."""
        # Floats: what reads codes would be code and registers, which callers keep free.
        var a = self.a
        a.kind = Int32(LeftKind.KEPT.code if a.is_kept() else LeftKind.QUANTIZED.code)
        return warp_sums_at[PreshuffledCuda, ANY_BITS, False, count, Self.is_part](
            a, self.w, row, columns.cast[DType.int32](), Int(lane),
            Int(self.first_block) * LANES_PER_BLOCK, Int(self.num_blocks) * LANES_PER_BLOCK,
        )  # fmt: skip

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
                var both = self.sums[2](row, {of_gate, of_up}, lane)
                var gated, up = both[0], both[1]
                if result.has_bias():
                    gated += result.bias_of[1](Int(of_gate))[0]
                    up += result.bias_of[1](Int(of_up))[0]
                var number = gate.of_usual(
                    SIMD[DType.float32, 1](gated), SIMD[DType.float32, 1](up)
                )
                if lane == 0:
                    result.elements().store[1, 1](Int(result_row), Int(column), number)
            else:
                var sum = self.sums[1](row, UInt32(column), lane)
                if lane == 0:
                    result.store[1, 1](Int(result_row), Int(column), sum)


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
            found.of_rows |= operands.mark_of_row(tile.place + row)
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
    var exactly = Fallback(a, product.weights(tile.group), 0, 0)
    var of_columns = marked_columns[GATING](
        {vote[DType.uint32](marks.of_weights[0]), vote[DType.uint32](marks.of_weights[1])}
    )
    for row in range(in_group, tile.rows, UInt32(WARPS)):
        var all = any_lane(operands.mark_of_row(tile.place + UInt32(row)))
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
            var of_row = operands.mark_of_row(min(row + lane_here(), end - 1))
            var of_rows = vote[DType.uint32](of_row)
            for part in range(PARTS):
                var octet, half = divmod(part, UInt32(TILE_ROWS // WARP_ROWS))
                var columns = column // UInt32(WARP_ROWS) + half
                var here = (of_rows >> (octet * UInt32(OCTET))) & 0xFF
                var there = (of_columns >> (half * UInt32(WARP_ROWS))) & 0xFFFF
                if here | there != 0 and (octet + columns) % UInt32(WARPS) == warp:
                    var first = row + octet * UInt32(OCTET)
                    operands.store_marked(
                        a, w, result, first, end, columns * UInt32(WARP_ROWS), here, there
                    )
