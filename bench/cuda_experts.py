"""A layer of experts on an NVIDIA GPU beside the time of reading the weights that it needs.

    python -m bench.cuda_experts [bf16 mxfp4 ..] [--layers mixtral-8x7b ..] [--tokens 1 ..]

Calls are captured in a graph, each with another routing: what one of them reads is in no cache. The
bound is reading the codes and scales of the experts that are hit, once, at the rate of a copy.

Peers are timed in turns with ours, and a column is what they take over that, below 1 where they are
faster. Ours are given the experts of tokens, and sort them.

    triton_kernels    `peers.triton_kernels`: its two products of tokens that are sorted already,
                      results compared with ours
    Marlin            `peers.marlin`: all that vLLM launches, of sizes that it does not pad
    grouped_mm        torch's two products of bfloat16 weights and sorted tokens, of many tokens
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
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
TOKENS = 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096
MANY_TOKENS = 2048
"""From so many on, products of bfloat16 weights are compared too."""
BYTES_A_US = 4.0e6
"""What a copy reads and writes on an H200, each microsecond."""
CALLS, REPLAYS = 16, 15
MOST_WORK = 2**13
"""Tokens of all calls of a graph, but of four calls at least."""


MAX_DIFFERENCE = 5e-3
"""Of the norm, between our layer and the peer's: both round hidden numbers to bfloat16."""

Codes = tuple[torch.Tensor, torch.Tensor]
Call = Callable[[], object]


def random_weights(count: int, n: int, k: int) -> Codes:
    """Returns random codes and scales."""
    codes = torch.randint(0, 256, (count, n, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(
        SCALE_BITS.start, SCALE_BITS.stop, (count, n, k // 32), dtype=torch.uint8, device="cuda"
    )
    return codes, scales


def routings(sizes: Sizes, tokens: int) -> list[torch.Tensor]:
    """Returns router logits of tokens; one token's choose other experts from call to call."""
    count = max(4, min(CALLS, MOST_WORK // tokens))
    found = [torch.randn(tokens, sizes.experts, device="cuda") for _ in range(count)]
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
        self.triton_kernels = self.marlin = None
        if triton_kernels.is_there():
            both = [(*w, bias) for w, bias in zip((gate_up, down), biases, strict=True)]
            self.triton_kernels = triton_kernels.Layer(*both, sizes.active)
        if "MARLIN" in os.environ:
            from bench.peers import marlin  # noqa: PLC0415  Triton is optional

            if h % marlin.SIZES == 0 and i % marlin.SIZES == 0:
                self.marlin = marlin.Layer(e, h, i)

    def calls(self, tokens: int) -> tuple[dict[str, list[Call]], float]:
        """Returns the calls of each system, and how many experts they hit on average."""
        x = torch.randn(tokens, self.sizes.hidden, device="cuda").bfloat16()
        logits = routings(self.sizes, tokens)
        tops = [of_call.topk(self.sizes.active, 1) for of_call in logits]
        chosen = [(top.indices.int(), top.values.softmax(1)) for top in tops]
        ours = [partial(mx.moe, x, *self._weights, *top, **self._rules) for top in chosen]
        found: dict[str, list[Call]] = {"ours": ours}
        if self.triton_kernels:
            multiply = self.triton_kernels.multiply
            sorted_ = map(self.triton_kernels.route, logits)
            found["triton_kernels"] = [partial(multiply, x, routing) for routing in sorted_]
            mine, theirs = ours[0]().float(), found["triton_kernels"][0]().float()
            difference = float((mine - theirs).norm() / theirs.norm())
            if self._rules["activations"] == "bf16" and not difference <= MAX_DIFFERENCE:
                raise ValueError(f"{tokens} tokens: results differ by {difference:.2e}")
        if self.marlin:
            found["Marlin"] = [partial(self.marlin, x, *top) for top in chosen]
        if tokens >= MANY_TOKENS:
            found["grouped_mm"] = [self._of_bfloat16(ids) for ids, _ in chosen[:1]] * len(chosen)
        hit = sum(len(ids.unique()) for ids, _ in chosen) / len(chosen)
        return found, hit

    def _of_bfloat16(self, ids: torch.Tensor) -> Call:
        """Returns the call of two products of sorted rows and bfloat16 weights."""
        e, h, i = self.sizes.experts, self.sizes.hidden, self.sizes.intermediate
        ends = torch.bincount(ids.flatten(), minlength=e).cumsum(0).int()
        options = {"device": "cuda", "dtype": torch.bfloat16}
        gate_up, down = torch.randn(e, h, 2 * i, **options), torch.randn(e, i, h, **options)
        x, hidden = (torch.randn(ids.numel(), k, **options) for k in (h, i))

        def multiply() -> None:
            torch._grouped_mm(x, gate_up, offs=ends)
            torch._grouped_mm(hidden, down, offs=ends)

        return multiply


def measure(name: str, mode: str, all_tokens: Sequence[int]) -> None:
    """Prints a line of Markdown for each number of tokens."""
    layer, systems = Layer(LAYERS[name], mode), ["triton_kernels", "Marlin", "grouped_mm"]
    print(f"\n{name}, {mode}:\n")
    print("| tokens | us | reading | times | " + " | ".join(systems) + " |")
    print("| ---: |" + " ---: |" * (3 + len(systems)))
    for tokens in all_tokens:
        calls, hit = layer.calls(tokens)
        graphs = {system: Graph(of_system) for system, of_system in calls.items()}
        # There and back: nobody is always behind the one that heats most.
        turns = [*graphs.values()], [*graphs.values()][::-1]
        for replay in range(REPLAYS):
            for graph in turns[replay % 2]:
                graph.replay()
        us = {system: graph.found().median_us for system, graph in graphs.items()}
        bound = hit * layer.expert_bytes / BYTES_A_US
        cells = [f"{us['ours']:.1f}", f"{bound:.1f}", f"{us['ours'] / bound:.2f}"]
        cells += [
            f"{us[peer]:.1f} ({us[peer] / us['ours']:.2f})" if peer in us else ""
            for peer in systems
        ]
        print(f"| {tokens} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modes", nargs="*", default=["bf16"])
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--tokens", nargs="*", type=int, default=TOKENS)
    given = parser.parse_args()
    for layer in given.layers:
        for activations in given.modes:
            measure(layer, activations, given.tokens)
