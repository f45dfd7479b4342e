"""The fallback of E5M2: elements of C whose row of A or of B shares no exponent, block by block.

A warp computes eight rows of A by sixteen columns. Two instructions of tensor cores add up a block,
exactly: its bytes, each half of a float16 number, are numbers of one power of two. The sums times
both blocks' factors are added up in float64, where no scale overflows or vanishes.

    lane       rows of B      row of A of its operand    rows of A of its sums
    4 r + p    r, r + 8       r                          2 p, 2 p + 1

A is read as it was prepared: by rows that share an exponent, by blocks where they have their own.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_idx
from std.memory import bitcast

from ...numbers.scales import E8M0_NAN
from ...simt.arguments import Result, Weights
from ...simt.instructions import multiply_add
from ...simt.views import flat_of
from ..epilogue.fallback import RowOctet
from ..instructions.packed import pick_bytes
from ..instructions.warp import any_lane, lane_here
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from ..shapes import BYTE_STEP_BLOCKS as STEP_BLOCKS, OCTET
from .codes import E5M2Table, EXPONENT_OF_ONE, NO_EXPONENT
from .exponents import SharedExponents
from ..gemm_operands import StagedRows
from .stages import Order

comptime PARTS = 2
"""Parts of a block in a stage: a lane has a word of each."""
comptime ROWS = 2
"""Rows of B of a lane, and rows of A of its sums."""
comptime SUMS = 4
"""Sums of a lane."""


@no_inline
def store_fallback[
    order: Order
](
    left: StagedRows,
    exponents: SharedExponents,
    k: UInt32,
    w: Weights,
    result: Result,
    octet: RowOctet,
    first_column: UInt32,
):
    """Stores those of some rows and sixteen columns; a warp calls it.

    `left` and `exponents` are as `prepare` leaves them.
    """
    if first_column >= result.columns:
        return
    var row_lane, k_lane = divmod(lane_here(), UInt32(K_LANES))
    var a_misses = SIMD[DType.bool, ROWS](fill=False)
    var weight_misses = SIMD[DType.bool, ROWS](fill=False)
    comptime for i in range(ROWS):
        var row = min(octet.row(2 * k_lane + UInt32(i)), octet.end - 1)
        a_misses[i] = exponents.of_a()[Int(row)] == NO_EXPONENT
        var column = min(first_column + row_lane + UInt32(OCTET * i), result.columns - 1)
        weight_misses[i] = exponents.of_b()[Int(column)] == NO_EXPONENT
    if not any_lane(a_misses.reduce_or() or weight_misses.reduce_or()):
        return

    var num_blocks = k // UInt32(BLOCK)
    var a_row = min(octet.row(row_lane), octet.end - 1)
    var a_exponent = exponents.of_a()[Int(a_row)].cast[DType.uint32]()
    # A lane's two rows in the tile of 32, of which it has four.
    var tile, in_tile = divmod(first_column, UInt32(TILE_ROWS))
    var first_row = in_tile // UInt32(ROW_LANES)
    var tile_blocks = Int(tile * num_blocks)
    var codes = w.codes.unsafe_offset(tile_blocks * TILE_BYTES).unsafe_bitcast[UInt32]()
    codes = codes.unsafe_offset(Int(lane_here() * UInt32(ROWS_PER_LANE) + first_row))
    var scales = w.scales.unsafe_offset(tile_blocks * TILE_ROWS).unsafe_bitcast[UInt32]()
    scales = scales.unsafe_offset(Int(row_lane))
    var sums = SIMD[DType.float64, SUMS](0)
    for step in range(left.num_steps):
        var words = Array[SIMD[DType.uint32, ROWS], STEP_BLOCKS](uninitialized=True)
        var a_bytes = Array[SIMD[DType.uint32, PARTS], STEP_BLOCKS](uninitialized=True)
        var row_scales = SIMD[DType.uint32, STEP_BLOCKS]()
        var block_exponents = SIMD[DType.uint32, STEP_BLOCKS](a_exponent)
        comptime for i in range(STEP_BLOCKS):
            # The last block stands in for those past the end, where rows of A are zeros.
            var block = Int(min(step * UInt32(STEP_BLOCKS) + UInt32(i), num_blocks - 1))
            words[i] = flat_of(codes.unsafe_offset(block * (TILE_BYTES // 4))).load[
                width=ROWS, alignment=4 * ROWS
            ](Coord(0))
            row_scales[i] = scales[unsafe_offset=block * ROW_LANES] >> (8 * first_row)
            var first_part, word = order.place_of(UInt32(i), k_lane)
            comptime for part in range(PARTS):
                var at = left.part(a_row, step, first_part + UInt32(part)).unsafe_bitcast[UInt32]()
                a_bytes[i][part] = at[unsafe_offset=Int(word)]
            if a_exponent == NO_EXPONENT.cast[DType.uint32]():
                block_exponents[i] = exponents.of_blocks(k)[Int(a_row), block].cast[DType.uint32]()
        comptime for i in range(STEP_BLOCKS):
            var of_block = sums_of_block(words[i], a_bytes[i])
            var of_rows = SIMD[DType.float64, ROWS]()
            var of_a = SIMD[DType.float64, ROWS]()
            comptime for j in range(ROWS):
                of_rows[j] = factor_under((row_scales[i] >> UInt32(8 * j)) & 0xFF)
                var lane = UInt32(K_LANES) * (2 * k_lane + UInt32(j))
                of_a[j] = factor_under(shuffle_idx(block_exponents[i], lane))
            comptime for at in range(SUMS):
                var factor = of_rows[at // ROWS] * of_a[at % ROWS]
                sums[at] += of_block[at].cast[DType.float64]() * factor

    comptime for row in range(ROWS):
        comptime for j in range(ROWS):
            if a_misses[j] or weight_misses[row]:
                var of_row = octet.row(2 * k_lane + UInt32(j))
                var column = first_column + row_lane + UInt32(OCTET * row)
                if of_row < octet.end and column < result.columns:
                    result.store[1, 1](
                        Int(of_row),
                        Int(column),
                        SIMD[DType.float32, 1](sums[ROWS * row + j].cast[DType.float32]()),
                    )


@always_inline
def sums_of_block(
    weights: SIMD[DType.uint32, ROWS], a_row: SIMD[DType.uint32, PARTS]
) -> SIMD[DType.float32, SUMS]:
    """Returns a lane's sums over a block: of codes of two weight rows, of bytes of a row of A."""
    comptime ANY = UInt32(EXPONENT_OF_ONE)
    # Each block has its own exponent: its scale.
    var first = E5M2Table.under(ANY).bytes(weights[0], ANY)
    var second = E5M2Table.under(ANY).bytes(weights[1], ANY)
    var sums = SIMD[DType.float32, SUMS](0)
    comptime for part in range(PARTS):
        var upper, lower = halves_of(first[part]), halves_of(second[part])
        sums = multiply_add["f16"](
            {upper[0], lower[0], upper[1], lower[1]}, halves_of(a_row[part]), sums
        )
    return sums


@always_inline
def halves_of(bytes: UInt32) -> SIMD[DType.uint32, 2]:
    """Returns four E5M2 numbers as float16 numbers: a byte is the upper half of one."""
    return {pick_bytes(bytes, 0, UInt32(0x1404)), pick_bytes(bytes, 0, UInt32(0x3424))}


@always_inline
def factor_under(exponent: UInt32) -> Float64:
    """Returns the power of two that numbers under an exponent have as factor, NaN for NaN."""
    comptime F64_BIAS = 1023
    comptime UPPER_MANTISSA_BITS = 20
    comptime NAN = UInt32(0x7FF80000)
    var upper = (exponent + UInt32(F64_BIAS - EXPONENT_OF_ONE)) << UInt32(UPPER_MANTISSA_BITS)
    upper = NAN if exponent == UInt32(E8M0_NAN) else upper
    return bitcast[DType.float64, 1](SIMD[DType.uint32, 2](0, upper))[0]
