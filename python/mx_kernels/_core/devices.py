"""Who computes: the extension module of the device that an array lies on.

A launcher takes a call as `protocol` has it, the integers that an operation wants of every
device, and adds what its own device wants: the thread team of the CPU, a stream and a workspace
on a GPU. Arguments are valid by contract.

Memory of the CPU is in large pages where Linux gives them to who asks (`madvise`), before it is
first written. A product of few rows reads all weights once: in pages of 2 MiB it takes two thirds
of the time that it takes in pages of 4 KiB (a Zen 4, two threads, 2026-11-22). So preshuffled
weights lie side by side in chunks of such pages: alone most are smaller than one, and malloc gives
memory whose small pages are there already. Results of 32 MiB
and more are in new pages each: to dequantize 4096 x 4096 to bfloat16 takes 8.2 ms in large ones,
17.7 in small ones, and 4.4 in memory that is written again (Zen 4, one thread, 2026-11-30).
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor, get_num_threads

from mx_kernels._core import facts as _facts
from mx_kernels._core.arrays import Array
from mx_kernels._core.cuda import CUDA
from mx_kernels._core.facts import facts
from mx_kernels._core.hip import ROCM
from mx_kernels._core.native import LoadLock

LARGE_PAGE = 2 << 20
NEW_PAGES_BYTES = 32 << 20
"""From which on malloc of glibc never gives memory that was freed before."""
CHUNK_BYTES = 64 << 20
"""Of memory that weights share."""
CACHE_LINE = 64
MADV_HUGEPAGE = 14
"""Of Linux, on every architecture that torch runs on."""


class Launcher(Protocol):
    """Launches operations on one kind of device."""

    def launch(self, operation: str, arguments: tuple[int, ...], out: Array) -> bool | None:
        """Launches an operation but `multiply`, which writes `out`.

        Returns:
            On the CPU, of operations that look at numbers in memory before they write, whether
            these fit. Nothing waits for a GPU to say so: None.
        """

    def multiply(self, arguments: tuple[int, ...], out: Array) -> None:
        """Launches a product, which writes `out`.

        Raises:
            ValueError: if the device has no kernel for the formats; see `facts.unsupported`.
        """

    def prepared(
        self, operation: str, arguments: tuple[int, ...], index: int
    ) -> Callable[[tuple[int, ...], Tensor], bool | None] | None:
        """Returns what launches calls like one, whose memory may be elsewhere, once more.

        It takes a call and its result. `index` is the number of the device. None if all has to be
        found out anew each time.
        """

    def wants_bfloat16(self, rows: int) -> bool:
        """Says whether so many rows of floats that are kept must be bfloat16 already."""

    def takes_columns(self, like: Tensor, formats: tuple[int, int], rows: tuple[int, int]) -> bool:
        """Says whether `multiply_columns` multiplies codes of two formats and numbers of rows.

        They lie column by column on both sides, where `like` does. Otherwise they are copied.
        """

    def multiply_columns(self, arguments: tuple[int, ...], out: Tensor) -> None:
        """Launches a product of such codes, which writes `out`, where there are kernels for it."""


_OUT_OF_MEMORY = "out of memory"
"""How the error of the extension module begins whose working memory cannot be had."""


class _Cpu:
    """Launches on the CPU, on the thread team of the caller.

    Asking for torch's number of threads also makes torch apply it to this thread. A call whose
    working memory cannot be had raises `MemoryError` and has written nothing.
    """

    def launch(self, operation, arguments, out):
        return self._run(getattr((_facts._facts or facts()).native, operation), arguments)

    def multiply(self, arguments, out):
        self._run(_facts._facts.native.multiply, arguments)

    def prepared(self, operation, arguments, index):
        return partial(self._run, getattr(_facts._facts.native, operation))

    @staticmethod
    def _run(function, arguments, out=None):
        """Calls a function of the extension module, whose errors are of one kind only."""
        threads = get_num_threads()
        # Added, not unpacked: that takes half the time.
        team = _facts._facts.team if threads > 1 else 0, threads
        try:
            return function(arguments + team)
        except Exception as error:
            is_memory = str(error).startswith(_OUT_OF_MEMORY)
            raise (MemoryError(str(error)) if is_memory else error) from None

    def wants_bfloat16(self, rows):
        return False

    def takes_columns(self, like, formats, rows):
        return False


CPU = _Cpu()


def launcher_of(array: Array) -> Launcher:
    """Returns the launcher for the device that `array` lies on, which has kernels."""
    if not (isinstance(array, Tensor) and array.is_cuda):
        return CPU
    return ROCM if torch.version.hip else CUDA


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def ask_for_large_pages(address: int, num_bytes: int) -> None:
    """Asks for large pages in the part of an allocation that such pages fill."""
    first = -(-address // LARGE_PAGE) * LARGE_PAGE
    length = (address + num_bytes) // LARGE_PAGE * LARGE_PAGE - first
    if length > 0 and sys.platform == "linux":
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), MADV_HUGEPAGE)


class _Chunk:
    """Memory that weights share, taken from front to back."""

    def __init__(self):
        self.lock = LoadLock()
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.used = mmap.PAGESIZE

    def take(self, num_bytes: int) -> Tensor:
        """Returns so many bytes on a cache line."""
        with self.lock:
            if self.used + num_bytes > len(self.memory):
                size = max(num_bytes, CHUNK_BYTES)
                try:
                    self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                except OSError:
                    # Torch has the words for memory that there is not.
                    return torch.empty(num_bytes, dtype=torch.uint8)
                self.used = 0
                ask_for_large_pages(
                    torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr(), size
                )
            first, self.used = self.used, self.used + -(-num_bytes // CACHE_LINE) * CACHE_LINE
            return torch.frombuffer(self.memory, dtype=torch.uint8, count=num_bytes, offset=first)


_chunk = _Chunk()


def weight_memory(num_bytes: int) -> Tensor:
    """Returns bytes for a weight of the CPU, beside the last one, in large pages if there are any.

    Each has a storage of its own; a chunk of memory goes with the last of those that it has.
    """
    return _chunk.take(num_bytes) if num_bytes else torch.empty(0, dtype=torch.uint8)


def give_back_free_memory() -> None:
    """Gives the system what malloc keeps for later, after a model was made, where it is glibc's."""
    if trim := getattr(_libc(), "malloc_trim", None):
        trim(0)
