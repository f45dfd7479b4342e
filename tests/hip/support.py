"""A stand-in for AMD's HIP runtime that runs what is launched in the simulator.

`StandIn` answers the HIP functions of a small C library, `stand_in.c`, which is loaded in
place of libamdhip64.so. It takes code objects apart as the real loader does, records every call,
fails on demand, and executes launches: torch's CPU memory plays the device's.

    public function -> hip -> extension module -> hipModuleLaunchKernel -> StandIn -> gfx950.run
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import gfx950
from gfx950.isa import disassembly
from gfx950.isa.code_object import CodeObject
from mx_kernels._core import arrays, devices, hip
from tests.hip import code_object

SOURCE = Path(__file__).with_name("stand_in.c")
ERRORS = {
    1: b"invalid argument",
    2: b"out of memory",
    209: b"no kernel image is available for execution on the device",
    500: b"named symbol not found",
    719: b"unspecified launch failure",
    999: b"unknown error",
}
INVALID_VALUE, NOT_FOUND, UNKNOWN = 1, 500, 999
MAX_GRID = (2**31 - 1, 65536, 65536)
POINTER_BYTES = 8


@cache
def kernel_of(image: bytes) -> gfx950.Kernel:
    """Returns a code object's kernel for the simulator."""
    return disassembly.kernel_of(code_object.loaded(image))


def room(address: int, addresses: set[int]) -> int | None:
    """Returns the bytes up to the next address, for operands in one tensor's memory."""
    return min((other - address for other in addresses if other > address), default=None)


@dataclass(frozen=True)
class Launch:
    """A launch as the runtime saw it."""

    device: int
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: int | None
    arguments: tuple[int, ...]


_STATUS, _HANDLE, _COUNT = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint
_OUT = ctypes.POINTER(_HANDLE)
SIGNATURES = {
    "hipGetDevice": ctypes.CFUNCTYPE(_STATUS, ctypes.POINTER(ctypes.c_int)),
    "hipSetDevice": ctypes.CFUNCTYPE(_STATUS, ctypes.c_int),
    "hipGetLastError": ctypes.CFUNCTYPE(_STATUS),
    "hipGetErrorString": ctypes.CFUNCTYPE(_HANDLE, _STATUS),
    "hipModuleLoadData": ctypes.CFUNCTYPE(_STATUS, _OUT, _HANDLE),
    "hipModuleGetFunction": ctypes.CFUNCTYPE(_STATUS, _OUT, _HANDLE, ctypes.c_char_p),
    "hipModuleLaunchKernel": ctypes.CFUNCTYPE(
        _STATUS, _HANDLE, *[_COUNT] * 7, _HANDLE, _OUT, _HANDLE
    ),
    # What would wait or allocate: recorded, and never expected.
    "hipDeviceSynchronize": ctypes.CFUNCTYPE(_STATUS),
    "hipStreamSynchronize": ctypes.CFUNCTYPE(_STATUS, _HANDLE),
    "hipMalloc": ctypes.CFUNCTYPE(_STATUS, _OUT, ctypes.c_ulong),
    "hipMemcpy": ctypes.CFUNCTYPE(_STATUS, _HANDLE, _HANDLE, ctypes.c_ulong, ctypes.c_int),
}
"""The functions of `stand_in.c`."""


def build_runtime(folder: Path) -> ctypes.CDLL:
    """Builds the library under the real one's name and loads it."""
    target = folder / hip.RUNTIME
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, SOURCE], check=True)
    return ctypes.CDLL(str(target))


@dataclass
class StandIn:
    """The runtime, and what torch's ROCm build would say about devices and streams.

    While it is installed, CPU tensors are taken for tensors of the device.
    """

    execute: bool = True
    """Whether launches are executed, or only recorded."""
    groups: list[int] | None = None
    """The workgroups that are executed, None for all."""
    arch: str = "gfx950:sramecc+:xnack-"
    tensor_device: int = 0
    """Where torch would say that tensors are."""
    stream: int = 0x5EA
    capturing: bool = False
    current: int = 0
    """The thread's current device."""
    errors: dict[str, int] = field(default_factory=dict)
    """Error codes that functions return from now on."""
    calls: list[str] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    loaded: list[tuple[int, CodeObject]] = field(default_factory=list)
    """Code objects with their device; the position is the handle of module and function."""
    failures: list[Exception] = field(default_factory=list)
    """What went wrong in here."""
    _callbacks: dict[str, object] = field(default_factory=dict)
    """Keeps what C calls alive."""
    _memory: dict[int, int] = field(default_factory=dict)
    """The bytes behind every address that a tensor's memory began at, the last one asked last."""

    def install(self, library: ctypes.CDLL, monkeypatch) -> None:
        """Puts this object behind the library and in front of torch."""
        for name, signature in SIGNATURES.items():
            handler = getattr(self, name, lambda *_: 0)
            self._callbacks[name] = callback = signature(self._guarded(name, handler))
            pointer = ctypes.c_void_p.in_dll(library, f"on_{name}")
            pointer.value = ctypes.cast(callback, ctypes.c_void_p).value
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName=self.arch)
        )
        monkeypatch.setattr(devices, "CPU", hip.Rocm())
        # No number: so that torch is not asked for memory of a device that it does not have.
        monkeypatch.setattr(arrays, "current_device", lambda: None)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.Tensor, "get_device", lambda _: self.tensor_device)
        address_of = torch.Tensor.data_ptr

        def data_ptr(tensor):
            storage = tensor.untyped_storage()
            self._memory.pop(storage.data_ptr(), None)
            self._memory[storage.data_ptr()] = storage.nbytes()
            return address_of(tensor)

        monkeypatch.setattr(torch.Tensor, "data_ptr", data_ptr)
        monkeypatch.setattr(
            torch._C, "_cuda_getCurrentRawStream", lambda _: self.stream, raising=False
        )

    def _guarded(self, name: str, handler: Callable) -> Callable:
        """Records a call, fails if told to, and keeps exceptions, which C cannot pass on."""

        def call(*arguments):
            self.calls.append(name)
            if name in self.errors:
                return self.errors[name]
            try:
                return handler(*arguments)
            except Exception as error:
                self.failures.append(error)
                return UNKNOWN

        return call

    def _memory_at(self, address: int) -> np.ndarray:
        """Returns the bytes from an address to the end of its tensor's memory.

        Kernels are told no address but of a tensor that was asked for its own. Memory that was
        freed and allocated again was asked for last where it is alive.
        """
        memory = self._find(address)
        if memory is None:
            raise ValueError(f"{address:#x} is in no tensor's memory")
        return memory

    def _find(self, address: int) -> np.ndarray | None:
        for start, num_bytes in reversed(self._memory.items()):
            size = start + num_bytes - address
            if 0 < size <= num_bytes:
                return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        return None

    def _by_value(self, raw: bytes) -> bytes | tuple:
        """Returns an argument of bytes; addresses in it become arrays of the memory there."""
        if len(raw) < POINTER_BYTES:
            return raw
        parts = [raw[i : i + POINTER_BYTES] for i in range(0, len(raw), POINTER_BYTES)]
        found = (self._find(int.from_bytes(part, "little")) for part in parts)
        return tuple(
            part if memory is None else memory for part, memory in zip(parts, found, strict=True)
        )

    def hipGetDevice(self, device):
        device[0] = self.current
        return 0

    def hipSetDevice(self, device):
        self.current = device
        return 0

    def hipGetErrorString(self, error):
        return ctypes.cast(ctypes.c_char_p(ERRORS[error]), ctypes.c_void_p).value

    def hipModuleLoadData(self, module, image):
        self.loaded.append((self.current, code_object.at(image)))
        module[0] = len(self.loaded)
        return 0

    def hipModuleGetFunction(self, function, module, name):
        if name.decode() != self.loaded[module - 1][1].name:
            return NOT_FOUND
        function[0] = module
        return 0

    def hipModuleLaunchKernel(self, function, *rest):
        sizes, (lds, stream, params, extra) = rest[:6], rest[6:]
        grid, block = sizes[:3], sizes[3:]
        device, code = self.loaded[function - 1]
        values = [
            int.from_bytes(ctypes.string_at(params[i], row[".size"]), "little")
            for i, row in enumerate(code.arguments)
        ]
        self.launches.append(Launch(device, code.name, grid, block, stream, tuple(values)))
        fits = all(0 < count <= limit for count, limit in zip(grid, MAX_GRID, strict=True))
        threads = block[0] * block[1] * block[2]
        if not fits or threads > code.metadata["max_flat_workgroup_size"]:
            return INVALID_VALUE
        assert (lds, extra, device) == (0, None, self.current)
        if self.execute:
            rows = list(zip(code.arguments, values, strict=True))
            addresses = {v for row, v in rows if row[".value_kind"] == "global_buffer" and v}
            operands = [
                self._memory_at(value)[: room(value, addresses)]
                if value in addresses and row[".value_kind"] == "global_buffer"
                else self._by_value(value.to_bytes(row[".size"], "little"))
                for row, value in rows
            ]
            self.run(kernel_of(code.image), grid, block, operands)
        return 0

    def run(self, kernel: gfx950.Kernel, grid, block, operands: list) -> None:
        """Executes a launch."""
        gfx950.run(kernel, grid, block, operands, order=self.groups).raise_on_hazards()
