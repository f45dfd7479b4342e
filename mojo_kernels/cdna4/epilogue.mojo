"""From partial sums to C: across waves, across workgroups, to memory.

A tile of C is 16 x 16; lane l holds row l % 16, columns 4 * (l / 16) .. + 3.
In LDS a tile of sums is what the lanes hold, 16 bytes each, one lane after
another: a KiB. In the workspace, which is zero between launches, it is first the
first halves of what the lanes hold, then the second halves. With S workgroups
along K, a tile of C has S - 1 nodes where their sums meet:

    node        ((workgroup x + X * y) * (S - 1) + node) * tiles + tile
"""

from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from std.collections import Array
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of
from std.utils.numerics import nan

from .decode_shape import DecodeShape, TILE_SUM_BYTES
from .mma import LANES, Mma16, publish, swap_published
from .tiles import OUT_OF_RANGE, Span, TILE, quotient

comptime Sums = SIMD[DType.float32, Mma16.VALUES]
"""A lane's part of a tile of C: neighbouring columns of one row."""
comptime PART = 2
"""Sums of a lane that workgroups exchange at once."""
comptime PARTS = Mma16.VALUES // PART
"""Such parts of the sums of a lane."""
comptime PART_BYTES = 4 * PART
"""Bytes of one."""
comptime PartSums = SIMD[DType.float32, PART]
"""A part of a lane's sums."""
comptime NO_BIAS = Optional[DType]()
"""The bias type of a kernel without one."""


@fieldwise_init
struct Result[dtype: DType, bias_dtype: Optional[DType]](TrivialRegisterPassable):
    """C = sums + bias, [M, N] and contiguous."""

    var values: AMDBufferResource
    """C."""
    var bias: AMDBufferResource
    """The bias, [N]."""
    var n: Int32
    """Columns."""

    @staticmethod
    @always_inline
    def of(
        values: MutPointer[Scalar[Self.dtype], _],
        bias: ImmPointer[UInt8, _],
        m: Int32,
        n: Int32,
    ) -> Self:
        """Describes C and its bias; the bias is not read if there is none."""
        comptime BIAS_BYTES = size_of[Self.bias_dtype.or_else(DType.uint8)]()
        return Self(
            AMDBufferResource(values, Int(m * n)), Span.of(bias, n * Int32(BIAS_BYTES)).after(0), n
        )

    @always_inline
    def store(self, sums: Sums, bias: Sums, first_row: Int32, first_column: Int32, lane: Int32):
        """Stores a tile with its bias; what lies beyond M and N is dropped."""
        self.store_part[0, Mma16.VALUES](sums, bias, first_row, first_column, lane)

    @always_inline
    def store_part[
        first: Int, width: SIMDLength
    ](
        self,
        sums: SIMD[DType.float32, width],
        bias: Sums,
        first_row: Int32,
        first_column: Int32,
        lane: Int32,
    ):
        """Stores what a lane holds of a tile from its column `first` on."""
        comptime BYTES = Int32(size_of[Self.dtype]())
        var row = first_row + lane % TILE
        var column = first_column + quotient[TILE](lane) * Int32(Mma16.VALUES) + Int32(first)
        var total = sums
        comptime if Self.bias_dtype:
            total += bias.slice[width, offset=first]()
        var values = total.cast[Self.dtype]()
        var offset = (row * self.n + column) * BYTES
        if self.n % Int32(Mma16.VALUES) == 0:
            self.values.store[cache_policy=CacheOperation.STREAMING](
                offset if column < self.n else OUT_OF_RANGE,
                bitcast[DType.uint8, width * size_of[Self.dtype]()](values),
            )
        else:
            comptime for i in range(width):
                var place = offset + Int32(i) * BYTES
                self.values.store(
                    place if column + Int32(i) < self.n else OUT_OF_RANGE,
                    bitcast[DType.uint8, size_of[Self.dtype]()](values[i]),
                )

    @always_inline
    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the bias of a lane's columns of a tile; any value beyond N."""
        var bias = Sums(0)
        comptime if Self.bias_dtype:
            comptime bias_dtype = Self.bias_dtype.value()
            comptime BYTES = size_of[bias_dtype]()
            var column = first_column + quotient[TILE](lane) * Int32(Mma16.VALUES)
            comptime for i in range(Mma16.VALUES):
                var bytes = self.bias.load[DType.uint8, BYTES]((column + Int32(i)) * Int32(BYTES))
                bias[i] = bitcast[bias_dtype, 1](bytes).cast[DType.float32]()
        return bias


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
    """Bytes of a node."""
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
