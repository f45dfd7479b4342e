"""The one writer of the call protocol: what extension modules are told, as tuples of integers.

    multiply      left     kind, values, scales, dtype, row_stride, format, rounding
                  right    codes, scales, format, layout
                  result   out, out_dtype, bias, bias_dtype
                  sizes    m, n, k
    multiply_grouped, multiply_experts    see the reader; `_experts` writes their right sides
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

from mx_kernels import _facts, _launch
from mx_kernels._arrays import PLAIN_TENSORS, Array, address_of, rows_of, show
from mx_kernels._cuda import current_device
from mx_kernels._facts import ENCODED, KEPT, NO_CODE, Format, Layout, Mode, facts

_BFLOAT16, _BYTES = torch.bfloat16, torch.uint8


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
    _checked: tuple | None
    """What plain tensors in memory were found to be; ends with the rows."""


def quantize(x: Array, fmt: Format, rounding: int) -> tuple[Array, Array]:
    """Quantizes floats [..., K]; returns codes and scales."""
    k = x.shape[-1]
    rows = (x.numel() if isinstance(x, Tensor) else x.size) // k
    codes, codes_address, launcher = _empty(x, rows, fmt.packed_bytes(k))
    scales, scales_address, _ = _empty(x, rows, k // fmt.block_k)
    if rows:
        _owner, values, dtype, row_stride = rows_of(x, k)
        source = (values, dtype, row_stride, rows, k)
        target = (fmt.code, rounding, codes_address, scales_address)
        launcher.launch("quantize", source + target, codes)
    return codes, scales


def dequantize(q: Operand, dtype: int) -> Array:
    """Decodes `q` to floats [..., K]."""
    rows, k = q.rows, q._k
    out, address, launcher = _empty(q._codes, rows, k, dtype)
    if rows:
        target = (rows, k, address, dtype)
        launcher.launch("dequantize", _right(q) + target, out)
    return out


def relayout(q: Operand, layout: Layout) -> tuple[Array, Array]:
    """Moves the 2-D `q` to `layout`; returns codes and scales."""
    (*parts, fmt, source), rows = _right(q), q.rows
    storage = layout.storage(rows, q._k, facts().formats[q.format])
    (codes, *target, launcher), (scales, address, _) = (
        _empty(q._codes, *shape) for shape in storage
    )
    if rows:
        target = (*target, address, layout.code)
        launcher.launch("relayout", (*parts, source, *target, fmt, rows, q._k), codes)
    return codes, scales


def matmul(a: Operand, b: Operand, bias: Array | None, dtype: int) -> Array:
    """Multiplies codes by codes; returns floats [..., N]."""
    codes, scales, fmt, _ = _right(a)
    left = (ENCODED, codes, scales, 0, 0, fmt, 0)
    return _multiply(a._codes, a.rows, left, b, bias, dtype)


def linear(x: Array, w: Operand, bias: Array | None, mode: Mode, dtype: int | None) -> Array:
    """Multiplies floats, kept or quantized by `mode`, by codes; returns floats [..., N].

    The result's dtype is x's for None. On a GPU kept floats are bfloat16.
    """
    kind, fmt, rounding = mode
    k = w._k
    x, values, x_dtype, row_stride = rows_of(x, k)
    if dtype is None:
        dtype = x_dtype
    is_rounded = kind == KEPT and x_dtype != _facts._facts.dtypes["bfloat16"]
    if is_rounded and isinstance(x, Tensor) and x.is_cuda:
        x, values, x_dtype, row_stride = rows_of(x.to(_BFLOAT16), k)
    m = (x.numel() if isinstance(x, Tensor) else x.size) // k
    left = (kind, values, 0, x_dtype, row_stride, fmt, rounding)
    return _multiply(x, m, left, w, bias, dtype)


def grouped_linear(  # noqa: PLR0917  as the operator has them
    x: Tensor, w: Operand, sizes: Tensor, bias: Tensor | None, mode: Mode, dtype: int | None
) -> Tensor:
    """Multiplies rows that are sorted by expert; returns floats [T, N].

    Raises:
        ValueError: if the sizes do not fit; nothing is written then.
    """
    (_, n, k), rows = w.shape, x.shape[0]
    kept, left = _floats(x, k, mode)
    if dtype is None:
        dtype = left[3]
    out, address, launcher = _empty(x, rows, n, dtype)
    sizes = sizes.contiguous()
    also_kept, right = _experts(w, bias)
    sizes_at = sizes.data_ptr()
    call = (*left, *right, sizes_at, address, dtype, rows, n, k)
    if not launcher.launch("multiply_grouped", call, out):
        raise ValueError(
            f"group_sizes: got {show(sizes.tolist())} for {rows} rows of x, expected numbers of "
            f"rows, none negative, {rows} or fewer together"
        )
    del kept, also_kept
    return out


def moe(  # noqa: PLR0917  as the operator has them
    x: Tensor,
    weights: tuple[Operand, Operand],
    ids: Tensor,
    counts: Tensor,
    biases: tuple[Tensor | None, Tensor | None],
    gate: tuple[int, float, float],
    mode: Mode,
    dtype: int | None,
) -> Tensor:
    """Computes a layer of experts; returns floats [T, H].

    Args:
        x: tokens [T, H].
        weights: of gates and ups, and down.
        ids: the experts of each token [T, k].
        counts: what each of their results counts [T, k].
        biases: of both products.
        gate: the code of the activation, limit and alpha.
        mode: what x and the hidden numbers become.
        dtype: the result's; None for x's.

    Raises:
        ValueError: if an id names no expert; nothing is written then.
    """
    (tokens, slots), (num_experts, width, inner) = ids.shape, weights[1].shape
    kept, left = _floats(x, width, mode)
    if dtype is None:
        dtype = left[3]
    out, address, launcher = _empty(x, tokens, width, dtype)
    ids, counts = ids.contiguous(), counts.contiguous()
    (kept_up, gate_up), (kept_down, down) = map(_experts, weights, biases)
    counts_dtype = facts().dtype_codes[counts.dtype]
    routing = (ids.data_ptr(), ids.element_size(), counts.data_ptr(), counts_dtype, tokens, slots)
    code, *numbers = gate
    bits = (int(np.float32(number).view(np.uint32)) for number in numbers)
    call = (*left, *gate_up, *down, *routing, code, *bits, address, dtype, width, inner)
    if not launcher.launch("multiply_experts", call, out):
        raise ValueError(
            f"expert_ids: got {int(ids.max())}, expected at most {num_experts - 1}, the last of "
            f"{num_experts} experts; a negative id stands for none"
        )
    del kept, kept_up, kept_down
    return out


def _floats(x: Tensor, k: int, mode: Mode) -> tuple[Tensor, tuple[int, ...]]:
    """Writes a left side of floats; returns who owns its memory, too."""
    kind, fmt, rounding = mode
    x, values, dtype, row_stride = rows_of(x, k)
    return x, (kind, values, 0, dtype, row_stride, fmt, rounding)


def _experts(w: Operand, bias: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
    """Writes the right sides of all experts; returns who owns the memory of the bias, too."""
    addend, bias_dtype = 0, NO_CODE
    if bias is not None:
        bias = bias.contiguous()
        addend, bias_dtype = bias.data_ptr(), facts().dtype_codes[bias.dtype]
    steps = (w._codes.stride(0), w._scales.stride(0))
    return bias, (*_right(w), w.shape[0], *steps, addend, bias_dtype)


def question(
    sizes: tuple[int, int, int], left: Mode, right: Format, layout: Layout
) -> tuple[int, ...]:
    """Writes a product that nobody computes: without memory, bfloat16 throughout, no bias."""
    bfloat16, k = facts().dtypes["bfloat16"], sizes[-1]
    floats = (left.kind, 0, 0, bfloat16, k, left.format, left.rounding)
    return *floats, 0, 0, right.code, layout.code, 0, bfloat16, 0, NO_CODE, *sizes


def _multiply(  # noqa: PLR0917  names would take time
    like: Array, m: int, left: tuple, w: Operand, bias: Array | None, dtype: int
) -> Array:
    """Writes and launches a product of a left side, whose `m` rows are those of `like`."""
    n, k = w._checked[-1] if w._checked else w.rows, w._k
    out, address, launcher = _empty(like, m, n, dtype)
    if m and n:
        addend, bias_dtype = 0, NO_CODE
        if bias is not None:
            # Of one row, which keeps it contiguous.
            _owner, addend, bias_dtype, _ = rows_of(bias, n)
        codes, scales, fmt, layout = _right(w)
        rest = (codes, scales, fmt, layout, address, dtype, addend, bias_dtype, m, n, k)
        launcher.multiply(left + rest, out, m, k)
    return out


def _right(q: Operand) -> tuple[int, int, int, int]:
    """Addresses of codes and scales, format and layout."""
    codes, scales, (fmt, layout) = q._codes, q._scales, q._native
    if isinstance(codes, Tensor):
        at, scales_at = codes.data_ptr() or address_of(codes), scales.data_ptr()
        return at, scales_at or address_of(scales), fmt, layout
    return address_of(codes), address_of(scales), fmt, layout


def _empty(
    like: Array, rows: int, columns: int, dtype: int | None = None
) -> tuple[Array, int, _launch.Launcher]:
    """Allocates `rows` of another length than `like`'s, of its kind, where it lies.

    Floats of a dtype, or bytes. Matrices come from the functions that torch's own compiler calls
    for its allocations, in a fifth of the time of `new_empty`.

    Returns:
        The array, its address, and who computes there.
    """
    table = _facts._facts or facts()
    torch_dtype = _BYTES if dtype is None else table.torch_dtypes[dtype]
    if type(like) in PLAIN_TENSORS and like.ndim == 2:
        if like.is_cpu:
            out = _empty_strided_cpu((rows, columns), (columns, 1), torch_dtype)
            return out, out.data_ptr(), _launch.CPU
        if like.is_cuda and like.get_device() == current_device():
            out = _empty_strided_cuda((rows, columns), (columns, 1), torch_dtype)
            return out, out.data_ptr(), _launch.launcher_of(out)
    shape = (rows, columns) if like.ndim == 2 else (*like.shape[:-1], columns)
    if isinstance(like, Tensor):
        out = like.new_empty(shape, dtype=torch_dtype)
        return out, out.data_ptr(), _launch.launcher_of(out)
    name = None if dtype is None else list(table.dtypes)[dtype]
    out = np.empty(shape, table.numpy_dtype(name) if name else np.uint8)
    return out, address_of(out), _launch.CPU
