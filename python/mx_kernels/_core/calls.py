"""Writes the calls that quantize, dequantize and move weights; those of products are `products`.

Each function allocates the result where its operands lie, writes the call, whose fields are in
`protocol`, and launches it. Arguments are checked before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor
from torch.autograd.graph import increment_version

from mx_kernels._core.arrays import (
    PLAIN_TENSORS,
    Array,
    address_of,
    empty,
    empty_scales,
    rows_of,
)
from mx_kernels._core.devices import (
    NEW_PAGES_BYTES,
    ask_for_large_pages,
    launcher_of,
    weight_memory,
)
from mx_kernels._core.facts import Format, Layout, facts
from mx_kernels._core.protocol import Dequantize, Quantize, Relayout, Right, Rotation
from mx_kernels._core.storage import storage_of


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


def quantize(
    x: Array,
    fmt: Format,
    scale_rule: int,
    tensor_scales: Tensor | None = None,
    hadamard: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Quantizes floats [..., K]; returns codes and scales.

    `tensor_scales` are those of all rows, float32 where x lies; None has them from x. So many
    elements as `hadamard` says are rotated together first.
    """
    rules = fmt, scale_rule, tensor_scales
    if hadamard is None:
        return quantize_rows("quantize", x, x.shape, rules)
    block = Rotation(hadamard)
    return quantize_rows("hadamard_quantize", x, x.shape, rules, lambda _first: block)


def quantize_rows(
    operation: str,
    x: Array,
    shape: tuple[int, ...],
    rules: tuple[Format, int, Tensor | None],
    rest: Callable[[int], tuple[int, ...]] = lambda _first: (),
) -> tuple[Tensor, Tensor]:
    """Launches a quantizer, with what makes rows of `shape` of those of x; returns as `quantize`.

    `rest` is what the record has behind the call, for rows from some on.
    """
    *lead, k = shape
    rows, (fmt, scale_rule, tensor_scales) = math.prod(lead), rules
    codes, codes_address = _empty(x, (*lead, fmt.packed_bytes(k)))
    scales, scales_address = empty_scales(x, fmt.scales_of(shape), fmt)
    if rows:
        launcher = launcher_of(codes)
        _owner, values, dtype, row_stride = rows_of(x, x.shape[-1])
        # Blocks of several rows end with their matrix.
        step = lead[-1] if len(lead) > 1 and lead[-1] % fmt.block_rows else rows
        row_floats, row_codes = row_stride * facts().float_bytes(dtype), codes.nbytes // rows
        for first in range(0, rows, step):
            values_at, codes_at = values + first * row_floats, codes_address + first * row_codes
            scales_at = scales_address + scales.nbytes * first // rows
            rule = fmt.code, scale_rule
            given = 0 if tensor_scales is None else address_of(tensor_scales)
            target = codes_at, scales_at, given
            call = Quantize(values_at, dtype, row_stride, step, k, *rule, *target)
            launcher.launch(operation, call + rest(first), codes)
    return codes, scales


def dequantize(q: Operand, dtype: int, out: Array | None = None) -> Array:
    """Decodes `q` to floats [..., K], in `out` if there is one, which is checked.

    Raises:
        ValueError: if that shares memory with q.
    """
    q = by_rows(q)
    codes, scales, fmt, layout = right_of(q)
    if out is None:
        out, address = _empty(q._codes, tuple(q.shape), dtype)
    else:
        address = address_of(out)
        for part, first in ((q._codes, codes), (q._scales, scales)):
            if first < address + out.nbytes and address < first + part.nbytes:
                raise ValueError("out: got memory of q itself, expected other memory")
        if isinstance(out, Tensor):
            increment_version(out)
    calls, rows = _cut(q)
    parts = ((codes, q._codes), (scales, q._scales), (address, out))
    for codes_at, scales_at, out_at in _steps(calls, *parts):
        call = Dequantize(codes_at, scales_at, fmt, layout, rows, q._k, out_at, dtype)
        launcher_of(out).launch("dequantize", call, out)
    return out


def relayout(q: Operand, layout: Layout) -> tuple[Tensor, Tensor]:
    """Moves `q` [..., N, K] to `layout`; returns codes and scales.

    Raises:
        ValueError: if rows do not fill the tiles of the layout.
    """
    if q._k % (unit := layout.k_multiple(facts().formats[q.format])):
        raise ValueError(
            f"q: got K = {q._k}, expected a multiple of {unit} of {q.format} for layout "
            f"{layout.name}; others stay {facts().plain.name}"
        )
    q = by_rows(q)
    codes, scales, fmt, source = right_of(q)
    storage = storage_of(q.shape, facts().formats[q.format], layout)
    make = empty if layout == facts().plain else empty_weight
    new_codes, codes_to = make(q._codes, storage[0])
    new_scales, scales_to = empty_scales(q._codes, storage[1], facts().formats[q.format], make)
    calls, rows = _cut(q, layout)
    parts = ((codes, q._codes), (scales, q._scales), (codes_to, new_codes), (scales_to, new_scales))
    for codes_at, scales_at, *target in _steps(calls, *parts):
        call = Relayout(codes_at, scales_at, source, *target, layout.code, fmt, rows, q._k)
        launcher_of(new_codes).launch("relayout", call, new_codes)
    return new_codes, new_scales


def empty_weight(like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """Allocates bytes as `empty` does, on a CPU in `weight_memory`."""
    if type(like) not in PLAIN_TENSORS or not like.is_cpu:
        return empty(like, shape)
    made = weight_memory(math.prod(shape)).view(shape)
    return made, made.data_ptr()


def _empty(like: Array, shape: tuple[int, ...], dtype: int | None = None) -> tuple[Tensor, int]:
    """Allocates as `empty` does; what is in new pages for each call, on a CPU, in large ones."""
    made, address = empty(like, shape, dtype)
    if made.nbytes >= NEW_PAGES_BYTES and made.is_cpu:
        ask_for_large_pages(address, made.nbytes)
    return made, address


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


def by_rows(q: Operand) -> Operand:
    """Returns an operand whose codes lie row by row: itself, or a copy."""
    if q._codes.is_contiguous():
        return q
    return q._with(q._codes.contiguous(), q._scales)


def right_of(q: Operand) -> Right:
    """Writes a right side."""
    return Right(*addresses_of(q), *q._native)


def addresses_of(q: Operand) -> tuple[int, int]:
    """Returns where codes and scales are."""
    codes, scales = q._codes, q._scales
    return codes.data_ptr() or address_of(codes), scales.data_ptr() or address_of(scales)
