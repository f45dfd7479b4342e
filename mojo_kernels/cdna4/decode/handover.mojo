"""Workgroups with parts of K add up their sums in the workspace.

There, where all is zero between launches, a tile of sums is first the first halves of
what the lanes hold, then the second halves. With S workgroups along K, a tile of C has
S - 1 nodes where their sums meet:

    node        ((workgroup x + X * y) * (S - 1) + node) * tiles + tile
"""

from max.gpu.intrinsics import AMDBufferResource
from std.collections import Array
from std.math import ceildiv
from std.memory import bitcast
from std.utils.numerics import nan

from ..instructions.matrix import LANES, SUMS, Sums
from ..instructions.memory import publish, swap_published
from ..operands.memory import OUT_OF_RANGE, Span
from .shape import DecodeShape, TILE_SUM_BYTES

comptime PART = 2
"""Sums of a lane that workgroups exchange at once."""
comptime PARTS = SUMS // PART
"""Such parts of the sums of a lane."""
comptime PART_BYTES = 4 * PART
"""Bytes of one."""
comptime PartSums = SIMD[DType.float32, PART]
"""A part of a lane's sums."""


struct Handover[shape: DecodeShape]:
    """How workgroups with parts of K add up: whoever meets a partner's sums goes on with both.

    The parts of K are the leaves of a binary tree, neighbours meet first. At a node each
    lane exchanges its sums, two at a time, for what the node holds. Zeros mean that the
    partner has yet to come, and will find them. Sums mean that it was here: they are added,
    the node is set back to zeros and the lane climbs on. So an addition has the same operands
    in every order of arrival, nobody waits for anybody, and no order among different
    addresses matters.

    Parameters:
        shape: How a workgroup cuts its work.
    """

    comptime COUNT = Self.shape.own_tiles() * PARTS
    """Parts of the sums of a wave."""
    comptime NODE_BYTES = Int32(Self.shape.tiles() * TILE_SUM_BYTES)
    comptime GROUP_BYTES = Int32(Self.shape.splits - 1) * Self.NODE_BYTES
    """Bytes of all nodes of a tile of C."""

    var nodes: AMDBufferResource
    """The nodes of this tile of C."""
    var parts: Array[PartSums, Self.COUNT]
    """The lane's sums."""
    var places: Array[Int32, Self.COUNT]
    """Where in a node they meet the partner's; out of range if the partner goes on with them."""

    @always_inline
    def __init__(
        out self,
        memory: MutPointer[UInt8, _],
        group: Int32,
        num_groups: Int32,
        sums: Array[Sums, Self.shape.own_tiles()],
        wave: Int32,
        lane: Int32,
    ):
        """Begins with the sums of a wave for tile `group` of C."""
        var all = Span.of(memory, num_groups * Self.GROUP_BYTES)
        self.nodes = all.after(group * Self.GROUP_BYTES)
        self.parts = {uninitialized = True}
        self.places = {uninitialized = True}
        comptime for i in range(Self.COUNT):
            comptime own, part = divmod(i, PARTS)
            var tile = Self.shape.tile_of(wave, own)
            var place = tile * Int32(PARTS) + Int32(part)
            place = (place * LANES + lane) * Int32(PART_BYTES)
            self.places[i] = place if tile < Int32(Self.shape.tiles()) else OUT_OF_RANGE
            self.parts[i] = sums[own].slice[PART, offset=part * PART]()

    @always_inline
    def climb(mut self, share: Int32):
        """Adds up from leaf `share` as far as partners have come."""
        comptime for level in range(Self._levels()):
            comptime nodes_below = ceildiv(Self.shape.splits, 1 << level)
            comptime first = Self.shape.splits - nodes_below
            var index = share >> Int32(level)
            var has_partner = index ^ 1 < Int32(nodes_below)
            if self._is_any_mine() and has_partner:
                self._meet((Int32(first) + (index >> 1)) * Self.NODE_BYTES)

    @staticmethod
    def _levels() -> Int:
        """Returns the levels of the tree."""
        var levels = 0
        while 1 << levels < Self.shape.splits:
            levels += 1
        return levels

    @always_inline
    def _is_any_mine(self) -> Bool:
        """Says whether the lane goes on with any sums."""
        var result = False
        comptime for i in range(Self.COUNT):
            result |= self.is_mine(i)
        return result

    @always_inline
    def is_mine(self, i: Int) -> Bool:
        """Says whether the lane goes on with part `i`."""
        return self.places[i] != OUT_OF_RANGE

    @always_inline
    def _meet(mut self, node: Int32):
        """Exchanges all sums at a node."""
        var partner = Array[SIMD[DType.uint32, PART], Self.COUNT](uninitialized=True)
        comptime for i in range(Self.COUNT):
            var left = ~bitcast[DType.uint32, PART](_with_one_nan(self.parts[i]))
            partner[i] = swap_published(self.nodes, self.places[i], node, left)
        comptime for i in range(Self.COUNT):
            var place = self.places[i] if any(partner[i].ne(0)) else OUT_OF_RANGE
            publish(self.nodes, place, node, 0)
            self.parts[i] += bitcast[DType.float32, PART](~partner[i])
            self.places[i] = place


@always_inline
def _with_one_nan(x: PartSums) -> PartSums:
    """Returns x with one pattern for all NaNs, of which no bit beyond the quiet one is set."""
    return x.ne(x).select(PartSums(nan[DType.float32]()), x)
