"""The rows of `linear` as a picture: a bar for each system and shape, or curves over rows.

A bar ends at how many times as fast as a system `mx_kernels` is, on a logarithmic axis, so that
equal factors look equal, and begins at 1: a system whose bar hangs below is faster. One panel a
thread count and mode of ours that other systems are compared with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import LogLocator, NullFormatter

from bench.rows import OURS, Row

GROUP_WIDTH = 0.84


def plot_linear(rows: Sequence[Row], path: Path, *, most_threads: bool = False) -> bool:
    """Draws the rows of `linear` into a PNG file.

    Args:
        rows: of one target.
        path: the file.
        most_threads: leaves out all thread counts but the largest.

    Returns:
        Whether there was anything to draw.
    """
    rows = [row for row in rows if row.op.startswith("linear")]
    shown = sorted({(row.threads, row.op) for row in rows if row.system != OURS})
    shown = [one for one in shown if not most_threads or one[0] == shown[-1][0]]
    if not shown:
        return False
    figure, panels = pyplot.subplots(
        len(shown), 1, figsize=(12, 3.2 * len(shown) + 0.6), squeeze=False, layout="constrained"
    )
    for panel, (count, op) in zip(panels[:, 0], shown, strict=True):
        draw(panel, [row for row in rows if (row.threads, row.op) == (count, op)])
        where = f"{count} thread" + "s" * (count != 1) if count else "on the GPU"
        panel.set_title(f"{op}, {where}")
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    figure.suptitle(
        f"{OURS} is so many times as fast as others\n{_origin(rows[0])}", fontsize="medium"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def plot_sweep(rows: Sequence[Row], path: Path) -> None:
    """Draws the rates of a sweep over its numbers of rows, a panel for each size and thread count.

    Dotted: the peaks of the dot products.
    """
    points = [row for row in rows if row.op != "machine"]
    peaks = [row for row in rows if row.op == "machine"]
    sizes = list(dict.fromkeys((row.n, row.k) for row in points))
    threads = sorted({row.threads for row in points})
    figure, panels = pyplot.subplots(
        len(sizes), len(threads), figsize=(6 * len(threads), 2.6 * len(sizes)), squeeze=False,
        sharex=True, sharey="col", layout="constrained",
    )  # fmt: skip
    for (size, count), panel in zip(itertools.product(sizes, threads), panels.flat, strict=True):
        here = [row for row in points if (row.n, row.k, row.threads) == (*size, count)]
        for op in dict.fromkeys(row.op for row in here):
            curve = [(row.m, row.rate) for row in here if row.op == op]
            panel.plot(*zip(*curve, strict=True), marker=".", markersize=3, label=op)
        for peak in (row.rate for row in peaks if row.threads == count):
            panel.axhline(peak, color="gray", linestyle=":", linewidth=1)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("GOP/s")
        panel.set_title(f"{size[0]} x {size[1]}, {count} thread{'s' * (count != 1)}", fontsize=9)
    panels[0, 0].legend(fontsize="small")
    figure.suptitle(f"linear over rows of activations\n{_origin(points[0])}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def draw(panel, rows: Sequence) -> None:
    """Draws rows of one operation, with a shape, a system and its time in times of ours."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    systems = [s for s in dict.fromkeys(row.system for row in rows) if s != OURS]
    ratios = {(row.shape, row.system): row.times_ours for row in rows}
    width = GROUP_WIDTH / max(1, len(systems))
    for idx, system in enumerate(systems):
        left = [at - GROUP_WIDTH / 2 + (idx + 0.5) * width for at in range(len(shapes))]
        above = [ratios.get((shape, system), float("nan")) - 1 for shape in shapes]
        panel.bar(left, above, width, bottom=1, label=system)
    panel.axhline(1.0, color="black", linewidth=1)
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(axis="y", alpha=0.3)
    labels = [f"{m}\n{n} x {k}" for m, n, k in shapes]
    panel.set_xticks(range(len(shapes)), labels, fontsize=8)
    panel.set_ylabel("times as fast")


def _origin(row: Row) -> str:
    return f"{row.device}; commit {row.commit}, {row.date}"
