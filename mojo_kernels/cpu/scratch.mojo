"""Working memory that outlives a call, so that a call does not fault its pages in.

One block is kept for the process. A call takes it, or allocates a block of
its own while another call has it, and gives it back; the block that does not
fit the slot is freed. The first cache line of a block holds its size. Memory comes from the C
library, which says when there is none.

    address   0 .. 63           64 ..
    content   size in bytes     what the caller uses
"""

from std.atomic import Atomic
from std.ffi import _Global, external_call
from std.math import ceildiv
from std.sys import size_of

from ..operands import Flat, flat

comptime CACHE_LINE = 64
"""Alignment of everything that is carved from a block."""
comptime OUT_OF_MEMORY: StaticString = "out of memory"
"""How the error of a call begins whose working memory cannot be had."""
comptime MAX_KEPT_BYTES = 1 << 26
"""Larger blocks are not kept."""


def _empty_slot() -> Atomic[Int64]:
    return Atomic[Int64](0)


comptime _SLOT = _Global["mx_kernels_scratch", _empty_slot]


def _size_at(address: Int) -> MutPointer[Int, MutUntrackedOrigin]:
    return MutPointer[Int, MutUntrackedOrigin](unsafe_from_address=address)


def try_allocate(num_bytes: Int) -> Int:
    """Returns the address of so many bytes on a cache line, 0 if there are not so many."""
    if num_bytes < 0:
        return 0
    var size = ceildiv(num_bytes, CACHE_LINE) * CACHE_LINE
    return external_call["aligned_alloc", Int](CACHE_LINE, size)


def free(address: Int):
    """Frees what `try_allocate` returned."""
    external_call["free", NoneType](address)


def _replace_slot(var expected: Int64, desired: Int64) -> Bool:
    """Puts `desired` into the slot if it holds `expected`; says whether it did."""
    try:
        return _SLOT.get_or_create_ptr()[].compare_exchange(expected, desired)
    except:
        return False


def _take_slot() -> Int:
    """Empties the slot and returns its block; 0 if there is none."""
    try:
        var block = _SLOT.get_or_create_ptr()[].load()
        return Int(block) if _replace_slot(block, 0) else 0
    except:
        return 0


def padded[dtype: DType](count: Int) -> Int:
    """Returns the bytes that `count` elements take in a block, alignment included."""
    return ceildiv(count * size_of[dtype](), CACHE_LINE) * CACHE_LINE


struct Scratch:
    """One block, carved from front to back."""

    var block: Int
    """The address of the block."""
    var used: Int
    """Bytes that were carved so far, the first cache line included."""

    def __init__(out self, num_bytes: Int) raises:
        """Takes a block of at least `num_bytes`, each carved piece `padded`.

        Raises:
            Error: `OUT_OF_MEMORY` and how much was asked for, if it cannot be had.
        """
        var size = num_bytes + CACHE_LINE
        self.block = _take_slot()
        self.used = CACHE_LINE
        if self.block == 0 or _size_at(self.block)[] < size:
            free(self.block)
            self.block = try_allocate(size)
            if self.block == 0:
                raise Error(String(OUT_OF_MEMORY, ": cannot allocate ", size, " bytes"))
            _size_at(self.block)[] = size

    def __deinit__(deinit self):
        """Gives the block back; there is none where the constructor raised."""
        if self.block == 0:
            return
        var kept = _size_at(self.block)[] <= MAX_KEPT_BYTES
        if not (kept and _replace_slot(0, Int64(self.block))):
            free(self.block)

    def carve[dtype: DType](mut self, count: Int) -> Flat[dtype]:
        """Returns the next `count` elements."""
        var address = self.block + self.used
        self.used += padded[dtype](count)
        return flat[dtype](address, count)
