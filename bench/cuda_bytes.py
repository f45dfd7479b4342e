"""Every plan for products of eight-bit codes on an NVIDIA GPU: `python -m bench.cuda_bytes`.

    measure FILE.csv    on the device, two minutes: a line for each shape, pair of formats and plan
    fit FILE.csv        anywhere: prints the costs that `hopper/aligned/choice.mojo` and
                        `hopper/mapped/choice.mojo` have, and how good a choice they make

A line of the file is (left, right, m, n, k, plan, us): the median time of `matmul` of codes with
cold weights, in a graph. Plans are codes of `hopper/plan.mojo`. Each result is compared with the
product of what the codes stand for before it is timed.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
RESULT = REPOSITORY / "bench" / "results" / "cuda_bytes.csv"

SHAPES = (
    (128, 4096, 4096), (256, 7168, 2048), (512, 4096, 4096), (1024, 4096, 4096), (64, 4096, 4096),
    (128, 2112, 7168), (24, 5120, 1280), (256, 5120, 2880), (1024, 8192, 8192), (2048, 4096, 14336),
    (512, 2112, 7168), (64, 7168, 2048), (192, 5760, 2880), (384, 2880, 4096), (96, 1280, 5120),
    (768, 6144, 4096), (128, 14336, 4096), (512, 512, 2880), (2048, 2048, 7168), (40, 2880, 2880),
    (320, 24576, 1536), (4096, 4096, 4096), (160, 768, 3072), (48, 9216, 4096),
)  # fmt: skip
PAIRS = (
    ("fp8", "fp8"), ("fp8_block", "fp8_block_2d"), ("mxfp8", "mxfp8"), ("mxfp8", "mxfp4"),
)  # fmt: skip
STEP = 128
"""K of a stage."""
MAPPED = ("fp8", "fp8"), ("fp8_block", "fp8_block_2d")
"""Those whose weights are read as they lie."""
ROWS, RANKS = (64, 128), (1, 2, 4, 8)
CLUSTERS = dict(zip(RANKS, (132, 66, 28, 12), strict=True))
"""How many clusters of so many ranks run at once."""
COLUMNS = 128
STAGED_RANKS = (1, 2)
"""Ranks of plans that have weights in the workspace: more would be for few rows."""
MAX_ERROR = 4e-3
"""Of the norm of a product: rounding to bfloat16 is 1.7e-3, a block's float sums the rest."""
MAX_ROUNDS = 3
"""What takes more is no candidate of what makes weights as it goes, and no part of the fit."""

Shape = tuple[int, int, int]
Times = dict[Shape, dict[int, float]]
"""Microseconds of each plan."""


def made(rows: int, ranks: int) -> int:
    """Returns the plan whose groups of so many rows make stages of weights, in so many ranks."""
    return (1 << 23) + 256 * rows + ranks


def mapped(rows: int, ranks: int) -> int:
    """Returns the plan whose groups have tiles of so many rows, of weights that are mapped."""
    return (1 << 25) + 256 * rows + ranks


def staged(rows: int, ranks: int) -> int:
    """Returns the plan whose groups have such tiles, of MXFP8 and weights in the workspace."""
    return (1 << 27) + 256 * rows + ranks


def plans(pair: tuple[str, str]) -> list[int]:
    """Returns the plans of a pair of formats."""
    if pair in MAPPED:
        return [mapped(rows, ranks) for rows in ROWS for ranks in RANKS]
    return [
        *(staged(rows, ranks) for rows in ROWS for ranks in STAGED_RANKS),
        *(made(rows, ranks) for rows in ROWS for ranks in RANKS),
    ]


def measure(path: Path) -> None:
    """Measures everything."""
    import torch  # noqa: PLC0415  not needed to read a file

    import mx_kernels as mx  # noqa: PLC0415
    from bench.cuda_tune import COLD_BYTES  # noqa: PLC0415
    from bench.graph_timing import cold_copies, median_us  # noqa: PLC0415
    from mx_kernels._core.cuda import CUDA  # noqa: PLC0415

    torch.set_default_device("cuda")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for m, n, k in SHAPES:
            x, y = torch.randn(m, k).bfloat16(), torch.randn(n, k) / 50
            for left, right in PAIRS:
                a, w = mx.quantize(x, format=left), mx.quantize(y, format=right)
                expected = a.dequantize(dtype="float32") @ w.dequantize(dtype="float32").T
                weights = cold_copies(w.preshuffle(), COLD_BYTES)
                for plan in plans((left, right)):
                    CUDA.plan = plan
                    error = (mx.matmul(a, weights[0]).float() - expected).norm() / expected.norm()
                    if not error <= MAX_ERROR:
                        raise ValueError(f"{m, n, k} {left} x {right}, plan {plan}: error {error}")
                    us = median_us(lambda w, a=a: mx.matmul(a, w), weights, m * n * k)
                    writer.writerow((left, right, m, n, k, plan, f"{us:.2f}"))
                    CUDA.plan = 0


def read(path: Path) -> dict[tuple[str, str], Times]:
    """Returns what was measured of each pair of formats."""
    found: dict[tuple[str, str], Times] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="") as file:
        for left, right, m, n, k, plan, us in csv.reader(file):
            found[left, right][int(m), int(n), int(k)][int(plan)] = float(us)
    return found


def terms(shape: Shape, plan: int) -> list[float] | None:
    """Returns what has a cost, in the order of `choice.mojo`; none of many rounds.

    Once, of plans that have weights in the workspace also those and tokens; rounds and stages of 64
    rows, of 128 rows; rounds in which two, four, eight ranks add up.
    """
    m, n, k = shape
    is_staged = plan >= staged(0, 0)
    rows, ranks = divmod(plan % made(0, 0), 256)
    columns = ROWS[1] * COLUMNS // rows if plan >= mapped(0, 0) else COLUMNS
    rounds = _ceildiv(_ceildiv(m, rows) * _ceildiv(n, columns), CLUSTERS[ranks])
    if rounds > MAX_ROUNDS and plan < mapped(0, 0):
        return None
    steps = rounds * _ceildiv(_ceildiv(k, STEP), ranks)
    of_rows = [rounds, steps, 0, 0] if rows == ROWS[0] else [0, 0, rounds, steps]
    workspace = [n * k / 2**20, m * k / 2**20] if is_staged else []
    known = STAGED_RANKS if is_staged else RANKS
    return [1, *workspace, *of_rows, *(rounds * (ranks == some) for some in known[1:])]


def costs(times: Times) -> tuple[np.ndarray, ...]:
    """Returns the costs of plans with weights in the workspace, if there are, and of the others."""
    from scipy.optimize import nnls  # noqa: PLC0415

    found = []
    for is_staged in (True, False):
        lines = [
            np.array(of_plan) / us
            for shape, of_shape in times.items()
            for plan, us in of_shape.items()
            if (plan >= staged(0, 0)) == is_staged and (of_plan := terms(shape, plan))
        ]
        if lines:
            found.append(nnls(np.array(lines), np.ones(len(lines)))[0])
    return tuple(found)


def quality(times: Times) -> str:
    """Says what the costs' choices take over the fastest plans: mean and worst."""
    found = costs(times)
    ratios = []
    for shape, of_shape in times.items():
        expected = {}
        for plan in of_shape:
            if (of_plan := terms(shape, plan)) is not None:
                expected[plan] = np.dot(of_plan, found[0] if plan >= staged(0, 0) else found[-1])
        chosen = min(expected, key=expected.get)
        ratios.append(of_shape[chosen] / min(of_shape.values()))
    return f"choice {np.exp(np.mean(np.log(ratios))):.3f} | {max(ratios):.3f}"


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


if __name__ == "__main__":
    what, file_name = sys.argv[1:]
    if what == "measure":
        measure(Path(file_name))
    else:
        for pair, of_pair in read(Path(file_name)).items():
            found = costs(of_pair)
            print(pair, *(np.round(part, 3).tolist() for part in found), quality(of_pair))
