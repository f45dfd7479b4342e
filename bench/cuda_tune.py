"""Measures every cut of Hopper's kernels over a grid of shapes, on an NVIDIA GPU.

    python -m bench.cuda_tune measure FILE.csv     on the device: a line for each shape and cut
    python -m bench.cuda_tune table FILE.csv       anywhere: writes hopper/host/measured.mojo

A line of the file is (m, n, k, plan, us): the median time of `linear` with MXFP4 activations and
cold weights, see `bench.graph_timing`; plan -1 is cuBLAS on bfloat16. The table has, for each
number of rows in `ROWS` and each weight in `WEIGHTS`, the fastest plan, and whether bytes are
faster still, which are for MXFP4 activations alone.
"""

from __future__ import annotations

import csv
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RESULT = REPOSITORY / "bench" / "results" / "cuda_tune.csv"
TABLE = REPOSITORY / "mojo_kernels" / "hopper" / "host" / "measured.mojo"

ROWS = (
    1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
)  # fmt: skip
WEIGHTS = (
    (512, 2880), (640, 4096), (768, 3072), (1024, 8192), (1280, 5120), (1536, 2048), (1536, 7168),
    (2048, 768), (2112, 7168), (2560, 2560), (2880, 512), (2880, 2880), (2880, 4096), (3072, 1536),
    (3584, 3584), (4096, 512), (4096, 4096), (4096, 14336), (4608, 7168), (5120, 1280),
    (5120, 2880), (5120, 4096), (5760, 2880), (6144, 2048), (6144, 4096), (7168, 2048),
    (7168, 16384), (8192, 8192), (8192, 28672), (9216, 4096), (10240, 8192), (12288, 5120),
    (14336, 4096), (18944, 3584), (24576, 1536), (28672, 8192),
)  # fmt: skip
"""N and K: layers of Llama 3, Qwen, gpt-oss and DeepSeek-V3, and smaller ones."""
CUBLAS = -1
MIDDLE, MANY, BYTES = 1 << 20, 1 << 20, 1 << 21
"""Codes of plans, the first ones of their kernels, see `hopper/plan.mojo`."""
LARGEST = 3e11
"""Multiplications of the largest product that is measured."""
COLD_BYTES, BIG, MAX_CALLS = 120_000_000, 2.5e10, 60


def cuts(m: int) -> list[int]:
    """Returns the codes of the plans that may be the fastest for so many rows."""

    def few(tokens: int, columns: tuple[int, ...]) -> list[int]:
        return [32 * tokens + c // 2 + ranks for c in columns for ranks in (1, 2, 4, 8)]

    def middle(tokens: int, ranks: tuple[int, ...]) -> list[int]:
        return [MIDDLE + 256 * tokens + count for count in ranks]

    every, wide = (32, 64, 128, 256), (64, 128, 256)
    if m <= 8:
        return few(8, every)
    if m <= 16:
        return few(16, every)
    if m <= 32:
        return few(32, every) + (middle(64, (1, 2, 4, 8)) if m > 16 else [])
    if m <= 64:
        return few(32, every) + few(64, wide) + middle(64, (1, 2, 4, 8)) + [MANY]
    if m <= 128:
        return few(64, wide) + middle(64, (1, 2, 4, 8)) + middle(128, (1, 2, 4, 8)) + [MANY]
    if m <= 512:
        return middle(64, (1, 2, 4, 8)) + middle(128, (1, 2, 4, 8)) + [MANY]
    return [*middle(64, (1, 2)), *middle(128, (1, 2, 4)), MANY, BYTES]


def measure(path: Path, log: Callable[[str], None] = print) -> None:
    """Writes the times of all cuts of all shapes."""
    import torch  # noqa: PLC0415  the table is made where there is none

    import mx_kernels as mx  # noqa: PLC0415
    from bench.graph_timing import Graph, cold_copies  # noqa: PLC0415
    from mx_kernels._cuda import CUDA  # noqa: PLC0415

    def median_us(call: Callable, weights: list, work: float) -> float:
        count = 4 if work > BIG else max(12, min(len(weights), MAX_CALLS))
        graph = Graph([lambda w=w: call(w) for w in islice(cycle(weights), count)])
        for _ in range(4 if work > BIG else 7):
            graph.replay()
        return round(graph.found().median_us, 2)

    def lines() -> Iterator[tuple]:
        for n, k in WEIGHTS:
            plain = mx.quantize(torch.randn(n, k, device="cuda") * 0.02)
            dense = cold_copies(mx.dequantize(plain, dtype="bfloat16"), COLD_BYTES)
            coded = cold_copies(plain.preshuffle(), COLD_BYTES)
            for m in (rows for rows in ROWS if rows * n * k <= LARGEST):
                x = torch.randn(m, k, device="cuda").bfloat16()
                out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
                work = m * n * k
                us = median_us(lambda w, x=x, out=out: torch.mm(x, w.T, out=out), dense, work)
                yield m, n, k, CUBLAS, us
                for plan in cuts(m):
                    CUDA.plan = plan
                    yield m, n, k, plan, median_us(lambda w, x=x: mx.linear(x, w), coded, work)
            log(f"{n} x {k}")

    with path.open("w", newline="") as file, torch.inference_mode():
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("m", "n", "k", "plan", "us"))
        writer.writerows(lines())


def read(path: Path = RESULT) -> dict[tuple[int, int, int], dict[int, float]]:
    """Returns the times of the plans of each shape."""
    found: dict = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            found[shape][int(row["plan"])] = float(row["us"])
    return dict(found)


def fastest(times: dict[int, float], *, takes_bytes: bool = False) -> int:
    """Returns the fastest plan of ours, of those that take the activations."""
    left_out = {CUBLAS} if takes_bytes else {CUBLAS, BYTES}
    return min((us, plan) for plan, us in times.items() if plan not in left_out)[1]


def nearest_rows(m: int, weight: tuple[int, int], found: dict) -> tuple[int, int, int]:
    """Returns the shape of the grid for some rows and a weight of it; the largest was measured."""
    return max(r for r in ROWS if r <= m and (r, *weight) in found), *weight


def table(path: Path) -> str:
    """Returns the text of the Mojo file that has the fastest plans."""
    found = read(path)
    plans, bytes_ = [], []
    for m in ROWS:
        times = [found[nearest_rows(m, weight, found)] for weight in WEIGHTS]
        plans.append([fastest(t) for t in times])
        bytes_.append([int(fastest(t, takes_bytes=True) == BYTES) for t in times])

    def wrapped(items: Iterable) -> str:
        return textwrap.fill(", ".join(map(str, items)) + ",", 92, break_on_hyphens=False)

    def lines(values: list[list[int]]) -> str:
        nested = "".join(f"[\n{textwrap.indent(wrapped(line), '    ')}\n],\n" for line in values)
        return textwrap.indent(nested.rstrip(), "    ")

    weights = textwrap.indent("\n".join(f"({n}, {k})," for n, k in WEIGHTS), "    ")
    return f'''"""What was fastest on an H200, as `python -m bench.cuda_tune table` writes it.

A line of `PLANS` is for so many rows of activations as `ROWS` says; in it a code of `hopper.plan`
for each weight of `WEIGHTS`, (N, K). `BYTES` says where FP8 tensor cores are faster still. The
times are in bench/results/cuda_tune.csv.
"""

# fmt: off
comptime ROWS: List[Int] = [
{textwrap.indent(wrapped(ROWS), "    ")}
]
comptime WEIGHTS: List[Tuple[Int, Int]] = [
{weights}
]
comptime PLANS: List[List[Int]] = [
{lines(plans)}
]
comptime BYTES: List[List[Int]] = [
{lines(bytes_)}
]
# fmt: on
'''


if __name__ == "__main__":
    action, file = sys.argv[1:]
    if action == "measure":
        measure(Path(file))
    elif action == "table":
        TABLE.write_text(table(Path(file)))
    else:
        sys.exit(__doc__)
