"""Float scales of a side, where they lie, and which of them float32 sums can be multiplied by."""

from layout import Coord
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import bitcast

from ...launch.queue import DevicePointer, device_pointer
from ...numbers.floats import F32_EXPONENT_BIAS, F32_MANTISSA_BITS
from ...numbers.formats import BlockShape
from ...simt.views import flat_of

comptime SMALLEST_FACTOR = UInt32((F32_EXPONENT_BIAS - 116) << F32_MANTISSA_BITS)
"""The bits of the smallest factor, 2**-116, which `quantize` gives zeros: sums stay precise."""
comptime LARGEST_FACTOR = UInt32((F32_EXPONENT_BIAS + 64) << F32_MANTISSA_BITS)
"""The bits of the largest one, 2**64; sums of a row of codes are below 2**40."""
comptime INFINITY = UInt32(255 << F32_MANTISSA_BITS)
"""The bits of infinity; NaN has larger ones."""
comptime BATCH = 4
"""Stages whose factors are loaded at once: 16 bytes."""
comptime LOG_LIFT = 40
"""Products of a token's and a tile's factor are so many binary exponents larger in a kernel.

What is then below float32's normal numbers, 2**-166, times the sums of 128 codes is nothing that
bfloat16 or float16 could show.
"""
comptime LIFT = bitcast[DType.float32](UInt32((F32_EXPONENT_BIAS + LOG_LIFT) << F32_MANTISSA_BITS))
comptime UNLIFT = bitcast[DType.float32](
    UInt32((F32_EXPONENT_BIAS - LOG_LIFT) << F32_MANTISSA_BITS)
)
comptime LARGEST_LIFTED = UInt32((F32_EXPONENT_BIAS + 88) << F32_MANTISSA_BITS)
"""The bits of the largest product that sums of a row of codes may be multiplied by: 2**88."""


@fieldwise_init
struct FloatScales(DevicePassable, TrivialRegisterPassable):
    """The scales of a side, blocks row by row; along K a block is a stage or a whole row."""

    comptime device_type: AnyType = Self

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

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "FloatScales"


@always_inline
def is_extreme(factor: Float32) -> Bool:
    """Says whether sums times a factor may leave float32 where C does not."""
    var magnitude = magnitude_of(factor)
    var is_outside = magnitude - SMALLEST_FACTOR > LARGEST_FACTOR - SMALLEST_FACTOR
    return is_outside and magnitude != 0 and magnitude <= INFINITY


@always_inline
def is_too_large(lifted: Float32) -> Bool:
    """Says whether sums times a lifted product of factors may leave float32 where C does not."""
    return magnitude_of(lifted) > LARGEST_LIFTED


@always_inline
def magnitude_of(factor: Float32) -> UInt32:
    """Returns the bits of a factor without its sign."""
    return bitcast[DType.uint32](factor) & 0x7FFFFFFF
