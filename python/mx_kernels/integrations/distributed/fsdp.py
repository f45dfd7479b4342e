"""FSDP2: `fully_shard` keeps a part of the rows of each MXTensor, and gathers its bytes for use.

    rank's rows  ->  codes, scales  ->  all-gather  ->  codes, scales of all rows  ->  MXTensor

4.25 bits a weight travel where bfloat16 has 16. The ranks have as many rows each, and weights are
plain: `fully_shard` cuts rows anywhere, and a preshuffled tile has several.
"""

# ruff: noqa: PLR0917  torch calls these with positional arguments

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from mx_kernels.hints import FormatName
from mx_kernels.tensor import MXTensor

_Meaning = tuple[torch.Size, FormatName, torch.dtype]


def pre_all_gather(
    self: MXTensor,
    mesh: DeviceMesh,
    outer_size: torch.Size,
    outer_stride: tuple[int, ...],
    module: nn.Module,
    mp_policy: MixedPrecisionPolicy,
) -> tuple[tuple[Tensor, Tensor], _Meaning]:
    """Returns the bytes that a rank sends, and what they mean."""
    if outer_size[0] % mesh.size():
        raise ValueError(
            f"fully_shard: got {outer_size[0]} rows for {mesh.size()} ranks, expected as many for "
            "each; see Colwise and Rowwise, which cut at blocks"
        )
    return (self.codes, self.scales), (outer_size, self.format, self.dtype)


def post_all_gather(
    self: MXTensor,
    outputs: tuple[Tensor, Tensor],
    metadata: _Meaning,
    param_dtype: torch.dtype,
    *,
    out: Tensor | None = None,
) -> tuple[MXTensor, tuple[Tensor, Tensor]] | None:
    """Returns the whole tensor, whose memory is that of the bytes that came."""
    if out is not None:
        return None
    size, format, dtype = metadata
    return MXTensor(*outputs, shape=tuple(size), format=format, dtype=dtype), outputs


MXTensor.fsdp_pre_all_gather = pre_all_gather
MXTensor.fsdp_post_all_gather = post_all_gather
