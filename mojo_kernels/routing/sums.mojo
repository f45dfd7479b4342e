"""The rows of a token's slots, each times its weight, added up in the order of the slots.

    place of a slot    what it adds
    0, 1, 2, ..        the row there times its weight, fused, in float32
    NO_PLACE           nothing
    UNKNOWN            NaN

A lane computes neighbours of a row; how it gets at slots and rows is its GPU's own.
"""

from std.utils.numerics import nan

from ..experts import NUMBERS
from ..tiles import in_registers
from .slots import UNKNOWN

comptime AT_ONCE = 4
"""Slots whose rows are loaded together."""
comptime Numbers = SIMD[DType.float32, NUMBERS]
"""What a lane computes."""


trait SlotRows(TrivialRegisterPassable):
    """Slots of a token, and the columns of a lane in their rows."""

    comptime BRANCHES: Bool
    """Whether to branch by a place, or else select: loads of AMD's would wait for the branch."""

    @always_inline
    def begin(mut self, first: Int32):
        """Makes `AT_ONCE` slots from `first` on known, and waits for their rows."""
        pass

    def place[i: Int](self, first: Int32) -> Int32:
        """Returns the place of the next slot but `i`; `NO_PLACE` behind the last one."""
        ...

    def weight[i: Int](self, first: Int32) -> Float32:
        """Returns what the next slot but `i` counts: anything behind the last one."""
        ...

    def load(self, place: Int32) -> Numbers:
        """Loads from the row at a place: anything where none is."""
        ...


@always_inline
def add_slots_to[Source: SlotRows, //](mut total: Numbers, mut slots: Source, count: Int32):
    """Adds the rows of so many slots."""
    for first in range(Int32(0), count, Int32(AT_ONCE)):
        # All loads of some slots are on their way before the first is waited for.
        var numbers = in_registers[DType.float32, NUMBERS, AT_ONCE]()
        slots.begin(first)
        comptime for i in range(AT_ONCE):
            numbers[i] = slots.load(slots.place[i](first))
        comptime for i in range(AT_ONCE):
            var place = slots.place[i](first)
            var weight = Numbers(slots.weight[i](first))
            comptime if Source.BRANCHES:
                if place >= 0:
                    total = numbers[i].fma(weight, total)
                elif place == UNKNOWN:
                    total = nan[DType.float32]()
            else:
                var without = SIMD[DType.bool, NUMBERS](fill=place == UNKNOWN).select(
                    nan[DType.float32](), total
                )
                var sum = numbers[i].fma(weight, total)
                total = SIMD[DType.bool, NUMBERS](fill=place >= 0).select(sum, without)
