"""A CUDA device: quantize, matmul and linear against cuBLAS, humming and Triton.

Times are those of `bench.graph_timing`: of calls in CUDA graphs, weights cold, every system
checked against the float32 product. Rates are 2 M N K a second.

`linear` rounds its bfloat16 activations in the call, `linear bf16` keeps them. Rows have zero
threads: the host's do not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import mx_kernels as mx
from bench.graph_timing import Graph, Times, checked, cold_copies, take_turns
from bench.peers import humming, triton_dot_scaled
from bench.rows import OURS, Origin, Row
from bench.shapes import NAMED_SHAPES, QUICK_SHAPES, Shape
from bench.targets import Plan, Reporter

SHAPES = (
    *NAMED_SHAPES, Shape(16, 14336, 4096), Shape(4096, 4096, 4096), Shape(8192, 8192, 8192),
)  # fmt: skip
QUANTIZE_SHAPE = Shape(8192, 0, 8192)
LIMIT_SHAPE = Shape(8192, 8192, 8192)
BF16_BYTES, BLOCK = 2, 32
OPS = ("quantize", "matmul", "linear", "linear bf16")
"""What is measured here, of `targets.OPS`."""
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
        return cls(x, plain, mx.preshuffle(plain), mx.dequantize(plain, dtype="bfloat16"))


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
            num_bytes = operands.plain.nbytes + x_bytes + BF16_BYTES * shape.m * shape.n
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
        copies = cold_copies(operands.shuffled)
        for name, call, expected in (
            ("linear bf16", lambda w: mx.linear(x, w, activations="bf16"), kept),
            ("linear", lambda w: mx.linear(x, w, activations="mxfp4"), rounded),
            ("matmul", lambda w: mx.matmul(encoded, w), rounded),
        ):
            yield name, Graph(checked(call, copies, expected))

    def _peers(self, operands: Operands, shape: Shape) -> Iterator[tuple[str, Graph]]:
        x, plain = operands.x, operands.plain
        expected = x.float() @ operands.dense.float().T
        out = torch.empty(shape.m, shape.n, device="cuda", dtype=torch.bfloat16)
        dense = cold_copies(operands.dense)
        yield BASELINE, Graph(checked(lambda w: torch.mm(x, w.T, out=out), dense, expected))
        copies = cold_copies(plain)
        for tiling in triton_dot_scaled.tilings_for(shape.m):
            calls = checked(
                lambda w, tiling=tiling: triton_dot_scaled.multiply(
                    x, w.codes, w.scales, out, tiling
                ),
                copies,
                expected,
            )
            yield f"Triton dot_scaled {tiling}", Graph(calls)
        try:
            layers = humming.layers([(w.codes, w.scales) for w in copies])
            yield humming.NAME, Graph(checked(lambda layer: layer(x), layers, expected))
        except Exception as error:
            reason = str(error).strip().split("\n")[0][:160]
            self.report.remark(f"humming is left out at {shape}: {type(error).__name__}: {reason}")

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
