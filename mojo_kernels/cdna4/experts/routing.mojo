"""Slots of tokens, sorted by expert: a workgroup for each expert looks at all ids.

    ids       slot s = (token, j) -> expert       a negative one stands for none
    tokens    row -> token                         rows in the order of experts, then of slots
    places    slot -> row                          NO_ROW for no expert, NO_EXPERT for one there is not
    sizes     expert -> rows

A workgroup goes through the slots in rounds, in which each wave has a stretch. Waves vote on 64
neighbouring slots at a time, and each lane keeps the votes on other ones:

    wave      0                              1           ..
    slots     0 .. 63   64 .. 127   ..       stretch ..          ids, loaded some votes ahead
    votes     lane 0    lane 1      ..       lane 0              a bit for each of the expert's
    listed    3 17 20 .. 64 90 ..            ..                  those slots, in LDS
    rows      behind those of lower experts and of waves before, as they are listed

Who has no more slots than one round reads ids once; others count rows of lower experts before.
One workgroup more says which slots have no row.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.bit import count_trailing_zeros, pop_count
from std.math import align_up, ceildiv
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Routing
from ...launch.queue import Grid, Queue
from ...tiles import RegisterTile, SharedTile, in_registers
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.matrix import LANES
from ..instructions.wave import (
    count,
    count_before,
    of_lane,
    sums_up_to,
    sums_up_to_in_row,
    votes,
    with_lane,
)
from ..operands.memory import (
    Input,
    OUT_OF_RANGE,
    Output,
    Span,
    WORD_BYTES,
    input,
    load_word,
    output,
    quotient,
)

comptime WAVES = 16
"""Waves of a workgroup, as many as lanes that add up at once."""
comptime LOADS = 16
"""Ids that a lane loads before the first vote, where there are many slots."""
comptime MAX_STRETCH = LANES * LANES
"""Slots of a wave in a round: votes for each lane."""
comptime NO_ROW = Int32(-1)
"""The place of a slot that adds nothing."""
comptime NO_EXPERT = Int32(-2)
"""The place of a slot whose expert there is not."""
comptime _ALL_COUNT_BYTES = 2 * WAVES * 2 * WORD_BYTES
"""Counts of lower and own slots of each wave, for a round and the next."""
comptime _STRETCH_BYTES = MAX_STRETCH * 2
comptime _ListedSlots = SharedTile[DType.uint16, 1, MAX_STRETCH]
"""Slots of a wave's stretch, counted from its first."""


@fieldwise_init
struct Ids(TrivialRegisterPassable):
    """The ids of all slots."""

    var memory: AMDBufferResource
    var bytes: Int32
    """Of an id, 4 or 8."""
    var slots: Int32
    var lane: Int32

    @always_inline
    def load[votes: Int](self, first: Int32) -> RegisterTile[DType.int32, 1, votes]:
        """Returns the ids of 64 slots for each vote, 0 for those behind the last.

        Ids that 32 bits do not hold become others that no expert has, of the same sign.
        """
        var found = in_registers[DType.int32, 1, votes]()
        var offset = (first + self.lane) * self.bytes
        if self.bytes == Int32(WORD_BYTES):
            comptime for i in range(votes):
                found[i] = load_word(self.memory, offset + Int32(i * LANES * WORD_BYTES))
            return found
        var pairs = in_registers[DType.int32, 2, votes]()
        comptime for i in range(votes):
            comptime PAIR_BYTES = 2 * WORD_BYTES
            var pair = self.memory.load[DType.uint8, PAIR_BYTES](
                offset + Int32(i * LANES * PAIR_BYTES)
            )
            pairs[i] = bitcast[DType.int32, 2](pair)
        comptime for i in range(votes):
            var low, high = pairs[i][0], pairs[i][1]
            var other = high >> 31 ^ Int32.MAX
            found[i] = low if high == 0 and low >= 0 else other
        return found


@fieldwise_init
struct Found(TrivialRegisterPassable):
    """What a wave finds in its stretch."""

    var lower: Int32
    """Slots of lower experts."""
    var own: UInt64
    """The votes of a lane: which of its 64 slots are the expert's."""

    @staticmethod
    @always_inline
    def of[ahead: Int](ids: Ids, expert: Int32, first: Int32, stretch: Int32) -> Self:
        """Looks at a stretch, which is a multiple of `ahead` votes."""
        var lower, low, high = Int32(0), Int32(0), Int32(0)
        for begin in range(Int32(0), stretch, Int32(ahead * LANES)):
            var found = ids.load[ahead](first + begin)
            comptime for i in range(ahead):
                lower += count(votes(found[i].cast[DType.uint32]() < expert.cast[DType.uint32]()))
                var own = votes(found[i] == expert)
                var keeper = quotient[LANES](begin) + Int32(i)
                low = with_lane(low, own.cast[DType.int32](), keeper)
                high = with_lane(high, (own >> 32).cast[DType.int32](), keeper)
        # What is behind the last slot looks like the first expert's.
        var inside = min(max(ids.slots - first, 0), stretch)
        lower -= stretch - inside if expert > 0 else 0
        var last = inside - ids.lane * LANES
        var valid = ~UInt64(0) >> (LANES - min(last, LANES)).cast[DType.uint64]()
        var own = bitcast[DType.uint64, 1](SIMD[DType.int32, 2](low, high))
        return Self(lower, own & valid if last > 0 else 0)

    @always_inline
    def list(self, listed: _ListedSlots, lane: Int32, stretch: Int32) -> Int32:
        """Lists the slots of the expert in their order; returns how many."""
        if stretch == LANES:
            var own = bitcast[DType.int32, 2](self.own)
            var words = SIMD[DType.int32, 2](of_lane(own[0], 0), of_lane(own[1], 0))
            var all = bitcast[DType.uint64, 1](words)
            if all >> lane.cast[DType.uint64]() & 1 != 0:
                listed[count_before(all)] = lane.cast[DType.uint16]()
            return count(all)
        var left = self.own
        var sum = sums_up_to(count(left))
        var at = sum - count(left)
        while left != 0:
            var slot = lane * LANES + Int32(count_trailing_zeros(left))
            listed[at] = slot.cast[DType.uint16]()
            at += 1
            left &= left - 1
        return of_lane(sum, Int32(LANES - 1))


@always_inline
def _mark[
    ahead: Int
](ids: Ids, experts: Int32, first: Int32, stretch: Int32, places: AMDBufferResource):
    """Says of the slots of a stretch which have no row."""
    for begin in range(first, first + stretch, Int32(ahead * LANES)):
        var found = ids.load[ahead](begin)
        comptime for i in range(ahead):
            var slot = begin + Int32(i * LANES) + ids.lane
            var has_row = found[i].cast[DType.uint32]() < experts.cast[DType.uint32]()
            if votes(has_row) != ~UInt64(0):
                var place = NO_ROW if found[i] < 0 else NO_EXPERT
                _store(places, OUT_OF_RANGE if has_row else slot, place)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(WAVES * LANES)))
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
    var lds = allocate_lds[_ALL_COUNT_BYTES + WAVES * _STRETCH_BYTES]()
    if stretch == LANES:
        _route[1](ids, id_bytes, slots, per_token, experts, stretch, sizes, tokens, places, lds)
    else:
        _route[LOADS](ids, id_bytes, slots, per_token, experts, stretch, sizes, tokens, places, lds)


@always_inline
def _route[
    ahead: Int
](
    ids: Input[DType.uint8],
    id_bytes: Int32,
    slots: Int32,
    per_token: Int32,
    experts: Int32,
    stretch: Int32,
    sizes: Output[DType.int32],
    tokens: Output[DType.int32],
    places: Output[DType.int32],
    lds: Lds,
):
    """Does the work of `route_slots`, loading so many votes ahead."""
    var expert = Int32(block_idx.x)
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var all = Ids(Span.of(ids, slots * id_bytes).after(0), id_bytes, slots, lane)
    var place_memory = Span.of(places, slots).after(0)
    var own_first, round_slots = wave * stretch, WAVES * stretch
    if expert == experts:
        for begin in range(Int32(0), slots, round_slots):
            _mark[ahead](all, experts, begin + own_first, stretch, place_memory)
        return

    var counts = tile_at[DType.int32, 2, 2 * WAVES](lds)
    var listed = tile_at[DType.uint16, 1, MAX_STRETCH](
        lds, Int32(_ALL_COUNT_BYTES) + wave * Int32(_STRETCH_BYTES)
    )
    var token_memory = Span.of(tokens, slots).after(0)
    var lower = Int32(0)
    for begin in range(round_slots, slots, round_slots):
        lower += Found.of[ahead](all, expert, begin + own_first, stretch).lower

    var row, size, turn = Int32(0), Int32(0), Int32(0)
    for begin in range(Int32(0), slots, round_slots):
        var first = begin + own_first
        var found = Found.of[ahead](all, expert, first, stretch)
        var own = found.list(listed, lane, stretch)

        # Where the rows of this wave begin. Waves read counts while others write the next ones.
        lower += found.lower
        counts[turn + wave] = SIMD[DType.int32, 2](lower, own)
        barrier()
        var theirs = counts[turn + lane % WAVES]
        if begin == 0:
            row = of_lane(sums_up_to_in_row(theirs[0]), Int32(WAVES - 1))
        var sums = sums_up_to_in_row(theirs[1])
        var first_row = row + size + of_lane(sums, wave) - own
        size += of_lane(sums, Int32(WAVES - 1))
        turn = Int32(WAVES) - turn

        for i in range(lane, own, Int32(LANES)):
            var slot = first + listed[i].cast[DType.int32]()[0]
            var token = slot.cast[DType.uint32]() // per_token.cast[DType.uint32]()
            _store(token_memory, first_row + i, token.cast[DType.int32]())
            _store(place_memory, slot, first_row + i)

    if wave == 0 and lane == 0:
        _store(Span.of(sizes, experts).after(0), expert, size)


@always_inline
def _store(memory: AMDBufferResource, index: Int32, value: Int32):
    """Stores a number of a list, unless `index` is out of range."""
    var offset = index * Int32(WORD_BYTES) if index != OUT_OF_RANGE else OUT_OF_RANGE
    memory.store(offset, bitcast[DType.uint8, WORD_BYTES](SIMD[DType.int32, 1](value)))


def route_grid(experts: Int) -> Grid:
    """Returns the grid of `route_slots`."""
    return Grid(experts + 1, threads=WAVES * LANES)


def stretch_of(slots: Int) -> Int:
    """Returns how many slots a wave has in a round: one vote's, or all that it loads ahead."""
    if slots <= WAVES * LANES:
        return LANES
    return min(align_up(ceildiv(slots, WAVES), LOADS * LANES), MAX_STRETCH)


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
