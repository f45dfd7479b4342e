"""Who computes: the extension module of the device that an array lies on.

A launcher takes the name of an operation and the integers that its function wants of every
device: addresses, sizes and codes. It adds what its own device wants: the thread team of the
CPU, a stream and a workspace on a GPU. Arguments are valid by contract; `ops` checks them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mx_kernels._arrays import Array
from mx_kernels._cuda import CUDA
from mx_kernels._facts import facts
from mx_kernels._hip import ROCM


class Launcher(Protocol):
    """Launches operations on one kind of device."""

    def launch(self, operation: str, arguments: tuple[int, ...], out: Array) -> None:
        """Launches an operation that writes `out`."""

    def multiply(
        self, operation: str, arguments: tuple[int, ...], out: Array, m: int, k: int
    ) -> None:
        """Launches a product of `m` rows of activations of length `k`."""


class _Cpu:
    """Launches on the CPU, on the thread team of the caller."""

    def launch(self, operation, arguments, out):
        table = facts()
        getattr(table.native, operation)((*arguments, table.team_of_caller()))

    def multiply(self, operation, arguments, out, m, k):
        self.launch(operation, arguments, out)


CPU = _Cpu()


def launcher_of(array: Array) -> Launcher:
    """Returns the launcher for the device that `array` lies on, which has kernels."""
    if not (isinstance(array, Tensor) and array.is_cuda):
        return CPU
    return ROCM if torch.version.hip else CUDA
