"""What a stage's sums are multiplied by, beside an SS stage in shared memory.

    factors     of each consumer's 64 rows of A: float32
    ends        of each column of the tile, for all its sums: float32
    biases      of each column: float32
    marks       a bit for each row of A of each consumer, then for each column: what is left to the
                fallback
    tile        its first row and column, and whether another one follows: consumers have no
                registers for a tile scheduler

Behind the factors all is for whole tiles: the producer puts it into the slot of the tile's last stage.
`COLUMNS` of `Scaling` wants ends for every stage, and they are that stage's.
"""

from max.gpu.primitives.warp import broadcast
from std.memory import bitcast

from ..instructions.shared_memory import load_pair, load_quad, load_word, store_word
from ..shapes import ENTRIES, MARK_WORDS, SsTile, WORD


@fieldwise_init
struct Slot[shape: SsTile](TrivialRegisterPassable):
    """The slot of a stage."""

    var base: UInt32

    comptime ENDS_AT = ENTRIES * WORD
    comptime BIASES_AT = Self.ENDS_AT + Self.shape.columns * WORD
    comptime MARKS_AT = Self.BIASES_AT + Self.shape.columns * WORD
    comptime ROW_WORDS = ENTRIES // 32
    comptime COLUMN_WORDS = Self.shape.columns // 32
    comptime TILE_AT = Self.MARKS_AT + MARK_WORDS * WORD

    @always_inline
    def factor_at(self, entry: UInt32) -> UInt32:
        """Returns where the factor of a consumer's row of A is."""
        return self.base + entry * UInt32(WORD)

    @always_inline
    def end_at(self, column: UInt32) -> UInt32:
        """Returns where the factor of a column is."""
        return self.base + UInt32(Self.ENDS_AT) + column * UInt32(WORD)

    @always_inline
    def bias_at(self, column: UInt32) -> UInt32:
        """Returns where the bias of a column is."""
        return self.base + UInt32(Self.BIASES_AT) + column * UInt32(WORD)

    @always_inline
    def mark_at(self, word: UInt32) -> UInt32:
        """Returns where 32 marks are: of rows of A, then of columns."""
        return self.base + UInt32(Self.MARKS_AT) + word * UInt32(WORD)

    @always_inline
    def column_mark_at(self, word: UInt32) -> UInt32:
        """Returns where the marks of 32 columns are."""
        return self.mark_at(UInt32(Self.ROW_WORDS) + word)

    @always_inline
    def tile_at(self) -> UInt32:
        """Returns where the facts of the tile are."""
        return self.base + UInt32(Self.TILE_AT)


@fieldwise_init
struct TileFacts(TrivialRegisterPassable):
    """Where a tile is."""

    var row: UInt32
    """Its first row of C."""
    var column: UInt32
    """Its first column."""
    var is_last: Bool
    """Whether the CTA has no other one behind it."""

    @staticmethod
    @always_inline
    def load(slot: Slot[...]) -> Self:
        """Loads those of the tile whose last stage has a slot."""
        var words = load_quad(slot.tile_at())
        return Self(broadcast(words[0]), broadcast(words[1]), broadcast(words[2]) != 0)

    @always_inline
    def put(self, slot: Slot[...]):
        """Puts them there; a thread calls it."""
        store_word(slot.tile_at(), self.row)
        store_word(slot.tile_at() + UInt32(WORD), self.column)
        store_word(slot.tile_at() + UInt32(2 * WORD), UInt32(1) if self.is_last else UInt32(0))


@always_inline
def load_float(address: UInt32) -> Float32:
    """Loads a factor."""
    return bitcast[DType.float32](load_word(address))


@always_inline
def load_floats(address: UInt32) -> SIMD[DType.float32, 2]:
    """Loads two neighbours."""
    return bitcast[DType.float32, 2](load_pair(address))


@always_inline
def load_four(address: UInt32) -> SIMD[DType.float32, 4]:
    """Loads four neighbours."""
    return bitcast[DType.float32, 4](load_quad(address))


@always_inline
def store_float(address: UInt32, value: Float32):
    """Stores a factor."""
    store_word(address, bitcast[DType.uint32](value))
