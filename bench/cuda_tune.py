"""Measures every plan of Hopper's kernels over grids of shapes, on an NVIDIA GPU.

    python -m bench.cuda_tune measure FILE.csv     on the device, five minutes: a line for each pair
                                                   of formats, shape and plan
    python -m bench.cuda_tune kept FILE.csv        on the device, a minute: lines of a file anew,
                                                   cuBLAS's and those that only `KEPT` has
    python -m bench.cuda_tune table FILE.csv       anywhere: writes hopper/host/measured.mojo, says
                                                   how good its choices are
    python -m bench.cuda_tune check FILE.csv       on the device, a minute: shapes that costs
                                                   were not fitted to, and how good the choice is
    python -m bench.cuda_tune nvfp4 FILE.csv       on the device, a minute: chosen plans for NVFP4
                                                   weights beside those for MXFP4, x kept

A line of the file is (left, right, m, n, k, plan, us): the median time with cold weights, see
`bench.graph_timing`, of `linear` of floats for MXFP4 weights, of `matmul` for codes of eight bits.
Plans are those of `hopper/plan.mojo`, or cuBLAS on bfloat16. What `bf16` activations have in common
with MXFP4 ones stands there once, as MXFP4's. How costs come from times is in `bench.cuda_fit`.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from mx_kernels._core.checks import check_mode
from mx_kernels._core.facts import DEFAULT_ROUNDING, facts
from mx_kernels._core.native import gpu_plans

Shape = tuple[int, int, int]
Pair = tuple[str, str]
"""What activations are multiplied as, and the weights' format."""
Grid = dict[tuple[int, int], tuple[int, ...]]
"""Rows of activations, for each weight."""
Times = dict[Shape, dict[str, float]]
"""Microseconds of each plan."""

REPOSITORY = Path(__file__).resolve().parent.parent
RESULT = REPOSITORY / "bench" / "results" / "cuda_tune.csv"

MXFP4, KEPT = ("mxfp4", "mxfp4"), ("bf16", "mxfp4")
EIGHT_BITS = (
    ("fp8", "fp8"), ("fp8_block", "fp8_block_2d"), ("mxfp8", "mxfp8"), ("mxfp8", "mxfp4"),
)  # fmt: skip
FLOATS = ("bf16", "bf16")
FOUR_BITS = "mxfp4", "nvfp4"
"""What weights of four bits may be."""
CUBLAS = "cublas"

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
EIGHT_BIT_SHAPES = (
    (128, 4096, 4096), (256, 7168, 2048), (512, 4096, 4096), (1024, 4096, 4096), (64, 4096, 4096),
    (128, 2112, 7168), (24, 5120, 1280), (256, 5120, 2880), (1024, 8192, 8192), (2048, 4096, 14336),
    (512, 2112, 7168), (64, 7168, 2048), (192, 5760, 2880), (384, 2880, 4096), (96, 1280, 5120),
    (768, 6144, 4096), (128, 14336, 4096), (512, 512, 2880), (2048, 2048, 7168), (40, 2880, 2880),
    (320, 24576, 1536), (4096, 4096, 4096), (160, 768, 3072), (48, 9216, 4096),
)  # fmt: skip
FEW_ROWS = tuple(
    (m, n, k)
    for m in (1, 24, 40, 64, 96, 128, 192, 256)
    for n, k in (
        (7168, 2048), (4096, 4096), (3072, 1536), (2112, 7168), (5120, 1280), (9216, 4096),
        (1280, 5120), (4096, 14336),
    )
)  # fmt: skip
"""Further ones of E4M3 under float scales."""
UNSEEN: Grid = {
    (896, 4864): (60, 224, 900),
    (1152, 6912): (3, 40, 160, 300),
    (2304, 3456): (28, 112, 448, 1792),
    (3840, 2560): (10, 100, 240, 1200),
    (5376, 1792): (36, 144, 640),
    (11008, 4096): (6, 56, 120, 640),
    (13824, 5120): (20, 160, 3000),
    (27648, 5120): (2, 30, 448),
}
"""Weights and rows that are not in the grid, to check the choice."""
LARGEST = 3e11
"""Multiplications of the largest product of MXFP4 weights that is measured."""
COLD_BYTES = 120_000_000
MAX_ERROR = 4e-3
"""Of the norm of a product: rounding to bfloat16 is 1.7e-3, a block's float sums the rest."""


class Plan(NamedTuple):
    """A plan for a product."""

    family: int
    """Its line of the table of costs."""
    name: str
    us: float
    """What the compiled table expects."""
    terms: list[float]
    """What of it has a cost."""


@functools.cache
def plans(shape: Shape, pair: Pair = MXFP4) -> tuple[Plan, ...]:
    """Returns the plans for a product."""
    left, right = check_mode(pair[0], DEFAULT_ROUNDING).format, facts().formats[pair[1]].code
    return tuple(Plan(*found) for found in gpu_plans().plans_cuda((*shape, left, right)))


def plans_of_kept(shape: Shape) -> list[Plan]:
    """Returns the plans that only bfloat16 activations have."""
    known = {plan.name for plan in plans(shape)}
    return [plan for plan in plans(shape, KEPT) if plan.name not in known]


def measure(path: Path, lines: Iterator[tuple], others: Iterable[tuple] = ()) -> None:
    """Writes lines of times, behind others."""
    import torch  # noqa: PLC0415  the table is made where there is none

    with path.open("w", newline="") as file, torch.inference_mode():
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("left", "right", "m", "n", "k", "plan", "us"))
        writer.writerows(others)
        writer.writerows(lines)


def lines_of_mxfp4(
    grid: Grid, log: Callable[[str], None] = print, *, only_kept: bool = False
) -> Iterator[tuple]:
    """Yields lines of all plans for MXFP4 weights, or those of `plans_of_kept`, and of cuBLAS."""
    import torch  # noqa: PLC0415

    import mx_kernels as mx  # noqa: PLC0415
    from bench.graph_timing import cold_copies, median_us  # noqa: PLC0415
    from mx_kernels._core.cuda import CUDA  # noqa: PLC0415

    for (n, k), all_rows in grid.items():
        plain = mx.quantize(torch.randn(n, k, device="cuda") * 0.02)
        dense = cold_copies(mx.dequantize(plain, dtype="bfloat16"), COLD_BYTES)
        coded = cold_copies(plain.preshuffle(), COLD_BYTES)
        for m in (rows for rows in all_rows if rows * n * k <= LARGEST):
            shape, work = (m, n, k), m * n * k
            x = torch.randn(m, k, device="cuda").bfloat16()
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            us = median_us(lambda w, x=x, out=out: torch.mm(x, w.T, out=out), dense, work)
            yield *FLOATS, *shape, CUBLAS, round(us, 2)
            of_both = () if only_kept else plans(shape)
            for pair, of_pair in ((MXFP4, of_both), (KEPT, plans_of_kept(shape))):
                for plan in of_pair:
                    CUDA.plan = plan.name
                    us = median_us(
                        lambda w, x=x, pair=pair: mx.linear(x, w, activations=pair[0]), coded, work
                    )
                    yield *pair, *shape, plan.name, round(us, 2)
        CUDA.plan = ""
        log(f"{n} x {k}")


def shapes_of(pair: Pair) -> tuple[Shape, ...]:
    """Returns the shapes of a pair of eight bits."""
    of_floats = pair[0].startswith("fp8")
    return tuple(dict.fromkeys(EIGHT_BIT_SHAPES + FEW_ROWS * of_floats))


def lines_of_eight_bits(log: Callable[[str], None] = print) -> Iterator[tuple]:
    """Yields lines of all plans for codes of eight bits, whose products are right."""
    import torch  # noqa: PLC0415

    import mx_kernels as mx  # noqa: PLC0415
    from bench.graph_timing import cold_copies, median_us  # noqa: PLC0415
    from mx_kernels._core.cuda import CUDA  # noqa: PLC0415

    for m, n, k in dict.fromkeys(EIGHT_BIT_SHAPES + FEW_ROWS):
        x, y = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda") / 50
        for pair in (pair for pair in EIGHT_BITS if (m, n, k) in shapes_of(pair)):
            a, w = (mx.quantize(t, format=name) for t, name in zip((x, y), pair, strict=True))
            expected = a.dequantize(dtype="float32") @ w.dequantize(dtype="float32").T
            weights = cold_copies(w.preshuffle(), COLD_BYTES)
            for plan in plans((m, n, k), pair):
                CUDA.plan = plan.name
                error = (mx.matmul(a, weights[0]).float() - expected).norm() / expected.norm()
                if not error <= MAX_ERROR:
                    raise ValueError(f"{m, n, k} {pair}, {plan.name}: error {error}")
                us = median_us(lambda w, a=a: mx.matmul(a, w), weights, m * n * k)
                yield *pair, m, n, k, plan.name, round(us, 2)
            CUDA.plan = ""
        log(f"{m} x {n} x {k}")


def lines_of_nvfp4(grid: Grid, log: Callable[[str], None] = print) -> Iterator[tuple]:
    """Yields lines of the plans that are chosen for NVFP4 weights and for MXFP4, in turns."""
    import torch  # noqa: PLC0415

    import mx_kernels as mx  # noqa: PLC0415
    from bench.graph_timing import cold_copies, median_us  # noqa: PLC0415

    for (n, k), all_rows in grid.items():
        floats, coded = torch.randn(n, k, device="cuda") * 0.02, {}
        for name in FOUR_BITS:
            coded[name] = cold_copies(mx.quantize(floats, format=name).preshuffle(), COLD_BYTES)
        for m in (rows for rows in all_rows if rows * n * k <= LARGEST):
            x, took = torch.randn(m, k, device="cuda").bfloat16(), {}
            for name, weights in coded.items():
                plan = mx.explain(m, n, k, device="cuda", activations="bf16", format=name).cut
                us = median_us(
                    lambda w, x=x: mx.linear(x, w, activations="bf16"), weights, m * n * k
                )
                took[name] = us
                yield "bf16", name, m, n, k, plan, round(us, 2)
            log(f"{m} x {n} x {k}: {took['nvfp4'] / took['mxfp4']:.3f}")


def read(path: Path = RESULT) -> dict[Pair, Times]:
    """Returns the times of the plans of each product."""
    found: dict[Pair, dict] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            found[row["left"], row["right"]][shape][row["plan"]] = float(row["us"])
    for shape, times in found[MXFP4].items():
        both = {**times, **found[KEPT][shape]}
        kept = {plan.name for plan in plans(shape, KEPT)}
        found[KEPT][shape] = {plan: us for plan, us in both.items() if plan in kept}
    return {pair: dict(times) for pair, times in found.items()}


def of_nvfp4(path: Path) -> list[float]:
    """Returns what NVFP4 weights take, in times of MXFP4 ones, of each shape."""
    found = read(path)
    of_mxfp4, of_nvfp4 = (
        {s: min(t.values()) for s, t in found["bf16", n].items()} for n in FOUR_BITS
    )
    return [us / of_mxfp4[shape] for shape, us in of_nvfp4.items()]


def fastest(times: dict[str, float]) -> str:
    """Returns the fastest plan."""
    return min(times, key=times.__getitem__)


def check(times: Times, pair: Pair = MXFP4) -> str:
    """Returns how choices for a pair compare with the fastest plans that were measured."""
    lines = [f"{'shape':>20} {'us':>8} {'least':>8} {'behind':>7}  chosen, fastest"]
    for shape, of_shape in times.items():
        chosen, best = min(plans(shape, pair), key=lambda plan: plan.us).name, fastest(of_shape)
        us, least = of_shape[chosen], of_shape[best]
        line = f"{'x'.join(map(str, shape)):>20} {us:>8} {least:>8} {us / least:>7.3f}"
        lines.append(f"{line}  {chosen}, {best}")
    return "\n".join(lines)


def main(action: str, path: Path) -> None:
    """Does what the command line says."""
    if action == "measure":
        grid = dict.fromkeys(WEIGHTS, ROWS)
        measure(path, (line for of in (lines_of_mxfp4(grid), lines_of_eight_bits()) for line in of))
    elif action == "kept":
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if tuple(row[:2]) not in (FLOATS, KEPT)]
        measure(path, lines_of_mxfp4(dict.fromkeys(WEIGHTS, ROWS), only_kept=True), rows[1:])
    elif action == "check":
        measure(path, lines_of_mxfp4(UNSEEN))
        for pair in (MXFP4, KEPT):
            print(" x ".join(pair), check(read(path)[pair], pair), sep="\n")
    elif action == "nvfp4":
        measure(path, lines_of_nvfp4(dict.fromkeys(WEIGHTS, ROWS)))
        ratios = of_nvfp4(path)
        print(f"NVFP4 takes {geometric_mean(ratios):.3f} times MXFP4, at worst {max(ratios):.3f}")
    elif action == "table":
        from bench import cuda_fit  # noqa: PLC0415  the device's host may lack SciPy

        found = read(path)
        text, said = cuda_fit.table(found)
        cuda_fit.TABLE.write_text(text)
        print(said)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    action, file = sys.argv[1:]
    main(action, Path(file))
