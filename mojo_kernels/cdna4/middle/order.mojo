"""The order of a wave's work in a stage, as data: what stands between its matrix instructions.

A wave is alone on its SIMD. While a matrix instruction runs it issues three others, so
whatever a stage needs is spread behind them, one by one:

    matrix        slice 0: tiles 0, 1, ..           slice 1: tiles 0, 1, ..
    read          fragments of tiles to come ..      | meet | .. of the next stage
    scales        applied, a tile of rows each        read for the next stage
    fetch         activations, weights of slice 1     weights of slice 0

Fragments of some tiles of rows are in registers, a ring; a stage of activations lies in LDS
until all have met, weights in registers until they are multiplied. All fetch `depth` stages
ahead into what has become free, activations and weights of slice 1 a little later. The
waves meet once a stage, when each has what it reads of it, and the next stage has arrived.
"""

from pipeline.pipeline_dsl import EntryBuilder, ScheduleEntry
from pipeline.types import OpDesc, Phase, ScheduleOps
from std.collections import Array

from ..operands.tiles import PAIR
from .shape import MiddleShape, SLICES

comptime MOST_FRAGMENTS = 10
"""Fragments of activations that a wave has at once."""


@fieldwise_init
struct MiddleOps(ScheduleOps, TrivialRegisterPassable):
    """What a wave does."""

    var value: Int
    """The tag of an operation."""

    comptime MULTIPLY = Self(0)
    """Multiply a tile; `subtile` counts slices, then tiles of rows, then of columns."""
    comptime READ = Self(1)
    """Read the fragment of step `subtile`."""
    comptime READ_NEXT = Self(2)
    """Read that of the next stage."""
    comptime APPLY_SCALES = Self(3)
    """Put the scales of tile `subtile` of rows in place."""
    comptime READ_SCALES = Self(4)
    """Read the scales of tile `subtile` of rows for the next stage."""
    comptime FETCH_A = Self(5)
    """Start load `subtile` of the activations."""
    comptime FETCH_A_SCALES = Self(6)
    """Start a load of scales of activations, of the next chunk."""
    comptime FETCH_B_SCALES = Self(7)
    """Start load `subtile` of the scales of the weights."""
    comptime FETCH_LATE_B = Self(8)
    """Start loading tile `subtile` of the weights of slice 1."""
    comptime FETCH_EARLY_B = Self(9)
    """Start loading tile `subtile` of the weights of slice 0."""
    comptime MEET = Self(10)
    """Wait for the next stage, and until no wave reads this one."""
    comptime NEXT = Self(11)
    """Turn to the next stage."""

    def is_fetch(self) -> Bool:
        """Says whether the operation starts a load."""
        return Self.FETCH_A.value <= self.value <= Self.FETCH_EARLY_B.value


@fieldwise_init
struct StageOrder(TrivialRegisterPassable):
    """The operations of a stage."""

    var shape: MiddleShape
    """The cut."""

    def steps(self) -> Int:
        """Returns the fragments of activations of a stage."""
        return SLICES * self.shape.m_tiles

    def slots(self) -> Int:
        """Returns the matrix instructions of a stage."""
        return self.steps() * self.shape.n_tiles

    def fragments(self) -> Int:
        """Returns the fragments in registers: the steps are a multiple."""
        for count in range(min(self.steps(), MOST_FRAGMENTS), 1, -1):
            if self.steps() % count == 0:
                return count
        return 1

    def meet_step(self) -> Int:
        """Returns the step in which waves meet: reads end `fragments` steps before the end."""
        return self.steps() - (self.fragments() + 1) // 2

    def first_loads(self) -> Int:
        """Returns the loads of the first slice."""
        return self.shape.rounds() + 1 + self.shape.n_tiles // PAIR + self.shape.n_tiles

    def loads(self) -> Int:
        """Returns the loads of a stage."""
        return self.first_loads() + self.shape.n_tiles

    def sure_loads(self) -> Int:
        """Returns the loads of a stage without that of scales, which few stages start."""
        return self.loads() - 1

    def later_loads(self) -> Int:
        """Returns how many loads at least are between those of the next stage and the meeting."""
        return (self.shape.depth - 1) * self.sure_loads() - self.shape.rounds()

    def later_loads_of_rest(self, index: Int) -> Int:
        """Returns the same for the stages behind the loop, which load nothing any more."""
        return (self.shape.depth - 2 - index) * self.sure_loads() - self.shape.rounds()

    def length(self) -> Int:
        """Returns the operations of a stage."""
        return self.slots() + self.steps() + 2 * self.shape.m_tiles + self.loads() + 2

    def _slot_of_read(self, step: Int) -> Int:
        """Returns where the fragment of a step is read: its register is free then."""
        return (step - self.fragments() + 1) * self.shape.n_tiles - 1

    def _slot_of_next_read(self, step: Int) -> Int:
        """Returns where the fragment of a step of the next stage is read."""
        var meet = self.meet_step() * self.shape.n_tiles
        return max(meet + step, self.slots() + self._slot_of_read(step))

    def _slot_of_load(self, load: Int) -> Int:
        """Returns where a load is started; all are before the meeting."""
        var middle = self.slots() // 2
        var first = self.first_loads()
        if load < first:
            return load * middle // first
        var end = self.meet_step() * self.shape.n_tiles
        return middle + (load - first) * (end - middle) // self.shape.n_tiles

    def _load(self, load: Int) -> OpDesc:
        """Returns a load of the stage."""
        comptime Ops = MiddleOps
        var rounds, words = self.shape.rounds(), self.shape.n_tiles // PAIR
        if load < rounds:
            return OpDesc(tag=Ops.FETCH_A.value, subtile=load)
        if load == rounds:
            return OpDesc(tag=Ops.FETCH_A_SCALES.value)
        if load <= rounds + words:
            return OpDesc(tag=Ops.FETCH_B_SCALES.value, subtile=load - rounds - 1)
        if load < self.first_loads():
            return OpDesc(tag=Ops.FETCH_LATE_B.value, subtile=load - rounds - words - 1)
        return OpDesc(tag=Ops.FETCH_EARLY_B.value, subtile=load - self.first_loads())

    def operations[length: Int](self) -> Array[ScheduleEntry, length]:
        """Returns the operations of a stage: `length()` of them."""
        comptime Ops = MiddleOps
        var builder = EntryBuilder[length, Phase.KERNEL]()
        var n_tiles, steps, slots = self.shape.n_tiles, self.steps(), self.slots()
        for slot in range(slots):
            builder.emit(OpDesc(tag=Ops.MULTIPLY.value, subtile=slot))
            for load in range(self.loads()):
                if self._slot_of_load(load) == slot:
                    builder.emit(self._load(load))
            if slot == self.meet_step() * n_tiles:
                builder.emit(OpDesc(tag=Ops.MEET.value))
            for step in range(self.fragments(), steps):
                if self._slot_of_read(step) == slot:
                    builder.emit(OpDesc(tag=Ops.READ.value, subtile=step))
            for step in range(self.fragments()):
                if self._slot_of_next_read(step) == slot:
                    builder.emit(OpDesc(tag=Ops.READ_NEXT.value, subtile=step))
            for tile in range(self.shape.m_tiles):
                if (self.shape.m_tiles + tile) * n_tiles == slot:
                    builder.emit(OpDesc(tag=Ops.READ_SCALES.value, subtile=tile))
                var apply = slots - 2 if tile == 0 else max(tile * n_tiles - 3, 0)
                if apply == slot:
                    builder.emit(OpDesc(tag=Ops.APPLY_SCALES.value, subtile=tile))
        builder.emit(OpDesc(tag=Ops.NEXT.value))
        return builder.entries.copy()
