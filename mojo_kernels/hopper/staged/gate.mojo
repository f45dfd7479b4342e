"""Kernels that are launched in any case and end at once where they are not needed.

A product is first computed with bytes, see `hopper.fp8`; that is right if every row of both
sides has a base. The kernel that computes it with bfloat16 numbers is launched behind, looks at
a word, and ends if no base is missing: the host asks nobody and waits for nothing.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from ...launch.queue import DevicePointer, device_pointer
from ...simt.views import flat_of


@fieldwise_init
struct Gate(DevicePassable, TrivialRegisterPassable):
    """The word that says whether a kernel is needed; none where it runs in any case."""

    comptime device_type: AnyType = Self

    var word: DevicePointer[DType.uint32]
    """Zero if the kernel is not needed; the kernel before writes it."""
    var is_there: Bool
    """Whether there is a word to look at."""

    @staticmethod
    def open() -> Self:
        """Returns the gate of a kernel that runs in any case."""
        return Self(device_pointer[DType.uint32](0), False)

    @always_inline
    def is_closed(self) -> Bool:
        """Says whether the kernel is not needed."""
        return flat_of(self.word)[0] == 0

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Gate"
