"""The order of a wave's work along K, as data.

A wave streams chunks through `depth` stages. Loading a stage and using it are
split into steps, and a step waits only for its own loads, by counting those
that were issued later:

    prologue    fetch 0, fetch 1, .. fetch depth - 1
    steady      for every stage: wait, multiply, wait, multiply, .., release, fetch
    epilogue    for every stage: wait, multiply, wait, multiply, ..

With as many stages as a wave has chunks the steady part never runs: everything
is fetched up front.
"""

from pipeline.pipeline_dsl import EntryBuilder, ScheduleEntry
from pipeline.types import OpDesc, Phase, ScheduleOps
from std.collections import Array


@fieldwise_init
struct StreamOps(ScheduleOps, TrivialRegisterPassable):
    """What a stage is put through; waits are the framework's."""

    var value: Int
    """The tag of an operation."""

    comptime FETCH = Self(0)
    """Start all loads of a stage."""
    comptime MULTIPLY = Self(1)
    """Encode and multiply one step of a stage; `subtile` counts the steps."""
    comptime RELEASE = Self(2)
    """Let the reads of a stage finish, so that it can be fetched again."""


@fieldwise_init
struct Stream(TrivialRegisterPassable):
    """The loads of a stage and the steps that use them."""

    var depth: Int
    """Stages that are in flight together."""
    var k_tiles: Int
    """Tiles of a chunk along K."""
    var m_tiles: Int
    """Tiles of activations; each is a step."""
    var of_weights: Int
    """Loads of the weights and scales of a stage, which go first."""
    var of_step: Int
    """Loads of the activations of each step."""

    comptime MAX_COUNT = 63
    """The largest count that a wait can name."""

    def steps(self) -> Int:
        """Returns the steps of a stage."""
        return self.k_tiles * self.m_tiles

    def loads(self) -> Int:
        """Returns the loads of a stage."""
        return self.of_weights + self.steps() * self.of_step

    def loads_after(self, step: Int) -> Int:
        """Returns the loads of a stage that are issued after those of a step."""
        return (self.steps() - 1 - step) * self.of_step

    def multiply_length(self) -> Int:
        """Returns the operations that use up a stage."""
        return 2 * self.steps()

    def steady_length(self) -> Int:
        """Returns the operations of the steady part."""
        return self.depth * (self.multiply_length() + 2)

    def epilogue_length(self) -> Int:
        """Returns the operations of the epilogue."""
        return self.depth * self.multiply_length()

    def multiply[
        length: Int, phase: Phase
    ](self, mut builder: EntryBuilder[length, phase], stage: Int, stages_behind: Int):
        """Emits the steps of a stage while `stages_behind` later ones are in flight."""
        for step in range(self.steps()):
            var later = self.loads_after(step) + stages_behind * self.loads()
            builder.emit(OpDesc.wait_vm_n(min(later, Self.MAX_COUNT)))
            builder.emit(OpDesc(tag=StreamOps.MULTIPLY.value, stage=stage, subtile=step))

    def prologue[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations before the loop: `depth` of them."""
        var builder = EntryBuilder[length, Phase.PROLOGUE]()
        for stage in range(self.depth):
            builder.emit(OpDesc(tag=StreamOps.FETCH.value, stage=stage))
        return builder.entries.copy()

    def steady[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations of the loop: `steady_length()` of them."""
        var builder = EntryBuilder[length, Phase.KERNEL]()
        for stage in range(self.depth):
            self.multiply(builder, stage, self.depth - 1)
            builder.emit(OpDesc(tag=StreamOps.RELEASE.value, stage=stage))
            builder.emit(OpDesc(tag=StreamOps.FETCH.value, stage=stage))
        return builder.entries.copy()

    def epilogue[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations after the loop: `epilogue_length()` of them."""
        var builder = EntryBuilder[length, Phase.EPILOGUE]()
        for stage in range(self.depth):
            self.multiply(builder, stage, self.depth - 1 - stage)
        return builder.entries.copy()
