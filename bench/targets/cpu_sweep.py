"""The CPU's `linear` from one row of activations to 64, over weights of real models' sizes.

For each size all modes and numbers of rows take turns (`bench.timing`), so that neighbours in a
curve meet the same state of the machine. `bench.sweep` says what the curves show.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

import mx_kernels as mx
from bench import roofline, timing
from bench.goals import BF16_PEAK, INT8_PEAK
from bench.rows import OURS, Origin, Row
from bench.shapes import Shape
from bench.sweep import ACTIVATIONS
from bench.targets import Plan, Reporter
from bench.timing import Competitor

SIZES = (
    (1280, 5120), (2880, 2880), (2881, 2912), (4096, 4096), (5120, 2880), (2112, 7168),
    (11008, 4096), (4096, 14336),
)  # fmt: skip
"""(N, K) of weights: gpt-oss, DeepSeek, Llama and Qwen models', and one with ragged tiles."""
MAX_ROWS = 64
QUICK_SIZES, QUICK_MAX_ROWS = ((320, 256), (97, 96)), 20
BUDGET_S, QUICK_BUDGET_S = 10.0, 0.2
"""Seconds of timing for each size."""


def measure(plan: Plan, origin: Origin, report: Reporter) -> None:
    """Reports the peaks of dot products, and a row for each mode, size and number of rows."""
    torch.set_num_threads(plan.threads)
    modes = [op for op in ACTIVATIONS if op in plan.ops]
    sizes, budget_s = (QUICK_SIZES, QUICK_BUDGET_S) if plan.quick else (SIZES, BUDGET_S)
    with torch.inference_mode():
        report.progress("measuring the peaks of dot products")
        for peak in _peaks(plan.threads, origin):
            report.row(peak)
        for idx, (n, k) in enumerate(sizes):
            report.progress(f"size {idx + 1}/{len(sizes)}, {n} x {k}")
            calls = _calls(n, k, modes, QUICK_MAX_ROWS if plan.quick else MAX_ROWS)
            competitors = [Competitor(f"{op} {shape}", call) for (op, shape), call in calls.items()]
            found = timing.interleave(competitors, budget_s=budget_s)
            for op, shape in calls:
                times = found[f"{op} {shape}"]
                report.row(
                    Row(
                        op=op, m=shape.m, n=n, k=k, system=OURS,
                        computes=f"{ACTIVATIONS[op]} activations", threads=plan.threads,
                        time_us_median=times.median_us, time_us_best=times.best_us,
                        rate=shape.flops / times.best_us / 1e3, rate_unit="GOP/s",
                        times_ours=1.0, times_roofline=None, **vars(origin),
                    )
                )  # fmt: skip


def _peaks(threads: int, origin: Origin) -> Iterator[Row]:
    for name, per_s in (
        (INT8_PEAK, roofline.int8_peak()),
        (BF16_PEAK, roofline.float_peak(torch.bfloat16)),
    ):
        yield Row(
            op="machine", m=0, n=0, k=0, system=name, computes="best of several tries",
            threads=threads, time_us_median=None, time_us_best=None, rate=per_s / 1e9,
            rate_unit="GOP/s", times_ours=None, times_roofline=None, **vars(origin),
        )  # fmt: skip


def _calls(n: int, k: int, modes: list[str], max_rows: int) -> dict[tuple[str, Shape], partial]:
    """Returns the calls by mode and shape; neighbours in rows follow each other."""
    generator = torch.Generator().manual_seed(n + k)
    weight = mx.quantize(torch.randn(n, k, generator=generator)).preshuffle()
    x = torch.randn(max_rows, k, generator=generator).bfloat16()
    return {
        (op, Shape(m, n, k)): partial(mx.linear, x[:m], weight, activations=ACTIVATIONS[op])
        for op in modes
        for m in range(1, max_rows + 1)
    }
