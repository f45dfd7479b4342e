"""The short way through `linear` for the common case: plain tensors in plain eager mode.

Everything is checked here that could make a launch read or write wrong memory, in some twenty
cheap questions; whatever is unusual or wrong returns None and takes the long way, which has
the messages. Addresses are read anew in each call, because the memory of a tensor can be
swapped under it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mx_kernels import _facts
from mx_kernels._arrays import PLAIN_TENSORS, intercepted, row_stride
from mx_kernels._launch import launcher_of
from mx_kernels.tensor import MXTensor


def linear(x, w, bias, rounding, out_dtype) -> Tensor | None:
    """Launches `mx_kernels.linear` if the arguments are the common case, else returns None."""
    if type(w) is not MXTensor or type(x) not in PLAIN_TENSORS or intercepted():
        return None
    weights = w._short or w.measure()
    # A number for each CUDA device; the CPU, like every device without memory, is -1.
    device = x.get_device()
    if weights is None or not _is_plain_memory(x, device):
        return None
    layout_code, n, k, codes_bytes, scales_bytes = weights
    table = _facts._facts
    codes, scales, shape, x_dtype = w._codes, w._scales, x.shape, x.dtype
    if out_dtype is None:
        out_dtype = x_dtype
    elif type(out_dtype) is not torch.dtype:
        out_dtype = table.torch_dtypes.get(out_dtype) if type(out_dtype) is str else None
    x_code = table.dtype_codes.get(x_dtype)
    out_code = table.dtype_codes.get(out_dtype)
    rounding_code = table.roundings.get(rounding) if type(rounding) is str else None
    if (
        x_code is None
        or out_code is None
        or rounding_code is None
        or not shape
        or shape[-1] != k
        or codes.numel() != codes_bytes
        or scales.numel() != scales_bytes
        or codes.get_device() != device
        or scales.get_device() != device
        or not codes.is_contiguous()
        or not scales.is_contiguous()
    ):
        return None

    stride = k if x.is_contiguous() else row_stride(shape, x.stride(), 1)
    if stride is None:
        return None
    bias_address = bias_code = 0
    if bias is not None:
        if (
            type(bias) not in PLAIN_TENSORS
            or not _is_plain_memory(bias, device)
            or bias.shape != (n,)
        ):
            return None
        bias_code = table.dtype_codes.get(bias.dtype)
        bias_address = bias.data_ptr()
        if bias_code is None or not bias_address or not bias.is_contiguous():
            return None
    m, x_address = x.numel() // k, x.data_ptr()
    codes_address, scales_address = codes.data_ptr(), scales.data_ptr()
    if not (m and x_address and codes_address and scales_address):
        return None

    out = x.new_empty((m, n) if len(shape) == 2 else (*shape[:-1], n), dtype=out_dtype)
    source = (x_address, x_code, stride)
    weights = (codes_address, scales_address, layout_code)
    target = (out.data_ptr(), out_code, bias_address, bias_code)
    if device >= 0:
        arguments = (*source, *weights, m, n, k, rounding_code, *target)
        launcher_of(out).multiply("linear", arguments, out, m, k)
        return out
    team = table.team_of_caller()
    table.native.linear((*source, *weights, m, n, k, rounding_code, *target, team))
    return out


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
