"""Rows as tables for the terminal and as text for the pages of the documentation.

A table of `linear` begins with errors: what a ratio compares is as exact as that mode of ours.
Both show the same cells: `Table` holds headings and strings, `to_rich` and
`to_markdown` draw it. A page keeps its table between two markers:

    <!-- bench:begin -->   rewritten by `bench.run --record`   <!-- bench:end -->
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.table

from bench.goals import Goal
from bench.rows import OURS, ModelRow, Row
from bench.targets import OPS, PRODUCTS, QUANTIZERS

BESIDE = {"linear mxint8": "linear", "linear bf16": "linear mxfp8"}
"""Our modes that peers compare with, and the mode of ours that is shown beside them."""
ACTIVATIONS = {"linear": "mxfp4", "linear mxfp8": "mxfp8"}
"""How these are headed there."""
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

PROSE_HEADINGS = ("system", "computes")
"""Columns of words, which start at the left."""
ERRORS = {
    "error, dequantized weights": "error_own_weights",
    "error, float weights": "error_float_weights",
}
"""Lines above the times, and the column of `Row` that they show the worst of."""


@dataclass(frozen=True)
class Table:
    """A title, headings, and rows of as many cells."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_rich(self) -> rich.table.Table:
        """Draws the table for a terminal."""
        table = rich.table.Table(title=self.title, title_justify="left")
        for idx, heading in enumerate(self.headings):
            justify = "left" if idx == 0 or heading in PROSE_HEADINGS else "right"
            table.add_column(heading, justify=justify, no_wrap=idx == 0)
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Draws the table for a document, its title as a line before it."""
        rules = [
            "---" if idx == 0 or heading in PROSE_HEADINGS else "---:"
            for idx, heading in enumerate(self.headings)
        ]
        lines = [self.headings, rules, *self.rows]
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine_table(rows: Iterable[Row]) -> Table:
    """What the machine can do at all, a column for each thread count."""
    limits = [row for row in rows if row.op == "machine"]
    threads = sorted({row.threads for row in limits})
    names = list(dict.fromkeys((row.system, row.rate_unit) for row in limits))
    rates = {(row.system, row.threads): row.rate for row in limits}
    cells = [
        [f"{name}, {unit}", *(f"{rates[name, count]:.0f}" for count in threads)]
        for name, unit in names
    ]
    headings = ["limit", *(_threads(count) for count in threads)]
    return Table("The machine, measured in this run", headings, cells)


def operation_tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each operation and thread count, a column for each system."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.op not in ("machine", "overhead"):
            groups.setdefault((row.op, row.threads), []).append(row)
    order = list(dict.fromkeys((*BESIDE, *BESIDE.values(), *PRODUCTS, *QUANTIZERS)))
    return [
        _operation_table(
            op, threads, groups[op, threads], groups.get((BESIDE.get(op), threads), ())
        )
        for op, threads in sorted(groups, key=lambda key: (order.index(key[0]), key[1]))
    ]


def nearest_table(rows: Sequence[Row]) -> Table:
    """One line for each of our products, with the peer as accurate that comes nearest to it."""
    peers: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.system != OURS and row.times_ours is not None:
            peers.setdefault((row.op, row.threads, row.shape), []).append(row)
    cells = []
    for row in rows:
        if row.system != OURS or row.op not in OPS:
            continue
        others = peers.get((row.op, row.threads, row.shape), [])
        nearest = min(others, key=lambda peer: peer.times_ours, default=None)
        line = [
            f"{row.op} {' x '.join(str(size) for size in row.shape if size)}",
            str(row.threads or ""), _time(row.time_us_median), f"{_rate(row.rate)} {row.rate_unit}",
            f"{row.times_roofline:.2f}", _error(row),
        ]  # fmt: skip
        if nearest:
            behind = sum(peer.times_ours >= 1 for peer in others)
            line += [f"{nearest.times_ours:.2f}", nearest.system, _error(nearest)]
            line.append(f"{behind} of {len(others)}")
        cells.append([*line, *[""] * (10 - len(line))])
    headings = [
        "operation", "threads", "us", "rate", "x roofline", "error", "times faster", "than",
        "its error", "behind us",
    ]  # fmt: skip
    return Table(f"{OURS} and the peer that comes nearest; median us", headings, cells)


def _operation_table(op: str, threads: int, rows: Sequence[Row], beside: Sequence[Row]) -> Table:
    """Draws the rows of an operation; `beside` are ours of another mode, a system like others."""
    ours = [row for row in rows if row.system == OURS]
    times = {row.shape: row.time_us_median for row in ours}
    rows = [*rows, *(_as_system(row, times) for row in beside if row.shape in times)]
    peers = list(dict.fromkeys(row.system for row in rows if row.system != OURS))
    peers.sort(key=lambda name: name not in ACTIVATIONS.values())
    found = {(row.shape, row.system): row for row in rows}
    cells = [
        [heading, _worst(rows, OURS, error), "", "", *(_worst(rows, peer, error) for peer in peers)]
        for heading, error in ERRORS.items()
        if _worst(rows, OURS, error)
    ]
    for row in ours:
        shape = " x ".join(str(size) for size in row.shape if size)
        line = [shape, _time(row.time_us_median), _rate(row.rate), f"{row.times_roofline:.2f}"]
        for peer in peers:
            other = found.get((row.shape, peer))
            line.append(f"{_time(other.time_us_median)} ({other.times_ours:.2f})" if other else "")
        cells.append(line)
    shape_heading = "M x K" if op in QUANTIZERS else "M x N x K"
    headings = [shape_heading, f"{op}, us", ours[0].rate_unit, "x roofline", *peers]
    title = f"{op}, {_threads(threads)}: median us; in brackets, times as long as {OURS}"
    return Table(title, headings, cells)


def _as_system(row: Row, times: Mapping[tuple[int, int, int], float]) -> Row:
    """Returns a row of ours as one to compare with those of the given times."""
    return dataclasses.replace(
        row,
        system=ACTIVATIONS[row.op],
        times_ours=row.time_us_median / times[row.shape],
    )


def _worst(rows: Iterable[Row], system: str, error: str) -> str:
    """Returns the largest error of a system over the shapes as text, empty if there is none."""
    found = [getattr(row, error) for row in rows if row.system == system]
    return f"{max(found):.2%}" if found and None not in found else ""


def systems_table(rows: Iterable[Row]) -> Table:
    """What each system computes."""
    timed = (row for row in rows if row.op in OPS and row.op != "matmul")
    cells = dict.fromkeys((row.op, row.system, row.computes) for row in timed)
    return Table("What the systems compute", ["op", "system", "computes"], list(cells))


def overhead_line(rows: Iterable[Row]) -> str:
    """One sentence on what a call costs, empty if it was not measured."""
    found = [row for row in rows if row.op == "overhead"]
    times = ", ".join(f"{row.time_us_median:.2f} us ({_threads(row.threads)})" for row in found)
    return f"A call of `linear` on one block (1 x 32 x 32), everything included: {times}." * bool(
        found
    )


def model_table(rows: Sequence[ModelRow]) -> Table:
    """The sentence encoder's variants."""
    first = rows[0]
    cells = [
        [
            row.variant,
            f"{row.cosine_mean:.4f}",
            f"{row.cosine_worst:.4f}",
            f"{row.top1_agreement:.1%}",
            f"{row.top5_overlap:.1%}",
            f"{row.linear_weight_bytes / 1e6:.2f}",
            f"{row.model_bytes / 1e6:.1f}",
            f"{row.sentences_per_s:.0f}",
        ]
        for row in rows
    ]
    headings = [
        "variant", "cosine, mean", "cosine, worst", "same nearest", "same of nearest 5",
        "linear weights, MB", "model, MB", "sentences/s",
    ]  # fmt: skip
    title = f"MiniLM sentence encoder, {first.sentences} sentences, {_threads(first.threads)}"
    return Table(title, headings, cells)


def goal_table(goals: Sequence[Goal], made_on: str = "") -> Table:
    """The promises that are not kept, and how many are.

    Args:
        goals: all of them.
        made_on: the devices for which they were made.
    """
    cells = [
        [
            goal.text,
            str(goal.threads),
            f"{goal.measured:.2f}",
            f"{'<=' if goal.at_most else '>='} {goal.wanted:.3g}",
        ]
        for goal in goals
        if not goal.reached
    ]
    title = f"Goals{made_on and f', made on {made_on}'}: {len(goals) - len(cells)} of {len(goals)}"
    title += " reached; missed:" if cells else " reached"
    return Table(title, ["goal", "threads", "measured", "wanted"], cells)


def _error(row: Row) -> str:
    return "" if row.error_own_weights is None else f"{row.error_own_weights:.2%}"


def full_text(rows: Sequence[Row], model_rows: Sequence[ModelRow]) -> str:
    """Returns every table as a document."""
    parts = [_origin_line(rows, model_rows)]
    if any(row.op == "machine" for row in rows):
        parts.append(machine_table(rows).to_markdown())
    parts += [table.to_markdown() for table in operation_tables(rows)]
    parts.append(systems_table(rows).to_markdown())
    return "\n\n".join(parts + _closing_parts(rows, model_rows))


def page_text(rows: Sequence[Row], model_rows: Sequence[ModelRow]) -> str:
    """Returns what belongs between the markers: our modes of `linear` that peers compare with."""
    parts = [_origin_line(rows, model_rows)]
    threads = sorted({row.threads for row in rows})
    for count in threads:
        linear = [row for row in rows if row.op.startswith("linear") and row.threads == count]
        parts += [table.to_markdown() for table in operation_tables(linear)[: len(BESIDE)]]
    return "\n\n".join(parts + _closing_parts(rows, model_rows))


def gpu_markers(target: str) -> tuple[str, str]:
    """Returns what encloses the table of a GPU in its page."""
    return f"<!-- bench-{target}:begin -->", f"<!-- bench-{target}:end -->"


def gpu_text(rows: Sequence[Row]) -> str:
    """Returns what belongs between these markers: both kinds of `linear`, and each peer once."""
    times = {(row.op, row.shape, row.system): row.time_us_median for row in rows}
    ours = {"linear bf16": "bf16 x MXFP4", "linear": "quantize + MXFP4 x MXFP4"}
    linear = [row for row in rows if row.op == "linear"]
    peers = [name for name in dict.fromkeys(row.system for row in linear) if name != OURS]
    cells = []
    for shape in dict.fromkeys(row.shape for row in linear):
        found = [times[op, shape, OURS] for op in ours]
        found += [times.get(("linear", shape, peer)) for peer in peers]
        cells.append([" x ".join(map(str, shape)), *("" if t is None else _time(t) for t in found)])
    title = (
        f"*hardware*, {_origin_line(rows, ())} Median microseconds of a call in a CUDA graph, "
        "weights cold; an empty cell is a shape that the peer refuses."
    )
    return Table(title, ["M x N x K", *ours.values(), *peers], cells).to_markdown()


def _origin_line(rows: Sequence[Row], model_rows: Sequence[ModelRow]) -> str:
    origin = (rows or model_rows)[0]
    return f"{origin.device}; commit {origin.commit}, {origin.date}."


def _closing_parts(rows: Sequence[Row], model_rows: Sequence[ModelRow]) -> list[str]:
    parts = [line] if (line := overhead_line(rows)) else []
    return [*parts, model_table(model_rows).to_markdown()] if model_rows else parts


def update_page(path: Path, text: str, markers: tuple[str, str] = (BEGIN, END)) -> None:
    """Replaces what stands between the markers of a document.

    Raises:
        ValueError: unless each marker occurs once, in order.
    """
    document = path.read_text()
    begin, end = (document.find(marker) for marker in markers)
    if any(document.count(marker) != 1 for marker in markers) or end < begin:
        raise ValueError(f"{path.name} must hold {' and then '.join(markers)}, once each")
    path.write_text(f"{document[: begin + len(markers[0])]}\n{text}\n{document[end:]}")


def _time(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 100 else f"{time_us:.0f}"


def _rate(rate: float) -> str:
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def _threads(count: int) -> str:
    if not count:
        return "on the GPU"
    return f"{count} thread" + "s" * (count != 1)
