"""Weights become stages: bytes as they come, or bfloat16 numbers, their scales applied.

Groups share a tile of 32 rows. A warp takes a stage of it: of each granule, 16 bytes of all rows, a
lane loads four bytes of four rows, and puts what they become to where a stage has them.

    loaded      rows r, r + 8, r + 16, r + 24    bytes 4 t .. 4 t + 3     in lane 4 r + t

A group leaves a mark if one of its elements is no bfloat16 number, or a factor is extreme.
"""

from layout import Coord
from max.gpu import thread_idx

from ...layouts import GRANULE_BYTES
from ...simt.arguments import Weights
from ...simt.codec import f32_of_scale
from ...simt.views import flat_of, rows_of
from ..dense.stages import TileStage
from ..fp8.codes import scale_at
from ..instructions.packed import Pairs
from ..instructions.shared_memory import any_thread, shared_base, store_pair, store_quad, store_word
from ..instructions.wgmma import ROW_BYTES
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from .numbers import THREADS, WARPS, are_lost, decode_word, packed_numbers
from .operands import Scaling, StagedOperands
from .scales import is_extreme


@always_inline
def prepare_weights[
    scaling: Scaling, bits: Int
](w: Weights, operands: StagedOperands[scaling], tile: UInt32, group: UInt32, k: UInt32):
    """Writes some stages of a tile, codes of so many bits, and the group's mark."""
    comptime GRANULE_CODES = GRANULE_BYTES * 8 // bits
    comptime STEP_CODES = ROW_BYTES if scaling != Scaling.NUMBERS else ROW_BYTES // 2
    comptime GRANULES = STEP_CODES // GRANULE_CODES
    var thread = UInt32(thread_idx.x)
    var num_granules = k // UInt32(GRANULE_CODES)
    var all_words = rows_of(w.codes.unsafe_bitcast[UInt32](), TILE_BYTES // 4)
    var all_scales = rows_of(w.scales.unsafe_bitcast[UInt32](), ROW_LANES)
    var stage = TileStage.of_warp(shared_base())
    var loses = False
    var first = group * UInt32(WARPS) + thread // 32
    for step in range(first, operands.right.num_steps, operands.tile_groups * UInt32(WARPS)):
        var words = Array[Pairs, GRANULES](fill=Pairs(0))
        var scales = SIMD[DType.uint32, GRANULES](0)
        comptime for i in range(GRANULES):
            var granule = step * UInt32(GRANULES) + UInt32(i)
            if granule < num_granules:
                words[i] = all_words.load[width=ROWS_PER_LANE, alignment=GRANULE_BYTES](
                    Coord(Int(tile * num_granules + granule), ROWS_PER_LANE * Int(thread % 32))
                )
                comptime if scaling == Scaling.NUMBERS:
                    var block = granule * UInt32(GRANULE_CODES) // UInt32(BLOCK)
                    var at = Int(tile * (k // UInt32(BLOCK)) + block)
                    scales[i] = all_scales[at, Int(thread % 32 // UInt32(K_LANES))]
        comptime for i in range(GRANULES):
            comptime if scaling != Scaling.NUMBERS:
                put_bytes(stage, UInt32(i), words[i])
            else:
                loses |= put_numbers[bits](stage, w, UInt32(i), words[i], scales[i])
        stage.copy_to(operands.right, tile, step)
    comptime if scaling != Scaling.NUMBERS:
        loses |= store_factors(operands, tile, group)
    var any_loss = any_thread[THREADS](loses)
    if thread == 0:
        var at = Int(tile * operands.tile_groups + group)
        flat_of(operands.right_marks)[at] = UInt8(1) if any_loss else UInt8(0)


@always_inline
def put_bytes(stage: TileStage, granule: UInt32, words: Pairs):
    """Puts a lane's words of a granule to their place."""
    var row_lane, k_lane = divmod(UInt32(thread_idx.x) % 32, UInt32(K_LANES))
    comptime for i in range(ROWS_PER_LANE):
        store_word(stage.at(UInt32(i * ROW_LANES) + row_lane, granule, k_lane), words[i])


@always_inline
def put_numbers[
    bits: Int
](stage: TileStage, w: Weights, granule: UInt32, words: Pairs, scales: UInt32) -> Bool:
    """Puts the numbers of a lane's words to their place; says whether one is lost."""
    comptime WORD_CODES = 32 // bits
    var row_lane, k_lane = divmod(UInt32(thread_idx.x) % 32, UInt32(K_LANES))
    var loses = False
    comptime for i in range(ROWS_PER_LANE):
        var row = UInt32(i * ROW_LANES) + row_lane
        var scale = f32_of_scale(scale_at(scales, UInt32(i)))
        var values = decode_word[bits](words[i], w.format)
        loses |= are_lost(values, scale)
        var numbers = packed_numbers(values * scale)
        comptime if WORD_CODES == 8:
            var part = granule * UInt32(K_LANES) + k_lane
            store_quad(stage.at(row, part, 0), rebind[SIMD[DType.uint32, 4]](numbers))
        else:
            var part, half = divmod(granule * UInt32(K_LANES) + k_lane, UInt32(2))
            store_pair(stage.at(row, part, 2 * half), rebind[SIMD[DType.uint32, 2]](numbers))
    return loses


@always_inline
def store_factors[
    scaling: Scaling
](operands: StagedOperands[scaling], tile: UInt32, group: UInt32) -> Bool:
    """Writes the factors of some stages of a tile, and says whether one is extreme."""
    var found = False
    var row = tile * UInt32(TILE_ROWS) + UInt32(thread_idx.x) % UInt32(TILE_ROWS)
    if row >= operands.num_weights:
        return False
    comptime ROUNDS = THREADS // TILE_ROWS
    var place = operands.scales.of_row(row)
    var num_steps = operands.right.num_steps
    comptime if scaling == Scaling.ROWS:
        num_steps = 1
    var first = group * UInt32(ROUNDS) + UInt32(thread_idx.x) // UInt32(TILE_ROWS)
    for step in range(first, num_steps, operands.tile_groups * UInt32(ROUNDS)):
        var factor = operands.scales.at(place, step)
        found |= is_extreme(factor)
        comptime if scaling == Scaling.STAGES:
            flat_of(operands.right.factor(row, step))[0] = factor
    return found
