"""The rows of a token's slots, each times its weight, added up in order: four numbers a thread."""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.utils import StaticTuple
from std.utils.numerics import nan

from ...experts import ExpertsProblem
from ...launch.queue import DevicePointer, Queue, device_pointer
from ...simt.arguments import Result
from ...simt.host import VECTOR_BYTES
from ...simt.routing import NO_EXPERT, Slots
from ...simt.views import flat_of, rows_of
from ...tiles import in_registers
from ..host.moe import SUM_NUMBERS as NUMBERS, SUM_THREADS as THREADS, grid_of_sums
from .groups import NO_PLACE, UNKNOWN

comptime AT_ONCE = 4
"""Slots whose rows are loaded together."""


@fieldwise_init
struct Places(DevicePassable, TrivialRegisterPassable):
    """Where the rows of slots are."""

    comptime device_type: AnyType = Self

    var listed: DevicePointer[DType.int32]
    """The place of each slot, where `are_listed`."""
    var experts: Int32
    """How many there are, where rows lie as slots do."""
    var are_listed: Bool

    @staticmethod
    def listed_at(places: DevicePointer[DType.int32]) -> Self:
        """Returns what a list says."""
        return Self(places, 0, True)

    @staticmethod
    def as_slots(experts: Int) -> Self:
        """Returns a row for each slot, some of them of no expert."""
        return Self(device_pointer[DType.int32](0), Int32(experts), False)

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Places"

    @always_inline
    def of(self, slots: Slots, slot: Int) -> Int32:
        """Returns the place of a slot, `NO_PLACE` or `UNKNOWN`."""
        if self.are_listed:
            return flat_of(self.listed)[slot]
        var expert = slots.expert_of(slot)
        if expert >= Int(self.experts):
            return UNKNOWN
        return NO_PLACE if expert == NO_EXPERT else Int32(slot)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def add_slots(rows: DevicePointer[DType.float32], places: Places, slots: Slots, result: Result):
    """Adds up the rows of a token's slots; one of an expert that there is not makes it NaN.

    The grid is (tokens, groups of a row).
    """
    if places.are_listed:
        wait_on_dependent_grids()
        launch_dependent_grids()
    var token = Int(block_idx.x)
    var column = (Int(block_idx.y) * THREADS + Int(thread_idx.x)) * NUMBERS
    if column >= Int(result.columns):
        return
    var all_rows = rows_of(rows, Int(result.columns))
    var total = SIMD[DType.float32, NUMBERS](0)
    var first, end = token * Int(slots.per_token), (token + 1) * Int(slots.per_token)
    for slot in range(first, end, AT_ONCE):
        # All loads of some slots are on their way before the first is waited for.
        var found = in_registers[DType.int32, 1, AT_ONCE]()
        var weights = in_registers[DType.float32, 1, AT_ONCE]()
        var numbers = in_registers[DType.float32, NUMBERS, AT_ONCE]()
        comptime for i in range(AT_ONCE):
            var own = min(slot + i, end - 1)
            found[i] = places.of(slots, own)
            weights[i] = slots.weight_of(own)
        if slot == first and not places.are_listed:
            # Only the rows come from the kernel before.
            wait_on_dependent_grids()
            launch_dependent_grids()
        comptime for i in range(AT_ONCE):
            var place = found[i] if slot + i < end else NO_PLACE
            found[i] = place
            numbers[i] = all_rows.load[width=NUMBERS, alignment=VECTOR_BYTES](
                Coord(max(Int(place), 0), column)
            )
        comptime for i in range(AT_ONCE):
            if found[i] >= 0:
                total = numbers[i].fma(SIMD[DType.float32, NUMBERS](weights[i]), total)
            elif found[i] == UNKNOWN:
                total = nan[DType.float32]()
    result.store[NUMBERS, NUMBERS](token, column, total)


def launch_sums(problem: ExpertsProblem, rows: Int, places: Places, mut queue: Some[Queue]) raises:
    """Launches the sums of a layer over the rows of its slots, float32, which lie at an address."""
    var tokens, width = problem.routing.tokens, problem.width
    queue.launch[add_slots](
        grid_of_sums(tokens, width),
        device_pointer[DType.float32](rows),
        places,
        Slots(problem.routing),
        Result(problem.values, problem.dtype, tokens, width),
    )
