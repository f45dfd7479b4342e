"""What has to be known of weights before they are multiplied: the marks of tiles of 32 rows.

A group looks at the scales of a tile, and leaves a mark if one of its elements is no bfloat16
number, or a factor is extreme. Codes are read only where scales are far from one.
"""

from max.gpu import thread_idx

from ...layouts import GRANULE_BYTES
from ...simt.arguments import Weights
from ...simt.codec import f32_of_scale
from ...simt.views import flat_of, rows_of
from ..dense.lanes import THREADS
from ..fp8.codes import scale_at
from ..instructions.shared_memory import any_thread
from ..instructions.warp import keep_branch
from ..mapped.scales import is_extreme
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from .numbers import are_lost, decode_word, is_safe
from .operands import Scaling, StagedOperands


@always_inline
def mark_weights[
    scaling: Scaling, bits: Int
](w: Weights, operands: StagedOperands[scaling, bits, _], tile: UInt32, k: UInt32):
    """Writes the mark of a tile; all threads of a group call it."""
    var is_marked: Bool
    comptime if scaling == Scaling.NUMBERS:
        is_marked = loses_numbers[bits](w, tile, k)
    else:
        is_marked = has_extreme_factors(operands, tile)
    var is_any = any_thread[THREADS](is_marked)
    if thread_idx.x == 0:
        flat_of(operands.right_marks)[Int(tile)] = UInt8(1) if is_any else UInt8(0)


@always_inline
def loses_numbers[bits: Int](w: Weights, tile: UInt32, k: UInt32) -> Bool:
    """Says whether an element that this thread is to look at is no bfloat16 number."""
    comptime BLOCK_GRANULES = BLOCK * bits // 8 // GRANULE_BYTES
    var num_blocks = k // UInt32(BLOCK)
    var all_words = rows_of(w.codes.unsafe_bitcast[UInt32](), TILE_BYTES // 4)
    var all_scales = flat_of(w.scales.unsafe_bitcast[UInt32]())
    var found = False
    for i in range(UInt32(thread_idx.x), num_blocks * UInt32(ROW_LANES), UInt32(THREADS)):
        var block, row_lane = divmod(i, UInt32(ROW_LANES))
        block += tile * num_blocks
        var scales = all_scales[Int(block) * ROW_LANES + Int(row_lane)]
        comptime for row in range(ROWS_PER_LANE):
            var scale = scale_at(scales, UInt32(row))
            if not is_safe(scale):
                keep_branch()
                for word in range(BLOCK_GRANULES * K_LANES):
                    var granule, k_lane = divmod(word, K_LANES)
                    var lane = Int(row_lane) * K_LANES + k_lane
                    var codes = all_words[
                        Int(block) * BLOCK_GRANULES + granule, lane * ROWS_PER_LANE + row
                    ]
                    found |= are_lost(decode_word[bits](codes, w.format), f32_of_scale(scale))
    return found


@always_inline
def has_extreme_factors(operands: StagedOperands[...], tile: UInt32) -> Bool:
    """Says whether a factor that this thread is to look at is extreme."""
    var row = tile * UInt32(TILE_ROWS) + UInt32(thread_idx.x) % UInt32(TILE_ROWS)
    if row >= operands.num_weights:
        return False
    var found = False
    var place = operands.scales.of_row(row)
    var num_steps = min(operands.left.num_steps, operands.scales.row_blocks)
    var first = UInt32(thread_idx.x) // UInt32(TILE_ROWS)
    for step in range(first, num_steps, UInt32(THREADS // TILE_ROWS)):
        found |= is_extreme(operands.scales.at(place, step))
    return found
