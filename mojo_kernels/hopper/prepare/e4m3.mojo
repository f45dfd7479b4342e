"""Encoder: rows of A as E4M3 under shared exponents, one for each 128 elements, a stage.

Floats and codes become bytes under it, and its power of two is a factor in float32. A lane takes
chunks of eight elements, see `source`, some of which are on the way at once; sixteen neighbours have
128 elements. Elements are E4M3's own, or those of MXFP6, which E4M3 holds.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_xor
from std.bit import log2_floor
from std.memory import bitcast

from ...layouts import Plain, RUN_BYTES
from ...numbers.elements import Element
from ...numbers.scales import E8M0_NAN
from ...simt.arguments import Activations
from ...simt.codec import Chunk, LANES_PER_BLOCK, amax_of_lanes, f32_of_inverse_scale, f32_of_scale
from ...simt.codec import (
    decode_chunk,
    magnitude_of_chunk,
    rounded_values,
    scale_of_magnitude,
)
from ...simt.encode import bytes_of
from ...simt.host import CHUNK
from ...simt.views import PackedRows, flat_of, rows_of
from ..codec import packed_magnitude
from ..host.workspace import LANE_CHUNKS
from ..instructions.packed import WORD_PAIRS
from ..layout import BLOCK
from .codes import (
    BYTE_MAGNITUDES,
    Bytes,
    NO_EXPONENT,
    NO_FACTOR,
    ZEROS_EXPONENT,
    e4m3_power,
    is_tile_exponent,
    scaled_down,
    span_of,
)
from .exponents import SharedExponents, StageFactors
from .source import LaneOfRow, load_floats
from ..gemm_operands import StagedRows
from .stages import LaneStores, Order, STEP_CHUNKS

comptime ELEMENT = Element.E4M3
"""What floats are encoded as, unless they are rounded to six bits."""
comptime LOG_STEP_CHUNKS = log2_floor(STEP_CHUNKS)
"""Lanes of 128 elements, as an exponent."""
comptime CODES = DType.uint8
"""Stands for the type of rows that are codes."""


@always_inline
def encode_row[
    dtype: DType, order: Order, element: Element = ELEMENT
](
    a: Activations,
    to: StagedRows,
    exponents: SharedExponents,
    factors: StageFactors,
    lane: LaneOfRow,
):
    """Writes a row of floats, rounded to an element, or `CODES` of one, and its fallback flag."""
    comptime SPAN = span_of(element)
    var stores = LaneStores[order].of(to, lane)
    var row_chunks = UInt32(a.k // CHUNK)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    var scales = rows_of(a.scales, a.k // BLOCK)
    var row = Int(lane.source)
    var is_lost = False
    var index = UInt32(0)
    while lane.has_any(index, to.num_steps * UInt32(STEP_CHUNKS)):
        comptime if dtype == CODES:
            var words = Array[Bytes, LANE_CHUNKS](uninitialized=True)
            var found = Array[UInt8, LANE_CHUNKS](uninitialized=True)
            comptime for i in range(LANE_CHUNKS):
                var chunk = Int(min(lane.chunk(index + UInt32(i)), row_chunks - 1))
                comptime if element != ELEMENT:
                    words[i] = _bytes_of_sixes[element](a, row, chunk)
                else:
                    words[i] = codes.load[width=2, alignment=CHUNK](Coord(row, chunk * 2))
                found[i] = scales[row, chunk // LANES_PER_BLOCK]
            comptime for i in range(LANE_CHUNKS):
                var scale = scale_of_bytes[element](found[i].cast[DType.uint32]())
                is_lost |= _store_chunk[SPAN](
                    stores, factors, lane, index, row_chunks, words[i], scale
                )
                index += 1
        else:
            var floats = load_floats[dtype](a, lane, index)
            comptime for i in range(LANE_CHUNKS):
                # All lanes take every turn: those of a block ask together.
                var amax = amax_of_lanes[log2_floor(LANES_PER_BLOCK)](magnitude_of(floats[i]))
                var scale = scale_of_magnitude(amax, a.carry, materialize[element]())
                var words = _encode[element](floats[i].cast[DType.float32](), scale)
                scale = scale_of_bytes[element](scale)
                is_lost |= _store_chunk[SPAN](
                    stores, factors, lane, index, row_chunks, words, scale
                )
                index += 1
    var flag = lane.largest(SIMD[DType.uint32, 1](UInt32(1) if is_lost else UInt32(0)))[0]
    exponents.store_of_a(lane, NO_EXPONENT if flag != 0 else ZEROS_EXPONENT.cast[DType.uint8]())


@always_inline
def _store_chunk[
    span: Int
](
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
    var is_shared = above == 0 or is_tile_exponent[span](largest, ~above)
    var bytes = stores.exchanged(scaled_down(words, exponent - scale) if counts else Bytes(0))
    if stores.is_inside(index):
        stores.store(index, bytes)
        if lane.index % UInt32(STEP_CHUNKS) == 0:
            var factor = f32_of_scale(exponent) if is_shared else Float32(from_bits=NO_FACTOR)
            flat_of(factors.of(lane.row, stores.step(index)))[0] = factor
    return not is_shared


@always_inline
def magnitude_of[dtype: DType](x: SIMD[dtype, CHUNK]) -> UInt32:
    """Returns the float32 bits of the largest magnitude of a chunk."""
    comptime if dtype == DType.bfloat16:
        var largest = packed_magnitude(bitcast[DType.uint32, WORD_PAIRS](x))
        return max(largest & 0xFFFF0000, largest << 16)
    else:
        return magnitude_of_chunk(x.cast[DType.float32]())


@always_inline
def _encode[element: Element](x: Chunk, scale: UInt32) -> Bytes:
    """Returns the bytes of a chunk under a scale byte; zeros for a NaN block."""
    var words: Bytes
    comptime if element != ELEMENT:
        words = _bytes_of_elements[element](rounded_values(x, scale, materialize[element]()))
    else:
        # A power of two: what it makes inexact is far below the smallest code.
        words = bytes_of["e4m3x2"](x * f32_of_inverse_scale(scale))
    return Bytes(0) if scale == UInt32(E8M0_NAN) else words


@always_inline
def _bytes_of_sixes[element: Element](a: Activations, row: Int, chunk: Int) -> Bytes:
    """Returns the bytes of a chunk of codes of six bits."""
    var rows = PackedRows[Plain](a.values, a.scales, a.k)
    var codes = rows.chunk[element.bits, RUN_BYTES](materialize[element](), row, chunk)
    return _bytes_of_elements[element](decode_chunk(codes, materialize[element]()))


@always_inline
def _bytes_of_elements[element: Element](values: Chunk) -> Bytes:
    """Returns the bytes of elements that E4M3 holds with a power of two, under a smaller scale."""
    comptime POWER = Float32(1 << e4m3_power(element))
    return bytes_of["e4m3x2"](values * POWER)


@always_inline
def scale_of_bytes[element: Element](scale: UInt32) -> UInt32:
    """Returns the scale of the bytes of a block: wrapped around, none that a stage shares."""
    comptime if element != ELEMENT:
        comptime POWER = UInt32(e4m3_power(element))
        return scale if scale == UInt32(E8M0_NAN) else scale - POWER
    else:
        return scale
