"""Quantizers of an NVIDIA GPU beside a copy: `python -m bench.cuda_quantize [FORMAT ...]`.

`python -m bench.cuda_quantize linear` is a norm before a product of MXFP4 by MXFP4, three ways:

    fused       torch's norm, then `linear`, which quantizes
    codes       `rms_norm_quantize`, then `matmul`
    three       torch's norm, then `quantize`, then `matmul`

    op          what a call does
    quantize    bfloat16 [rows, columns] to codes and scales
    norm        `rms_norm_quantize` with a weight
    gate        `gate_quantize` of [rows, 2 * columns]: SiLU

Microseconds of a call in a CUDA graph, median, over inputs that together fit no cache where 60 of
them are that many; behind each the bytes a second, read and written, over those of `Tensor.copy_`
of as many rows and columns. `rms_norm` is torch's, without codes. It prints a table of each op, and
writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice

import torch

import mx_kernels as mx
from bench.graph_timing import COLD_BYTES, MAX_CALLS, MIN_CALLS, Graph, cold_copies, print_table

ROWS, COLUMNS = (1, 16, 64, 512, 2048, 8192), (4096, 7168, 8192)
FORMATS = (
    "mxfp4", "mxfp6", "mxfp6_e3m2", "mxfp8", "mxfp8_e5m2", "mxint8", "fp8", "fp8_block",
    "fp8_block_2d", "nvfp4",
)  # fmt: skip
LAYERS = ((10240, 8192), (57344, 8192), (5120, 2880))
"""N, K: queries, keys and values of Llama 70B, its gates and ups; those of gpt-oss."""
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 8192)
REPLAYS = 9
COPY, NORM = "copy", "rms_norm"


def systems(op: str, formats: tuple[str, ...], columns: int) -> Iterator[tuple[str, Callable]]:
    """Returns the calls of an op by name, the peer first."""
    weight = torch.randn(columns).bfloat16()
    if op == "norm":
        yield NORM, lambda x: torch.nn.functional.rms_norm(x, (columns,), weight, 1e-6)
    calls = {
        "quantize": mx.quantize,
        "norm": partial(mx.rms_norm_quantize, weight=weight),
        "gate": mx.gate_quantize,
    }
    for name in formats:
        yield name, partial(calls[op], format=name)


def measured(calls: dict[str, Callable], inputs: list) -> dict[str, float]:
    """Returns the median microseconds of each call, over the inputs; calls take turns."""
    count = max(MIN_CALLS, len(inputs))
    graphs = {
        name: Graph([partial(call, x) for x in islice(cycle(inputs), count)])
        for name, call in calls.items()
    }
    for _ in range(REPLAYS):
        for graph in graphs.values():
            graph.replay()
    return {name: graph.found().median_us for name, graph in graphs.items()}


def line(op: str, rows: int, columns: int, formats: tuple[str, ...]) -> list[str]:
    """Returns the cells of a shape: the copy, and each system."""
    shape = rows, columns * (2 if op == "gate" else 1)
    x = torch.randn(shape).bfloat16()
    copies = min(MAX_CALLS, 1 + COLD_BYTES // x.nbytes)
    inputs, target = [x, *(x.clone() for _ in range(copies - 1))], torch.empty_like(x)
    calls = {COPY: target.copy_} | dict(systems(op, formats, columns))
    found = measured(calls, inputs)
    copied = 2 * x.nbytes / found[COPY]
    cells = [f"{found[COPY]:.4g} ({copied / 1e6:.2f} TB/s)"]
    for name, call in calls.items():
        if name != COPY:
            num_bytes = x.nbytes + call(x).nbytes
            cells.append(f"{found[name]:.4g} ({num_bytes / found[name] / copied:.2f})")
    return cells


def behind_a_norm(m: int, n: int, k: int) -> dict[str, float]:
    """Returns the microseconds of a norm and a product, weights cold."""
    x, weight = torch.randn(m, k).bfloat16(), torch.randn(k).bfloat16()
    copies = cold_copies(mx.quantize(torch.randn(n, k).bfloat16() / 50).preshuffle())

    def norm() -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (k,), weight, 1e-6)

    calls = {
        "fused": lambda w: mx.linear(norm(), w, activations="mxfp4"),
        "codes": lambda w: mx.matmul(mx.rms_norm_quantize(x, weight), w),
        "three": lambda w: mx.matmul(mx.quantize(norm()), w),
    }
    return measured(calls, copies)


def main(formats: tuple[str, ...]) -> None:
    """Prints the tables."""
    torch.set_default_device("cuda")
    torch.manual_seed(0)
    if formats == ("linear",):
        shapes = [(m, n, k) for n, k in LAYERS for m in TOKENS]
        return print_table(shapes, behind_a_norm, lambda name, found: f"{found[name]:.4g}")
    print(f"{torch.cuda.get_device_name()}, microseconds (share of the copy's bytes a second)")
    for op in ("quantize", "norm", "gate"):
        names = [COPY, *dict(systems(op, formats, 32))]
        print(f"\n| {op} | " + " | ".join(names) + " |\n| --- |" + " ---: |" * len(names))
        for rows in ROWS:
            for columns in COLUMNS:
                cells = line(op, rows, columns, formats)
                print(f"| {rows} x {columns} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main(tuple(sys.argv[1:]) or FORMATS)
