"""Activations of any kind become rows of bfloat16 numbers: a warp a row and `PART` of K.

A lane takes chunks of eight elements; the lanes of a block ask together. Sixteen lanes have a
stage, and the first of them writes its factor. Codes of four and eight bits have a kernel for each
element, which decodes them as those of weights are.
"""

from layout import Coord
from max.gpu import thread_idx
from std.math import ceildiv
from std.memory import bitcast

from ...launch.grid import Grid
from ...launch.queue import Queue
from ...numbers.elements import Element
from ...numbers.formats import block_of, has_e4m3_scales, has_float_scales
from ...numbers.scales import E8M0_BIAS
from ...problem import LeftKind, Problem
from ...schedule.clusters import GridRows
from ..arguments import Activations
from ..codec import ANY_BITS, BLOCK, LANES_PER_BLOCK, element_of
from ..host import (
    CHUNK,
    NUMBER_BYTES,
    PART,
    STAGE,
    VECTOR_BYTES,
    WARPS,
    WARP_THREADS,
    is_left_aligned,
)
from ..instructions import any_lane
from ..views import flat_of, tile_here
from . import numbers as codes
from .operands import SAFE, SAFE_BESIDE_FACTORS
from .operands import FactoredRows, are_lost, has_factors, is_extreme, packed_numbers

comptime STAGE_CHUNKS = STAGE // CHUNK
"""Chunks of a stage."""


def stage_rows[aligned: Bool, has_factors: Bool](a: Activations, staged: FactoredRows):
    """Writes a row's numbers, factors and mark, in one part of K."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var row = tile.row * WARPS + warp
    if row >= Int(staged.rows):
        return

    var num_chunks = a.k // CHUNK
    var scales_sums = has_float_scales(Int(a.format)) and not a.is_kept()
    var row_amax = a.amax_of_row[ANY_BITS, aligned](row, lane)
    var is_marked = False
    for first in range(tile.column * (PART // CHUNK), num_chunks, WARP_THREADS):
        if first >= (tile.column + 1) * (PART // CHUNK):
            break
        # Lanes past the end repeat the last block, whole blocks at a time.
        var chunk = first + lane
        var in_range = chunk < num_chunks
        if not in_range:
            chunk = num_chunks - LANES_PER_BLOCK + lane % LANES_PER_BLOCK
        var values, wide_scale = a.chunk[ANY_BITS, aligned](row, chunk, in_range, row_amax)
        if not in_range:
            continue

        var scale = wide_scale.cast[DType.float32]()
        var numbers = values if scales_sums else values * scale
        comptime if has_factors:
            var factor = scale if scales_sums else Float32(1)
            is_marked |= are_lost[SAFE_BESIDE_FACTORS](values, numbers) or is_extreme(factor)
            _put_factor(staged, row, chunk, factor)
        else:
            is_marked |= not a.is_kept() and are_lost[SAFE](values, numbers)
        _put_numbers(staged, row, chunk, packed_numbers(numbers))

    _mark(staged, row, tile.column, lane, is_marked)


def stage_codes[element: Element, has_factors: Bool](a: Activations, staged: FactoredRows):
    """Does so with codes of four or eight bits at multiples of `VECTOR_BYTES`."""
    var tile = tile_here()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var row = tile.row * WARPS + warp
    if row >= Int(staged.rows):
        return

    var first, row_chunks = tile.column * (PART // CHUNK), a.k // CHUNK
    var scales_sums, block = has_float_scales(Int(a.format)), block_of(Int(a.format))
    var is_marked = False
    for chunk in range(first + lane, min(first + PART // CHUNK, row_chunks), WARP_THREADS):
        comptime BYTES = element.bits * CHUNK // 8
        var at = (row * row_chunks + chunk) * BYTES
        var bytes = flat_of(a.values).load[width=BYTES, alignment=BYTES](Coord(at))
        var words = bitcast[DType.uint32, BYTES // 4](bytes)
        var scale, factor = UInt32(E8M0_BIAS), Float32(1)
        if has_factors and scales_sums:
            factor = flat_of(a.factors())[block.index(row, chunk * CHUNK, a.k)]
        else:
            var of_row = flat_of(a.scales.unsafe_offset(row * (a.k // BLOCK)))
            scale = of_row[chunk // LANES_PER_BLOCK].cast[DType.uint32]()
        is_marked |= codes.are_lost[element](words, scale)
        comptime if has_factors:
            is_marked |= is_extreme(factor)
            _put_factor(staged, row, chunk, factor)
        _put_numbers(staged, row, chunk, codes.numbers_of[element, False](words, scale))
    _mark(staged, row, tile.column, lane, is_marked)


@always_inline
def _put_factor(staged: FactoredRows, row: Int, chunk: Int, factor: Float32):
    """Writes the factor of a stage, if the chunk is its first one."""
    if chunk % STAGE_CHUNKS == 0:
        var at = row * Int(staged.num_stages()) + chunk // STAGE_CHUNKS
        flat_of(staged.factors)[at] = factor


@always_inline
def _put_numbers(staged: FactoredRows, row: Int, chunk: Int, words: SIMD[DType.uint32, _]):
    """Writes the numbers of a chunk, two in a word."""
    var place = row * staged.row_bytes + chunk * CHUNK * NUMBER_BYTES
    flat_of(staged.numbers.unsafe_bitcast[UInt32]()).store[alignment=VECTOR_BYTES](
        Coord(place // 4), words
    )


@always_inline
def _mark(staged: FactoredRows, row: Int, part: Int, lane: Int, is_marked: Bool):
    """Writes the mark of a row, in one part of K: all lanes of the warp call it."""
    var any_is = any_lane(is_marked)
    if lane == 0:
        flat_of(staged.row_marks)[row * Int(staged.row_parts) + part] = UInt8(any_is)


def launch(problem: Problem, staged: FactoredRows, mut queue: Some[Queue]) raises:
    """Launches the kernel."""
    var x, y, z = GridRows(ceildiv(problem.m, WARPS), Int(staged.row_parts)).grid()
    var grid = Grid(x, y, z, threads=WARPS * WARP_THREADS)
    var left, is_aligned = problem.left, is_left_aligned(problem.left)
    comptime for scales_sums in [False, True]:
        if has_factors(problem) == scales_sums:
            if left.kind == LeftKind.ENCODED and is_aligned and not has_e4m3_scales(left.format):
                comptime for element in [Element.E2M1, Element.E4M3, Element.E5M2, Element.INT8]:
                    if element_of[ANY_BITS](Int32(left.format)) == element:
                        return queue.launch[stage_codes[element, scales_sums]](
                            grid, Activations(problem), staged
                        )
            comptime for aligned in [False, True]:
                if is_aligned == aligned:
                    queue.launch[stage_rows[aligned, scales_sums]](
                        grid, Activations(problem), staged
                    )
