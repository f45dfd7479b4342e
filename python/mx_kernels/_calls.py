"""The one writer of the call protocol: what extension modules are told, as tuples of integers.

    multiply      left     kind, values, scales, dtype, row_stride, format, rounding
                  right    codes, scales, format, layout
                  result   out, out_dtype, bias, bias_dtype
                  sizes    m, n, k
    quantize      values, dtype, row_stride, rows, k, format, rounding, codes, scales
    dequantize    codes, scales, format, layout, rows, k, out, out_dtype
    relayout      codes, scales, layout, codes_out, scales_out, layout_out, format, rows, k

Arrays go by address, strides count elements, and dtypes, formats, roundings and layouts are
places in the extension's tables; the reader is `bindings/protocol.mojo`. A launcher appends what
its device wants. Each function here allocates the result where its operands lie, writes the call
and launches it. Arguments are checked before.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda

from mx_kernels import _launch
from mx_kernels._arrays import PLAIN_TENSORS, Array, address_of, rows_of
from mx_kernels._cuda import current_device
from mx_kernels._facts import ENCODED, KEPT, NO_CODE, Format, Layout, Mode, facts


class Operand(Protocol):
    """Codes and scales with their meaning: an MXTensor, inside which a call reads what it needs."""

    _codes: Array
    _scales: Array
    _native: tuple[int, int]
    """The codes of format and layout."""
    _k: int
    format: str
    shape: tuple[int, ...]
    rows: int


def quantize(x: Array, fmt: Format, rounding: int) -> tuple[Array, Array]:
    """Quantizes floats [..., K]; returns codes and scales."""
    k = x.shape[-1]
    rows = _size(x) // k
    codes = _empty(x, rows, fmt.packed_bytes(k))
    scales = _empty(x, rows, k // fmt.block_k)
    if rows:
        _owner, values, dtype, row_stride = rows_of(x, k)
        source = (values, dtype, row_stride, rows, k)
        target = (address_of(codes), address_of(scales))
        launcher = _launch.launcher_of(codes)
        launcher.launch("quantize", (*source, fmt.code, rounding, *target), codes)
    return codes, scales


def dequantize(q: Operand, dtype: int) -> Array:
    """Decodes `q` to floats [..., K]."""
    rows, k = q.rows, q._k
    out = _empty(q._codes, rows, k, dtype)
    if rows:
        _launch.launcher_of(out).launch(
            "dequantize", (*_right(q), rows, k, address_of(out), dtype), out
        )
    return out


def relayout(q: Operand, layout: Layout) -> tuple[Array, Array]:
    """Moves the 2-D `q` to `layout`; returns codes and scales."""
    (*parts, fmt, source), rows = _right(q), q.rows
    storage = layout.storage(rows, q._k, facts().formats[q.format])
    codes, scales = (_empty(q._codes, *shape) for shape in storage)
    if rows:
        target = (address_of(codes), address_of(scales), layout.code)
        arguments = (*parts, source, *target, fmt, rows, q._k)
        _launch.launcher_of(codes).launch("relayout", arguments, codes)
    return codes, scales


def matmul(a: Operand, b: Operand, bias: Array | None, dtype: int) -> Array:
    """Multiplies codes by codes; returns floats [..., N]."""
    codes, scales, fmt, _ = _right(a)
    left = (ENCODED, codes, scales, 0, 0, fmt, 0)
    return _multiply(a._codes, a.rows, left, b, bias=bias, dtype=dtype)


def linear(x: Array, w: Operand, bias: Array | None, mode: Mode, dtype: int | None) -> Array:
    """Multiplies floats, kept or quantized by `mode`, by codes; returns floats [..., N].

    The result's dtype is x's for None. On a GPU kept floats are bfloat16.
    """
    kind, fmt, rounding = mode
    k = w._k
    x, values, x_dtype, row_stride = rows_of(x, k)
    if dtype is None:
        dtype = x_dtype
    if kind == KEPT and isinstance(x, Tensor) and x.is_cuda:
        x, values, x_dtype, row_stride = rows_of(x.to(torch.bfloat16), k)
    left = (kind, values, 0, x_dtype, row_stride, fmt, rounding)
    return _multiply(x, _size(x) // k, left, w, bias=bias, dtype=dtype)


def question(
    sizes: tuple[int, int, int], left: Mode, right: Format, layout: Layout
) -> tuple[int, ...]:
    """Writes a product that nobody computes: without memory, bfloat16 throughout, no bias."""
    bfloat16, k = facts().dtypes["bfloat16"], sizes[-1]
    floats = (left.kind, 0, 0, bfloat16, k, left.format, left.rounding)
    return *floats, 0, 0, right.code, layout.code, 0, bfloat16, 0, NO_CODE, *sizes


def _multiply(
    like: Array, m: int, left: tuple, w: Operand, *, bias: Array | None, dtype: int
) -> Array:
    """Writes and launches a product of a left side, whose `m` rows are those of `like`."""
    n, k = w.rows, w._k
    out = _empty(like, m, n, dtype)
    if m and n:
        addend, bias_dtype = 0, NO_CODE
        if bias is not None:
            # Of one row, which keeps it contiguous.
            _owner, addend, bias_dtype, _ = rows_of(bias, n)
        result = (address_of(out), dtype, addend, bias_dtype)
        _launch.launcher_of(out).multiply((*left, *_right(w), *result, m, n, k), out, m, k)
    return out


def _right(q: Operand) -> tuple[int, int, int, int]:
    """Addresses of codes and scales, format and layout."""
    return address_of(q._codes), address_of(q._scales), *q._native


def _size(array: Array) -> int:
    """The number of elements."""
    return array.numel() if isinstance(array, Tensor) else array.size


def _empty(like: Array, rows: int, columns: int, dtype: int | None = None) -> Array:
    """Allocates `rows` of another length than `like`'s, of its kind, where it lies.

    Floats of a dtype, or bytes. Matrices come from the functions that torch's own compiler calls
    for its allocations, in a fifth of the time of `new_empty`.
    """
    if not isinstance(like, Tensor):
        name = None if dtype is None else list(facts().dtypes)[dtype]
        shape = (rows, columns) if like.ndim == 2 else (*like.shape[:-1], columns)
        return np.empty(shape, facts().numpy_dtype(name) if name else np.uint8)
    torch_dtype = torch.uint8 if dtype is None else facts().torch_dtypes[dtype]
    if like.ndim != 2:
        return like.new_empty((*like.shape[:-1], columns), dtype=torch_dtype)
    if type(like) in PLAIN_TENSORS:
        if like.is_cpu:
            return _empty_strided_cpu((rows, columns), (columns, 1), torch_dtype)
        if like.is_cuda and like.get_device() == current_device():
            return _empty_strided_cuda((rows, columns), (columns, 1), torch_dtype)
    return like.new_empty((rows, columns), dtype=torch_dtype)
