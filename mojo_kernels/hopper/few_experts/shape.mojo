"""How a group for few rows of experts is cut, and where things lie in its shared memory.

    0        whether bfloat16 cannot hold something, and some weight of an item
    8        the expert and the rows of the tile that is staged
    64       rows of the result, and marks, of the tile of rows that is staged
    320      a sum for each warp
    448      for each expert, and for no expert: where its tiles of rows end, its first row, its rows
    ...      the expert of each slot
    ...      the staged tokens, all blocks of K
    ...      the sums of all warps, of some rows, twice if there is room: those of some are added up
             while the next ones come
"""

from std.math import align_up

from ..few.shape import FRAGMENT_BYTES, Fragments, Partials, TOKENS, TOKEN_STRIDE
from ..layout import BLOCK, TILE_ROWS

comptime MAX_TOKEN_TILES = 4
"""As many as the tables of a tile of rows hold."""
comptime K_WARPS = 8
"""Warps that share a tile of weight rows: the order of sums, the same for all shapes."""
comptime AHEAD = 8
"""Blocks whose weights a warp has on the way."""
comptime WORD_BYTES = 4
"""Bytes of a number of the tables."""
comptime ITEM_OVERFLOW_AT = 4
comptime EXPERT_AT = 8
comptime NUM_ROWS_AT = 12
comptime ROWS_AT = 64
comptime MARKS_AT = 192
comptime SUMS_AT = 320
comptime TABLES_AT = 448
comptime ALIGNMENT = 128
"""Of what is read sixteen bytes at a time."""
comptime MAX_SHARED_BYTES = 227 * 1024
"""What a group can have."""
comptime MULTIPROCESSOR_BYTES = 228 * 1024
"""What all groups of a multiprocessor have."""
comptime RESERVED_BYTES = 1024
"""What each group takes beside its own."""


@fieldwise_init
struct Shape(TrivialRegisterPassable):
    """The compile-time part of a group's work."""

    var token_tiles: Int
    """Fragments of eight rows, up to `MAX_TOKEN_TILES`."""
    var row_warps: Int
    """Tiles of weight rows, each with `K_WARPS` warps."""
    var is_gated: Bool
    """Whether the tiles are one of gates and one of ups, or both of both."""

    @staticmethod
    def of(token_tiles: Int, is_gated: Bool) -> Self:
        """Returns the shape for so many fragments of rows."""
        return Self(token_tiles, 1 if token_tiles == 1 and not is_gated else 2, is_gated)

    def rows(self) -> Int:
        """Returns the rows of a tile."""
        return TOKENS * self.token_tiles

    def warps(self) -> Int:
        """Returns the warps of a group."""
        return K_WARPS * self.row_warps

    def threads(self) -> Int:
        """Returns the threads of a group."""
        return 32 * self.warps()

    def columns(self) -> Int:
        """Returns the columns of the result of an item, hidden numbers if it is gated."""
        return TILE_ROWS * self.row_warps // (2 if self.is_gated else 1)

    def min_groups(self) -> Int:
        """Returns how many groups the registers of a multiprocessor hold."""
        return 2 // self.row_warps

    def batch(self) -> Int:
        """Returns how many fragments of rows are added up at once: as there is room for."""
        return self.token_tiles if self.token_tiles < MAX_TOKEN_TILES else 1

    def batches(self) -> Int:
        """Returns in how many turns an item is added up."""
        return self.token_tiles // self.batch()

    def rooms(self) -> Int:
        """Returns for how many turns there is room: warps wait for readers where there is one."""
        return 2 if self.token_tiles <= 2 else 1

    def partial_bytes(self) -> Int:
        """Returns the bytes of the sums of all warps that are added up at once."""
        return self.warps() * TOKENS * self.batch() * TOKEN_STRIDE * WORD_BYTES

    def shared_bytes(self, experts: Int, slots: Int, k: Int) -> Int:
        """Returns the dynamic shared memory of a group."""
        var fragments = k // BLOCK * self.token_tiles * FRAGMENT_BYTES
        return (
            Int(tables_end(UInt32(experts), UInt32(slots)))
            + fragments
            + self.rooms() * self.partial_bytes()
        )

    def groups(self, shared_bytes: Int) -> Int:
        """Returns the groups that a multiprocessor holds at once."""
        return min(self.min_groups(), MULTIPROCESSOR_BYTES // (shared_bytes + RESERVED_BYTES))


@always_inline
def tables_end(experts: UInt32, slots: UInt32) -> UInt32:
    """Returns the bytes up to the end of all tables."""
    var words = 3 * (experts + 1) + slots
    return align_up(UInt32(TABLES_AT) + UInt32(WORD_BYTES) * words, UInt32(ALIGNMENT))


@fieldwise_init
struct Room(TrivialRegisterPassable):
    """Addresses in a group's shared memory."""

    var base: UInt32
    var experts: UInt32
    """How many there are."""
    var slots: UInt32
    """How many have their experts here."""
    var k_blocks: UInt32

    @always_inline
    def overflow(self) -> UInt32:
        """Returns where it is said that bfloat16 cannot hold something of the group's items."""
        return self.base

    @always_inline
    def item_overflow(self) -> UInt32:
        """Returns where it is said that bfloat16 cannot hold a weight of an item."""
        return self.base + UInt32(ITEM_OVERFLOW_AT)

    @always_inline
    def expert(self) -> UInt32:
        """Returns where the expert of the tile is."""
        return self.base + UInt32(EXPERT_AT)

    @always_inline
    def rows(self) -> UInt32:
        """Returns where the number of rows of the tile is."""
        return self.base + UInt32(NUM_ROWS_AT)

    @always_inline
    def row(self, token: UInt32) -> UInt32:
        """Returns where the row of the result is, of a token of the tile."""
        return self.base + UInt32(ROWS_AT) + token * UInt32(WORD_BYTES)

    @always_inline
    def mark(self, token: UInt32) -> UInt32:
        """Returns where it is said that bfloat16 cannot hold a token of the tile."""
        return self.base + UInt32(MARKS_AT) + token * UInt32(WORD_BYTES)

    @always_inline
    def _table(self, index: UInt32, entry: UInt32) -> UInt32:
        var word = index * (self.experts + 1) + entry
        return self.base + UInt32(TABLES_AT) + word * UInt32(WORD_BYTES)

    @always_inline
    def tiles_end(self, expert: UInt32) -> UInt32:
        """Returns where the number of tiles of rows is, up to and with an expert's."""
        return self._table(0, expert)

    @always_inline
    def first_row(self, expert: UInt32) -> UInt32:
        """Returns where the first row of an expert is, of rows that are sorted."""
        return self._table(1, expert)

    @always_inline
    def rows_of(self, expert: UInt32) -> UInt32:
        """Returns where the number of an expert's rows is."""
        return self._table(2, expert)

    @always_inline
    def expert_of(self, slot: UInt32) -> UInt32:
        """Returns where the expert of a slot is."""
        return self._table(3, slot)

    @always_inline
    def fragments[token_tiles: Int](self) -> Fragments[token_tiles]:
        """Returns the staged tokens."""
        return Fragments[token_tiles](self.base + tables_end(self.experts, self.slots))

    @always_inline
    def partials[SHAPE: Shape](self, turn: UInt32) -> Partials[SHAPE.batch()]:
        """Returns the sums that are added up in a turn, of those of all items."""
        comptime BLOCK_BYTES = SHAPE.token_tiles * FRAGMENT_BYTES
        var first = self.fragments[SHAPE.token_tiles]().base + self.k_blocks * UInt32(BLOCK_BYTES)
        return Partials[SHAPE.batch()](
            first + turn % UInt32(SHAPE.rooms()) * UInt32(SHAPE.partial_bytes())
        )
