"""Split-K with a fix-up in the workspace: workgroups with parts of K add up their partial sums.

There, where all is zero between launches, a tile of sums is first the first halves of
what the lanes hold, then the second halves. Behind the sums of all tiles of C are counters:

    sums       ((workgroup x + X * y) * slots + slot) * tiles + tile
    counter    (workgroup x + X * y) * waves + wave

Each wave adds up with the same wave of the other workgroups. It arrives at their counter when its
own sums are about to be there; the one that finds all others arrived runs the fix-up:

    earlier    leaves its sums in its slot, and is done
    last       takes the sums of all others, and goes on with the total

So the last one may wait, but only for waves that run and wait for nothing: it gets its sums in
every order of workgroups and with any number of them on the device. What it takes it exchanges
for zeros. Sums are there if they are not zeros, as each part is the complement of what it is
exchanged for, so no order among different addresses matters. They are added up as in a binary
tree whose leaves are the parts of K, which gives the same bits whichever comes last.
"""

from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane

from ...numbers.floats import FloatBits
from ...tiles import RegisterTile, in_registers
from ..chip import LANES, SUMS, TILE, WORD_BYTES
from ..instructions.matrix import SumTile, Sums
from ..instructions.memory import arrive, swap_published
from ..instructions.vector import maximum
from ..instructions.wave import any_lane
from ..operands.memory import OUT_OF_RANGE, Span
from .shape import StreamingShape, TILE_SUM_BYTES, slots_of

comptime PART = 2
"""Sums of a lane that are handed over at once."""
comptime PARTS = SUMS // PART
"""Such parts of the sums of a lane."""
comptime PART_BYTES = 4 * PART
"""Bytes of one."""
comptime MOST_TAKEN = 32
"""Tiles of sums of others that a wave takes at once: registers."""
comptime Part = SIMD[DType.uint32, PART]
"""What a lane leaves of a part: the complement of its sums, which is never zeros."""


def levels_of(splits: Int) -> Int:
    """Returns the levels of the tree of so many parts of K."""
    var levels = 0
    while 1 << levels < splits:
        levels += 1
    return levels


trait SumsListener:
    """Who is told when a wave is about to have its sums."""

    comptime LISTENS: Bool
    """Whether to tell."""

    def announce(mut self):
        ...


@fieldwise_init
struct NoListener(SumsListener):
    """Sums of all of K."""

    comptime LISTENS = False

    @always_inline
    def announce(mut self):
        pass


struct SplitK[shape: StreamingShape](SumsListener):
    """The partial sums of a wave, and the slots in which they are added up."""

    comptime LISTENS = True
    comptime SPLITS = Self.shape.splits
    comptime TILES = Self.shape.own_tiles()
    comptime OTHERS = (1 << levels_of(Self.SPLITS)) - 1
    """Leaves of a whole tree but the own one."""
    comptime AT_ONCE = max(1, min(Self.TILES, MOST_TAKEN // Self.OTHERS))
    """Tiles of a wave that are taken together."""
    comptime SLOT_BYTES = Int32(Self.shape.tiles() * TILE_SUM_BYTES)
    comptime GROUP_BYTES = Int32(slots_of(Self.SPLITS)) * Self.SLOT_BYTES
    comptime Taken[tiles: Int] = RegisterTile[DType.uint32, PART, Self.OTHERS, tiles, PARTS]
    """What slots held, leaf by leaf as `_leaf` counts them."""

    var slots: AMDBufferResource
    var counters: AMDBufferResource
    var share: Int32
    """The own leaf: which part of K the workgroup has."""
    var rows: Int32
    """Rows of C in the tile: sums of no others are left or taken."""
    var wave: Int32
    var lane: Int32
    var arrivals: UInt32
    """How many of the others came before, in lane 0."""

    @always_inline
    def __init__(
        out self,
        memory: MutPointer[UInt8, _],
        group: Int32,
        num_groups: Int32,
        share: Int32,
        rows: Int32,
        wave: Int32,
        lane: Int32,
    ):
        """Finds the slots of tile `group` of C for a wave with leaf `share`."""
        comptime COUNTER_BYTES = Int32(Self.shape.waves * WORD_BYTES)
        var slots_end = num_groups * Self.GROUP_BYTES
        var all = Span.of(memory, slots_end + num_groups * COUNTER_BYTES)
        self.slots = all.after(group * Self.GROUP_BYTES)
        self.counters = all.after(slots_end + group * COUNTER_BYTES)
        self.share = share
        self.rows = rows
        self.wave = wave
        self.lane = lane
        self.arrivals = 0

    @always_inline
    def announce(mut self):
        """Announces the wave; the answer takes a while."""
        var place = self.wave * Int32(WORD_BYTES) if self.lane == 0 else OUT_OF_RANGE
        self.arrivals = arrive(self.counters, place, UInt32(Self.SPLITS - 1))

    @always_inline
    def add_up(self, sums: SumTile[Self.TILES]) -> Bool:
        """Turns a wave's sums into those of all of K, or leaves them to others and says no."""
        if readfirstlane(self.arrivals) != UInt32(Self.SPLITS - 1):
            self._leave(sums)
            return False
        # A tile whose rows are all there asks nothing about any of them.
        if Self.shape.m_tiles == 1 or self.rows > Int32((Self.shape.m_tiles - 1) * TILE):
            self._collect_all[True](sums)
        else:
            self._collect_all[False](sums)
        keep_one_nan(sums)
        return True

    @always_inline
    def _collect_all[has_rows: Bool](self, sums: SumTile[Self.TILES]):
        """Adds to all tiles, some at once. `has_rows`: Whether none is beyond the rows of C."""
        comptime for first in range(0, Self.TILES, Self.AT_ONCE):
            comptime count = min(Self.AT_ONCE, Self.TILES - first)
            var has_tiles = has_rows
            comptime for own in range(first, first + count):
                has_tiles = has_tiles or self._has_tile[own]()
            if has_tiles:
                self._collect[has_rows, first, count](sums)

    @always_inline
    def _leave(self, sums: SumTile[Self.TILES]):
        var slot = self._slot(self.share)
        comptime for own in range(Self.TILES):
            comptime for part in range(PARTS):
                var left = with_one_nan(sums[own].slice[PART, offset=part * PART]())
                var bits = ~bitcast[DType.uint32, PART](left)
                _ = swap_published(self.slots, self._place[own, part](), slot, bits)

    @always_inline
    def _collect[has_rows: Bool, first: Int, count: Int](self, sums: SumTile[Self.TILES]):
        """Adds to `count` tiles what all others have left of them, or will have."""
        var taken = in_registers[DType.uint32, PART, Self.OTHERS, count, PARTS]()
        comptime for leaf in range(Self.OTHERS):
            var slot = self._slot(self._leaf[leaf]())
            var is_there = self._is_there[leaf]()
            comptime for own in range(count):
                comptime for part in range(PARTS):
                    var place = self._place[first + own, part, has_rows]()
                    place = place if is_there else OUT_OF_RANGE
                    taken[leaf, own, part] = swap_published(self.slots, place, slot, 0)
        comptime for leaf in range(Self.OTHERS):
            self._fill_missing[has_rows, leaf, first, count](taken)
        comptime for own in range(count):
            if has_rows or self._has_tile[first + own]():
                comptime for level in range(levels_of(Self.SPLITS)):
                    comptime leaves = 1 << level
                    sums[first + own] += _sum_of_leaves[leaves - 1, leaves, own](taken)

    @always_inline
    def _fill_missing[
        has_rows: Bool, leaf: Int, first: Int, count: Int
    ](self, taken: Self.Taken[count]):
        comptime NOTHING = bitcast[DType.uint32, 1](Float32(-0.0))
        if not self._is_there[leaf]():
            comptime for own in range(count):
                comptime for part in range(PARTS):
                    taken[leaf, own, part] = Part(~NOTHING)
            return
        var slot = self._slot(self._leaf[leaf]())
        while any_lane(self._is_missing[has_rows, leaf, first](taken)):
            comptime for own in range(count):
                comptime for part in range(PARTS):
                    var place = self._place[first + own, part, has_rows]()
                    place = place if all(taken[leaf, own, part].eq(0)) else OUT_OF_RANGE
                    taken[leaf, own, part] |= swap_published(self.slots, place, slot, 0)

    @always_inline
    def _is_missing[
        count: Int, //, has_rows: Bool, leaf: Int, first: Int
    ](self, taken: Self.Taken[count]) -> Bool:
        """Says whether a part of a leaf is not there yet."""
        var least = ~UInt32(0)
        comptime for own in range(count):
            if self._has_tile[first + own, has_rows]():
                comptime for part in range(PARTS):
                    var bits = taken[leaf, own, part]
                    least = min(least, bits[0] | bits[1])
        return least == 0

    @always_inline
    def _leaf[index: Int](self) -> Int32:
        """Returns a leaf, the nearest first: one below the same node, two below the next one."""
        comptime level = levels_of(index + 2) - 1
        var sibling = (self.share >> Int32(level)) ^ 1
        return (sibling << Int32(level)) + Int32(index + 1 - (1 << level))

    @always_inline
    def _is_there[index: Int](self) -> Bool:
        comptime if Self.OTHERS < Self.SPLITS:
            return True
        else:
            return self._leaf[index]() < Int32(Self.SPLITS)

    @always_inline
    def _slot(self, leaf: Int32) -> Int32:
        """Returns where the slot of a leaf begins: two leaves share one, as one of them takes."""
        comptime if slots_of(Self.SPLITS) == 1:
            return 0
        else:
            return leaf * Self.SLOT_BYTES

    @always_inline
    def _has_tile[own: Int, has_rows: Bool = False](self) -> Bool:
        comptime IS_LAST = (own + 1) * Self.shape.waves > Self.shape.tiles()
        var tile = self.shape.tile_of(self.wave, own)
        var is_there = tile < Int32(Self.shape.tiles()) if IS_LAST else True
        comptime if has_rows:
            return is_there
        var m_tile = Int32(own // Self.shape.wave_columns())
        comptime if Self.shape.k_groups() > 1:
            m_tile = self.shape.corner(tile)[0]
        return is_there and m_tile * Int32(TILE) < self.rows

    @always_inline
    def _place[own: Int, part: Int, has_rows: Bool = False](self) -> Int32:
        """Returns where in a slot a part of a tile of the wave lies."""
        var first = Self.shape.tile_of(self.wave, 0) * Int32(TILE_SUM_BYTES)
        comptime step = 1 if Self.shape.k_groups() == 1 else Self.shape.waves
        comptime AT = own * step * TILE_SUM_BYTES + part * LANES * PART_BYTES
        var place = first + self.lane * Int32(PART_BYTES) + Int32(AT)
        return place if self._has_tile[own, has_rows]() else OUT_OF_RANGE


@always_inline
def _sum_of_leaves[
    others: Int, tiles: Int, //, first: Int, count: Int, own: Int
](taken: RegisterTile[DType.uint32, PART, others, tiles, PARTS]) -> Sums:
    """Returns the sums of leaves below one node."""
    comptime if count == 1:
        var sums = Sums(0)
        comptime for part in range(PARTS):
            var left = bitcast[DType.float32, PART](~taken[first, own, part])
            sums = sums.insert[offset=part * PART](left)
        return sums
    else:
        comptime HALF = count // 2
        var before = _sum_of_leaves[first, HALF, own](taken)
        return before + _sum_of_leaves[first + HALF, HALF, own](taken)


@always_inline
def keep_one_nan[tiles: Int](sums: SumTile[tiles]):
    """Leaves one pattern for all NaNs of a wave's sums, which are few."""
    var greatest = abs(sums[0][0])
    comptime for tile in range(tiles):
        comptime for i in range(SUMS):
            greatest = maximum(greatest, abs(sums[tile][i]))
    var bits = bitcast[DType.uint32, 1](greatest)
    if any_lane(bits > _INFINITY):
        comptime for tile in range(tiles):
            sums[tile] = with_one_nan(sums[tile])


comptime _INFINITY = UInt32(FloatBits[DType.float32].NOT_FINITE)
"""The bits of infinity: those of NaNs are greater."""


@always_inline
def with_one_nan[
    width: SIMDLength, //
](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns x with one pattern for all NaNs, of which no bit beyond the quiet one is set.

    On integers: what is said of floats the compiler takes away, because to it all NaNs are one.
    """
    comptime NAN = SIMD[DType.uint32, width](0x7FC00000)
    comptime MAGNITUDE = UInt32(FloatBits[DType.float32].MAGNITUDE)
    var bits = bitcast[DType.uint32, width](x)
    return bitcast[DType.float32, width]((bits & MAGNITUDE).gt(_INFINITY).select(NAN, bits))
