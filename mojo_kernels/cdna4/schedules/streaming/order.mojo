"""The order of a wave's work along K in the streaming schedule, as data.

A wave streams chunks through `depth` stages, activations first, so that they
are encoded while weights are on their way. Each operation waits only for the
loads that it needs, by counting those that were issued later:

    prologue    fetch 0, fetch 1, .. fetch depth - 1
    steady      for every stage: use it, release, [sync,] fetch
    epilogue    for every stage: use it

    use         wait, encode, .. [sync, read,] wait, multiply, multiply, ..

In brackets: sharers encode each a part of a stage and synchronize before they read all
of it. If a wave has no more chunks than stages, all is fetched up front and
nothing loops; sharers then encode all stages before they fetch weights.
"""

from pipeline.pipeline_dsl import EntryBuilder, ScheduleEntry
from pipeline.types import OpDesc, Phase, ScheduleOps
from std.collections import Array

from ...chip import MAX_COUNT
from .shape import StreamingShape


@fieldwise_init
struct StreamOps(ScheduleOps, TrivialRegisterPassable):
    """What a stage is put through; waits are the framework's."""

    var value: Int

    comptime FETCH = Self(0)
    """Start the loads of the activations of a stage."""
    comptime FETCH_WEIGHTS = Self(1)
    """Start the loads of its weights."""
    comptime ENCODE = Self(2)
    """Encode one tile of activations; `subtile` counts those of the wave."""
    comptime SYNC = Self(3)
    """Wait until all waves have written or read what they share."""
    comptime READ = Self(4)
    """Read the encoded activations that all sharers have written."""
    comptime MULTIPLY = Self(5)
    """Multiply one tile of activations; `subtile` counts those of the stage."""
    comptime RELEASE = Self(6)
    """Let the reads of a stage finish, so that it can be fetched again."""


@fieldwise_init
struct Stream(TrivialRegisterPassable):
    """The loads of a stage and the operations that use them."""

    var shape: StreamingShape
    var of_weights: Int
    """Loads of the weights and scales of a stage."""
    var of_tile: Int
    """Loads of a tile of activations."""

    def is_shared(self) -> Bool:
        return self.shape.sharers > 1

    def encodes_first(self) -> Bool:
        """Says whether weights are fetched only when all activations are encoded."""
        return self.shape.up_front and self.is_shared()

    def of_activations(self) -> Int:
        return self.shape.own_steps() * self.of_tile

    def loads(self) -> Int:
        return self.of_activations() + self.of_weights

    def prologue_length(self) -> Int:
        return self.shape.depth * (1 if self.encodes_first() else 2)

    def steady_length(self) -> Int:
        return self.shape.depth * (self._use_length() + (4 if self.is_shared() else 3))

    def epilogue_length(self) -> Int:
        var length = self.shape.depth * self._use_length() + (1 if self._leaves() else 0)
        if self.encodes_first():
            # Each stage fetches weights, but only one synchronizes.
            length += 1
        return length

    def _use_length(self) -> Int:
        var encode = 2 * self.shape.own_steps()
        return encode + 1 + self.shape.steps() + (2 if self.is_shared() else 0)

    def _leaves(self) -> Bool:
        """Says whether sharers synchronize once more: sums go where they have read activations."""
        return self.is_shared() and self.shape.k_groups() > 1

    def _encode[
        length: Int, phase: Phase
    ](self, mut builder: EntryBuilder[length, phase], stage: Int, later: Int):
        """Emits the encoding of a stage, behind whose activations come `later` loads."""
        for step in range(self.shape.own_steps()):
            var of_stage = (self.shape.own_steps() - 1 - step) * self.of_tile
            builder.emit(self._wait(of_stage + later))
            builder.emit(OpDesc(tag=StreamOps.ENCODE.value, stage=stage, subtile=step))

    def _read[
        length: Int, phase: Phase
    ](self, mut builder: EntryBuilder[length, phase], stage: Int, syncs: Bool = True):
        """Emits the reading of an encoded stage by all sharers."""
        if self.is_shared():
            if syncs:
                builder.emit(OpDesc(tag=StreamOps.SYNC.value, stage=stage))
            builder.emit(OpDesc(tag=StreamOps.READ.value, stage=stage))

    def _leave[length: Int, phase: Phase](self, mut builder: EntryBuilder[length, phase]):
        """Emits the end of all reading, if there is more than the products to come."""
        if self._leaves():
            builder.emit(OpDesc(tag=StreamOps.SYNC.value))

    def _multiply[
        length: Int, phase: Phase
    ](self, mut builder: EntryBuilder[length, phase], stage: Int, later: Int):
        """Emits the products of a stage, behind whose weights come `later` loads."""
        builder.emit(self._wait(later))
        for step in range(self.shape.steps()):
            builder.emit(OpDesc(tag=StreamOps.MULTIPLY.value, stage=stage, subtile=step))

    def _wait(self, later: Int) -> OpDesc:
        """Returns a wait for all loads but the latest."""
        return OpDesc.wait_vm_n(min(later, MAX_COUNT))

    def prologue[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations before the loop: `prologue_length()` of them."""
        var builder = EntryBuilder[length, Phase.PROLOGUE]()
        for stage in range(self.shape.depth):
            builder.emit(OpDesc(tag=StreamOps.FETCH.value, stage=stage))
            if not self.encodes_first():
                builder.emit(OpDesc(tag=StreamOps.FETCH_WEIGHTS.value, stage=stage))
        return builder.entries.copy()

    def steady[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations of the loop: `steady_length()` of them."""
        var builder = EntryBuilder[length, Phase.KERNEL]()
        var behind = (self.shape.depth - 1) * self.loads()
        for stage in range(self.shape.depth):
            self._encode(builder, stage, self.of_weights + behind)
            self._read(builder, stage)
            self._multiply(builder, stage, behind)
            builder.emit(OpDesc(tag=StreamOps.RELEASE.value, stage=stage))
            if self.is_shared():
                builder.emit(OpDesc(tag=StreamOps.SYNC.value, stage=stage))
            builder.emit(OpDesc(tag=StreamOps.FETCH.value, stage=stage))
            builder.emit(OpDesc(tag=StreamOps.FETCH_WEIGHTS.value, stage=stage))
        return builder.entries.copy()

    def epilogue[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations after the loop: `epilogue_length()` of them."""
        var builder = EntryBuilder[length, Phase.EPILOGUE]()
        var depth = self.shape.depth
        if self.encodes_first():
            for stage in range(depth):
                self._encode(builder, stage, (depth - 1 - stage) * self.of_activations())
            for stage in range(depth):
                builder.emit(OpDesc(tag=StreamOps.FETCH_WEIGHTS.value, stage=stage))
            for stage in range(depth):
                self._read(builder, stage, syncs=stage == 0)
            self._leave(builder)
            for stage in range(depth):
                self._multiply(builder, stage, (depth - 1 - stage) * self.of_weights)
        else:
            for stage in range(depth):
                var behind = (depth - 1 - stage) * self.loads()
                self._encode(builder, stage, self.of_weights + behind)
                self._read(builder, stage)
                if stage == depth - 1:
                    self._leave(builder)
                self._multiply(builder, stage, behind)
        return builder.entries.copy()
