"""E4M3 under float scales: rows of codes as they lie, or encoded from floats, and their factors.

Scales are one a row, or one for 128 elements of it; along K a block is a stage or a whole row. A
lane encodes chunks of eight elements, see `source`, some of which are on the way at once.

The instruction that converts rounds two quotients to nearest even and saturates, as the numbers of
the house do. Quotients are correctly rounded: two steps of Newton's make them, of the inverse of
the scale, rounded to nearest (Markstein 1990: the last one is exact, if what it begins with is less
than a unit off). A scale is taken for its mantissa, elements for as many powers of two less: so no
remainder underflows, but of elements so small that their codes are zero.
"""

from layout import Coord
from std.memory import bitcast

from ...launch.queue import DevicePointer, KernelStruct, device_pointer
from ...layouts import Plain
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS, FLOAT_TYPES, float_code
from ...numbers.formats import BlockShape, block_of
from ...numbers.rounding import float_scale_from_amax
from ...simt.arguments import Activations, Result, Weights
from ...simt.codec import Chunk, amax_of_lanes, is_nan_scale
from ...simt.encode import bytes_of
from ...simt.host import CHUNK
from ...simt.views import flat_of
from ..epilogue.fallback import RowOctet, compute_marked
from ..gemm_operands import BATCH, LOG_LIFT, SsOperands
from ..host.gemm import Scaling
from ..host.workspace import LANE_CHUNKS, PREPARE_WARPS as WARPS
from ..instructions.warp import keep_branch
from .codes import Bytes
from .e4m3 import ELEMENT, LOG_STEP_CHUNKS, magnitude_of
from .kernel import ANY_CHUNKS, PreparedOperands
from .source import LaneOfRow, load_floats
from .stages import STEP_CHUNKS

comptime SMALLEST_FACTOR = UInt32((F32_EXPONENT_BIAS - 116) << F32_MANTISSA_BITS)
"""The bits of the smallest factor, 2**-116, which `quantize` gives zeros: sums stay precise."""
comptime LARGEST_FACTOR = UInt32((F32_EXPONENT_BIAS + 64) << F32_MANTISSA_BITS)
"""The bits of the largest one, 2**64; sums of a row of codes are below 2**40."""
comptime INFINITY = UInt32(255 << F32_MANTISSA_BITS)
"""The bits of infinity; NaN has larger ones."""
comptime LARGEST_LIFTED = UInt32((F32_EXPONENT_BIAS + 48 + LOG_LIFT) << F32_MANTISSA_BITS)
"""The bits of the largest product that sums of a row of codes may be multiplied by: 2**88."""


@fieldwise_init
struct FloatScales(KernelStruct):
    """The scales of a side, blocks row by row; along K a block is a stage or a whole row."""

    var first: DevicePointer[DType.float32]
    var num_rows: UInt32
    """Rows of codes."""
    var row_bits: UInt32
    """Rows of a block, as an exponent."""
    var row_blocks: UInt32
    """Blocks of a row."""
    var step_blocks: UInt32
    """Blocks of a stage: none where a row has one."""

    @staticmethod
    def at(address: Int, rows: Int, block: BlockShape, k: Int) -> Self:
        """Returns those of a side."""
        return Self(
            device_pointer[DType.float32](address),
            UInt32(rows),
            UInt32(block.row_bits),
            UInt32(block.k_blocks(k)),
            UInt32(1 if block.k_blocks(k) > 1 else 0),
        )

    @always_inline
    def of_row(self, row: UInt32) -> UInt32:
        """Returns the place of the first block of a row; past the end, of the last one."""
        return (min(row, self.num_rows - 1) >> self.row_bits) * self.row_blocks

    @always_inline
    def lie_in_batches(self, step: UInt32) -> Bool:
        """Says whether those of rows of K are whole vectors of `BATCH` from a stage on."""
        comptime BYTES = 4 * BATCH
        var is_aligned = UInt32(Int(self.first) % BYTES) | (self.row_blocks | step) % UInt32(BATCH)
        return self.step_blocks != 0 and is_aligned == 0

    @always_inline
    def load_batch(self, place: UInt32, step: UInt32) -> SIMD[DType.float32, BATCH]:
        """Returns the scales of such a vector, of the row whose first block has a place."""
        return flat_of(self.first).load[width=BATCH, alignment=4 * BATCH](Coord(Int(place + step)))

    @always_inline
    def load(self, place: UInt32, step: UInt32) -> Float32:
        """Returns the scale of a stage, of the row whose first block has a place."""
        return flat_of(self.first)[Int(place + step * self.step_blocks)]


@always_inline
def is_extreme(factor: Float32) -> Bool:
    """Says whether sums times a factor may leave float32 where C does not."""
    var magnitude = _bits_of(factor)
    var is_outside = magnitude - SMALLEST_FACTOR > LARGEST_FACTOR - SMALLEST_FACTOR
    return is_outside and magnitude != 0 and magnitude <= INFINITY


@always_inline
def is_too_large(lifted: Float32) -> Bool:
    """Says whether sums times a lifted product of factors may leave float32 where C does not."""
    return _bits_of(lifted) > LARGEST_LIFTED


@always_inline
def _bits_of(factor: Float32) -> UInt32:
    """Returns the bits of a factor without its sign."""
    return bitcast[DType.uint32](factor) & 0x7FFFFFFF


@fieldwise_init
struct FloatOperands[scaling: Scaling](KernelStruct, SsOperands):
    """Both sides as callers gave them: E4M3 under float scales."""

    comptime TYPE: StaticString = "e4m3"
    comptime SCALING = Self.scaling

    var left: FloatScales
    var right: FloatScales

    @always_inline
    def row_place(self, row: UInt32) -> UInt32:
        return self.left.of_row(row)

    @always_inline
    def row_factor(self, place: UInt32, step: UInt32) -> Float32:
        return self.left.load(place, step)

    @always_inline
    def lie_in_batches(self, step: UInt32) -> Bool:
        return self.left.lie_in_batches(step)

    @always_inline
    def row_batch(self, place: UInt32, step: UInt32) -> SIMD[DType.float32, BATCH]:
        return self.left.load_batch(place, step)

    @always_inline
    def column_place(self, column: UInt32) -> UInt32:
        return self.right.of_row(column)

    @always_inline
    def column_factor(self, place: UInt32, step: UInt32) -> Float32:
        return self.right.load(place, step)

    @always_inline
    def has_tiles(self) -> Bool:
        return self.right.row_blocks > 1

    @always_inline
    def loses_row(self, factor: Float32) -> Bool:
        comptime if Self.scaling == Scaling.TILES:
            return is_too_large(factor)
        return False

    @always_inline
    def loses_column(self, factor: Float32) -> Bool:
        return is_extreme(factor)

    @always_inline
    def scale(self, sum: Float32, of_row: Float32, of_weight: Float32) -> Float32:
        # That of the row of A last: only C itself may be too large or too small.
        return sum * of_weight * of_row

    @always_inline
    def store_marked(
        self,
        a: Activations,
        w: Weights,
        result: Result,
        first_row: UInt32,
        end_row: UInt32,
        first_column: UInt32,
        of_rows: UInt32,
        of_columns: UInt32,
    ):
        var octet = RowOctet(first_row, end_row)
        compute_marked[Plain](a, w, result, octet, first_column, of_rows, of_columns)


# Floats on their way to codes.


@fieldwise_init
struct FloatScaledRows(PreparedOperands):
    """Rows of codes as callers' rows are, and their scales."""

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
def _encode_floats[dtype: DType](a: Activations, rows: FloatScaledRows, lane: LaneOfRow):
    """Encodes a row of floats under float scales, and writes it."""
    var num_chunks = UInt32(a.k // CHUNK)
    var num_blocks = block_of(Int(a.format)).k_blocks(a.k)
    var row_amax = UInt32(0)
    var floats = load_floats[dtype](a, lane, 0)
    var index = UInt32(LANE_CHUNKS)
    if num_blocks == 1:
        comptime for i in range(LANE_CHUNKS):
            row_amax = max(row_amax, magnitude_of(floats[i]))
        while lane.has_any(index, num_chunks):
            var more = load_floats[dtype](a, lane, index)
            comptime for i in range(LANE_CHUNKS):
                row_amax = max(row_amax, magnitude_of(more[i]))
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
                    var amax = amax_of_lanes[LOG_STEP_CHUNKS](magnitude_of(x))
                    scale = float_scale_from_amax(amax, materialize[ELEMENT](), a.carry != 0)
                var words = _encode(x.cast[DType.float32](), scale)
                if is_number and lane.is_there:
                    flat_of(to).store[alignment=CHUNK](Coord(Int(chunk) * 2), words)
                    if num_blocks > 1 and chunk % UInt32(STEP_CHUNKS) == 0:
                        flat_of(scale_to)[Int(chunk // UInt32(STEP_CHUNKS))] = scale
            index += 1
    if num_blocks == 1 and lane.index == 0 and lane.is_there:
        flat_of(scale_to)[0] = scale


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
    return Bytes(0) if is_nan_scale(scale) else bytes_of["e4m3x2"](quotients)
