"""Activations as the stages of a product of many rows want them: one copy a stage.

One group a row: kept, quantized as they are read, or decoded, each element exact in
bfloat16. A row that holds an element too large for bfloat16 is marked. A stage is a
tile of tokens x 64 steps of K, rows of 128 bytes, stages of a tile one after another;
sixteen-byte part p of row r lies at part p ^ (r % 8), and past the end of K are zeros.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ..simt.codec import CHUNK
from ..simt.launch import DevicePointer
from ..simt.problem import Activations
from .fragments import Pairs, WORD_PAIRS, in_natural_order
from .layout import K_LANES
from .shared_memory import load_word, shared_base, store_word
from .tokens import LANE_BYTES, load_token

comptime THREADS = 256
"""Threads of a group."""
comptime STEP = 64
"""Steps of K in a stage."""
comptime ROW_BYTES = 2 * STEP
"""Bytes of a row in a stage."""
comptime PARTS = ROW_BYTES // LANE_BYTES
"""Parts of a row that are swizzled as one."""
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
    token_tile: UInt32,
    tokens: DevicePointer[DType.uint32],
    overflows: DevicePointer[DType.uint8],
):
    """Writes the bfloat16 numbers of one row, and whether they all fit."""
    var a = Activations(x, x_scales, Int(row_stride), kind, x_dtype, carry, Int(k))
    var row = UInt32(block_idx.x)
    var row_chunks = k // UInt32(CHUNK)
    var num_steps = (k + UInt32(STEP - 1)) // UInt32(STEP)
    var row_in_tile = row % token_tile
    var first_line = Int(row // token_tile) * Int(num_steps) * Int(token_tile) + Int(row_in_tile)
    var flag = shared_base()
    if thread_idx.x == 0:
        store_word(flag, 0)
    barrier()
    wait_on_dependent_grids()
    launch_dependent_grids()

    # Whole quads of lanes are in or out of range; those outside repeat a block.
    var overflow = False
    for first in range(UInt32(0), num_steps * UInt32(PARTS), UInt32(THREADS)):
        var chunk = first + UInt32(thread_idx.x)
        var step = chunk // UInt32(PARTS)
        var part = (chunk ^ row_in_tile) % UInt32(PARTS)
        var quad_lane = chunk % UInt32(K_LANES)
        var loaded = load_token(a, row, min(chunk, row_chunks - UInt32(K_LANES) + quad_lane))
        overflow |= loaded.overflow
        var line = first_line + Int(step) * Int(token_tile)
        if step < num_steps:
            tokens.unsafe_store[alignment=LANE_BYTES](
                line * (ROW_BYTES // 4) + Int(part) * WORD_PAIRS,
                in_natural_order(loaded.pairs) if chunk < row_chunks else Pairs(0),
            )
    if overflow:
        store_word(flag, 1)
    barrier()
    if thread_idx.x == 0:
        overflows[unsafe_offset=Int(row)] = load_word(flag).cast[DType.uint8]()
