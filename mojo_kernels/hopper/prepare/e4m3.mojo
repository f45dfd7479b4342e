"""Encoders: rows of A as E4M3, under shared exponents, or as codes under float scales.

    MXFP8           each 128 elements, a stage, share an exponent: floats and codes become bytes
                    under it, and its power of two is a factor in float32
    float scales    plain rows of codes and their scales, one a row or one for 128 elements

A lane takes chunks of eight elements, see `source`, some of which are on the way at once; sixteen
neighbours have 128 elements.

The instruction that converts rounds two quotients to nearest even and saturates, as the numbers of
the house do. Quotients are correctly rounded: two steps of Newton's make them, of the inverse of
the scale, rounded to nearest (Markstein 1990: the last one is exact, if what it begins with is less
than a unit off). A scale is taken for its mantissa, elements for as many powers of two less: so no
remainder underflows, but of elements so small that their codes are zero.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_xor
from std.bit import log2_floor
from std.builtin.device_passable import DeviceTypeEncoder
from std.memory import bitcast

from ...launch.queue import DevicePointer
from ...numbers.elements import Element
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FLOAT_TYPES, float_code
from ...numbers.formats import block_of
from ...numbers.rounding import float_scale_from_amax
from ...numbers.scales import E8M0_NAN
from ...simt.arguments import Activations
from ...simt.codec import Chunk, LANES_PER_BLOCK, amax_of_lanes, f32_of_inverse_scale, f32_of_scale
from ...simt.codec import is_nan_scale, magnitude_of_chunk, scale_of_magnitude
from ...simt.host import CHUNK
from ...simt.views import flat_of, rows_of
from ..dense.stages import StagedRows
from ..host.workspace import LANE_CHUNKS, PREPARE_WARPS as WARPS
from ..instructions.packed import WORD_PAIRS, bytes_of_two
from ..instructions.warp import keep_branch
from ..layout import BLOCK
from ..operands.activations import packed_magnitude
from .codes import (
    BYTE_MAGNITUDES,
    Bytes,
    NO_EXPONENT,
    NO_FACTOR,
    ZEROS_EXPONENT,
    is_tile_exponent,
    scaled_down,
)
from .exponents import SharedExponents, StageFactors
from .kernel import ANY_CHUNKS, PreparedOperands, TilesOfB
from .source import LaneOfRow, load_floats
from .stores import LaneStores, Order, STEP_CHUNKS

comptime ELEMENT = Element.E4M3
"""What floats are encoded as."""
comptime LOG_STEP_CHUNKS = log2_floor(STEP_CHUNKS)
"""Lanes of 128 elements, as an exponent."""


# Under shared exponents.


@always_inline
def encode_floats[
    dtype: DType, order: Order
](
    a: Activations,
    to: StagedRows,
    exponents: SharedExponents,
    factors: StageFactors,
    lane: LaneOfRow,
):
    """Encodes a row of floats as MXFP8, and writes it under shared exponents."""
    var stores = LaneStores[order].of(to, lane)
    var row_chunks = UInt32(a.k // CHUNK)
    var is_lost = False
    var index = UInt32(0)
    while lane.has_any(index, to.num_steps * UInt32(STEP_CHUNKS)):
        var floats = load_floats[dtype](a, lane, index)
        comptime for i in range(LANE_CHUNKS):
            # All lanes take every turn: those of a block ask together.
            var amax = amax_of_lanes[log2_floor(LANES_PER_BLOCK)](_magnitude_of(floats[i]))
            var scale = scale_of_magnitude(amax, a.carry, materialize[ELEMENT]())
            var words = _encode(floats[i].cast[DType.float32](), scale)
            is_lost |= _store_chunk(stores, factors, lane, index, row_chunks, words, scale)
            index += 1
    _store_flag(exponents, lane, is_lost)


@always_inline
def encode_codes[
    order: Order
](
    a: Activations,
    to: StagedRows,
    exponents: SharedExponents,
    factors: StageFactors,
    lane: LaneOfRow,
):
    """Writes a row of MXFP8 under shared exponents."""
    var stores = LaneStores[order].of(to, lane)
    var row_chunks = UInt32(a.k // CHUNK)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    var scales = rows_of(a.scales, a.k // BLOCK)
    var row = Int(lane.source)
    var is_lost = False
    var index = UInt32(0)
    while lane.has_any(index, to.num_steps * UInt32(STEP_CHUNKS)):
        var words = Array[Bytes, LANE_CHUNKS](uninitialized=True)
        var found = Array[UInt8, LANE_CHUNKS](uninitialized=True)
        comptime for i in range(LANE_CHUNKS):
            var chunk = Int(min(lane.chunk(index + UInt32(i)), row_chunks - 1))
            words[i] = codes.load[width=2, alignment=CHUNK](Coord(row, chunk * 2))
            found[i] = scales[row, chunk // LANES_PER_BLOCK]
        comptime for i in range(LANE_CHUNKS):
            var scale = found[i].cast[DType.uint32]()
            is_lost |= _store_chunk(stores, factors, lane, index, row_chunks, words[i], scale)
            index += 1
    _store_flag(exponents, lane, is_lost)


@always_inline
def _store_chunk(
    stores: LaneStores[_],
    factors: StageFactors,
    lane: LaneOfRow,
    index: UInt32,
    row_chunks: UInt32,
    words: Bytes,
    scale: UInt32,
) -> Bool:
    """Stores codes under their stage's exponent, zeros past the end, and its factor.

    Says whether there is none. All lanes of the warp call it.
    """
    var is_inside = lane.chunk(index) < row_chunks
    var magnitudes = (words[0] | words[1]) & BYTE_MAGNITUDES
    var counts = magnitudes != 0 or scale == UInt32(E8M0_NAN)
    counts = counts and is_inside
    # The largest scale of blocks that are no zeros, and the smallest one.
    var largest = scale if counts else 0
    var above = ~scale if counts else 0
    comptime for step in range(LOG_STEP_CHUNKS):
        largest = max(largest, shuffle_xor(largest, UInt32(1 << step)))
        above = max(above, shuffle_xor(above, UInt32(1 << step)))
    var exponent = largest if above != 0 else ZEROS_EXPONENT
    var is_shared = above == 0 or is_tile_exponent(largest, ~above)
    var bytes = stores.exchanged(scaled_down(words, exponent - scale) if counts else Bytes(0))
    if stores.is_inside(index):
        stores.store(index, bytes)
        if lane.index % UInt32(STEP_CHUNKS) == 0:
            var factor = f32_of_scale(exponent) if is_shared else Float32(from_bits=NO_FACTOR)
            flat_of(factors.of(lane.row, stores.step(index)))[0] = factor
    return not is_shared


@always_inline
def _store_flag(exponents: SharedExponents, lane: LaneOfRow, is_lost: Bool):
    """Writes a row's fallback flag, of which this thread's elements are lost or not."""
    var flag = lane.largest(SIMD[DType.uint32, 1](UInt32(1) if is_lost else UInt32(0)))[0]
    if lane.index == 0 and lane.is_there:
        var exponent = NO_EXPONENT if flag != 0 else ZEROS_EXPONENT.cast[DType.uint8]()
        exponents.of_a()[Int(lane.row)] = exponent


# Under float scales.


@fieldwise_init
struct FloatScaledRows(PreparedOperands):
    """Rows of codes as callers' rows are, and their scales."""

    comptime device_type: AnyType = Self
    comptime HAS_A = True
    comptime HAS_B = False
    comptime CLEARS_COUNTERS = False
    comptime CHUNK_COUNTS: List[Int] = [ANY_CHUNKS]
    comptime SHARED_BYTES = 4 * WARPS

    var codes: DevicePointer[DType.uint32]
    var scales: DevicePointer[DType.float32]

    @always_inline
    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        comptime for dtype in FLOAT_TYPES:
            if a.dtype == Int32(float_code(dtype)):
                keep_branch()
                _encode_floats[dtype](a, self, lane)

    @always_inline
    def prepare_tile(self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        pass

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "FloatScaledRows"


@always_inline
def _encode_floats[dtype: DType](a: Activations, rows: FloatScaledRows, lane: LaneOfRow):
    """Encodes a row of floats under float scales, and writes it."""
    var num_chunks = UInt32(a.k // CHUNK)
    var num_blocks = block_of(Int(a.format)).k_blocks(a.k)
    var row_amax = UInt32(0)
    var floats = load_floats[dtype](a, lane, 0)
    var index = UInt32(LANE_CHUNKS)
    if num_blocks == 1:
        comptime for i in range(LANE_CHUNKS):
            row_amax = max(row_amax, _magnitude_of(floats[i]))
        while lane.has_any(index, num_chunks):
            var more = load_floats[dtype](a, lane, index)
            comptime for i in range(LANE_CHUNKS):
                row_amax = max(row_amax, _magnitude_of(more[i]))
            index += UInt32(LANE_CHUNKS)
        row_amax = lane.largest(SIMD[DType.uint32, 1](row_amax))[0]
    var scale = float_scale_from_amax(row_amax, materialize[ELEMENT](), a.carry != 0)
    var to = rows.codes.unsafe_offset(Int(lane.row) * (a.k // 4))
    var scale_to = rows.scales.unsafe_offset(Int(lane.row) * num_blocks)
    index = 0
    while lane.has_any(index, num_chunks):
        if index > 0:
            floats = load_floats[dtype](a, lane, index)
        comptime for i in range(LANE_CHUNKS):
            if lane.has_any(index, num_chunks):
                var chunk = lane.chunk(index)
                var is_number = chunk < num_chunks
                var x = floats[i] if is_number else SIMD[dtype, CHUNK](0)
                if num_blocks > 1:
                    keep_branch()
                    var amax = amax_of_lanes[LOG_STEP_CHUNKS](_magnitude_of(x))
                    scale = float_scale_from_amax(amax, materialize[ELEMENT](), a.carry != 0)
                var words = _encode(x.cast[DType.float32](), scale)
                if is_number and lane.is_there:
                    flat_of(to).store[alignment=CHUNK](Coord(Int(chunk) * 2), words)
                    if num_blocks > 1 and chunk % UInt32(STEP_CHUNKS) == 0:
                        flat_of(scale_to)[Int(chunk // UInt32(STEP_CHUNKS))] = scale
            index += 1
    if num_blocks == 1 and lane.index == 0 and lane.is_there:
        flat_of(scale_to)[0] = scale


# Elements.


@always_inline
def _magnitude_of[dtype: DType](x: SIMD[dtype, CHUNK]) -> UInt32:
    """Returns the float32 bits of the largest magnitude of a chunk."""
    comptime if dtype == DType.bfloat16:
        var largest = packed_magnitude(bitcast[DType.uint32, WORD_PAIRS](x))
        return max(largest & 0xFFFF0000, largest << 16)
    else:
        return magnitude_of_chunk(x.cast[DType.float32]())


@always_inline
def _encode(x: Chunk, scale: Float32) -> Bytes:
    """Returns the codes of a chunk under a float scale; zeros for a NaN block."""
    comptime ONE = UInt32(F32_EXPONENT_BIAS << F32_MANTISSA_BITS)
    comptime MANTISSA = UInt32((1 << F32_MANTISSA_BITS) - 1)
    var bits = bitcast[DType.uint32](scale)
    var mantissa = bitcast[DType.float32](bits & MANTISSA | ONE)
    # No scale has the largest power of two, whose inverse would be no regular number.
    var power = bitcast[DType.float32](2 * ONE - (bits & ~MANTISSA))
    var values = x * power
    var inverse = Chunk(1 / mantissa)
    var quotients = values * inverse
    comptime for _ in range(2):
        var remainders = (-quotients).fma(Chunk(mantissa), values)
        quotients = remainders.fma(inverse, quotients)
    return Bytes(0) if is_nan_scale(scale) else _rounded(quotients)


@always_inline
def _encode(x: Chunk, scale: UInt32) -> Bytes:
    """Returns the codes of a chunk under a scale byte; zeros for a NaN block."""
    # A power of two: what it makes inexact is far below the smallest code.
    var words = _rounded(x * f32_of_inverse_scale(scale))
    return Bytes(0) if scale == UInt32(E8M0_NAN) else words


@always_inline
def _rounded(x: Chunk) -> Bytes:
    """Returns the nearest codes."""
    var words = Bytes()
    comptime for i in range(2):
        var low = bytes_of_two["e4m3x2"](x[4 * i], x[4 * i + 1]).cast[DType.uint32]()
        var high = bytes_of_two["e4m3x2"](x[4 * i + 2], x[4 * i + 3]).cast[DType.uint32]()
        words[i] = low | (high << 16)
    return words
