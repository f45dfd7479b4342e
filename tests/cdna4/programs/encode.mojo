"""Emits probes that encode one block or two in registers: `<input type>_<rounding>_<blocks>`.

The difference between the two is what a block costs.
"""

from emit import emit
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from std.utils import StaticTuple

from mojo_kernels.cdna4.encode import encode_block
from mojo_kernels.cdna4.mma import LANES
from mojo_kernels.codec import Rounding
from mojo_kernels.formats import BLOCK


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LANES)))
def encode_blocks[
    dtype: DType, rounding: Rounding, blocks: Int
](
    x: ImmPointer[Scalar[dtype], ImmutAnyOrigin],
    codes: MutPointer[UInt32, MutAnyOrigin],
    scales: MutPointer[UInt32, MutAnyOrigin],
):
    """Encodes `blocks` blocks a lane."""
    var lane = Int(thread_idx.x)
    comptime for i in range(blocks):
        var floats = x.unsafe_load[width=BLOCK, alignment=16]((lane * blocks + i) * BLOCK)
        var encoded = encode_block[dtype, rounding](floats)
        codes.unsafe_store[alignment=16]((lane * blocks + i) * 4, encoded.codes)
        scales.unsafe_store(lane * blocks + i, encoded.scale)


def main() raises:
    """Emits them."""
    comptime for code in range(Rounding.COUNT):
        comptime rounding = Rounding(code)
        comptime name = Rounding.NAMES[code]
        comptime for dtype in [DType.bfloat16, DType.float16, DType.float32]:
            comptime for blocks in range(1, 3):
                emit[encode_blocks[dtype, rounding, blocks]](String(dtype, "_", name, "_", blocks))
