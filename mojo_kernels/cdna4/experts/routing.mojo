"""Slots of tokens, sorted by expert: a workgroup for each expert looks at all ids.

    ids       slot s = (token, j) -> expert       a negative one stands for none
    tokens    row -> token                        rows in the order of experts, then of slots
    places    slot -> row                         NO_PLACE for no expert, UNKNOWN for a missing one
    sizes     expert -> rows

A workgroup goes through the slots in rounds, in which each wave has a stretch. A wave votes on 64
neighbouring slots at a time, and each of its lanes keeps one of the votes:

    wave      0                              1           ..
    slots     0 .. 63   64 .. 127   ..       stretch ..          ids, loaded some votes ahead
    votes     lane 0    lane 1      ..       lane 0              a bit for each of the expert's
    listed    3 17 20 .. 64 90 ..            ..                  those slots, in LDS
    rows      behind those of lower experts and of waves before, as they are listed

A round has 65536 slots at most. If there are more, the ids behind it are read once more before,
to count the rows of lower experts. For so few slots that a wave has one vote, nothing is listed.
One workgroup more says which slots have no row.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.bit import count_trailing_zeros
from std.math import align_up, ceildiv
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Routing
from ...launch.queue import Queue
from ...routing.slots import NO_PLACE, UNKNOWN
from ...tiles import RegisterTile, SharedTile, in_registers
from ..chip import LANES, WORD_BYTES
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.wave import (
    count,
    count_before,
    of_lane,
    sums_up_to,
    sums_up_to_in_row,
    votes,
    with_lane,
)
from ..operands.memory import Input, OUT_OF_RANGE, Output, Span, input, load_word, output, quotient
from ..moe_shape import ROUTE_WAVES, route_grid

comptime LOADS = 16
"""Ids that a lane loads before the first vote, where there are many slots."""
comptime MAX_STRETCH = LANES * LANES
"""Slots of a wave in a round: votes for each lane."""
comptime _COUNT_BYTES = ROUTE_WAVES * 2 * WORD_BYTES
"""Lower and own slots of each wave, in a round."""
comptime _ListedSlots = SharedTile[DType.uint16, 1, MAX_STRETCH]
"""Those of a wave's stretch that are the expert's, counted from its first."""
comptime _LISTED_BYTES = MAX_STRETCH * size_of[DType.uint16]()


@fieldwise_init
struct Ids(TrivialRegisterPassable):
    """The ids of all slots."""

    var memory: AMDBufferResource
    var bytes: Int32
    """Of an id, 4 or 8."""
    var slots: Int32
    var lane: Int32

    @always_inline
    def load[ahead: Int](self, first: Int32) -> RegisterTile[DType.int32, 1, ahead]:
        """Returns the ids for so many votes of 64 slots, 0 for those behind the last.

        Ids that 32 bits do not hold become others that no expert has, of the same sign.
        """
        var found = in_registers[DType.int32, 1, ahead]()
        var offset = (first + self.lane) * self.bytes
        if self.bytes == Int32(WORD_BYTES):
            comptime for i in range(ahead):
                found[i] = load_word(self.memory, offset + Int32(i * LANES * WORD_BYTES))
            return found
        comptime for i in range(ahead):
            comptime BYTES = 2 * WORD_BYTES
            var pair = self.memory.load[DType.uint8, BYTES](offset + Int32(i * LANES * BYTES))
            var words = bitcast[DType.int32, 2](pair)
            var other = words[1] >> 31 ^ Int32.MAX
            found[i] = words[0] if words[1] == 0 and words[0] >= 0 else other
        return found


@fieldwise_init
struct SlotsOfExpert(TrivialRegisterPassable):
    """What a wave finds in its stretch."""

    var lower: Int32
    """Slots of lower experts."""
    var own: UInt64
    """The votes of a lane: which of its 64 slots are the expert's."""

    @staticmethod
    @always_inline
    def of(ids: Ids, expert: Int32, first: Int32, stretch: Int32) -> Self:
        """Looks at a stretch, which is a multiple of what is loaded ahead."""
        comptime AHEAD = LOADS * LANES
        var lower, low, high = Int32(0), Int32(0), Int32(0)
        var begin = Int32(0)
        while begin < stretch and first + begin < ids.slots:
            var found = ids.load[LOADS](first + begin)
            comptime for i in range(LOADS):
                lower += count(votes(found[i].cast[DType.uint32]() < expert.cast[DType.uint32]()))
                var own = votes(found[i] == expert)
                var keeper = quotient[LANES](begin) + Int32(i)
                low = with_lane(low, own.cast[DType.int32](), keeper)
                high = with_lane(high, (own >> 32).cast[DType.int32](), keeper)
            begin += AHEAD
        # What is behind the last slot looks like the first expert's.
        var inside = min(max(ids.slots - first, 0), stretch)
        lower -= begin - inside if expert > 0 else 0
        var last = inside - ids.lane * LANES
        var valid = ~UInt64(0) >> (LANES - min(last, LANES)).cast[DType.uint64]()
        var own = bitcast[DType.uint64, 1](SIMD[DType.int32, 2](low, high))
        return Self(lower, own & valid if last > 0 else 0)

    @always_inline
    def list(self, listed: _ListedSlots, lane: Int32) -> Int32:
        """Lists the slots of the expert in their order; returns how many."""
        var left = self.own
        var sum = sums_up_to(count(left))
        var at = sum - count(left)
        while left != 0:
            var slot = lane * LANES + Int32(count_trailing_zeros(left))
            listed[at] = slot.cast[DType.uint16]()
            at += 1
            left &= left - 1
        return of_lane(sum, Int32(LANES - 1))


@fieldwise_init
struct Counts(TrivialRegisterPassable):
    """What all waves counted."""

    var lower: Int32
    """Slots of lower experts."""
    var before: Int32
    """The expert's slots in waves before this one."""
    var own: Int32
    """The expert's slots."""

    @staticmethod
    @always_inline
    def tell(place: Lds, wave: Int32, lower: Int32, own: Int32):
        """Tells the other waves what this one counted, and waits for them."""
        tile_at[DType.int32, 2, ROUTE_WAVES](place)[wave] = SIMD[DType.int32, 2](lower, own)
        barrier()

    @staticmethod
    @always_inline
    def of(place: Lds, wave: Int32, lane: Int32, own: Int32) -> Self:
        """Adds up what all waves have told."""
        var theirs = tile_at[DType.int32, 2, ROUTE_WAVES](place)[lane % ROUTE_WAVES]
        var lowers, owns = sums_up_to_in_row(theirs[0]), sums_up_to_in_row(theirs[1])
        comptime LAST = Int32(ROUTE_WAVES - 1)
        return Self(of_lane(lowers, LAST), of_lane(owns, wave) - own, of_lane(owns, LAST))


@fieldwise_init
struct Routes(TrivialRegisterPassable):
    """The lists that come out."""

    var tokens: AMDBufferResource
    var places: AMDBufferResource
    var per_token: Int32

    @always_inline
    def put(self, slot: Int32, row: Int32, is_there: Bool = True):
        """Says that a slot has a row, if it has one."""
        var token = slot.cast[DType.uint32]() // self.per_token.cast[DType.uint32]()
        _store(self.tokens, row, token.cast[DType.int32](), is_there)
        _store(self.places, slot, row, is_there)

    @always_inline
    def mark[ahead: Int](self, ids: Ids, experts: Int32, first: Int32, stretch: Int32):
        """Says of the slots of a stretch which have no row."""
        var begin = first
        while begin < first + stretch:
            var found = ids.load[ahead](begin)
            comptime for i in range(ahead):
                var slot = begin + Int32(i * LANES) + ids.lane
                var has_row = found[i].cast[DType.uint32]() < experts.cast[DType.uint32]()
                if votes(has_row) != ~UInt64(0):
                    var place = NO_PLACE if found[i] < 0 else UNKNOWN
                    _store(self.places, slot, place, not has_row)
            begin += Int32(ahead * LANES)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(ROUTE_WAVES * LANES)))
def route_slots(
    ids: Input[DType.uint8],
    id_bytes: Int32,
    slots: Int32,
    per_token: Int32,
    experts: Int32,
    stretch: Int32,
    sizes: Output[DType.int32],
    tokens: Output[DType.int32],
    places: Output[DType.int32],
):
    """Numbers the rows of one expert; the last workgroup marks the slots that have none."""
    var expert = Int32(block_idx.x)
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var all = Ids(Span.of(ids, slots * id_bytes).after(0), id_bytes, slots, lane)
    var token_memory = Span.of(tokens, slots).after(0)
    var routes = Routes(token_memory, Span.of(places, slots).after(0), per_token)
    var lds = allocate_lds[2 * _COUNT_BYTES + ROUTE_WAVES * _LISTED_BYTES]()
    var size: Int32
    if stretch == LANES:
        if expert == experts:
            return routes.mark[1](all, experts, wave * LANES, LANES)
        size = _number_few(all, routes, expert, wave, lds)
    else:
        if expert == experts:
            var begin = wave * stretch
            while begin < slots:
                routes.mark[LOADS](all, experts, begin, stretch)
                begin += ROUTE_WAVES * stretch
            return
        size = _number(all, routes, expert, wave, stretch, lds)
    if wave == 0 and lane == 0:
        _store(Span.of(sizes, experts).after(0), expert, size)


@always_inline
def _number_few(ids: Ids, routes: Routes, expert: Int32, wave: Int32, lds: Lds) -> Int32:
    """Numbers the rows of an expert where each wave has one vote.

    Returns how many, to the first wave.
    """
    var first, lower, own = wave * LANES, Int32(0), UInt64(0)
    if first < ids.slots:
        var found = ids.load[1](first)[0][0]
        var inside = votes(first + ids.lane < ids.slots)
        lower = count(votes(found.cast[DType.uint32]() < expert.cast[DType.uint32]()) & inside)
        own = votes(found == expert) & inside
    Counts.tell(lds, wave, lower, count(own))
    if own == 0 and wave > 0:
        return 0
    var counts = Counts.of(lds, wave, ids.lane, count(own))
    var row = counts.lower + counts.before + count_before(own)
    routes.put(first + ids.lane, row, own >> ids.lane.cast[DType.uint64]() & 1 != 0)
    return counts.own


@always_inline
def _number(
    ids: Ids, routes: Routes, expert: Int32, wave: Int32, stretch: Int32, lds: Lds
) -> Int32:
    """Numbers the rows of an expert; returns how many."""
    var own_lds = Int32(2 * _COUNT_BYTES) + wave * Int32(_LISTED_BYTES)
    var listed = tile_at[DType.uint16, 1, MAX_STRETCH](lds, own_lds)
    var lower, round_slots = Int32(0), ROUTE_WAVES * stretch
    var first = wave * stretch + round_slots
    while first - wave * stretch < ids.slots:
        lower += SlotsOfExpert.of(ids, expert, first, stretch).lower
        first += round_slots

    var row, size, turn = Int32(0), Int32(0), Int32(0)
    first = wave * stretch
    while first - wave * stretch < ids.slots:
        var found = SlotsOfExpert.of(ids, expert, first, stretch)
        var own = found.list(listed, ids.lane)
        # Waves may read counts while others write the next ones.
        var place = lds.unsafe_offset(Int(turn))
        Counts.tell(place, wave, lower + found.lower, own)
        var counts = Counts.of(place, wave, ids.lane, own)
        if first < round_slots:
            row = counts.lower
        var first_row = row + counts.before
        var i = ids.lane
        while i < own:
            routes.put(first + listed[i].cast[DType.int32]()[0], first_row + i)
            i += LANES
        row += counts.own
        size += counts.own
        turn = Int32(_COUNT_BYTES) - turn
        first += round_slots
    return size


@always_inline
def _store(memory: AMDBufferResource, index: Int32, value: Int32, is_wanted: Bool = True):
    """Stores a number of a list, if it is wanted."""
    var offset = index * Int32(WORD_BYTES) if is_wanted else OUT_OF_RANGE
    memory.store(offset, bitcast[DType.uint8, WORD_BYTES](SIMD[DType.int32, 1](value)))


def stretch_of(slots: Int) -> Int:
    """Returns how many slots a wave has in a round: one vote's, or all that it loads ahead."""
    if slots <= ROUTE_WAVES * LANES:
        return LANES
    return min(align_up(ceildiv(slots, ROUTE_WAVES), LOADS * LANES), MAX_STRETCH)


def route(
    routing: Routing, experts: Int, sizes: Int, tokens: Int, places: Int, mut queue: Some[Queue]
) raises:
    """Launches the sorting of all slots; the lists are addresses."""
    var slots = routing.count()
    queue.launch[route_slots](
        route_grid(experts),
        input[DType.uint8](routing.ids),
        Int32(routing.id_bytes),
        Int32(slots),
        Int32(routing.slots),
        Int32(experts),
        Int32(stretch_of(slots)),
        output[DType.int32](sizes),
        output[DType.int32](tokens),
        output[DType.int32](places),
    )
