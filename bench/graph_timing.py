"""Times of calls on a GPU, captured in graphs: no host time counts, and weights are cold.

    calls      w0 w1 w2 .. w0 w1    over copies of the weights that together fit no cache
    graphs     A B C  A B C  ..     those of a shape take turns
    times      median, best         of a call, without a graph's first replay

Weights come from memory, as in a model. A system's result is compared with the float32 product
before its calls are captured. On ROCm torch gives graphs and events the same names.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

COLD_BYTES = 200_000_000
"""Copies of the weights fill this: more than three times the cache of an H200."""
MIN_CALLS, REPLAYS = 20, 21
BIG_WORK, MAX_CALLS = 2.5e10, 60
MAX_RELATIVE_ERROR = 5e-3
"""Of the norm of a bfloat16 product: rounding to bfloat16 alone is 1.7e-3."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Microseconds of one call."""

    median_us: float
    best_us: float


class Graph:
    """Calls captured in one graph, which uses their tensors but does not keep them."""

    def __init__(self, calls: Sequence[Call]):
        self.calls, self.times = calls, []
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in calls[:2]:
                call()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                for call in calls:
                    call()

    def replay(self) -> None:
        """Keeps the microseconds of a call in one more replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        self.times.append(start.elapsed_time(end) * 1e3 / len(self.calls))

    def found(self) -> Times:
        """Returns median and best, without the first replay."""
        return Times(statistics.median(self.times[1:]), min(self.times[1:]))


def median_us(call: Callable, weights: list, work: float) -> float:
    """Returns the median microseconds of a call that multiplies so often, over copies of weights.

    Large products are called less often: they are long beside the noise.
    """
    is_big = work > BIG_WORK
    count = 4 if is_big else max(12, min(len(weights), MAX_CALLS))
    graph = Graph([lambda w=w: call(w) for w in islice(cycle(weights), count)])
    for _ in range(4 if is_big else 7):
        graph.replay()
    return graph.found().median_us


def take_turns(graphs: dict[str, Graph]) -> dict[str, Times]:
    """Replays the graphs in turn."""
    for _ in range(REPLAYS):
        for graph in graphs.values():
            graph.replay()
    return {name: graph.found() for name, graph in graphs.items()}


def cold_copies(weight, cold_bytes: int = COLD_BYTES) -> list:
    """Returns the weight, a tensor or an MXTensor, and copies: more than `cold_bytes` in all."""
    return [weight, *(copy.deepcopy(weight) for _ in range(cold_bytes // weight.nbytes))]


def checked(call: Callable, weights: Sequence, expected: torch.Tensor) -> list[Call]:
    """Returns a call for each of the weights, at least `MIN_CALLS`, after comparing a result.

    Raises:
        ValueError: if the result is not the product.
    """
    got = call(weights[0]).float()
    error = float((got - expected).norm() / expected.norm())
    if not error <= MAX_RELATIVE_ERROR:
        raise ValueError(f"relative error {error:.2e}, expected {MAX_RELATIVE_ERROR:.0e}")
    num_calls = max(MIN_CALLS, len(weights))
    return [lambda w=w: call(w) for w in islice(cycle(weights), num_calls)]


def print_table(
    shapes: Sequence[tuple[int, int, int]],
    times: Callable[[int, int, int], dict[str, float]],
    cell: Callable[[str, dict[str, float]], str],
) -> None:
    """Prints a line of Markdown for each shape as soon as it is measured.

    Args:
        shapes: (M, N, K).
        times: measures the microseconds of each system; the first shape has all of them.
        cell: says what stands in the column of a system.
    """
    names: list[str] = []
    for shape in shapes:
        found = times(*shape)
        if not names:
            names = list(found)
            print(f"{torch.cuda.get_device_name()}, microseconds\n")
            print("| M x N x K | " + " | ".join(names) + " |")
            print("| --- |" + " ---: |" * len(names))
        cells = [cell(name, found) for name in names]
        print("| " + " x ".join(map(str, shape)) + " | " + " | ".join(cells) + " |", flush=True)
