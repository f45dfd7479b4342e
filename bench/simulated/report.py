"""Rows of the simulator as tables, CSV and README text: the model's numbers, or a GPU's.

The README keeps its table between two markers:

    <!-- bench-gfx950:begin -->   rewritten by --update-readme   <!-- bench-gfx950:end -->
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Table
from bench.rows import OURS

BEGIN, END = "<!-- bench-gfx950:begin -->", "<!-- bench-gfx950:end -->"
PRACTICAL_FLOOR_US = 2.5
"""What a launch takes that has nothing to compute."""
LABELS = {"model": "*simulated*: a timing model of gfx950, no number here was measured on a GPU"}
"""By the source of a row; what a GPU measured is called what its source says."""


@dataclass(frozen=True)
class SimulatedRow:
    """One system, one operation, one shape; what only the model knows may be None."""

    op: str
    m: int
    n: int
    k: int
    system: str
    computes: str
    kernels: str
    """The launches, in order."""
    launches: int
    time_us: float
    """All launches, the cost of each launch counted once."""
    kernel_us: float
    """The same without the cost of launches."""
    times_ours: float
    """This time over that of mx_kernels: above 1, mx_kernels is faster."""
    least_us: float
    """The larger of bytes over bandwidth and operations over the MXFP4 peak."""
    times_floor: float
    """Time over the larger of `least_us` and what an empty launch takes."""
    mfma_utilisation: float | None
    """Busy share of the matrix pipes over the last multiplying kernel."""
    loop_utilisation: float | None
    """The same within its busiest loop, if it has one."""
    hbm_bytes: float | None
    """Bytes from memory, all launches."""
    waves_per_simd: float | None
    """Occupancy of the multiplying kernel."""
    lds_conflict_share: float | None
    """Share of its LDS cycles lost to bank conflicts."""
    source: str
    """`model`, or the hardware's name."""
    commit: str
    date: str
    low_us: float | None = None
    """`time_us` of the fastest and of the slowest reading of the machine (timing.parameters)."""
    high_us: float | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return (self.m, self.n, self.k)


def tables(rows: Sequence[SimulatedRow]) -> list[Table]:
    """One table for each operation, a line for each shape and system."""
    ops = dict.fromkeys(row.op for row in rows)
    return [_table(op, [row for row in rows if row.op == op]) for op in ops]


def _table(op: str, rows: Sequence[SimulatedRow]) -> Table:
    headings = [
        "M x K" if op == "quantize" else "M x N x K", "system", "launches", "us", "range", "x ours",
        "least us", "x floor", "MFMA", "in loop", "HBM, MB", "waves/SIMD", "LDS conflicts",
        "kernels",
    ]  # fmt: skip
    cells = [
        [
            " x ".join(str(size) for size in row.shape if size),
            row.system,
            str(row.launches),
            f"{row.time_us:.2f}",
            _range(row),
            "" if row.system == OURS else f"{row.times_ours:.2f}",
            f"{row.least_us:.2f}",
            f"{row.times_floor:.2f}",
            _text(row.mfma_utilisation, "{:.0%}"),
            _text(row.loop_utilisation, "{:.0%}"),
            _text(row.hbm_bytes and row.hbm_bytes / 1e6, "{:.2f}"),
            _text(row.waves_per_simd, "{:g}"),
            _text(row.lds_conflict_share, "{:.0%}"),
            row.kernels,
        ]
        for row in rows
    ]
    return Table(f"{op}, {_label(rows[0])}", headings, cells)


def _label(row: SimulatedRow) -> str:
    return LABELS.get(row.source, row.source)


def _range(row: SimulatedRow) -> str:
    return "" if row.low_us is None else f"{row.low_us:.2f} .. {row.high_us:.2f}"


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def readme_text(rows: Sequence[SimulatedRow]) -> str:
    """Returns what belongs between the markers: `linear` and `matmul`, a column a system."""
    title = (
        f"{_label(rows[0])}. Launch cost included, once a launch; in brackets, times as long as "
        f"mx_kernels. Floor: the larger of the least time and {PRACTICAL_FLOOR_US} us. MFMA: busy "
        f"share of the matrix pipes, in brackets within the loop. Commit {rows[0].commit}, "
        f"{rows[0].date}."
    )
    parts = [_readme_table(op, [r for r in rows if r.op == op]) for op in ("linear", "matmul")]
    return "\n\n".join([title, *(part.to_markdown() for part in parts if part.rows)])


def _readme_table(op: str, rows: Sequence[SimulatedRow]) -> Table:
    systems = list(dict.fromkeys(row.system for row in rows))
    found = {(row.shape, row.system): row for row in rows}
    cells = []
    for row in rows:
        if row.system == OURS:
            line = [" x ".join(map(str, row.shape)), f"{row.least_us:.2f}", f"{row.time_us:.2f}"]
            line += [f"{row.times_floor:.2f}", *_readme_facts(row)]
            for system in systems[1:]:
                other = found[row.shape, system]
                line.append(f"{other.time_us:.2f} ({other.times_ours:.2f})")
            cells.append(line)
    headings = [
        f"{op}, M x N x K", "least us", "mx_kernels us", "x floor", "MFMA", "HBM, MB",
        "waves/SIMD", "LDS conflicts", *(f"{system} us" for system in systems[1:]),
    ]  # fmt: skip
    return Table(f"`{op}`", headings, cells)


def _readme_facts(row: SimulatedRow) -> list[str]:
    loop = _text(row.loop_utilisation, " ({:.0%})")
    return [
        _text(row.mfma_utilisation, "{:.0%}") + loop,
        _text(row.hbm_bytes and row.hbm_bytes / 1e6, "{:.2f}"),
        _text(row.waves_per_simd, "{:g}"),
        _text(row.lds_conflict_share, "{:.0%}"),
    ]
