"""Layers over two GPUs against one: time by tokens, and the bytes that experts send.

    torchrun --nproc-per-node 2 -m bench.scaling RESULTS.json

What is timed are the products of a layer and what ranks send each other, without attention, which
heads divide among ranks anyway: Llama-70B's q, k, v, o, gate, up and down, and the experts of
gpt-oss-120b, 128 of 2880 x 2880, four for a token. Each rank times; the slower one counts. Rank 0
times the whole layer alone first, while the other waits.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import mx_kernels as mx
import mx_kernels.integrations.distributed as mxd

TOKENS = (1, 16, 512)
WARM_UPS, RUNS = 5, 30
LLAMA = {"hidden": 8192, "inner": 28672, "keys": 2048}
"""Of 70B; keys are those of k and v together."""
EXPERTS = {"experts": 128, "hidden": 2880, "inner": 2880, "chosen": 4}
"""Of gpt-oss-120b."""


def device_of(rank: int) -> str:
    """Returns the device of a rank."""
    return f"cuda:{rank}"


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
    return mx.MXExperts(up, down, activation="swiglu_oai", activations="mxfp4")


def routed(tokens: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns random experts for each token, with weights."""
    scores = torch.rand(tokens, EXPERTS["experts"], device=device)
    weights, ids = scores.topk(EXPERTS["chosen"])
    return ids, weights


def milliseconds(call: Callable[[], object]) -> float:
    """Returns the median time of a call on this GPU."""
    for _ in range(WARM_UPS):
        call()
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Returns a call's kernels as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # The threads that watch NCCL ask their own streams meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def slower(milliseconds_here: float) -> float:
    """Returns the time of the slower rank."""
    there = torch.tensor([milliseconds_here], device=device_of(dist.get_rank()))
    dist.all_reduce(there, op=dist.ReduceOp.MAX)
    return there.item()


def alone(rank: int, call: Callable[[], object]) -> float:
    """Returns the time of a call on rank 0, for which the others wait."""
    spent = milliseconds(captured(call)) if rank == 0 else 0.0
    dist.barrier()
    return slower(spent)


def halves(layer: nn.Module, x: Tensor, group) -> Tensor:
    """Returns a row-parallel product whose first half travels while the second is computed."""
    parts, waits = [], []
    for rows in x.chunk(2):
        part = layer.computed(rows)
        waits.append(dist.all_reduce(part, group=group, async_op=True))
        parts.append(part)
    for wait in waits:
        wait.wait()
    return torch.cat(parts)


def time_llama(rank: int, mesh, found: dict) -> None:
    """Times a layer of Llama-70B."""
    torch.manual_seed(0)
    device = device_of(rank)
    layer = Llama(device)
    xs = {t: torch.randn(t, LLAMA["hidden"], device=device, dtype=torch.bfloat16) for t in TOKENS}
    with torch.no_grad():
        one = {t: alone(rank, lambda x=x: layer(x)) for t, x in xs.items()}
        expected = layer(xs[16])
        parallelize_module(layer, mesh, LLAMA_PLAN)
        error = (layer(xs[16]) - expected).float().norm() / expected.float().norm()
        two = {t: slower(milliseconds(captured(lambda x=x: layer(x)))) for t, x in xs.items()}
        eager = {t: slower(milliseconds(lambda x=x: layer(x))) for t, x in xs.items()}
        found["llama-70b"] = {"one": one, "two": two, "two, eager": eager, "error": error.item()}
        found["halves"], group = {}, mesh.get_group()
        for tokens in (512, 4096):
            x = torch.randn(tokens, layer.down.in_features, device=device, dtype=torch.bfloat16)
            found["halves"][tokens] = {
                "whole": slower(milliseconds(captured(lambda x=x: layer.down(x)))),
                "halves": slower(milliseconds(captured(lambda x=x: halves(layer.down, x, group)))),
                "product": slower(milliseconds(captured(lambda x=x: layer.down.computed(x)))),
            }


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
        two = {t: slower(milliseconds(captured(lambda c=c: layer(*c)))) for t, c in calls.items()}
        found["gpt-oss-120b"] = {"one": one, "two": two, "error": error.item()}
        for wire in ("mxfp4", "bf16"):
            torch.manual_seed(0)
            layer = experts(device)
            parallelize_module(layer, mesh, mxd.ExpertParallel(wire=wire))
            found[f"experts over ranks, {wire}"] = time_exchange(layer, calls, rank)


def time_exchange(layer: nn.Module, calls: dict, rank: int) -> dict:
    """Times experts over ranks, each with its part of the tokens, and counts what they send."""
    found, sent, send = {}, [], dist.all_to_all_single

    def counting(output, given, *args, **kwargs):
        sent.append(given.nbytes)
        return send(output, given, *args, **kwargs)

    for tokens, call in calls.items():
        x, ids, weights = (part.chunk(2)[min(rank, tokens - 1)] for part in call)
        dist.all_to_all_single = counting
        layer(x, ids, weights)
        dist.all_to_all_single = send
        counts, codes, sums = sent[-3:]
        found[tokens] = {
            "milliseconds": slower(milliseconds(lambda c=(x, ids, weights): layer(*c))),
            "bytes there": codes,
            "bytes back": sums,
            "bytes of counts": counts,
        }
    return found


def time_links(found: dict) -> None:
    """Times what ranks send each other, alone."""
    for kilobytes in (16, 256, 8192, 65536):
        t = torch.zeros(kilobytes * 512, device=device_of(dist.get_rank()), dtype=torch.bfloat16)
        found.setdefault("all-reduce", {})[kilobytes] = slower(
            milliseconds(captured(lambda t=t: dist.all_reduce(t)))
        )
        out = torch.empty_like(t)
        found.setdefault("all-to-all", {})[kilobytes] = slower(
            milliseconds(lambda t=t, out=out: dist.all_to_all_single(out, t))
        )


def main(results: str) -> None:
    """Times everything on this rank; rank 0 writes what was found."""
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for step in (time_links, time_llama, time_experts):
        step(found) if step is time_links else step(rank, mesh, found)
        if rank == 0:
            print(json.dumps(found), flush=True)
            Path(results).write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
