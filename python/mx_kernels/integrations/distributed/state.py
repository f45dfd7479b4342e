"""Checkpoints of models over ranks: each rank reads its parts, rank 0 gathers the whole.

    load(model, path)    parts of a checkpoint in any form that `mx_kernels.load` reads
    gathered(model)      the whole model's state dict, on rank 0
    save(model, path)    that, as `mx_kernels.save` writes it

Files are mapped: of rows a rank reads its own pages alone. Parts along K lie on all pages of a
weight, of which the system reads each once for all ranks of a machine; memory holds the part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mx_kernels._core.arrays import show
from mx_kernels._core.checks import format_named
from mx_kernels._core.facts import facts
from mx_kernels._core.storage import storage_of
from mx_kernels.checkpoints import save as save_tensors
from mx_kernels.checkpoints.files import let_go
from mx_kernels.checkpoints.forms import Parameter, plan
from mx_kernels.checkpoints.loading import open_any
from mx_kernels.integrations.distributed.styles import Sharded, Sharding
from mx_kernels.modules import arranged
from mx_kernels.tensor import MXTensor


def load(
    model: nn.Module,
    path: str | Path,
    *,
    device: str | torch.device | None = None,
    preshuffle: bool = True,
) -> None:
    """Fills a model over ranks from a checkpoint of the whole one; no rank has more than its part.

    >>> with torch.device("meta"):
    ...     model = Model()
    >>> parallelize_module(model, mesh, {"up": Colwise(), "down": Rowwise()})
    >>> load(model, "checkpoint")

    Args:
        model: its parameters are called as the checkpoint calls them; they may be on meta.
        path: what `mx_kernels.load` takes.
        device: where parameters on meta go; others stay where they are. None is the CPU.
        preshuffle: whether MXTensors get the layout of their device, if it has one of its own.

    Raises:
        ValueError: if the checkpoint lacks a parameter, or has one of another shape or format.
    """
    there = {parameter.name: parameter for parameter in plan(open_any(path))}
    wanted = list(_tensors(model))
    for name, module, own in wanted:
        _check(name, module, own, there)
    for name, module, own in wanted:
        of = name.rpartition(".")[2]
        part = _read(there[name], own, module, device, preshuffle)
        if of in module._parameters:
            module._parameters[of] = nn.Parameter(part, requires_grad=own.requires_grad)
        else:
            module._buffers[of] = part


def gathered(model: nn.Module) -> dict[str, Tensor] | None:
    """Returns the state dict of the whole model, plain and on the CPU.

    Every rank calls it; it is None for those that are not the first of their mesh.
    """
    state = {}
    is_first = True
    for prefix, module in model.named_modules():
        sharding = module.sharding if isinstance(module, Sharded) else None
        is_first = is_first and (sharding is None or sharding.rank == 0)
        names = sharding.shapes if sharding else dict(_own_tensors(module))
        for name in names:
            tensor = getattr(module, name)
            if sharding and name in sharding.cuts:
                tensor = _gather(name, tensor.detach(), sharding)
            if tensor is not None:
                tensor = tensor.unshuffle() if isinstance(tensor, MXTensor) else tensor
                state[f"{prefix}.{name}" if prefix else name] = tensor.detach().cpu()
    return state if is_first else None


def save(model: nn.Module, path: str | Path, **options: int | Mapping[str, str] | None) -> None:
    """Writes the whole model, from rank 0 of all; `options` are those of `mx_kernels.save`.

    Every rank calls it, and returns when the files are there.
    """
    state = gathered(model)
    # With more dimensions than this one, several ranks have it.
    if state is not None and dist.get_rank() == 0:
        save_tensors(state, path, **options)
    dist.barrier()


def _tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yields what a state dict has: name, module and tensor."""
    for prefix, module in model.named_modules():
        for name, tensor in _own_tensors(module):
            yield f"{prefix}.{name}" if prefix else name, module, tensor


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer


def _check(name: str, module: nn.Module, own: Tensor, there: dict[str, Parameter]) -> None:
    """Raises unless a checkpoint has a tensor of the whole model."""
    if name not in there:
        raise ValueError(f"{name}: got no such parameter in the checkpoint, expected one")
    shape, format = own.shape, own.format if isinstance(own, MXTensor) else ""
    if isinstance(module, Sharded):
        shape = module.sharding.shapes[name.rpartition(".")[2]]
    got = there[name]
    if got.shape != tuple(shape) or got.format != format:
        raise ValueError(
            f"{name}: got {show(got.shape)} {got.format or 'floats'}, expected {show(shape)} "
            f"{format or 'floats'}"
        )


def _read(parameter: Parameter, own: Tensor, module: nn.Module, device, preshuffle: bool) -> Tensor:
    """Returns this rank's part of a parameter, in memory of its own."""
    parts = parameter.read()
    whole = parts[0]
    if parameter.format:
        whole = MXTensor(*parts, format=parameter.format, dtype=own.dtype)
    sharding = module.sharding if isinstance(module, Sharded) else None
    cut = sharding and sharding.cuts.get(parameter.name.rpartition(".")[2])
    part = cut.part(whole, sharding.ranks, sharding.rank) if cut else whole.clone()
    for read in parts:
        let_go(read)
    device = torch.device(device or "cpu") if own.is_meta else own.device
    if not isinstance(part, MXTensor):
        return part.to(device, own.dtype)
    part = part.to(device)
    return arranged(part) if preshuffle else part


def _gather(name: str, part: Tensor, sharding: Sharding) -> Tensor | None:
    """Returns the whole of a parameter on rank 0 of its mesh, None on others."""
    group, cut = sharding.mesh.get_group(), sharding.cuts[name]
    plain = part.unshuffle() if isinstance(part, MXTensor) else part
    own = (plain.codes, plain.scales) if isinstance(plain, MXTensor) else (plain,)
    if sharding.rank:
        for t in own:
            dist.send(t.contiguous(), group=group, group_dst=0)
        return None
    parts = [plain]
    for rank in range(1, sharding.ranks):
        shape = _shape(sharding.shapes[name], cut, sharding.ranks, rank)
        shapes = [shape]
        if isinstance(plain, MXTensor):
            shapes = storage_of(shape, format_named(plain.format), facts().plain)
        received = [t.new_empty(s) for t, s in zip(own, shapes, strict=True)]
        for t in received:
            dist.recv(t, group=group, group_src=rank)
        parts.append(plain._with(*received, shape) if isinstance(plain, MXTensor) else received[0])
    return cut.whole(parts)


def _shape(whole: torch.Size, cut, ranks: int, rank: int) -> tuple[int, ...]:
    """Returns the shape of a rank's part."""
    shape = list(whole)
    shape[cut.axis] = sum(end - at for at, end in cut.spans(whole[cut.axis], ranks, rank))
    return tuple(shape)
