"""Where the sums of a thread lie in a tile of C, as the warp group's instruction leaves them.

    RS    C^T: lane 4 * r + p has columns r, r + 8 of rows 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9, ..
    SS    C: lane 4 * r + p has rows r, r + 8 of columns 2 * p, 2 * p + 1, 2 * p + 8, 2 * p + 9, ..

Either way there are pairs of neighbours of every octet along one axis, for two places along the other.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast

from .instructions.warp import keep_here, lane_here
from .instructions.wgmma import Accumulator, PART_SUMS
from .layout import K_LANES
from .shapes import CONSUMER_WARPS, GROUPS, OCTET, PART_ROWS, SsTile

comptime ROWS = 2
"""Columns of C of a lane of RS, rows of one of SS: they are an octet apart."""
comptime PAIR = 2
"""Neighbours of a lane in an octet along the other axis."""
comptime WARP_ROWS_OF_A = 16
"""Rows of A of a warp of SS."""


@always_inline
def place_of(octet: Int, row: Int, i: Int) -> Tuple[Int, Int]:
    """Returns where the sum of one of a pair in an octet is, and of one of two places."""
    return divmod((octet * ROWS + row) * PAIR + i, PART_SUMS)


@always_inline
def numbers_of[
    rows: Int, //, place: Int, first: Int = 0, count: Int = rows // OCTET * PAIR
](sums: Accumulator[rows]) -> SIMD[DType.float32, count]:
    """Returns so many sums of one of a thread's two places, of octets from a row or column on."""
    var found = SIMD[DType.float32, count]()
    comptime for i in range(count):
        comptime octet, neighbour = divmod(i, PAIR)
        comptime part, at = place_of(first // OCTET + octet, place, neighbour)
        found[i] = sums[part][at]
    return found


@always_inline
def part_of[rows: Int, //, first: Int, count: Int](sums: Accumulator[rows]) -> Accumulator[count]:
    """Returns the sums of some of the octets."""
    var found = Accumulator[count](fill=0)
    comptime for i in range(count // PAIR):
        comptime part, at = divmod(first // PAIR + i, PART_SUMS)
        comptime to, here = divmod(i, PART_SUMS)
        found[to][here] = sums[part][at]
    return found^


@fieldwise_init
struct PartPlace[shape: SsTile](TrivialRegisterPassable):
    """What of an SS tile a thread has: rows `OCTET` apart, pairs of columns `OCTET` apart."""

    var entry: UInt32
    """Its first row among those of both consumers."""
    var row: UInt32
    """Its first row in the tile."""
    var column: UInt32
    """Its first column in the tile."""
    var warp: UInt32
    """Its warp in the consumer."""
    var group: UInt32
    """The consumer."""

    @staticmethod
    @always_inline
    def of_warp(warp: UInt32) -> Self:
        """Returns that of this lane of a warp."""
        var group, in_group = divmod(warp, UInt32(CONSUMER_WARPS // GROUPS))
        var entry = warp * UInt32(WARP_ROWS_OF_A) + lane_here() // UInt32(K_LANES)
        return Self(entry, entry % UInt32(Self.shape.rows), Self.column_of(entry), in_group, group)

    @staticmethod
    @always_inline
    def here() -> Self:
        """Returns that of this thread, found anew."""
        var thread = keep_here(SIMD[DType.uint32, 1](UInt32(thread_idx.x)))[0]
        return Self.of_warp(broadcast(thread // 32))

    @staticmethod
    @always_inline
    def column_of(entry: UInt32) -> UInt32:
        """Returns the first column of a thread that has a row among those of both consumers."""
        var column = 2 * (lane_here() % UInt32(K_LANES))
        comptime if Self.shape.has_one_row():
            column += entry // UInt32(PART_ROWS) * UInt32(Self.shape.part_columns())
        return column

    @always_inline
    def first_column(self) -> UInt32:
        """Returns the consumer's first column in the tile."""
        comptime if Self.shape.has_one_row():
            return self.group * UInt32(Self.shape.part_columns())
        return 0

    @always_inline
    def first_row(self) -> UInt32:
        """Returns the consumer's first row in the tile."""
        comptime if Self.shape.has_one_row():
            return 0
        return self.group * UInt32(PART_ROWS)
