"""The one writer of the call protocol: a function for each operation.

Each allocates the result where its operands lie, writes the call, whose fields are in `protocol`,
and launches it. Arguments are checked before. Tuples are added, not unpacked into each other: that
takes half the time, and a call of `linear` on one block is counted in microseconds.

A call of `linear` may be launched again with other addresses, see `repeats`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from mx_kernels._core import facts as _facts
from mx_kernels._core.arrays import Array, address_of, memory_of, rows_of, show
from mx_kernels._core.devices import ask_for_large_pages, empty, empty_scales, launcher_of
from mx_kernels._core.facts import Format, Layout, Mode, facts, of_kind
from mx_kernels._core.protocol import (
    ENCODED,
    KEPT,
    NO_CODE,
    Dequantize,
    Experts,
    Gate,
    Groups,
    Left,
    Quantize,
    Relayout,
    Result,
    Right,
    Routing,
    Sizes,
    Tokens,
)
from mx_kernels._core.storage import lies_by_columns, storage_of

_BFLOAT16 = torch.bfloat16


class Operand(Protocol):
    """Codes and scales with their meaning: an MXTensor, inside which a call reads what it needs."""

    _codes: Tensor
    _scales: Tensor
    _native: tuple[int, int]
    """The codes of format and layout."""
    _k: int
    format: str
    byte_layout: str
    shape: tuple[int, ...]
    rows: int
    _checked: tuple | None
    """What plain tensors in memory are, as the call's checks found; ends with the rows."""


def quantize(x: Array, fmt: Format, rounding: int) -> tuple[Tensor, Tensor]:
    """Quantizes floats [..., K]; returns codes and scales."""
    *lead, k = x.shape
    rows = (x.numel() if isinstance(x, Tensor) else x.size) // k
    codes, codes_address, launcher = empty(x, (*lead, fmt.packed_bytes(k)))
    scales, scales_address = empty_scales(x, fmt.scales_of(x.shape), fmt)
    if rows:
        _owner, values, dtype, row_stride = rows_of(x, k)
        # Blocks of several rows end with their matrix.
        step = lead[-1] if len(lead) > 1 and lead[-1] % fmt.block_rows else rows
        row_floats, row_codes = row_stride * facts().float_bytes(dtype), codes.nbytes // rows
        for first in range(0, rows, step):
            values_at, codes_at = values + first * row_floats, codes_address + first * row_codes
            scales_at = scales_address + scales.nbytes * first // rows
            rule = fmt.code, rounding
            call = Quantize(values_at, dtype, row_stride, step, k, *rule, codes_at, scales_at)
            launcher.launch("quantize", call, codes)
    return codes, scales


def dequantize(q: Operand, dtype: int) -> Tensor:
    """Decodes `q` to floats [..., K]."""
    q = _by_rows(q)
    out, address, launcher = empty(q._codes, tuple(q.shape), dtype)
    codes, scales, fmt, layout = _right(q)
    calls, rows = _cut(q)
    parts = ((codes, q._codes), (scales, q._scales), (address, out))
    for codes_at, scales_at, out_at in _steps(calls, *parts):
        call = Dequantize(codes_at, scales_at, fmt, layout, rows, q._k, out_at, dtype)
        launcher.launch("dequantize", call, out)
    return out


def relayout(q: Operand, layout: Layout) -> tuple[Tensor, Tensor]:
    """Moves `q` [..., N, K] to `layout`; returns codes and scales."""
    q = _by_rows(q)
    codes, scales, fmt, source = _right(q)
    storage = storage_of(q.shape, facts().formats[q.format], layout)
    new_codes, codes_to, launcher = empty(q._codes, storage[0])
    new_scales, scales_to = empty_scales(q._codes, storage[1], facts().formats[q.format])
    if new_codes.is_cpu:
        ask_for_large_pages(codes_to, new_codes.nbytes)
    calls, rows = _cut(q, layout)
    parts = ((codes, q._codes), (scales, q._scales), (codes_to, new_codes), (scales_to, new_scales))
    for codes_at, scales_at, *target in _steps(calls, *parts):
        call = Relayout(codes_at, scales_at, source, *target, layout.code, fmt, rows, q._k)
        launcher.launch("relayout", call, new_codes)
    return new_codes, new_scales


def _cut(q: Operand, *others: Layout) -> tuple[int, int]:
    """Returns how many calls of how many rows cover `q`, where one call sees one matrix.

    Every layout keeps rows that share a tile together. So matrices that fill their tiles, in the
    layout of `q` and in `others`, are one matrix of all their rows.
    """
    rows = q.rows
    if not rows or q._codes.ndim < 3:
        return min(rows, 1), rows
    n, fmt = q.shape[-2], facts().formats[q.format]
    if any(n % layout.row_unit(fmt) for layout in (facts().layouts[q.byte_layout], *others)):
        return rows // n, n
    return 1, rows


def _steps(calls: int, *arrays: tuple[int, Tensor]) -> Iterator[tuple[int, ...]]:
    """Yields, for each call, the addresses of its part of each array."""
    if calls == 1:
        yield tuple(address for address, _ in arrays)
        return
    for i in range(calls):
        yield tuple(address + i * (array.nbytes // calls) for address, array in arrays)


def matmul(a: Operand, b: Operand, bias: Array | None, dtype: int) -> Tensor:
    """Multiplies codes by codes; returns floats [..., N]."""
    if not (a._codes.is_contiguous() and b._codes.is_contiguous()):
        if _has_kernel_for_columns(a, b):
            return _multiply_columns(a, b, bias, dtype)
        a = _by_rows(a)
    a = _with_scales_a_row(a)
    codes, scales, fmt, _ = _right(a)
    left = Left(ENCODED, codes, scales, 0, 0, fmt, 0)
    return _multiply(a._codes, left, b, bias, dtype)[0]


def linear(
    x: Array, w: Operand, bias: Array | None, mode: Mode, dtype: int | None
) -> tuple[Array, tuple[int, ...] | None]:
    """Multiplies floats, kept or quantized by `mode`, by codes.

    The result's dtype is x's for None. Kept floats become bfloat16, here or in the kernel.

    Returns:
        Floats [..., N], and the call that was launched, if one was.
    """
    kind, fmt, rounding = mode
    k = w._k
    x, values, x_dtype, row_stride = rows_of(x, k)
    if dtype is None:
        dtype = x_dtype
    is_other = kind == KEPT and x_dtype != _facts._facts.dtypes["bfloat16"]
    if is_other and isinstance(x, Tensor) and launcher_of(x).wants_bfloat16(x.numel() // k):
        x, values, x_dtype, row_stride = rows_of(x.to(_BFLOAT16), k)
    left = Left(kind, values, 0, x_dtype, row_stride, fmt, rounding)
    return _multiply(x, left, w, bias, dtype)


def grouped_linear(  # noqa: PLR0917  as the operator has them
    x: Tensor, w: Operand, sizes: Tensor, bias: Tensor | None, mode: Mode, dtype: int | None
) -> Tensor:
    """Multiplies rows that are sorted by expert; returns floats [T, N].

    Raises:
        ValueError: if the sizes do not fit, on the CPU; nothing is written then.
    """
    (_, n, k), rows = w.shape, x.shape[0]
    kept, left = _floats(x, k, mode)
    if dtype is None:
        dtype = left.dtype
    out, address, launcher = empty(x, (rows, n), dtype)
    sizes, sizes_at = memory_of(sizes)
    also_kept, right = _experts(w, bias)
    call = left + right + Groups(sizes_at, address, dtype, rows, n, k)
    if launcher.launch("multiply_grouped", call, out) is False:
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
    gate: Gate,
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
        gate: the activation, as a call has it.
        mode: what x and the hidden numbers become.
        dtype: the result's; None for x's.

    Raises:
        ValueError: if an id names no expert, on the CPU; nothing is written then.
    """
    (tokens, slots), (num_experts, width, inner) = ids.shape, weights[1].shape
    kept, left = _floats(x, width, mode)
    if dtype is None:
        dtype = left.dtype
    out, address, launcher = empty(x, (tokens, width), dtype)
    (ids, ids_at), (counts, counts_at) = memory_of(ids), memory_of(counts)
    (kept_up, gate_up), (kept_down, down) = map(_experts, weights, biases)
    counts_dtype = facts().dtype_codes[counts.dtype]
    routing = Routing(ids_at, ids.element_size(), counts_at, counts_dtype, tokens, slots)
    call = left + gate_up + down + routing + gate + Tokens(address, dtype, width, inner)
    if launcher.launch("multiply_experts", call, out) is False:
        raise ValueError(
            f"expert_ids: got {int(ids.max())}, expected at most {num_experts - 1}, the last of "
            f"{num_experts} experts; a negative id stands for none"
        )
    del kept, kept_up, kept_down
    return out


def _floats(x: Tensor, k: int, mode: Mode) -> tuple[Tensor, Left]:
    """Writes a left side of floats; returns who owns its memory, too."""
    kind, fmt, rounding = mode
    x, values, dtype, row_stride = rows_of(x, k)
    return x, Left(kind, values, 0, dtype, row_stride, fmt, rounding)


def _experts(w: Operand, bias: Tensor | None) -> tuple[Tensor | None, Experts]:
    """Writes the right sides of all experts; returns who owns the memory of the bias, too."""
    addend, bias_dtype = 0, NO_CODE
    if bias is not None:
        bias, addend = memory_of(bias)
        bias_dtype = facts().dtype_codes[bias.dtype]
    steps = (w._codes.stride(0), w._scales.stride(0) * w._scales.element_size())
    return bias, Experts(*_right(w), w.shape[0], *steps, addend, bias_dtype)


def question(
    sizes: tuple[int, int, int], left: Mode, right: Format, layout: Layout
) -> tuple[int, ...]:
    """Writes a product that nobody computes: without memory, bfloat16 throughout, no bias."""
    bfloat16, k = facts().dtypes["bfloat16"], sizes[-1]
    floats = Left(left.kind, 0, 0, bfloat16, k, left.format, left.rounding)
    weights, result = Right(0, 0, right.code, layout.code), Result(0, bfloat16, 0, NO_CODE)
    return floats + weights + result + sizes


def _multiply(
    like: Array, left: tuple, w: Operand, bias: Array | None, dtype: int
) -> tuple[Array, tuple[int, ...] | None]:
    """Writes and launches a product of a left side, which has the rows of `like`.

    Returns:
        The product, and the call, if there was something to multiply.
    """
    call = None
    if not w._codes.is_contiguous():
        w = _by_rows(w)
    n, shape = w._checked[-1] if w._checked else w.rows, like.shape
    if len(shape) == 2:
        m = shape[0]
        out, address, launcher = empty(like, (m, n), dtype)
    else:
        m = prod(shape[:-1])
        out, address, launcher = empty(like, (*shape[:-1], n), dtype)
    if m and n:
        addend, bias_dtype = 0, NO_CODE
        if bias is not None:
            # Of one row, which keeps it contiguous.
            _owner, addend, bias_dtype, _ = rows_of(bias, n)
        k = w._k
        result = Result(address, dtype, addend, bias_dtype)
        call = left + _right(w) + result + Sizes(m, n, k)
        launcher.multiply(call, out, m, k)
    return out, call


def _by_rows(q: Operand) -> Operand:
    """Returns an operand whose codes lie row by row: itself, or a copy."""
    if q._codes.is_contiguous():
        return q
    return q._with(q._codes.contiguous(), q._scales)


def _with_scales_a_row(a: Operand) -> Operand:
    """Returns activations whose rows have scales of their own: the same numbers, in rows' blocks.

    So leading axes fold, whatever number of rows a matrix has: a block of several rows ends with
    its matrix.
    """
    fmt = facts().formats[a.format]
    if fmt.block_rows == 1:
        return a
    scales = a._scales.repeat_interleave(fmt.block_rows, -2).narrow(-2, 0, a.shape[-2])
    return a._with(a._codes, scales.contiguous(), format=of_kind(fmt, 1))


def _has_kernel_for_columns(a: Operand, b: Operand) -> bool:
    """Says whether the device multiplies codes that lie column by column on both sides."""
    if not (lies_by_columns(a._codes) and lies_by_columns(b._codes)):
        return False
    launcher, formats = launcher_of(b._codes), (a._native[0], b._native[0])
    return launcher.takes_columns(b._codes, formats, (a.shape[0], b.shape[0]))


def _multiply_columns(a: Operand, b: Operand, bias: Array | None, dtype: int) -> Tensor:
    """Writes and launches a product of such codes, as `_multiply` one of others."""
    (m, k), n = a.shape, b.shape[0]
    out, address, launcher = empty(a._codes, (m, n), dtype)
    addend, bias_dtype = 0, NO_CODE
    if bias is not None:
        _owner, addend, bias_dtype, _ = rows_of(bias, n)
    codes, scales, fmt, _ = _right(a)
    left = Left(ENCODED, codes, scales, 0, 0, fmt, 0)
    call = left + _right(b) + Result(address, dtype, addend, bias_dtype) + Sizes(m, n, k)
    launcher.multiply_columns(call, out)
    return out


def _right(q: Operand) -> Right:
    """Writes a right side."""
    codes, scales = q._codes, q._scales
    at, scales_at = codes.data_ptr(), scales.data_ptr()
    return Right(at or address_of(codes), scales_at or address_of(scales), *q._native)
