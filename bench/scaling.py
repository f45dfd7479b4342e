"""Layers over the GPUs of a host against one: time by tokens, and the bytes that experts send.

    torchrun --nproc-per-node RANKS -m bench.scaling RESULTS.json [--tiny]

What is timed are the products of a layer and what ranks send each other, without attention, which
heads divide among ranks anyway: Llama-70B's q, k, v, o, gate, up and down, and the experts of
gpt-oss-120b, 128 of 2880 x 2880, four for a token. Each rank times; the slowest one counts. Rank 0
times the whole layer alone first, while the others wait. Without GPUs ranks are processes over
gloo, which shows that all of it runs; `--tiny` is a sixteenth of each size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import mx_kernels as mx
import mx_kernels.integrations.distributed as mxd
from mx_kernels.integrations.distributed.collectives import PAIR, Peers, peers_of

TOKENS = (1, 16, 128, 512, 4096)
WARM_UPS, RUNS, REPEATS = 5, 30, 8
LLAMA = {"hidden": 8192, "inner": 28672, "keys": 2048}
"""Of 70B; keys are those of k and v together."""
EXPERTS = {"experts": 128, "hidden": 2880, "inner": 2880, "chosen": 4}
"""Of gpt-oss-120b."""
LINK_KILOBYTES = (16, 64, 256, 1024, 4096, 8192, 65536)
ON_GPUS = torch.cuda.is_available()


def device_of(rank: int) -> str:
    """Returns the device of a rank."""
    return f"cuda:{rank}" if ON_GPUS else "cpu"


def linear(out: int, width: int, device: str) -> mx.MXLinear:
    """Returns a layer with random codes; a float matrix of this size would be no faster to make."""
    weight = mx.quantize(torch.randn(out, width, device=device, dtype=torch.bfloat16) / width**0.5)
    return mx.MXLinear(weight.preshuffle(), activations="mxfp4")


class Llama(nn.Module):
    """The products of a layer of Llama-70B, one after the other."""

    def __init__(self, device: str):
        super().__init__()
        hidden, inner = LLAMA["hidden"], LLAMA["inner"]
        self.q = linear(hidden, hidden, device)
        self.kv = linear(LLAMA["keys"], hidden, device)
        self.o = linear(hidden, hidden, device)
        self.gate = linear(inner, hidden, device)
        self.up = linear(inner, hidden, device)
        self.down = linear(hidden, inner, device)

    def forward(self, x: Tensor) -> Tensor:
        """Computes with q where attention would give its result: as wide, and on the same rank."""
        self.kv(x)
        x = x + self.o(self.q(x))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


LLAMA_PLAN = {
    **dict.fromkeys(("q", "kv", "gate", "up"), mxd.Colwise()),
    **dict.fromkeys(("o", "down"), mxd.Rowwise()),
}


def experts(device: str) -> mx.MXExperts:
    """Returns the experts of gpt-oss-120b, quantized one after the other."""

    def weights(rows: int, k: int) -> mx.MXTensor:
        shape = EXPERTS["experts"], rows, k
        floats = torch.randn(shape, device=device, dtype=torch.bfloat16) / k**0.5
        return mx.quantize(floats).preshuffle()

    hidden, inner = EXPERTS["hidden"], EXPERTS["inner"]
    up, down = weights(2 * inner, hidden), weights(hidden, inner)
    return mx.MXExperts(up, down, hidden_act="swiglu_oai", activations="mxfp4")


def routed(tokens: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns random experts for each token, with weights."""
    scores = torch.rand(tokens, EXPERTS["experts"], device=device)
    weights, ids = scores.topk(EXPERTS["chosen"])
    return ids, weights


def in_graph(call: Callable[[], object]) -> float:
    """Returns the median milliseconds of a call, of some in one CUDA graph: ranks begin apart."""
    return milliseconds(captured(call)) / (REPEATS if ON_GPUS else 1)


def milliseconds(call: Callable[[], object]) -> float:
    """Returns the median time of a call on this rank."""
    for _ in range(WARM_UPS):
        call()
    times = []
    for _ in range(RUNS):
        if not ON_GPUS:
            began = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - began))
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Returns the kernels of `REPEATS` calls as one CUDA graph, on a GPU."""
    if not ON_GPUS:
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # The threads that watch NCCL ask their own streams meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(REPEATS):
            call()
    return graph.replay


def slower(milliseconds_here: float) -> float:
    """Returns the time of the slowest rank."""
    there = torch.tensor([milliseconds_here], device=device_of(dist.get_rank()))
    dist.all_reduce(there, op=dist.ReduceOp.MAX)
    return there.item()


def alone(rank: int, call: Callable[[], object]) -> float:
    """Returns the time of a call on rank 0, for which the others wait."""
    spent = in_graph(call) if rank == 0 else 0.0
    dist.barrier()
    return slower(spent)


def time_llama(rank: int, mesh, found: dict) -> None:
    """Times a layer of Llama-70B, one after the other without a graph too."""
    torch.manual_seed(0)
    device = device_of(rank)
    layer = Llama(device)
    xs = {t: torch.randn(t, LLAMA["hidden"], device=device, dtype=torch.bfloat16) for t in TOKENS}
    with torch.no_grad():
        one = {t: alone(rank, lambda x=x: layer(x)) for t, x in xs.items()}
        expected = layer(xs[16])
        parallelize_module(layer, mesh, LLAMA_PLAN)
        error = (layer(xs[16]) - expected).float().norm() / expected.float().norm()
        cut = {t: slower(in_graph(lambda x=x: layer(x))) for t, x in xs.items()}
        eager = {t: slower(milliseconds(lambda x=x: layer(x))) for t, x in xs.items()}
        found["llama-70b"] = {"one": one, "cut": cut, "cut, eager": eager, "error": error.item()}


def time_experts(rank: int, mesh, found: dict) -> None:
    """Times the experts of gpt-oss-120b, cut, and whole ones on ranks."""
    torch.manual_seed(0)
    device = device_of(rank)
    layer = experts(device)
    calls = {}
    for tokens in TOKENS:
        x = torch.randn(tokens, EXPERTS["hidden"], device=device, dtype=torch.bfloat16)
        calls[tokens] = (x, *routed(tokens, device))
    with torch.no_grad():
        one = {t: alone(rank, lambda c=c: layer(*c)) for t, c in calls.items()}
        expected = layer(*calls[16])
        parallelize_module(layer, mesh, mxd.Experts())
        error = (layer(*calls[16]) - expected).float().norm() / expected.float().norm()
        cut = {t: slower(in_graph(lambda c=c: layer(*c))) for t, c in calls.items()}
        found["gpt-oss-120b"] = {"one": one, "cut": cut, "error": error.item()}
        for wire in ("mxfp4", "bf16"):
            torch.manual_seed(0)
            layer = experts(device)
            style = mxd.ExpertParallel(wire=wire)
            parallelize_module(layer, mesh, style)
            found[f"experts over ranks, {wire}"] = time_exchange(layer, style, calls)


def time_exchange(layer: nn.Module, style: mxd.ExpertParallel, calls: dict) -> dict:
    """Times experts over ranks, each with its part of the tokens, and counts what they send.

    Of two halves of the tokens on two streams, one's experts may hide what the other's send.
    """
    found, rank, ranks = {}, dist.get_rank(), dist.get_world_size()
    for tokens, call in calls.items():
        style.tokens = None
        mine = [part.tensor_split(ranks)[rank] for part in call]
        whole = partial(layer, *mine)
        asking = slower(milliseconds(whole))
        style.tokens = -(-tokens // ranks)
        told = slower(in_graph(whole))
        found[tokens] = {"asking": asking, "told": told, **sent_by(whole)}
        if style.tokens > 1:
            style.tokens = -(-style.tokens // 2)
            halves = [[part.tensor_split(2)[half] for part in mine] for half in range(2)]
            both = partial(together, layer, halves)
            found[tokens]["told, two halves"] = slower(in_graph(both))
    return found


def sent_by(call: Callable[[], object]) -> dict[str, int]:
    """Returns the bytes that a rank gives to others, and those that come back to it."""
    names = {"all_gather_into_tensor": "bytes there", "all_to_all_single": "bytes back"}
    whole, found = {name: getattr(dist, name) for name in names}, {}
    ranks = dist.get_world_size()
    for name, said in names.items():

        def counting(out, given, *args, send=whole[name], said=said, **kwargs):
            found[said] = out.nbytes // ranks * (ranks - 1)
            return send(out, given, *args, **kwargs)

        setattr(dist, name, counting)
    call()
    for name, send in whole.items():
        setattr(dist, name, send)
    return found


def together(layer: nn.Module, calls: list) -> None:
    """Calls a layer twice, on two streams of a GPU."""
    if not ON_GPUS:
        for call in calls:
            layer(*call)
        return
    here, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        layer(*calls[0])
    layer(*calls[1])
    here.wait_stream(side)


def time_links(mesh, found: dict) -> None:
    """Times what ranks send each other, alone."""
    ranks = dist.get_world_size()
    systems = {"all-reduce": dist.all_reduce}
    if peers_of(mesh):
        peers = Peers(mesh.get_group(), sum_bytes=1024 * LINK_KILOBYTES[-1])
        systems["all-reduce, one kernel"] = peers.sum_of
        if ranks == PAIR and peers.has_room(1024 * LINK_KILOBYTES[-1]):
            systems["all-reduce, pair"] = peers.sum_of_pair
    for kilobytes in LINK_KILOBYTES:
        numbers = kilobytes * 512 // ranks * ranks
        t = torch.zeros(numbers, device=device_of(dist.get_rank()), dtype=torch.bfloat16)
        for name, call in systems.items():
            spent = slower(in_graph(partial(call, t)))
            found.setdefault(name, {})[kilobytes] = spent
        out = torch.empty_like(t)
        found.setdefault("all-to-all", {})[kilobytes] = slower(
            milliseconds(lambda t=t, out=out: dist.all_to_all_single(out, t))
        )


def main() -> None:
    """Times everything on this rank; rank 0 writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, help="a file of JSON")
    parser.add_argument("--tiny", action="store_true", help="a sixteenth of each size, fewer runs")
    given = parser.parse_args()
    global RUNS, TOKENS
    if given.tiny:
        RUNS, TOKENS = 2, TOKENS[:3]
        for sizes in (LLAMA, EXPERTS):
            sizes.update({name: max(32, n // 16) for name, n in sizes.items() if name != "chosen"})
        LLAMA["keys"], EXPERTS["hidden"], EXPERTS["inner"] = 256, 192, 512
    dist.init_process_group("nccl" if ON_GPUS else "gloo")
    rank, kind = dist.get_rank(), "cuda" if ON_GPUS else "cpu"
    if ON_GPUS:
        torch.cuda.set_device(rank)
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    found = {"device": torch.cuda.get_device_name() if ON_GPUS else kind}
    found |= {"ranks": dist.get_world_size(), "torch": torch.__version__}
    for step in (time_links, time_llama, time_experts):
        step(mesh, found) if step is time_links else step(rank, mesh, found)
        if rank == 0:
            print(json.dumps(found), flush=True)
            given.results.write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
