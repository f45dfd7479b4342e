"""Who computes, and where results lie: the device of an array, and memory there.

A launcher takes a call as `calls` writes it, the integers that an operation wants of every
device, and adds what its own device wants: the thread team of the CPU, a stream and a workspace
on a GPU. Arguments are valid by contract.

Memory of the CPU is in large pages where Linux gives them to who asks (`madvise`), before it is
first written. A product of few rows reads all weights once: in pages of 2 MiB it takes two thirds
of the time that it takes in pages of 4 KiB (a Zen 4, two threads, 2026-11-22).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, get_num_threads
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda

from mx_kernels._core import facts as _facts
from mx_kernels._core.arrays import PLAIN_TENSORS, Array, address_of
from mx_kernels._core.cuda import CUDA, current_device
from mx_kernels._core.facts import Format, facts
from mx_kernels._core.hip import ROCM

_BYTES = torch.uint8
LARGE_PAGE = 2 << 20
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


def empty_scales(like: Array, shape: tuple[int, ...], fmt: Format) -> tuple[Tensor, int]:
    """Allocates scales of a format where `like` lies; returns their address, too."""
    if not fmt.has_float_scales:
        scales, address, _ = empty(like, shape)
        return scales, address
    scales, address, _ = empty(like, (*shape[:-1], shape[-1] * fmt.scale_bytes))
    return scales.view(fmt.scale_dtype), address


def empty(
    like: Array, shape: tuple[int, ...], dtype: int | None = None
) -> tuple[Array, int, Launcher]:
    """Allocates floats of a dtype, of the kind of `like`, or bytes, torch's, where `like` lies.

    Matrices come from the functions that torch's own compiler calls for its allocations, in a
    fifth of the time of `new_empty`.

    Returns:
        The array, its address, and who computes there.
    """
    torch_dtype = _BYTES if dtype is None else (_facts._facts or facts()).torch_dtypes[dtype]
    if len(shape) == 2 and type(like) in PLAIN_TENSORS:
        if like.is_cpu:
            out = _empty_strided_cpu(shape, (shape[1], 1), torch_dtype)
            return out, out.data_ptr(), CPU
        if like.is_cuda and like.get_device() == current_device():
            out = _empty_strided_cuda(shape, (shape[1], 1), torch_dtype)
            return out, out.data_ptr(), launcher_of(out)
    if dtype is None and not isinstance(like, Tensor):
        out = torch.empty(shape, dtype=_BYTES, device="cpu")
        return out, out.data_ptr(), CPU
    if isinstance(like, Tensor):
        out = like.new_empty(shape, dtype=torch_dtype)
        return out, out.data_ptr(), launcher_of(out)
    out = np.empty(shape, facts().numpy_dtype(list(facts().dtypes)[dtype]))
    return out, address_of(out), CPU


def ask_for_large_pages(address: int, num_bytes: int) -> None:
    """Asks for large pages in the part of an allocation that such pages fill."""
    first = -(-address // LARGE_PAGE) * LARGE_PAGE
    length = (address + num_bytes) // LARGE_PAGE * LARGE_PAGE - first
    if length > 0 and sys.platform == "linux":
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), MADV_HUGEPAGE)
