"""What ranks send each other, with gradients where they are asked for.

    sum_of       every rank's part of a sum -> the sum, on all or cut along tokens
    joined       every rank's columns, which may be of several widths -> all of them
    copied       the same tensor on all ranks, whose gradient is the sum of theirs

Without gradients a sum is one all-reduce in place; with them the collectives of DTensor are used.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.nn.functional import all_gather
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate


def check_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Returns a mesh of one dimension.

    Raises:
        ValueError: if it has several.
    """
    if mesh.ndim != 1:
        raise ValueError(
            f"device_mesh: got {mesh.ndim} dimensions {mesh.mesh_dim_names}, expected one; take "
            'the one of this style: mesh["tp"]'
        )
    return mesh


def sum_of(part: Tensor, mesh: DeviceMesh, layout: Placement) -> DTensor | Tensor:
    """Returns the sum of all ranks' parts: a tensor if every rank gets all of it, else a DTensor.

    Without a gradient the sum replaces `part`.
    """
    if layout.is_replicate() and not part.requires_grad:
        dist.all_reduce(part, group=mesh.get_group())
        return part
    partial = DTensor.from_local(part, mesh, [Partial()], run_check=False)
    return partial.redistribute(placements=[layout])


def copied(x: Tensor | DTensor, mesh: DeviceMesh, layout: Placement) -> Tensor:
    """Returns the whole of x, which each rank has as `layout` says."""
    if not isinstance(x, DTensor):
        if layout.is_replicate() and not x.requires_grad:
            return x
        x = DTensor.from_local(x, mesh, [layout], run_check=False)
    return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def joined(part: Tensor, widths: list[int], mesh: DeviceMesh) -> Tensor:
    """Returns the columns of all ranks, of which this one has `part`."""
    padded = torch.nn.functional.pad(part, (0, max(widths) - part.shape[-1]))
    parts = all_gather(padded.contiguous(), mesh.get_group())
    return torch.cat([p[..., :width] for p, width in zip(parts, widths, strict=True)], -1)
