"""The order of a wave's work in a stage, as data: what stands between its matrix instructions.

A wave is alone on its SIMD. While a matrix instruction runs it issues three others, so
whatever a stage needs is spread behind them, one by one:

    matrix        slice 0: tiles 0, 1, ..           slice 1: tiles 0, 1, ..
    read          fragments of tiles to come ..      | sync | .. of the next stage
    scales        applied, a tile of rows each        read for the next stage
    fetch         .. scales, weights of slice 1      weights of slice 0 | activations ..

A stage of eight-bit codes is one slice of instructions that take twice as long: half as many
stand for the same time, and all its weights are fetched as those of slice 1 are above.

Fragments of some tiles of rows are in registers, a ring; a stage of activations lies in LDS
until the barrier, weights in registers until they are multiplied. All fetch `depth` stages
ahead into what has become free, and evenly: as many bytes are under way at any time. Such a
round of loads begins behind a barrier, with activations, and ends before the next one does.
The waves synchronize once a stage, when each has what it reads of it, and the next stage has arrived.
"""

from pipeline.types import OpDesc

from ..operations import Operations, Ops
from .shape import InterleavedShape

comptime MOST_PIECES = 10
"""Pieces of activations that a wave has at once."""
comptime FEW_PIECES = 4
"""The same where registers are few."""


@fieldwise_init
struct StageOrder(TrivialRegisterPassable):
    """The operations of a stage."""

    var shape: InterleavedShape
    var left_pieces: Int
    """Pieces of a fragment of activations."""
    var right_pieces: Int
    """Loads of a tile of weights."""
    var scale_words: Int
    """Loads of scales of weights for a stage."""
    var has_scales: Bool
    """Whether there are scales of activations along K."""

    def steps(self) -> Int:
        return self.shape.slices * self.shape.m_tiles

    def slots(self) -> Int:
        return self.steps() * self.shape.n_tiles

    def fragments(self) -> Int:
        """Returns the fragments in registers: the steps are a multiple."""
        var pieces = FEW_PIECES if self.shape.has_few_registers() else MOST_PIECES
        for count in range(min(self.steps(), pieces // self.left_pieces), 1, -1):
            if self.steps() % count == 0:
                return count
        return 1

    def barrier_step(self) -> Int:
        """Returns the step with the barrier: reads end `fragments` steps before the end."""
        return self.steps() - (self.fragments() + 1) // 2

    def loads(self) -> Int:
        var scales = self.scale_words + Int(self.has_scales)
        return self.shape.rounds() + scales + self.shape.slices * self.shape.n_tiles

    def early_tiles(self) -> Int:
        """Returns the tiles of weights that are fetched while a later slice is multiplied."""
        return (self.shape.slices - 1) * self.shape.n_tiles

    def sure_loads(self) -> Int:
        """Returns the loads of a stage without that of scales, which few stages start."""
        var tiles = self.shape.slices * self.shape.n_tiles
        return self.shape.rounds() + self.scale_words + tiles * self.right_pieces

    def later_loads(self) -> Int:
        """Returns how many loads at least are between those of the next stage and the barrier."""
        var behind = 0
        for load in range(self.loads()):
            behind += Int(self._place_of_load(load) > self.slots() + self._slot_of_barrier())
        return (self.shape.depth - 1) * self.sure_loads() - self.shape.rounds() - behind

    def later_loads_of_rest(self, index: Int) -> Int:
        """Returns the same for the stages behind the loop, which load nothing any more."""
        return (self.shape.depth - 2 - index) * self.sure_loads() - self.shape.rounds()

    def _slot_of_read(self, step: Int) -> Int:
        """Returns where the fragment of a step is read: its register is free then."""
        return (step - self.fragments() + 1) * self.shape.n_tiles - 1

    def _slot_of_next_read(self, step: Int) -> Int:
        """Returns where the fragment of a step of the next stage is read."""
        return max(
            min(self._slot_of_barrier() + step, self.slots() - 1),
            self.slots() + self._slot_of_read(step),
        )

    def _slot_of_barrier(self) -> Int:
        return self.barrier_step() * self.shape.n_tiles

    def _place_of_load(self, load: Int) -> Int:
        """Returns where a load is started, in slots from the stage on behind whose barrier its
        round begins; weights of slice 0 of the next stage have been multiplied then.

        Loads of codes are as far from each other as can be, those of scales are beside some.
        """
        var slots, rounds = self.slots(), self.shape.rounds()
        var codes = rounds + self.shape.slices * self.shape.n_tiles
        var begin = self._slot_of_barrier() + 1
        if self.early_tiles() > 0:
            var before = (codes - self.early_tiles()) * slots // codes
            begin = max(begin, slots + slots // 2 - before)
        if load < rounds:
            return begin + load * slots // codes
        var scales = self.scale_words + Int(self.has_scales)
        var index = load - scales if load >= rounds + scales else load
        return max(begin + index * slots // codes, slots)

    def early_rounds(self) -> Int:
        """Returns the loads of activations that are started before the stage ends."""
        var count = 0
        for round in range(self.shape.rounds()):
            count += Int(self._place_of_load(round) < self.slots())
        return count

    def _slot_of_scales(self, tile: Int) -> Int:
        """Returns where scales of the next stage are read: those of this one are in place."""
        return (self.steps() - self.shape.m_tiles + tile) * self.shape.n_tiles

    def _load(self, load: Int) -> OpDesc:
        var at = load
        if at < self.shape.rounds():
            return Ops.FETCH_A.at(at)
        at -= self.shape.rounds()
        if self.has_scales and at == 0:
            return Ops.FETCH_A_SCALES.at()
        at -= Int(self.has_scales)
        if at < self.scale_words:
            return Ops.FETCH_B_SCALES.at(at)
        at -= self.scale_words
        if at < self.shape.n_tiles:
            return Ops.FETCH_B.at(at)
        return Ops.FETCH_EARLY_B.at(at - self.shape.n_tiles)

    def operations(self) -> Operations:
        """Returns the operations of a stage."""
        var operations = Operations()
        var n_tiles, steps, slots = self.shape.n_tiles, self.steps(), self.slots()
        for slot in range(slots):
            operations.append(Ops.MULTIPLY.at(slot))
            for load in range(self.loads()):
                if self._place_of_load(load) % slots == slot:
                    operations.append(self._load(load))
            if slot == self._slot_of_barrier():
                operations.append(Ops.SYNC.at())
            for step in range(self.fragments(), steps):
                if self._slot_of_read(step) == slot:
                    operations.append(Ops.READ.at(step))
            for step in range(self.fragments()):
                if self._slot_of_next_read(step) == slot:
                    operations.append(Ops.READ_NEXT.at(step))
            for tile in range(self.shape.m_tiles if self.has_scales else 0):
                if self._slot_of_scales(tile) == slot:
                    operations.append(Ops.READ_SCALES.at(tile))
                var apply = slots - 2 if tile == 0 else max(tile * n_tiles - 3, 0)
                if apply == slot:
                    operations.append(Ops.APPLY_SCALES.at(tile))
        operations.append(Ops.NEXT.at())
        return operations^
