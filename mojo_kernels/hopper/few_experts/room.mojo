"""Where things lie in the shared memory of a group for few rows of experts.

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


from ..few.activations import Fragments
from ..few.result import Partials
from ..shapes import FRAGMENT_BYTES, ItemShape, TABLES_AT, WORD_BYTES, tables_end

comptime AHEAD = 8
"""Blocks whose weights a warp has on the way."""
comptime ITEM_OVERFLOW_AT = 4
comptime EXPERT_AT = 8
comptime NUM_ROWS_AT = 12
comptime ROWS_AT = 64
comptime MARKS_AT = 192
comptime SUMS_AT = 320


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
    def partials[SHAPE: ItemShape](self, turn: UInt32) -> Partials[SHAPE.batch()]:
        """Returns the sums that are added up in a turn, of those of all items."""
        comptime BLOCK_BYTES = SHAPE.token_tiles * FRAGMENT_BYTES
        var first = self.fragments[SHAPE.token_tiles]().base + self.k_blocks * UInt32(BLOCK_BYTES)
        return Partials[SHAPE.batch()](
            first + turn % UInt32(SHAPE.rooms()) * UInt32(SHAPE.partial_bytes())
        )
