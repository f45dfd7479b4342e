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

Eight-bit elements take twice the bytes and cycles. A slice of a large tile is two phases,
with a part of the wave's rows each, and LDS holds two slices:

    phase      part 0 of slice s              part 1 of slice s
    reads      weights, rows of part 0        rows of part 1
    fetches    half of slice s + 1: last      half of slice s + 2: rows of part 0,
               the rows of part 1             half of the weights

Floats that are kept take twice as much again, at half the rows; a move decodes the weights. Under
E4M3 scales that takes three times as long. So that all phases decode as much, parts are then of the
wave's columns, and its rows are read at once:

    phase      part 0 of slice s              part 1 of slice s
    reads      weights, rows
    decodes    half of the weights            the others

A place is fetched anew as soon as both groups have read it, in equal shares; a phase leaves in
flight what it and the one before have fetched, but for weights that the next one needs. A slice
of a small tile is one phase, and LDS holds three.
"""

from pipeline.types import OpDesc

from ..chip import GROUP_TILES
from ..operations import Operations, Ops
from .shape import AHEAD

comptime SLICES = GROUP_TILES
"""Slices of a stage."""


@fieldwise_init
struct PingPong(TrivialRegisterPassable):
    """The phases of a stage and the loads of a wave."""

    var phase_slices: Int
    """Slices of a phase: one or two."""
    var parts: Int
    """Phases of a slice, each with a part of a wave's rows: one or two."""
    var place_slices: Int
    """Slices of a place of activations: one or two."""
    var fetches: Int
    """Parts in which a place of activations is fetched."""
    var of_a: Int
    """Loads of each of them."""
    var of_b: Int
    """Loads of the weights of a phase."""
    var of_a_scales: Int
    """Loads of the scales of the activations of a stage."""
    var of_b_scales: Int
    """Loads of the scales of the weights of a stage."""
    var scale_run: Int
    """Stages whose scales are used together, loaded in as many loads, one in each stage before."""
    var decodes: Bool
    """Whether weights are decoded, for floats that are kept."""
    var cuts_columns: Bool
    """Whether parts are of columns."""

    def phases(self) -> Int:
        """Returns the phases of a stage in which a group multiplies."""
        return SLICES // self.phase_slices * self.parts

    def ends_slices(self, phase: Int) -> Bool:
        return phase % self.parts == self.parts - 1

    def loads_of_move(self, phase: Int) -> Int:
        """Returns the loads of a move, which are all later than what the next phase needs."""
        var loads = self.phase_slices * self.of_a + self.of_b
        if phase == 0:
            loads += self.of_b_scales
        if phase == self.phase_of_a_scales():
            loads += self.of_a_scales
        return loads

    def phase_of_a_scales(self) -> Int:
        """Returns the phase that fetches those of activations: of a run, so that the last ones are
        there for the next stage, the first."""
        return 0 if self.scale_run > 1 else self.phases() - 1

    def scale_loads(self, place: Int) -> Int:
        """Returns the loads of scales at a place before the loop: the first run, or a stage."""
        if self.scale_run == 1:
            return 1
        return self.scale_run if place == 0 else 0

    def loads_in_flight(self, phase: Int) -> Int:
        """Returns the loads that a move leaves in flight, which the next phase does not need."""
        var loads = self.loads_of_move(phase)
        var reads_slice = self.cuts_columns and self.ends_slices(phase)
        if self.parts > 1 and not reads_slice:
            loads += self.loads_of_move((phase + self.phases() - 1) % self.phases())
            if self.ends_slices(phase):
                loads -= self.of_b
        return loads

    def late_parts(self, place: Int) -> Int:
        """Returns the parts of a place before the loop that the first phase fetches."""
        return self.parts - 1 if place == AHEAD - 1 else 0

    def weights(self) -> Operations:
        """Returns the operations that fetch the first weights and their scales."""
        var operations = Operations()
        for place in range(AHEAD):
            operations.append(Ops.SEEK_SCALES.at())
            if self.of_b_scales > 0 and self.scale_loads(place) > 0:
                operations.append(Ops.FETCH_B_SCALES.at())
            operations.append(Ops.SEEK_B.at())
            for part in range(self.parts - self.late_parts(place)):
                operations.append(Ops.FETCH_B.at(part))
        operations.append(Ops.REWIND.at())
        return operations^

    def activations(self) -> Operations:
        """Returns the operations that fetch the first activations."""
        var operations = Operations()
        for place in range(AHEAD):
            for _ in range(self.scale_loads(place)):
                operations.append(Ops.SEEK_SCALES.at())
                if self.of_a_scales > 0:
                    operations.append(Ops.FETCH_A_SCALES.at())
            operations.append(Ops.SEEK_A.at())
            for part in range(self.fetches - self.late_parts(place)):
                operations.append(Ops.FETCH_A.at(part))
        operations.append(Ops.SEEK_SCALES.at())
        if self.parts == 1:
            operations.append(Ops.SEEK_A.at())
            operations.append(Ops.SEEK_B.at())
        return operations^

    def later_loads(self) -> Int:
        """Returns the loads of activations before the loop that its first phase does not need."""
        var loads = 0
        for place in range(1, AHEAD):
            loads += self.scale_loads(place) * self.of_a_scales
            loads += (self.fetches - self.late_parts(place)) * self.of_a
        return loads

    def steady(self) -> Operations:
        return self._phases(self.phases())

    def last_slice(self) -> Operations:
        """Returns the operations of a stage that ends with its first slice."""
        return self._phases(self.parts)

    def has_slices(self) -> Bool:
        """Says whether a phase has no more than a slice, so that a stage may end with its first."""
        return self.phase_slices == 1

    def _phases(self, count: Int) -> Operations:
        """Returns the operations of the first phases of a stage."""
        var operations = Operations()
        for phase in range(count):
            self._move(operations, phase)
            if self.decodes and (self.cuts_columns or phase % self.parts == 0):
                operations.append(Ops.DECODE.at(phase))
            operations.append(OpDesc.wait_vm_n(self.loads_in_flight(phase)))
            operations.append(OpDesc.barrier())
            operations.append(OpDesc(tag=Ops.SET_PRIO.value, wait_value=1))
            self._multiply(operations, phase)
            operations.append(OpDesc(tag=Ops.SET_PRIO.value, wait_value=0))
            operations.append(OpDesc.barrier())
        return operations^

    def _move(self, mut operations: Operations, phase: Int):
        """Adds what a phase reads and fetches."""
        # Of a slice the part that the phase before has read.
        var part = (phase + 1) % self.parts
        var fetch_b = Ops.FETCH_B.at(part)
        for i in range(self.phase_slices):
            var work = phase * self.phase_slices + i
            var a_part = work if self.place_slices == SLICES else part
            var fetch_a = Ops.FETCH_A.at(a_part)
            operations.append(fetch_a if self.ends_slices(phase) else fetch_b)
            operations.append(Ops.READ.at(work))
        if phase == 0 and self.of_b_scales > 0:
            operations.append(Ops.FETCH_B_SCALES.at())
        if phase == self.phase_of_a_scales() and self.of_a_scales > 0:
            operations.append(Ops.FETCH_A_SCALES.at())
        if self.ends_slices(phase):
            operations.append(fetch_b)
        else:
            operations.append(Ops.FETCH_A.at(part))

    def _multiply(self, mut operations: Operations, phase: Int):
        """Adds what a phase multiplies, and where the next ones turn to."""
        for i in range(self.phase_slices):
            var work = phase * self.phase_slices + i
            var place_works = self.place_slices * self.parts
            if i == 0 and phase % self.parts == 0:
                operations.append(Ops.SEEK_B.at())
            if i == 0 and self.ends_slices(phase):
                operations.append(Ops.NEXT_B.at())
            if work == SLICES * self.parts - 1:
                operations.append(Ops.SEEK_SCALES.at())
                operations.append(Ops.NEXT_SCALES.at())
            if work % self.place_slices == self.place_slices - 1 and phase % self.parts == 0:
                operations.append(Ops.SEEK_A.at())
            if work % place_works == place_works - 1:
                operations.append(Ops.NEXT_A.at())
            operations.append(Ops.MULTIPLY.at(work))
