"""Rows that are sorted by group, one group's behind another's: found on the device.

    group sizes     2 0 3 1     rows behind the last group go to no expert
    row             0 1 | 2 3 4 | 5 | 6 7
    expert          0 0 | 2 2 2 | 3 | none

Sizes may be any numbers. They count from 0 up to the rows that are left: a negative one is taken
for 0, and groups that do not fit are cut.
"""

from max.gpu.primitives.warp import shuffle_idx, shuffle_up, shuffle_xor

from ..experts import GroupedProblem
from ..launch.queue import DevicePointer, KernelStruct, device_pointer
from .slots import NO_EXPERT


@fieldwise_init
struct Groups(KernelStruct):
    """The rows of each expert."""

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

    @staticmethod
    def none() -> Self:
        """Returns what a kernel gets that asks for no expert."""
        return Self(device_pointer[DType.int32](0), 0, 0)

    @always_inline
    def size(self, group: Int) -> UInt32:
        """Returns the size of a group, no more than there are rows; 0 of one that there is not."""
        if group < Int(self.count):
            return min(UInt32(max(self.sizes[unsafe_offset=group], 0)), UInt32(self.rows))
        return 0

    @always_inline
    def expert_of[lanes: Int](self, row: Int, lane: Int) -> Int:
        """Returns the expert of a row, or `NO_EXPERT`; so many lanes of a warp ask together.

        They look at as many groups at a time: where each ends, and how many end before the row.
        """
        var begin = UInt32(0)
        for first in range(0, Int(self.count), lanes):
            # Sums stop at the rows that there are, so that none wraps.
            var end = self.size(first + lane)
            comptime for step in [1, 2, 4, 8, 16]:
                var before = shuffle_up(end, UInt32(step))
                end = min(end + (before if lane >= step else 0), UInt32(self.rows))
            end = min(begin + end, UInt32(self.rows))
            var num_before = UInt32(1 if Int(end) <= row else 0)
            comptime for step in [1, 2, 4, 8, 16]:
                num_before += shuffle_xor(num_before, UInt32(step))
            if num_before < UInt32(lanes):
                return first + Int(num_before)
            begin = shuffle_idx(end, UInt32(lanes - 1))
        return NO_EXPERT
