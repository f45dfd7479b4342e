"""The tile scheduler of grouped products: which CTA has which rows of whose expert, and which columns.

    experts             0         1    2              none
    rows                0 .. 4         5 6            7
    row tiles of 4      0 1            2              3
    row tiles end       2         2    3              4

Rows are slots, each with the id of its expert, or they are sorted and come with the size of each
expert's group; rows behind the last group go to no expert. Every CTA finds the row tiles for itself, in
its shared memory: all find the same, with the rows of an expert in order. Tiles of C are numbered row tile
after row tile, and every CTA has as many in a row as all others. Where shared memory has no room for all
K of the rows, a row tile comes once for each part of K: the sums of parts are rows of their own, which
the kernel behind adds up. A CTA's shared memory:

    0        whether bfloat16 cannot hold something
    4        the part of K, the expert and the rows of the row tile that is staged
    64       rows of the result, and marks, of that row tile
    320      a sum for each warp
    448      for each expert, and for no expert: where its row tiles end, its first row, its rows
    ...      the expert of each slot
    ...      the staged rows, all blocks of K or those of a part
    ...      the partial sums of a batch of rows, twice if there is room: one is reduced while the next
             one comes
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, shuffle_idx
from max.gpu.sync import barrier
from std.bit import pop_count

from ...experts import ExpertsProblem, GroupedProblem, Routing
from ...launch.queue import KernelStruct, device_pointer
from ...problem import Problem
from ...routing.groups import Groups
from ...routing.slots import Slots
from ...simt.views import flat_of
from ..instructions.shared_memory import add_word, load_word, store_word
from ..instructions.warp import keep_branch, lanes_where
from ..routing import sums_before
from ..shapes import FRAGMENT_BYTES, StreamConfig, TABLES_AT, WORD_BYTES, share_of, tables_end

# Where these are, in words.
comptime OVERFLOW = 0
comptime PART = 1
comptime EXPERT = 2
comptime NUM_ROWS = 3
comptime ROWS = 16
comptime MARKS = 48
comptime SUMS = 80
# The tables.
comptime TILES_END = 0
comptime FIRST_ROW = 1
comptime EXPERT_ROWS = 2
comptime SLOT_EXPERT = 3
comptime NOBODY = ~UInt32(0)
"""The expert of a slot whose expert there is not."""
comptime FEW_SLOTS = 8
"""Up to so many slots, a thread that has an expert looks at all of them: that spares four of five barriers."""


@fieldwise_init
struct GroupedMemory(TrivialRegisterPassable):
    """Addresses in a CTA's shared memory."""

    var base: UInt32
    var experts: UInt32
    """How many there are."""
    var slots: UInt32
    """How many have their experts here."""
    var k_blocks: UInt32
    var share: UInt32
    """Blocks of K of a part."""

    @always_inline
    def at(self, word: Int, index: UInt32 = 0) -> UInt32:
        """Returns the address of a word, or of one of the words that begin there."""
        return self.base + UInt32(word * WORD_BYTES) + index * UInt32(WORD_BYTES)

    @always_inline
    def table(self, index: UInt32, entry: UInt32) -> UInt32:
        """Returns the address of an entry of a table."""
        var word = index * (self.experts + 1) + entry
        return self.base + UInt32(TABLES_AT) + word * UInt32(WORD_BYTES)

    @always_inline
    def fragments(self) -> UInt32:
        """Returns where the staged rows are."""
        return self.base + tables_end(self.experts, self.slots)

    @always_inline
    def partials[CONFIG: StreamConfig](self, batch: UInt32) -> UInt32:
        """Returns where the partial sums of a batch are, of those of all tiles."""
        comptime BLOCK_BYTES = CONFIG.row_fragments * FRAGMENT_BYTES
        var blocks = self.share if CONFIG.is_split else self.k_blocks
        var first = self.fragments() + blocks * UInt32(BLOCK_BYTES)
        return first + batch % UInt32(CONFIG.buffers()) * UInt32(CONFIG.partial_bytes())


@fieldwise_init
struct TileRows(TrivialRegisterPassable):
    """The rows of a row tile."""

    var expert: UInt32
    """Whose they are; the number of experts for rows of none."""
    var before: UInt32
    """Rows of the expert that come before."""
    var rows: UInt32


@fieldwise_init
struct StreamScheduler(KernelStruct):
    """Rows and how they find their experts."""

    var slots: Slots
    """Of rows that are not sorted."""
    var groups: Groups
    """Of rows that are."""
    var is_sorted: Bool
    var experts: UInt32
    var rows: UInt32
    var rows_per_source: UInt32
    """Rows in a row that have the same row of A."""
    var column_tiles: UInt32
    """Tiles of C of a row tile."""
    var is_early: UInt32
    """Whether nothing but A comes from the kernel before."""
    var ranks: UInt32
    """Parts of K: of a dense product the CTAs of a cluster."""
    var share: UInt32
    """Blocks of K of each."""

    @staticmethod
    def of(problem: Problem, ranks: Int, share: Int) -> Self:
        """Returns what a dense product wants: its place in the grid is a cluster's tile."""
        var scheduler = Self._sorted(Groups(device_pointer[DType.int32](0), 0, 0), 1, problem.m)
        scheduler.is_early = 1
        scheduler.ranks = UInt32(ranks)
        scheduler.share = UInt32(share)
        return scheduler

    @staticmethod
    def of(problem: GroupedProblem) -> Self:
        """Returns how sorted rows find their experts."""
        return Self._sorted(Groups(problem), problem.experts.count, problem.m)

    @staticmethod
    def _sorted(groups: Groups, experts: Int, rows: Int) -> Self:
        var slots = Slots(Routing(0, 4, 0, 0, 0, 0))
        return Self(slots, groups, True, UInt32(experts), UInt32(rows), 1, 0, 0, 1, 0)

    @staticmethod
    def of(problem: ExpertsProblem) -> Self:
        """Returns how slots find their experts; rows of A are tokens."""
        var slots = Slots(problem.routing)
        var groups = Groups(device_pointer[DType.int32](0), 0, 0)
        var experts, rows = UInt32(problem.gate_up.count), UInt32(problem.routing.count())
        var per_source = UInt32(problem.routing.slots)
        return Self(slots, groups, False, experts, rows, per_source, 0, 0, 1, 0)

    def cut(self, column_tiles: Int, k: Int, parts: Int) -> Self:
        """Returns it for a product with so many tiles of columns, whose K is in parts."""
        var found = self
        found.column_tiles = UInt32(column_tiles)
        found.ranks = UInt32(parts)
        found.share = UInt32(share_of(k, parts))
        return found

    def num_slots(self) -> Int:
        """Returns how many slots have their experts in shared memory."""
        return 0 if self.is_sorted else Int(self.rows)

    @always_inline
    def lay_out[CONFIG: StreamConfig](self, memory: GroupedMemory) -> UInt32:
        """Fills the tables and returns the number of row tiles; all threads call it."""
        comptime THREADS, ROWS = UInt32(CONFIG.threads()), UInt32(CONFIG.rows())
        var thread = UInt32(thread_idx.x)
        comptime assert FEW_SLOTS <= CONFIG.rows(), "experts of few slots have a row tile each"
        if not self.is_sorted and self.rows <= UInt32(FEW_SLOTS):
            keep_branch()
            return self._lay_out_few[THREADS](memory)
        if not self.is_sorted:
            for expert in range(thread, self.experts + 1, THREADS):
                store_word(memory.table(EXPERT_ROWS, UInt32(expert)), 0)
            barrier()
            for slot in range(thread, self.rows, THREADS):
                var expert = self._expert_of(UInt32(slot))
                store_word(memory.table(SLOT_EXPERT, UInt32(slot)), expert)
                if expert != NOBODY:
                    _ = add_word(memory.table(EXPERT_ROWS, expert), 1)
            barrier()

        var rows_before, tiles_before = UInt32(0), UInt32(0)
        for first in range(UInt32(0), self.experts + 1, THREADS):
            var expert = UInt32(first) + thread
            var rows = UInt32(0)
            if self.is_sorted:
                # Sums stop at the rows that there are; those behind the last group are of no expert.
                if expert < self.experts:
                    var size = max(flat_of(self.groups.sizes)[Int(expert)], 0)
                    rows = min(UInt32(size), self.rows)
                var before, all = sums_before[CONFIG.warps()](rows, memory.at(SUMS))
                var begin = min(rows_before + before, self.rows)
                var end = min(begin + rows, self.rows)
                rows_before = min(rows_before + all, self.rows)
                rows = (self.rows if expert == self.experts else end) - begin
                if expert <= self.experts:
                    store_word(memory.table(FIRST_ROW, expert), begin)
                    store_word(memory.table(EXPERT_ROWS, expert), rows)
            elif expert < self.experts:
                rows = load_word(memory.table(EXPERT_ROWS, expert))
            var tiles = (rows + ROWS - 1) // ROWS
            var before, all = sums_before[CONFIG.warps()](tiles, memory.at(SUMS))
            if expert <= self.experts:
                store_word(memory.table(TILES_END, expert), tiles_before + before + tiles)
            tiles_before += all
        barrier()
        return tiles_before

    @always_inline
    def _expert_of(self, slot: UInt32) -> UInt32:
        """Returns the expert of a slot, or `NOBODY`."""
        var id = self.slots.expert_of(Int(slot))
        return UInt32(id) if 0 <= id < Int(self.experts) else NOBODY

    @always_inline
    def _lay_out_few[threads: UInt32](self, memory: GroupedMemory) -> UInt32:
        """Does so for few slots: all warps look at all of them."""
        var thread = UInt32(thread_idx.x)
        var lane = thread % 32
        var mine = NOBODY
        if lane < self.rows:
            mine = self._expert_of(lane)
            if thread < 32:
                store_word(memory.table(SLOT_EXPERT, lane), mine)
        var ids = SIMD[DType.uint32, FEW_SLOTS]()
        var is_first = SIMD[DType.bool, FEW_SLOTS](fill=False)
        var num_tiles = UInt32(0)
        comptime for i in range(FEW_SLOTS):
            ids[i] = shuffle_idx(mine, UInt32(i))
            is_first[i] = ids[i] != NOBODY
            comptime for before in range(i):
                is_first[i] = is_first[i] and ids[i] != ids[before]
            num_tiles += UInt32(1) if is_first[i] else UInt32(0)
        for expert in range(thread, self.experts + 1, threads):
            var rows, tiles = UInt32(0), UInt32(0)
            comptime for i in range(FEW_SLOTS):
                rows += UInt32(1) if ids[i] == UInt32(expert) else UInt32(0)
                tiles += UInt32(1) if is_first[i] and ids[i] <= UInt32(expert) else UInt32(0)
            store_word(memory.table(EXPERT_ROWS, UInt32(expert)), rows)
            store_word(memory.table(TILES_END, UInt32(expert)), tiles)
        barrier()
        return num_tiles

    @always_inline
    def find[tile_rows: Int](self, memory: GroupedMemory, tile: UInt32, lane: UInt32) -> TileRows:
        """Returns the rows of a row tile that there is; all lanes of a warp ask together."""
        var expert = UInt32(0)
        for first in range(UInt32(0), self.experts + 1, UInt32(32)):
            var mine = min(UInt32(first) + lane, self.experts)
            var is_before = load_word(memory.table(TILES_END, mine)) <= tile
            var num_before = UInt32(pop_count(lanes_where(is_before)))
            expert += num_before
            if num_before < 32:
                break
        expert = broadcast(expert)
        var first_tile = UInt32(0)
        if expert > 0:
            first_tile = load_word(memory.table(TILES_END, expert - 1))
        var before = (tile - first_tile) * UInt32(tile_rows)
        var rows = min(load_word(memory.table(EXPERT_ROWS, expert)) - before, UInt32(tile_rows))
        return TileRows(expert, before, broadcast(rows))

    @always_inline
    def list_rows(self, memory: GroupedMemory, tile: TileRows, lane: UInt32):
        """Lists the rows of the result of a row tile, none of them marked; one warp calls it."""
        if lane < tile.rows:
            store_word(memory.at(MARKS, lane), 0)
        if self.is_sorted:
            if lane < tile.rows:
                var first = load_word(memory.table(FIRST_ROW, tile.expert)) + tile.before
                store_word(memory.at(ROWS, lane), first + lane)
            return
        var seen = UInt32(0)
        for first in range(UInt32(0), self.rows, UInt32(32)):
            var slot = UInt32(first) + lane
            var is_mine = slot < self.rows
            if is_mine:
                is_mine = load_word(memory.table(SLOT_EXPERT, slot)) == tile.expert
            var found = lanes_where(is_mine)
            var rank = seen + UInt32(pop_count(found & ((UInt32(1) << lane) - 1))) - tile.before
            # What comes before wraps to large numbers.
            if is_mine and rank < tile.rows:
                store_word(memory.at(ROWS, rank), slot)
            seen += UInt32(pop_count(found))
            if seen >= tile.before + tile.rows:
                break
