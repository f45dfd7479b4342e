"""Quantize, dequantize and relayout: one thread a chunk of eight elements.

    thread        0     1     2     3      4     5   ...
    elements      0..7  8..15 ..    24..31 32..39
    block         0     0     0     0      1     1

Rows that follow each other without a gap are one long row: no division.
"""

from max.gpu import block_dim, block_idx, thread_idx
from std.math import ceildiv
from std.memory import bitcast

from ..codec import FloatBits, Rounding, round_to
from ..layouts import OperandLayout, OperandShape, PADDING_SCALE, RUN_BYTES, code_rows
from ..layouts import scale_blocks, scale_rows
from .codec import CHUNK, LANES_PER_BLOCK, decode_chunk, encode_chunk, f32_of_scale
from .codec import scale_of_block
from .launch import DevicePointer, Queue, device_pointer

comptime THREADS = 256
"""Threads of a group."""
comptime VECTOR_BYTES = 16
"""The widest access of a thread."""


@always_inline
def global_thread() -> Int:
    """Returns the index of this thread in the launch."""
    return Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)


@always_inline
def load_chunk[
    dtype: DType, aligned: Bool
](x: DevicePointer[dtype], offset: Int) -> SIMD[DType.float32, CHUNK]:
    """Loads eight neighbours as float32, which is exact."""
    comptime if aligned:
        return x.unsafe_load[width=CHUNK, alignment=VECTOR_BYTES](offset).cast[DType.float32]()
    else:
        var values = SIMD[DType.float32, CHUNK]()
        comptime for i in range(CHUNK):
            values[i] = x[unsafe_offset=offset + i].cast[DType.float32]()
        return values


def quantize_chunks[
    dtype: DType, aligned: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    num_chunks: Int64,
    chunks_per_row: Int64,
    row_stride: Int64,
    carry: UInt32,
):
    """Quantizes one chunk a thread; four lanes share a block and its scale."""
    # Whole blocks are in or out of range together; lanes outside repeat the last block's.
    var chunk = global_thread()
    var last_block = Int(num_chunks) - LANES_PER_BLOCK
    var in_range = chunk < Int(num_chunks)
    if not in_range:
        chunk = last_block + chunk % LANES_PER_BLOCK

    var offset = chunk * CHUNK
    if chunks_per_row != num_chunks:
        var row, column = divmod(chunk, Int(chunks_per_row))
        offset = row * Int(row_stride) + column * CHUNK
    var values = load_chunk[dtype, aligned](x, offset)

    var scale = scale_of_block(values, carry)
    if in_range:
        codes[unsafe_offset=chunk] = encode_chunk[dtype != DType.float32](values, scale)
        if chunk % LANES_PER_BLOCK == 0:
            scales[unsafe_offset=chunk // LANES_PER_BLOCK] = scale.cast[DType.uint8]()


def quantize[
    dtype: DType
](
    queue: Queue,
    x: Int,
    row_stride: Int,
    rows: Int,
    k: Int,
    rounding: Rounding,
    codes: Int,
    scales: Int,
) raises:
    """Quantizes [rows, k] floats at address `x` into a plain operand."""
    var num_chunks = rows * k // CHUNK
    var chunks_per_row = num_chunks if row_stride == k else k // CHUNK
    var vector = x % VECTOR_BYTES == 0 and (row_stride * size_of_dtype[dtype]()) % VECTOR_BYTES == 0
    comptime for aligned in [False, True]:
        if vector == aligned:
            comptime kernel = quantize_chunks[dtype, aligned]
            queue.stream.enqueue_function(
                queue.context.compile_function[kernel](),
                device_pointer[dtype](x),
                device_pointer[DType.uint32](codes),
                device_pointer[DType.uint8](scales),
                Int64(num_chunks),
                Int64(chunks_per_row),
                Int64(row_stride),
                UInt32(rounding.carry[FloatBits[DType.float32].MANTISSA_BITS]()),
                grid_dim=ceildiv(num_chunks, THREADS),
                block_dim=THREADS,
            )


@always_inline
def size_of_dtype[dtype: DType]() -> Int:
    """Returns the bytes of an element."""
    return 4 if dtype == DType.float32 else 2


def dequantize_chunks[
    Layout: OperandLayout, dtype: DType
](
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    output: DevicePointer[dtype],
    rows: Int64,
    k: Int64,
):
    """Decodes one chunk a thread; the result is contiguous."""
    var chunk = global_thread()
    var shape = OperandShape(Int(rows), Int(k))
    var row, column = divmod(chunk, shape.k // CHUNK)
    if row >= shape.rows:
        return
    var code_at = Layout.code_offset(row, column * RUN_BYTES, shape.row_bytes())
    var scale_at = Layout.scale_offset(row, column // LANES_PER_BLOCK, scale_blocks[Layout](shape))
    var packed = bitcast[DType.uint32, 1](
        codes.unsafe_load[width=RUN_BYTES, alignment=RUN_BYTES](code_at)
    )
    var scale = scales[unsafe_offset=scale_at].cast[DType.uint32]()
    var values = decode_chunk(packed) * f32_of_scale(scale)
    output.unsafe_store[alignment=VECTOR_BYTES](chunk * CHUNK, round_to[dtype](values))


def dequantize[
    Layout: OperandLayout, dtype: DType
](queue: Queue, codes: Int, scales: Int, rows: Int, k: Int, output: Int) raises:
    """Decodes an operand in any layout to contiguous [rows, k] floats."""
    comptime kernel = dequantize_chunks[Layout, dtype]
    queue.stream.enqueue_function(
        queue.context.compile_function[kernel](),
        device_pointer[DType.uint8](codes),
        device_pointer[DType.uint8](scales),
        device_pointer[dtype](output),
        Int64(rows),
        Int64(k),
        grid_dim=ceildiv(rows * k // CHUNK, THREADS),
        block_dim=THREADS,
    )


def relayout_runs[
    Source: OperandLayout, Target: OperandLayout
](
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    codes_out: DevicePointer[DType.uint8],
    scales_out: DevicePointer[DType.uint8],
    rows: Int64,
    k: Int64,
):
    """Moves one run of codes and one scale a thread, and writes the padding."""
    var shape = OperandShape(Int(rows), Int(k))
    var row_bytes = shape.row_bytes()
    var row, run = divmod(global_thread(), row_bytes // RUN_BYTES)
    if row < code_rows[Target](shape):
        var bytes = SIMD[DType.uint8, RUN_BYTES](0)
        if row < shape.rows:
            bytes = codes.unsafe_load[width=RUN_BYTES, alignment=RUN_BYTES](
                Source.code_offset(row, run * RUN_BYTES, row_bytes)
            )
        codes_out.unsafe_store[alignment=RUN_BYTES](
            Target.code_offset(row, run * RUN_BYTES, row_bytes), bytes
        )

    var target_blocks = scale_blocks[Target](shape)
    var scale_row, block = divmod(global_thread(), target_blocks)
    if scale_row < scale_rows[Target](shape):
        var scale = PADDING_SCALE
        if scale_row < shape.rows and block < shape.k_blocks():
            var source_blocks = scale_blocks[Source](shape)
            scale = scales[unsafe_offset=Source.scale_offset(scale_row, block, source_blocks)]
        scales_out[unsafe_offset=Target.scale_offset(scale_row, block, target_blocks)] = scale


def relayout[
    Source: OperandLayout, Target: OperandLayout
](queue: Queue, codes: Int, scales: Int, codes_out: Int, scales_out: Int, rows: Int, k: Int) raises:
    """Moves an operand to another layout and writes the target's padding."""
    comptime kernel = relayout_runs[Source, Target]
    var shape = OperandShape(rows, k)
    var num_runs = code_rows[Target](shape) * (shape.row_bytes() // RUN_BYTES)
    var num_scales = scale_rows[Target](shape) * scale_blocks[Target](shape)
    queue.stream.enqueue_function(
        queue.context.compile_function[kernel](),
        device_pointer[DType.uint8](codes),
        device_pointer[DType.uint8](scales),
        device_pointer[DType.uint8](codes_out),
        device_pointer[DType.uint8](scales_out),
        Int64(rows),
        Int64(k),
        grid_dim=ceildiv(max(num_runs, num_scales), THREADS),
        block_dim=THREADS,
    )
