"""Launches of our gfx950 kernels in the simulator: operands, arguments, workspaces.

A `Cut` is what Mojo says about a kernel for a shape: its name and its launch. `ours` makes the
arguments of that launch. Values do not change the time, with one exception: the workgroups of a
fused prefill kernel encode their rows together and wait for each other, but the model executes
only those of one compute unit. Its counters say that the others have done their share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from bench.shapes import Shape
from bench.simulated.kept import kept_profile
from gfx950.timing import Profile, profile

BLOCK = 32
CUS = 256
TILE = 16
PREFILL = re.compile(r"prefill(\d+)")
"""A prefill kernel and the rows of its tile of C."""
PREFILL_COLUMNS = 256
PAIR_ROWS = 32
PART_K = {"linear": 256, "matmul": 2048}
"""What workgroups that share rows prepare at once: so much along K of 32 rows."""
TEAM_WORDS, FINISHED_WORD = 32, 16
"""Their counters: a ticket for each 32 rows, and what is finished."""
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


@dataclass(frozen=True)
class Cut:
    """A kernel as the dispatch sees it, and its launch for a shape."""

    op: str
    name: str
    """As `mx.explain` spells it."""
    grid: tuple[int, int, int]
    threads: int
    chunks_per_wave: int
    counter_bytes: int
    workspace_bytes: int

    @property
    def label(self) -> str:
        """The name of the kernel."""
        return f"{self.op}_{self.name}"


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
        self.c = zeros(m, n, BF16)


def zeros(rows: int, columns: int, dtype=np.uint8) -> np.ndarray:
    """Returns a matrix of zeros."""
    return np.zeros((rows, columns), dtype)


def ours(kernel, cut: Cut, operands: Operands) -> Launch:
    """Returns the launch of one of our products."""
    a = [operands.x] if cut.op == "linear" else [operands.x_codes, operands.x_scales]
    sizes = [np.int32(size) for size in operands.shape]
    no_bias = zeros(0, 0)
    launch = cut.label, kernel, cut.grid, cut.threads
    if rows := PREFILL.fullmatch(cut.name):
        workspace = prefill_workspace(cut, operands.shape, int(rows[1]))
        last = [workspace, *sizes] if cut.op == "linear" else [workspace, *sizes, operands.c]
        first = [*a, *operands.preshuffled, *([operands.c] if cut.op == "linear" else [])]
        return Launch(*launch, [*first, *last, no_bias], alone=True)
    sizes.append(np.int32(cut.chunks_per_wave))
    tensors = [*a, *operands.preshuffled, operands.c]
    workspace = np.zeros(cut.workspace_bytes, np.uint8)
    last = last_workgroup(cut, operands.shape) if cut.grid[2] > 1 else None
    return Launch(*launch, [*tensors, *sizes, no_bias, workspace], ends_last=last)


def last_workgroup(cut: Cut, shape: Shape) -> int:
    """Returns the last workgroup that has a tile: the grid's x extent may be rounded up."""
    x, y, z = cut.grid
    columns = TILE * int(re.search(r"n(\d+)", cut.name)[1])
    return (y * z - 1) * x + -(-shape.n // columns) - 1


def prefill_workspace(cut: Cut, shape: Shape, rows: int) -> np.ndarray:
    """Returns the workspace when a workgroup has only its share of the preparation left to do."""
    parts = -(-shape.k // PART_K[cut.op])
    workgroups = -(-shape.n // PREFILL_COLUMNS)
    finished = parts - -(-parts // workgroups)
    workspace = np.zeros(cut.workspace_bytes, np.uint8)
    counters = workspace[: cut.counter_bytes].view(np.uint32).reshape(-1, TEAM_WORDS)
    pairs = rows // PAIR_ROWS
    counters[:, :pairs] = finished
    counters[:, FINISHED_WORD] = pairs * finished
    return workspace
