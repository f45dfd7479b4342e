"""What a wave does along K: the words in which all schedules write their orders.

A is the left side, activations, B the right one, weights. Which tile, load or part an operation is
for says `subtile`, see the order that uses it; waits, barriers and priorities are the framework's.
"""

from pipeline.types import OpDesc, ScheduleOps

comptime Operations = List[OpDesc]
"""What a wave does, in order."""


@fieldwise_init
struct Ops(ScheduleOps, TrivialRegisterPassable):
    """An operation of a wave."""

    var value: Int

    comptime MULTIPLY = Self(0)
    # Loads, to LDS or to registers.
    comptime FETCH_A = Self(1)
    comptime FETCH_B = Self(2)
    comptime FETCH_EARLY_B = Self(3)  # Weights that are multiplied first, of a stage later.
    comptime FETCH_A_SCALES = Self(4)
    comptime FETCH_B_SCALES = Self(5)
    # From LDS to registers.
    comptime READ = Self(6)  # Fragments, and what else is multiplied with them.
    comptime READ_NEXT = Self(7)  # The same of the next stage.
    comptime READ_SCALES = Self(8)
    comptime RELEASE = Self(9)  # Let reads finish, so that their place can be fetched again.
    # In registers.
    comptime ENCODE = Self(10)  # Floats to codes.
    comptime DECODE = Self(11)  # Codes to floats.
    comptime APPLY_SCALES = Self(12)  # Put scales where they are multiplied.
    # Across waves: what has been written or fetched is there, and nobody reads what is overwritten.
    comptime SYNC = Self(13)
    # Scalar: turn to what is fetched next, and to what is read next.
    comptime SEEK_A = Self(14)
    comptime SEEK_B = Self(15)
    comptime SEEK_SCALES = Self(16)
    comptime NEXT_A = Self(17)
    comptime NEXT_B = Self(18)
    comptime NEXT_SCALES = Self(19)
    comptime NEXT = Self(20)  # A stage of all of them.
    comptime REWIND = Self(21)  # The stage of scales that is fetched next is the first again.
    comptime HOLD = Self(22)  # Copy weights, so that their registers can be fetched again.

    def at(self, subtile: Int = 0, *, stage: Int = 0) -> OpDesc:
        """Returns the operation on a part of a stage."""
        return OpDesc(tag=self.value, stage=stage, subtile=subtile)

    def is_fetch(self) -> Bool:
        return Self.FETCH_A.value <= self.value <= Self.FETCH_B_SCALES.value

    def is_of_products(self) -> Bool:
        """Says whether the operation is only for who multiplies."""
        return self.value in (Self.READ.value, Self.DECODE.value, Self.MULTIPLY.value)

    def is_scalar(self) -> Bool:
        """Says whether the operation may be spread among the ones that follow."""
        return Self.SEEK_A.value <= self.value <= Self.REWIND.value
