"""Which rows go to which expert, found by every group for itself, in shared memory.

    experts          0         1    2              none
    rows             0 .. 4         5 6            7
    tiles of 4       0 1            2              3
    tiles end        2         2    3              4

Rows are slots, each with the id of its expert, or they are sorted and come with the size of each
expert's group; rows behind the last group go to no expert. All groups of threads find the same
tiles: the rows of an expert are in the order of their numbers.
"""

from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, shuffle_idx
from max.gpu.sync import barrier
from std.bit import pop_count
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from ...experts import ExpertsProblem, GroupedProblem, Routing
from ...launch.queue import device_pointer
from ...simt.routing import Groups, Slots
from ...simt.views import flat_of
from ..experts.groups import sums_before
from ..instructions.shared_memory import add_word, load_word, store_word
from ..instructions.warp import keep_branch, lanes_where
from .room import Room, SUMS_AT

comptime NOBODY = ~UInt32(0)
"""The expert of a slot whose expert there is not."""
comptime FEW_SLOTS = 8
"""Up to so many slots, a thread that has an expert looks at all of them: that spares four of five barriers."""


@fieldwise_init
struct Share(TrivialRegisterPassable):
    """The rows of a tile."""

    var expert: UInt32
    """Whose they are; the number of experts for rows of none."""
    var before: UInt32
    """Rows of the expert that come before."""
    var rows: UInt32


@fieldwise_init
struct Deal(DevicePassable, TrivialRegisterPassable):
    """Rows and how they find their experts."""

    comptime device_type: AnyType = Self

    var slots: Slots
    """Of rows that are not sorted."""
    var groups: Groups
    """Of rows that are."""
    var is_sorted: Bool
    var experts: UInt32
    var rows: UInt32
    var rows_per_source: UInt32
    """Rows in a row that have the same row of the left side."""

    @staticmethod
    def of(problem: GroupedProblem) -> Self:
        """Returns how sorted rows find their experts."""
        var slots = Slots(Routing(0, 4, 0, 0, 0, 0))
        return Self(
            slots, Groups(problem), True, UInt32(problem.experts.count), UInt32(problem.m), 1
        )

    @staticmethod
    def of(problem: ExpertsProblem) -> Self:
        """Returns how slots find their experts; rows of the left side are tokens."""
        var slots = Slots(problem.routing)
        var groups = Groups(device_pointer[DType.int32](0), 0, 0)
        return Self(
            slots,
            groups,
            False,
            UInt32(problem.gate_up.count),
            UInt32(problem.routing.count()),
            UInt32(problem.routing.slots),
        )

    def of_slots(self) -> Self:
        """Returns the same for a left side with a row for each slot."""
        var deal = self
        deal.rows_per_source = 1
        return deal

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Deal"

    @always_inline
    def room(self, base: UInt32, k_blocks: UInt32) -> Room:
        """Returns where things lie in shared memory."""
        return Room(base, self.experts, 0 if self.is_sorted else self.rows, k_blocks)

    @always_inline
    def lay_out[warps: Int, tile_rows: Int](self, room: Room) -> UInt32:
        """Fills the tables and returns the number of tiles; all threads call it."""
        comptime THREADS = UInt32(32 * warps)
        var thread = UInt32(thread_idx.x)
        comptime assert FEW_SLOTS <= tile_rows, "experts of few slots have a tile each"
        if not self.is_sorted and self.rows <= UInt32(FEW_SLOTS):
            keep_branch()
            return self._lay_out_few[THREADS](room)
        if not self.is_sorted:
            for expert in range(thread, self.experts + 1, THREADS):
                store_word(room.rows_of(UInt32(expert)), 0)
            barrier()
            for slot in range(thread, self.rows, THREADS):
                var expert = self._expert_of(UInt32(slot))
                store_word(room.expert_of(UInt32(slot)), expert)
                if expert != NOBODY:
                    _ = add_word(room.rows_of(expert), 1)
            barrier()

        var rows_before, tiles_before = UInt32(0), UInt32(0)
        for first in range(UInt32(0), self.experts + 1, THREADS):
            var expert = UInt32(first) + thread
            var rows = UInt32(0)
            if self.is_sorted:
                var begin, end = self._rows_of[warps](room, expert, rows_before)
                rows = end - begin
                if expert <= self.experts:
                    store_word(room.first_row(expert), begin)
                    store_word(room.rows_of(expert), rows)
            elif expert < self.experts:
                rows = load_word(room.rows_of(expert))
            var tiles = (rows + UInt32(tile_rows - 1)) // UInt32(tile_rows)
            var before, all = sums_before[warps](tiles, room.base + UInt32(SUMS_AT))
            if expert <= self.experts:
                store_word(room.tiles_end(expert), tiles_before + before + tiles)
            tiles_before += all
        barrier()
        return tiles_before

    @always_inline
    def _expert_of(self, slot: UInt32) -> UInt32:
        """Returns the expert of a slot, or `NOBODY`."""
        var id = self.slots.expert_of(Int(slot))
        return UInt32(id) if 0 <= id < Int(self.experts) else NOBODY

    @always_inline
    def _lay_out_few[threads: UInt32](self, room: Room) -> UInt32:
        """Does so for few slots: all warps look at all of them."""
        var thread = UInt32(thread_idx.x)
        var lane = thread % 32
        var mine = NOBODY
        if lane < self.rows:
            mine = self._expert_of(lane)
            if thread < 32:
                store_word(room.expert_of(lane), mine)
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
            store_word(room.rows_of(UInt32(expert)), rows)
            store_word(room.tiles_end(UInt32(expert)), tiles)
        barrier()
        return num_tiles

    @always_inline
    def _rows_of[
        warps: Int
    ](self, room: Room, expert: UInt32, mut rows_before: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the first row of an expert, or of none, and the one behind the last."""
        var size = UInt32(0)
        if expert < self.experts:
            size = min(UInt32(max(flat_of(self.groups.sizes)[Int(expert)], 0)), self.rows)
        var before, all = sums_before[warps](size, room.base + UInt32(SUMS_AT))
        var begin = min(rows_before + before, self.rows)
        var end = min(begin + size, self.rows)
        rows_before = min(rows_before + all, self.rows)
        return (begin, self.rows if expert == self.experts else end)

    @always_inline
    def find[tile_rows: Int](self, room: Room, tile: UInt32, lane: UInt32) -> Share:
        """Returns the rows of a tile that there is; all lanes of a warp ask together."""
        var expert = UInt32(0)
        for first in range(UInt32(0), self.experts + 1, UInt32(32)):
            var mine = min(UInt32(first) + lane, self.experts)
            var num_before = UInt32(pop_count(lanes_where(load_word(room.tiles_end(mine)) <= tile)))
            expert += num_before
            if num_before < 32:
                break
        expert = broadcast(expert)
        var first_tile = UInt32(0)
        if expert > 0:
            first_tile = load_word(room.tiles_end(expert - 1))
        var before = (tile - first_tile) * UInt32(tile_rows)
        var rows = min(load_word(room.rows_of(expert)) - before, UInt32(tile_rows))
        return Share(expert, before, broadcast(rows))

    @always_inline
    def list_rows(self, room: Room, share: Share, lane: UInt32):
        """Lists the rows of the result of a tile, none of them marked; one warp calls it."""
        if lane < share.rows:
            store_word(room.mark(lane), 0)
        if self.is_sorted:
            if lane < share.rows:
                var first = load_word(room.first_row(share.expert)) + share.before
                store_word(room.row(lane), first + lane)
            return
        var seen = UInt32(0)
        for first in range(UInt32(0), self.rows, UInt32(32)):
            var slot = UInt32(first) + lane
            var is_mine = slot < self.rows
            if is_mine:
                is_mine = load_word(room.expert_of(slot)) == share.expert
            var found = lanes_where(is_mine)
            var rank = seen + UInt32(pop_count(found & ((UInt32(1) << lane) - 1))) - share.before
            # What comes before wraps to large numbers.
            if is_mine and rank < share.rows:
                store_word(room.row(rank), slot)
            seen += UInt32(pop_count(found))
            if seen >= share.before + share.rows:
                break
