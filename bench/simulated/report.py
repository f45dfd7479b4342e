"""Rows of the simulator as tables, CSV and text of a page: the model's numbers, or a GPU's.

Its page keeps the tables between two markers:

    <!-- bench-gfx950:begin -->   rewritten by --record   <!-- bench-gfx950:end -->
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Table
from bench.rows import OURS

BEGIN, END = "<!-- bench-gfx950:begin -->", "<!-- bench-gfx950:end -->"
MODELLED = f"{OURS}, modelled"
"""Beside what a GPU measured: what the model said of it before, by reading."""
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
    """The larger of bytes over bandwidth and operations over the peak of their kind."""
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
    clock_us: float | None = None
    """`time_us` in each reading of the machine (timing.parameters); the first is `time_us`."""
    latency_us: float | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return (self.m, self.n, self.k)

    @property
    def readings(self) -> tuple[float, ...]:
        """`time_us` in every reading; what a GPU measured has one."""
        return (self.time_us,) if self.clock_us is None else (self.clock_us, self.latency_us)

    def times(self, other: SimulatedRow) -> tuple[float, ...]:
        """Returns how many times as long as `other` this takes, in every reading."""
        return tuple(a / b for a, b in zip(self.readings, other.readings, strict=True))


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
            "" if row.clock_us is None else _range(row.readings),
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


def _range(values: Sequence[float]) -> str:
    """Writes what lies between readings; one number if they agree."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} .. {high}"


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def page_text(rows: Sequence[SimulatedRow]) -> str:
    """Returns what belongs between the markers: `linear` and `matmul`, a column a system."""
    dates = {row.system: row.date for row in rows if row.date != rows[0].date}
    title = (
        f"{_label(rows[0])}. A range is between the two readings of what the model was fitted to. "
        "Launch cost included, once a launch; in brackets, times as long as mx_kernels. Floor: the "
        f"larger of the least time and {PRACTICAL_FLOOR_US} us. MFMA: busy share of the matrix "
        f"pipes, in brackets within the loop. Commit {rows[0].commit}, {rows[0].date}"
        + "".join(f"; {system} as of {date}" for system, date in dates.items())
        + "."
    )
    parts = [title]
    for op in ("linear", "matmul"):
        chosen = [row for row in rows if row.op == op]
        if chosen:
            parts += [_page_table(op, chosen).to_markdown(), _strongest(op, chosen)]
    return "\n\n".join(part for part in parts if part)


def _page_table(op: str, rows: Sequence[SimulatedRow]) -> Table:
    systems = list(dict.fromkeys(row.system for row in rows))
    found = {(row.shape, row.system): row for row in rows}
    cells = []
    for row in rows:
        if row.system == OURS:
            line = [" x ".join(map(str, row.shape)), f"{row.least_us:.2f}", _range(row.readings)]
            line += [f"{row.times_floor:.2f}", *_page_facts(row)]
            for system in systems[1:]:
                other = found.get((row.shape, system))
                times = other and f"{_range(other.readings)} ({_range(other.times(row))})"
                line.append(times or "")
            cells.append(line)
    headings = [
        f"{op}, M x N x K", "least us", "mx_kernels us", "x floor", "MFMA", "HBM, MB",
        "waves/SIMD", "LDS conflicts", *(f"{system} us" for system in systems[1:]),
    ]  # fmt: skip
    return Table(f"`{op}`", headings, cells)


def _strongest(op: str, rows: Sequence[SimulatedRow]) -> str:
    """Compares with the fastest peer of each shape, by the first reading."""
    ours = {row.shape: row for row in rows if row.system == OURS}
    peers: dict[tuple, SimulatedRow] = {}
    for row in rows:
        best = peers.get(row.shape)
        is_peer = not row.system.startswith(OURS)
        if is_peer and (best is None or row.time_us < best.time_us):
            peers[row.shape] = row
    if not peers:
        return ""
    times = {shape: peer.times(ours[shape]) for shape, peer in peers.items()}
    means = [statistics.geometric_mean(one) for one in zip(*times.values(), strict=True)]
    worst = min(times, key=lambda shape: min(times[shape]))
    return (
        f"The fastest peer of each shape takes {_range(means)} times as long as `{op}` "
        f"(geometric mean); least at {' x '.join(map(str, worst))}: {_range(times[worst])} "
        f"({peers[worst].system})."
    )


def _page_facts(row: SimulatedRow) -> list[str]:
    loop = _text(row.loop_utilisation, " ({:.0%})")
    return [
        _text(row.mfma_utilisation, "{:.0%}") + loop,
        _text(row.hbm_bytes and row.hbm_bytes / 1e6, "{:.2f}"),
        _text(row.waves_per_simd, "{:g}"),
        _text(row.lds_conflict_share, "{:.0%}"),
    ]
