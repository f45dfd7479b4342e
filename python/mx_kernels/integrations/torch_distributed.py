"""What torch's own wrappers over ranks ask of an MXTensor and an MXLinear.

Buckets: DistributedDataParallel sends what a module holds, frozen weights included: it flattens
tensors of one dtype, joins them, broadcasts the bucket, cuts it, gives each part its shape again
and copies it back. Bytes of several formats and layouts are no row of one tensor, so a bucket has

    data      codes of the first, its scales, those of the second, the bytes of floats ...
    parts     tensors that say what these bytes are

and can be joined, sent and cut, nothing else. It is a copy, as torch's own buckets are.

Shards: torch's tensor parallel styles make DTensors of an MXLinear's parameters.

    ColwiseParallel    weight Shard(0), bias Shard(0), x Replicate    ->    columns, Shard(-1)
    RowwiseParallel    weight Shard(1), bias Replicate, x Shard(-1)   ->    parts of a sum, Partial

Torch cuts a weight as it cuts any tensor, in equal parts; those that cut a block are refused. The
styles of `integrations.distributed` cut at blocks, and layers of experts.
"""

# ruff: noqa: PLR0917  torch calls handlers with the schema's positional arguments

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mx_kernels import ops
from mx_kernels._core.arrays import OwnTensor
from mx_kernels._core.tensor_ops import handles, view
from mx_kernels.tensor import (
    HANDLERS,
    Args,
    Kwargs,
    MXTensor,
    Operator,
    asker,
    dispatch,
    refusal,
)

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_aten, _c10d = torch.ops.aten, torch.ops.c10d
SENDERS = ("torch.distributed.utils", "torch.nn.parallel.distributed")
"""The modules to which a flat MXTensor is a bucket."""


class Bucket(OwnTensor):
    """Tensors of one dtype, as one row of their numbers."""

    if not TYPE_CHECKING:  # Torch declares a method.
        __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: Tensor, parts: list[Tensor]) -> Bucket:
        """Makes the tensor that stands for the bytes of `parts`."""
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
    def __torch_dispatch__(
        cls, func: Operator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        return dispatch(_OF_BUCKETS, func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
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


def linear(x: DTensor, w: DTensor, bias: DTensor | None, **rules: str) -> DTensor:
    """Returns `mx_kernels.linear` of what each rank has of x and of the weights.

    Raises:
        TypeError: if x is no DTensor.
        ValueError: if parts of x and of the weights do not belong together.
    """
    # Who is alone on a machine may have a torch without it, and it takes a while to import.
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: PLC0415

    if not isinstance(x, DTensor) or w.device_mesh.ndim != 1:
        raise TypeError(
            f"x: got {type(x).__name__} for weights over {tuple(w.device_mesh.shape)} ranks, "
            "expected a DTensor on a mesh of one dimension, as ColwiseParallel and "
            "RowwiseParallel give it; see mx_kernels.integrations.distributed.Colwise and Rowwise"
        )
    (placement,), mesh, last = w.placements, w.device_mesh, x.ndim - 1
    expected = {Shard(0): Replicate(), Shard(1): Shard(last)}.get(placement)
    if x.placements != (expected,):
        raise ValueError(
            f"x: got {x.placements} for weights {w.placements}, expected Replicate for Shard(0), "
            f"or Shard({last}) for Shard(1)"
        )
    is_by_rows = placement == Shard(1)
    own = x.to_local(grad_placements=[expected if is_by_rows else Partial()])
    own_bias = bias
    if bias is not None:
        own_bias = bias.to_local(grad_placements=[Partial() if is_by_rows else Shard(0)])
        if is_by_rows and mesh.get_local_rank():
            # Of a sum one rank has the bias; the others have a gradient for it all the same.
            own_bias = own_bias * 0
    y = ops.linear(own, w.to_local(), bias=own_bias, **rules)
    shape = (*x.shape[:-1], w.shape[0])
    stride = torch.empty(shape, device="meta").stride()
    result = [Partial() if is_by_rows else Shard(last)]
    return DTensor.from_local(y, mesh, result, run_check=False, shape=shape, stride=stride)


def _scatter(func, outputs, inputs, *rest):
    """Sends each rank its part of a tensor that one has: codes, then scales."""
    for part in ("_codes", "_scales"):
        lists = [[getattr(q, part) for q in tensors] for tensors in inputs]
        _, work = func([getattr(q, part) for q in outputs], lists, *rest)
        work.wait()
    return outputs, work


if torch.distributed.is_available():
    HANDLERS[torch.ops.c10d.scatter_.default] = _scatter
