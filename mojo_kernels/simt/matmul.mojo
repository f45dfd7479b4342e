"""C = A @ B.T with one warp for a row and a few columns: any shape, any layout, exact.

Lane l takes the chunks l, l + 32, ... of K, so that four lanes hold a block.
Products of two chunks are summed in float32, which is exact for codes, and
blocks in float64, where no scale overflows or vanishes. Other kernels call
`warp_sums` where their own arithmetic may leave the float32 range.
"""

from max.gpu import block_idx, thread_idx
from max.gpu.primitives.warp import sum as warp_sum
from std.memory import bitcast

from ..codec import decode_scale
from ..layouts import OperandLayout, OperandShape, RUN_BYTES, scale_blocks
from .codec import CHUNK, LANES_PER_BLOCK, decode_chunk
from .launch import DevicePointer
from .problem import Activations, FLOATS, Result

comptime WARPS = 4
"""Warps of a group."""
comptime COLUMNS = 8
"""Columns of a warp: an activation chunk is encoded once for all of them."""
comptime WARP_THREADS = 32
"""Threads that share a row; wider hardware warps split."""


@always_inline
def warp_sums[
    Layout: OperandLayout, aligned: Bool, num_columns: Int
](
    a: Activations,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    columns: Int,
    row: Int,
    first_column: Int,
    lane: Int,
) -> SIMD[DType.float32, num_columns]:
    """Returns C at `row` and some neighbouring columns, in every lane of the warp."""
    var shape = OperandShape(columns, a.k)
    var num_chunks = a.k // CHUNK
    var sums = SIMD[DType.float64, num_columns](0)
    for first in range(0, num_chunks, WARP_THREADS):
        # Lanes past the end repeat the last block, whole blocks at a time.
        var in_range = first + lane < num_chunks
        var chunk = first + lane
        if not in_range:
            chunk = num_chunks - LANES_PER_BLOCK + lane % LANES_PER_BLOCK
        var x, x_scale = a.chunk[aligned](row, chunk)
        if not in_range:
            continue
        var x_factor = decode_scale(x_scale.cast[DType.uint8]())

        comptime for i in range(num_columns):
            var column = min(first_column + i, columns - 1)
            var code_at = Layout.code_offset(column, chunk * RUN_BYTES, shape.row_bytes())
            var scale_at = Layout.scale_offset(
                column, chunk // LANES_PER_BLOCK, scale_blocks[Layout](shape)
            )
            var bytes = codes.unsafe_load[width=RUN_BYTES, alignment=1](code_at)
            var w = decode_chunk(bitcast[DType.uint32, 1](bytes))
            var factor = x_factor * decode_scale(scales[unsafe_offset=scale_at])
            if a.kind == FLOATS:
                var products = x.cast[DType.float64]() * w.cast[DType.float64]()
                sums[i] += products.reduce_add() * factor
            else:
                sums[i] += (x * w).reduce_add().cast[DType.float64]() * factor

    var result = SIMD[DType.float32, num_columns]()
    comptime for i in range(num_columns):
        result[i] = warp_sum(sums[i]).cast[DType.float32]()
    return result


def matmul_warps[
    Layout: OperandLayout, aligned: Bool
](
    x: DevicePointer[DType.uint8],
    x_scales: DevicePointer[DType.uint8],
    row_stride: Int64,
    kind: Int32,
    x_dtype: Int32,
    carry: UInt32,
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    rows: Int32,
    columns: Int32,
    k: Int32,
    bias: DevicePointer[DType.uint8],
    bias_dtype: Int32,
    output: DevicePointer[DType.uint8],
    out_dtype: Int32,
):
    """Computes one row and eight columns a warp."""
    var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
    var result = Result(output, out_dtype, bias, bias_dtype, Int(columns))
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var first_column = (Int(block_idx.x) * WARPS + warp) * COLUMNS
    var row = Int(block_idx.y) + Int(block_idx.z) * MAX_GRID_Y
    if first_column >= Int(columns) or row >= Int(rows):
        return

    var sums = warp_sums[Layout, aligned, COLUMNS](
        a, codes, scales, Int(columns), row, first_column, lane
    )

    var column = first_column + lane
    if lane < COLUMNS and column < Int(columns):
        var mine = Float32(0)
        comptime for i in range(COLUMNS):
            mine = sums[i] if lane == i else mine
        result.store[1, 1](row, column, SIMD[DType.float32, 1](mine))


comptime MAX_GRID_Y = 32768
"""Rows that one slice of the grid covers; hardware limits y, not x, to 16 bits."""
