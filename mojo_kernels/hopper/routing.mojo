"""Routing on Hopper: rows become lists of tiles, and the rows of slots the results of tokens.

    sizes of groups, or ids of slots  ->  tiles, places, sources     one CTA
    rows of slots                     ->  tokens                     four numbers a thread

Rows are placed expert by expert, each expert's first at a multiple of eight:

    rows of experts   5             0     2
    places            0 .. 4 | - - -      8 9 | - - - - - -
    tiles of 4        (0, 0 .. 3) (0, 4)  (2, 8 9)

A tile of the list is (expert, first place, first row of the result, rows). Tiles behind the last
one have no rows; those of rows that no group has come with `NO_EXPERT`, and their results are zero.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_up, shuffle_xor
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ..experts import ExpertsProblem, NUMBERS
from ..launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ..routing.groups import Groups
from ..routing.slots import NO_EXPERT, NO_PLACE, Slots, UNKNOWN
from ..routing.sums import AT_ONCE, Numbers, SlotRows, add_slots_to
from ..simt.arguments import Result
from ..simt.host import VECTOR_BYTES
from ..simt.views import flat_of, rows_of
from ..tiles import in_registers
from .host.moe import (
    GROUP_WORDS,
    LIST_THREADS as THREADS,
    LIST_WARPS as WARPS,
    ListPlaces,
    PLACE_MULTIPLE,
    SUM_THREADS,
    TILE_WORDS,
    grid_of_sums,
)
from .instructions.shared_memory import (
    add_word,
    load_quad,
    load_word,
    shared_base,
    store_quad,
    store_word,
)
from .shapes import MAX_K_PARTS, WORD_BYTES

comptime NO_SOURCE = Int32(-1)
"""The source of a place that no row has."""


@fieldwise_init
struct RowTile(TrivialRegisterPassable):
    """Rows of one expert."""

    var expert: Int32
    """Whose they are, or `NO_EXPERT`."""
    var first_place: UInt32
    """Where their tokens are, one place after the other."""
    var first_row: UInt32
    """Where their results go, one row after the other."""
    var rows: UInt32
    """How many there are."""


@fieldwise_init
struct Lists(KernelStruct):
    """What the kernels here leave for the others."""

    var tiles: DevicePointer[DType.int32]
    """[tiles, `TILE_WORDS`]."""
    var sources: DevicePointer[DType.int32]
    """The row of the left side that goes to a place; where `are_gathered`, or there are
    `num_sources`."""
    var places: DevicePointer[DType.int32]
    """The place of a slot, `NO_PLACE` or `UNKNOWN`; where `are_gathered`."""
    var marks: DevicePointer[DType.uint32]
    """Bytes: whether bfloat16 cannot hold the row at a place, of both products."""
    var num_tiles: UInt32
    """Tiles that the list has room for."""
    var mark_words: UInt32
    """Words of all marks."""
    var num_sources: UInt32
    """Places, for kernels that go from place to place: `NO_SOURCE` where no row is; or else 0."""
    var are_gathered: Bool
    """Whether rows are those of tokens; otherwise they are those of the result."""

    @staticmethod
    def at(places: ListPlaces, *, are_gathered: Bool) -> Self:
        """Returns the lists at their places."""
        return Self(
            device_pointer[DType.int32](places.tiles),
            device_pointer[DType.int32](places.sources),
            device_pointer[DType.int32](places.slots),
            device_pointer[DType.uint32](places.marks),
            UInt32(places.num_tiles),
            UInt32(places.mark_words),
            UInt32(0 if places.mark_words > 0 else places.num_places),
            are_gathered,
        )

    @always_inline
    def tile(self, index: UInt32) -> RowTile:
        """Loads a tile."""
        var words = flat_of(self.tiles).load[width=TILE_WORDS, alignment=VECTOR_BYTES](
            Coord(Int(index) * TILE_WORDS)
        )
        return RowTile(words[0], UInt32(words[1]), UInt32(words[2]), UInt32(words[3]))

    @always_inline
    def clear_sources(self):
        """Says of all places that no row has them; all threads call it."""
        for i in range(UInt32(thread_idx.x), self.num_sources, UInt32(THREADS)):
            flat_of(self.sources)[Int(i)] = NO_SOURCE

    @always_inline
    def source(self, tile: RowTile, row: UInt32) -> Int:
        """Returns the row of the left side that is a tile's row."""
        if self.are_gathered:
            return Int(flat_of(self.sources)[Int(tile.first_place + row)])
        return Int(tile.first_row + row)

    @always_inline
    def store_tile(self, index: UInt32, tile: RowTile):
        """Stores a tile."""
        var words = SIMD[DType.int32, TILE_WORDS](
            tile.expert, Int32(tile.first_place), Int32(tile.first_row), Int32(tile.rows)
        )
        flat_of(self.tiles).store[alignment=VECTOR_BYTES](Coord(Int(index) * TILE_WORDS), words)

    @always_inline
    def store_tiles(
        self, first: UInt32, step: UInt32, index: UInt32, group: RowTile, tile_rows: UInt32
    ):
        """Cuts rows into tiles, of which this thread stores every `step`-th from `first` on.

        The first of all goes to `index`.
        """
        for i in range(first, (group.rows + tile_rows - 1) // tile_rows, step):
            var before = UInt32(i) * tile_rows
            self.store_tile(
                index + UInt32(i),
                RowTile(
                    group.expert,
                    group.first_place + before,
                    group.first_row + before,
                    min(tile_rows, group.rows - before),
                ),
            )

    @always_inline
    def clear(self, first_unused: UInt32):
        """Clears tiles from one on, and all marks; all threads call it."""
        var nothing = RowTile(Int32(NO_EXPERT), 0, 0, 0)
        for i in range(first_unused + UInt32(thread_idx.x), self.num_tiles, UInt32(THREADS)):
            self.store_tile(UInt32(i), nothing)
        for i in range(UInt32(thread_idx.x), self.mark_words, UInt32(THREADS)):
            flat_of(self.marks)[Int(i)] = 0


@always_inline
def sums_before[warps: Int = WARPS](value: UInt32, base: UInt32) -> Tuple[UInt32, UInt32]:
    """Returns what threads before this one have together, and what all have; all call it.

    Sums of so many warps meet at `base`.
    """
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var sum = value
    comptime for step in [1, 2, 4, 8, 16]:
        var other = shuffle_up(sum, UInt32(step))
        sum += other if lane >= UInt32(step) else 0
    if lane == 31:
        store_word(base + UInt32(WORD_BYTES) * warp, sum)
    barrier()
    var of_warp = UInt32(0)
    if lane < UInt32(warps):
        of_warp = load_word(base + UInt32(WORD_BYTES) * lane)
    var before = of_warp if lane < warp else UInt32(0)
    comptime for step in [1, 2, 4, 8, 16]:
        before += shuffle_xor(before, UInt32(step))
        of_warp += shuffle_xor(of_warp, UInt32(step))
    # Nobody stores the next sums before all have read these.
    barrier()
    return (before + sum - value, of_warp)


@always_inline
def padded(rows: UInt32) -> UInt32:
    """Returns the places of an expert's rows."""
    return (rows + UInt32(PLACE_MULTIPLE - 1)) & ~UInt32(PLACE_MULTIPLE - 1)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def lay_out_groups(groups: Groups, lists: Lists, tile_rows: UInt32):
    """Lists the tiles of rows that are sorted; one group of threads."""
    wait_on_dependent_grids()
    launch_dependent_grids()
    list_groups(groups, lists, tile_rows)


@always_inline
def list_groups(groups: Groups, lists: Lists, tile_rows: UInt32):
    """Does so; all threads of a group call it, one for each expert."""
    lists.clear_sources()
    var base = shared_base()
    var expert = UInt32(thread_idx.x)
    var rows = UInt32(groups.rows)
    var size = groups.size(Int(expert))
    var before, all = sums_before(size, base)
    var begin, end = min(before, rows), min(before + size, rows)
    var count = end - begin

    var place = sums_before(padded(count), base)[0]
    var index, num_tiles = sums_before((count + tile_rows - 1) // tile_rows, base)
    lists.store_tiles(0, 1, index, RowTile(Int32(expert), place, begin, count), tile_rows)
    if lists.num_sources > 0:
        list_sources(
            lists, base + UInt32(WORD_BYTES * WARPS), UInt32(groups.count), place, begin, count
        )
    var first_left = min(all, rows)
    var left = RowTile(Int32(NO_EXPERT), 0, first_left, rows - first_left)
    lists.store_tiles(expert, UInt32(THREADS), num_tiles, left, tile_rows)
    lists.clear(num_tiles + (left.rows + tile_rows - 1) // tile_rows)


@always_inline
def list_sources(
    lists: Lists, base: UInt32, experts: UInt32, place: UInt32, begin: UInt32, count: UInt32
):
    """Writes which row each place has; a thread brings an expert's first place and row, and count.

    It takes `GROUP_WORDS` words of shared memory for each expert.
    """
    comptime GROUP_BYTES = UInt32(GROUP_WORDS * WORD_BYTES)
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    store_quad(base + GROUP_BYTES * UInt32(thread_idx.x), {place, begin, count, 0})
    barrier()
    for expert in range(warp, experts, UInt32(WARPS)):
        var rows = load_quad(base + GROUP_BYTES * expert)
        for i in range(lane, rows[2], UInt32(32)):
            flat_of(lists.sources)[Int(rows[0] + i)] = Int32(rows[1] + i)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def route_slots(slots: Slots, num_experts: UInt32, lists: Lists, tile_rows: UInt32):
    """Sorts slots by expert, and lists their tiles; one group of threads."""
    wait_on_dependent_grids()
    launch_dependent_grids()
    list_slots(slots, num_experts, lists, tile_rows)


@always_inline
def list_slots(slots: Slots, num_experts: UInt32, lists: Lists, tile_rows: UInt32):
    """Does so; all threads of a group call it.

    Slots of an expert take its places as they come, which no result depends on.
    """
    lists.clear_sources()
    var thread = UInt32(thread_idx.x)
    var base = shared_base()
    var counters = base + UInt32(WORD_BYTES * WARPS)
    var mine = counters + UInt32(WORD_BYTES) * thread
    store_word(mine, 0)
    barrier()
    for slot in range(Int(thread), slots.count(), THREADS):
        var expert = slots.expert_of(slot)
        if 0 <= expert < Int(num_experts):
            _ = add_word(counters + UInt32(WORD_BYTES) * UInt32(expert), 1)
    barrier()

    var count = load_word(mine)
    var place = sums_before(padded(count), base)[0]
    var index, num_tiles = sums_before((count + tile_rows - 1) // tile_rows, base)
    store_word(mine, place)
    lists.store_tiles(0, 1, index, RowTile(Int32(thread), place, place, count), tile_rows)
    lists.clear(num_tiles)
    barrier()

    for slot in range(Int(thread), slots.count(), THREADS):
        var expert = slots.expert_of(slot)
        var found = NO_PLACE
        if expert >= Int(num_experts):
            found = UNKNOWN
        elif expert != NO_EXPERT:
            var next = add_word(counters + UInt32(WORD_BYTES) * UInt32(expert), 1)
            found = Int32(next)
            flat_of(lists.sources)[Int(next)] = Int32(slot // Int(slots.per_token))
        flat_of(lists.places)[slot] = found


@fieldwise_init
struct Places(KernelStruct):
    """Where the rows of slots are."""

    var listed: DevicePointer[DType.int32]
    """The place of each slot, where `are_listed`."""
    var experts: Int32
    """How many there are, where rows lie as slots do."""
    var are_listed: Bool

    @staticmethod
    def listed_at(places: DevicePointer[DType.int32]) -> Self:
        """Returns what a list says."""
        return Self(places, 0, True)

    @staticmethod
    def as_slots(experts: Int) -> Self:
        """Returns a row for each slot, some of them of no expert."""
        return Self(device_pointer[DType.int32](0), Int32(experts), False)

    @always_inline
    def of(self, slots: Slots, slot: Int) -> Int32:
        """Returns the place of a slot, `NO_PLACE` or `UNKNOWN`."""
        if self.are_listed:
            return flat_of(self.listed)[slot]
        var expert = slots.expert_of(slot)
        if expert >= Int(self.experts):
            return UNKNOWN
        return NO_PLACE if expert == NO_EXPERT else Int32(slot)


@fieldwise_init
struct RowParts(TrivialRegisterPassable):
    """Rows of sums over parts of K, [part, row, column]."""

    var sums: DevicePointer[DType.float32]
    var columns: Int
    var rows: UInt32
    """Of a part."""
    var parts: UInt32

    @always_inline
    def sum(self, row: Int, column: Int) -> Numbers:
        """Returns neighbours of a row, their parts added up in order."""
        var total = self._load(row, column)
        if self.parts > 1:
            # All loads are on the way at once: those behind the last part repeat it.
            var others = in_registers[DType.float32, NUMBERS, MAX_K_PARTS - 1]()
            comptime for i in range(MAX_K_PARTS - 1):
                var part = min(UInt32(i + 1), self.parts - 1)
                others[i] = self._load(row + Int(part * self.rows), column)
            comptime for i in range(MAX_K_PARTS - 1):
                if UInt32(i + 1) < self.parts:
                    total += others[i]
        return total

    @always_inline
    def _load(self, row: Int, column: Int) -> Numbers:
        var at = Coord(row, column)
        return rows_of(self.sums, self.columns).load[width=NUMBERS, alignment=VECTOR_BYTES](at)


@fieldwise_init
struct TokenSlots(SlotRows):
    """The slots of a token, and the columns of a thread in their rows."""

    comptime BRANCHES = True

    var rows: RowParts
    """Of all slots."""
    var places: Places
    var slots: Slots
    var token: Int
    var column: Int
    """The thread's first."""
    var next_places: SIMD[DType.int32, AT_ONCE]
    var next_weights: SIMD[DType.float32, AT_ONCE]

    @always_inline
    def begin(mut self, first: Int32):
        var count = self.slots.per_token
        comptime for i in range(AT_ONCE):
            var slot = self.token * Int(count) + Int(min(first + Int32(i), count - 1))
            var place = self.places.of(self.slots, slot)
            self.next_places[i] = place if first + Int32(i) < count else NO_PLACE
            self.next_weights[i] = self.slots.weight_of(slot)
        if first == 0 and not self.places.are_listed:
            # Only the rows come from the kernel before.
            wait_on_dependent_grids()
            launch_dependent_grids()

    @always_inline
    def place[i: Int](self, first: Int32) -> Int32:
        return self.next_places[i]

    @always_inline
    def weight[i: Int](self, first: Int32) -> Float32:
        return self.next_weights[i]

    @always_inline
    def load(self, place: Int32) -> Numbers:
        return self.rows.sum(max(Int(place), 0), self.column)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(SUM_THREADS)))
def add_slots(
    rows: DevicePointer[DType.float32], places: Places, slots: Slots, result: Result, parts: UInt32
):
    """Adds up the rows of a token's slots; one of an expert that there is not makes it NaN.

    Rows of slots may have several parts, which are added up before.
    The grid is (tokens, CTAs of a row).
    """
    if places.are_listed:
        wait_on_dependent_grids()
        launch_dependent_grids()
    var token, columns = Int(block_idx.x), Int(result.columns)
    var column = (Int(block_idx.y) * SUM_THREADS + Int(thread_idx.x)) * NUMBERS
    if column >= columns:
        return
    var total = Numbers(0)
    var of_parts = RowParts(rows, columns, UInt32(slots.count()), parts)
    var of_row = TokenSlots(of_parts, places, slots, token, column, 0, 0)
    add_slots_to(total, of_row, slots.per_token)
    result.store[NUMBERS, NUMBERS](token, column, total)


def launch_sums(
    problem: ExpertsProblem, rows: Int, places: Places, mut queue: Some[Queue], parts: Int = 1
) raises:
    """Launches the sums of a layer over the rows of its slots, float32, which lie at an address."""
    var tokens, width = problem.routing.tokens, problem.width
    queue.launch[add_slots](
        grid_of_sums(tokens, width),
        device_pointer[DType.float32](rows),
        places,
        Slots(problem.routing),
        Result(problem.values, problem.dtype, tokens, width),
        UInt32(parts),
    )
