"""Buckets of torch.distributed: MXTensors and floats end to end, on their way to other ranks.

DistributedDataParallel sends what a module holds, frozen weights included: it flattens tensors of
one dtype, joins them, broadcasts the bucket, cuts it, gives each part its shape again and copies
it back. Bytes of several formats and layouts are no row of one tensor, so a bucket has

    data      codes of the first, its scales, those of the second, the bytes of floats ...
    parts     tensors that say what these bytes are

and can be joined, sent and cut, nothing else. It is a copy, as torch's own buckets are.
"""

# ruff: noqa: PLR0917  torch calls handlers with the schema's positional arguments

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from mx_kernels._core.tensor_ops import handles, view
from mx_kernels.tensor import MXTensor, asker, dispatch, refusal

_aten, _c10d = torch.ops.aten, torch.ops.c10d
SENDERS = ("torch.distributed.utils", "torch.nn.parallel.distributed")
"""The modules to which a flat MXTensor is a bucket."""


class Bucket(Tensor):
    """Tensors of one dtype, as one row of their numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: Tensor, parts: list[Tensor]):
        size, dtype = sum(part.numel() for part in parts), parts[0].dtype
        self = Tensor._make_wrapper_subclass(cls, (size,), dtype=dtype, device=data.device)
        self.data_of_parts, self.parts = data, parts
        return self

    @classmethod
    def of(cls, tensors: list[Tensor]) -> Bucket:
        """Copies rows of numbers, buckets among them, into one."""
        parts = [part for t in tensors for part in (t.parts if isinstance(t, Bucket) else [t])]
        return cls(torch.cat([data for t in tensors for data in _bytes_of(t)]), parts)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(_OF_BUCKETS, func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"Bucket({self.parts!r})"


def _bytes_of(t: Tensor) -> list[Tensor]:
    """Views what a tensor holds as rows of bytes."""
    if isinstance(t, Bucket):
        return [t.data_of_parts]
    held = (t._codes, t._scales) if isinstance(t, MXTensor) else (t,)
    return [part.detach().reshape(-1).view(torch.uint8) for part in held]


@handles(_aten.view.default, _aten._unsafe_view.default)
def _flatten(func, q, size):
    """Makes a bucket for those who send them, and for all others a view."""
    if len(size) == 1 and asker() in SENDERS:
        return Bucket.of([q])
    return view(func, q, size)


def _join(func, tensors, dim=0):
    if any(t.ndim != 1 or t.dtype != tensors[0].dtype for t in tensors):
        raise refusal(func)
    return Bucket.of(tensors)


def _cut(func, bucket, dim=0, start=None, end=None, step=1):
    """Takes whole parts."""
    start, end = start or 0, min(bucket.numel() if end is None else end, bucket.numel())
    at, first, taken, data = 0, 0, [], []
    for part in bucket.parts:
        last = first + sum(held.numel() for held in _bytes_of(part))
        if start <= at and at + part.numel() <= end:
            taken.append(part)
            data.append(bucket.data_of_parts[first:last])
        at, first = at + part.numel(), last
    if not taken or step != 1 or sum(part.numel() for part in taken) != end - start:
        raise refusal(func)
    return Bucket(torch.cat(data), taken)


def _reshape(func, bucket, size):
    """Gives the one part of a bucket its kind and shape."""
    part, data = bucket.parts[0], bucket.data_of_parts
    if len(bucket.parts) > 1 or prod(size) != part.numel():
        raise refusal(func)
    if not isinstance(part, MXTensor):
        return data.view(part.dtype).view(size)
    codes, scales = data.tensor_split([part._codes.numel()])
    # Of its own memory, because floats begin where their size divides the address.
    scales = scales.clone().view(part._scales.dtype)
    return part._with(codes.view(part._codes.shape), scales.view(part._scales.shape)).view(size)


def _send(func, tensors, *args, **kwargs):
    (bucket,) = tensors
    _, work = func([bucket.data_of_parts], *args, **kwargs)
    return tensors, work


_OF_BUCKETS = {
    _aten.cat.default: _join,
    _aten.slice.Tensor: _cut,
    _aten.view.default: _reshape,
    _c10d.broadcast_.default: _send,
}
