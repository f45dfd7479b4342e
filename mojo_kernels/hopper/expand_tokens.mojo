"""Activations as the bfloat16 numbers that a product of many rows reads.

One group a row: quantized as they are read, or decoded, each element exact in
bfloat16. A row that holds an element too large for bfloat16 is marked.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ..simt.codec import CHUNK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations
from .fragments import in_natural_order
from .shared_memory import load_word, shared_base, store_word
from .tokens import LANE_BYTES, load_token

comptime THREADS = 256
"""Threads of a group."""
comptime SHARED_BYTES = 16
"""Dynamic shared memory of a group: whether some lane found an overflow."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def expand_tokens(
    x: DevicePointer[DType.uint8],
    x_scales: DevicePointer[DType.uint8],
    row_stride: Int64,
    kind: Int32,
    x_dtype: Int32,
    carry: UInt32,
    k: UInt32,
    tokens: DevicePointer[DType.uint32],
    overflows: DevicePointer[DType.uint8],
):
    """Writes the bfloat16 numbers of one row, contiguous, and whether they all fit."""
    var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
    var row = UInt32(block_idx.x)
    var row_chunks = k // UInt32(CHUNK)
    var flag = shared_base()
    if thread_idx.x == 0:
        store_word(flag, 0)
    barrier()
    wait_on_dependent_grids()
    launch_dependent_grids()

    # Whole quads of lanes are in or out of range; those outside repeat the row's last block.
    var overflow = False
    for first in range(UInt32(0), row_chunks, UInt32(THREADS)):
        var chunk = first + UInt32(thread_idx.x)
        if chunk >= row_chunks:
            chunk = row_chunks - 4 + chunk % 4
        var loaded = load_token(a, row, chunk)
        overflow |= loaded.overflow
        var at = (Int(row) * Int(row_chunks) + Int(chunk)) * (CHUNK // 2)
        tokens.unsafe_store[alignment=LANE_BYTES](at, in_natural_order(loaded.pairs))
    if overflow:
        store_word(flag, 1)
    barrier()
    if thread_idx.x == 0:
        overflows[unsafe_offset = Int(row)] = load_word(flag).cast[DType.uint8]()
