"""Which columns of a tile have weights that numbers cannot hold: found by all threads, then marked."""

from max.gpu import thread_idx

from ..instructions import load_word, store_word
from ..views import flat_of
from .operands import FactoredRows


@fieldwise_init
struct Flags[columns: Int](TrivialRegisterPassable):
    """A word for each column of a tile: whether numbers cannot hold its weights."""

    var base: UInt32
    """Where they are in shared memory."""

    comptime NUM_BYTES = 4 * Self.columns
    """Bytes of them."""

    @always_inline
    def at(self, column: UInt32) -> UInt32:
        """Returns the address of a flag."""
        return self.base + 4 * column

    @always_inline
    def clear(self):
        """Clears all flags; all threads call it."""
        if UInt32(thread_idx.x) < UInt32(Self.columns):
            store_word(self.at(UInt32(thread_idx.x)), 0)

    @always_inline
    def set(self, column: UInt32):
        """Sets a flag."""
        store_word(self.at(column), 1)

    @always_inline
    def write(self, staged: FactoredRows, part: UInt32, first_column: UInt32, row_length: UInt32):
        """Writes marks of a tile's columns in a part of K; all threads call it behind a barrier."""
        var column = UInt32(thread_idx.x)
        if column < UInt32(Self.columns) and first_column + column < row_length:
            var flag = load_word(self.at(column)).cast[DType.uint8]()
            flat_of(staged.column_marks)[Int(part * row_length + first_column + column)] = flag
