"""What an MXTensor holds: bytes, whatever element type they come as, that fit together.

    codes     u8, densely packed; plain: [..., packed K]
    scales    u8 or f32, one a block; plain: [..., blocks below each other, blocks of K]
              u8, those of a row and four bytes of its float32, of formats with tensor scales

What an operand of a format and a layout occupies, the tables say; that two arrays are such an
operand, the checks here. Each raises with what was found and what is expected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mx_kernels._core.arrays import Array, dtype_name, in_memory, kind_of, show, tensor_over
from mx_kernels._core.facts import Format, Layout, facts

BYTE = "uint8"
DTYPES = {
    "e2m1": "float4_e2m1fn_x2",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "int8": "int8",
    "e8m0": "float8_e8m0fnu",
}
"""What torch and ml_dtypes call bytes of elements and scales."""
UNPACKED = {
    "float4_e2m1fn": "pack two",
    "float6_e2m3fn": "pack four in three",
    "float6_e3m2fn": "pack four in three",
}
"""What ml_dtypes calls codes of fewer than eight bits, one a byte."""


def lies_by_columns(codes: Tensor) -> bool:
    """Says whether a matrix [rows, K] of bytes lies column by column, [K, rows] in memory."""
    return codes.ndim == 2 and not codes.is_contiguous() and codes.t().is_contiguous()


def as_bytes(array: Array, name: str, element: str, *, or_columns: bool = False) -> Tensor:
    """Views `array` as a uint8 tensor; a NumPy array that is read-only is copied.

    Args:
        array: bytes, or what libraries call bytes of `element`.
        name: what messages call it.
        element: of the format tables: an element's name or a scale's.
        or_columns: whether a matrix may lie column by column.

    Raises:
        TypeError: for another dtype.
        ValueError: for a single number, and for memory with gaps.
    """
    kind, got = kind_of(array, name), dtype_name(array)
    known = list(dict.fromkeys((BYTE, DTYPES.get(element, BYTE))))
    if got not in known:
        how = UNPACKED.get(got)
        hint = f"; these are unpacked, one code a byte: {how}" if how else ""
        raise TypeError(f"{name}: got dtype {got}, expected {' or '.join(known)}{hint}")
    if len(array.shape) == 0:
        raise ValueError(f"{name}: got a single number, expected shape [..., K]")
    array = in_memory(array)
    contiguous = array.is_contiguous() if kind == "torch" else array.flags.c_contiguous
    if or_columns and not contiguous and len(array.shape) == 2:
        contiguous = lies_by_columns(array) if kind == "torch" else array.flags.f_contiguous
    if not contiguous:
        call = f"{name}.contiguous()" if kind == "torch" else f"np.ascontiguousarray({name})"
        known = "a contiguous one, or a matrix's transpose" if or_columns else "a contiguous one"
        raise ValueError(f"{name}: got a non-contiguous array, expected {known}: {call}")
    if kind == "numpy":
        return tensor_over(array.view(np.uint8))
    return array if got == BYTE else array.view(torch.uint8)


def as_scales(array: Array, fmt: Format) -> Tensor:
    """Views `array` as the scales of a format: bytes, or float32 where they are floats.

    Raises:
        TypeError, ValueError: as `as_bytes` does.
    """
    if not fmt.has_float_scales:
        return as_bytes(array, "scales", fmt.scale)
    is_torch = kind_of(array, "scales") == "torch"
    if dtype_name(array) != fmt.scale or not (is_torch or array.dtype.isnative):
        got = dtype_name(array) if is_torch or array.dtype.isnative else array.dtype.str
        call = "scales.float()" if is_torch else "scales.astype(np.float32)"
        raise TypeError(f"scales: got dtype {got}, expected {fmt.scale} for {fmt.name}: {call}")
    if is_torch and array.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "scales: got a tensor that wants a gradient, expected one without, as scales have none "
            "in any product: scales.detach()"
        )
    array = in_memory(array)
    if not (array.is_contiguous() if is_torch else array.flags.c_contiguous):
        call = "scales.contiguous()" if is_torch else "np.ascontiguousarray(scales)"
        raise ValueError(f"scales: got a non-contiguous array, expected a contiguous one: {call}")
    return array if is_torch else tensor_over(array)


def with_tensor_scale(scales: Array, tensor_scale, fmt: Format) -> Tensor:
    """Joins E4M3 scales [..., blocks] and tensor scales, one or [...], to what a tensor holds.

    Raises:
        TypeError, ValueError: as `as_bytes` does, and where the tensor scales do not fit.
    """
    _check_has_tensor_scales(fmt)
    scales = as_bytes(scales, "scales", fmt.scale)
    given = tensor_scales_for("scales", scales, tensor_scale, fmt)
    return torch.cat([scales, given.unsqueeze(-1).view(torch.uint8)], -1)


def split_scales(scales: Tensor, fmt: Format, rows: int = 1) -> tuple[Tensor, Tensor]:
    """Views plain scales of a format as E4M3 [..., blocks] and the bytes of tensor scales [..., 4].

    Of formats without tensor scales there are none of these. Tiles of so many rows are long rows.
    """
    behind = rows * fmt.scale_row_bytes
    return scales.split((scales.shape[-1] - behind, behind), -1)


def tensor_scales_for(name: str, rows: Array, given, fmt: Format) -> Tensor:
    """Returns a float32 tensor scale for each of some rows [..., columns], on their device.

    Raises:
        ValueError: for formats without tensor scales, and unless one is given, or [...] are.
    """
    _check_has_tensor_scales(fmt)
    device = rows.device if isinstance(rows, Tensor) else "cpu"
    scales = torch.as_tensor(given, dtype=torch.float32, device=device)
    try:
        return scales.expand(rows.shape[:-1]).contiguous()
    except RuntimeError as error:
        raise ValueError(
            f"tensor_scale: got shape {show(scales.shape)}, expected one number, or "
            f"{show(rows.shape[:-1])}, one for each row of {name} {show(rows.shape)}"
        ) from error


def _check_has_tensor_scales(fmt: Format) -> None:
    """Raises unless a format has tensor scales."""
    if not fmt.has_tensor_scales:
        raise ValueError(f"tensor_scale: got one with {fmt.name}, whose scales need none")


def check_pair(codes: Tensor, scales: Tensor) -> None:
    """Raises unless both are on one device."""
    if codes.device != scales.device:
        raise ValueError(
            f"codes and scales: got {codes.device} and {scales.device}, "
            "expected one device; move both with .to(device)"
        )


def check_shapes(
    codes: Tensor, scales: Tensor, shape, fmt: Format, layout: Layout
) -> tuple[int, ...]:
    """Raises unless codes and scales can be a tensor of `shape`; returns that shape."""
    if shape is not None and not isinstance(shape, Sequence):
        raise TypeError(f"shape: got {type(shape).__name__}, expected a tuple of integers")
    for size in shape or ():
        if isinstance(size, bool | np.bool_) or not isinstance(
            size, int | torch.SymInt | np.integer
        ):
            raise TypeError(f"shape: got {size!r} in {show(shape)}, expected integers")
    k = fmt.elements(codes.shape[-1])
    unit = layout.k_multiple(fmt)
    if k == 0 or k % unit:
        where = "" if unit == fmt.k_multiple else f" in layout {layout.name}"
        raise ValueError(
            f"codes: got {show(codes.shape)}, so K = {k}, expected K to be a positive multiple "
            f"of {unit}, which is {fmt.packed_bytes(unit)} bytes of {fmt.name}{where}"
        )
    held = (*codes.shape[:-1], k)
    check_axes("codes", held, fmt)
    logical = held if shape is None else tuple(shape)
    if layout.name == facts().plain.name:
        fits, stored = logical == held, (codes.shape, fmt.scales_of(held))
    else:
        if len(held) < 2:
            raise ValueError(
                f"codes: got {show(codes.shape)}, but layout {layout.name} holds matrices: "
                "[..., rows, bytes]"
            )
        fits = len(logical) == len(held) and _is_count(logical[-2])
        fits = fits and (*logical[:-2], logical[-1]) == (*held[:-2], k)
        stored = storage_of(logical, fmt, layout) if fits else None
    if not fits:
        raise ValueError(
            f"shape: got {show(logical)}, but codes {show(codes.shape)} of {fmt.name} in layout "
            f"{layout.name} hold {show(held)}"
        )
    for name, array, expected in (("codes", codes, stored[0]), ("scales", scales, stored[1])):
        if tuple(array.shape) != tuple(expected):
            hint = ""
            if len(codes.shape) > 2 and tuple(scales.shape) == tuple(codes.shape[:-1]):
                hint = "; blocks with an axis of their own: codes.reshape(*codes.shape[:-2], -1)"
            raise ValueError(
                f"{name}: got {show(array.shape)}, expected {show(expected)} for "
                f"{show(logical)} of {fmt.name} in layout {layout.name}{hint}"
            )
    return logical


def storage_of(shape, fmt: Format, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shapes of codes and scales that hold a tensor of `shape`.

    Every leading axis is a batch of matrices, each padded for itself.
    """
    *lead, k = shape
    if layout.name == facts().plain.name:
        return (*lead, fmt.packed_bytes(k)), fmt.scales_of(shape)
    codes, scales = layout.storage(lead.pop(), k, fmt)
    return (*lead, *codes), (*lead, *scales)


def check_axes(name: str, shape, fmt: Format) -> None:
    """Raises unless there are rows for blocks of several."""
    if fmt.block_rows > 1 and len(shape) < 2:
        raise ValueError(
            f"{name}: got shape {show(shape)}, expected matrices [..., N, K] for {fmt.name}, whose "
            f"blocks have {fmt.block_rows} rows"
        )


def _is_count(rows) -> bool:
    """Says whether `rows` can be a number of rows; it is symbolic while torch compiles."""
    return isinstance(rows, int | torch.SymInt) and rows >= 0
