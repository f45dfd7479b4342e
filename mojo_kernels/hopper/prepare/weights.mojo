"""Rows of B on their way into stages: tiles of 32, loaded by units, put as tensor cores take them.

A warp has the 32 rows of a stage, a tile of `PreshuffledCuda`. Its lanes load units, some granules
of 16 bytes of all rows, and put them together in shared memory:

    loaded    rows r, r + 8, r + 16, r + 24    bytes 4 t .. 4 t + 3 of a granule    in lane 4 r + t
    put       part p of row r, 16 bytes        at part p ^ (r % 8) of the row's 128 bytes

Codes become E5M2 or E4M3 bytes under their row's shared exponent, which is found before, or bfloat16
numbers. Of six-bit codes lane 4 r + t loads sixteen neighbours of each row: words 3 t, 3 t + 1 and
3 t + 2 of the twelve that the row has in three granules.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.grid_controls import wait_on_dependent_grids
from max.gpu.sync import syncwarp
from std.memory import bitcast

from ...launch.queue import DevicePointer
from ...layouts import GRANULE_BYTES
from ...numbers.decode import decode
from ...numbers.elements import Element
from ...numbers.scales import Scale
from ...simt.arguments import Weights
from ...simt.codec import decode_chunk, f32_of_scale, unpack
from ...simt.views import flat_of, rows_of
from ..host.workspace import PREPARE_THREADS as THREADS, PREPARE_WARPS as WARPS
from ..instructions.packed import BOTH_HALVES, multiply_pairs
from ..instructions.shared_memory import any_thread, load_quad, shared_base
from ..instructions.shared_memory import store_pair, store_quad, store_word
from ..instructions.warp import keep_branch, lane_here, load_streaming
from ..layout import BLOCK, K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_BYTES, TILE_ROWS
from ..layout import block_scales
from ..plan import OperandType
from ..shapes import LANE_BYTES, PARTS, ROW_BYTES
from .codes import (
    E5M2Table,
    SIX_WORDS,
    are_lost_in_bf16,
    bf16_of_codes,
    bf16_of_sixes,
    bytes_of_sixes,
    e4m3_power,
    is_safe_in_bf16,
    lost_bias,
    may_lose_in_bf16,
    scale_at,
    scaled_down,
)
from .exponents import SharedExponents, find_exponents, sixes_of_block
from ..gemm_operands import StagedRows

comptime TILE_WORDS = TILE_BYTES // 4
"""Words of a granule of all rows of a tile."""
comptime SHARED_BYTES = WARPS * StageRows.NUM_BYTES
"""Shared memory of a CTA: a stage for each warp."""


@fieldwise_init
struct StageRows(TrivialRegisterPassable):
    """A warp's 32 rows of a stage in shared memory, as one of its lanes sees them."""

    comptime NUM_BYTES = TILE_ROWS * ROW_BYTES
    """Bytes of all rows."""

    var base: UInt32
    """Where the first row begins."""
    var lane_at: UInt32
    """Where the lane's first bytes go, from there on."""

    @staticmethod
    @always_inline
    def of[put_bytes: Int](base: UInt32) -> Self:
        """Returns those of a lane, if each of a row's four lanes puts so many bytes at a time."""
        var row_lane, k_lane = divmod(lane_here(), UInt32(K_LANES))
        var part, in_part = divmod(k_lane * UInt32(put_bytes), UInt32(LANE_BYTES))
        var row_at = row_lane * UInt32(ROW_BYTES)
        return Self(base, row_at + (row_lane ^ part) * UInt32(LANE_BYTES) + in_part)

    @always_inline
    def at[row: Int, part: Int](self) -> UInt32:
        """Returns where the lane's bytes go, of one of its four rows, so many parts further on."""
        comptime FURTHER = UInt32(part * LANE_BYTES)
        return self.base + (self.lane_at ^ FURTHER) + UInt32(row * ROW_LANES * ROW_BYTES)

    @always_inline
    def clear_from(self, first: UInt32):
        """Makes zeros of the parts of all rows from one on; a whole warp calls it."""
        syncwarp()
        var row = lane_here()
        for part in range(first, UInt32(PARTS)):
            var at = row * UInt32(ROW_BYTES) + (part ^ (row % UInt32(PARTS))) * UInt32(LANE_BYTES)
            store_quad(self.base + at, SIMD[DType.uint32, 4](0))


@fieldwise_init
struct Unit[granules: Int, blocks: Int](TrivialRegisterPassable):
    """What a lane has of some granules of a tile."""

    var words: SIMD[DType.uint32, ROWS_PER_LANE * Self.granules]
    """Of each granule, a word of four rows."""
    var scales: SIMD[DType.uint32, Self.blocks]
    """Of each block, the scale bytes of four rows."""


@fieldwise_init
struct TileOfB[operand: OperandType, element: Element, scale: Scale = Scale.E8M0](
    TrivialRegisterPassable
):
    """A tile of codes of an element, and where a lane finds what it has of it."""

    comptime IS_E5M2 = Self.operand == OperandType.E5M2
    comptime IS_BF16 = Self.operand == OperandType.BF16
    comptime STAGE_CODES = ROW_BYTES // (2 if Self.IS_BF16 else 1)
    """Codes of a row in a stage."""
    comptime BITS = Self.element.bits
    comptime IS_SIX = Self.BITS == 6
    comptime GRANULES = SIX_WORDS if Self.IS_SIX else (4 if Self.IS_E5M2 or Self.BITS == 8 else 2)
    """Granules of a unit: those that a lane loads together."""
    comptime UNIT_CODES = Self.GRANULES * GRANULE_BYTES * 8 // Self.BITS
    """Codes of a row in a unit."""
    comptime BLOCKS = 1 if Self.IS_SIX else Self.UNIT_CODES // BLOCK
    """Blocks of a unit of which a lane has some, which have a scale byte a row."""
    comptime UNITS = Self.STAGE_CODES // Self.UNIT_CODES
    """Units of a stage."""
    comptime BLOCK_WORDS = ROW_LANES * block_scales(Self.scale)
    """Words of the scales of a block of the tile."""
    comptime SIX_BYTES = 32 if Self.IS_BF16 else 16
    comptime PUT_BYTES = Self.SIX_BYTES if Self.IS_SIX else (
        16 if Self.IS_BF16 else (4 if Self.IS_E5M2 else 32 // Self.BITS)
    )
    """Bytes that the four lanes of a row put next to each other."""
    comptime Unit = Unit[4 if Self.IS_SIX else Self.GRANULES, Self.BLOCKS]
    """Of six bits one granule is not there: registers come as a power of two."""
    comptime Stage = Array[Self.Unit, Self.UNITS]
    """What a lane has of a stage."""

    var w: Weights
    var tile: UInt32
    var k: UInt32
    """Codes of a row."""
    var words: DevicePointer[DType.uint32]
    """The lane's first words; of codes of six bits, the tile's."""
    var scales: DevicePointer[DType.uint32]
    """The lane's first scales."""

    @staticmethod
    @always_inline
    def of(w: Weights, k: UInt32, tile: UInt32) -> Self:
        """Finds a tile."""
        var lane = lane_here()
        var scales_at = Int(tile) * Int(k // UInt32(BLOCK)) * Self.BLOCK_WORDS
        comptime if Self.scale == Scale.E4M3:
            # Behind tensor scales of the tiles before; of a row's scales in a block lanes have theirs.
            comptime LANES = UInt32(K_LANES // block_scales(Self.scale))
            scales_at += Int(tile) * Self.scale.row_bytes * ROW_LANES
            scales_at += Int(lane % UInt32(K_LANES) // LANES) * ROW_LANES
        var num_granules = Self.granules_of(k)
        var lane_words = 0
        comptime if not Self.IS_SIX:
            lane_words = Int(lane) * ROWS_PER_LANE
        return Self(
            w,
            tile,
            k,
            w.codes.unsafe_bitcast[UInt32]().unsafe_offset(
                Int(tile) * Int(num_granules) * TILE_WORDS + lane_words
            ),
            w.scales.unsafe_bitcast[UInt32]().unsafe_offset(
                scales_at + Int(lane // UInt32(K_LANES))
            ),
        )

    @staticmethod
    @always_inline
    def granules_of(k: UInt32) -> UInt32:
        """Returns the granules of a row."""
        comptime if Self.IS_SIX:
            return k // UInt32(Self.UNIT_CODES) * UInt32(Self.GRANULES)
        else:
            return k // UInt32(GRANULE_BYTES * 8 // Self.BITS)

    @always_inline
    def load(self, step: UInt32, num_steps: UInt32) -> Self.Stage:
        """Loads a stage; the last stage, granules and blocks stand in for those past the end.

        So no load is under a condition, and nobody waits for it here.
        """
        var there = min(step, num_steps - 1)
        var loaded = Self.Stage(uninitialized=True)
        comptime for part in range(Self.UNITS):
            loaded[part] = self._load_unit(there * UInt32(Self.UNITS) + UInt32(part))
        return loaded^

    @always_inline
    def _load_unit(self, unit: UInt32) -> Self.Unit:
        """Loads a unit of a tile."""
        comptime if Self.IS_SIX:
            return self._load_sixes(unit)
        var found = Self.Unit(0, 0)
        var first = unit * UInt32(Self.GRANULES)
        var last = Self.granules_of(self.k) - 1
        comptime for i in range(Self.GRANULES):
            var at = min(first + UInt32(i), last) * UInt32(TILE_WORDS)
            var loaded = load_streaming(self.words.unsafe_offset(Int(at)))
            comptime for row in range(ROWS_PER_LANE):
                found.words[ROWS_PER_LANE * i + row] = loaded[row]
        var first_block = unit * UInt32(Self.BLOCKS)
        var last_block = self.k // UInt32(BLOCK) - 1
        comptime for i in range(Self.BLOCKS):
            var at = min(first_block + UInt32(i), last_block) * UInt32(Self.BLOCK_WORDS)
            found.scales[i] = flat_of(self.scales)[Int(at)]
        return found

    @always_inline
    def _load_sixes(self, unit: UInt32) -> Self.Unit:
        """Loads a unit of codes of six bits: three words of each row, neighbours, and a scale.

        Lanes load the two halves of a sector at different times: it is in the first-level cache then.
        """
        var found = Self.Unit(0, 0)
        var row_lane, k_lane = divmod(lane_here(), UInt32(K_LANES))
        var there = min(unit, self.k // UInt32(Self.UNIT_CODES) - 1)
        comptime for i in range(SIX_WORDS):
            var granule, other_lane = divmod(
                UInt32(SIX_WORDS) * k_lane + UInt32(i), UInt32(K_LANES)
            )
            var in_tile = (there * UInt32(SIX_WORDS) + granule) * UInt32(TILE_WORDS)
            var at = in_tile + (row_lane * UInt32(K_LANES) + other_lane) * UInt32(ROWS_PER_LANE)
            var loaded = flat_of(self.words).load[width=ROWS_PER_LANE, alignment=GRANULE_BYTES](
                Coord(Int(at))
            )
            comptime for row in range(ROWS_PER_LANE):
                found.words[ROWS_PER_LANE * i + row] = loaded[row]
        comptime HALVES = UInt32(Self.UNIT_CODES // BLOCK)
        var block = there * HALVES + k_lane // HALVES
        found.scales[0] = flat_of(self.scales)[Int(block * UInt32(Self.BLOCK_WORDS))]
        return found

    @staticmethod
    @always_inline
    def put[part: Int](unit: Self.Unit, exponents: UInt32, rows: StageRows):
        """Puts a unit to its place: some part of the 32 rows of a stage."""
        comptime if Self.IS_SIX:
            return Self._put_sixes[part](unit, exponents, rows)
        comptime BLOCK_GRANULES = Self.GRANULES // Self.BLOCKS
        comptime for i in range(ROWS_PER_LANE):
            var exponent = UInt32(0)
            comptime if not Self.IS_BF16:
                exponent = scale_at(exponents, UInt32(i))
            comptime for block in range(Self.BLOCKS):
                comptime first = BLOCK_GRANULES * block
                comptime at = Self.GRANULES * part + first
                var scale = scale_at(unit.scales[block], UInt32(i))
                comptime if Self.IS_BF16:
                    var factor: UInt32
                    comptime if Self.scale == Scale.E4M3:
                        factor = bitcast[DType.uint32](decode[Element.E4M3](scale)) >> 16
                    else:
                        factor = bitcast[DType.uint32](f32_of_scale(scale)) >> 16
                    var numbers = bf16_of_codes(unit.words[ROWS_PER_LANE * first + i])
                    store_quad(rows.at[i, 4 * at](), multiply_pairs(numbers, factor * BOTH_HALVES))
                elif Self.BITS == 4:
                    var word = unit.words[ROWS_PER_LANE * first + i]
                    var bytes = E5M2Table.under(exponent).bytes(word, scale)
                    comptime if Self.IS_E5M2:
                        store_word(rows.at[i, 2 * at](), bytes[0])
                        store_word(rows.at[i, 2 * at + 1](), bytes[1])
                    else:
                        store_pair(rows.at[i, 2 * at](), bytes)
                else:
                    var words = SIMD[DType.uint32, BLOCK_GRANULES]()
                    comptime for granule in range(BLOCK_GRANULES):
                        words[granule] = unit.words[ROWS_PER_LANE * (first + granule) + i]
                    words = scaled_down(words, exponent - scale)
                    comptime for granule in range(BLOCK_GRANULES):
                        store_word(rows.at[i, at + granule](), words[granule])

    @staticmethod
    @always_inline
    def _put_sixes[part: Int](unit: Self.Unit, exponents: UInt32, rows: StageRows):
        """Does so with codes of six bits, which are E4M3 on the way."""
        comptime E = Self.element
        comptime for i in range(ROWS_PER_LANE):
            var words = SIMD[DType.uint32, 4]()
            comptime for word in range(SIX_WORDS):
                words[word] = unit.words[ROWS_PER_LANE * word + i]
            var bytes = bytes_of_sixes[E](words)
            var scale = scale_at(unit.scales[0], UInt32(i))
            comptime if Self.IS_BF16:
                var factor = bitcast[DType.uint32](f32_of_scale(scale)) >> 16
                comptime for half in range(2):
                    var numbers = bf16_of_sixes[E](bytes[2 * half], bytes[2 * half + 1])
                    store_quad(rows.at[i, half](), multiply_pairs(numbers, factor * BOTH_HALVES))
            else:
                comptime LIFT = e4m3_power(E) + lost_bias(E)
                var steps = scale_at(exponents, UInt32(i)) - scale
                store_quad(rows.at[i, K_LANES * part](), scaled_down[LIFT](bytes, steps))

    @always_inline
    def store(self, stages: StagedRows, exponents: SharedExponents, cta: UInt32, tile_ctas: UInt32):
        """Writes the stages of a CTA to the workspace, of so many that share the tile.

        A warp takes a stage and puts it together in shared memory. Meanwhile the next one is on
        the way, and the first one while rows are inspected.
        """
        var num_steps = stages.num_steps
        var loaded = self.load(_first_step(cta), num_steps)
        var of_rows = UInt32(0)
        comptime if Self.scale == Scale.E4M3:
            # All are bfloat16 numbers. Other kernels may read what was there.
            wait_on_dependent_grids()
        else:
            of_rows = inspect_tile[Self.operand, Self.element](
                self.w, exponents, self.tile, self.k, cta
            )
        var warp = UInt32(thread_idx.x) // 32
        var lane = lane_here()
        var base = shared_base() + warp * UInt32(StageRows.NUM_BYTES)
        var rows = StageRows.of[Self.PUT_BYTES](base)
        var first_row = self.tile * UInt32(TILE_ROWS)
        var turn = tile_ctas * UInt32(WARPS)
        for step in range(_first_step(cta), num_steps, turn):
            comptime for part in range(Self.UNITS):
                Self.put[part](loaded[part], of_rows, rows)
            loaded = self.load(UInt32(step) + turn, num_steps)
            var end = self.k - UInt32(step) * UInt32(Self.STAGE_CODES)
            if end < UInt32(Self.STAGE_CODES):
                keep_branch()
                rows.clear_from(end // UInt32(Self.STAGE_CODES // PARTS))
            syncwarp()
            # Eight lanes have a row; a lane has rows four apart, so that two of eight are its own.
            comptime LANE_ROWS = 32 // PARTS
            var row, part = divmod(lane, UInt32(PARTS))
            comptime for i in range(StageRows.NUM_BYTES // (32 * LANE_BYTES)):
                comptime octet, first = divmod(LANE_ROWS * i, 8)
                var in_octet = UInt32(first) + row
                var place = stages.part(first_row + in_octet, UInt32(step), part ^ in_octet)
                place = place.unsafe_offset(octet * Int(stages.octet_bytes()))
                var at = (UInt32(32 * i) + lane) * UInt32(LANE_BYTES)
                flat_of(place.unsafe_bitcast[UInt32]()).store[alignment=LANE_BYTES](
                    Coord(0), load_quad(rows.base + at)
                )
            syncwarp()


@always_inline
def inspect_tile[
    operand: OperandType, element: Element
](w: Weights, exponents: SharedExponents, tile: UInt32, k: UInt32, cta: UInt32) -> UInt32:
    """Finds shared exponents or the fallback flag of a tile; all threads of a CTA of it call it.

    Nothing is written before other kernels have ended, which may read what was there. Returns the
    exponents of the lane's rows, a byte each.
    """
    comptime if operand != OperandType.BF16:
        return find_exponents[element](w, exponents, tile, k)
    wait_on_dependent_grids()
    if cta == 0:
        var is_any = any_thread[THREADS](_loses_any[element](w, tile, k))
        if thread_idx.x == 0:
            exponents.of_b()[Int(tile)] = UInt8(1) if is_any else UInt8(0)
    return 0


@always_inline
def _first_step(cta: UInt32) -> UInt32:
    """Returns the first stage that a warp stores, of those of its CTA."""
    return cta * UInt32(WARPS) + UInt32(thread_idx.x) // 32


@always_inline
def _loses_any[element: Element](w: Weights, tile: UInt32, k: UInt32) -> Bool:
    """Says whether an element that this thread is to look at may be no bfloat16 number.

    Codes are read only where scales are far from one. Of six bits, a block that is not all zeros
    may have such an element if any code under its scale was one.
    """
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
            if not is_safe_in_bf16(scale):
                keep_branch()
                comptime if element.bits == 6:
                    if may_lose_in_bf16[element](scale):
                        found |= sixes_of_block(all_words, block, row_lane, row) != 0
                else:
                    comptime BLOCK_GRANULES = BLOCK * element.bits // 8 // GRANULE_BYTES
                    for word in range(BLOCK_GRANULES * K_LANES):
                        var granule, k_lane = divmod(word, K_LANES)
                        var lane = Int(row_lane) * K_LANES + k_lane
                        var codes = all_words[
                            Int(block) * BLOCK_GRANULES + granule, lane * ROWS_PER_LANE + row
                        ]
                        var values = decode_chunk(
                            unpack[element.bits](codes), materialize[element]()
                        )
                        found |= are_lost_in_bf16(values, f32_of_scale(scale))
    return found
