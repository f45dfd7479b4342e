"""Torch's own tensor parallel styles: an MXLinear whose parameters are DTensors.

    ColwiseParallel    weight Shard(0), bias Shard(0), x Replicate    ->    columns, Shard(-1)
    RowwiseParallel    weight Shard(1), bias Replicate, x Shard(-1)   ->    parts of a sum, Partial

Torch cuts a weight as it cuts any tensor, in equal parts; those that cut a block are refused. The
styles of `mx_kernels.distributed` cut at blocks, and layers of experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mx_kernels import ops
from mx_kernels.tensor import HANDLERS

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def linear(x: DTensor, w: DTensor, bias: DTensor | None, **rules) -> DTensor:
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
            "RowwiseParallel give it; see mx_kernels.distributed.Colwise and Rowwise"
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
