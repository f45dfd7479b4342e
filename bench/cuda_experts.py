"""A layer of experts on an NVIDIA GPU beside the time of reading the weights that it needs.

    python -m bench.cuda_experts [bf16 mxfp4 ..]

Calls are captured in a graph, each with another routing: what one of them reads is in no cache. The
bound is reading the codes and scales of the experts that are hit, once, at the rate of a copy.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

import mx_kernels as mx
from bench.experts import GPT_OSS_20B, SCALE_BITS, Sizes
from bench.graph_timing import Graph

GPT_OSS_120B = Sizes(experts=128, active=4, hidden=2880, intermediate=2880)
LAYERS = {"gpt-oss-20b": GPT_OSS_20B, "gpt-oss-120b": GPT_OSS_120B}
TOKENS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 4096
BYTES_A_US = 4.0e6
"""What a copy reads and writes on an H200, each microsecond."""
CALLS, REPLAYS = 16, 9


def random_weights(count: int, n: int, k: int) -> mx.MXTensor:
    """Returns random bytes as the kernels want them."""
    codes = torch.randint(0, 256, (count, n, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(
        SCALE_BITS.start, SCALE_BITS.stop, (count, n, k // 32), dtype=torch.uint8, device="cuda"
    )
    return mx.MXTensor(codes, scales).preshuffle(device="cuda")


def routings(sizes: Sizes, tokens: int) -> list[torch.Tensor]:
    """Returns experts of tokens; those of a few tokens differ from one to the next."""
    experts = torch.randperm(sizes.experts)
    found = []
    for call in range(CALLS):
        if tokens == 1:
            found.append(experts.roll(sizes.active * call)[: sizes.active][None])
        else:
            found.append(torch.rand(tokens, sizes.experts).argsort(1)[:, : sizes.active])
    return [ids.int().cuda() for ids in found]


def measure(name: str, mode: str) -> None:
    """Prints a line for each number of tokens."""
    sizes = LAYERS[name]
    e, h, i = sizes.experts, sizes.hidden, sizes.intermediate
    gate_up, down = random_weights(e, 2 * i, h), random_weights(e, h, i)
    biases = {
        "bias_gate_up": torch.randn(e, 2 * i, device="cuda").bfloat16(),
        "bias_down": torch.randn(e, h, device="cuda").bfloat16(),
    }
    expert_bytes = 3 * i * h * 17 / 32
    for tokens in TOKENS:
        x = torch.randn(tokens, h, device="cuda").bfloat16()
        weights = torch.rand(tokens, sizes.active, device="cuda")
        deals = routings(sizes, tokens)
        hit = sum(len(ids.unique()) for ids in deals) / len(deals)
        rules = {"activations": mode, **biases}
        graph = Graph([partial(mx.moe, x, gate_up, down, ids, weights, **rules) for ids in deals])
        for _ in range(REPLAYS):
            graph.replay()
        found, bound = graph.found(), hit * expert_bytes / BYTES_A_US
        print(f"{name} {mode} {tokens:5} tokens, {hit:5.1f} experts: median "
              f"{found.median_us:7.1f} us, best {found.best_us:7.1f}, read {bound:6.1f}, "
              f"times {found.median_us / bound:5.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    for layer in LAYERS:
        for activations in sys.argv[1:] or ["bf16"]:
            measure(layer, activations)
