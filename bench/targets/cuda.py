"""A CUDA device: `linear` in both modes, `matmul` and `quantize`, against cuBLAS and Triton.

Each system's calls are captured in one CUDA graph, so that no host time counts, over copies of
the weights that together are larger than the second-level cache: weights come from memory, as
in a model. Every competitor is checked against the float32 product first. Times are the graph's
over its calls: median and best of its replays.

    python -m bench.targets.cuda RESULT.csv COMMIT DATE [--large]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch

from bench.peers import triton_dot_scaled
from bench.rows import OURS, Origin, Row, write_csv
from mx_kernels import MXTensor, linear, matmul, quantize

COLD_BYTES = 200_000_000
"""Copies of the weights fill this: more than three times the cache of an H200."""
MIN_CALLS, REPLAYS = 20, 21
SHAPES = (
    (1, 4096, 4096), (1, 14336, 4096), (16, 14336, 4096), (16, 2112, 7168), (64, 7168, 2048),
    (4, 2880, 512), (32, 4096, 512), (32, 2880, 512), (256, 3072, 1536), (512, 4096, 4096),
)  # fmt: skip
LARGE_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192))
COMPUTES = {
    "cuBLAS bf16": "bf16 x bf16, the weights dequantized",
    "Triton dot_scaled": "bf16 x MXFP4",
    "torch copy": "a copy of the input",
    "linear bf16": "bf16 x MXFP4",
    "linear mxfp4": "MXFP4 x MXFP4, the activations rounded in the call",
    "matmul": "MXFP4 x MXFP4",
    "quantize": "bf16 to MXFP4",
}
QUANTIZE_SHAPE = (8192, 8192)
MAX_RELATIVE_ERROR = 5e-3
"""Of the norm of a bfloat16 product: rounding to bfloat16 alone is 1.7e-3."""


@dataclass(frozen=True)
class Times:
    """Microseconds of one call."""

    median_us: float
    best_us: float


def time_calls(calls: list[Callable[[], object]]) -> Times:
    """Captures the calls in one graph and times its replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    times = sorted(times[1:])
    return Times(times[len(times) // 2], times[0])


class CudaBench:
    """The rows of one run."""

    def __init__(self, origin: Origin):
        self.origin = origin
        self.rows: list[Row] = []

    def add(
        self, op: str, shape, system: str, found: Times, *, ours_us: float, work: float
    ) -> None:
        """Keeps one result; `work` is operations, or bytes of the quantizer's input."""
        m, n, k = shape
        self.rows.append(
            Row(
                op=op,
                m=m,
                n=n,
                k=k,
                system=system,
                computes=COMPUTES.get(system, COMPUTES.get(op, "")),
                threads=0,
                time_us_median=found.median_us,
                time_us_best=found.best_us,
                rate=work / found.median_us / 1e3,
                rate_unit="GB/s" if not n else "GOP/s",
                times_ours=found.median_us / ours_us,
                times_roofline=None,
                **vars(self.origin),
            )
        )
        print(f"{op:24} {m:5} {n:5} {k:5}  {system:24} {found.median_us:9.2f} us", flush=True)

    def measure_shape(self, shape: tuple[int, int, int]) -> None:
        """Times our modes and the peers on one shape."""
        m, n, k = shape
        generator = torch.Generator(device="cuda").manual_seed(m + n + k)
        x = torch.randn(m, k, generator=generator, device="cuda").bfloat16()
        plain = quantize(torch.randn(n, k, generator=generator, device="cuda") * 0.02)
        shuffled = plain.preshuffle()
        dense = plain.dequantize("bfloat16")
        encoded = quantize(x)
        x_mx = encoded.dequantize("float32")
        kept, quantized = x.float() @ dense.float().T, x_mx @ dense.float().T
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

        def packed(parts):
            return MXTensor(*parts, shape=(n, k), layout=shuffled.layout)

        row_major, weights = ((w.codes, w.scales) for w in (plain, shuffled))
        systems = {
            "linear bf16": (OURS, kept, weights,
                            lambda w: linear(x, packed(w), activations="bf16")),
            "linear mxfp4": (OURS, quantized, weights, lambda w: linear(x, packed(w))),
            "matmul": (OURS, quantized, weights, lambda w: matmul(encoded, packed(w))),
            "cuBLAS": ("cuBLAS bf16", kept, (dense,), lambda w: torch.mm(x, w[0].T, out=out)),
        }  # fmt: skip
        found = {name: self._measure(*parts[1:]) for name, parts in systems.items()}
        found["Triton"] = min(
            (
                self._measure(kept, row_major, lambda w, t=tiling: triton_dot_scaled.multiply(
                    x, *w, out, t))
                for tiling in triton_dot_scaled.tilings_for(m)
            ),
            key=lambda times: times.median_us,
        )  # fmt: skip
        for op in ("linear bf16", "linear mxfp4", "matmul"):
            ours_us = found[op].median_us
            self.add(op, shape, OURS, found[op], ours_us=ours_us, work=2 * m * n * k)
            for peer, name in (("cuBLAS", "cuBLAS bf16"), ("Triton", "Triton dot_scaled")):
                self.add(op, shape, name, found[peer], ours_us=ours_us, work=2 * m * n * k)

    def _measure(self, expected, weights, call) -> Times:
        got = call(weights).float()
        error = (got - expected).norm() / expected.norm()
        if not error <= MAX_RELATIVE_ERROR:
            raise ValueError(f"relative error {error:.2e}, expected {MAX_RELATIVE_ERROR:.0e}")
        num_bytes = sum(part.numel() * part.element_size() for part in weights)
        copies = [weights] + [
            tuple(part.clone() for part in weights) for _ in range(COLD_BYTES // num_bytes)
        ]
        num_calls = max(MIN_CALLS, len(copies))
        return time_calls([lambda w=w: call(w) for w, _ in zip(cycle(copies), range(num_calls))])

    def measure_quantizer(self) -> None:
        """Times rounding a large matrix, and copying it."""
        rows, k = QUANTIZE_SHAPE
        inputs = [torch.randn(rows, k, device="cuda").bfloat16() for _ in range(4)]
        target = torch.empty_like(inputs[0])
        ours = time_calls([lambda x=x: quantize(x) for x in inputs * 5])
        copy = time_calls([lambda x=x: target.copy_(x) for x in inputs * 5])
        # Bytes read and written.
        self.add("quantize", (rows, 0, k), OURS, ours, ours_us=ours.median_us,
                 work=rows * k * (2 + 17 / 32))  # fmt: skip
        self.add(
            "quantize", (rows, 0, k), "torch copy", copy, ours_us=ours.median_us, work=rows * k * 4
        )


def main() -> None:
    """Measures and writes the rows."""
    path, commit, date = sys.argv[1:4]
    bench = CudaBench(Origin(torch.cuda.get_device_name(), commit, date))
    bench.measure_quantizer()
    for shape in SHAPES + (LARGE_SHAPES if "--large" in sys.argv else ()):
        bench.measure_shape(shape)
    write_csv(Path(path), bench.rows)


if __name__ == "__main__":
    main()
