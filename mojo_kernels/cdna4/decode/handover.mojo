"""Workgroups with parts of K add up their sums in the workspace.

There, where all is zero between launches, a tile of sums is first the first halves of
what the lanes hold, then the second halves. With S workgroups along K, a tile of C has
S - 1 nodes where their sums meet:

    node        ((workgroup x + X * y) * (S - 1) + node) * tiles + tile
"""

from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast

from ...numbers.floats import FloatBits
from ...tiles import RegisterTile, in_registers
from ..instructions.matrix import LANES, SUMS, SumTile
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


def levels_of(splits: Int) -> Int:
    """Returns the levels of the tree of so many parts of K."""
    var levels = 0
    while 1 << levels < splits:
        levels += 1
    return levels


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

    comptime TILES = Self.shape.own_tiles()
    """Tiles of C of a wave."""
    comptime AT_ONCE = min(Self.TILES, 16)
    """Tiles of a wave that are exchanged together: registers for a partner's sums."""
    comptime NODE_BYTES = Int32(Self.shape.tiles() * TILE_SUM_BYTES)
    comptime GROUP_BYTES = Int32(Self.shape.splits - 1) * Self.NODE_BYTES
    """Bytes of all nodes of a tile of C."""

    var nodes: AMDBufferResource
    """The nodes of this tile of C."""
    var parts: RegisterTile[DType.float32, PART, Self.TILES, PARTS]
    """The lane's sums."""
    var places: RegisterTile[DType.int32, 1, Self.TILES, PARTS]
    """Where in a node they meet the partner's; out of range if the partner goes on with them."""

    @always_inline
    def __init__(
        out self,
        memory: MutPointer[UInt8, _],
        group: Int32,
        num_groups: Int32,
        sums: SumTile[Self.TILES],
        wave: Int32,
        lane: Int32,
    ):
        """Begins with the sums of a wave for tile `group` of C."""
        var all = Span.of(memory, num_groups * Self.GROUP_BYTES)
        self.nodes = all.after(group * Self.GROUP_BYTES)
        self.parts = in_registers[DType.float32, PART, Self.TILES, PARTS]()
        self.places = in_registers[DType.int32, 1, Self.TILES, PARTS]()
        comptime for own in range(Self.TILES):
            var tile = Self.shape.tile_of(wave, own)
            comptime for part in range(PARTS):
                var place = tile * Int32(PARTS) + Int32(part)
                place = (place * LANES + lane) * Int32(PART_BYTES)
                place = place if tile < Int32(Self.shape.tiles()) else OUT_OF_RANGE
                self.places[own, part] = place
                self.parts[own, part] = with_one_nan(sums[own].slice[PART, offset=part * PART]())

    @always_inline
    def climb(mut self, share: Int32):
        """Adds up from leaf `share` as far as partners have come."""
        comptime for level in range(levels_of(Self.shape.splits)):
            comptime nodes_below = ceildiv(Self.shape.splits, 1 << level)
            comptime first = Self.shape.splits - nodes_below
            var index = share >> Int32(level)
            var has_partner = index ^ 1 < Int32(nodes_below)
            if self._is_any_mine() and has_partner:
                var node = (Int32(first) + (index >> 1)) * Self.NODE_BYTES
                comptime for tile in range(0, Self.TILES, Self.AT_ONCE):
                    self._meet[tile, min(Self.AT_ONCE, Self.TILES - tile)](node)

    @always_inline
    def _is_any_mine(self) -> Bool:
        """Says whether the lane goes on with any sums."""
        var result = False
        comptime for own in range(Self.TILES):
            comptime for part in range(PARTS):
                result |= self.is_mine[own, part]()
        return result

    @always_inline
    def is_mine[own: Int, part: Int](self) -> Bool:
        """Says whether the lane goes on with a part of a tile of the wave."""
        return self.places[own, part] != OUT_OF_RANGE

    @always_inline
    def _meet[first: Int, count: Int](mut self, node: Int32):
        """Exchanges the sums of `count` tiles at a node."""
        var partner = in_registers[DType.uint32, PART, count, PARTS]()
        comptime for own in range(first, first + count):
            comptime for part in range(PARTS):
                var left = ~bitcast[DType.uint32, PART](self.parts[own, part])
                partner[own - first, part] = swap_published(
                    self.nodes, self.places[own, part], node, left
                )
        comptime for own in range(first, first + count):
            comptime for part in range(PARTS):
                var bits = partner[own - first, part]
                var place = self.places[own, part] if any(bits.ne(0)) else OUT_OF_RANGE
                publish(self.nodes, place, node, 0)
                var partners = bitcast[DType.float32, PART](~bits)
                self.parts[own, part] = with_one_nan(self.parts[own, part] + partners)
                self.places[own, part] = place


@always_inline
def with_one_nan(x: PartSums) -> PartSums:
    """Returns x with one pattern for all NaNs, of which no bit beyond the quiet one is set.

    On integers: what is said of floats the compiler takes away, because to it all NaNs are one.
    """
    comptime NAN = SIMD[DType.uint32, PART](0x7FC00000)
    comptime INFINITY = UInt32(FloatBits[DType.float32].NOT_FINITE)
    comptime MAGNITUDE = UInt32(FloatBits[DType.float32].MAGNITUDE)
    var bits = bitcast[DType.uint32, PART](x)
    return bitcast[DType.float32, PART]((bits & MAGNITUDE).gt(INFINITY).select(NAN, bits))
