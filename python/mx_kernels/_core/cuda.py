"""Launches on CUDA devices: torch's memory, torch's current stream, no copies, no waits.

Kernels go to the current stream of the device that the tensors lie on, which need not be
torch's current device. Results and workspaces come from torch's allocator, which reuses memory
in the order of that stream; so calls can be captured in a CUDA graph. A device is opened, and
the extension module of its architecture built or found, at its first launch.
"""

# Adding tuples is faster than unpacking them.
# ruff: noqa: RUF005

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from types import ModuleType

import torch
from torch import Tensor

from mx_kernels._core import native as _native
from mx_kernels._core.protocol import MULTIPLY

# What torch's own compiler calls too; a build of torch without CUDA has none of them.
current_device, _current_stream, _allocate, _free = (
    getattr(torch._C, f"_cuda_{name}", None)
    for name in (
        "getDevice",
        "getCurrentRawStream",
        "cudaCachingAllocator_raw_alloc",
        "cudaCachingAllocator_raw_delete",
    )
)
_ASKED = itemgetter(
    *map(
        MULTIPLY.at,
        [
            "sizes.m",
            "sizes.n",
            "sizes.k",
            "left.kind",
            "left.dtype",
            "left.row_stride",
            "left.format",
            "right.format",
            "right.layout",
            "result.dtype",
        ],
    )
)
"""What a plan depends on, see `plan_cuda` in `bindings/plans.mojo`."""

PLAN = "MX_KERNELS_CUDA_PLAN"
"""Names a plan for all products of this process: for tuning, see `hopper/plan.mojo`."""
PORTABLE = "portable"
"""The plan that leaves products to the portable kernels."""


@dataclass(frozen=True)
class _Device:
    """An opened device: the module of its architecture, its handle there, and what that says."""

    native: ModuleType
    handle: int
    plan_for: Callable[[tuple[int | str, ...]], tuple[int, int]]
    """Says which plan a product gets, as a handle or 0, and how many bytes it is lent: of
    `_ASKED` and a forced plan; remembers answers."""


def planner(native: ModuleType) -> Callable[[tuple[int | str, ...]], tuple[int, int]]:
    """Returns who plans for a module: that of Hopper's plans, or the portable kernels."""
    if hasattr(native, "plan"):
        return _native.planner(native, _native.gpu_plans().plan_cuda)
    remember = functools.lru_cache(_native.MAX_ANSWERS)
    return remember(lambda question: (0, native.workspace_bytes(question[:3])))


class Cuda:
    """Launches kernels on any CUDA device of this process.

    Attributes:
        plan: how products are computed on Hopper, a text of `hopper/plan.mojo`; "" leaves it to the
            table. For tests and tuning.
    """

    def __init__(self):
        self.plan = os.environ.get(PLAN, "")
        self._lock = _native.LoadLock()
        self._modules: dict[str, ModuleType] = {}
        self._devices: dict[int, _Device] = {}

    def launch(self, operation: str, arguments: tuple[int, ...], out: Tensor) -> None:
        """Launches an operation that writes `out`."""
        index = out.get_device()
        device = self._devices.get(index) or self._open(index)
        stream = _current_stream(index)
        queue: tuple[int, ...] = (device.handle, stream)
        if operation in ("multiply_grouped", "multiply_experts"):
            num_bytes = getattr(device.native, f"{operation}_workspace_bytes")(arguments)
            workspace = out.new_empty(max(num_bytes, 1), dtype=torch.uint8)
            queue += (workspace.data_ptr(),)
        getattr(device.native, operation)(arguments + queue)

    def multiply(self, arguments: tuple[int, ...], out: Tensor) -> None:
        """Launches a product, which writes `out`."""
        self.prepared("multiply", arguments, out.get_device())(arguments, out)

    def prepared(
        self, operation: str, arguments: tuple[int, ...], index: int
    ) -> Callable[[tuple[int, ...], Tensor], None]:
        """Returns what launches such calls on a device, wherever their memory is."""
        if operation != "multiply":
            return functools.partial(self.launch, operation)
        device = self._devices.get(index) or self._open(index)
        forced = self.plan
        try:
            plan, num_bytes = device.plan_for(_ASKED(arguments) + (forced,))
        except Exception as error:
            # A text that is no plan: nothing else can be wrong with a question.
            named = f"{PLAN}: " if forced == os.environ.get(PLAN) else ""
            raise ValueError(f"{named}{error}") from None
        multiply, handle = device.native.multiply, device.handle

        def launch(arguments: tuple[int, ...], out: Tensor) -> None:
            if self.plan != forced:
                self.prepared(operation, arguments, index)(arguments, out)
                return
            stream = _current_stream(index)
            if not num_bytes:
                multiply(arguments + (handle, stream, 0, plan))
                return
            if index != current_device():
                with torch.cuda.device(index):
                    launch(arguments, out)
                return
            # Torch's own memory, in the order of the stream; a tensor would take three times as
            # long.
            workspace = _allocate(num_bytes, stream)
            try:
                multiply(arguments + (handle, stream, workspace, plan))
            finally:
                _free(workspace)

        return launch

    @staticmethod
    def wants_bfloat16(_rows: int) -> bool:
        """Says that kernels do not round floats that are kept."""
        return True

    @staticmethod
    def takes_columns(_like: Tensor, _formats: tuple[int, int], _rows: tuple[int, int]) -> bool:
        """Says that no kernel multiplies codes that lie column by column."""
        return False

    def _open(self, index: int) -> _Device:
        """Opens a device for the life of the process."""
        with self._lock:
            if index not in self._devices:
                name = architecture(torch.cuda.get_device_capability(index))
                if name not in self._modules:
                    extension = _native.gpu_extension(name)
                    self._modules[name] = _native.load_extension(extension)
                native = self._modules[name]
                self._devices[index] = _Device(native, native.open(index), planner(native))
            return self._devices[index]


def architecture(capability: tuple[int, int]) -> str:
    """Returns the compiler's name for a compute capability.

    From Hopper on, the instructions of one generation alone, wgmma for one, want the suffix.
    """
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


CUDA = Cuda()
