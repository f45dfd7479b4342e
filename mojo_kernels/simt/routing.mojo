"""Which expert a row goes to, and that expert's weights, as a kernel gets them.

    group sizes     2 0 3 1     rows behind the last group go to no expert
    row             0 1 | 2 3 4 | 5 | 6 7
    expert          0 0 | 2 2 2 | 3 | none

Sizes and ids may be any numbers. Sizes count from 0 up to the rows that are left: a negative one
is taken for 0, and groups that do not fit are cut.
"""

from max.gpu.primitives.warp import shuffle_idx, shuffle_up, shuffle_xor
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from ..experts import Experts, GroupedProblem, Routing
from ..launch.queue import DevicePointer, device_pointer
from .arguments import Weights
from .host import WARP_THREADS
from .views import AnyFloats, flat_of

comptime NO_EXPERT = -1
"""Stands for the expert of a row that has none."""


@fieldwise_init
struct ExpertWeights(DevicePassable, TrivialRegisterPassable):
    """The right sides of all experts, and what is added to their rows."""

    comptime device_type: AnyType = Self

    var codes: Int
    """Address of those of the first."""
    var scales: Int
    """Address of those of the first."""
    var codes_step: Int
    """Bytes from the codes of one to those of the next."""
    var scales_step: Int
    """Bytes from the scales of one to those of the next."""
    var bias: DevicePointer[DType.uint8]
    """[count, columns]."""
    var format: Int32
    """The position in `FORMATS`."""
    var bias_dtype: Int32
    """The position of the type of the bias; negative for no bias."""
    var count: Int32
    """Experts."""
    var columns: Int32
    """Rows of the weights of each."""

    def __init__(out self, experts: Experts, columns: Int):
        """Takes experts whose weights have so many rows each."""
        self.codes = experts.right.codes
        self.scales = experts.right.scales
        self.codes_step = experts.codes_step
        self.scales_step = experts.scales_step
        self.bias = device_pointer[DType.uint8](experts.bias)
        self.format = Int32(experts.right.format)
        self.bias_dtype = Int32(experts.bias_dtype)
        self.count = Int32(experts.count)
        self.columns = Int32(columns)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "ExpertWeights"

    @always_inline
    def has(self, expert: Int) -> Bool:
        """Says whether there is such an expert."""
        return 0 <= expert < Int(self.count)

    @always_inline
    def of(self, expert: Int) -> Weights:
        """Returns the weights of an expert that there is."""
        return Weights(
            device_pointer[DType.uint8](self.codes + expert * self.codes_step),
            device_pointer[DType.uint8](self.scales + expert * self.scales_step),
            self.format,
        )

    @always_inline
    def biased(self, expert: Int, column: Int, sum: Float32) -> Float32:
        """Adds the bias of an expert that there is, if it has one."""
        if self.bias_dtype < 0:
            return sum
        var biases = AnyFloats(self.bias, Int(self.columns), self.bias_dtype)
        return sum + biases.load[1, 1](expert, column)[0]


@fieldwise_init
struct Groups(DevicePassable, TrivialRegisterPassable):
    """The rows of each expert, one expert's behind another's."""

    comptime device_type: AnyType = Self

    var sizes: DevicePointer[DType.int32]
    var count: Int32
    """Experts."""
    var rows: Int32
    """Of the left side, which no sum of sizes passes."""

    def __init__(out self, problem: GroupedProblem):
        """Takes the groups of a problem."""
        self.sizes = device_pointer[DType.int32](problem.sizes)
        self.count = Int32(problem.experts.count)
        self.rows = Int32(problem.m)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Groups"

    @always_inline
    def expert_of(self, row: Int, lane: Int) -> Int:
        """Returns the expert of a row, or `NO_EXPERT`; all lanes of a warp ask together.

        They look at as many groups at a time: where each ends, and how many end before the row.
        """
        var begin = UInt32(0)
        for first in range(0, Int(self.count), WARP_THREADS):
            var size = UInt32(0)
            if first + lane < Int(self.count):
                size = UInt32(max(flat_of(self.sizes)[first + lane], 0))
            # Sums stop at the rows that there are, so that none wraps.
            var end = min(size, UInt32(self.rows))
            comptime for step in [1, 2, 4, 8, 16]:
                var before = shuffle_up(end, UInt32(step))
                end = min(end + (before if lane >= step else 0), UInt32(self.rows))
            end = min(begin + end, UInt32(self.rows))
            var num_before = UInt32(1 if Int(end) <= row else 0)
            comptime for step in [1, 2, 4, 8, 16]:
                num_before += shuffle_xor(num_before, UInt32(step))
            if num_before < UInt32(WARP_THREADS):
                return first + Int(num_before)
            begin = shuffle_idx(end, UInt32(WARP_THREADS - 1))
        return NO_EXPERT


@fieldwise_init
struct Slots(DevicePassable, TrivialRegisterPassable):
    """The slots of all tokens: whom each goes to, and what it counts."""

    comptime device_type: AnyType = Self

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

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Slots"

    @always_inline
    def count(self) -> Int:
        """Returns the slots of all tokens."""
        return Int(self.tokens) * Int(self.per_token)

    @always_inline
    def expert_of(self, slot: Int) -> Int:
        """Returns the id of a slot's expert, which need not exist, or `NO_EXPERT`."""
        comptime BYTES_OF_INT32 = 4
        if Int(self.id_bytes) == BYTES_OF_INT32:
            return max(Int(flat_of(self.ids.unsafe_bitcast[Int32]())[slot]), NO_EXPERT)
        return max(Int(flat_of(self.ids.unsafe_bitcast[Int64]())[slot]), NO_EXPERT)

    @always_inline
    def weight_of(self, slot: Int) -> Float32:
        """Returns what a slot counts."""
        return AnyFloats(self.weights, 0, self.weights_dtype).load[1, 1](0, slot)[0]
