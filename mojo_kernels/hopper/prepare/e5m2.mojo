"""Encoder: rows of A as E5M2 bytes under a shared exponent each.

A lane has some chunks of a row, see `source`. They stay in registers until the exponent is known:

    bfloat16 numbers       as they come: the exponent follows from the largest magnitude of the row
                           and the smallest one of its blocks that are no zeros. Times a power of
                           two that it gives, their rounded numbers have a byte's bits in a row.
    codes, other floats    as codes, which `E5M2Table` turns into bytes

A row whose blocks differ too much has no shared exponent: each block has its own, its scale. Such a
row of bfloat16 numbers is read once more, chunk by chunk.
"""

from std.math import ceildiv

from ...numbers.scales import E8M0_BIAS
from ...simt.arguments import Activations
from ...simt.codec import encode_chunk, pack, scale_of_block
from ...simt.host import BFLOAT16, CHUNK
from ...simt.views import rows_of
from ..host.workspace import LANE_CHUNKS, MANY_CHUNKS
from ..instructions.packed import EXPONENT_UNIT, Pairs, multiply_pairs, pick_bytes
from ..instructions.warp import keep_branch
from ..layout import K_LANES, OPERANDS
from ..codec import (
    encode_neighbours,
    load_neighbours,
    magnitude_of_block,
    round_packed,
    scale_of_magnitude,
    scale_of_neighbours,
)
from .codes import (
    Bytes,
    E5M2Table,
    E5M2_SPAN,
    LARGEST_POWER,
    MAGNITUDES,
    NO_EXPONENT,
    ZEROS_EXPONENT,
    is_shareable,
)
from .exponents import SharedExponents
from .source import LaneOfRow
from ..gemm_operands import StagedRows
from .stages import LaneStores, Order, STEP_CHUNKS

comptime BYTE_FIELDS = 96
"""What bfloat16's exponent field is larger by than that of E5M2, where the bits between are 011."""
comptime LARGEST_FIELD = BYTE_FIELDS + 15 + LARGEST_POWER
"""The field of a number of the largest power."""


@always_inline
def encode_row[
    CHUNKS: Int, order: Order
](a: Activations, to: StagedRows, exponents: SharedExponents, lane: LaneOfRow):
    """Writes the bytes and the shared exponent of this thread's row; a lane has `CHUNKS` chunks."""
    if a.is_encoded() or a.dtype != BFLOAT16:
        keep_branch()
        return _encode_codes[CHUNKS, order](a, to, exponents, lane)
    _encode_bf16[CHUNKS, order](a, to, exponents, lane)


@always_inline
def _store_block_exponent(
    a: Activations, exponents: SharedExponents, lane: LaneOfRow, chunk: UInt32, scale: UInt32
):
    """Stores the scale of a chunk's block as its own exponent."""
    var is_first = chunk % UInt32(K_LANES) == 0 and chunk < UInt32(a.k) // UInt32(CHUNK)
    if is_first and lane.is_there:
        var block = Int(chunk // UInt32(K_LANES))
        exponents.of_blocks(UInt32(a.k))[Int(lane.row), block] = scale.cast[DType.uint8]()


@always_inline
def _store_chunk(stores: LaneStores[_], index: UInt32, bytes: Bytes):
    """Stores one of a lane's chunks; all lanes of the warp call it."""
    var exchanged = stores.exchanged(bytes)
    if stores.is_inside(index):
        stores.store(index, exchanged)


@always_inline
def _encode_bf16[
    CHUNKS: Int, order: Order
](a: Activations, to: StagedRows, exponents: SharedExponents, lane: LaneOfRow):
    """Writes a row of bfloat16 numbers."""
    comptime BATCH = CHUNKS // ceildiv(CHUNKS, LANE_CHUNKS)
    # More would leave no registers: they are loaded twice.
    comptime HOLDS = CHUNKS <= MANY_CHUNKS
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var last = lane.last_chunk(row_chunks)
    var numbers = Array[Pairs, CHUNKS if HOLDS else BATCH](uninitialized=True)
    var maxima = Array[UInt32, CHUNKS](fill=0)
    var largest = UInt32(0)
    var below_smallest = UInt32.MAX
    comptime for first in range(0, CHUNKS, BATCH):
        comptime held = first if HOLDS else 0
        if HOLDS or lane.has_any(UInt32(first), row_chunks):
            comptime for i in range(BATCH):
                var chunk = min(lane.chunk(UInt32(first + i)), last)
                numbers[held + i] = load_neighbours(a, lane.source, chunk)
            comptime for i in range(BATCH):
                maxima[first + i] = magnitude_of_block(numbers[held + i])
                largest = max(largest, maxima[first + i])
                # Of zeros, more than all.
                below_smallest = min(below_smallest, maxima[first + i] - 1)

    var ends = lane.largest(SIMD[DType.uint32, 2](largest, ~below_smallest))
    below_smallest = ~ends[1]
    var exponent = ZEROS_EXPONENT
    var smallest = ZEROS_EXPONENT
    if below_smallest != UInt32.MAX:
        exponent = scale_of_magnitude(ends[0], a.carry)
        smallest = scale_of_magnitude(below_smallest + 1, a.carry)
    if not is_shareable(exponent) or exponent - smallest > UInt32(E5M2_SPAN):
        keep_branch()
        return _encode_blocks[order](a, to, exponents, lane)
    exponents.store_of_a(lane, exponent.cast[DType.uint8]())

    var factor = (UInt32(LARGEST_FIELD + E8M0_BIAS) - exponent) * EXPONENT_UNIT
    var to_field = Int32(LARGEST_FIELD - OPERANDS.element.emax) - Int32(exponent)
    var stores = LaneStores[order].of(to, lane)
    comptime for first in range(0, CHUNKS, BATCH):
        comptime held = first if HOLDS else 0
        if HOLDS or lane.has_any(UInt32(first), row_chunks):
            comptime if not HOLDS:
                comptime for i in range(BATCH):
                    var chunk = min(lane.chunk(UInt32(first + i)), last)
                    numbers[i] = load_neighbours(a, lane.source, chunk)
            comptime for i in range(BATCH):
                var scaled = multiply_pairs(
                    numbers[held + i],
                    factor if lane.chunk(UInt32(first + i)) < row_chunks else 0,
                )
                var field = _scale_field(maxima[first + i], a.carry, to_field)
                _store_chunk(stores, UInt32(first + i), _bytes_of(scaled, field))


@always_inline
def _scale_field(amax: UInt32, carry: UInt32, to_field: Int32) -> UInt32:
    """Returns the exponent field of a block's scale among numbers that have a byte's bits.

    Blocks of zeros get the smallest one.
    """
    comptime SMALLEST = LARGEST_FIELD - E5M2_SPAN
    comptime assert OPERANDS.element.emax > 0, "scales are clamped below"
    var field = Int32((amax + (carry >> 16)) >> 7) + to_field
    return UInt32(max(field, Int32(SMALLEST)))


@always_inline
def _bytes_of(numbers: Pairs, scale: UInt32) -> Bytes:
    """Returns numbers, rounded under a scale, as E5M2 bytes: sign, fields less 96, mantissa."""
    comptime MAGNITUDE_OF_BYTE = UInt32(0x7F007F00)
    comptime UPPER_BYTES = UInt32(0x7531)
    var rounded = round_packed(numbers, scale)
    comptime for i in range(CHUNK // 2):
        var shifted = rounded[i] << 3
        rounded[i] = shifted & MAGNITUDE_OF_BYTE | rounded[i] & ~MAGNITUDE_OF_BYTE
    return {
        pick_bytes(rounded[0], rounded[1], UPPER_BYTES),
        pick_bytes(rounded[2], rounded[3], UPPER_BYTES),
    }


@no_inline
def _encode_blocks[
    order: Order
](a: Activations, to: StagedRows, exponents: SharedExponents, lane: LaneOfRow):
    """Writes a row of bfloat16 numbers that shares no exponent: its blocks have theirs."""
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var last = lane.last_chunk(row_chunks)
    var stores = LaneStores[order].of(to, lane)
    var table = E5M2Table.under(ZEROS_EXPONENT)
    exponents.store_of_a(lane, NO_EXPONENT)
    for i in range(ceildiv(to.num_steps * UInt32(STEP_CHUNKS), lane.lanes())):
        var chunk = lane.chunk(UInt32(i))
        var neighbours = load_neighbours(a, lane.source, min(chunk, last))
        var scale = scale_of_neighbours(neighbours, a.carry)[0]
        var word = encode_neighbours(neighbours, scale)
        _store_block_exponent(a, exponents, lane, chunk, scale)
        word = word if chunk < row_chunks else 0
        _store_chunk(stores, UInt32(i), table.bytes(word, ZEROS_EXPONENT))


@always_inline
def _encode_codes[
    CHUNKS: Int, order: Order
](a: Activations, to: StagedRows, exponents: SharedExponents, lane: LaneOfRow):
    """Writes a row of codes, or of other floats."""
    comptime BATCH = CHUNKS // ceildiv(CHUNKS, LANE_CHUNKS)
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var words = Array[UInt32, CHUNKS](fill=0)
    var scales = Array[UInt32, CHUNKS](fill=0)
    comptime for first in range(0, CHUNKS, BATCH):
        if lane.has_any(UInt32(first), row_chunks):
            _load_batch[first, BATCH](a, lane, row_chunks, words, scales)

    var largest = UInt32(0)
    var smallest = UInt32.MAX
    comptime for i in range(CHUNKS):
        largest = max(largest, scales[i])
        if words[i] & MAGNITUDES != 0:
            smallest = min(smallest, scales[i])
    var ends = lane.largest(SIMD[DType.uint32, 2](largest, ~smallest))
    var exponent = ends[0] if ends[0] > 0 else ZEROS_EXPONENT
    smallest = ~ends[1]
    var is_near = exponent <= smallest or exponent - smallest <= UInt32(E5M2_SPAN)
    var is_shared = is_shareable(exponent) and is_near
    exponents.store_of_a(lane, exponent.cast[DType.uint8]() if is_shared else NO_EXPONENT)
    if not is_shared:
        keep_branch()
        comptime for i in range(CHUNKS):
            _store_block_exponent(a, exponents, lane, lane.chunk(UInt32(i)), scales[i])
            scales[i] = exponent

    var table = E5M2Table.under(exponent)
    var stores = LaneStores[order].of(to, lane)
    comptime for i in range(CHUNKS):
        _store_chunk(stores, UInt32(i), table.bytes(words[i], scales[i]))


@always_inline
def _load_batch[
    CHUNKS: Int, //, first: Int, BATCH: Int
](
    a: Activations,
    lane: LaneOfRow,
    row_chunks: UInt32,
    mut words: Array[UInt32, CHUNKS],
    mut scales: Array[UInt32, CHUNKS],
):
    """Loads chunks as codes and scales; those past the end of a row are zeros."""
    var last = lane.last_chunk(row_chunks)
    var row = Int(lane.source)
    if a.is_encoded():
        keep_branch()
        var k_blocks = Int(row_chunks) // K_LANES
        var all_words = rows_of(a.values.unsafe_bitcast[UInt32](), k_blocks * K_LANES)
        var all_scales = rows_of(a.scales, k_blocks)
        comptime for i in range(BATCH):
            var chunk = Int(min(lane.chunk(UInt32(first + i)), last))
            words[first + i] = all_words[row, chunk]
            scales[first + i] = all_scales[row, chunk // K_LANES].cast[DType.uint32]()
    else:
        comptime for i in range(BATCH):
            var chunk = min(lane.chunk(UInt32(first + i)), last)
            var x = a.floats().load[CHUNK, CHUNK](row, Int(chunk) * CHUNK)
            scales[first + i] = scale_of_block(x, a.carry, materialize[OPERANDS.element]())
            var codes = encode_chunk[False](x, scales[first + i], materialize[OPERANDS.element]())
            words[first + i] = pack[OPERANDS.element.bits](codes)[0]
    comptime for i in range(BATCH):
        if lane.chunk(UInt32(first + i)) >= row_chunks:
            words[first + i] = 0
            scales[first + i] = 0
