"""Experts over ranks: each rank has some; tokens go to all of them as codes and come back as sums.

    rank 0 of 2                                      rank 1
    its tokens                        codes ->       its experts' weighted sum
    y = its experts' + theirs      <- x's dtype

A token goes to every rank, with all of its ids and weights, as one row of bytes. In MXFP4 that is
4.25 bits a number where bfloat16 has 16:

    codes [packed H] | scales | ids [k] int32 | weights [k] float32

Every rank sends equally many rows: the most that any has, which they tell each other first unless
`tokens` says it. With it no host waits for a device, and a CUDA graph can hold the call. What an
expert multiplies is what it would have made of the token itself: quantizing numbers that were
quantized changes none. Scales that are floats come out of it within a rounding to the tokens'
dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from mx_kernels import ops
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import KEPT_FLOATS, WIDE_INTEGERS, facts
from mx_kernels._core.storage import storage_of
from mx_kernels.experts import MXExperts
from mx_kernels.integrations.distributed.collectives import Peers, check_mesh, peers_of
from mx_kernels.integrations.distributed.cuts import Cut, bounds
from mx_kernels.integrations.distributed.styles import Sharded, shard
from mx_kernels.tensor import MXTensor

NO_EXPERT = -1
FEW_BYTES = 1 << 21
"""Of a rank's floats, which GPUs that see each other's memory read before codes would be made."""


class ExpertParallel(ParallelStyle):
    """Gives each rank some of the experts of an MXExperts; each calls it with tokens of its own.

    All ranks call it together, each with any number of tokens, and get theirs back. Gradients do
    not pass: for training there is `Experts`.

    Args:
        wire: the format in which tokens travel, or "bf16" for the dtype that they have. None is
            what the experts quantize activations to, which costs no accuracy; few tokens travel as
            they are where that is faster.
        tokens: the most that a rank has in a call, the same number on all ranks: so many rows
            travel, and no host waits. None asks all ranks in each call, and waits for the answer.
            It may be set anew between calls, as for graphs of several sizes.

    Raises:
        ValueError: if a wire or a number of tokens is none; from a call, for more tokens.
    """

    def __init__(self, *, wire: str | None = None, tokens: int | None = None):
        super().__init__()
        # What is rounded as it is multiplied has no codes to send.
        if wire is not None and (wire not in facts().activations or wire == WIDE_INTEGERS):
            known = " or ".join(repr(n) for n in facts().activations if n != WIDE_INTEGERS)
            raise ValueError(f"wire: got {wire!r}, expected {known}")
        self.wire = wire
        self.tokens = tokens

    @property
    def tokens(self) -> int | None:
        """The most tokens of a rank in a call, or None."""
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: int | None) -> None:
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise ValueError(f"tokens: got {tokens!r}, expected a number from 1 on, or None")
        self._tokens = tokens

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) is not MXExperts:
            raise TypeError(
                f"ExpertParallel: got {type(module).__name__}, expected an MXExperts, once"
            )
        said = self.wire or module.activations
        wire = Wire(KEPT_FLOATS if said == WIDE_INTEGERS else said, module.scale_rule)
        if module.apply_router_weight_on_input and wire.name != KEPT_FLOATS:
            raise ValueError(
                f"ExpertParallel: got experts with apply_router_weight_on_input and wire "
                f"{wire.name!r}, expected {KEPT_FLOATS!r}: rows are multiplied before they are "
                "rounded"
            )
        ranks = check_mesh(device_mesh).size()
        peers = peers_of(device_mesh)
        at = bounds(module.num_experts, ranks, 1)
        cuts = {name: Cut(0, 1) for name, _ in module.named_parameters()}
        exchange = few = Exchange(at, wire, peers)
        if peers and self.wire is None:
            few = Exchange(at, Wire(KEPT_FLOATS, module.scale_rule), peers)

        def forward(module: Sharded, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            wire.check(x, weights)
            with torch.no_grad():
                rows = x.reshape(-1, x.shape[-1])
                most = _most(rows, self.tokens, module.sharding.mesh.get_group())
                chosen = few if most * rows[:1].nbytes <= FEW_BYTES else exchange
                return chosen.run(module, (rows, ids, weights), most).view(x.shape)

        shard(module, device_mesh, cuts, forward)
        module.num_experts = module.down_proj.shape[0]
        return module


@dataclass(frozen=True)
class Wire:
    """How tokens travel: in a format of MX, or as they are."""

    name: str
    scale_rule: str

    def check(self, x: Tensor, weights: Tensor) -> None:
        """Raises unless tokens can travel so."""
        if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad):
            raise NotImplementedError(
                "ExpertParallel: got activations with a gradient, expected none; train with "
                "Experts(), which cuts every expert"
            )
        if self.name != KEPT_FLOATS and x.dtype == torch.float16:
            raise ValueError(
                f"x: got float16, whose largest numbers {self.name} rounds to infinity, expected "
                'bfloat16 or float32; or ExpertParallel(wire="bf16"), which sends x as it is'
            )

    def packed(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Returns tokens with their experts as rows of bytes."""
        if self.name == KEPT_FLOATS:
            numbers = [x.contiguous()]
        else:
            q = ops.quantize(x.contiguous(), format=self.name, scale_rule=self.scale_rule)
            numbers = [q.codes, q.scales]
        parts = [*numbers, ids.int().contiguous(), weights.float().contiguous()]
        return torch.cat([part.view(torch.uint8) for part in parts], 1)

    def unpacked(self, rows: list[Tensor], like: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns tokens, ids and weights of ranks' rows of bytes; tokens as `like` has them."""
        width = like.shape[1]
        if self.name == KEPT_FLOATS:
            sizes = [width * like.element_size()]
        else:
            fmt = format_named(self.name)
            (_, codes), (_, scales) = storage_of((1, width), fmt, facts().plain)
            sizes = [codes, scales * fmt.scale_bytes]
        # What is joined begins where memory does, which numbers of several bytes need.
        parts = [of_rank.split([*sizes, 4 * k, 4 * k], dim=1) for of_rank in rows]
        *numbers, ids, weights = (torch.cat(part) for part in zip(*parts, strict=True))
        if self.name == KEPT_FLOATS:
            x = numbers[0].view(like.dtype)
        else:
            codes, scales = numbers[0], numbers[1].view(fmt.scale_dtype)
            x = MXTensor(codes, scales, format=self.name).dequantize(like.dtype)
        return x, ids.view(torch.int32), weights.view(torch.float32)


def _most(x: Tensor, tokens: int | None, group: dist.ProcessGroup) -> int:
    """Returns how many rows each rank sends: what is said, or the most that any has."""
    if tokens is None:
        most = torch.tensor(len(x), device=x.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        return int(most)
    if len(x) > tokens:
        raise ValueError(f"x: got {len(x)} tokens, expected at most the {tokens} of ExpertParallel")
    return tokens


@dataclass(frozen=True)
class Exchange:
    """Tokens there and sums back."""

    at: tuple[int, ...]
    """The first expert of each rank, and the end."""
    wire: Wire
    peers: Peers | None

    def run(self, module: Sharded, call: tuple[Tensor, Tensor, Tensor], most: int) -> Tensor:
        """Returns what the experts of all ranks make of this rank's tokens, ids and weights."""
        x, ids, weights = call
        at, count = self.at, len(x)
        rank, ranks = module.sharding.rank, len(at) - 1
        if not most:
            return x.new_empty(x.shape)
        if most > count:
            added = 0, 0, 0, most - count
            x, weights = nn.functional.pad(x, added), nn.functional.pad(weights, added)
            ids = nn.functional.pad(ids, added, value=NO_EXPERT)
        mine = self.wire.packed(x, ids, weights)
        peers = self.peers
        if peers and not peers.has_room(max(mine.nbytes, ranks * x.nbytes)):
            peers = None
        group = module.sharding.mesh.get_group() if peers is None else None
        rows = peers.gathered(mine) if peers else [_gathered(mine, ranks, group)]

        tokens, ids, weights = self.wire.unpacked(rows, x, ids.shape[1])
        is_here = (ids >= at[rank]) & (ids < at[rank + 1])
        ids = torch.where(is_here, ids - at[rank], NO_EXPERT)
        sums = module.computed(tokens, ids, weights).view(ranks, most, -1)
        if peers:
            return peers.sums_back(sums)[:count].to(x.dtype)
        back = torch.empty_like(sums)
        dist.all_to_all_single(back, sums, group=group)

        # The order of additions is that of the ranks.
        y = torch.zeros_like(back[0, :count], dtype=torch.float32)
        for theirs in back[:, :count]:
            y += theirs
        return y.to(x.dtype)


def _gathered(mine: Tensor, ranks: int, group: dist.ProcessGroup | None) -> Tensor:
    rows = mine.new_empty(ranks * len(mine), mine.shape[1])
    dist.all_gather_into_tensor(rows, mine, group=group)
    return rows
