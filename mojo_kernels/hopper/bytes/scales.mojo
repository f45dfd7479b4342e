"""The float scales of weights, where they lie."""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from ...launch.queue import DevicePointer, device_pointer
from ...numbers.formats import block_of
from ...problem import Problem
from ...simt.views import flat_of


@fieldwise_init
struct WeightScales(DevicePassable, TrivialRegisterPassable):
    """The scales of all weights, blocks row by row; along K a block is a stage or a whole row."""

    comptime device_type: AnyType = Self

    var first: DevicePointer[DType.float32]
    var row_bits: UInt32
    """Rows of a block, as an exponent."""
    var row_blocks: UInt32
    """Blocks of a row."""

    @staticmethod
    def of(problem: Problem) -> Self:
        """Finds the scales of a product."""
        var block = block_of(problem.right.format)
        return Self(
            device_pointer[DType.float32](problem.right.scales),
            UInt32(block.row_bits),
            UInt32(block.k_blocks(problem.k)),
        )

    @staticmethod
    def none() -> Self:
        """Returns the scales of no weights."""
        return Self(device_pointer[DType.float32](0), 0, 0)

    @always_inline
    def of_row(self, row: UInt32) -> UInt32:
        """Returns the place of the first block of a row."""
        return (row >> self.row_bits) * self.row_blocks

    @always_inline
    def at(self, row: UInt32, step: UInt32) -> Float32:
        """Returns the scale of a stage, of the row whose first block has a place."""
        var block = row + step if self.row_blocks > 1 else row
        return flat_of(self.first)[Int(block)]

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "WeightScales"
