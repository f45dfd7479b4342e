"""The CPU: quantize, matmul and linear against every peer, on the named shapes.

For each shape the operands are made once, every competitor is checked against
the float32 product, and then all take turns (`bench.timing`). Times of `linear`
include rounding the bfloat16 activations; times of peers that quantize include
it too, from float32. `linear bf16` leaves the activations as they are, `linear mxfp8`
rounds them to eight bits. Rates are 2 M N K a second, for the quantizers the bytes of
their bfloat16 input a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import mx_kernels as mx
from bench import timing
from bench.model import measure_model
from bench.peers import Prepared, check, load_peers
from bench.problem import Problem
from bench.roofline import Roofline
from bench.rows import OURS, Origin, Row
from bench.shapes import QUANTIZE_SHAPE, SMALLEST_SHAPE, Shape
from bench.targets import EIGHT_BIT, Plan, Reporter
from bench.timing import Competitor, Timing

BF16_BYTES = 2
BLOCK = 32
SMALL_BUDGET_S = 0.3
"""Seconds of timing for what has few competitors."""

System = tuple[str, str]
"""A system's name and what it computes."""
OUR_PRODUCTS = {
    "matmul": (OURS, "MXFP4 weights and MXFP4 activations"),
    "linear": (OURS, "MXFP4 weights and MXFP4 activations"),
    "linear mxfp8": (OURS, "MXFP4 weights and MXFP8 activations"),
    "linear bf16": (OURS, "MXFP4 weights and bfloat16 activations"),
}
IN_BF16 = ("linear mxfp8", "linear bf16")
"""Products that are computed on bfloat16 dot products."""
OUR_QUANTIZERS = {
    "quantize": ("mxfp4", (OURS, "MXFP4 from bfloat16")),
    **{
        f"quantize {format}": (format, (OURS, f"{format.upper()} from bfloat16"))
        for format in EIGHT_BIT
    },
}


def measure(plan: Plan, origin: Origin, report: Reporter) -> None:
    """Measures everything in the plan on this process's cores."""
    torch.set_num_threads(plan.threads)
    with torch.inference_mode():
        bench = CpuBench(plan, origin, report)
        bench.measure_machine()
        if "linear" in plan.ops:
            bench.measure_overhead()
        bench.measure_quantizers()
        if bench.products:
            bench.measure_products()
    if plan.model:
        measure_model(plan, origin, report)


class CpuBench:
    """One thread count: the machine's limits, the peers, and the rows found."""

    def __init__(self, plan: Plan, origin: Origin, report: Reporter):
        self.plan, self.origin, self.report = plan, origin, report
        self.products = [op for op in OUR_PRODUCTS if op in plan.ops]
        report.progress("measuring the limits of the machine")
        self.roofline = Roofline.measure()
        self.peers = load_peers()
        for sentence in self.peers.missing:
            report.remark(sentence)

    def measure_machine(self) -> None:
        """Reports the limits as rows."""
        limits = self.roofline
        for name, per_s, unit in (
            ("int8 dot product", limits.int8_ops_per_s, "GOP/s"),
            ("f32 product", limits.f32_ops_per_s, "GFLOP/s"),
            ("bf16 product", limits.bf16_ops_per_s, "GFLOP/s"),
            ("read, 8 MiB", limits.cache_bytes_per_s, "GB/s"),
            ("read, 128 MiB", limits.dram_bytes_per_s, "GB/s"),
        ):
            self._row("machine", (0, 0, 0), (name, "best of several tries"), per_s / 1e9, unit)

    def measure_overhead(self) -> None:
        """Reports what a call of `linear` costs on a single block."""
        call = self._ours(Problem(SMALLEST_SHAPE))["linear"].call
        found = self._interleave({OURS: call}, SMALL_BUDGET_S)
        times = {OUR_PRODUCTS["linear"]: found[OURS]}
        self._report_times("overhead", SMALLEST_SHAPE, times, least_us=None)

    def measure_quantizers(self) -> None:
        """Times rounding the activations of each shape, and a matrix larger than the caches."""
        ops = {op: row for op, row in OUR_QUANTIZERS.items() if op in self.plan.ops}
        sizes = dict.fromkeys((shape.m, shape.k) for shape in self.plan.shapes)
        if not self.plan.quick:
            sizes[QUANTIZE_SHAPE] = None
        for rows, k in sizes if ops else ():
            self.report.progress(f"quantize {rows} x {k}")
            x = torch.randn(rows, k).bfloat16()
            calls = {op: lambda x=x, f=f: mx.quantize(x, format=f) for op, (f, _) in ops.items()}
            calls |= {peer.name: peer.prepare(x) for peer in self.peers.quantizers}
            shape = Shape(rows, 0, k)
            found = self._interleave(calls, SMALL_BUDGET_S)
            for op, (_, ours) in ops.items():
                times = {ours: found[op]}
                if op == "quantize":
                    times |= {(p.name, p.computes): found[p.name] for p in self.peers.quantizers}
                self._report_times(op, shape, times, self._least_us(op, shape))

    def measure_products(self) -> None:
        """Times our products and all peers on each shape."""
        for idx, shape in enumerate(self.plan.shapes):
            name = f"shape {idx + 1}/{len(self.plan.shapes)}, {shape}"
            problem = Problem(shape)
            ours = self._ours(problem)
            peers = {}
            for peer in self.peers.products:
                self.report.progress(f"{name}: preparing {peer.name}")
                peers[peer.name] = peer.prepare(problem)
            for system, prepared in {**ours, **peers}.items():
                prepared.call()
                check(system, prepared.output(), problem)

            self.report.progress(f"{name}: timing")
            calls = {system: prepared.call for system, prepared in {**ours, **peers}.items()}
            found = self._interleave(calls, self.plan.budget_s)
            for op in ours:
                self._report_product(op, shape, found)

    def _report_product(self, op: str, shape: Shape, found: dict[str, Timing]) -> None:
        """Only `linear` quantizes activations, so only float systems compare with the others."""
        peers = [p for p in self.peers.products if op == "linear" or not p.quantizes_activations]
        times = {OUR_PRODUCTS[op]: found[op]} | {(p.name, p.computes): found[p.name] for p in peers}
        self._report_times(op, shape, times, self._least_us(op, shape))

    def _ours(self, problem: Problem) -> dict[str, Prepared]:
        x, weight = problem.x_bf16, mx.preshuffle(problem.weight_mx)
        x_mx = mx.quantize(x)
        calls = {
            "matmul": lambda: mx.matmul(x_mx, weight),
            "linear": lambda: mx.linear(x, weight),
            "linear mxfp8": lambda: mx.linear(x, weight, activations="mxfp8"),
            "linear bf16": lambda: mx.linear(x, weight, activations="bf16"),
        }
        return {op: Prepared(call=calls[op], output=calls[op]) for op in self.products}

    def _interleave(self, calls: dict, budget_s: float) -> dict[str, Timing]:
        competitors = [Competitor(name, call) for name, call in calls.items()]
        settle_s = timing.SETTLE_S if self.plan.threads > 1 else 0.0
        return timing.interleave(competitors, budget_s=budget_s, settle_s=settle_s)

    def _least_us(self, op: str, shape: Shape) -> float:
        """Returns the roofline of one operation in microseconds."""
        m, n, k = shape
        packed_bytes = k // 2 + k // BLOCK
        if op in OUR_QUANTIZERS:
            out_bytes = packed_bytes if op == "quantize" else k + k // BLOCK
            return self.roofline.least_us(num_bytes=m * (BF16_BYTES * k + out_bytes))
        x_bytes = packed_bytes if op == "matmul" else BF16_BYTES * k
        num_bytes = m * x_bytes + n * packed_bytes + BF16_BYTES * m * n
        if op in IN_BF16:
            return self.roofline.least_us(num_bytes=num_bytes, bf16_ops=shape.flops)
        return self.roofline.least_us(num_bytes=num_bytes, int8_ops=shape.flops)

    def _report_times(
        self, op: str, shape: Shape, times: dict[System, Timing], least_us: float | None
    ) -> None:
        ours_us = next(iter(times.values())).median_us
        if op in OUR_QUANTIZERS:
            work, unit = BF16_BYTES * shape.m * shape.k, "GB/s"
        else:
            work, unit = shape.flops, "GOP/s"
        for system, measured in times.items():
            median_us = measured.median_us
            self._row(
                op, shape, system, work / median_us / 1e3, unit,
                time_us_median=median_us,
                time_us_best=measured.best_us,
                times_ours=median_us / ours_us,
                times_roofline=median_us / least_us if least_us else None,
            )  # fmt: skip

    def _row(self, op: str, shape: Sequence[int], system: System, rate, rate_unit, **times) -> None:
        (m, n, k), (name, computes) = shape, system
        absent = dict.fromkeys(("time_us_median", "time_us_best", "times_ours", "times_roofline"))
        row = Row(
            op=op, m=m, n=n, k=k, system=name, computes=computes, threads=self.plan.threads,
            rate=rate, rate_unit=rate_unit, **{**absent, **times}, **vars(self.origin),
        )  # fmt: skip
        self.report.row(row)
