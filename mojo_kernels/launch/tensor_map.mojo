"""Tensor maps: rows of bytes, as the copy engine of an NVIDIA GPU cuts tiles out of them.

A copy names a map and a place. It brings `BOX_BYTES` of some rows to shared memory, swizzled as
tensor cores read them; what lies outside the rows is zero. Only the driver knows what a map looks
like, and makes it on the host: a launch hands it over by value, an argument of 128 bytes.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory.alloc import unsafe_alloc
from std.utils import StaticTuple

from .c_function import c_function

comptime BOX_BYTES = 128
"""Bytes of a row in a tile."""
comptime MAP_WORDS = 16
"""Of eight bytes."""
comptime MAP_ALIGNMENT = 64
"""A map begins at a multiple of this."""

comptime ENCODER = "cuTensorMapEncodeTiled"
"""The driver's function that makes a map."""
comptime _UINT8 = Int32(0)
comptime _NO_INTERLEAVE = Int32(0)
comptime _SWIZZLE_128 = Int32(3)
comptime _PROMOTE_256 = Int32(3)
"""The second-level cache fetches 256 bytes at once: the next box of a row too."""
comptime _FILL_ZEROS = Int32(0)
comptime _SIZES_AT = MAP_WORDS
"""Where the sizes are, in words: bytes of a row, then rows."""
comptime _STRIDE_AT = MAP_WORDS + 2
"""Where the bytes from one row to the next are."""
comptime _BOX_AT = MAP_WORDS + 3
"""Where the sizes of a tile are, four bytes each."""
comptime _STEPS_AT = MAP_WORDS + 4
"""Where the steps of a tile are, likewise."""
comptime _TOLD_WORDS = MAP_WORDS + 5
comptime _EncodeTiled = def(
    Int, Int32, UInt32, Int, Int, Int, Int, Int, Int32, Int32, Int32, Int32
) abi("C") thin -> Int32


@fieldwise_init
struct MappedRows(TrivialRegisterPassable):
    """What is mapped: rows, and the tiles that are cut out of them."""

    var address: Int
    """A multiple of `MAPPED_ALIGNMENT`."""
    var rows: Int
    var row_bytes: Int
    """A multiple of `MAPPED_ALIGNMENT`."""
    var stride_bytes: Int
    """From one row to the next, likewise; no less than a row has."""
    var box_rows: Int
    """Rows of a tile, at most 256."""


@fieldwise_init
@align(MAP_ALIGNMENT)
struct TensorMap(DevicePassable, ImplicitlyCopyable):
    """A map, as the driver made it.

    A kernel that declares one wants `nvvm.grid_constant` for it: copies take its address.
    """

    comptime device_type: AnyType = Self

    var words: StaticTuple[UInt64, MAP_WORDS]

    @staticmethod
    def described(rows: MappedRows) -> Self:
        """Returns what no device knows: the rows in plain words, for who runs kernels elsewhere."""
        var words = StaticTuple[UInt64, MAP_WORDS](fill=0)
        words[0] = UInt64(rows.address)
        words[1] = UInt64(rows.rows)
        words[2] = UInt64(rows.row_bytes)
        words[3] = UInt64(rows.stride_bytes)
        words[4] = UInt64(rows.box_rows)
        return Self(words)

    @staticmethod
    def encoded(encoder: Int, rows: MappedRows) raises -> Self:
        """Returns the map of some rows; the encoder is the address of the driver's function."""
        # The driver reads and writes memory that the compiler does not know to be used.
        var told = unsafe_alloc[UInt64](_TOLD_WORDS, alignment=MAP_ALIGNMENT)
        var address = Int(told)
        told.unsafe_offset(_SIZES_AT)[] = UInt64(rows.row_bytes)
        told.unsafe_offset(_SIZES_AT + 1)[] = UInt64(rows.rows)
        told.unsafe_offset(_STRIDE_AT)[] = UInt64(rows.stride_bytes)
        told.unsafe_offset(_BOX_AT)[] = UInt64(BOX_BYTES | rows.box_rows << 32)
        told.unsafe_offset(_STEPS_AT)[] = UInt64(1 | 1 << 32)
        var status = c_function[_EncodeTiled](encoder)(
            address, _UINT8, 2, rows.address, address + 8 * _SIZES_AT, address + 8 * _STRIDE_AT,
            address + 8 * _BOX_AT, address + 8 * _STEPS_AT,
            _NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_256, _FILL_ZEROS,
        )  # fmt: skip
        var map = told.unsafe_bitcast[Self]()[]
        told.unsafe_free()
        if status != 0:
            raise Error(
                String(
                    "CUDA error ", status, " mapping ", rows.rows, " rows of ", rows.row_bytes,
                    " bytes at ", rows.address, " in tiles of ", rows.box_rows, " rows",
                )
            )  # fmt: skip
        return map

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "TensorMap"
