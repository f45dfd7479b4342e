"""Slots sorted by expert: which rows an expert gets, and where a token finds them again.

    ids, two slots a token     5 2 | 2 -1 | 5 0
    rows by expert             0: token 2 | 2: tokens 0, 1 | 5: tokens 0, 2
    source (row -> token)      2 | 0 1 | 0 2
    row (slot -> row)          3 1 | 2 -1 | 4 0

A counting sort: slots of an expert stay in order.
"""

from layout import Coord

from ..experts import Routing
from ..operands import Flat, flat
from .ranges import Ranges
from .scratch import Scratch, padded

comptime NOWHERE = Int32(-1)
"""The row of a slot without an expert."""


@fieldwise_init
struct SortedSlots(TrivialRegisterPassable):
    """All slots of a call, sorted."""

    var ranges: Ranges
    """The rows of each expert."""
    var source: Flat[DType.int32]
    """The token of each row."""
    var row: Flat[DType.int32]
    """The row of each slot."""
    var next_row: Flat[DType.int64]
    """Of each expert, while they are sorted."""

    @staticmethod
    def num_bytes(routing: Routing, num_experts: Int) -> Int:
        """Returns the scratch memory that `carve` takes."""
        var count = routing.count()
        return (
            Ranges.num_bytes(min(count, num_experts))
            + 2 * padded[DType.int32](count)
            + padded[DType.int64](num_experts)
        )

    @staticmethod
    def carve(routing: Routing, num_experts: Int, mut scratch: Scratch) -> Self:
        """Takes room for the slots of a call."""
        var count = routing.count()
        return Self(
            Ranges.carve(min(count, num_experts), scratch),
            scratch.carve[DType.int32](count),
            scratch.carve[DType.int32](count),
            scratch.carve[DType.int64](num_experts),
        )

    def sort(mut self, routing: Routing) -> Bool:
        """Sorts the slots; says whether there are all experts that they name.

        Reads each id once: the memory of the caller, who may be writing to it.
        """
        if routing.id_bytes == 4:
            return self._sort[DType.int32](routing)
        return self._sort[DType.int64](routing)

    def _sort[dtype: DType](mut self, routing: Routing) -> Bool:
        var num_experts = Int(self.next_row.dim[0]())
        var count = routing.count()
        var ids = flat[dtype](routing.ids, count)
        for expert in range(num_experts):
            self.next_row.store(Coord(expert), Int64(0))
        for slot in range(count):
            var expert = Int(ids.load[width=1, alignment=1](Coord(slot)))
            if expert >= num_experts:
                return False
            # For now the expert, whose row is not known yet.
            self.row.store(Coord(slot), Int32(max(expert, Int(NOWHERE))))
            if expert >= 0:
                var rows = self.next_row.load[width=1](Coord(expert))
                self.next_row.store(Coord(expert), rows + 1)
        for expert in range(num_experts):
            var rows = Int(self.next_row.load[width=1](Coord(expert)))
            self.next_row.store(Coord(expert), Int64(self.ranges.rows))
            self.ranges.append(expert, rows)
        for slot in range(count):
            var expert = Int(self.row.load[width=1](Coord(slot)))
            var row = NOWHERE
            if expert >= 0:
                row = self.next_row.load[width=1](Coord(expert)).cast[DType.int32]()
                self.next_row.store(Coord(expert), Int64(row + 1))
                self.source.store(Coord(Int(row)), Int32(slot // routing.slots))
            self.row.store(Coord(slot), row)
        return True
