"""What ranks send each other, with gradients where they are asked for.

    sum_of       every rank's part of a sum -> the sum, on all or cut along tokens
    joined       every rank's columns, which may be of several widths -> all of them
    copied       the same tensor on all ranks, whose gradient is the sum of theirs

Without gradients a sum is one all-reduce; with them the collectives of DTensor are used. GPUs of
one host that reach each other's memory add up few bytes in one kernel, see `Peers`.
"""

from __future__ import annotations

import socket
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.nn.functional import all_gather
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from mx_kernels._core.builds import LOG

DIRECT_BYTES = 1 << 20
"""That a rank reads of others for a sum by one kernel of torch's, which takes some of a GPU."""
PAIR, PAIR_BYTES = 2, 1 << 26
"""Ranks that read larger parts of each other too, and the largest; more ranks take NCCL."""
DIRECT_RANKS = 2, 4, 8
"""For which torch adds in the same order on all ranks."""
DIRECT_DTYPES = torch.bfloat16, torch.float32


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


def sum_of(
    part: Tensor, mesh: DeviceMesh, layout: Placement, peers: Peers | None = None
) -> DTensor | Tensor:
    """Returns the sum of all ranks' parts: a tensor if every rank gets all of it, else a DTensor.

    Without a gradient the sum may replace `part`. `peers` are those of the mesh.
    """
    if layout.is_replicate() and not part.requires_grad:
        if peers and not torch.compiler.is_compiling() and peers.takes(part):
            return peers.sum_of(part)
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


class Peers:
    """GPUs of one host that read what the others wrote, through torch's symmetric memory.

    A group has one buffer for each purpose: calls on several streams wait for each other, and so
    must CUDA graphs that are replayed. Making a buffer is a call of all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, *, sum_bytes: int = DIRECT_BYTES):
        """Makes the buffer of sums."""
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._group = group.group_name
        self._buffers: list[tuple[Tensor, Any]] = []
        """All that were made, with their handles: a CUDA graph may know each of them."""
        self._views: dict[tuple, Tensor] = {}
        self._half_bytes = 0
        self._stream: torch.cuda.Stream | None = None
        self._of_sums = self._made(sum_bytes)[0]

    def takes(self, part: Tensor) -> bool:
        """Says whether parts of a sum are added up so; every rank has as many numbers."""
        size = part.nbytes
        is_known = part.dtype in DIRECT_DTYPES and part.device == self._of_sums.device
        is_known = is_known and size % 16 == 0 and size > 0
        fits = (self._ranks - 1) * size <= self._of_sums.nbytes
        is_pair = self._ranks == PAIR and size <= PAIR_BYTES
        return is_known and (fits or (is_pair and self.has_room(size)))

    def sum_of(self, part: Tensor) -> Tensor:
        """Returns the sum of all ranks' parts, added in the order of ranks and in their dtype."""
        if part.nbytes > self._of_sums.nbytes:
            return self.sum_of_pair(part)
        self._wait_for_the_last()
        key = part.shape, part.dtype
        if key not in self._views:
            self._views[key] = self._of_sums[: part.nbytes].view(part.dtype).view(part.shape)
        return torch.ops.symm_mem.one_shot_all_reduce_copy(
            self._views[key], part.contiguous(), "sum", self._group
        )

    def sum_of_pair(self, part: Tensor) -> Tensor:
        """Returns the sum of two ranks' parts, by whole GPUs: faster than one kernel for many."""
        first, second = self._shown(part, 0)
        y = first + second
        self._buffers[-1][1].barrier(channel=0)
        return y

    def has_room(self, num_bytes: int) -> bool:
        """Says whether so many bytes can be exchanged, and makes room outside of CUDA graphs."""
        if num_bytes > self._half_bytes and not torch.cuda.is_current_stream_capturing():
            needed = -(-num_bytes // DIRECT_BYTES) * DIRECT_BYTES
            self._half_bytes = max(needed, 2 * self._half_bytes)
            self._made(2 * self._half_bytes)
        return num_bytes <= self._half_bytes

    def gathered(self, mine: Tensor) -> list[Tensor]:
        """Returns each rank's tensor, in its memory until `sums_back`."""
        return self._shown(mine, 0)

    def sums_back(self, parts: Tensor) -> Tensor:
        """Returns the sum of the ranks' parts, `[rank, ..]`, in float32 and in the ranks' order."""
        first, *others = self._shown(parts, self._half_bytes)
        y = first[self._rank].float()
        for other in others:
            y += other[self._rank]
        return y

    def _shown(self, mine: Tensor, place: int) -> list[Tensor]:
        """Writes a tensor to a half of the buffer, and waits until all ranks have written theirs.

        Who waits over one half reads the other one no more.
        """
        self._wait_for_the_last()
        _, handle = self._buffers[-1]
        views = []
        for rank in range(self._ranks):
            key = id(handle), rank, place, mine.shape, mine.dtype
            if key not in self._views:
                self._views[key] = handle.get_buffer(
                    rank, mine.shape, mine.dtype, place // mine.element_size()
                )
            views.append(self._views[key])
        views[self._rank].copy_(mine)
        handle.barrier(channel=0)
        return views

    def _made(self, num_bytes: int) -> tuple[Tensor, Any]:
        from torch.distributed import _symmetric_memory as symmetric  # noqa: PLC0415  CUDA's alone

        device = torch.device("cuda", torch.cuda.current_device())
        buffer = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
        self._buffers.append((buffer, symmetric.rendezvous(buffer, self._group)))
        return self._buffers[-1]

    def _wait_for_the_last(self) -> None:
        """Orders this stream behind the one that used the buffers before."""
        stream, last = torch.cuda.current_stream(), self._stream
        self._stream = stream
        if last is not None and last != stream and _is_captured(last) == _is_captured(stream):
            stream.wait_stream(last)


def _is_captured(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


_PEERS: WeakKeyDictionary[dist.ProcessGroup, Peers | None] = WeakKeyDictionary()


def peers_of(mesh: DeviceMesh) -> Peers | None:
    """Returns the ranks of a mesh as `Peers`, None where they do not see each other's memory.

    All ranks ask together the first time.
    """
    group = mesh.get_group()
    if group not in _PEERS:
        _PEERS[group] = _made_peers(group, mesh.device_type)
    return _PEERS[group]


def _made_peers(group: dist.ProcessGroup, device_type: str) -> Peers | None:
    ranks = dist.get_world_size(group)
    if device_type != "cuda" or torch.version.hip or ranks not in DIRECT_RANKS:
        return None
    here = torch.cuda.current_device()
    places = _told((socket.gethostname(), here), group)
    hosts, devices = zip(*places, strict=True)
    sees = len(set(hosts)) == 1 and len(set(devices)) == ranks
    sees = sees and all(
        torch.cuda.can_device_access_peer(here, other) for other in devices if other != here
    )
    if not all(_told(sees, group)):
        return None
    peers, error = None, None
    try:
        peers = Peers(group)
    except RuntimeError as failed:
        error = f"rank {dist.get_rank(group)}: {failed}"
    if errors := [one for one in _told(error, group) if one]:
        LOG.warning("NCCL sums what GPUs of one host could read from each other: %s", errors[0])
        return None
    return peers


def _told(value: Any, group: dist.ProcessGroup) -> list:
    """Returns every rank's value."""
    found: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group)
    return found
