"""The slots of tokens: whom each goes to, what it counts, and where its row is.

    ids, two slots a token      5 2 | 2 -1 | 5 9       of eight experts
    places of rows by expert    2 0 | 1 NO_PLACE | 3 UNKNOWN

Ids may be any numbers: a negative one stands for no expert.
"""

from ..experts import Routing
from ..launch.queue import DevicePointer, KernelStruct, device_pointer
from ..numbers.floats import float_code

comptime NO_EXPERT = -1
"""Stands for the expert of a row, or of a slot, that has none."""
comptime NO_PLACE = Int32(-1)
"""The place of a slot that adds nothing."""
comptime UNKNOWN = Int32(-2)
"""The place of a slot whose expert there is not."""


@fieldwise_init
struct Slots(KernelStruct):
    """The slots of all tokens."""

    var ids: DevicePointer[DType.uint8]
    """[tokens, per_token]."""
    var weights: DevicePointer[DType.uint8]
    """[tokens, per_token]."""
    var tokens: Int32
    var per_token: Int32
    var id_bytes: Int32
    """Bytes of an id, 4 or 8."""
    var weights_dtype: Int32
    """The position of their type in `FLOAT_TYPES`."""

    def __init__(out self, routing: Routing):
        """Takes the slots of a problem."""
        self.ids = device_pointer[DType.uint8](routing.ids)
        self.weights = device_pointer[DType.uint8](routing.weights)
        self.tokens = Int32(routing.tokens)
        self.per_token = Int32(routing.slots)
        self.id_bytes = Int32(routing.id_bytes)
        self.weights_dtype = Int32(routing.weights_dtype)

    @always_inline
    def count(self) -> Int:
        """Returns the slots of all tokens."""
        return Int(self.tokens) * Int(self.per_token)

    @always_inline
    def expert_of(self, slot: Int) -> Int:
        """Returns the id of a slot's expert, which need not exist, or `NO_EXPERT`."""
        comptime BYTES_OF_INT32 = 4
        if Int(self.id_bytes) == BYTES_OF_INT32:
            return max(Int(self.ids.unsafe_bitcast[Int32]()[unsafe_offset=slot]), NO_EXPERT)
        return max(Int(self.ids.unsafe_bitcast[Int64]()[unsafe_offset=slot]), NO_EXPERT)

    @always_inline
    def weight_of(self, slot: Int) -> Float32:
        """Returns what a slot counts."""
        comptime for dtype in [DType.bfloat16, DType.float16]:
            if self.weights_dtype == Int32(float_code(dtype)):
                return self._weight_of[dtype](slot)
        return self._weight_of[DType.float32](slot)

    @always_inline
    def _weight_of[dtype: DType](self, slot: Int) -> Float32:
        var weights = self.weights.unsafe_bitcast[Scalar[dtype]]()
        return weights[unsafe_offset=slot].cast[DType.float32]()
