"""A CUDA device: quantize, matmul and linear against cuBLAS, humming and Triton.

Each system's calls are captured in one CUDA graph, so that no host time counts, over copies of
the weights that together are larger than the second-level cache: weights come from memory, as
in a model. Every system is checked against the float32 product first; then the graphs of a shape
take turns. Times are a graph's over its calls, rates 2 M N K a second.

`linear` rounds its bfloat16 activations in the call, `linear bf16` keeps them. Rows have zero
threads: the host's do not matter.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import torch

import mx_kernels as mx
from bench.peers import humming, triton_dot_scaled
from bench.rows import OURS, Origin, Row
from bench.shapes import NAMED_SHAPES, QUICK_SHAPES, Shape
from bench.targets import Plan, Reporter

COLD_BYTES = 200_000_000
"""Copies of the weights fill this: more than three times the cache of an H200."""
MIN_CALLS, REPLAYS = 20, 21
SHAPES = (
    *NAMED_SHAPES, Shape(16, 14336, 4096), Shape(4096, 4096, 4096), Shape(8192, 8192, 8192),
)  # fmt: skip
QUANTIZE_SHAPE = Shape(8192, 0, 8192)
LIMIT_SHAPE = Shape(8192, 8192, 8192)
BF16_BYTES, BLOCK = 2, 32
MAX_RELATIVE_ERROR = 5e-3
"""Of the norm of a bfloat16 product: rounding to bfloat16 alone is 1.7e-3."""
BASELINE = "cuBLAS bf16"
COMPUTES = {
    BASELINE: "bf16 x bf16, the weights dequantized",
    "humming": "bf16 x MXFP4",
    "Triton dot_scaled": "bf16 x MXFP4, the fastest of several tilings",
    "torch copy": "a copy of the input",
    "linear": "MXFP4 x MXFP4, the activations rounded in the call",
    "linear bf16": "bf16 x MXFP4",
    "matmul": "MXFP4 x MXFP4",
    "quantize": "bf16 to MXFP4",
}


def measure(plan: Plan, origin: Origin, report: Reporter) -> None:
    """Measures everything in the plan on the current CUDA device.

    Raises:
        RuntimeError: if there is none.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device on this machine")
    origin = dataclasses.replace(origin, device=torch.cuda.get_device_name())
    with torch.inference_mode():
        bench = CudaBench(plan, origin, report)
        bench.measure_limits()
        if "quantize" in plan.ops:
            bench.measure_quantizer()
        for shape in QUICK_SHAPES if plan.quick else SHAPES:
            bench.measure_products(shape)


@dataclass(frozen=True)
class Times:
    """Microseconds of one call."""

    median_us: float
    best_us: float


class Graph:
    """Calls captured in one CUDA graph, which uses their tensors but does not keep them."""

    def __init__(self, calls: list[Callable[[], object]]):
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


def take_turns(graphs: dict[str, Graph]) -> dict[str, Times]:
    """Replays the graphs in turn."""
    for _ in range(REPLAYS):
        for graph in graphs.values():
            graph.replay()
    return {name: graph.found() for name, graph in graphs.items()}


@dataclass(frozen=True)
class Operands:
    """One product: activations, and copies of the weights in the forms that systems take."""

    x: torch.Tensor
    plain: mx.MXTensor
    shuffled: mx.MXTensor
    dense: torch.Tensor

    @classmethod
    def make(cls, shape: Shape) -> Operands:
        """Draws the operands of a shape."""
        generator = torch.Generator(device="cuda").manual_seed(sum(shape))
        x = torch.randn(shape.m, shape.k, generator=generator, device="cuda").bfloat16()
        weight = torch.randn(shape.n, shape.k, generator=generator, device="cuda") * 0.02
        plain = mx.quantize(weight)
        return cls(x, plain, mx.preshuffle(plain), mx.dequantize(plain))

    @property
    def num_packed_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.plain.codes.numel() + self.plain.scales.numel()


class CudaBench:
    """The rows of one run."""

    def __init__(self, plan: Plan, origin: Origin, report: Reporter):
        self.plan, self.origin, self.report = plan, origin, report
        self.bytes_per_us = self.flops_per_us = 1.0

    def measure_limits(self) -> None:
        """Measures what the device can do: copies, and products of bfloat16 numbers."""
        self.report.progress("measuring the limits of the device")
        source = torch.randn(QUANTIZE_SHAPE.m, QUANTIZE_SHAPE.k, device="cuda").bfloat16()
        other, target = torch.randn_like(source), torch.empty_like(source)
        copies = Graph([lambda: target.copy_(source), lambda: source.copy_(other)] * 10)
        product = Graph([lambda: torch.mm(source, other.T, out=target)] * 4)
        found = take_turns({"copy": copies, "product": product})
        self.bytes_per_us = 2 * source.numel() * BF16_BYTES / found["copy"].best_us
        self.flops_per_us = LIMIT_SHAPE.flops / found["product"].best_us
        for name, rate, unit in (
            ("copy, read and written", self.bytes_per_us / 1e3, "GB/s"),
            (f"bf16 product {LIMIT_SHAPE}", self.flops_per_us / 1e3, "GFLOP/s"),
        ):
            self._row("machine", Shape(0, 0, 0), (name, "best of several tries"), rate, unit)

    def measure_quantizer(self) -> None:
        """Times rounding a large matrix, and copying it."""
        self.report.progress(f"quantize {QUANTIZE_SHAPE.m} x {QUANTIZE_SHAPE.k}")
        m, _, k = QUANTIZE_SHAPE
        inputs = [torch.randn(m, k, device="cuda").bfloat16() for _ in range(4)]
        target = torch.empty_like(inputs[0])
        graphs = {
            OURS: Graph([lambda x=x: mx.quantize(x) for x in inputs * 5]),
            "torch copy": Graph([lambda x=x: target.copy_(x) for x in inputs * 5]),
        }
        found = take_turns(graphs)
        num_bytes = {OURS: m * (BF16_BYTES * k + k // 2 + k // BLOCK), "torch copy": 4 * m * k}
        least = {system: count / self.bytes_per_us for system, count in num_bytes.items()}
        self._timed("quantize", QUANTIZE_SHAPE, found, num_bytes, least)

    def measure_products(self, shape: Shape) -> None:
        """Times our modes and the peers on one shape."""
        self.report.progress(f"{shape}: preparing")
        operands = Operands.make(shape)
        graphs = dict(self._ours(operands)) | dict(self._peers(operands, shape))
        self.report.progress(f"{shape}: timing")
        found = take_turns(graphs)
        tilings = [name for name in found if name.startswith("Triton dot_scaled")]
        fastest = min(tilings, key=lambda name: found[name].median_us)
        found["Triton dot_scaled"] = found[fastest]
        for op in ("linear", "linear bf16", "matmul"):
            if op not in self.plan.ops:
                continue
            x_bytes = operands.x.numel() * (17 / BLOCK if op == "matmul" else BF16_BYTES)
            num_bytes = operands.num_packed_bytes + x_bytes + BF16_BYTES * shape.m * shape.n
            least_us = max(num_bytes / self.bytes_per_us, shape.flops / self.flops_per_us)
            systems = {OURS: found[op]}
            systems |= {name: found[name] for name in (BASELINE, "humming", "Triton dot_scaled")
                        if name in found}  # fmt: skip
            self._timed(
                op, shape, systems, dict.fromkeys(systems, shape.flops),
                dict.fromkeys(systems, least_us),
            )  # fmt: skip

    def _ours(self, operands: Operands) -> Iterator[tuple[str, Graph]]:
        x, encoded = operands.x, mx.quantize(operands.x)
        dense = operands.dense.float()
        kept, rounded = x.float() @ dense.T, mx.dequantize(encoded, dtype="float32") @ dense.T
        copies = self._copies(operands.shuffled, operands.num_packed_bytes)
        yield "linear bf16", checked(lambda w: mx.linear(x, w, activations="bf16"), copies, kept)
        yield "linear", checked(lambda w: mx.linear(x, w), copies, rounded)
        yield "matmul", checked(lambda w: mx.matmul(encoded, w), copies, rounded)

    def _peers(self, operands: Operands, shape: Shape) -> Iterator[tuple[str, Graph]]:
        x, plain = operands.x, operands.plain
        expected = x.float() @ operands.dense.float().T
        out = torch.empty(shape.m, shape.n, device="cuda", dtype=torch.bfloat16)
        dense = self._copies(operands.dense, BF16_BYTES * shape.n * shape.k)
        yield BASELINE, checked(lambda w: torch.mm(x, w.T, out=out), dense, expected)
        copies = self._copies(plain, operands.num_packed_bytes)
        for tiling in triton_dot_scaled.tilings_for(shape.m):
            yield (
                f"Triton dot_scaled {tiling}",
                checked(
                    lambda w, tiling=tiling: triton_dot_scaled.multiply(
                        x, w.codes, w.scales, out, tiling
                    ),
                    copies,
                    expected,
                ),
            )
        try:
            layers = humming.layers([(w.codes, w.scales) for w in copies])
            yield humming.NAME, checked(lambda layer: layer(x), layers, expected)
        except Exception as error:
            reason = str(error).strip().split("\n")[0][:160]
            self.report.remark(f"humming is left out at {shape}: {type(error).__name__}: {reason}")

    def _copies(self, weight, num_bytes: int) -> list:
        """Returns the weight and copies that together do not fit the cache."""
        return [weight, *(copy.deepcopy(weight) for _ in range(COLD_BYTES // num_bytes))]

    def _timed(self, op: str, shape: Shape, found: dict[str, Times], work: dict, least: dict):
        """Reports one operation: ours first, `work` an amount for each system, `least` a time."""
        for system, times in found.items():
            computes = COMPUTES[op if system == OURS else system]
            rate = work[system] / times.median_us / 1e3
            self._row(
                op, shape, (system, computes), rate, "GB/s" if op == "quantize" else "GOP/s",
                time_us_median=times.median_us,
                time_us_best=times.best_us,
                times_ours=times.median_us / found[OURS].median_us,
                times_roofline=times.median_us / least[system],
            )  # fmt: skip

    def _row(self, op: str, shape: Shape, system: tuple[str, str], rate, unit, **times) -> None:
        absent = dict.fromkeys(("time_us_median", "time_us_best", "times_ours", "times_roofline"))
        row = Row(
            op=op, m=shape.m, n=shape.n, k=shape.k, system=system[0], computes=system[1],
            threads=0, rate=rate, rate_unit=unit, **{**absent, **times}, **vars(self.origin),
        )  # fmt: skip
        self.report.row(row)


def checked(call: Callable, weights: list, expected: torch.Tensor) -> Graph:
    """Captures a call for each of the weights, after comparing its result.

    Raises:
        ValueError: if the result is not the product.
    """
    got = call(weights[0]).float()
    error = float((got - expected).norm() / expected.norm())
    if not error <= MAX_RELATIVE_ERROR:
        raise ValueError(f"relative error {error:.2e}, expected {MAX_RELATIVE_ERROR:.0e}")
    num_calls = max(MIN_CALLS, len(weights))
    return Graph([lambda w=w: call(w) for w, _ in zip(cycle(weights), range(num_calls))])
