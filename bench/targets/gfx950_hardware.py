"""A gfx950 GPU that is here, through torch's ROCm build: what `bench.targets.gfx950` times then.

**Never run**: no such GPU was at hand. Tests go through it on a CPU with a clock of their own.

`linear`, `matmul` and `quantize` of the public API against hipBLASLt on bfloat16 weights, Triton's
`dot_scaled` and a copy. Calls are captured in one graph, so that no host time counts, over copies
of the weights that together are larger than the Infinity Cache; each result is compared with the
float32 product first. What only the model knows (pipes, bytes, conflicts) stays empty.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import torch

import mx_kernels as mx
from bench.rows import OURS, Origin
from bench.shapes import Shape
from bench.simulated.report import PRACTICAL_FLOOR_US, SimulatedRow
from gfx950.parameters import Machine

NAME = "gfx950"
COLD_BYTES = 800_000_000
"""Copies of the weights fill this: more than three times the Infinity Cache."""
MIN_CALLS, REPLAYS = 20, 21
MAX_RELATIVE_ERROR = 5e-3
"""Of the norm of a bfloat16 product: rounding to bfloat16 alone is 1.7e-3."""
COMPUTES = {
    "linear": "quantize and multiply, fused",
    "matmul": "multiply, x quantized before",
    "quantize": "quantize",
}

Call = Callable[[], torch.Tensor]
Timer = Callable[[Sequence[Call]], float]
LeastUs = Callable[[str, Shape, Machine], float]


def device_name() -> str | None:
    """Returns the name of the gfx950 GPU that torch sees, or None."""
    if torch.version.hip and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        if properties.gcnArchName.startswith(NAME):
            return properties.name
    return None


def graph_us(calls: Sequence[Call]) -> float:
    """Returns the median microseconds of a call within a graph of all calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    times_us = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(1e3 * start.elapsed_time(end) / len(calls))
    return statistics.median(times_us[1:])


def triton_call(x, plain, out) -> Call:
    """Returns a call of Triton's `dot_scaled`, in the largest tiling for so many rows."""
    from bench.peers import triton_dot_scaled as peer  # noqa: PLC0415  needs Triton

    tiling = peer.tilings_for(len(x))[-1]
    return lambda: peer.multiply(x, plain.codes, plain.scales, out, tiling)


def measure(
    origin: Origin,
    shapes: Sequence[Shape],
    progress: Callable[[str], None],
    *,
    least_us: LeastUs,
    device: str = "cuda",
    timer: Timer = graph_us,
    with_triton: bool = True,
) -> Iterator[SimulatedRow]:
    """Yields a row for each operation, shape and system, as the model's target does."""
    for shape in shapes:
        progress(f"{shape}: timing on {origin.device}")
        for op, calls in _systems(shape, device, with_triton).items():
            times = {system: timer(variants) for system, variants in calls.items()}
            for system, time_us in times.items():
                least = least_us(op, shape, Machine())
                yield SimulatedRow(
                    op=op, m=shape.m, n=0 if op == "quantize" else shape.n, k=shape.k,
                    system=system, computes=COMPUTES[op] if system == OURS else system,
                    kernels="", launches=1, time_us=time_us, kernel_us=time_us,
                    times_ours=time_us / times[OURS], least_us=least,
                    times_floor=time_us / max(least, PRACTICAL_FLOOR_US),
                    mfma_utilisation=None, loop_utilisation=None, hbm_bytes=None,
                    waves_per_simd=None, lds_conflict_share=None,
                    source=f"hardware, {origin.device}", commit=origin.commit, date=origin.date,
                )  # fmt: skip


def _systems(shape: Shape, device: str, with_triton: bool) -> dict[str, dict[str, list[Call]]]:
    """Returns the calls of every system by operation, one for each copy of the weights."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    x = torch.randn(shape.m, shape.k, generator=generator, device=device).bfloat16()
    weight = torch.randn(shape.n, shape.k, generator=generator, device=device) * 0.02
    plain, a = mx.quantize(weight), mx.quantize(x)
    stored = plain.preshuffle(device=NAME)
    dense = plain.dequantize(torch.bfloat16)
    kept = x.float() @ dense.float().T
    quantized = a.dequantize(torch.float32) @ dense.float().T
    out = torch.empty(shape.m, shape.n, device=device, dtype=torch.bfloat16)

    bf16 = {"hipBLASLt bf16": _cold(kept, dense, lambda w: torch.mm(x, w.T, out=out))}
    if with_triton:
        bf16["Triton dot_scaled"] = _cold(kept, plain, lambda w: triton_call(x, w, out)())
    copy = torch.empty_like(x)
    return {
        "linear": {OURS: _cold(quantized, stored, lambda w: mx.linear(x, w)), **bf16},
        "matmul": {OURS: _cold(quantized, stored, lambda w: mx.matmul(a, w)), **bf16},
        "quantize": {
            OURS: [lambda: mx.quantize(x)] * MIN_CALLS,
            "torch copy": [lambda: copy.copy_(x)] * MIN_CALLS,
        },
    }


def _cold(expected: torch.Tensor, weights, call: Callable) -> list[Call]:
    """Returns calls over so many copies of the weights that no cache holds them all.

    Raises:
        ValueError: if a result is too far from what is expected.
    """
    error = (call(weights).float() - expected).norm() / expected.norm()
    if not error <= MAX_RELATIVE_ERROR:
        raise ValueError(f"relative error {error:.2e}, expected {MAX_RELATIVE_ERROR:.0e}")
    is_tensor = isinstance(weights, torch.Tensor)
    parts = (weights,) if is_tensor else (weights.codes, weights.scales)
    num_bytes = sum(part.numel() * part.element_size() for part in parts)
    copies = [weights]
    if weights.device.type != "cpu":
        copies += [
            weights.clone() if is_tensor else weights.to("cpu").to(weights.device)
            for _ in range(COLD_BYTES // num_bytes)
        ]
    num_calls = max(MIN_CALLS, len(copies))
    return [lambda w=w: call(w) for w, _ in zip(cycle(copies), range(num_calls), strict=False)]
