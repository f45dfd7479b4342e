"""A gfx950 GPU that is here, through torch's ROCm build: what `bench.targets.gfx950` times then.

**Never run**: no such GPU was at hand. Tests go through it on a CPU with graphs of their own.

`linear` by activations of four, eight and sixteen bits, `matmul` and `quantize` of the public API
against hipBLASLt on bfloat16 weights, AITER and Triton's `dot_scaled` where they are installed, and
a copy, in the times of `bench.graph_timing`. Beside each is what the model predicted, from
`bench/results`. What only the model knows (pipes, bytes, conflicts) stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec

import torch

import mx_kernels as mx
from bench.graph_timing import MIN_CALLS, Call, Graph, checked, cold_copies, take_turns
from bench.rows import OURS, Origin
from bench.shapes import Shape
from bench.simulated.kept import predicted
from bench.simulated.kernels import WIDE
from bench.simulated.report import MODELLED, PRACTICAL_FLOOR_US, SimulatedRow
from gfx950.timing.parameters import Machine

NAME = "gfx950"
COLD_BYTES = 800_000_000
"""Copies of the weights fill this: more than three times the Infinity Cache."""
COMPUTES = {
    **dict.fromkeys(("linear", *WIDE), "quantize and multiply, fused"),
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


def aiter_product(a: mx.MXTensor, out: torch.Tensor) -> Callable[[mx.MXTensor], torch.Tensor]:
    """Returns AITER's product of codes by weights, which takes the bytes of our layout.

    Rows of codes are plain, their scales are not; `out` has rows for whole tiles.
    """
    import aiter  # noqa: PLC0415  a peer, where it is installed

    codes, scales = torch.float4_e2m1fn_x2, torch.float8_e8m0fnu
    left, of_left = a.codes.view(codes), a.preshuffle(device=NAME).scales.view(scales)

    def product(w: mx.MXTensor) -> torch.Tensor:
        right, of_right = w.codes.view(codes), w.scales.view(scales)
        aiter.gemm_a4w4(left, right, of_left, of_right, out, bpreshuffle=True)
        return out[: len(left)]

    return product


def installed_peers() -> dict[str, bool]:
    """Returns which peers of `_systems` can be imported."""
    return {name: find_spec(name) is not None for name in ("aiter", "triton")}


def measure(
    origin: Origin,
    shapes: Sequence[Shape],
    progress: Callable[[str], None],
    *,
    least_us: LeastUs,
    device: str = "cuda",
    cold_bytes: int = COLD_BYTES,
    capture: Capture = Graph,
    peers: Mapping[str, bool] | None = None,
) -> Iterator[SimulatedRow]:
    """Yields a row for each operation, shape and system, as the model's target does.

    `peers` says which are there; None looks.
    """
    peers = installed_peers() if peers is None else peers
    for shape in shapes:
        progress(f"{shape}: timing on {origin.device}")
        for op, systems in _systems(shape, device, cold_bytes, peers).items():
            found = take_turns({system: capture(calls) for system, calls in systems.items()})
            times = {system: one.median_us for system, one in found.items()}
            for reading, time_us in predicted(op, shape).items():
                times[f"{MODELLED}, {reading}"] = time_us
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


def _systems(
    shape: Shape, device: str, cold_bytes: int, peers: Mapping[str, bool]
) -> dict[str, dict[str, list[Call]]]:
    """Returns the calls of every system by operation, one for each copy of the weights."""
    generator = torch.Generator(device).manual_seed(sum(shape))
    x = torch.randn(shape.m, shape.k, generator=generator, device=device).bfloat16()
    weight = torch.randn(shape.n, shape.k, generator=generator, device=device) * 0.02
    plain, a = mx.quantize(weight), mx.quantize(x)
    dense = plain.dequantize(torch.bfloat16)
    kept = x.float() @ dense.float().T
    rounded = a.dequantize(torch.float32) @ dense.float().T
    whole = torch.empty(-(-shape.m // 256) * 256, shape.n, device=device, dtype=torch.bfloat16)
    out, copy = whole[: shape.m], torch.empty_like(x)

    wide, stored = (cold_copies(w, cold_bytes) for w in (dense, plain.preshuffle(device=NAME)))
    bf16 = {"hipBLASLt bf16": checked(lambda w: torch.mm(x, w.T, out=out), wide, kept)}
    if peers["triton"]:
        packed = cold_copies(plain, cold_bytes)
        bf16["Triton dot_scaled"] = checked(lambda w: triton_call(x, w, out)(), packed, kept)
    codes = {}
    if peers["aiter"]:
        codes["AITER"] = checked(aiter_product(a, whole), stored, rounded)

    def fused(activations: str) -> dict[str, list[Call]]:
        exact = kept
        if activations != "bf16":
            exact = mx.quantize(x, format=activations).dequantize(torch.float32) @ dense.float().T
        ours = checked(lambda w: mx.linear(x, w, activations=activations), stored, exact)
        return {OURS: ours, **bf16}

    return {
        "linear": fused("mxfp4"),
        **{op: fused(left) for op, (left, right) in WIDE.items() if right == "mxfp4"},
        "matmul": {OURS: checked(lambda w: mx.matmul(a, w), stored, rounded), **codes, **bf16},
        "quantize": {
            OURS: [lambda: mx.quantize(x)] * MIN_CALLS,
            "torch copy": [lambda: copy.copy_(x)] * MIN_CALLS,
        },
    }
