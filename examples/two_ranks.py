"""A layer over two ranks, from a checkpoint to its result: on GPUs over NCCL, else over gloo.

    torchrun --nproc-per-node 2 examples/two_ranks.py

Rank 0 writes a checkpoint of a small layer. Then every rank makes the layer without memory, cuts
it, reads its own parts of the weights, and computes with them.
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import mx_kernels as mx
import mx_kernels.integrations.distributed as mxd

WIDTH, INNER = 256, 736


def make() -> nn.Sequential:
    """Returns the whole layer, with the same random weights on every rank."""
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, INNER), nn.SiLU(), nn.Linear(INNER, WIDTH)
    return mx.convert(nn.Sequential(*layers), keep=[])


def main() -> None:
    """Is one rank."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    rank = dist.get_rank()
    if device == "cuda":
        torch.cuda.set_device(rank)

    whole = make().to(device)
    # Rank 0 says where: one checkpoint for all ranks of a machine.
    place = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(place)
    path = Path(place[0]) / "layer.safetensors"
    if rank == 0:
        mx.save(whole.state_dict(), path)
    dist.barrier()

    layer = make().to("meta")
    parallelize_module(layer, mesh, {"0": mxd.Colwise(), "2": mxd.Rowwise()})
    mxd.load(layer, path, device=device)

    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        y, expected = layer(x), whole(x)
    error = (y - expected).norm() / expected.norm()
    # Rank 0 speaks for all: lines of several processes may run into each other.
    said = [""] * dist.get_world_size()
    line = f"rank {rank}: {layer[0].out_features} of {INNER} rows, error {error:.1e}"
    dist.all_gather_object(said, line)
    if rank == 0:
        print("\n".join(said))
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
