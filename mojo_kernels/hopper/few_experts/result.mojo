"""From the sums of all warps to rows of the result: add, gate, round and store, a few warps an item.

    weights of an item    tiles of rows      sums of a thread              it stores
    not gated             neighbours         four neighbours               the same four
    gates and ups mixed   neighbours         gate up gate up               two hidden numbers
    halves                gates | their ups  four gates and their four ups four hidden numbers

Warps add up in order.
"""

from layout import Coord
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.host import bytes_of
from ..experts.result import Target
from ..instructions.shared_memory import load_quad, load_word
from ..instructions.warp import prefetch
from ..layout import TILE_ROWS
from ..shapes import FRAGMENT_TOKENS as TOKENS, ItemShape, K_WARPS
from .room import Room

comptime QUAD = 4
"""Neighbouring rows of weights that a thread adds up at once."""
comptime TILE_QUADS = TILE_ROWS // QUAD
"""Of them in a tile of weights."""
comptime Sums = SIMD[DType.float32, QUAD]
"""What they become."""
comptime Totals = SIMD[DType.float32, 2 * QUAD]
"""A thread's sums, and those of the ups where it has gates."""


@fieldwise_init
struct Item[SHAPE: ItemShape](TrivialRegisterPassable):
    """A tile of rows and some columns of it, ready to be added up."""

    var room: Room
    var target: Target
    var result: Result
    """All rows, with the bias of the tile's expert."""
    var rows: UInt32
    """Rows of the tile."""
    var part: UInt32
    """Which columns, of all items of the tile."""
    var half: UInt32
    """Columns of the weights from a gate to its up; 0 for neighbours, and for no gate."""
    var number: UInt32
    """Of the turn in which these rows are added up, of those of all items."""

    comptime QUADS = TILE_QUADS * Self.SHAPE.row_warps
    """Of a token."""
    comptime WARP_TOKENS = 32 // Self.QUADS
    """Tokens of a warp."""
    comptime TOKENS = TOKENS * Self.SHAPE.batch()
    """Rows that are added up at once."""
    comptime WARPS = Self.TOKENS // Self.WARP_TOKENS
    """Warps that add up."""

    @always_inline
    def first_token(self) -> UInt32:
        """Returns the first row of the tile that is added up in this turn."""
        return self.number % UInt32(Self.SHAPE.batches()) * UInt32(Self.TOKENS)

    @always_inline
    def turn(self, warp: UInt32) -> UInt32:
        """Returns which of those that add up a warp is; they take turns."""
        return (warp + self.number * UInt32(Self.WARPS)) % UInt32(Self.SHAPE.warps())

    @always_inline
    def prefetch_bias(self, turn: UInt32, lane: UInt32):
        """Brings near what is added to the columns that a lane has."""
        if self.result.has_bias() and turn == 0:
            var row = self._weights_row(
                lane // UInt32(TILE_QUADS) % UInt32(Self.SHAPE.row_warps), lane % UInt32(TILE_QUADS)
            )
            var bytes = Int(row) * bytes_of(Int(self.result.bias_dtype))
            prefetch(self.result.bias.unsafe_offset(bytes))

    @always_inline
    def _weights_row(self, tile: UInt32, quad: UInt32) -> UInt32:
        """Returns the first row of the weights of a quad."""
        var before = self.part * UInt32(TILE_ROWS * Self.SHAPE.row_warps) + tile * UInt32(TILE_ROWS)
        comptime if Self.SHAPE.is_gated:
            if self.half != 0:
                before = self.part * UInt32(TILE_ROWS) + tile * self.half
        return before + quad * UInt32(QUAD)

    @always_inline
    def _place(self, turn: UInt32, lane: UInt32) -> Tuple[UInt32, UInt32, UInt32]:
        """Returns which row a lane adds up, and which tile and quad of weights."""
        var token = turn * UInt32(Self.WARP_TOKENS) + lane // UInt32(Self.QUADS)
        var tile, quad = divmod(lane % UInt32(Self.QUADS), UInt32(TILE_QUADS))
        return (token, tile, quad)

    @always_inline
    def add_up(self, turn: UInt32, lane: UInt32) -> Totals:
        """Adds up what one lane has; zeros for a row that there is not."""
        var token, tile, quad = self._place(turn, lane)
        var totals = Totals(0)
        if self.first_token() + token < self.rows:
            totals = totals.insert[offset=0](self._sums(tile, token, quad))
            comptime if Self.SHAPE.is_gated:
                if self.half != 0 and tile == 0:
                    totals = totals.insert[offset=QUAD](self._sums(1, token, quad))
        return totals

    @always_inline
    def store(self, turn: UInt32, lane: UInt32, totals: Totals):
        """Stores what one lane has added up."""
        var token, tile, quad = self._place(turn, lane)
        if self.first_token() + token >= self.rows:
            return
        var row = Int(load_word(self.room.row(self.first_token() + token)))
        var weights_row = self._weights_row(tile, quad)
        comptime if Self.SHAPE.is_gated:
            self._store_hidden(tile, row, weights_row, totals)
        else:
            self.result.store_columns[QUAD](UInt32(row), weights_row, totals.slice[QUAD]())

    @always_inline
    def _store_hidden(self, tile: UInt32, row: Int, weights_row: UInt32, totals: Totals):
        """Stores what gates and ups of a row become, at least half of which a thread has."""
        var gate, elements = self.target.gate(), self.result.elements()
        var mine = totals.slice[QUAD]()
        if self.half == 0:
            if self.result.has_bias():
                mine += self.result.bias_of[QUAD](Int(weights_row))
            var gates, ups = mine.deinterleave()
            var hidden = gate.of(gates, ups)
            elements.store[QUAD // 2, QUAD // 2](row, Int(weights_row // 2), hidden)
        elif tile == 0:
            var ups = totals.slice[QUAD, offset=QUAD]()
            var column = Int(weights_row)
            if self.result.has_bias():
                mine += self.result.bias_of[QUAD](column)
                ups += self.result.bias_of[QUAD](column + Int(self.half))
            elements.store[QUAD, QUAD](row, column, gate.of(mine, ups))

    @always_inline
    def _sums(self, tile: UInt32, token: UInt32, quad: UInt32) -> Sums:
        """Adds up the sums of the warps of a tile of weights, in order."""
        var partials = self.room.partials[Self.SHAPE](self.number)
        var total = Sums(0)
        comptime for k_warp in range(K_WARPS):
            var warp = tile * UInt32(K_WARPS) + UInt32(k_warp)
            var at = partials.at(Coord(warp, token, quad * UInt32(QUAD)))
            total += bitcast[DType.float32, QUAD](load_quad(at))
        return total
