"""A gfx950 GPU that is here, through torch's ROCm build: what `bench.targets.gfx950` times then.

**Never run**: no such GPU was at hand. Tests go through it on a CPU with graphs of their own.

`linear`, `matmul` and `quantize` of the public API against hipBLASLt on bfloat16 weights, Triton's
`dot_scaled` and a copy, in the times of `bench.graph_timing`. What only the model knows (pipes,
bytes, conflicts) stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

import mx_kernels as mx
from bench.graph_timing import MIN_CALLS, Call, Graph, checked, cold_copies, take_turns
from bench.rows import OURS, Origin
from bench.shapes import Shape
from bench.simulated.report import PRACTICAL_FLOOR_US, SimulatedRow
from gfx950.timing.parameters import Machine

NAME = "gfx950"
COLD_BYTES = 800_000_000
"""Copies of the weights fill this: more than three times the Infinity Cache."""
COMPUTES = {
    "linear": "quantize and multiply, fused",
    "matmul": "multiply, x quantized before",
    "quantize": "quantize",
}

Capture = Callable[[Sequence[Call]], Graph]
LeastUs = Callable[[str, Shape, Machine], float]


def device_name() -> str | None:
    """Returns the name of the gfx950 GPU that torch sees, or None."""
    if torch.version.hip and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        if properties.gcnArchName.startswith(NAME):
            return properties.name
    return None


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
    cold_bytes: int = COLD_BYTES,
    capture: Capture = Graph,
    with_triton: bool = True,
) -> Iterator[SimulatedRow]:
    """Yields a row for each operation, shape and system, as the model's target does."""
    for shape in shapes:
        progress(f"{shape}: timing on {origin.device}")
        for op, systems in _systems(shape, device, cold_bytes, with_triton).items():
            found = take_turns({system: capture(calls) for system, calls in systems.items()})
            for system, times in found.items():
                time_us, least = times.median_us, least_us(op, shape, Machine())
                yield SimulatedRow(
                    op=op, m=shape.m, n=0 if op == "quantize" else shape.n, k=shape.k,
                    system=system, computes=COMPUTES[op] if system == OURS else system,
                    kernels="", launches=1, time_us=time_us, kernel_us=time_us,
                    times_ours=time_us / found[OURS].median_us, least_us=least,
                    times_floor=time_us / max(least, PRACTICAL_FLOOR_US),
                    mfma_utilisation=None, loop_utilisation=None, hbm_bytes=None,
                    waves_per_simd=None, lds_conflict_share=None,
                    source=f"hardware, {origin.device}", commit=origin.commit, date=origin.date,
                )  # fmt: skip


def _systems(
    shape: Shape, device: str, cold_bytes: int, with_triton: bool
) -> dict[str, dict[str, list[Call]]]:
    """Returns the calls of every system by operation, one for each copy of the weights."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    x = torch.randn(shape.m, shape.k, generator=generator, device=device).bfloat16()
    weight = torch.randn(shape.n, shape.k, generator=generator, device=device) * 0.02
    plain, a = mx.quantize(weight), mx.quantize(x)
    dense = plain.dequantize(torch.bfloat16)
    kept = x.float() @ dense.float().T
    rounded = a.dequantize(torch.float32) @ dense.float().T
    out = torch.empty(shape.m, shape.n, device=device, dtype=torch.bfloat16)
    copy = torch.empty_like(x)

    wide, stored = (cold_copies(w, cold_bytes) for w in (dense, plain.preshuffle(device=NAME)))
    bf16 = {"hipBLASLt bf16": checked(lambda w: torch.mm(x, w.T, out=out), wide, kept)}
    if with_triton:
        packed = cold_copies(plain, cold_bytes)
        bf16["Triton dot_scaled"] = checked(lambda w: triton_call(x, w, out)(), packed, kept)
    return {
        "linear": {
            OURS: checked(lambda w: mx.linear(x, w, activations="mxfp4"), stored, rounded),
            **bf16,
        },
        "matmul": {OURS: checked(lambda w: mx.matmul(a, w), stored, rounded), **bf16},
        "quantize": {
            OURS: [lambda: mx.quantize(x)] * MIN_CALLS,
            "torch copy": [lambda: copy.copy_(x)] * MIN_CALLS,
        },
    }
