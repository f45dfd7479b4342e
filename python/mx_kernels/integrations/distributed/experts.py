"""Experts over ranks: each rank has some, tokens travel to them as codes and come back as sums.

    rank 0 of 2                                      rank 1
    tokens with an expert of rank 1     codes ->     their experts' weighted sum
    y += what comes back             <- x's dtype

A token goes once to each rank that has one of its experts, with all of its ids and weights, as one
row of bytes. In MXFP4 that is 4.25 bits a number where bfloat16 has 16:

    codes [packed H] | scales | ids [k] int32 | weights [k] float32

How many rows each rank gets the ranks tell each other on their devices; the host waits once, for
these counts. What an expert multiplies is what it would have made of the token itself: quantizing
numbers that were quantized changes none. Scales that are floats come out of it within a rounding to
the tokens' dtype.
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
from mx_kernels._core.facts import KEPT_FLOATS, facts
from mx_kernels._core.storage import storage_of
from mx_kernels.experts import MXExperts
from mx_kernels.integrations.distributed.collectives import check_mesh
from mx_kernels.integrations.distributed.cuts import Cut, bounds
from mx_kernels.integrations.distributed.styles import Sharded, shard
from mx_kernels.tensor import MXTensor

NO_EXPERT = -1


class ExpertParallel(ParallelStyle):
    """Gives each rank some of the experts of an MXExperts; each calls it with tokens of its own.

    All ranks call it together, with any number of tokens, and get theirs back. Gradients do not
    pass: for training there is `Experts`.

    Args:
        wire: the format in which tokens travel, or "bf16" for the dtype that they have. None is
            what the experts quantize activations to, which costs no accuracy.
    """

    def __init__(self, *, wire: str | None = None):
        super().__init__()
        if wire is not None and wire not in facts().activations:
            known = " or ".join(map(repr, facts().activations))
            raise ValueError(f"wire: got {wire!r}, expected {known}")
        self.wire = wire

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) is not MXExperts:
            raise TypeError(
                f"ExpertParallel: got {type(module).__name__}, expected an MXExperts, once"
            )
        wire = Wire(self.wire or module.activations, module.rounding)
        if module.apply_router_weight_on_input and wire.name != KEPT_FLOATS:
            raise ValueError(
                f"ExpertParallel: got experts with apply_router_weight_on_input and wire "
                f"{wire.name!r}, expected {KEPT_FLOATS!r}: rows are multiplied before they are "
                "rounded"
            )
        ranks = check_mesh(device_mesh).size()
        at = bounds(module.num_experts, ranks, 1)
        cuts = {name: Cut(0, 1) for name, _ in module.named_parameters()}

        def forward(module: Sharded, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            wire.check(x, weights)
            with torch.no_grad():
                rows = x.reshape(-1, x.shape[-1])
                return _exchanged(module, rows, (ids, weights), at, wire).view(x.shape)

        shard(module, device_mesh, cuts, forward)
        module.num_experts = module.down_proj.shape[0]
        return module


@dataclass(frozen=True)
class Wire:
    """How tokens travel: in a format of MX, or as they are."""

    name: str
    rounding: str

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
            q = ops.quantize(x.contiguous(), format=self.name, rounding=self.rounding)
            numbers = [q.codes, q.scales]
        parts = [*numbers, ids.int().contiguous(), weights.float().contiguous()]
        return torch.cat([part.view(torch.uint8) for part in parts], 1)

    def unpacked(self, rows: Tensor, like: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns tokens, ids and weights of rows of bytes; tokens as `like` has them."""
        width = like.shape[1]
        if self.name == KEPT_FLOATS:
            sizes = [width * like.element_size()]
        else:
            fmt = format_named(self.name)
            (_, codes), (_, scales) = storage_of((1, width), fmt, facts().plain)
            sizes = [codes, scales * fmt.scale_bytes]
        # Copies begin where memory does, which numbers of several bytes need.
        *numbers, ids, weights = (
            part.clone(memory_format=torch.contiguous_format)
            for part in rows.split([*sizes, 4 * k, 4 * k], dim=1)
        )
        if self.name == KEPT_FLOATS:
            x = numbers[0].view(like.dtype)
        else:
            codes, scales = numbers[0], numbers[1].view(fmt.scale_dtype)
            x = MXTensor(codes, scales, format=self.name).dequantize(like.dtype)
        return x, ids.view(torch.int32), weights.view(torch.float32)


def _exchanged(
    module: Sharded, x: Tensor, routing: tuple[Tensor, Tensor], at: tuple[int, ...], wire: Wire
) -> Tensor:
    """Returns what the experts of all ranks make of this rank's tokens."""
    ids, weights = routing
    group, rank, ranks = module.sharding.mesh.get_group(), module.sharding.rank, len(at) - 1

    # Who gets which of my tokens, and how many will I get?
    edges = torch.tensor(at[1:], device=ids.device)
    owner = torch.bucketize(ids, edges, right=True).masked_fill(ids < 0, ranks)
    is_sent = torch.stack([(owner == r).any(1) for r in range(ranks)])
    sent = is_sent.sum(1)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    sent_rows, got_rows = torch.stack([sent, got]).tolist()
    tokens = is_sent.nonzero()[:, 1]

    rows = wire.packed(x[tokens], ids[tokens], weights[tokens])
    there = rows.new_empty(sum(got_rows), rows.shape[1])
    dist.all_to_all_single(there, rows, got_rows, sent_rows, group=group)

    theirs, their_ids, their_weights = wire.unpacked(there, x, ids.shape[1])
    is_mine = (their_ids >= at[rank]) & (their_ids < at[rank + 1])
    their_ids = torch.where(is_mine, their_ids - at[rank], NO_EXPERT)
    sums = module.computed(theirs, their_ids, their_weights)
    back = sums.new_empty(len(tokens), x.shape[1])
    dist.all_to_all_single(back, sums, sent_rows, got_rows, group=group)

    # A token is in a rank's rows once: the order of additions is that of the ranks.
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for rows_of, sums_of in zip(tokens.split(sent_rows), back.split(sent_rows), strict=True):
        y.index_add_(0, rows_of, sums_of.float())
    return y.to(x.dtype)
