"""Probes of what a lane computes in registers:

    <input type>_<rounding>_<blocks>    encodes one block or two; the difference is what one costs;
                                        every rule of bfloat16, and one of every type
    one_nan                             gives all NaNs one pattern
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from std.os import abort
from std.python import PythonObject
from std.utils import StaticTuple

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, Listed, Visitor
from mojo_kernels.cdna4.chip import BLOCK, LANES
from mojo_kernels.cdna4.streaming.split_k import PART, with_one_nan
from mojo_kernels.cdna4.operands.encode import encode_block
from mojo_kernels.cdna4.operands.memory import Input, Output, input, output
from mojo_kernels.cdna4.types import A, CODES, SCALES
from mojo_kernels.launch.queue import Queue
from mojo_kernels.numbers.formats import Format
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.launch.grid import Grid


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LANES)))
def encode_blocks[
    dtype: DType, rounding: Rounding, blocks: Int
](x: Input[dtype], codes: Output[DType.uint32], scales: Output[DType.uint32],):
    """Encodes `blocks` blocks a lane."""
    var lane = Int(thread_idx.x)
    comptime for i in range(blocks):
        var floats = x.unsafe_load[width=BLOCK, alignment=16]((lane * blocks + i) * BLOCK)
        var encoded = encode_block[Format.MXFP4, dtype, rounding](floats)
        codes.unsafe_store[alignment=16]((lane * blocks + i) * 4, encoded.codes)
        scales.unsafe_store(lane * blocks + i, encoded.scale)


struct Probe[dtype: DType, rounding: Rounding, blocks: Int](Listed):
    """A probe for one wave of blocks, whatever the shape."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        return True

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        queue.launch[encode_blocks[Self.dtype, Self.rounding, Self.blocks]](
            Grid(1, threads=LANES),
            input[Self.dtype](A),
            output[DType.uint32](CODES),
            output[DType.uint32](SCALES),
        )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LANES)))
def unify_nans(x: Input[DType.float32], sums: Output[DType.float32]):
    """Adds the halves of x, as sums are added before they are handed over, and unifies NaNs."""
    var place = Int(thread_idx.x) * PART
    var first = x.unsafe_load[width=PART, alignment=8](place)
    var second = x.unsafe_load[width=PART, alignment=8](LANES * PART + place)
    sums.unsafe_store[alignment=8](place, with_one_nan(first + second))


struct OneNan(Listed):
    """A probe for one wave of pairs of sums."""

    @staticmethod
    def supports(m: Int, n: Int, k: Int) -> Bool:
        return True

    @staticmethod
    def launch[Q: Queue](m: Int, n: Int, k: Int, mut queue: Q) raises:
        queue.launch[unify_nans](
            Grid(1, threads=LANES), input[DType.float32](A), output[DType.float32](CODES)
        )


struct Encode(Catalogue):
    """One block and two; and NaNs."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for code in range(Rounding.COUNT):
            comptime rule = Rounding.NAMES[code]
            comptime for dtype in [DType.bfloat16, DType.float16, DType.float32]:
                comptime if dtype == DType.bfloat16 or Rounding(code) == Rounding.EVEN:
                    comptime for blocks in range(1, 3):
                        visitor.kernel[Probe[dtype, Rounding(code), blocks]](
                            String(dtype, "_", rule, "_", blocks)
                        )
        visitor.kernel[OneNan]("one_nan")


@export
def PyInit_encode() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Encode]("encode")
    except error:
        abort(String("cannot create encode: ", error))
