"""What has to be known of weights before they are multiplied: the marks of tiles of 32 rows.

A group looks at the scales of a tile, and leaves a mark if one of its elements is no bfloat16
number. Codes are read only where scales are far from one.
"""

from max.gpu import thread_idx

from ...layouts import GRANULE_BYTES
from ...simt.arguments import Weights
from ...simt.codec import f32_of_scale
from ...simt.views import flat_of, rows_of
from ..fp8.codes import scale_at
from ..host.workspace import PREPARE_THREADS as THREADS
from ..instructions.shared_memory import any_thread
from ..instructions.warp import keep_branch
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES
from .codes import are_lost, decode_word, is_safe
from .operands import NumberRows


@always_inline
def mark_weights(w: Weights, operands: NumberRows, tile: UInt32, k: UInt32):
    """Writes the mark of a tile; all threads of a group call it."""
    var is_any = any_thread[THREADS](loses_numbers(w, tile, k))
    if thread_idx.x == 0:
        flat_of(operands.right_marks)[Int(tile)] = UInt8(1) if is_any else UInt8(0)


@always_inline
def loses_numbers(w: Weights, tile: UInt32, k: UInt32) -> Bool:
    """Says whether an element that this thread is to look at is no bfloat16 number."""
    comptime BLOCK_GRANULES = BLOCK * NumberRows.CODE_BITS // 8 // GRANULE_BYTES
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
                    found |= are_lost(decode_word(codes), f32_of_scale(scale))
    return found
