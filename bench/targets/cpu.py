"""The CPU: quantize, matmul and linear against every peer, on the named shapes.

For each shape the operands are made once, every product is compared with the float32 one, and
then all take turns (`bench.timing`). Times of `linear` include rounding the bfloat16 activations
to MXFP4, those of `linear mxint8` and others to what they name; times of peers that quantize
include it too, from float32. `linear bf16` leaves the activations as they are. A peer's rows
belong to that of our modes which is as accurate. Where there are more threads, ours takes turns
with itself on one. Rates are 2 M N K a second, for the quantizers the bytes of their bfloat16
input a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch

import mx_kernels as mx
from bench import timing
from bench.model import measure_model
from bench.peers import Prepared, check, load_peers
from bench.problem import Errors, Problem
from bench.roofline import Roofline
from bench.rows import OURS, Origin, Row
from bench.shapes import QUANTIZE_SHAPE, SMALLEST_SHAPE, Shape
from bench.targets import WIDER, Plan, Reporter
from bench.timing import Competitor, Timing

BF16_BYTES = 2
BLOCK = 32
ON_ONE_THREAD = "one thread, "
"""What names our competitors that run on one thread, in turns with the others."""
SMALL_BUDGET_S = 0.3
"""Seconds of timing for what has few competitors."""

System = tuple[str, str]
"""A system's name and what it computes."""
OUR_PRODUCTS = {
    "matmul": (OURS, "MXFP4 weights and MXFP4 activations"),
    "linear": (OURS, "MXFP4 weights and MXFP4 activations"),
    "linear mxint8": (OURS, "MXFP4 weights and MXINT8 activations"),
    "linear mxint16": (OURS, "MXFP4 weights and 16-bit integers as activations"),
    "linear mxfp6": (OURS, "MXFP4 weights and MXFP6 activations"),
    "linear nvfp4": (OURS, "NVFP4 weights and NVFP4 activations"),
    "linear mxfp8": (OURS, "MXFP4 weights and MXFP8 activations"),
    "linear bf16": (OURS, "MXFP4 weights and bfloat16 activations"),
}
IN_BF16 = ("linear mxfp8", "linear bf16")
"""Products that are computed on bfloat16 dot products."""
OUR_QUANTIZERS = {
    "quantize": ("mxfp4", (OURS, "MXFP4 from bfloat16")),
    **{
        f"quantize {format}": (format, (OURS, f"{format.upper()} from bfloat16"))
        for format in WIDER
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
        found = self._interleave({"overhead": call}, SMALL_BUDGET_S, ["overhead"])
        times = {OUR_PRODUCTS["linear"]: found["overhead"]}
        self._report_times("overhead", SMALLEST_SHAPE, times, self._one_thread("overhead", found))

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
            found = self._interleave(calls, SMALL_BUDGET_S, ops)
            for op, (_, ours) in ops.items():
                times = {ours: found[op]}
                if op == "quantize":
                    times |= {(p.name, p.computes): found[p.name] for p in self.peers.quantizers}
                self._report_times(op, shape, times, self._one_thread(op, found))

    def measure_products(self) -> None:
        """Times our products, and on each shape all peers that compare with one of them."""
        products = [peer for peer in self.peers.products if peer.like in self.products]
        for idx, shape in enumerate(self.plan.shapes):
            name = f"shape {idx + 1}/{len(self.plan.shapes)}, {shape}"
            problem = Problem(shape)
            systems = self._ours(problem)
            for peer in products:
                self.report.progress(f"{name}: preparing {peer.name}")
                systems[peer.name] = peer.prepare(problem)
            errors = {}
            for system, prepared in systems.items():
                prepared.call()
                errors[system] = check(system, prepared, problem)

            self.report.progress(f"{name}: timing")
            calls = {system: prepared.call for system, prepared in systems.items()}
            found = self._interleave(calls, self.plan.budget_s, self.products)
            for op in self.products:
                keys = {OUR_PRODUCTS[op]: op}
                keys |= {
                    (peer.name, peer.computes): peer.name for peer in products if peer.like == op
                }
                self._report_times(
                    op, shape,
                    {system: found[key] for system, key in keys.items()},
                    self._one_thread(op, found),
                    {system: errors[key] for system, key in keys.items()},
                )  # fmt: skip

    def _ours(self, problem: Problem) -> dict[str, Prepared]:
        x, weight = problem.x_bf16, mx.preshuffle(problem.weight_mx)
        nvfp4 = mx.preshuffle(problem.weight_nvfp4)
        x_mx = mx.quantize(x)
        calls = {
            "matmul": lambda: mx.matmul(x_mx, weight),
            "linear": lambda: mx.linear(x, weight, activations="mxfp4"),
            "linear mxint8": lambda: mx.linear(x, weight, activations="mxint8"),
            "linear mxint16": lambda: mx.linear(x, weight, activations="mxint16"),
            "linear mxfp6": lambda: mx.linear(x, weight, activations="mxfp6"),
            "linear nvfp4": lambda: mx.linear(x, nvfp4, activations="nvfp4"),
            "linear mxfp8": lambda: mx.linear(x, weight, activations="mxfp8"),
            "linear bf16": lambda: mx.linear(x, weight, activations="bf16"),
        }
        weights = dict.fromkeys(calls, problem.weight_mx) | {"linear nvfp4": problem.weight_nvfp4}
        return {op: Prepared(calls[op], calls[op], weights[op].dequantize) for op in self.products}

    def _interleave(
        self, calls: Mapping[str, Callable], budget_s: float, ours: Collection[str]
    ) -> dict[str, Timing]:
        """Times the calls; with several threads, those of ours on one thread too."""
        threads = self.plan.threads
        all_threads = partial(torch.set_num_threads, threads)
        competitors = [Competitor(name, call, all_threads) for name, call in calls.items()]
        if threads > 1:
            one = partial(torch.set_num_threads, 1)
            competitors += [Competitor(ON_ONE_THREAD + op, calls[op], one) for op in ours]
        settle_s = timing.SETTLE_S if threads > 1 else 0.0
        found = timing.interleave(competitors, budget_s=budget_s, settle_s=settle_s)
        all_threads()
        return found

    def _one_thread(self, op: str, found: dict[str, Timing]) -> float | None:
        """Returns how many times as long one thread takes, if that was measured."""
        one = found.get(ON_ONE_THREAD + op)
        return one.median_us / found[op].median_us if one else None

    def _least_us(self, op: str, shape: Shape) -> float:
        """Returns the roofline of one operation in microseconds."""
        m, n, k = shape
        packed_bytes = k // 2 + k // BLOCK
        if op in OUR_QUANTIZERS:
            format, _ = OUR_QUANTIZERS[op]
            out_bytes = k * WIDER.get(format, 4) // 8 + k // BLOCK
            return self.roofline.least_us(num_bytes=m * (BF16_BYTES * k + out_bytes))
        x_bytes = packed_bytes if op == "matmul" else BF16_BYTES * k
        w_bytes = packed_bytes + (k // BLOCK if op == "linear nvfp4" else 0)
        num_bytes = m * x_bytes + n * w_bytes + BF16_BYTES * m * n
        if op in IN_BF16:
            return self.roofline.least_us(num_bytes=num_bytes, bf16_ops=shape.flops)
        return self.roofline.least_us(num_bytes=num_bytes, int8_ops=shape.flops)

    def _report_times(
        self,
        op: str,
        shape: Shape,
        times: dict[System, Timing],
        one_thread: float | None,
        errors: Mapping[System, Errors] = MappingProxyType({}),
    ) -> None:
        """Reports one operation: ours first, the peers that it compares with after it."""
        ours_us = next(iter(times.values())).median_us
        least_us = None if op == "overhead" else self._least_us(op, shape)
        if op in OUR_QUANTIZERS:
            work, unit = BF16_BYTES * shape.m * shape.k, "GB/s"
        else:
            work, unit = shape.flops, "GOP/s"
        for system, measured in times.items():
            median_us, of_product = measured.median_us, errors.get(system)
            self._row(
                op, shape, system, work / median_us / 1e3, unit,
                time_us_median=median_us,
                time_us_best=measured.best_us,
                times_ours=median_us / ours_us,
                times_roofline=median_us / least_us if least_us else None,
                error_own_weights=of_product and of_product.own_weights,
                error_float_weights=of_product and of_product.float_weights,
                times_one_thread=one_thread if system[0] == OURS else None,
            )  # fmt: skip

    def _row(self, op: str, shape: Sequence[int], system: System, rate, rate_unit, **times) -> None:
        (m, n, k), (name, computes) = shape, system
        absent = dict.fromkeys(("time_us_median", "time_us_best", "times_ours", "times_roofline"))
        row = Row(
            op=op, m=m, n=n, k=k, system=name, computes=computes, threads=self.plan.threads,
            rate=rate, rate_unit=rate_unit, **{**absent, **times}, **vars(self.origin),
        )  # fmt: skip
        self.report.row(row)
