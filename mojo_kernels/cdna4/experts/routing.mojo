"""Slots of tokens, sorted by expert: a workgroup for each expert looks at all ids.

    ids       slot s = (token, j) -> expert       a negative one stands for none
    tokens    row -> token                         rows in the order of experts, then of slots
    places    slot -> row                          NO_ROW for no expert, NO_EXPERT for one there is not
    sizes     expert -> rows

A wave looks at a stretch of the slots, twice: once to count those that come before its own, then
to number its own by votes. One workgroup more says which slots have no row.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.math import align_up, ceildiv
from std.memory import bitcast
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Routing
from ...launch.queue import Grid, Queue
from ..instructions.lds import allocate_lds, tile_at
from ..instructions.matrix import LANES
from ..instructions.wave import count, count_before, votes
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
"""Waves of a workgroup."""
comptime NO_ROW = Int32(-1)
"""The place of a slot that adds nothing."""
comptime NO_EXPERT = Int32(-2)
"""The place of a slot whose expert there is not."""
comptime _BEHIND = Int32(-3)
"""What is behind the last slot has."""


@fieldwise_init
struct Ids(TrivialRegisterPassable):
    """The ids of all slots."""

    var memory: AMDBufferResource
    var slots: Int32
    var bytes: Int32
    """Of an id, 4 or 8."""
    var experts: Int32
    """How many there are."""

    @always_inline
    def of(self, slot: Int32) -> Int32:
        """Returns the expert of a slot, `NO_ROW`, `NO_EXPERT`, or what lies behind the last."""
        var offset = slot * self.bytes
        var low = load_word(self.memory, offset)
        var high = low >> 31
        if self.bytes != Int32(WORD_BYTES):
            high = load_word(self.memory, offset + Int32(WORD_BYTES))
        var is_there = high == 0 and low.cast[DType.uint32]() < self.experts.cast[DType.uint32]()
        var expert = low if is_there else (NO_ROW if high < 0 else NO_EXPERT)
        return expert if slot < self.slots else _BEHIND


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
    var expert = Int32(block_idx.x)
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var all = Ids(Span.of(ids, slots * id_bytes).after(0), slots, id_bytes, experts)
    var place_memory = Span.of(places, slots).after(0)
    var first, end = wave * stretch, min((wave + 1) * stretch, slots)
    if expert == experts:
        for begin in range(first, end, LANES):
            var slot = begin + lane
            var found = all.of(slot)
            _store(place_memory, slot if found < 0 else OUT_OF_RANGE, found)
        return

    # Rows before those of this wave: of lower experts, and of this one in earlier stretches.
    var lower, own = Int32(0), Int32(0)
    for begin in range(first, end, LANES):
        var found = all.of(begin + lane)
        lower += count(votes(Int32(0) <= found < expert))
        own += count(votes(found == expert))
    var counts = tile_at[DType.int32, 2, WAVES](allocate_lds[2 * WORD_BYTES * WAVES]())
    counts[wave] = SIMD[DType.int32, 2](lower, own)
    barrier()
    var row, size = Int32(0), Int32(0)
    comptime for other in range(WAVES):
        var theirs = counts[other]
        row += theirs[0] + (theirs[1] if Int32(other) < wave else 0)
        size += theirs[1]
    if wave == 0:
        _store(Span.of(sizes, experts).after(0), expert if lane == 0 else OUT_OF_RANGE, size)

    var token_memory = Span.of(tokens, slots).after(0)
    for begin in range(first, end, LANES):
        var slot = begin + lane
        var is_own = all.of(slot) == expert
        var mine = votes(is_own)
        var place = row + count_before(mine)
        var token = (slot.cast[DType.uint32]() // per_token.cast[DType.uint32]()).cast[
            DType.int32
        ]()
        _store(token_memory, place if is_own else OUT_OF_RANGE, token)
        _store(place_memory, slot if is_own else OUT_OF_RANGE, place)
        row += count(mine)


@always_inline
def _store(memory: AMDBufferResource, index: Int32, value: Int32):
    """Stores a number of a list, unless `index` is out of range."""
    var offset = index * Int32(WORD_BYTES) if index != OUT_OF_RANGE else OUT_OF_RANGE
    memory.store(offset, bitcast[DType.uint8, WORD_BYTES](SIMD[DType.int32, 1](value)))


def route_grid(experts: Int) -> Grid:
    """Returns the grid of `route_slots`."""
    return Grid(experts + 1, threads=WAVES * LANES)


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
        Int32(align_up(ceildiv(slots, WAVES), LANES)),
        output[DType.int32](sizes),
        output[DType.int32](tokens),
        output[DType.int32](places),
    )
