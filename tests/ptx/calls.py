"""What a CUDA device would be told for a call of `mx_kernels`, without such a device.

CPU tensors are taken for tensors of the device. Checks, results, workspaces and the tuples of
integers are the product's own; where it would launch, `_mx_kernels_ptx` says what:

    public function -> calls -> Cuda -> _Device -> extension module -> Launch

    launches, buffers, out = calls.multiply(x, w)

Kernels find each tensor at addresses of its own, far from all others', even of the same storage:
what they touch beside it is a fault. Results and workspaces are full of garbage. Who runs the
launches writes them, in place, and nothing else.
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
from mx_kernels._core import cuda as _cuda
from mx_kernels._core import devices
from mx_kernels._core import native as _native
from mx_kernels._core.facts import KEPT_FLOATS, facts
from tests.ptx import kinds
from tests.ptx.memory import fresh_address

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


class Buffer(NamedTuple):
    """Memory that kernels are told of: from a tensor's first element to its last one."""

    address: int
    """Where kernels find it."""
    view: np.ndarray
    """Its bytes."""
    may_be_written: bool = False
    """Whether it is a result or a workspace."""


class Recorded(NamedTuple):
    """What one call of a public function would do."""

    launches: list[Launch]
    buffers: list[Buffer]
    """Operands, results, workspaces."""
    out: Tensor | mx.MXTensor | tuple
    """What the function returned."""


class _Device:
    """Stands for an opened device and its extension module; keeps launches."""

    def __init__(self, native: ModuleType, *, has_forced_plan: bool = False):
        self.native = native
        self.has_forced_plan = has_forced_plan
        self.launches: list[Launch] = []
        self.buffers: dict[tuple[int, int], Buffer] = {}
        """The memory that was asked for its address, by that in this process, and its bytes."""
        self.owners: list[Tensor] = []
        """Who own that memory."""

    def __getattr__(self, operation: str) -> Callable:
        """Returns a function of the module, which takes what that of a CUDA device takes."""
        if operation == "plan" or operation.endswith("_bytes"):
            return getattr(self.native, operation)
        function = getattr(self.native, f"tell_{operation}")

        def launch(arguments: tuple[int, ...]) -> None:
            num_read = {"multiply": 4, "multiply_grouped": 3, "multiply_experts": 3}
            count = num_read.get(operation, 2)
            call, (_device, _stream, *memory) = arguments[:-count], arguments[-count:]
            if memory:
                workspace, *plan = memory
                if self.has_forced_plan and not workspace:
                    workspace = self.allocate(KEPT_BYTES, 0)
                memory = (workspace, self.fill(workspace), *plan)
            self.launches += (Launch(*launch) for launch in function((*call, *memory)))

        return launch

    def fill(self, address: int) -> int:
        """Fills memory that kernels find at an address with garbage; returns its bytes."""
        for key, buffer in self.buffers.items():
            if address and buffer.address == address:
                buffer.view[:] = GARBAGE
                self.buffers[key] = buffer._replace(may_be_written=True)
                return len(buffer.view)
        return 0

    def address_of(self, tensor: Tensor) -> int:
        """Returns where kernels find a tensor; none without elements has an address."""
        if not tensor.numel():
            return 0
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        elements = 1 + sum((size - 1) * step for size, step in steps)
        begin, num_bytes = (x * tensor.itemsize for x in (tensor.storage_offset(), elements))
        storage = tensor.untyped_storage()
        key = storage.data_ptr() + begin, num_bytes
        if key not in self.buffers:
            owner = torch.empty(0, dtype=torch.uint8).set_(storage, begin, (num_bytes,))
            self.owners.append(owner)
            self.buffers[key] = Buffer(fresh_address(key[0]), owner.numpy())
        return self.buffers[key].address

    def allocate(self, num_bytes: int, _stream: int) -> int:
        """Returns the address of a workspace, which stays."""
        return self.address_of(torch.empty(num_bytes, dtype=torch.uint8))


@cache
def module_of(architecture: str) -> ModuleType:
    """Returns the extension module of an architecture."""
    return _native.load_extension(kinds.extension(architecture))


def record(
    function: Callable, *args, architecture: str = "sm_90a", plan: str = "", **kwargs
) -> Recorded:
    """Returns what a public function would do on a device of an architecture.

    Args:
        function: takes torch tensors, which lie in CPU memory.
        args: its arguments.
        architecture: one of `kinds.ARCHITECTURES`.
        plan: how a product is computed, a text of `hopper/plan.mojo`; "" leaves it to the table.
        kwargs: its arguments by name.
    """
    facts()  # Before the addresses of tensors are noted.
    device = _Device(module_of(architecture), has_forced_plan=bool(plan))
    cuda = _cuda.Cuda()
    cuda.plan = plan
    cuda._devices[INDEX] = _cuda._Device(device, 0, _cuda.planner(device))

    def data_ptr(tensor: Tensor) -> int:
        return device.address_of(tensor)

    stand_ins = {
        "current_device": lambda: INDEX,
        "_current_stream": lambda _: 0,
        "_allocate": device.allocate,
        "_free": lambda _: None,
    }
    with (
        mock.patch.multiple(_cuda, **stand_ins),
        mock.patch.object(devices, "CPU", cuda),
        mock.patch.object(Tensor, "data_ptr", data_ptr),
    ):
        out = function(*map(_tensor_of, args), **{k: _tensor_of(v) for k, v in kwargs.items()})
    if device.launches:
        for one in out if isinstance(out, tuple) else (out,):
            for part in (one.codes, one.scales) if isinstance(one, mx.MXTensor) else (one,):
                device.fill(device.address_of(part))
    return Recorded(device.launches, [*device.buffers.values()], out)


def multiply(a, w: mx.MXTensor, **kwargs) -> Recorded:
    """Records `matmul` of codes or `linear` of floats, with the arguments of both and `record`."""
    if isinstance(a, mx.MXTensor):
        return record(mx.matmul, a, w, **kwargs)
    x = _tensor_of(a)
    kwargs.setdefault("activations", "mxfp4")
    if kwargs.get("activations") == KEPT_FLOATS:
        # What a device would do first.
        kwargs.setdefault("out_dtype", x.dtype)
        x = x.bfloat16()
    return record(mx.linear, x, w, **kwargs)


def grouped_linear(x, w: mx.MXTensor, group_sizes, **kwargs) -> Recorded:
    """Records `grouped_linear`, with its arguments and those of `record`."""
    kwargs.setdefault("activations", "mxfp4")
    return record(mx.grouped_linear, x, w, group_sizes, **kwargs)


def moe(x, w_gate_up: mx.MXTensor, w_down: mx.MXTensor, ids, weights, **kwargs) -> Recorded:
    """Records `moe`, with its arguments and those of `record`."""
    kwargs.setdefault("activations", "mxfp4")
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
