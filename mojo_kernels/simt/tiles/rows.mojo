"""Activations of any kind become rows of bfloat16 numbers: a warp a row and `PART` of K.

A lane takes chunks of eight elements; the lanes of a block ask together. Sixteen lanes have a
stage, and the first of them writes its factor.
"""

from layout import Coord
from max.gpu import thread_idx
from std.math import ceildiv

from ...launch.grid import Grid
from ...launch.queue import Queue
from ...numbers.formats import has_float_scales
from ...problem import Problem
from ...schedule.clusters import GridRows
from ..arguments import Activations
from ..codec import ANY_BITS, LANES_PER_BLOCK
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
            if chunk % STAGE_CHUNKS == 0:
                var at = row * Int(staged.num_stages()) + chunk // STAGE_CHUNKS
                flat_of(staged.factors)[at] = factor
        else:
            is_marked |= not a.is_kept() and are_lost[SAFE](values, numbers)
        var place = row * staged.row_bytes + chunk * CHUNK * NUMBER_BYTES
        flat_of(staged.numbers.unsafe_bitcast[UInt32]()).store[alignment=VECTOR_BYTES](
            Coord(place // 4), packed_numbers(numbers)
        )

    is_marked = any_lane(is_marked)
    if lane == 0:
        flat_of(staged.row_marks)[row * Int(staged.row_parts) + tile.column] = UInt8(is_marked)


def launch(problem: Problem, staged: FactoredRows, mut queue: Some[Queue]) raises:
    """Launches the kernel."""
    var x, y, z = GridRows(ceildiv(problem.m, WARPS), Int(staged.row_parts)).grid()
    var grid = Grid(x, y, z, threads=WARPS * WARP_THREADS)
    comptime for aligned in [False, True]:
        comptime for scales_sums in [False, True]:
            if is_left_aligned(problem.left) == aligned and has_factors(problem) == scales_sums:
                queue.launch[stage_rows[aligned, scales_sums]](grid, Activations(problem), staged)
