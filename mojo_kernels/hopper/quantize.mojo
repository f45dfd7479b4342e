"""Quantize on Hopper: two bfloat16 numbers at once, as they lie in memory.

A thread takes a chunk of eight elements, four lanes a block, rows without gaps: sixteen
bytes in, four bytes of codes out. Everything else goes to the portable kernel.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.utils import StaticTuple

from ..codec import FloatBits, Rounding
from ..simt.codec import CHUNK
from ..simt.launch import DevicePointer, Queue, device_pointer
from ..simt.quantize import VECTOR_BYTES
from ..simt.quantize import quantize as quantize_portably
from .fragments import WORD_PAIRS
from .layout import K_LANES
from .tokens import encode_neighbours, scale_of_neighbours

comptime THREADS = 256
"""Threads of a group."""
comptime MAX_CHUNKS = 1 << 32
"""More chunks than this do not fit a thread's index."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def quantize_rows(
    x: DevicePointer[DType.uint32],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    num_chunks: UInt32,
    carry: UInt32,
):
    """Quantizes one chunk of contiguous bfloat16 numbers a thread."""
    # Lanes past the end repeat the last block, whole blocks at a time.
    var chunk = UInt32(block_idx.x) * UInt32(THREADS) + UInt32(thread_idx.x)
    if chunk >= num_chunks:
        chunk = num_chunks - UInt32(K_LANES) + chunk % UInt32(K_LANES)
    var neighbours = x.unsafe_load[width=WORD_PAIRS, alignment=VECTOR_BYTES](
        Int(chunk) * WORD_PAIRS
    )
    var scale = scale_of_neighbours(neighbours, carry)[0]
    codes[unsafe_offset=Int(chunk)] = encode_neighbours(neighbours, scale)
    if chunk % UInt32(K_LANES) == 0:
        scales[unsafe_offset=Int(chunk // UInt32(K_LANES))] = scale.cast[DType.uint8]()


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
    comptime if dtype == DType.bfloat16:
        if row_stride == k and x % VECTOR_BYTES == 0 and num_chunks < MAX_CHUNKS:
            queue.stream.enqueue_function(
                queue.context.compile_function[quantize_rows](),
                device_pointer[DType.uint32](x),
                device_pointer[DType.uint32](codes),
                device_pointer[DType.uint8](scales),
                UInt32(num_chunks),
                UInt32(rounding.carry[FloatBits[DType.float32].MANTISSA_BITS]()),
                grid_dim=ceildiv(num_chunks, THREADS),
                block_dim=THREADS,
            )
            return
    quantize_portably[dtype](queue, x, row_stride, rows, k, rounding, codes, scales)
