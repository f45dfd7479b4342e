"""Who computes: the extension module of the device that an array lies on.

A launcher takes a call as `calls` writes it, the integers that an operation wants of every
device, and adds what its own device wants: the thread team of the CPU, a stream and a workspace
on a GPU. Arguments are valid by contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, get_num_threads

from mx_kernels._core import facts as _facts
from mx_kernels._core.arrays import Array
from mx_kernels._core.cuda import CUDA
from mx_kernels._core.facts import facts
from mx_kernels._core.hip import ROCM


class Launcher(Protocol):
    """Launches operations on one kind of device."""

    def launch(self, operation: str, arguments: tuple[int, ...], out: Array) -> bool | None:
        """Launches an operation but `multiply`, which writes `out`.

        Returns:
            On the CPU, of operations that look at numbers in memory before they write, whether
            these fit. Nothing waits for a GPU to say so: None.
        """

    def multiply(self, arguments: tuple[int, ...], out: Array, m: int, k: int) -> None:
        """Launches a product of `m` rows of activations of length `k`, which writes `out`.

        Raises:
            ValueError: if the device has no kernel for the formats; see `facts.unsupported`.
        """

    def prepared(
        self, arguments: tuple[int, ...], index: int, m: int, k: int
    ) -> Callable[[tuple[int, ...]], None] | None:
        """Returns what launches products like one, whose memory may be elsewhere, once more.

        `index` is the number of the device. None if it has to be found out anew each time.
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


def _as_python_says(error: Exception) -> Exception:
    """Returns the error of an extension module, which knows one kind only, as Python calls it."""
    return MemoryError(str(error)) if str(error).startswith(_OUT_OF_MEMORY) else error


class _Cpu:
    """Launches on the CPU, on the thread team of the caller.

    Asking for torch's number of threads also makes torch apply it to this thread. A call whose
    working memory cannot be had raises `MemoryError` and has written nothing.
    """

    def launch(self, operation, arguments, out):
        table = _facts._facts or facts()
        threads = get_num_threads()
        team = table.team if threads > 1 else 0
        try:
            return getattr(table.native, operation)((*arguments, team, threads))
        except Exception as error:
            raise _as_python_says(error) from None

    def multiply(self, arguments, out, m, k):
        table, threads = _facts._facts, get_num_threads()
        # Added, not unpacked: see `calls`.
        team = table.team if threads > 1 else 0, threads
        try:
            table.native.multiply(arguments + team)
        except Exception as error:
            raise _as_python_says(error) from None

    def prepared(self, arguments, index, m, k):
        table = _facts._facts
        multiply = table.native.multiply

        def launch(arguments):
            threads = get_num_threads()
            team = table.team if threads > 1 else 0, threads
            try:
                multiply(arguments + team)
            except Exception as error:
                raise _as_python_says(error) from None

        return launch

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
