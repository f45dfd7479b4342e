"""The order of a wave's work along K in the streaming schedule, as data.

A wave streams chunks through `depth` stages, activations first, so that they
are encoded while weights are on their way. Each operation waits only for the
loads that it needs, by counting those that were issued later:

    prologue    fetch 0, fetch 1, .. fetch depth - 1
    steady      for every stage: use it, release, [sync,] fetch
    epilogue    for every stage: use it

    use         wait, encode, .. [sync, read,] wait, multiply, multiply, ..

Where the decoding of weights takes long, a wave holds them and fetches before it multiplies:

    steady      .. wait, release, [sync,] hold, fetch, multiply, multiply, ..

In brackets: sharers encode each a part of a stage and synchronize before they read all
of it. If a wave has no more chunks than stages, all is fetched up front and
nothing loops; sharers then encode all stages before they fetch weights.
"""

from pipeline.types import OpDesc

from ..chip import MAX_COUNT
from ..operations import Operations, Ops
from .shape import StreamingShape


@fieldwise_init
struct Stream(TrivialRegisterPassable):
    """The loads of a stage and the operations that use them."""

    var shape: StreamingShape
    var of_weights: Int
    """Loads of the weights and scales of a stage."""
    var of_tile: Int
    """Loads of a tile of activations."""
    var holds: Bool
    """Whether weights are held while the next ones are fetched."""

    def is_shared(self) -> Bool:
        return self.shape.sharers > 1

    def encodes_first(self) -> Bool:
        """Says whether weights are fetched only when all activations are encoded."""
        return self.shape.up_front and self.is_shared()

    def of_activations(self) -> Int:
        return self.shape.own_steps() * self.of_tile

    def loads(self) -> Int:
        return self.of_activations() + self.of_weights

    def _encode(self, mut operations: Operations, stage: Int, later: Int):
        """Adds the encoding of a stage, behind whose activations come `later` loads."""
        for step in range(self.shape.own_steps()):
            var of_stage = (self.shape.own_steps() - 1 - step) * self.of_tile
            operations.append(self._wait(of_stage + later))
            operations.append(Ops.ENCODE.at(step, stage=stage))

    def _read(self, mut operations: Operations, stage: Int, syncs: Bool = True):
        """Adds the reading of an encoded stage by all sharers."""
        if self.is_shared():
            if syncs:
                operations.append(Ops.SYNC.at(stage=stage))
            operations.append(Ops.READ.at(stage=stage))

    def _leave(self, mut operations: Operations):
        """Adds the end of all reading, if sums go where sharers have read activations."""
        if self.is_shared() and self.shape.k_groups() > 1:
            operations.append(Ops.SYNC.at())

    def _multiply(
        self, mut operations: Operations, stage: Int, later: Int, *, fetches: Bool = False
    ):
        """Adds the products of a stage, behind whose weights come `later` loads; its place may be
        fetched again."""
        operations.append(self._wait(later))
        if self.holds:
            if fetches:
                self._fetch(operations, stage)
            else:
                operations.append(Ops.HOLD.at(stage=stage))
        for step in range(self.shape.steps()):
            operations.append(Ops.MULTIPLY.at(step, stage=stage))
        if fetches and not self.holds:
            self._fetch(operations, stage)

    def _fetch(self, mut operations: Operations, stage: Int):
        """Adds the fetch of a stage whose activations have been read."""
        operations.append(Ops.RELEASE.at(stage=stage))
        if self.is_shared():
            operations.append(Ops.SYNC.at(stage=stage))
        if self.holds:
            operations.append(Ops.HOLD.at(stage=stage))
        operations.append(Ops.FETCH_A.at(stage=stage))
        operations.append(Ops.FETCH_B.at(stage=stage))

    def _wait(self, later: Int) -> OpDesc:
        """Returns a wait for all loads but the latest."""
        return OpDesc.wait_vm_n(min(later, MAX_COUNT))

    def prologue(self) -> Operations:
        """Returns the operations before the loop."""
        var operations = Operations()
        for stage in range(self.shape.depth):
            operations.append(Ops.FETCH_A.at(stage=stage))
            if not self.encodes_first():
                operations.append(Ops.FETCH_B.at(stage=stage))
        return operations^

    def steady(self) -> Operations:
        """Returns the operations of the loop."""
        var operations = Operations()
        var behind = (self.shape.depth - 1) * self.loads()
        for stage in range(self.shape.depth):
            self._encode(operations, stage, self.of_weights + behind)
            self._read(operations, stage)
            self._multiply(operations, stage, behind, fetches=True)
        return operations^

    def epilogue(self) -> Operations:
        """Returns the operations after the loop."""
        var operations = Operations()
        var depth = self.shape.depth
        if self.encodes_first():
            for stage in range(depth):
                self._encode(operations, stage, (depth - 1 - stage) * self.of_activations())
            for stage in range(depth):
                operations.append(Ops.FETCH_B.at(stage=stage))
            for stage in range(depth):
                self._read(operations, stage, syncs=stage == 0)
            self._leave(operations)
            for stage in range(depth):
                self._multiply(operations, stage, (depth - 1 - stage) * self.of_weights)
        else:
            for stage in range(depth):
                var behind = (depth - 1 - stage) * self.loads()
                self._encode(operations, stage, self.of_weights + behind)
                self._read(operations, stage)
                if stage == depth - 1:
                    self._leave(operations)
                self._multiply(operations, stage, behind)
        return operations^
