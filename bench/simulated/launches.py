"""Launches of our gfx950 kernels in the simulator: operands and workspaces.

Grid and arguments are what a catalogue says. Values do not change the time, with one
exception: the workgroups of a prefill kernel prepare their rows together and wait for each
other, but the model executes only those of one compute unit. Its counters say that the others
have done their share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bench.shapes import Shape
from bench.simulated.catalogue import Catalogue
from bench.simulated.kept import kept_profile
from gfx950.timing import Profile, profile

BLOCK = 32
CUS = 256
TILE = 16
PREFILL = re.compile(r"(linear|matmul)(?:_mxfp8)?_prefill(\d+)")
"""A prefill kernel and the rows of its tile of C."""
PREFILL_COLUMNS = 256
MIDDLE = re.compile(r"matmul_(?:\w+_)?middle(\d+)x(\d+)(?:s\d+)?")
"""A middle kernel, and the rows and columns of its tile of C."""
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Launch:
    """One kernel with its arguments."""

    name: str
    kernel: object
    grid: tuple[int, ...]
    threads: int
    args: Sequence | Mapping
    ends_last: int | None = None
    """The last workgroup with work, if who arrives last does more than the others. Then the
    grid is timed in both orders, on the compute unit of the last to arrive; the slower counts."""
    alone: bool = False
    """Whether the arguments fit the workgroups of one compute unit only."""

    def profile(self, whole_grid: bool) -> Profile:
        """Times the launch with the model, or finds what an earlier run did."""
        if self.ends_last is None:
            return self._profile(whole_grid=whole_grid and not self.alone)
        residents = range(self.ends_last % CUS, self.ends_last + 1, CUS)
        orders = {"residents": residents}, {"reverse": True}
        profiles = [self._profile(whole_grid=True, **order) for order in orders]
        return max(profiles, key=lambda found: found.time_us)

    def _profile(self, **options) -> Profile:
        launch = self.kernel, self.grid, self.threads, self.args
        options["with_variants"] = True
        return kept_profile(self, options, lambda: profile(*launch, **options))


class Operands:
    """Arrays of one shape; most are zeros."""

    def __init__(self, shape: Shape):
        m, n, k = shape
        self.shape = shape
        self.x = np.random.default_rng(0).standard_normal((m, k), np.float32).astype(BF16)
        self.x_codes, self.x_scales = zeros(m, k // 2), zeros(m, k // BLOCK)
        self.codes, self.scales = zeros(n, k // 2), zeros(n, k // BLOCK)
        stored_codes, stored_scales = -(-n // 16) * 16, (-(-n // 32) * 32, -(-k // 256) * 8)
        self.preshuffled = zeros(stored_codes, k // 2), zeros(*stored_scales)
        self.e4m3_scales = zeros(stored_scales[0], 2 * stored_scales[1] + 4)
        self.c = zeros(m, n, BF16)


def zeros(rows: int, columns: int, dtype=np.uint8) -> np.ndarray:
    """Returns a matrix of zeros."""
    return np.zeros((rows, columns), dtype)


def ours(catalogue: Catalogue, label: str, operands: Operands) -> Launch:
    """Returns the launch of one of our products.

    Args:
        catalogue: where the kernel is listed.
        label: `<op>_<cut>`, the cut as `mx.explain` spells it.
        operands: of the shape, which the kernel computes.
    """
    found, kernel = catalogue.launch(label, *operands.shape), catalogue.kernels[label]
    is_linear = label.startswith("linear")
    w_codes, w_scales = operands.preshuffled
    if label.startswith("linear_nvfp4"):
        w_scales = operands.e4m3_scales
    workspace, is_prefill = found.workspace(), PREFILL.fullmatch(label)
    if is_prefill:
        do_the_share_of_others(
            workspace[: found.cleared_bytes], catalogue.cooperative, label, operands
        )
    args = found.bind(
        a=operands.x if is_linear else operands.x_codes, a_scales=operands.x_scales,
        w_codes=w_codes, w_scales=w_scales, c=operands.c, bias=zeros(0, 0), workspace=workspace,
        none=zeros(0, 0),
    )  # fmt: skip
    is_split = found.grid[2] > 1
    last = last_workgroup(found.grid, label, operands.shape) if is_split else None
    return Launch(
        label, kernel, found.grid, found.threads, args, ends_last=last, alone=bool(is_prefill)
    )


def last_workgroup(grid: tuple[int, int, int], label: str, shape: Shape) -> int:
    """Returns the last workgroup that has a tile: the grid's x extent may be rounded up."""
    x, y, z = grid
    wide = MIDDLE.fullmatch(label)
    if wide:
        rows, columns = map(int, wide.groups())
        return (y * z - 1) * x + -(-shape.m // rows) * -(-shape.n // columns) - 1
    columns = TILE * int(re.search(r"n(\d+)", label)[1])
    return (y * z - 1) * x + -(-shape.n // columns) - 1


def do_the_share_of_others(
    cleared: np.ndarray, cooperative: Mapping, label: str, operands: Operands
) -> None:
    """Counts as finished what a workgroup of a prefill kernel leaves to the others."""
    op, rows = PREFILL.fullmatch(label).groups()
    parts = -(-operands.shape.k // cooperative["part_k"][op])
    workgroups = -(-operands.shape.n // PREFILL_COLUMNS)
    finished = parts - -(-parts // workgroups)
    counters = cleared.view(np.uint32).reshape(-1, cooperative["words"])
    pairs = int(rows) // cooperative["pair_rows"]
    counters[:, :pairs] = finished
    counters[:, cooperative["finished_word"]] = pairs * finished
