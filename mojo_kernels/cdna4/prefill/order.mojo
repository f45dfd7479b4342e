"""Two groups of waves that take turns at the matrix pipes, as data.

Each SIMD runs a wave of either group. A phase of one group multiplies while
the other moves; every phase ends at a barrier of all waves:

    group 0    move 0    multiply 0    move 1        multiply 1    move 2 ..
    group 1              move 0        multiply 0    move 1        multiply 1 ..

A slice is one tile of 128 along K; two slices are a stage. A phase handles one
slice of a large tile of C, or both of a small one. What it needs was fetched two
phases ahead (weights) or two stages ahead (activations and scales) and is waited
for at the end of the move before: the wait leaves in flight what the same move
has fetched. Activations go before the fragments are read and weights behind
them, so that loads are issued steadily. Addresses of later loads are computed
between matrix instructions. Before the loop weights go first: they need nobody.
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
    """Start loading the weights of the next phase."""
    comptime FETCH_A = Self(2)
    """Start loading part `subtile` of the activations of the next stage."""
    comptime FETCH_B_SCALES = Self(3)
    """Start loading the scales of the weights of the next stage."""
    comptime FETCH_A_SCALES = Self(4)
    """Start loading the scales of the activations of the next stage."""
    comptime MULTIPLY = Self(5)
    """Multiply slice `subtile`."""
    comptime AIM_B = Self(6)
    """Turn to the next phase's weights to fetch."""
    comptime AIM_STAGE = Self(7)
    """Turn to the next stage to fetch."""
    comptime NEXT_WEIGHTS = Self(8)
    """Turn to the next phase's weights to read."""
    comptime NEXT_STAGE = Self(9)
    """Turn to the next stage to read."""
    comptime REWIND = Self(10)
    """Turn back, so that the next stage to fetch is the first."""

    def is_scalar(self) -> Bool:
        """Says whether the operation may be spread among the ones that follow."""
        return Self.AIM_B.value <= self.value <= Self.REWIND.value


@fieldwise_init
struct PingPong(TrivialRegisterPassable):
    """The slices of a phase and the loads of a wave."""

    var phase_slices: Int
    """Slices of a phase: one or two."""
    var of_b: Int
    """Loads of the weights of a phase."""
    var of_a: Int
    """Loads of each of the two parts of the activations of a stage."""
    var of_b_scales: Int
    """Loads of the scales of the weights of a stage."""
    var of_a_scales: Int
    """Loads of the scales of the activations of a stage."""

    comptime STAGES_AHEAD = 2
    """Stages, and phases of weights, that are fetched before the loop."""
    comptime WEIGHTS_LENGTH = 4 * Self.STAGES_AHEAD + 1
    """Operations before the loop that fetch weights."""
    comptime ACTIVATIONS_LENGTH = 4 * Self.STAGES_AHEAD + 4
    """Operations before the loop that fetch activations."""

    def phases(self) -> Int:
        """Returns the phases of a stage in which a group multiplies."""
        return SLICES // self.phase_slices

    def steady_length(self) -> Int:
        """Returns the operations of the loop."""
        return self.phases() * (3 * self.phase_slices + 8) + 4

    def loads_of_move(self, phase: Int) -> Int:
        """Returns the loads of a move, which are all later than the weights of the next phase."""
        var of_scales = self.of_b_scales if phase == 0 else 0
        if phase == self.phases() - 1:
            of_scales += self.of_a_scales
        return self.phase_slices * self.of_a + of_scales + self.of_b

    def weights(self) -> Array[ScheduleEntry, Self.WEIGHTS_LENGTH]:
        """Returns the operations that fetch the first weights and their scales."""
        comptime Ops = PingPongOps
        var builder = EntryBuilder[Self.WEIGHTS_LENGTH, Phase.PROLOGUE]()
        for _ in range(Self.STAGES_AHEAD):
            builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
            builder.emit(OpDesc(tag=Ops.FETCH_B_SCALES.value))
            builder.emit(OpDesc(tag=Ops.AIM_B.value))
            builder.emit(OpDesc(tag=Ops.FETCH_B.value))
        builder.emit(OpDesc(tag=Ops.REWIND.value))
        return builder.entries.copy()

    def activations(self) -> Array[ScheduleEntry, Self.ACTIVATIONS_LENGTH]:
        """Returns the operations that fetch the first activations, and wait for a stage."""
        comptime Ops = PingPongOps
        var builder = EntryBuilder[Self.ACTIVATIONS_LENGTH, Phase.PROLOGUE]()
        for _ in range(Self.STAGES_AHEAD):
            builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
            builder.emit(OpDesc(tag=Ops.FETCH_A_SCALES.value))
            builder.emit(OpDesc(tag=Ops.FETCH_A.value, subtile=0))
            builder.emit(OpDesc(tag=Ops.FETCH_A.value, subtile=1))
        builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
        builder.emit(OpDesc(tag=Ops.AIM_B.value))
        var later_stages = Self.STAGES_AHEAD - 1
        builder.emit(OpDesc.wait_vm_n(later_stages * (SLICES * self.of_a + self.of_a_scales)))
        builder.emit(OpDesc.barrier())
        return builder.entries.copy()

    def steady[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations of a stage: `steady_length()` of them."""
        comptime Ops = PingPongOps
        var builder = EntryBuilder[length, Phase.KERNEL]()
        for phase in range(self.phases()):
            var first_slice = phase * self.phase_slices
            var is_last = phase == self.phases() - 1
            for slice in range(first_slice, first_slice + self.phase_slices):
                builder.emit(OpDesc(tag=Ops.FETCH_A.value, subtile=slice))
                builder.emit(OpDesc(tag=Ops.READ.value, subtile=slice))
            if phase == 0:
                builder.emit(OpDesc(tag=Ops.FETCH_B_SCALES.value))
            if is_last:
                builder.emit(OpDesc(tag=Ops.FETCH_A_SCALES.value))
            builder.emit(OpDesc(tag=Ops.FETCH_B.value))
            builder.emit(OpDesc.wait_vm_n(self.loads_of_move(phase)))
            builder.emit(OpDesc.barrier())
            builder.emit(OpDesc(tag=Ops.SET_PRIO.value, wait_value=1))
            builder.emit(OpDesc(tag=Ops.AIM_B.value))
            builder.emit(OpDesc(tag=Ops.NEXT_WEIGHTS.value))
            for slice in range(first_slice, first_slice + self.phase_slices):
                if slice == SLICES - 1:
                    builder.emit(OpDesc(tag=Ops.AIM_STAGE.value))
                    builder.emit(OpDesc(tag=Ops.NEXT_STAGE.value))
                builder.emit(OpDesc(tag=Ops.MULTIPLY.value, subtile=slice))
            builder.emit(OpDesc(tag=Ops.SET_PRIO.value, wait_value=0))
            builder.emit(OpDesc.barrier())
        return builder.entries.copy()
