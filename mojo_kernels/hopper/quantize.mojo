"""Quantize on Hopper: two bfloat16 numbers at once, as they lie in memory.

A thread takes a chunk of eight elements, four lanes a block, rows without gaps: sixteen
bytes in, four bytes of codes out. Everything else goes to the portable kernel.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.utils import StaticTuple

from ..calls import QuantizeCall
from ..launch.grid import Grid
from ..launch.queue import DevicePointer, Queue, device_pointer
from ..problem import may_be
from ..simt.arguments import carry_of
from ..simt.host import BFLOAT16, CHUNK, VECTOR_BYTES
from ..simt.views import flat_of, rows_of
from .instructions.packed import WORD_PAIRS
from .layout import K_LANES, OPERANDS
from .codec import encode_neighbours, scale_of_neighbours

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
    var neighbours = rows_of(x, WORD_PAIRS).load[width=WORD_PAIRS, alignment=VECTOR_BYTES](
        Coord(Int(chunk), 0)
    )
    var scale = scale_of_neighbours(neighbours, carry)[0]
    flat_of(codes)[Int(chunk)] = encode_neighbours(neighbours, scale)
    if chunk % UInt32(K_LANES) == 0:
        flat_of(scales)[Int(chunk // UInt32(K_LANES))] = scale.cast[DType.uint8]()


def may_support(known_dtype: Int, known_format: Int) -> Bool:
    """Says whether calls of a type and a format, or of `ANY`, may be for the kernel."""
    return may_be(known_format, OPERANDS.code()) and may_be(known_dtype, Int(BFLOAT16))


def supports(call: QuantizeCall) -> Bool:
    """Says whether the kernel takes a call: contiguous bfloat16 rows to MXFP4."""
    return (
        call.format == OPERANDS.code()
        and Int32(call.dtype) == BFLOAT16
        and call.row_stride == call.k
        and call.values % VECTOR_BYTES == 0
        and call.rows * call.k // CHUNK < MAX_CHUNKS
    )


def quantize(call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Launches the kernel for a call that it supports."""
    var num_chunks = call.rows * call.k // CHUNK
    queue.launch[quantize_rows](
        Grid(ceildiv(num_chunks, THREADS), threads=THREADS),
        device_pointer[DType.uint32](call.values),
        device_pointer[DType.uint32](call.codes),
        device_pointer[DType.uint8](call.scales),
        UInt32(num_chunks),
        carry_of(call.format, call.rounding),
    )
