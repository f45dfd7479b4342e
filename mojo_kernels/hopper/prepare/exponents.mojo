"""Shared exponents: of rows of A, and of the rows of B, which are found here.

    a byte for each row of A, then for each row of B, both padded; `NO_EXPONENT` flags the fallback
    a byte for each block of each row of A, read where the row has none

That of a row of B is its largest scale, of MXFP6 less by what makes elements E4M3, if all blocks can
be numbers under it. A CTA, or a warp, has a tile of 32 rows. Scales alone tell, but where a block's is too small: if its codes are zeros,
it fits nevertheless.
"""

from max.gpu import thread_idx
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_idx, shuffle_xor
from max.gpu.sync import barrier
from std.bit import log2_floor

from ...launch.queue import DevicePointer, device_pointer
from ...layouts import GRANULE_BYTES, RUN_BYTES
from ...numbers.elements import Element
from ...operands import Flat, Matrix
from ...simt.arguments import Weights
from ...simt.views import flat_of, rows_of
from ..host.workspace import PreparedPlaces, PREPARE_THREADS as THREADS, PREPARE_WARPS as WARPS
from ..instructions.packed import LOW_BYTES, packed_max, packed_min
from ..instructions.shared_memory import any_thread, load_quad, load_word, shared_base
from ..instructions.shared_memory import store_quad, store_word
from ..instructions.warp import any_lane, keep_branch, lane_here
from ..layout import BLOCK, K_LANES, ROW_LANES, ROWS_PER_LANE, TILE_BYTES, TILE_ROWS
from .codes import NO_EXPONENT, ZEROS_EXPONENT, e4m3_power, fits, is_shareable, magnitude_bits
from .codes import SIX_WORDS, scale_at
from .source import LaneOfRow

comptime ENDS_BYTES = 16
"""Bytes of the largest and smallest scales of a lane's four rows."""
comptime SHARED_BYTES = ENDS_BYTES * ROW_LANES * WARPS
"""Shared memory of a CTA: those of each warp."""
comptime SCALES_BATCH = 4
"""Words of scales of a thread that are on the way at once, of a CTA's."""
comptime Ends = SIMD[DType.uint32, 4]
"""The largest scales of four rows, then the smallest: rows 0 and 2 are halves of a register."""
comptime WARP_BATCH = 8
"""The same where a warp has a tile."""


@fieldwise_init
struct SharedExponents(TrivialRegisterPassable):
    """Those of both sides."""

    var first: DevicePointer[DType.uint8]
    """That of the first row of A."""
    var b_at: UInt32
    """Where those of B begin."""
    var blocks_at: UInt32
    """Where those of blocks of A begin, of E5M2."""

    @staticmethod
    def at(places: PreparedPlaces, address: Int) -> Self:
        """Returns those of a product in a workspace."""
        return Self(
            device_pointer[DType.uint8](address + places.exponents),
            UInt32(places.b_exponents),
            UInt32(places.all_exponents),
        )

    @always_inline
    def of_a(self) -> Flat[DType.uint8]:
        """Views those of the rows of A."""
        return flat_of(self.first)

    @always_inline
    def store_of_a(self, lane: LaneOfRow, exponent: UInt8):
        """Stores that of a lane's row of A."""
        if lane.index == 0 and lane.is_there:
            self.of_a()[Int(lane.row)] = exponent

    @always_inline
    def of_b(self) -> Flat[DType.uint8]:
        """Views those of the rows of B."""
        return flat_of(self.first.unsafe_offset(Int(self.b_at)))

    @always_inline
    def of_blocks(self, k: UInt32) -> Matrix[DType.uint8]:
        """Views those of the blocks of rows of A."""
        return rows_of(self.first.unsafe_offset(Int(self.blocks_at)), Int(k // UInt32(BLOCK)))


@fieldwise_init
struct StageFactors(TrivialRegisterPassable):
    """What rows of A as E4M3 are multiplied by, [stage][row]: shared exponents of 128 elements."""

    var first: DevicePointer[DType.float32]
    var num_rows: UInt32
    """Rows, padded."""

    @staticmethod
    def at(places: PreparedPlaces, address: Int) -> Self:
        """Returns those of a product in a workspace."""
        var first = address + places.exponents + places.all_exponents
        return Self(device_pointer[DType.float32](first), UInt32(places.b_exponents))

    @always_inline
    def of(self, row: UInt32, step: UInt32) -> DevicePointer[DType.float32]:
        """Returns where the factor of a row is in a stage."""
        return self.first.unsafe_offset(Int(step) * Int(self.num_rows) + Int(row))


@always_inline
def find_exponents[
    element: Element
](w: Weights, exponents: SharedExponents, tile: UInt32, k: UInt32) -> UInt32:
    """Writes those of a tile of B; a thread looks at words of four rows' scales.

    Nothing is written before other kernels have ended, which may read what was there. Returns the
    largest scales of a lane's rows, a byte each.
    """
    var base = shared_base()
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var num_words = k // UInt32(BLOCK) * UInt32(ROW_LANES)
    var scales = rows_of(w.scales.unsafe_bitcast[UInt32](), Int(num_words))
    var ends = _ends_of[THREADS, SCALES_BATCH](scales, tile, num_words, UInt32(thread_idx.x))
    if lane < UInt32(ROW_LANES):
        store_quad(base + UInt32(ENDS_BYTES) * (warp * UInt32(ROW_LANES) + lane), ends)
    barrier()
    var row_lane = lane // UInt32(K_LANES)
    ends = load_quad(base + UInt32(ENDS_BYTES) * row_lane)
    comptime for other in range(1, WARPS):
        var at = UInt32(other * ROW_LANES) + row_lane
        ends = _joined(ends, load_quad(base + UInt32(ENDS_BYTES) * at))

    var word, may_miss = _exponents_of[element](ends)
    var missing = UInt32(0)
    # Shared memory is read until here, where stages are put together next.
    if any_thread[THREADS](may_miss):
        keep_branch()
        missing = _find_missing[element](w, scales, tile, num_words, word)
    wait_on_dependent_grids()
    if warp == 0:
        _store[element](exponents, tile * UInt32(TILE_ROWS), word, missing)
    return word


@always_inline
def find_exponents_of_warp[
    element: Element
](w: Weights, exponents: SharedExponents, first_row: UInt32, tile: UInt32, k: UInt32):
    """Writes those of a tile of B, which begin at a row of all; a warp calls it."""
    var num_words = k // UInt32(BLOCK) * UInt32(ROW_LANES)
    var scales = rows_of(w.scales.unsafe_bitcast[UInt32](), Int(num_words))
    var ends = _ends_of[32, WARP_BATCH](scales, tile, num_words, lane_here())
    # From lanes that have eight rows each to those that have a row each four times.
    comptime for i in range(4):
        ends[i] = shuffle_idx(ends[i], lane_here() // UInt32(K_LANES))
    var word, may_miss = _exponents_of[element](ends)
    var missing = UInt32(0)
    if any_lane(may_miss):
        keep_branch()
        missing = _missing_here[element, 1](w, scales, tile, num_words, word, 0)
        comptime for log_step in range(log2_floor(K_LANES)):
            missing |= shuffle_xor(missing, UInt32(1 << log_step))
    _store[element](exponents, first_row, word, missing)


@always_inline
def _ends_of[
    threads: Int, batch: Int
](scales: Matrix[DType.uint32], tile: UInt32, num_words: UInt32, thread: UInt32) -> Ends:
    """Returns what a warp finds of four rows, of the lane's place among eight.

    So many threads look at a tile.
    """
    var ends = Ends(0, 0, LOW_BYTES, LOW_BYTES)
    # The last words of the rows stand in for those past the end.
    var last = num_words - UInt32(ROW_LANES) + thread % UInt32(ROW_LANES)
    for first in range(thread, num_words, UInt32(batch * threads)):
        var words = SIMD[DType.uint32, batch]()
        comptime for i in range(batch):
            words[i] = scales[Int(tile), Int(min(UInt32(first) + UInt32(i * threads), last))]
        comptime for i in range(batch):
            var even, odd = words[i] & LOW_BYTES, (words[i] >> 8) & LOW_BYTES
            ends = _joined(ends, {even, odd, even, odd})
    comptime for log_step in range(log2_floor(ROW_LANES), log2_floor(32)):
        var others = Ends()
        comptime for i in range(4):
            others[i] = shuffle_xor(ends[i], UInt32(1 << log_step))
        ends = _joined(ends, others)
    return ends


@always_inline
def _exponents_of[element: Element](ends: Ends) -> Tuple[UInt32, Bool]:
    """Returns the largest scales of four rows, a byte each, and whether one may be none."""
    var word = UInt32(0)
    var may_miss = False
    comptime for row in range(ROWS_PER_LANE):
        comptime half, odd = divmod(row, 2)
        var largest = (ends[odd] >> UInt32(16 * half)) & 0xFF
        var smallest = (ends[2 + odd] >> UInt32(16 * half)) & 0xFF
        if largest == 0:
            largest = ZEROS_EXPONENT
        may_miss |= not (
            is_shareable[element](largest) and fits[element](UInt32.MAX, smallest, largest)
        )
        word |= largest << UInt32(8 * row)
    return (word, may_miss)


@always_inline
def _store[
    element: Element
](exponents: SharedExponents, first_row: UInt32, word: UInt32, missing: UInt32):
    """Stores those of a tile, which begin at a row, by the largest scales; a warp calls it."""
    comptime POWER = UInt32(e4m3_power(element))
    var row_lane, k_lane = divmod(lane_here(), UInt32(K_LANES))
    if k_lane == 0:
        comptime for row in range(ROWS_PER_LANE):
            var found = (scale_at(word, UInt32(row)) - POWER).cast[DType.uint8]()
            if missing & UInt32(1 << row) != 0:
                found = NO_EXPONENT
            exponents.of_b()[Int(first_row + UInt32(row * ROW_LANES) + row_lane)] = found


@always_inline
def _joined(ends: Ends, others: Ends) -> Ends:
    return {
        packed_max(ends[0], others[0]),
        packed_max(ends[1], others[1]),
        packed_min(ends[2], others[2]),
        packed_min(ends[3], others[3]),
    }


@no_inline
def _find_missing[
    element: Element
](
    w: Weights, scales: Matrix[DType.uint32], tile: UInt32, num_words: UInt32, largest: UInt32
) -> UInt32:
    """Returns a bit for each of a lane's four rows: set if it shares no exponent.

    That is so where a small scale comes with codes that are not all zero, which is rare. `largest`
    are the largest scales of the rows, a byte each. All threads call it.
    """
    var base = shared_base()
    var row_lane = lane_here() // UInt32(K_LANES)
    var flags = base + 4 * UInt32(ROWS_PER_LANE) * row_lane
    if thread_idx.x < TILE_ROWS:
        store_word(base + 4 * UInt32(thread_idx.x), 0)
    barrier()
    var here = _missing_here[element, WARPS](
        w, scales, tile, num_words, largest, UInt32(thread_idx.x) // 32
    )
    comptime for row in range(ROWS_PER_LANE):
        if here & UInt32(1 << row) != 0:
            store_word(flags + UInt32(4 * row), 1)
    barrier()
    var missing = UInt32(0)
    comptime for row in range(ROWS_PER_LANE):
        if load_word(flags + UInt32(4 * row)) != 0:
            missing |= UInt32(1 << row)
    barrier()
    return missing


@always_inline
def _missing_here[
    element: Element, num_warps: Int
](
    w: Weights,
    scales: Matrix[DType.uint32],
    tile: UInt32,
    num_words: UInt32,
    largest: UInt32,
    warp: UInt32,
) -> UInt32:
    """Returns the same bits of what a lane looks at, one of a warp among so many."""
    comptime BLOCK_GRANULES = BLOCK * element.bits // 8 // GRANULE_BYTES
    var lane = lane_here()
    var row_lane = lane // UInt32(K_LANES)
    # Four lanes have the same rows: each looks at every fourth word of them.
    var num_blocks = num_words // UInt32(ROW_LANES)
    var first = warp * UInt32(K_LANES) + lane % UInt32(K_LANES)
    var codes = rows_of(w.codes.unsafe_bitcast[UInt32](), TILE_BYTES // 4)
    var missing = UInt32(0)
    comptime for row in range(ROWS_PER_LANE):
        if not is_shareable[element](scale_at(largest, UInt32(row))):
            missing |= UInt32(1 << row)
    for block in range(first, num_blocks, UInt32(num_warps * K_LANES)):
        var found = scales[Int(tile), Int(block) * ROW_LANES + Int(row_lane)]
        comptime for row in range(ROWS_PER_LANE):
            var scale, shared = scale_at(found, UInt32(row)), scale_at(largest, UInt32(row))
            if not fits[element](UInt32.MAX, scale, shared):
                var of_tile = Int(tile * num_blocks + UInt32(block)) * BLOCK_GRANULES
                var any_code = UInt32(0)
                comptime if element.bits == 6:
                    any_code = sixes_of_block(
                        codes, tile * num_blocks + UInt32(block), row_lane, row
                    )
                else:
                    comptime for granule in range(BLOCK_GRANULES):
                        comptime for k_lane in range(K_LANES):
                            var at = row_lane * UInt32(K_LANES) + UInt32(k_lane)
                            any_code |= codes[of_tile + granule, Int(at) * ROWS_PER_LANE + row]
                if not fits[element](any_code, scale, shared):
                    missing |= UInt32(1 << row)
    return missing


@always_inline
def sixes_of_block(
    codes: Matrix[DType.uint32], block: UInt32, row_lane: UInt32, row: Int
) -> UInt32:
    """Returns all magnitudes of a block of six-bit codes, a row's, one over the other.

    The block is one of all tiles; of two, three granules are made. The row is one of a lane's four.
    """
    comptime BITS, GRANULES = 6, 3
    comptime WORDS = BLOCK * BITS // 8 // RUN_BYTES
    var pair, which = divmod(block, UInt32(GRANULES * K_LANES // WORDS))
    var found = UInt32(0)
    comptime for i in range(GRANULES * K_LANES):
        comptime granule, k_lane = divmod(i, K_LANES)
        comptime MAGNITUDES = magnitude_bits(BITS, i % SIX_WORDS)
        var at = row_lane * UInt32(K_LANES) + UInt32(k_lane)
        var word = codes[Int(pair) * GRANULES + granule, Int(at) * ROWS_PER_LANE + row]
        found |= word & MAGNITUDES if which == UInt32(i // WORDS) else 0
    return found
