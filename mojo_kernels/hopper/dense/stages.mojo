"""Rows that are ready for tensor cores: stages of 128 bytes of K, in the workspace.

    stage       rows of a tile x 128 bytes: part p of row r, 16 bytes, lies at part p ^ (r % 8)
    ...         the next stage of the tile; past the end of K there are zeros

Stages of a tile follow one another along K, and so one copy brings one to shared memory. Rows of a
tile that do not exist have anything. Tokens lie in tiles of as many rows as a group multiplies; or
both sides in tiles of one row, which are rows one after the other, as tensor maps want them.
"""

from layout.swizzle import Swizzle
from std.bit import log2_floor
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import ceildiv

from ...launch.queue import DevicePointer, device_pointer
from ...launch.tensor_map import MappedRows
from ..host.workspace import ALL_ROWS
from ..shapes import LANE_BYTES, PARTS, ROW_BYTES

comptime SWIZZLE = Swizzle(log2_floor(PARTS), 0, log2_floor(PARTS))
"""Exchanges the parts of a row by the row's number, as tensor cores expect rows of 128 bytes."""
comptime LOG_ALL_ROWS = UInt32(31)
"""The exponent of such a tile."""


@fieldwise_init
struct StagedRows(DevicePassable, TrivialRegisterPassable):
    """The rows of a side in a workspace."""

    comptime device_type: AnyType = Self

    var first: DevicePointer[DType.uint8]
    """The first stage of the first tile."""
    var num_steps: UInt32
    """Stages of a tile."""
    var log_tile_rows: UInt32
    """Rows of a tile, as an exponent: kernels need not divide."""
    var stage_bytes: UInt32
    """Bytes of a stage."""

    @staticmethod
    def at(address: Int, num_bytes: Int, num_rows: Int, tile_rows: Int) -> Self:
        """Returns rows of so many bytes that begin at an address; tiles may have all rows."""
        var is_tile = tile_rows != ALL_ROWS
        return Self(
            device_pointer[DType.uint8](address),
            UInt32(ceildiv(num_bytes, ROW_BYTES)),
            UInt32(log2_floor(tile_rows)) if is_tile else LOG_ALL_ROWS,
            UInt32(ROW_BYTES * (tile_rows if is_tile else num_rows)),
        )

    def mapped(self, num_rows: Int, box_rows: Int) -> MappedRows:
        """Returns so many rows as maps want them, cut into tiles: of tiles of a row."""
        var row_bytes = ROW_BYTES * Int(self.num_steps)
        return MappedRows(Int(self.first), num_rows, row_bytes, row_bytes, box_rows)

    @always_inline
    def place_of(self, row: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the tile of a row, and its place there."""
        var tile = row >> self.log_tile_rows
        return (tile, row - (tile << self.log_tile_rows))

    @always_inline
    def stage(self, tile: UInt32, step: UInt32) -> DevicePointer[DType.uint8]:
        """Returns where a stage begins."""
        var index = Int(tile) * Int(self.num_steps) + Int(step)
        return self.first.unsafe_offset(index * Int(self.stage_bytes))

    @always_inline
    def part(self, row: UInt32, step: UInt32, part: UInt32) -> DevicePointer[DType.uint8]:
        """Returns where sixteen bytes of a row lie."""
        var tile, in_tile = self.place_of(row)
        var at = SWIZZLE(in_tile * UInt32(PARTS) + part) * UInt32(LANE_BYTES)
        return self.stage(tile, step).unsafe_offset(Int(at))

    @always_inline
    def octet_bytes(self) -> UInt32:
        """Returns the bytes from a row of a stage to the eighth one behind it."""
        if self.log_tile_rows == 0:
            return self.num_steps * UInt32(8 * ROW_BYTES)
        return UInt32(8 * ROW_BYTES)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "StagedRows"
