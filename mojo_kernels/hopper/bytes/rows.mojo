"""Tokens as stages of bytes, with their factors: encoded here, or as they come.

A group takes a row; a thread takes chunks of eight elements. Sixteen neighbours share the factor
of a stage, or four that of an MX block. What lies past the end of K is zero.

Codes lie in their order. For weights of four bits a chunk's first word goes to the first part of
its block and the second word to the second one, as weights become operands in registers.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Grid, Queue
from ...numbers.elements import Element
from ...numbers.formats import block_of, has_float_scales
from ...numbers.rounding import float_scale_from_amax
from ...problem import Problem
from ...simt.arguments import Activations
from ...simt.codec import CHUNK, Chunk, Codes
from ...simt.codec import amax_of_lanes, encode_chunk, encode_over, f32_of_scale
from ...simt.codec import magnitude_of_chunk, pack, scale_of_block, unpack
from ...simt.views import flat_of, rows_of
from ..instructions.shared_memory import load_word, shared_base, store_word
from ..instructions.warp import keep_branch
from ..instructions.wgmma import FP8_K, ROW_BYTES
from .stages import MX_SETS, Scaling, TokenStages

comptime THREADS = 256
"""Threads of a group."""
comptime WARPS = THREADS // 32
"""Warps of a group."""
comptime ELEMENT = Element.E4M3
"""What tokens are encoded as."""
comptime STAGE_CHUNKS = ROW_BYTES // CHUNK
"""Chunks of a token in a stage."""
comptime PART_CHUNKS = 2
"""Chunks of a part, which is swizzled as one."""
comptime BLOCK_CHUNKS = FP8_K // CHUNK
"""Chunks of a block of 32."""
comptime CHUNK_WORDS = CHUNK // 4
"""Words of a chunk's codes."""
comptime Words = SIMD[DType.uint32, CHUNK_WORDS]
"""The codes of a chunk."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def prepare_bytes(a: Activations, stages: TokenStages):
    """Writes the codes and the factors of a row."""
    wait_on_dependent_grids()
    launch_dependent_grids()
    if a.is_encoded():
        copy_row(a, stages, UInt32(block_idx.x))
    else:
        keep_branch()
        encode_row(a, stages, UInt32(block_idx.x))


@always_inline
def copy_row(a: Activations, stages: TokenStages, row: UInt32):
    """Copies codes and scales."""
    var thread = UInt32(thread_idx.x)
    var row_chunks = UInt32(a.k // CHUNK)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    for chunk in range(thread, stages.num_steps * UInt32(STAGE_CHUNKS), UInt32(THREADS)):
        var words = Words(0)
        if chunk < row_chunks:
            words = codes.load[width=CHUNK_WORDS, alignment=CHUNK](
                Coord(Int(row), Int(chunk) * CHUNK_WORDS)
            )
        store_chunk(stages, row, chunk, words)
    for i in range(thread, stages.num_steps * stages.sets, UInt32(THREADS)):
        var step, set = divmod(i, stages.sets)
        flat_of(stages.factor(row, step, set))[0] = stored_factor(a, stages, row, i)


@always_inline
def stored_factor(a: Activations, stages: TokenStages, row: UInt32, index: UInt32) -> Float32:
    """Returns the scale of a row's part that has a factor, as a float; one past the end of K."""
    if stages.sets == UInt32(MX_SETS):
        var num_blocks = UInt32(a.k // FP8_K)
        if index >= num_blocks:
            return 1
        var scales = rows_of(a.scales, Int(num_blocks))
        return f32_of_scale(scales[Int(row), Int(index)].cast[DType.uint32]())
    var at = block_of(Int(a.format)).index(Int(row), Int(index) * ROW_BYTES, a.k)
    return flat_of(a.scales.unsafe_bitcast[Float32]())[at]


@always_inline
def encode_row(a: Activations, stages: TokenStages, row: UInt32):
    """Encodes floats."""
    var thread = UInt32(thread_idx.x)
    var row_chunks = UInt32(a.k // CHUNK)
    var has_one_scale = (
        has_float_scales(Int(a.format)) and block_of(Int(a.format)).k_blocks(a.k) == 1
    )
    var row_amax = UInt32(0)
    if has_one_scale:
        for chunk in range(thread, row_chunks, UInt32(THREADS)):
            row_amax = max(row_amax, magnitude_of_chunk(load_chunk(a, row, chunk)))
        row_amax = largest_of_group(row_amax)
    # All threads take every round; stages begin and end with sixteen neighbours.
    var num_chunks = stages.num_steps * UInt32(STAGE_CHUNKS)
    for first in range(UInt32(0), num_chunks, UInt32(THREADS)):
        var chunk = first + thread
        var x = Chunk(0)
        if chunk < row_chunks:
            x = load_chunk(a, row, chunk)
        var factor: Float32
        var codes: Codes
        if stages.sets == UInt32(MX_SETS):
            var scale = scale_of_block(x, a.carry, materialize[ELEMENT]())
            factor = f32_of_scale(scale)
            codes = encode_chunk[False](x, scale, materialize[ELEMENT]())
        else:
            var amax = amax_of_lanes[log2_floor(STAGE_CHUNKS)](magnitude_of_chunk(x))
            if has_one_scale:
                amax = row_amax
            factor = float_scale_from_amax(amax, materialize[ELEMENT](), a.carry != 0)
            codes = encode_over(x, factor, materialize[ELEMENT]())
        var packed = pack[ELEMENT.bits](codes)
        if chunk < num_chunks:
            store_chunk(stages, row, chunk, Words(packed[0], packed[1]))
            var step, in_step = divmod(chunk, UInt32(STAGE_CHUNKS))
            var set, in_set = divmod(in_step, UInt32(STAGE_CHUNKS) // stages.sets)
            if in_set == 0:
                flat_of(stages.factor(row, step, set))[0] = factor


@always_inline
def load_chunk(a: Activations, row: UInt32, chunk: UInt32) -> Chunk:
    """Loads eight floats of a row."""
    return a.floats().load[CHUNK, CHUNK](Int(row), Int(chunk) * CHUNK)


@always_inline
def load_stored(stages: TokenStages, row: UInt32, chunk: UInt32) -> Codes:
    """Returns eight codes of a row that is stored."""
    var words = Words()
    comptime for i in range(CHUNK_WORDS):
        words[i] = flat_of(_place(stages, row, chunk, UInt32(i)))[0]
    return unpack[ELEMENT.bits]({words[0], words[1]})


@always_inline
def store_chunk(stages: TokenStages, row: UInt32, chunk: UInt32, words: Words):
    """Stores eight codes of a row."""
    comptime for i in range(CHUNK_WORDS):
        flat_of(_place(stages, row, chunk, UInt32(i)))[0] = words[i]


@always_inline
def _place(
    stages: TokenStages, row: UInt32, chunk: UInt32, word: UInt32
) -> DevicePointer[DType.uint32]:
    """Returns where a word of a chunk of a row lies."""
    var step, in_step = divmod(chunk, UInt32(STAGE_CHUNKS))
    var part, at = in_step // UInt32(PART_CHUNKS), in_step % UInt32(PART_CHUNKS) * 2 + word
    if stages.weight_bits == 4:
        part = in_step // UInt32(BLOCK_CHUNKS) * 2 + word
        at = in_step % UInt32(BLOCK_CHUNKS)
    return stages.part(row, step, part).unsafe_bitcast[UInt32]().unsafe_offset(Int(at))


@always_inline
def largest_of_group(value: UInt32) -> UInt32:
    """Returns the largest of the values of all threads."""
    var largest = amax_of_lanes[5](value)
    var base = shared_base()
    if thread_idx.x % 32 == 0:
        store_word(base + UInt32(thread_idx.x) // 8, largest)
    barrier()
    comptime for warp in range(WARPS):
        largest = max(largest, load_word(base + UInt32(4 * warp)))
    return largest


def prepare(problem: Problem, scaling: Scaling, mut queue: Some[Queue]) raises -> TokenStages:
    """Launches the kernel; returns where the stages will be."""
    var stages = TokenStages.of(problem, scaling, queue)
    queue.launch[prepare_bytes](
        Grid(problem.m, threads=THREADS, shared_bytes=4 * WARPS, starts_early=True),
        Activations(problem),
        stages,
    )
    return stages
