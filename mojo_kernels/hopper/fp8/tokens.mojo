"""Rows of tokens as E5M2 bytes under a base each, in stages.

A lane has some chunks of a row, see `dense.lanes`, and they stay in registers until the base is known:

    bfloat16 numbers        as they come: the base follows from the largest magnitude of the row and
                            the smallest one of its blocks that are no zeros. Times a power of two that
                            the base gives, their rounded numbers have a byte's bits in a row.
    codes, other floats     as codes, which `ByteTable` turns into bytes

A row that has no base is read once more, chunk by chunk.
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_xor
from std.math import ceildiv

from ...launch.queue import DevicePointer
from ...numbers.scales import E8M0_BIAS
from ...simt.arguments import Activations
from ...simt.codec import encode_chunk, pack, scale_of_block
from ...simt.host import BFLOAT16, CHUNK
from ...simt.views import flat_of, rows_of
from ..dense.lanes import LaneOfRow, LaneSteps
from ..dense.stages import StagedRows
from ..host.workspace import LANE_CHUNKS, MANY_CHUNKS, MAX_CHUNKS
from ..instructions.packed import EXPONENT_UNIT, Pairs, multiply_pairs, pick_bytes
from ..instructions.warp import keep_branch
from ..layout import K_LANES, OPERANDS
from ..operands.activations import (
    encode_neighbours,
    load_neighbours,
    magnitude_of_block,
    round_packed,
    scale_of_magnitude,
    scale_of_neighbours,
)
from ..shapes import BYTE_STEP_BLOCKS as STEP_BLOCKS
from .bases import ByteRows
from .codes import ByteTable, EMPTY_BASE, LARGEST_POWER, MAGNITUDES, NO_BASE, SPAN, is_base
from .places import DECODES_NONE, place_of_chunk

comptime CHUNK_COUNTS = [1, 2, 3, 4, 6, MANY_CHUNKS, MAX_CHUNKS]
"""Chunks of a lane that kernels are compiled for: enough of them."""
comptime Bytes = SIMD[DType.uint32, 2]
"""A chunk as bytes: its first four, and its last four."""
comptime BYTE_FIELDS = 96
"""What bfloat16's exponent field is larger by than that of E5M2, where the bits between are 011."""


@always_inline
def prepare_token[CHUNKS: Int](a: Activations, rows: ByteRows[_], place: LaneOfRow):
    """Writes the bytes and the base of this thread's row of tokens."""
    if a.is_encoded() or a.dtype != BFLOAT16:
        keep_branch()
        return prepare_codes[CHUNKS](a, rows, place)
    prepare_numbers[CHUNKS](a, rows, place)


@fieldwise_init
struct LaneBytes[decodes: Int](TrivialRegisterPassable):
    """Where the bytes of a lane's chunks go, if codes of so many bits are decoded as they go."""

    comptime NEIGHBOUR = UInt32(1 if Self.decodes == DECODES_NONE else K_LANES + 1)
    """What the number of the lane differs by whose words lie next to this one's."""

    var steps: LaneSteps
    var first: DevicePointer[DType.uint8]
    """The place of the first one."""
    var num_steps: UInt32
    var is_odd: Bool
    """Whether the lane's words are the second ones of two."""
    var is_turned: Bool
    """Whether the second word of a chunk comes first."""
    var is_there: Bool

    @staticmethod
    @always_inline
    def of(rows: StagedRows, place: LaneOfRow) -> Self:
        """Returns those of a lane."""
        comptime STEP_CHUNKS = STEP_BLOCKS * K_LANES
        var block, chunk = divmod(place.lane % UInt32(STEP_CHUNKS), UInt32(K_LANES))
        var part, word = place_of_chunk[Self.decodes](block, chunk)
        var half, odd = divmod(word, UInt32(2))
        var steps = LaneSteps.of[STEP_CHUNKS](rows, place)
        var first = rows.part(place.row, steps.first, part + odd).unsafe_offset(8 * Int(half))
        var is_turned = Self.decodes == 8 and half == 1
        return Self(steps, first, rows.num_steps, odd == 1, is_turned, place.is_there)

    @always_inline
    def store(self, index: UInt32, bytes: Bytes):
        """Stores one of a lane's chunks; all lanes of the warp call it.

        Neighbours exchange: one gets the first part of both chunks.
        """
        var words = Bytes(bytes[1], bytes[0]) if self.is_turned else bytes
        var received = shuffle_xor(words[0] if self.is_odd else words[1], Self.NEIGHBOUR)
        if self.steps.step(index) < self.num_steps and self.is_there:
            var first = received if self.is_odd else words[0]
            var to = self.steps.from_first(self.first, index).unsafe_bitcast[UInt32]()
            flat_of(to).store[alignment=8](
                Coord(0), Bytes(first, words[1] if self.is_odd else received)
            )


@always_inline
def store_base(rows: ByteRows[_], place: LaneOfRow, base: UInt8):
    """Stores the base of a lane's row."""
    if place.lane == 0 and place.is_there:
        rows.bases.of_tokens()[Int(place.row)] = base


@always_inline
def prepare_numbers[CHUNKS: Int](a: Activations, rows: ByteRows[_], place: LaneOfRow):
    """Writes a row of bfloat16 numbers."""
    comptime BATCH = CHUNKS // ceildiv(CHUNKS, LANE_CHUNKS)
    # More would leave no registers: they are loaded twice.
    comptime HOLDS = CHUNKS <= MANY_CHUNKS
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var last = last_chunk_of(place, row_chunks)
    var numbers = Array[Pairs, CHUNKS if HOLDS else BATCH](uninitialized=True)
    var maxima = Array[UInt32, CHUNKS](fill=0)
    var largest = UInt32(0)
    var below_smallest = UInt32.MAX
    comptime for first in range(0, CHUNKS, BATCH):
        comptime held = first if HOLDS else 0
        if HOLDS or place.has_any(UInt32(first), row_chunks):
            comptime for i in range(BATCH):
                var chunk = min(place.chunk(UInt32(first + i)), last)
                numbers[held + i] = load_neighbours(a, place.source, chunk)
            comptime for i in range(BATCH):
                maxima[first + i] = magnitude_of_block(numbers[held + i])
                largest = max(largest, maxima[first + i])
                # Of zeros, more than all.
                below_smallest = min(below_smallest, maxima[first + i] - 1)

    var ends = place.lanes.largest(SIMD[DType.uint32, 2](largest, ~below_smallest))
    below_smallest = ~ends[1]
    var base = EMPTY_BASE
    var smallest = EMPTY_BASE
    if below_smallest != UInt32.MAX:
        base = scale_of_magnitude(ends[0], a.carry)
        smallest = scale_of_magnitude(below_smallest + 1, a.carry)
    if not is_base(base) or base - smallest > UInt32(SPAN):
        keep_branch()
        return prepare_spread(a, rows, place)
    store_base(rows, place, base.cast[DType.uint8]())

    # A number of the largest power has a field of bytes.
    comptime FIELD_AT_BASE = BYTE_FIELDS + 15 + LARGEST_POWER
    var factor = (UInt32(FIELD_AT_BASE + E8M0_BIAS) - base) * EXPONENT_UNIT
    var to_field = Int32(FIELD_AT_BASE - OPERANDS.element.emax) - Int32(base)
    var bytes_at = LaneBytes[rows.DECODES].of(rows.left, place)
    comptime for first in range(0, CHUNKS, BATCH):
        comptime held = first if HOLDS else 0
        if HOLDS or place.has_any(UInt32(first), row_chunks):
            comptime if not HOLDS:
                comptime for i in range(BATCH):
                    var chunk = min(place.chunk(UInt32(first + i)), last)
                    numbers[i] = load_neighbours(a, place.source, chunk)
            comptime for i in range(BATCH):
                var scaled = multiply_pairs(
                    numbers[held + i],
                    factor if place.chunk(UInt32(first + i)) < row_chunks else 0,
                )
                bytes_at.store(
                    UInt32(first + i),
                    bytes_of(scaled, scale_field(maxima[first + i], a.carry, to_field)),
                )


@always_inline
def scale_field(amax: UInt32, carry: UInt32, to_field: Int32) -> UInt32:
    """Returns the exponent field of a block's scale among numbers that have a byte's bits.

    Blocks of zeros get the smallest one.
    """
    comptime SMALLEST = BYTE_FIELDS + 15 + LARGEST_POWER - SPAN
    comptime assert OPERANDS.element.emax > 0, "scales are clamped below"
    var field = Int32((amax + (carry >> 16)) >> 7) + to_field
    return UInt32(max(field, Int32(SMALLEST)))


@always_inline
def bytes_of(numbers: Pairs, scale: UInt32) -> Bytes:
    """Returns numbers, rounded under a scale, as E5M2 bytes: sign, fields less 96, mantissa."""
    comptime MAGNITUDE_OF_BYTE = UInt32(0x7F007F00)
    var rounded = round_packed(numbers, scale)
    comptime for i in range(CHUNK // 2):
        var shifted = rounded[i] << 3
        rounded[i] = shifted & MAGNITUDE_OF_BYTE | rounded[i] & ~MAGNITUDE_OF_BYTE
    comptime UPPER_BYTES = UInt32(0x7531)
    return {
        pick_bytes(rounded[0], rounded[1], UPPER_BYTES),
        pick_bytes(rounded[2], rounded[3], UPPER_BYTES),
    }


@no_inline
def prepare_spread(a: Activations, rows: ByteRows[_], place: LaneOfRow):
    """Writes a row of bfloat16 numbers that has no base: its blocks have theirs."""
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var last = last_chunk_of(place, row_chunks)
    var bytes_at = LaneBytes[rows.DECODES].of(rows.left, place)
    store_base(rows, place, NO_BASE)
    for i in range(
        ceildiv(rows.left.num_steps * UInt32(STEP_BLOCKS * K_LANES), place.lanes.lanes())
    ):
        var chunk = place.chunk(UInt32(i))
        var neighbours = load_neighbours(a, place.source, min(chunk, last))
        var scale = scale_of_neighbours(neighbours, a.carry)[0]
        var word = encode_neighbours(neighbours, scale)
        store_block_base(a, rows, place, chunk, scale)
        bytes_at.store(UInt32(i), bytes_of_spread(word if chunk < row_chunks else 0))


@always_inline
def bytes_of_spread(word: UInt32) -> Bytes:
    """Returns codes as bytes under their block's own base."""
    return ByteTable.of_base(EMPTY_BASE).bytes(word, EMPTY_BASE)


@always_inline
def store_block_base(
    a: Activations, rows: ByteRows[_], place: LaneOfRow, chunk: UInt32, scale: UInt32
):
    """Stores the scale of a chunk's block as its base."""
    var is_first = chunk % UInt32(K_LANES) == 0 and chunk < UInt32(a.k) // UInt32(CHUNK)
    if is_first and place.is_there:
        var block = Int(chunk // UInt32(K_LANES))
        rows.bases.of_blocks(UInt32(a.k))[Int(place.row), block] = scale.cast[DType.uint8]()


@always_inline
def last_chunk_of(place: LaneOfRow, row_chunks: UInt32) -> UInt32:
    """Returns the last chunk of a row that is a lane's: whole blocks are in or out of range."""
    return row_chunks - UInt32(K_LANES) + place.lane % UInt32(K_LANES)


@always_inline
def prepare_codes[CHUNKS: Int](a: Activations, rows: ByteRows[_], place: LaneOfRow):
    """Writes a row of codes, or of other floats."""
    comptime BATCH = CHUNKS // ceildiv(CHUNKS, LANE_CHUNKS)
    var row_chunks = UInt32(a.k) // UInt32(CHUNK)
    var words = Array[UInt32, CHUNKS](fill=0)
    var scales = Array[UInt32, CHUNKS](fill=0)
    comptime for first in range(0, CHUNKS, BATCH):
        if place.has_any(UInt32(first), row_chunks):
            load_batch[first, BATCH](a, place, row_chunks, words, scales)

    var largest = UInt32(0)
    var smallest = UInt32.MAX
    comptime for i in range(CHUNKS):
        largest = max(largest, scales[i])
        if words[i] & MAGNITUDES != 0:
            smallest = min(smallest, scales[i])
    var ends = place.lanes.largest(SIMD[DType.uint32, 2](largest, ~smallest))
    var base = ends[0] if ends[0] > 0 else EMPTY_BASE
    smallest = ~ends[1]
    var has_base = is_base(base) and (base <= smallest or base - smallest <= UInt32(SPAN))
    store_base(rows, place, base.cast[DType.uint8]() if has_base else NO_BASE)
    if not has_base:
        keep_branch()
        comptime for i in range(CHUNKS):
            store_block_base(a, rows, place, place.chunk(UInt32(i)), scales[i])
            scales[i] = base

    var table = ByteTable.of_base(base)
    var bytes_at = LaneBytes[rows.DECODES].of(rows.left, place)
    comptime for i in range(CHUNKS):
        bytes_at.store(UInt32(i), table.bytes(words[i], scales[i]))


@always_inline
def load_batch[
    CHUNKS: Int, //, first: Int, BATCH: Int
](
    a: Activations,
    place: LaneOfRow,
    row_chunks: UInt32,
    mut words: Array[UInt32, CHUNKS],
    mut scales: Array[UInt32, CHUNKS],
):
    """Loads chunks as codes and scales; those past the end of a row are zeros."""
    # Lanes outside repeat the last block.
    var last = last_chunk_of(place, row_chunks)
    var token = Int(place.source)
    if a.is_encoded():
        keep_branch()
        var k_blocks = Int(row_chunks) // K_LANES
        var all_words = rows_of(a.values.unsafe_bitcast[UInt32](), k_blocks * K_LANES)
        var all_scales = rows_of(a.scales, k_blocks)
        comptime for i in range(BATCH):
            var chunk = Int(min(place.chunk(UInt32(first + i)), last))
            words[first + i] = all_words[token, chunk]
            var scale = all_scales[token, chunk // K_LANES]
            scales[first + i] = scale.cast[DType.uint32]()
    else:
        comptime for i in range(BATCH):
            var chunk = min(place.chunk(UInt32(first + i)), last)
            var x = a.floats().load[CHUNK, CHUNK](token, Int(chunk) * CHUNK)
            scales[first + i] = scale_of_block(x, a.carry, materialize[OPERANDS.element]())
            var codes = encode_chunk[False](x, scales[first + i], materialize[OPERANDS.element]())
            words[first + i] = pack[OPERANDS.element.bits](codes)[0]
    comptime for i in range(BATCH):
        if place.chunk(UInt32(first + i)) >= row_chunks:
            words[first + i] = 0
            scales[first + i] = 0
