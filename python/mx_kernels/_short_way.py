"""The short way through an operation for the common case: plain tensors in plain eager mode.

Everything is checked here that could make a launch read or write wrong memory, in some twenty
cheap questions; whatever is unusual or wrong returns None and takes the long way, which has
the messages. Addresses are read anew in each call, because the memory of a tensor can be
swapped under it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda

from mx_kernels import _facts
from mx_kernels._arrays import PLAIN_TENSORS, intercepted, row_stride
from mx_kernels._cuda import current_device
from mx_kernels._launch import launcher_of
from mx_kernels.tensor import MXTensor


def quantize(x, rounding) -> tuple[Tensor, Tensor] | None:
    """Launches `mx_kernels.quantize` if the arguments are the common case, else returns None."""
    table = _facts._facts
    if table is None or type(x) not in PLAIN_TENSORS or intercepted():
        return None
    device = x.get_device()
    source = _floats(x, device, table)
    rounding_code = table.roundings.get(rounding) if type(rounding) is str else None
    if source is None or rounding_code is None:
        return None
    fmt, shape = table.default_format, x.shape
    k = shape[-1]
    if k % fmt.block_size:
        return None

    codes = _empty(x, device, fmt.packed_bytes(k), torch.uint8)
    scales = _empty(x, device, k // fmt.block_size, torch.uint8)
    target = (rounding_code, codes.data_ptr(), scales.data_ptr())
    launcher_of(codes).launch("quantize", (*source, x.numel() // k, k, *target), codes)
    return codes, scales


def matmul(a, b, bias, out_dtype) -> Tensor | None:
    """Launches `mx_kernels.matmul` if the arguments are the common case, else returns None."""
    if type(a) is not MXTensor or type(b) is not MXTensor or intercepted():
        return None
    measured = b._short or b.measure()
    codes, scales = a._codes, a._scales
    if measured is None or type(codes) not in PLAIN_TENSORS or type(scales) not in PLAIN_TENSORS:
        return None
    table, (_, n, k, _, _) = _facts._facts, measured
    device, fmt = codes.get_device(), table.formats[a._format]
    m = codes.numel() // fmt.packed_bytes(k)
    weights = _weights(b, measured, device)
    addend = _addend(bias, n, device, table)
    out_dtype = _torch_dtype(out_dtype, table)
    if (
        weights is None
        or addend is None
        or out_dtype is None
        or a._rows is not None
        or a._format != b._format
        or not _is_plain_memory(codes, device)
        or not _is_plain_memory(scales, device)
        or codes.shape[-1] != fmt.packed_bytes(k)
        or scales.numel() != m * (k // fmt.block_size)
        or not codes.is_contiguous()
        or not scales.is_contiguous()
    ):
        return None
    codes_address, scales_address = codes.data_ptr(), scales.data_ptr()
    if not (codes_address and scales_address):
        return None

    out = _empty(codes, device, n, out_dtype)
    source = (codes_address, scales_address, table.plain.code)
    target = (out.data_ptr(), table.dtype_codes[out_dtype], *addend)
    launcher_of(out).multiply("matmul", (*source, *weights, m, n, k, *target), out, m, k)
    return out


def linear(x, w, bias, rounding, out_dtype, *, activations) -> Tensor | None:
    """Launches `mx_kernels.linear` if the arguments are the common case, else returns None."""
    if type(w) is not MXTensor or type(x) not in PLAIN_TENSORS or intercepted():
        return None
    measured = w._short or w.measure()
    if measured is None:
        return None
    table, (_, n, k, _, _) = _facts._facts, measured
    device = x.get_device()
    source = _floats(x, device, table)
    weights = _weights(w, measured, device)
    addend = _addend(bias, n, device, table)
    out_dtype = x.dtype if out_dtype is None else _torch_dtype(out_dtype, table)
    rule = None
    if type(rounding) is str and type(activations) is str:
        rule = table.rules.get((activations, rounding))
    if (
        source is None
        or weights is None
        or addend is None
        or out_dtype is None
        or rule is None
        or (rule == _facts.KEEP and device >= 0 and x.dtype != torch.bfloat16)
        or x.shape[-1] != k
    ):
        return None

    m = x.numel() // k
    out = _empty(x, device, n, out_dtype)
    target = (out.data_ptr(), table.dtype_codes[out_dtype], *addend)
    arguments = (*source, *weights, m, n, k, rule, *target)
    if device < 0:
        table.native.linear((*arguments, table.team_of_caller()))
    else:
        launcher_of(out).multiply("linear", arguments, out, m, k)
    return out


def _empty(like: Tensor, device: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Allocates [..., columns] with the other dimensions of `like`, on its device.

    Matrices come from the functions that torch's own compiler calls for its allocations, in a
    fifth of the time of `new_empty`.
    """
    shape = like.shape
    if len(shape) == 2:
        sizes, strides = (shape[0], columns), (columns, 1)
        if device < 0:
            return _empty_strided_cpu(sizes, strides, dtype)
        if device == current_device():
            return _empty_strided_cuda(sizes, strides, dtype)
    return like.new_empty((*shape[:-1], columns), dtype=dtype)


# Each returns what the extension is told of an argument, or None unless it is the common case.
# A device is a number for each CUDA device; the CPU, like every device without memory, is -1.


def _floats(x: Tensor, device: int, table: _facts.Facts) -> tuple[int, int, int] | None:
    """Address, dtype and row stride of activations with elements."""
    code = table.dtype_codes.get(x.dtype)
    if code is None or not _is_plain_memory(x, device) or not x.ndim:
        return None
    stride = x.shape[-1] if x.is_contiguous() else row_stride(x.shape, x.stride(), 1)
    address = x.data_ptr()
    return (address, code, stride) if stride is not None and address and x.numel() else None


def _weights(
    w: MXTensor, measured: tuple[int, int, int, int, int], device: int
) -> tuple[int, int, int] | None:
    """Addresses and layout of weights that still have the bytes they were measured with."""
    layout_code, _, _, codes_bytes, scales_bytes = measured
    codes, scales = w._codes, w._scales
    codes_address, scales_address = codes.data_ptr(), scales.data_ptr()
    if (
        codes.numel() != codes_bytes
        or scales.numel() != scales_bytes
        or codes.get_device() != device
        or scales.get_device() != device
        or not codes.is_contiguous()
        or not scales.is_contiguous()
        or not codes_address
        or not scales_address
    ):
        return None
    return codes_address, scales_address, layout_code


def _addend(
    bias: Tensor | None, n: int, device: int, table: _facts.Facts
) -> tuple[int, int] | None:
    """Address and dtype of a bias, zeros for none."""
    if bias is None:
        return 0, 0
    if type(bias) not in PLAIN_TENSORS or not _is_plain_memory(bias, device):
        return None
    code, address = table.dtype_codes.get(bias.dtype), bias.data_ptr()
    if code is None or not address or bias.shape != (n,) or not bias.is_contiguous():
        return None
    return address, code


def _torch_dtype(dtype, table: _facts.Facts) -> torch.dtype | None:
    """The float dtype that `dtype` is or names."""
    known = type(dtype) in (str, torch.dtype)
    return table.torch_dtypes.get(dtype) if known else None


def _is_plain_memory(t: Tensor, device: int) -> bool:
    """Says whether the strides and bytes of `t` are all there is, and no gradient is wanted."""
    return (
        t.get_device() == device
        and (t.is_cpu or t.is_cuda)
        and t.layout is torch.strided
        and not t.is_nested
        and not t.is_neg()
        and not (t.requires_grad and torch.is_grad_enabled())
    )
