"""Two groups of waves that take turns at the matrix pipes, as data.

Each SIMD runs a wave of either group. A phase of one group multiplies while
the other moves; every phase ends at a barrier of all waves:

    group 0    move 0    multiply 0    move 1        multiply 1    move 2 ..
    group 1              move 0        multiply 0    move 1        multiply 1 ..

A phase handles a slice, one tile of 128 along K; two slices are a stage. What
a slice needs was fetched two slices ahead (weights) or two stages ahead
(activations and scales) and is waited for at the end of the move before: the
wait leaves in flight what the same move has fetched. Activations go before the
fragments are read and weights behind them, so that loads are issued steadily.
Addresses of later loads are computed between matrix instructions.
"""

from pipeline.pipeline_dsl import EntryBuilder, ScheduleEntry
from pipeline.types import OpDesc, Phase, ScheduleOps
from std.collections import Array

comptime SLICES = 2
"""Slices of a stage."""


@fieldwise_init
struct PingPongOps(ScheduleOps, TrivialRegisterPassable):
    """What a wave does; barriers, waits and priorities are the framework's."""

    var value: Int
    """The tag of an operation."""

    comptime READ = Self(0)
    """Read the fragments of slice `subtile` from LDS, before the first also the scales."""
    comptime FETCH_B = Self(1)
    """Start loading the weights of the next slice."""
    comptime FETCH_A = Self(2)
    """Start loading part `subtile` of the activations of the next stage."""
    comptime FETCH_B_SCALES = Self(3)
    """Start loading the scales of the weights of the next stage."""
    comptime FETCH_A_SCALES = Self(4)
    """Start loading the scales of the activations of the next stage."""
    comptime MULTIPLY = Self(5)
    """Multiply slice `subtile`."""
    comptime AIM_B = Self(6)
    """Turn to the next slice of weights to fetch."""
    comptime AIM_STAGE = Self(7)
    """Turn to the next stage to fetch."""
    comptime NEXT_SLICE = Self(8)
    """Turn to the next slice to read."""
    comptime NEXT_STAGE = Self(9)
    """Turn to the next stage to read."""

    def is_scalar(self) -> Bool:
        """Says whether the operation may be spread among the ones that follow."""
        return Self.AIM_B.value <= self.value <= Self.NEXT_STAGE.value


@fieldwise_init
struct PingPong(TrivialRegisterPassable):
    """The loads of a wave for a stage."""

    var of_b: Int
    """Loads of the weights of a slice."""
    var of_a: Int
    """Loads of each of the two parts of the activations of a stage."""
    var of_b_scales: Int
    """Loads of the scales of the weights of a stage."""
    var of_a_scales: Int
    """Loads of the scales of the activations of a stage."""

    comptime PROLOGUE_LENGTH = 18
    """Operations of the prologue."""
    comptime STEADY_LENGTH = 26
    """Operations of the loop."""

    def loads_of_move(self, slice: Int) -> Int:
        """Returns the loads of a move, which are all later than the weights of the next slice."""
        return self.of_a + (self.of_b_scales if slice == 0 else self.of_a_scales) + self.of_b

    def loads_ahead(self) -> Int:
        """Returns the loads of the prologue that the first move does not wait for."""
        return SLICES * self.of_a + self.of_a_scales + self.of_b_scales + self.of_b

    def prologue(self) -> Array[ScheduleEntry, Self.PROLOGUE_LENGTH]:
        """Returns the operations before the loop: two stages and two slices are fetched."""
        comptime Ops = PingPongOps
        var builder = EntryBuilder[Self.PROLOGUE_LENGTH, Phase.PROLOGUE]()
        for stage in range(2):
            builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
            builder.emit(OpDesc(tag=Ops.AIM_B.value))
            builder.emit(OpDesc(tag=Ops.FETCH_A_SCALES.value))
            builder.emit(OpDesc(tag=Ops.FETCH_B_SCALES.value))
            builder.emit(OpDesc(tag=Ops.FETCH_A.value, subtile=0))
            builder.emit(OpDesc(tag=Ops.FETCH_A.value, subtile=1))
            builder.emit(OpDesc(tag=Ops.FETCH_B.value))
        builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
        builder.emit(OpDesc(tag=Ops.AIM_B.value))
        builder.emit(OpDesc.wait_vm_n(self.loads_ahead()))
        builder.emit(OpDesc.barrier())
        return builder.entries.copy()

    def steady(self) -> Array[ScheduleEntry, Self.STEADY_LENGTH]:
        """Returns the operations of a stage."""
        comptime Ops = PingPongOps
        var builder = EntryBuilder[Self.STEADY_LENGTH, Phase.KERNEL]()
        for slice in range(SLICES):
            builder.emit(OpDesc(tag=Ops.FETCH_A.value, subtile=slice))
            builder.emit(OpDesc(tag=Ops.READ.value, subtile=slice))
            if slice == 0:
                builder.emit(OpDesc(tag=Ops.FETCH_B_SCALES.value))
            else:
                builder.emit(OpDesc(tag=Ops.FETCH_A_SCALES.value))
            builder.emit(OpDesc(tag=Ops.FETCH_B.value))
            builder.emit(OpDesc.wait_vm_n(self.loads_of_move(slice)))
            builder.emit(OpDesc.barrier())
            builder.emit(OpDesc(tag=Ops.SET_PRIO.value, wait_value=1))
            builder.emit(OpDesc(tag=Ops.AIM_B.value))
            builder.emit(OpDesc(tag=Ops.NEXT_SLICE.value))
            if slice == SLICES - 1:
                builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
                builder.emit(OpDesc(tag=Ops.NEXT_STAGE.value))
            builder.emit(OpDesc(tag=Ops.MULTIPLY.value, subtile=slice))
            builder.emit(OpDesc(tag=Ops.SET_PRIO.value, wait_value=0))
            builder.emit(OpDesc.barrier())
        return builder.entries.copy()
