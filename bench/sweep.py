"""What the curves of time over rows show: whether there are steps, and how near the peak is.

    rise     time of a row with M rows, over the least that a row takes with fewer
    step     time with M + 1 rows over that with M, less what the rows explain: (M + 1) / M
    share    rate from 16 rows on, of the peak that torch reaches on the same dot product

All are of the fastest of interleaved rounds (`bench.targets.cpu_sweep`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from bench.goals import BF16_PEAK, INT8_PEAK, MANY_ROWS, MIN_SHARE_OF_PEAK, Goal, Measured
from bench.report import Table
from bench.rows import Row

ACTIVATIONS = {"linear": "mxfp4", "linear mxint8": "mxint8", "linear bf16": "bf16"}
"""Modes that are swept, and what activations are multiplied as."""
PEAKS = {"linear": INT8_PEAK, "linear mxint8": INT8_PEAK, "linear bf16": BF16_PEAK}
MAX_RISE = 1.05
"""Guess: what counts as none, fastest of a few rounds repeat to some percent."""
MAX_STEP = 1.15
ZEN_5, MIN_ZEN_5_RATE = "family 26", 550.0
"""Processors whose device name holds this reach so many int8 GOP/s a thread."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One curve: a mode, a size of weights, a thread count."""

    op: str
    n: int
    k: int
    threads: int
    rise: float
    """The worst, and the number of rows with it."""
    rise_rows: int
    step: float
    """The worst, and the number of rows before it."""
    step_rows: int
    rate: float
    """The least from `MANY_ROWS` on, GOP/s, and the number of rows with it."""
    rate_rows: int
    share: float
    """The same of the peak."""
    device: str
    commit: str
    date: str


def summarize(rows: Sequence[Row]) -> list[SweepRow]:
    """Returns a row for each curve.

    Raises:
        ValueError: if the peak of its dot product was not measured.
    """
    peaks = Measured(rows)
    curves: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.op in ACTIVATIONS:
            curves.setdefault((row.op, row.n, row.k, row.threads), []).append(row)
    found = []
    for (op, n, k, threads), points in curves.items():
        if (peak := peaks.peak(PEAKS[op], threads)) is None:
            raise ValueError(f"{PEAKS[op]}: no row, expected one for {threads} threads")
        rise, rise_rows = max(_rises(points), key=itemgetter(0))
        step, step_rows = max(_steps(points), key=itemgetter(0))
        rate, rate_rows = min((row.rate, row.m) for row in points if row.m >= MANY_ROWS)
        found.append(
            SweepRow(
                op=op, n=n, k=k, threads=threads, rise=rise, rise_rows=rise_rows, step=step,
                step_rows=step_rows, rate=rate, rate_rows=rate_rows, share=rate / peak,
                device=points[0].device, commit=points[0].commit, date=points[0].date,
            )
        )  # fmt: skip
    return found


def _rises(points: Sequence[Row]) -> Iterator[tuple[float, int]]:
    """Yields the time of a row over the least with fewer rows, and the number of rows."""
    least = points[0].time_us_best / points[0].m
    for row in points[1:]:
        yield row.time_us_best / row.m / least, row.m
        least = min(least, row.time_us_best / row.m)


def _steps(points: Sequence[Row]) -> Iterator[tuple[float, int]]:
    """Yields the growth of time beyond that of the rows, and the number of rows before it."""
    for before, after in itertools.pairwise(points):
        yield after.time_us_best / before.time_us_best * before.m / after.m, before.m


def check_goals(rows: Iterable[SweepRow]) -> list[Goal]:
    """Returns what is promised of each mode, at its worst size."""
    groups: dict[tuple[str, int], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault((row.op, row.threads), []).append(row)
    return [goal for group in groups.values() for goal in _goals(group)]


def _goals(rows: Sequence[SweepRow]) -> Iterator[Goal]:
    op, threads = rows[0].op, rows[0].threads
    worst = max(rows, key=lambda row: row.rise)
    text = f"{op}: worst rise of a row's time ({_size(worst)}, {worst.rise_rows} rows)"
    yield Goal(text, threads, worst.rise, MAX_RISE, at_most=True)
    worst = max(rows, key=lambda row: row.step)
    text = f"{op}: worst step ({_size(worst)}, {worst.step_rows} to {worst.step_rows + 1} rows)"
    yield Goal(text, threads, worst.step, MAX_STEP, at_most=True)
    worst = min(rows, key=lambda row: row.share)
    where = f"from {MANY_ROWS} rows on ({_size(worst)}, {worst.rate_rows} rows)"
    if PEAKS[op] == INT8_PEAK and ZEN_5 in worst.device:
        text = f"{op}: GOP/s a thread {where}"
        yield Goal(text, threads, worst.rate / threads, MIN_ZEN_5_RATE)
    else:
        text = f"{op}: share of the {PEAKS[op]}'s peak {where}"
        yield Goal(text, threads, worst.share, MIN_SHARE_OF_PEAK)


def table(rows: Iterable[SweepRow]) -> Table:
    """Draws a line for each curve."""
    cells = [
        [
            _size(row),
            ACTIVATIONS[row.op],
            str(row.threads),
            f"{row.rise:.3f} ({row.rise_rows})",
            f"{row.step:.3f} ({row.step_rows})",
            f"{row.rate:.0f} ({row.rate_rows})",
            f"{row.share:.2f}",
        ]
        for row in rows
    ]
    headings = [
        "N x K", "activations", "threads", "worst rise", "worst step",
        f"least GOP/s from {MANY_ROWS} rows", "of the peak",
    ]  # fmt: skip
    title = "linear over rows; in brackets, the number of rows where that is"
    return Table(title, headings, cells)


def text(rows: Sequence[SweepRow]) -> str:
    """Returns the table as a document."""
    origin = f"{rows[0].device}; commit {rows[0].commit}, {rows[0].date}."
    return "\n\n".join([origin, (__doc__ or "").strip(), table(rows).to_markdown()])


def _size(row: SweepRow) -> str:
    return f"{row.n} x {row.k}"
