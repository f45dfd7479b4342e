"""An MXTensor inside floats of its own shape and dtype, for files of libraries that know no other.

accelerate writes offloaded weights to disk as NumPy arrays, asks that what it reads has the shape
and dtype that the module's parameter had, and then calls `type(parameter)(floats,
requires_grad=...)`. Numbers of up to eight bits and their scales always fit into 16:

    byte  0    b"MXTensor"
          8    CRC-32 of the names of the next three, shape and dtype
          12   format, layout, and the layout of the bytes below, as places in the tables
          16   codes, scales, zeros up to the end

The bytes below are plain where padding makes those of the own layout too many. As floats they mean
nothing, so `numpy` and `view` give them to `WRITER` alone.
"""

from __future__ import annotations

import struct
import zlib
from math import prod

import torch
from torch import Tensor

from mx_kernels._core.arrays import show
from mx_kernels._core.facts import facts
from mx_kernels._core.storage import storage_of

WRITER = "accelerate.utils.offload"
"""The module that gets such floats."""
_MAGIC = b"MXTensor"
_HEAD = struct.Struct("<8sIBBBx")


def in_floats(q: Tensor) -> Tensor:
    """Returns floats of the shape and dtype of an MXTensor, in main memory, that hold its bytes.

    Raises:
        ValueError: for a tensor without numbers.
    """
    if not q.numel():
        raise ValueError(f"offload: got shape {show(q.shape)}, expected numbers to write")
    room = q.numel() * q.dtype.itemsize - _HEAD.size
    stored = q if q.nbytes <= room else q._relayout(facts().plain)
    names = q._format, q._layout, stored._layout
    codes = (facts().formats[names[0]].code, *(facts().layouts[name].code for name in names[1:]))
    head = _HEAD.pack(_MAGIC, _check_of(names, q), *codes)
    floats = torch.zeros(q.shape, dtype=q.dtype, device="cpu")
    data, at = floats.view(-1).view(torch.uint8), 0
    parts = torch.frombuffer(bytearray(head), dtype=torch.uint8), stored._codes, stored._scales
    for part in parts:
        end = at + part.nbytes
        data[at:end] = part.detach().reshape(-1).view(torch.uint8)
        at = end
    return floats


def from_floats(floats: Tensor) -> tuple[Tensor, Tensor, dict[str, object], str]:
    """Returns codes, scales, what they mean, and the name of the layout to bring them to.

    Raises:
        TypeError: if the floats are no such ones.
    """
    data = floats.detach().reshape(-1).view(torch.uint8)
    names = _names_in(bytes(data[: _HEAD.size].tolist()), floats)
    if names is None:
        raise TypeError(
            f"codes: got {floats.dtype} {show(floats.shape)} without scales, expected bytes and "
            "their scales, or an MXTensor; quantize(floats) makes one"
        )
    format, wanted, layout = names
    fmt, shape = facts().formats[format], tuple(floats.shape)
    shapes = storage_of(shape, fmt, facts().layouts[layout])
    ends = _HEAD.size + prod(shapes[0]), prod(shapes[1]) * fmt.scale_dtype.itemsize
    # In memory of their own, because that of the floats is larger.
    codes = data[_HEAD.size : ends[0]].clone().view(shapes[0])
    scales = data[ends[0] : sum(ends)].clone().view(fmt.scale_dtype).view(shapes[1])
    meaning = {"shape": shape, "format": format, "layout": layout, "dtype": floats.dtype}
    return codes, scales, meaning, wanted


def _check_of(names: tuple[str, ...], floats: Tensor) -> int:
    """Returns a sum of what has to be the same when the floats are read."""
    return zlib.crc32(repr((names, tuple(floats.shape), floats.dtype)).encode())


def _names_in(head: bytes, floats: Tensor) -> tuple[str, ...] | None:
    """Returns the names of format and layouts in a head, None if it is none."""
    if len(head) < _HEAD.size:
        return None
    magic, check, *codes = _HEAD.unpack(head)
    tables = facts().formats, facts().layouts, facts().layouts
    names = tuple(
        row.name
        for code, table in zip(codes, tables, strict=True)
        for row in table.values()
        if row.code == code
    )
    is_ours = magic == _MAGIC and len(names) == len(codes) and check == _check_of(names, floats)
    return names if is_ours else None
