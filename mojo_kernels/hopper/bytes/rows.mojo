"""Tokens become stages: E4M3 bytes, encoded here or as they come, or bfloat16 numbers.

A group takes a row; a thread takes chunks of eight elements. Sixteen neighbours share the factor
of a stage. What lies past the end of K is zero. A row has a mark if one of its elements times its
scale is no bfloat16 number.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...numbers.elements import Element
from ...numbers.formats import Format, block_of, has_float_scales
from ...numbers.rounding import float_scale_from_amax
from ...problem import Problem
from ...simt.arguments import Activations, Weights
from ...simt.codec import ANY_BITS, CHUNK, Chunk, LANES_PER_BLOCK
from ...simt.codec import amax_of_lanes, encode_over, f32_of_scale, magnitude_of_chunk, pack
from ...simt.views import flat_of, rows_of
from ..dense.stages import store_part
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..instructions.packed import Pairs, WORD_PAIRS
from ..instructions.shared_memory import any_thread, load_word, shared_base, store_word
from ..instructions.warp import keep_branch
from ..instructions.wgmma import ROW_BYTES
from ..layout import BLOCK, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..staged.activations import LANE_BYTES, PARTS
from .numbers import THREADS, WARPS, are_lost, decode_word, packed_numbers
from .operands import Scaling, StagedOperands, workspace_of
from .scales import WeightScales
from .weights import mark_weights

comptime ELEMENT = Element.E4M3
"""What tokens are encoded as."""
comptime MAX_TILE_GROUPS = 32
"""The most groups that share a tile of weights."""
comptime STAGE_CHUNKS = ROW_BYTES // CHUNK
"""Chunks of a token in a stage of bytes."""
comptime CHUNK_WORDS = CHUNK // 4
"""Words of a chunk's bytes."""
comptime Words = SIMD[DType.uint32, CHUNK_WORDS]
"""The bytes of a chunk."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(4),
)
def prepare_operands[
    scaling: Scaling, bits: Int, stages_weights: Bool
](
    a: Activations,
    w: Weights,
    operands: StagedOperands[scaling, bits, stages_weights],
    num_tokens: UInt32,
    tile_groups: UInt32,
):
    """Prepares a row of tokens, or a part of a tile of weights; groups of weights come first."""
    wait_on_dependent_grids()
    launch_dependent_grids()
    var index = UInt32(block_idx.x)
    var num_groups = UInt32(grid_dim.x) - num_tokens
    if index < num_groups:
        var tile, group = divmod(index, tile_groups)
        comptime if stages_weights:
            comptime Units = TileUnits[StagedOperands[scaling, bits, stages_weights]]
            var units = Units.of(w, UInt32(a.k), tile, operands.num_weights)
            var loaded = load_stage(operands, units, first_step_of[WARPS](group))
            if group == 0:
                mark_weights(w, operands, tile, UInt32(a.k))
            store_stages[WARPS](operands, units, loaded^, tile, shared_base(), group, tile_groups)
        else:
            mark_weights(w, operands, tile, UInt32(a.k))
        return
    var row = index - num_groups
    comptime if scaling == Scaling.NUMBERS:
        store_numbers(a, operands, row)
    else:
        if thread_idx.x == 0:
            flat_of(operands.left_marks)[Int(row)] = 0
        if a.is_encoded():
            copy_row(a, operands, row)
        else:
            keep_branch()
            encode_row(a, operands, row)


@always_inline
def store_numbers(a: Activations, operands: StagedOperands[...], row: UInt32):
    """Writes a row as bfloat16 numbers, and its mark."""
    var row_chunks = UInt32(a.k // CHUNK)
    var num_chunks = operands.left.num_steps * UInt32(PARTS)
    var loses = False
    # All threads take every round: the lanes of a block ask together.
    for first in range(UInt32(0), num_chunks, UInt32(THREADS)):
        var chunk = first + UInt32(thread_idx.x)
        var last = row_chunks - UInt32(LANES_PER_BLOCK) + chunk % UInt32(LANES_PER_BLOCK)
        var is_there = chunk < row_chunks
        var values, scale = load_numbers(a, row, min(chunk, last), is_there)
        if not a.is_kept():
            loses |= is_there and are_lost(values, scale)
        if chunk < num_chunks:
            var step, part = divmod(chunk, UInt32(PARTS))
            var numbers = packed_numbers(values * scale if is_there else Chunk(0))
            store_part(operands.left, row, step, part, rebind[Pairs](numbers))
    var any_loss = any_thread[THREADS](loses)
    if thread_idx.x == 0:
        flat_of(operands.left_marks)[Int(row)] = UInt8(1) if any_loss else UInt8(0)


@always_inline
def load_numbers(
    a: Activations, row: UInt32, chunk: UInt32, is_there: Bool
) -> Tuple[Chunk, Float32]:
    """Returns eight elements of a row and their scale; the lanes of a block ask together."""
    comptime MXFP8 = Int32(Format.MXFP8.code())
    if a.is_encoded() and a.format == MXFP8:
        keep_branch()
        var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
        var words = codes.load[width=CHUNK_WORDS, alignment=CHUNK](
            Coord(Int(row), Int(chunk) * CHUNK_WORDS)
        )
        var scales = rows_of(a.scales, a.k // BLOCK)
        var scale = scales[Int(row), Int(chunk) // LANES_PER_BLOCK].cast[DType.uint32]()
        var low = decode_word[8](words[0], MXFP8)
        var values = Chunk().insert[offset=0](low).insert[offset=4](decode_word[8](words[1], MXFP8))
        return (values, f32_of_scale(scale))
    var values, scale = a.chunk[ANY_BITS, True](Int(row), Int(chunk), is_there, 0)
    return (values, scale.cast[DType.float32]())


@always_inline
def copy_row[scaling: Scaling](a: Activations, operands: StagedOperands[scaling, ...], row: UInt32):
    """Copies codes and scales."""
    var thread = UInt32(thread_idx.x)
    var row_parts = UInt32(a.k // LANE_BYTES)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    var num_steps = operands.left.num_steps
    for index in range(thread, num_steps * UInt32(PARTS), UInt32(THREADS)):
        var words = Pairs(0)
        if index < row_parts:
            words = codes.load[width=WORD_PAIRS, alignment=LANE_BYTES](
                Coord(Int(row), Int(index) * WORD_PAIRS)
            )
        var step, part = divmod(index, UInt32(PARTS))
        store_part(operands.left, row, step, part, words)
    var scales = flat_of(a.scales.unsafe_bitcast[Float32]())
    var block = block_of(Int(a.format))
    comptime if scaling == Scaling.ROWS:
        if thread == 0:
            flat_of(operands.row_scales)[Int(row)] = scales[block.index(Int(row), 0, a.k)]
    else:
        for step in range(thread, num_steps, UInt32(THREADS)):
            var at = block.index(Int(row), Int(step) * ROW_BYTES, a.k)
            flat_of(operands.left.factor(row, step))[0] = scales[at]


@always_inline
def encode_row[
    scaling: Scaling
](a: Activations, operands: StagedOperands[scaling, ...], row: UInt32):
    """Encodes floats."""
    var thread = UInt32(thread_idx.x)
    var row_chunks = UInt32(a.k // CHUNK)
    var format = Int(a.format)
    var has_one_scale = has_float_scales(format) and block_of(format).k_blocks(a.k) == 1
    var row_amax = UInt32(0)
    if has_one_scale:
        for chunk in range(thread, row_chunks, UInt32(THREADS)):
            row_amax = max(row_amax, magnitude_of_chunk(load_chunk(a, row, chunk)))
        row_amax = largest_of_group(row_amax)
    # All threads take every round; stages begin and end with sixteen neighbours.
    var num_chunks = operands.left.num_steps * UInt32(STAGE_CHUNKS)
    for first in range(UInt32(0), num_chunks, UInt32(THREADS)):
        var chunk = first + thread
        var x = Chunk(0)
        if chunk < row_chunks:
            x = load_chunk(a, row, chunk)
        var amax = amax_of_lanes[log2_floor(STAGE_CHUNKS)](magnitude_of_chunk(x))
        if has_one_scale:
            amax = row_amax
        var factor = float_scale_from_amax(amax, materialize[ELEMENT](), a.carry != 0)
        var packed = pack[ELEMENT.bits](encode_over(x, factor, materialize[ELEMENT]()))
        if chunk < num_chunks:
            store_chunk(operands, row, chunk, Words(packed[0], packed[1]))
            comptime if scaling == Scaling.STAGES:
                var step, in_step = divmod(chunk, UInt32(STAGE_CHUNKS))
                if in_step == 0:
                    flat_of(operands.left.factor(row, step))[0] = factor
            else:
                if chunk == 0:
                    flat_of(operands.row_scales)[Int(row)] = factor


@always_inline
def load_chunk(a: Activations, row: UInt32, chunk: UInt32) -> Chunk:
    """Loads eight floats of a row."""
    return a.floats().load[CHUNK, CHUNK](Int(row), Int(chunk) * CHUNK)


@always_inline
def store_chunk(operands: StagedOperands[...], row: UInt32, chunk: UInt32, words: Words):
    """Stores eight bytes of a row."""
    var step, in_step = divmod(chunk, UInt32(STAGE_CHUNKS))
    var part, half = divmod(in_step, UInt32(STAGE_CHUNKS // PARTS))
    var place = operands.left.part(row, step, part).unsafe_bitcast[UInt32]()
    flat_of(place.unsafe_offset(CHUNK_WORDS * Int(half))).store[alignment=CHUNK](Coord(0), words)


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


def prepare[
    scaling: Scaling, bits: Int, stages_weights: Bool
](problem: Problem, tokens: Int, mut queue: Some[Queue]) raises -> StagedOperands[
    scaling, bits, stages_weights
]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var m, n, k = problem.m, problem.n, problem.k
    var memory = queue.workspace(workspace_of(m, n, k, tokens, scaling, stages_weights))
    var scales = WeightScales.of(problem)
    var operands = StagedOperands[scaling, bits, stages_weights].at(m, n, k, tokens, memory, scales)
    var tile_groups = groups_of_tile(n) if stages_weights else 1
    queue.launch[prepare_operands[scaling, bits, stages_weights]](
        Grid(
            m + ceildiv(n, TILE_ROWS) * tile_groups,
            threads=THREADS,
            shared_bytes=WARPS * (StageRows.NUM_BYTES if stages_weights else 4),
            starts_early=True,
        ),
        Activations(problem),
        Weights(problem),
        operands,
        UInt32(m),
        UInt32(tile_groups),
    )
    return operands


def groups_of_tile(n: Int) -> Int:
    """Returns the groups that share a tile of weights: enough for the device."""
    return min(ceildiv(4 * MULTIPROCESSORS, ceildiv(n, TILE_ROWS)), MAX_TILE_GROUPS)
