"""Styles for `torch.distributed.tensor.parallel.parallelize_module`: layers over ranks.

    Colwise    rows of the weights: each rank computes some columns of the result
    Rowwise    K of the weights: each rank computes a part of every sum, which are added up
    Experts    of MXExperts, pairs of rows of gate_up and K of down, the same numbers of both

              x -> Colwise -> activation -> Rowwise -> y        bytes between ranks: one sum of y

A layer stays what it is, an MXLinear, an MXExperts or an `nn.Linear` with an MXTensor, and its
parameters become this rank's parts, in their layout. What cannot be cut, as the bias of a sum,
rank 0 keeps, and the others do without. The parts are cut at multiples of blocks, so that ranks may
have different sizes; see `cuts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from mx_kernels._core.facts import facts
from mx_kernels.experts import MXExperts
from mx_kernels.integrations.distributed.collectives import (
    check_mesh,
    copied,
    joined,
    peers_of,
    sum_of,
)
from mx_kernels.integrations.distributed.cuts import Cut, bounds, sizes
from mx_kernels.modules import MXLinear
from mx_kernels.tensor import MXTensor


@dataclass(frozen=True)
class Sharding:
    """What a style made of a layer."""

    mesh: DeviceMesh
    cuts: dict[str, Cut]
    """Of the parameters that ranks have parts of."""
    shapes: dict[str, torch.Size]
    """Of the whole parameters."""
    forward: Callable[..., Tensor]

    @property
    def rank(self) -> int:
        """The place of this process in the mesh."""
        return self.mesh.get_local_rank()

    @property
    def ranks(self) -> int:
        """The processes of the mesh."""
        return self.mesh.size()


class Sharded(nn.Module):
    """A layer of which this rank has a part."""

    sharding: Sharding

    def forward(self, *args: Tensor) -> Tensor:
        """Computes this rank's part, and what of it the ranks exchange."""
        return self.sharding.forward(self, *args)

    def computed(self, *args: Tensor) -> Tensor:
        """Returns what this rank's parameters give by themselves."""
        return super().forward(*args)

    def extra_repr(self) -> str:
        """Names the layer's choices, and the rank."""
        return f"{super().extra_repr()}, rank {self.sharding.rank} of {self.sharding.ranks}"


class ShardedMXLinear(Sharded, MXLinear):
    """A part of an MXLinear."""


class ShardedLinear(Sharded, nn.Linear):
    """A part of an `nn.Linear` with an MXTensor."""


class ShardedExperts(Sharded, MXExperts):
    """A part of an MXExperts."""


SHARDED = {MXLinear: ShardedMXLinear, nn.Linear: ShardedLinear, MXExperts: ShardedExperts}


def shard(
    module: nn.Module, mesh: DeviceMesh, cuts: dict[str, Cut], forward: Callable[..., Tensor]
) -> nn.Module:
    """Makes a layer one of this rank: cuts its parameters, all or none."""
    whole = dict(module.named_parameters())
    shapes = {name: parameter.shape for name, parameter in whole.items()}
    sharding = Sharding(check_mesh(mesh), cuts, shapes, forward)
    parts: dict[str, nn.Parameter | None] = {}
    for name, parameter in whole.items():
        if name in cuts:
            parts[name] = _part(module, name, parameter, sharding)
        elif sharding.rank:
            parts[name] = None
    for name, part in parts.items():
        setattr(module, name, part)
    module.__class__ = SHARDED[type(module)]
    module.sharding = sharding
    return module


def _part(module: nn.Module, name: str, whole: nn.Parameter, sharding: Sharding) -> nn.Parameter:
    try:
        part = sharding.cuts[name].part(whole.detach(), sharding.ranks, sharding.rank)
    except ValueError as error:
        raise ValueError(f"{type(module).__name__}.{name}: {error}") from error
    return nn.Parameter(part, requires_grad=whole.requires_grad)


class _LinearStyle(ParallelStyle):
    """What both styles of linear layers share.

    Args:
        input_layouts: how ranks have x, as in torch's styles; None is the usual one.
        output_layouts: how ranks get the result.
        use_local_output: whether the result is a tensor, not a DTensor.
        unit: what sizes are multiples of but for the last rank's: for attention, the size of a
            head. None is what blocks of the weights fill.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        unit: int | None = None,
    ):
        super().__init__()
        self.input_layouts: Placement = self.INPUT if input_layouts is None else input_layouts
        self.output_layouts: Placement = self.OUTPUT if output_layouts is None else output_layouts
        self.use_local_output = use_local_output
        self.unit = unit

    INPUT: Placement
    OUTPUT: Placement

    def _unit(self, module: nn.Module) -> int:
        """Checks a layer that is to be cut; returns at what."""
        if type(module) not in (MXLinear, nn.Linear) or not isinstance(module.weight, MXTensor):
            weight = type(getattr(module, "weight", None)).__name__
            raise TypeError(
                f"{type(self).__name__}: got {type(module).__name__} with a weight {weight}, "
                "expected an MXLinear, or an nn.Linear with an MXTensor, once; layers of floats "
                "take torch's own styles"
            )
        return self.unit or facts().formats[module.weight.format].cut


class Colwise(_LinearStyle):
    """Cuts rows of the weights, and the bias with them; columns of the result are the ranks'.

    Equal to the bit to the columns of the whole product.
    """

    INPUT: Placement = Replicate()
    OUTPUT: Placement = Shard(-1)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        unit = self._unit(module)
        out = module.out_features
        widths = sizes(out, check_mesh(device_mesh).size(), unit)
        cuts = {"weight": Cut(0, unit), "bias": Cut(0, unit)}

        def forward(module: Sharded, x: Tensor) -> Tensor:
            y = module.computed(copied(x, device_mesh, self.input_layouts))
            last = self.output_layouts.is_shard() and self.output_layouts.dim in (-1, y.ndim - 1)
            if last:
                return y if self.use_local_output else _as_columns(y, out, device_mesh)
            y = joined(y, widths, device_mesh)
            if self.output_layouts.is_replicate() and self.use_local_output:
                return y
            y = DTensor.from_local(y, device_mesh, [Replicate()], run_check=False)
            y = y.redistribute(placements=[self.output_layouts])
            return y.to_local() if self.use_local_output else y

        shard(module, device_mesh, cuts, forward)
        module.out_features = widths[module.sharding.rank]
        return module


class Rowwise(_LinearStyle):
    """Cuts K of the weights; the ranks' sums are added up, in the dtype of x, with one bias."""

    INPUT: Placement = Shard(-1)
    OUTPUT: Placement = Replicate()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        unit = self._unit(module)
        at = bounds(module.in_features, check_mesh(device_mesh).size(), unit)
        rank = device_mesh.get_local_rank()
        peers = peers_of(device_mesh)

        def forward(module: Sharded, x: Tensor) -> Tensor:
            layout = x.placements[0] if isinstance(x, DTensor) else self.input_layouts
            if layout.is_shard() and layout.dim in (-1, x.ndim - 1):
                x = x.to_local() if isinstance(x, DTensor) else x
            else:
                x = copied(x, device_mesh, layout)[..., at[rank] : at[rank + 1]]
            y = sum_of(module.computed(x), device_mesh, self.output_layouts, peers)
            if isinstance(y, DTensor):
                return y.to_local() if self.use_local_output else y
            if self.use_local_output:
                return y
            return DTensor.from_local(y, device_mesh, [Replicate()], run_check=False)

        shard(module, device_mesh, {"weight": Cut(1, unit)}, forward)
        module.in_features = at[rank + 1] - at[rank]
        return module


class Experts(ParallelStyle):
    """Cuts every expert of an MXExperts: pairs of rows of gate_up, K of down.

    Args:
        reduce: whether the ranks' sums are added up. False leaves that to what comes behind,
            and the result is a part of a sum.
    """

    def __init__(self, *, reduce: bool = True):
        super().__init__()
        self.reduce = reduce

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) is not MXExperts:
            raise TypeError(f"Experts: got {type(module).__name__}, expected an MXExperts, once")
        peers = peers_of(check_mesh(device_mesh))

        def forward(module: Sharded, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            x, weights = (copied(t, device_mesh, Replicate()) for t in (x, weights))
            y = module.computed(x, ids, weights)
            y = sum_of(y, device_mesh, Replicate(), peers) if self.reduce else y
            return y.to_local() if isinstance(y, DTensor) else y

        shard(module, device_mesh, expert_cuts(module), forward)
        module.intermediate_size = module.down_proj.shape[-1]
        return module


def expert_cuts(module: MXExperts) -> dict[str, Cut]:
    """Returns how the parameters of experts are cut, each expert the same."""
    unit = facts().formats[module.down_proj.format].cut
    pairs = Cut(1, 2 * unit) if module.interleaved else Cut(1, unit, folds=2)
    if not facts().gates[module.hidden_act].is_gated:
        pairs = Cut(1, unit)
    first, second = module.WEIGHTS
    return {first: pairs, f"{first}_bias": pairs, second: Cut(2, unit)}


def _as_columns(y: Tensor, width: int, mesh: DeviceMesh) -> DTensor:
    """Returns columns of a result as a DTensor of all of them."""
    shape = (*y.shape[:-1], width)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(y, mesh, [Shard(-1)], run_check=False, shape=shape, stride=stride)
