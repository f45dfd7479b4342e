"""A layer of experts on an NVIDIA GPU beside the time of reading the weights that it needs.

    python -m bench.cuda_experts [bf16 mxfp4 ..]

Calls are captured in a graph, each with another routing: what one of them reads is in no cache. The
bound is reading the codes and scales of the experts that are hit, once, at the rate of a copy.

Where triton_kernels is there, see `peers.triton_kernels`, it has two columns: its two products of
tokens that are sorted already, and those with the kernels that choose experts and sort. Ours are
given the experts of tokens, and sort them. Its results are compared with ours.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

import mx_kernels as mx
from bench.experts import GPT_OSS_20B, SCALE_BITS, Sizes
from bench.graph_timing import Graph
from bench.peers import triton_kernels

GPT_OSS_120B = Sizes(experts=128, active=4, hidden=2880, intermediate=2880)
LAYERS = {
    "gpt-oss-20b": GPT_OSS_20B,
    "gpt-oss-120b": GPT_OSS_120B,
    "mixtral-8x7b": Sizes(experts=8, active=2, hidden=4096, intermediate=14336),
    "qwen1.5-moe": Sizes(experts=60, active=4, hidden=2048, intermediate=1408),
    "qwen3-30b": Sizes(experts=128, active=8, hidden=2048, intermediate=768),
}
TOKENS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096
BYTES_A_US = 4.0e6
"""What a copy reads and writes on an H200, each microsecond."""
CALLS, REPLAYS = 16, 9


MAX_DIFFERENCE = 5e-3
"""Of the norm, between our layer and the peer's: both round hidden numbers to bfloat16."""

Codes = tuple[torch.Tensor, torch.Tensor]


def random_weights(count: int, n: int, k: int) -> Codes:
    """Returns random codes and scales."""
    codes = torch.randint(0, 256, (count, n, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(
        SCALE_BITS.start, SCALE_BITS.stop, (count, n, k // 32), dtype=torch.uint8, device="cuda"
    )
    return codes, scales


def routings(sizes: Sizes, tokens: int) -> list[torch.Tensor]:
    """Returns router logits of tokens; one token's choose other experts from call to call."""
    found = [torch.randn(tokens, sizes.experts, device="cuda") for _ in range(CALLS)]
    if tokens == 1:
        experts = torch.randperm(sizes.experts, device="cuda")
        for call, logits in enumerate(found):
            logits[:, experts.roll(sizes.active * call)[: sizes.active]] += 100
    return found


class Layer:
    """Random weights, in our layout and in the peer's if it is there."""

    def __init__(self, sizes: Sizes, mode: str):
        e, h, i = sizes.experts, sizes.hidden, sizes.intermediate
        gate_up, down = random_weights(e, 2 * i, h), random_weights(e, h, i)
        biases = [torch.randn(e, n, device="cuda").bfloat16() for n in (2 * i, h)]
        self.sizes, self.expert_bytes = sizes, 3 * i * h * 17 / 32
        self._weights = [mx.MXTensor(*w).preshuffle(device="cuda") for w in (gate_up, down)]
        self._rules = {
            "activations": mode, "bias_gate_up": biases[0], "bias_down": biases[1]
        }  # fmt: skip
        self.peer = None
        if triton_kernels.is_there():
            both = [(*w, bias) for w, bias in zip((gate_up, down), biases, strict=True)]
            self.peer = triton_kernels.Layer(*both, sizes.active)

    def calls(self, tokens: int) -> tuple[dict[str, list[partial]], float]:
        """Returns the calls of each system, and how many experts they hit on average."""
        x = torch.randn(tokens, self.sizes.hidden, device="cuda").bfloat16()
        logits = routings(self.sizes, tokens)
        chosen = [of_call.topk(self.sizes.active, 1) for of_call in logits]
        ours = [
            partial(
                mx.moe, x, *self._weights, top.indices.int(), top.values.softmax(1), **self._rules
            )
            for top in chosen
        ]
        hit = sum(len(top.indices.unique()) for top in chosen) / CALLS
        found = {"ours": ours}
        if self.peer:
            sorted_ = [self.peer.route(of_call) for of_call in logits]
            found["products"] = [partial(self.peer.multiply, x, routing) for routing in sorted_]
            found["all"] = [partial(self.peer, x, of_call) for of_call in logits]
            mine, theirs = ours[0]().float(), found["products"][0]().float()
            difference = float((mine - theirs).norm() / theirs.norm())
            if self._rules["activations"] == "bf16" and not difference <= MAX_DIFFERENCE:
                raise ValueError(f"{tokens} tokens: results differ by {difference:.2e}")
        return found, hit


def measure(name: str, mode: str) -> None:
    """Prints a line of Markdown for each number of tokens."""
    layer = Layer(LAYERS[name], mode)
    print(f"\n{name}, {mode}; triton_kernels: products | all\n")
    print("| tokens | us | reading | times | triton_kernels | over ours |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for tokens in TOKENS:
        calls, hit = layer.calls(tokens)
        graphs = {system: Graph(of_system) for system, of_system in calls.items()}
        for _ in range(REPLAYS):
            for graph in graphs.values():
                graph.replay()
        us = {system: graph.found().median_us for system, graph in graphs.items()}
        bound = hit * layer.expert_bytes / BYTES_A_US
        line = f"| {tokens} | {us['ours']:.1f} | {bound:.1f} | {us['ours'] / bound:.2f} |"
        peers = [us[system] for system in us if system != "ours"]
        line += " " + " \\| ".join(f"{peer:.0f}" for peer in peers) + " |"
        line += " " + " \\| ".join(f"{peer / us['ours']:.2f}" for peer in peers) + " |"
        print(line, flush=True)


if __name__ == "__main__":
    for layer in LAYERS:
        for activations in sys.argv[1:] or ["bf16"]:
            measure(layer, activations)
