"""The operations on CUDA tensors: torch's memory, torch's current stream, no copies, no waits.

Arguments are valid by contract: `ops` checks them. Results are allocated by torch on the
tensors' device, kernels go to its current stream, so calls can be captured in a CUDA graph.
The extension module is the GPU half of the kernels, compiled for one architecture:

    MX_KERNELS_GPU    path of a module built elsewhere, for a host without the Mojo compiler:
                      mojo build --emit shared-lib --target-accelerator sm_90a
                          mojo_kernels/gpu_module.mojo -o _mx_kernels_gpu.so
"""

# ruff: noqa: PLR0917  the order of arguments is that of the torch.library schemas

from __future__ import annotations

import importlib.util
import math
import os
import threading
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

MODULE = "_mx_kernels_gpu"
BLOCK = 32
ROUNDINGS = {"floor": 0, "even": 1, "ceil": 2, "rceil": 3}
DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
FLOATS, QUANTIZED = 0, 1

_lock = threading.Lock()
_gpu: Gpu | None = None


class Gpu:
    """The extension module, its layouts, and the devices it has opened.

    Attributes:
        native: the extension module.
        layouts: codes by name, of the layouts that have kernels here.
        row_multiples: rows that a layout pads codes and scales to, by name.
        max_few_rows: up to this many rows, a product needs no workspace.
    """

    def __init__(self, native: ModuleType):
        self.native = native
        rows = native.layouts()
        self.layouts = {row["name"]: code for code, row in enumerate(rows)}
        self.row_multiples = {row["name"]: row["row_multiple"] for row in rows}
        self.max_few_rows = native.max_few_rows()
        self._devices: dict[int, int] = {}

    def queue(self, device: torch.device) -> tuple[int, int]:
        """Returns the handle of a device, opened once, and its current stream."""
        index = device.index
        handle = self._devices.get(index)
        if handle is None:
            with _lock:
                handle = self._devices.setdefault(index, self.native.open(index))
        return handle, torch._C._cuda_getCurrentRawStream(index)


def load() -> Gpu:
    """Returns the GPU kernels.

    Raises:
        ImportError: if there is no module, with what to do.
    """
    global _gpu  # noqa: PLW0603  one module a process, like any import
    if _gpu is not None:
        return _gpu
    with _lock:
        if _gpu is None:
            _gpu = Gpu(_import_from(_find()))
        return _gpu


def _find() -> Path:
    path = os.environ.get("MX_KERNELS_GPU")
    if not path:
        raise ImportError(
            "the GPU kernels are not built; run `mojo build --emit shared-lib "
            "--target-accelerator sm_90a` on mojo_kernels/gpu_module.mojo and set MX_KERNELS_GPU "
            "to the path of the module"
        )
    return Path(path)


def _import_from(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quantize(x: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    """Returns codes [..., K/2] and scales [..., K/32] of floats [..., K]."""
    gpu, k = load(), x.shape[-1]
    x = _with_row_stride(x)
    codes = x.new_empty((*x.shape[:-1], k // 2), dtype=torch.uint8)
    scales = x.new_empty((*x.shape[:-1], k // BLOCK), dtype=torch.uint8)
    if codes.numel():
        source = (x.data_ptr(), DTYPES[x.dtype], _row_stride(x), x.numel() // k, k)
        target = (ROUNDINGS[rounding], codes.data_ptr(), scales.data_ptr())
        gpu.native.quantize((*gpu.queue(x.device), *source, *target))
    return codes, scales


def dequantize(
    codes: Tensor, scales: Tensor, layout: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Returns the floats [..., K] that codes and scales in any layout stand for."""
    gpu, k = load(), shape[-1]
    out = codes.new_empty(shape, dtype=dtype)
    if out.numel():
        source = (codes.data_ptr(), scales.data_ptr(), gpu.layouts[layout], out.numel() // k, k)
        target = (out.data_ptr(), DTYPES[dtype])
        gpu.native.dequantize((*gpu.queue(codes.device), *source, *target))
    return out


def relayout(
    codes: Tensor, scales: Tensor, layout: str, rows: int, target: str
) -> tuple[Tensor, Tensor]:
    """Returns weights [rows, K] in another layout, padding written."""
    gpu, k = load(), 2 * codes.shape[-1]
    stored = math.ceil(rows / gpu.row_multiples[target]) * gpu.row_multiples[target]
    moved = codes.new_empty((stored, k // 2)), scales.new_empty((stored, k // BLOCK))
    if moved[0].numel():
        source = (codes.data_ptr(), scales.data_ptr(), gpu.layouts[layout])
        addresses = (moved[0].data_ptr(), moved[1].data_ptr(), gpu.layouts[target])
        gpu.native.relayout((*gpu.queue(codes.device), *source, *addresses, rows, k))
    return moved


def matmul(
    a_codes: Tensor,
    a_scales: Tensor,
    codes: Tensor,
    scales: Tensor,
    layout: str,
    n: int,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    plan: int = 0,
) -> Tensor:
    """Returns dq(a) @ dq(w).T + bias as [..., n], for plain activations."""
    gpu, k = load(), 2 * a_codes.shape[-1]
    lead, m = a_codes.shape[:-1], a_codes.numel() * 2 // k
    out = a_codes.new_empty((*lead, n), dtype=out_dtype)
    if out.numel():
        bias = None if bias is None else bias.contiguous()
        room = _workspace(gpu, a_codes, m, k)
        space = 0 if room is None else room.data_ptr()
        source = (a_codes.data_ptr(), a_scales.data_ptr())
        weights = (codes.data_ptr(), scales.data_ptr(), gpu.layouts[layout])
        target = (out.data_ptr(), DTYPES[out_dtype], *_addend(bias), space, plan)
        gpu.native.matmul((*gpu.queue(out.device), *source, *weights, m, n, k, *target))
    return out


def linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    layout: str,
    n: int,
    bias: Tensor | None,
    rounding: str,
    out_dtype: torch.dtype,
    activations: str = "mxfp4",
    plan: int = 0,
) -> Tensor:
    """Returns x @ dq(w).T + bias as [..., n]; x is quantized, or with "bf16" kept as it is.

    Kept activations are rounded to bfloat16 first if they are not bfloat16 yet.
    """
    gpu, k = load(), x.shape[-1]
    kind = QUANTIZED
    if activations == "bf16":
        kind, x = FLOATS, x.to(torch.bfloat16)
    x = _with_row_stride(x)
    m = x.numel() // k
    out = x.new_empty((*x.shape[:-1], n), dtype=out_dtype)
    if out.numel():
        bias = None if bias is None else bias.contiguous()
        room = _workspace(gpu, x, m, k)
        source = (x.data_ptr(), DTYPES[x.dtype], _row_stride(x), kind, ROUNDINGS[rounding])
        weights = (codes.data_ptr(), scales.data_ptr(), gpu.layouts[layout])
        space = 0 if room is None else room.data_ptr()
        target = (out.data_ptr(), DTYPES[out_dtype], *_addend(bias), space, plan)
        gpu.native.linear((*gpu.queue(out.device), *source, *weights, m, n, k, *target))
    return out


def _workspace(gpu: Gpu, like: Tensor, m: int, k: int) -> Tensor | None:
    """Returns memory for the kernels of this call; torch reuses it in stream order."""
    if m <= gpu.max_few_rows:
        return None
    return like.new_empty(gpu.native.workspace_bytes((m, k)), dtype=torch.uint8)


def _addend(bias: Tensor | None) -> tuple[int, int]:
    return (0, -1) if bias is None else (bias.data_ptr(), DTYPES[bias.dtype])


def _row_stride(x: Tensor) -> int:
    """Returns the stride between rows of a tensor that `_with_row_stride` returned."""
    return x.shape[-1] if x.is_contiguous() else x.stride(-2)


def _with_row_stride(x: Tensor) -> Tensor:
    """Returns `x`, or a copy where no single stride leads from row to row."""
    is_matrix = x.ndim == 2 and x.stride(-1) == 1 and x.stride(0) >= x.shape[-1]
    return x if is_matrix else x.contiguous()
