"""Split-K with a fix-up in the workspace: workgroups with parts of K add up their partial sums.

There, where all is zero between launches, a tile of sums is first the first halves of
what the lanes hold, then the second halves. Behind the sums of all tiles of C are counters:

    sums       ((workgroup x + X * y) * slots + slot) * tiles + tile
    counter    (workgroup x + X * y) * waves + wave

Each wave adds up with the same wave of the other workgroups. It arrives at their counter when its
own sums are about to be there, and learns who came before. Sums are added up as in a binary tree
whose leaves are the parts of K, which gives the same bits in every order of arrival. Who comes last
below a node has to add up there, and goes on to the next one:

    earlier    leaves its sums in the slot of the node, and is done
    last       takes those of the other half, and in the end goes on with the total

Where registers have room for the sums of all others, the tree is one node, without hops.

A wave may wait, but only for waves that run, of which the first waits for nothing: it gets its sums
in every order of workgroups and with any number of them on the device. What it takes it exchanges
for zeros. Sums are there if they are not zeros, as each part is the complement of what it is
exchanged for, so no order among different addresses matters.
"""

from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane

from ...numbers.floats import FloatBits
from ...tiles import RegisterTile, in_registers
from ..chip import LANES, SUMS, TILE, WORD_BYTES
from ..instructions.matrix import SumTile, Sums, summed_here
from ..instructions.memory import add_published, swap_published
from ..instructions.vector import maximum
from ..instructions.wave import any_lane
from ..operands.memory import OUT_OF_RANGE, Span
from .shape import StreamingShape, TILE_SUM_BYTES, levels_of

comptime PART = 2
"""Sums of a lane that are handed over at once."""
comptime PARTS = SUMS // PART
"""Such parts of the sums of a lane."""
comptime PART_BYTES = 4 * PART
"""Bytes of one."""
comptime Part = SIMD[DType.uint32, PART]
"""What a lane leaves of a part: the complement of its sums, which is never zeros."""


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
    comptime LEVELS = levels_of(Self.SPLITS)
    comptime IN_PAIRS = Self.shape.adds_in_pairs()
    comptime TAKEN = Self.LEVELS if Self.IN_PAIRS else (1 << Self.LEVELS) - 1
    """Sums that the last of all takes: of each level, or of each leaf of a whole tree but one."""
    comptime ALL = Int32((1 << Self.SPLITS) - 1)
    """All leaves, a bit each."""
    comptime SLOT_BYTES = Int32(Self.shape.tiles() * TILE_SUM_BYTES)
    comptime GROUP_BYTES = Int32(Self.shape.slots()) * Self.SLOT_BYTES
    comptime Taken = RegisterTile[DType.uint32, PART, Self.TAKEN, Self.TILES, PARTS]
    """What slots held, level by level."""

    var slots: AMDBufferResource
    var counters: AMDBufferResource
    var share: Int32
    """The own leaf: which part of K the workgroup has."""
    var rows: Int32
    """Rows of C in the tile: sums of no others are left or taken."""
    var wave: Int32
    var lane: Int32
    var arrived: Int32
    """Who of the others came before, in lane 0: the sum of their weights."""

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
        self.arrived = 0

    @always_inline
    def announce(mut self):
        """Announces the wave; the answer takes a while."""
        var place = self.wave * Int32(WORD_BYTES) if self.lane == 0 else OUT_OF_RANGE
        self.arrived = add_published(self.counters, place, self._weight())

    @always_inline
    def _weight(self) -> Int32:
        """Returns the leaf's bit; the last one has less, so that all add up to zero again."""
        var bit = Int32(1) << self.share
        return bit - Self.ALL if self.share == Int32(Self.SPLITS - 1) else bit

    @always_inline
    def add_up(self, sums: SumTile[Self.TILES]) -> Bool:
        """Turns a wave's sums into those of all of K, or leaves them to others and says no."""
        var levels = self._levels()
        if levels > 0:
            # A tile whose rows are all there asks nothing about any of them.
            if Self.shape.m_tiles == 1 or self.rows > Int32((Self.shape.m_tiles - 1) * TILE):
                self._collect[True](sums, levels)
            else:
                self._collect[False](sums, levels)
        if levels < Int32(Self.LEVELS):
            self._leave(sums, levels)
            return False
        keep_one_nan(sums)
        return True

    @always_inline
    def _levels(self) -> Int32:
        """Returns up to which level the wave is the last one: it adds up there."""
        var arrived = readfirstlane(self.arrived) + self._weight()
        comptime if not Self.IN_PAIRS or Self.LEVELS == 1:
            return Int32(Self.LEVELS) if arrived == 0 else 0
        var leaves = arrived if arrived > 0 else arrived + Self.ALL
        var levels = Int32(0)
        comptime for level in range(Self.LEVELS):
            comptime BELOW = 2 << level
            var first = self.share & Int32(-BELOW)
            var below = (Int32((1 << BELOW) - 1) << first) & Self.ALL
            levels += Int32(1) if (leaves & below) == below else 0
        return levels

    @always_inline
    def _leave(self, sums: SumTile[Self.TILES], level: Int32):
        var slot = self._slot(self.share, level)
        comptime for own in range(Self.TILES):
            comptime for part in range(PARTS):
                var left = with_one_nan(sums[own].slice[PART, offset=part * PART]())
                var bits = ~bitcast[DType.uint32, PART](left)
                _ = swap_published(self.slots, self._place[own, part](), slot, bits)

    @always_inline
    def _collect[has_rows: Bool](self, sums: SumTile[Self.TILES], levels: Int32):
        """Adds what others have left or will have. `has_rows`: Whether all are rows of C."""
        var taken = in_registers[DType.uint32, PART, Self.TAKEN, Self.TILES, PARTS]()
        comptime for i in range(Self.TAKEN):
            if self._is_there[i](levels):
                var slot = self._slot_of[i]()
                comptime for own in range(Self.TILES):
                    comptime for part in range(PARTS):
                        var place = self._place[own, part, has_rows]()
                        taken[i, own, part] = swap_published(self.slots, place, slot, 0)
        comptime for level in range(Self.LEVELS):
            comptime count = 1 if Self.IN_PAIRS else 1 << level
            comptime first = level if Self.IN_PAIRS else count - 1
            comptime for i in range(first, first + count):
                self._fill_missing[has_rows, i](taken, levels)
            comptime for own in range(Self.TILES):
                if has_rows or self._has_tile[own]():
                    sums[own] += _sum_of_leaves[first, count, own](taken)
                    # While those of the next level arrive.
                    comptime if level + 1 < Self.LEVELS:
                        sums[own] = summed_here(sums[own])

    @always_inline
    def _fill_missing[has_rows: Bool, i: Int](self, taken: Self.Taken, levels: Int32):
        comptime NOTHING = bitcast[DType.uint32, 1](Float32(-0.0))
        if not self._is_there[i](levels):
            comptime for own in range(Self.TILES):
                comptime for part in range(PARTS):
                    taken[i, own, part] = Part(~NOTHING)
            return
        var slot = self._slot_of[i]()
        while any_lane(self._is_missing[has_rows, i](taken)):
            comptime for own in range(Self.TILES):
                comptime for part in range(PARTS):
                    var place = self._place[own, part, has_rows]()
                    place = place if all(taken[i, own, part].eq(0)) else OUT_OF_RANGE
                    taken[i, own, part] |= swap_published(self.slots, place, slot, 0)

    @always_inline
    def _is_missing[has_rows: Bool, i: Int](self, taken: Self.Taken) -> Bool:
        """Says whether a part of some sums is not there yet."""
        var least = ~UInt32(0)
        comptime for own in range(Self.TILES):
            if self._has_tile[own, has_rows]():
                comptime for part in range(PARTS):
                    var bits = taken[i, own, part]
                    least = min(least, bits[0] | bits[1])
        return least == 0

    @always_inline
    def _first_leaf[i: Int](self) -> Int32:
        """Returns the first leaf of what is taken, the node beside the own one or a leaf of it."""
        comptime level = i if Self.IN_PAIRS else levels_of(i + 2) - 1
        comptime of_node = 0 if Self.IN_PAIRS else i + 1 - (1 << level)
        return (((self.share >> Int32(level)) ^ 1) << Int32(level)) + Int32(of_node)

    @always_inline
    def _is_there[i: Int](self, levels: Int32) -> Bool:
        var is_there = levels > Int32(i) if Self.IN_PAIRS else True
        comptime if 1 << Self.LEVELS == Self.SPLITS:
            return is_there
        return is_there and self._first_leaf[i]() < Int32(Self.SPLITS)

    @always_inline
    def _slot_of[i: Int](self) -> Int32:
        """Returns where the slot of what is taken begins."""
        return self._slot(self._first_leaf[i](), Int32(i))

    @always_inline
    def _slot(self, leaf: Int32, level: Int32) -> Int32:
        """Returns where a slot begins: a leaf's, or that of the node one level above a node.

        Of both halves of a node only one leaves sums; the second one's first leaf names it.
        """
        comptime if Self.IN_PAIRS:
            return ((((leaf >> level) | 1) << level) - 1) * Self.SLOT_BYTES
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
    """Returns the sums of `count` leaves below one node, or of one that is added up."""
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
