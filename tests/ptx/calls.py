"""What a CUDA device would be told for a call of `mx_kernels`, without such a device.

CPU tensors are taken for tensors of the device. Checks, results, workspaces and the tuples of
integers are the product's own; where it would launch, `_mx_kernels_ptx` says what:

    public function -> _calls -> Cuda -> _Device -> extension module -> Launch

    launches, buffers, out = calls.multiply(x, w)

Results and workspaces are full of garbage. Who runs the launches writes them, in place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import mx_kernels as mx
from mx_kernels import _cuda, _launch, _native
from mx_kernels._facts import KEPT_FLOATS, facts
from tests.ptx import kinds

INDEX = -1
"""Where torch says that CPU tensors are."""
GARBAGE = 0xFF
"""What fresh memory is full of, for nobody may count on zeros: NaN, as floats."""
KEPT_BYTES = 1 << 24
"""What a device keeps for products that are lent nothing; a plan may want it for few rows."""


class Launch(NamedTuple):
    """One launch."""

    ptx: str
    """A module of one kernel."""
    entry: str
    """The kernel's name in it."""
    grid: tuple[int, int, int]
    """Groups of threads along x, y and z."""
    threads: int
    """Threads of a group, along x."""
    cluster: int
    """Groups of a cluster, along x; 0 for no clusters."""
    shared_bytes: int
    """Shared memory of a group beyond what the kernel declares."""
    arguments: list[bytes]
    """The bytes of each parameter."""


class Recorded(NamedTuple):
    """What one call of a public function would do."""

    launches: list[Launch]
    buffers: list[np.ndarray]
    """All memory that kernels are told of, as bytes: operands, results, workspaces."""
    out: Tensor | mx.MXTensor
    """What the function returned."""


class _Device:
    """Stands for an opened device and its extension module; keeps launches."""

    def __init__(self, native: ModuleType):
        self.native = native
        self.launches: list[Launch] = []
        self.storages: dict[int, Tensor] = {}
        """The memory that was asked for its address, by that."""

    def __getattr__(self, operation: str) -> Callable:
        """Returns a function of the module, which takes what that of a CUDA device takes."""
        if operation.endswith("_bytes"):
            return getattr(self.native, operation)
        function = getattr(self.native, f"tell_{operation}")

        def launch(arguments: tuple[int, ...]) -> None:
            num_read = {"multiply": 4, "multiply_grouped": 3, "multiply_experts": 3}
            count = num_read.get(operation, 2)
            call, (_device, _stream, *memory) = arguments[:-count], arguments[-count:]
            if memory:
                workspace, *plan = memory
                if any(plan) and not workspace:
                    workspace = self.allocate(KEPT_BYTES, 0)
                memory = (workspace, self.fill(workspace), *plan)
            self.launches += (Launch(*launch) for launch in function((*call, *memory)))

        return launch

    def fill(self, address: int) -> int:
        """Fills memory that begins at an address with garbage; returns its bytes."""
        return len(self.storages[address].fill_(GARBAGE)) if address else 0

    def keep(self, tensor: Tensor) -> None:
        """Keeps the memory of a tensor that kernels are told of."""
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self.storages[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)

    def allocate(self, num_bytes: int, _stream: int) -> int:
        """Returns the address of a workspace, which stays."""
        workspace = torch.empty(num_bytes, dtype=torch.uint8)
        self.keep(workspace)
        return workspace.data_ptr()


@cache
def module_of(architecture: str) -> ModuleType:
    """Returns the extension module of an architecture."""
    return _native.load_extension(kinds.extension(architecture))


def record(
    function: Callable, *args, architecture: str = "sm_90a", plan: int = 0, **kwargs
) -> Recorded:
    """Returns what a public function would do on a device of an architecture.

    Args:
        function: takes torch tensors, which lie in CPU memory.
        args: its arguments.
        architecture: one of `kinds.ARCHITECTURES`.
        plan: how a product is cut, a code of `hopper/plan.mojo`; 0 leaves it to the table.
        kwargs: its arguments by name.
    """
    facts()  # Before the addresses of tensors are noted.
    device = _Device(module_of(architecture))
    cuda = _cuda.Cuda()
    cuda.plan = plan
    opened = _cuda._Device(device, 0, *device.native.max_few_rows(), device.workspace_bytes)
    cuda._devices[INDEX] = opened
    address_of = Tensor.data_ptr

    def data_ptr(tensor: Tensor) -> int:
        device.keep(tensor)
        return address_of(tensor)

    stand_ins = {
        "current_device": lambda: INDEX,
        "_current_stream": lambda _: 0,
        "_allocate": device.allocate,
        "_free": lambda _: None,
    }
    with (
        mock.patch.multiple(_cuda, **stand_ins),
        mock.patch.object(_launch, "CPU", cuda),
        mock.patch.object(Tensor, "data_ptr", data_ptr),
    ):
        out = function(*map(_tensor_of, args), **{k: _tensor_of(v) for k, v in kwargs.items()})
    if device.launches:
        for part in (out.codes, out.scales) if isinstance(out, mx.MXTensor) else (out,):
            device.fill(part.untyped_storage().data_ptr())
    return Recorded(device.launches, [part.numpy() for part in device.storages.values()], out)


def multiply(a, w: mx.MXTensor, **kwargs) -> Recorded:
    """Records `matmul` of codes or `linear` of floats, with the arguments of both and `record`."""
    if isinstance(a, mx.MXTensor):
        return record(mx.matmul, a, w, **kwargs)
    x = _tensor_of(a)
    if kwargs.get("activations") == KEPT_FLOATS:
        # What a device would do first.
        kwargs.setdefault("out_dtype", x.dtype)
        x = x.bfloat16()
    return record(mx.linear, x, w, **kwargs)


def grouped_linear(x, w: mx.MXTensor, group_sizes, **kwargs) -> Recorded:
    """Records `grouped_linear`, with its arguments and those of `record`."""
    return record(mx.grouped_linear, x, w, group_sizes, **kwargs)


def moe(x, w_gate_up: mx.MXTensor, w_down: mx.MXTensor, ids, weights, **kwargs) -> Recorded:
    """Records `moe`, with its arguments and those of `record`."""
    return record(mx.moe, x, w_gate_up, w_down, ids, weights, **kwargs)


def quantize(x, **kwargs) -> Recorded:
    """Records `quantize`, with its arguments and those of `record`."""
    return record(mx.quantize, x, **kwargs)


def dequantize(q: mx.MXTensor, **kwargs) -> Recorded:
    """Records `dequantize`, with its arguments and those of `record`."""
    return record(mx.dequantize, q, **kwargs)


def preshuffle(q: mx.MXTensor, **kwargs) -> Recorded:
    """Records `preshuffle` for a CUDA device, with the arguments of `record`."""
    return record(mx.preshuffle, q, device="cuda", **kwargs)


def _tensor_of(argument):
    """Returns a torch tensor for a NumPy array, which shares its memory; else what it got."""
    return torch.from_numpy(argument) if isinstance(argument, np.ndarray) else argument
