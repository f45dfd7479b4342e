"""Measures every plan of Hopper's kernels over a grid of shapes, on an NVIDIA GPU.

    python -m bench.cuda_tune measure FILE.csv     on the device, two minutes: a line for each shape
                                                   and plan
    python -m bench.cuda_tune table FILE.csv       anywhere: writes hopper/host/measured.mojo
    python -m bench.cuda_tune check FILE.csv       on the device, half a minute: shapes that costs
                                                   were not fitted to, and how good the choice is

A line of the file is (m, n, k, plan, us): the median time of `linear` with cold weights, see
`bench.graph_timing`; plan -1 is cuBLAS on bfloat16. Activations become MXFP4, or are kept where a
plan is for these alone. Terms of a plan's time, as `hopper/host/costs.mojo` has them, get costs:
those that come closest to what was measured. The table has these, and shapes for which they choose
a plan that was not the fastest one.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mx_kernels._core.native import gpu_plans

Shape = tuple[int, int, int]
Grid = dict[tuple[int, int], tuple[int, ...]]
"""Rows of activations, for each weight."""

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
UNSEEN: Grid = {
    (1152, 6912): (3, 40, 300),
    (3840, 2560): (10, 100, 1200),
    (11008, 4096): (6, 56, 640),
    (13824, 5120): (20, 160, 3000),
    (27648, 5120): (2, 30, 448),
}
"""Weights and rows that are not in the grid, to check the choice."""
CUBLAS = -1
BYTES, PORTABLE, NUMBERS = 1 << 21, 1 << 22, 1 << 26
"""From the first code on plans are for MXFP4 activations alone, from the last one on for kept ones.

See `hopper/plan.mojo`.
"""
LARGEST = 3e11
"""Multiplications of the largest product that is measured."""
COLD_BYTES = 120_000_000
NOISE = 1.01
"""Plans whose times are closer than this are equally fast."""


class Plan(NamedTuple):
    """A plan for a shape."""

    family: int
    code: int
    us: float
    """What the compiled table expects."""
    terms: list[float]
    """What of it has a cost."""


def plans(shape: Shape) -> list[Plan]:
    """Returns the plans for a shape."""
    return [Plan(*found) for found in gpu_plans().plans_cuda(shape)]


def measure(path: Path, grid: Grid, log: Callable[[str], None] = print) -> None:
    """Writes the times of all plans of all shapes."""
    import torch  # noqa: PLC0415  the table is made where there is none

    import mx_kernels as mx  # noqa: PLC0415
    from bench.graph_timing import cold_copies, median_us  # noqa: PLC0415
    from mx_kernels._core.cuda import CUDA  # noqa: PLC0415

    def lines() -> Iterator[tuple]:
        for (n, k), all_rows in grid.items():
            plain = mx.quantize(torch.randn(n, k, device="cuda") * 0.02)
            dense = cold_copies(mx.dequantize(plain, dtype="bfloat16"), COLD_BYTES)
            coded = cold_copies(plain.preshuffle(), COLD_BYTES)
            for m in (rows for rows in all_rows if rows * n * k <= LARGEST):
                x = torch.randn(m, k, device="cuda").bfloat16()
                out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
                work = m * n * k
                us = median_us(lambda w, x=x, out=out: torch.mm(x, w.T, out=out), dense, work)
                yield m, n, k, CUBLAS, round(us, 2)
                for plan in (found.code for found in plans((m, n, k))):
                    CUDA.plan = plan
                    kept = {"activations": "bf16"} if plan >= NUMBERS else {}
                    us = median_us(lambda w, x=x, kept=kept: mx.linear(x, w, **kept), coded, work)
                    yield m, n, k, plan, round(us, 2)
            log(f"{n} x {k}")

    with path.open("w", newline="") as file, torch.inference_mode():
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("m", "n", "k", "plan", "us"))
        writer.writerows(lines())


def read(path: Path = RESULT) -> dict[Shape, dict[int, float]]:
    """Returns the times of the plans of each shape."""
    found: dict = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            found[shape][int(row["plan"])] = float(row["us"])
    return dict(found)


def check(found: dict[Shape, dict[int, float]]) -> str:
    """Returns how the choices compare with the fastest plans that were measured."""
    lines = [f"{'shape':>20} {'chosen':>9} {'us':>8} {'fastest':>9} {'us':>8} {'behind':>7}"]
    for shape, times in found.items():
        ours = (plan for plan in plans(shape) if takes(plan.code, takes_bytes=True))
        chosen = min(ours, key=lambda plan: plan.us).code
        best = fastest(times, takes_bytes=True)
        line = f"{'x'.join(map(str, shape)):>20} {chosen:>9} {times[chosen]:>8} {best:>9}"
        lines.append(f"{line} {times[best]:>8} {times[chosen] / times[best]:>7.3f}")
    return "\n".join(lines)


def takes(plan: int, *, takes_bytes: bool) -> bool:
    """Says whether a plan takes MXFP4 activations, or else bfloat16 ones that are kept."""
    if plan < BYTES or plan == PORTABLE:
        return True
    return takes_bytes == (plan < NUMBERS)


def fastest(times: dict[int, float], *, takes_bytes: bool = False) -> int:
    """Returns the fastest plan of ours, of those that take the activations."""
    ours = ((us, plan) for plan, us in times.items() if plan != CUBLAS)
    return min(found for found in ours if takes(found[1], takes_bytes=takes_bytes))[1]


class Samples:
    """What was measured, as the fit wants it: terms and times, by family."""

    def __init__(self, found: dict[Shape, dict[int, float]]):
        # A measurement that is older than a plan does not have it.
        self.plans = {
            shape: [plan for plan in plans(shape) if plan.code in times]
            for shape, times in found.items()
        }
        terms, self._shapes = defaultdict(list), defaultdict(list)
        for shape, of_shape in self.plans.items():
            times = found[shape]
            for plan in of_shape:
                best = times[fastest(times, takes_bytes=plan.code < NUMBERS)]
                # Relative errors, and those of slow plans count less.
                weight = best / times[plan.code] ** 2
                row = [weight * term for term in plan.terms]
                terms[plan.family].append([*row, weight * times[plan.code]])
                self._shapes[plan.family].append(shape)
        self._terms = {family: np.array(rows) for family, rows in terms.items()}

    def costs(self, counts: Callable[[Shape], bool] = lambda _: True) -> list[np.ndarray]:
        """Returns the costs of each family, fitted to the shapes that count."""
        # The device's host, which only measures, may lack SciPy.
        from scipy.optimize import nnls  # noqa: PLC0415

        counted = {shape for shape in self.plans if counts(shape)}
        fitted = []
        for family in sorted(self._terms):
            kept = [shape in counted for shape in self._shapes[family]]
            rows = self._terms[family][kept]
            fitted.append(nnls(rows[:, :-1], rows[:, -1])[0])
        return fitted

    def choose(
        self,
        shape: Shape,
        costs: list[np.ndarray],
        *,
        takes_bytes: bool,
        among: list[Plan] | None = None,
    ) -> int:
        """Returns the code of the plan with the least cost, of those measured or given."""
        open_ = [
            plan for plan in among or self.plans[shape] if takes(plan.code, takes_bytes=takes_bytes)
        ]
        return min(open_, key=lambda plan: costs[plan.family] @ plan.terms).code


def table(path: Path) -> str:
    """Returns the text of the Mojo file that has the costs, and the shapes that defy them."""
    found = read(path)
    samples = Samples(found)
    costs = [np.array([float(f"{cost:.4g}") for cost in line]) for line in samples.costs()]
    exceptions = []
    for shape, times in found.items():
        chosen = [
            samples.choose(shape, costs, takes_bytes=way, among=plans(shape))
            for way in (True, False)
        ]
        wanted = [fastest(times, takes_bytes=way) for way in (True, False)]
        # What was not measured is not known to be faster.
        if any(
            times.get(a, np.inf) > NOISE * times[b] for a, b in zip(chosen, wanted, strict=True)
        ):
            exceptions.append((*shape, *wanted))
    lines = "\n".join(f"    [{', '.join(map(str, line))}]," for line in costs)
    defying = "\n".join(f"    {shape}," for shape in exceptions)
    return f'''"""What an H200 took, as `python -m bench.cuda_tune table` writes it.

A line of `COSTS` has the cost of each term of `costs`, in microseconds, for a family of plans. Of
`EXCEPTIONS`, each is a shape (M, N, K), the plan that was the fastest, and the one that was so of
those for bfloat16 activations, where costs choose another. Times: bench/results/cuda_tune.csv.
"""

# fmt: off
comptime COSTS: List[List[Float64]] = [
{lines}
]
comptime EXCEPTIONS: List[Tuple[Int, Int, Int, Int, Int]] = [
{defying}
]
# fmt: on
'''


if __name__ == "__main__":
    action, file = sys.argv[1:]
    if action == "measure":
        measure(Path(file), dict.fromkeys(WEIGHTS, ROWS))
    elif action == "check":
        measure(Path(file), UNSEEN)
        print(check(read(Path(file))))
    elif action == "table":
        TABLE.write_text(table(Path(file)))
    else:
        sys.exit(__doc__)
