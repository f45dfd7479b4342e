"""Rows as tables for the terminal and as text for the README.

Both show the same cells: `Table` holds headings and strings, `to_rich` and
`to_markdown` draw it. The README keeps its table between two markers:

    <!-- bench:begin -->   rewritten by `bench.run --record`   <!-- bench:end -->
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.table

from bench.goals import Goal
from bench.rows import OURS, ModelRow, Row
from bench.targets import OPS, QUANTIZERS

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

PROSE_HEADINGS = ("system", "computes")
"""Columns of words, which start at the left."""


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
    order = {"linear": 0, "linear mxfp8": 1, "linear bf16": 2, "matmul": 3}
    order |= {op: len(order) + idx for idx, op in enumerate(QUANTIZERS)}
    return [
        _operation_table(op, threads, groups[op, threads])
        for op, threads in sorted(groups, key=lambda key: (order[key[0]], key[1]))
    ]


def _operation_table(op: str, threads: int, rows: Sequence[Row]) -> Table:
    ours = [row for row in rows if row.system == OURS]
    peers = list(dict.fromkeys(row.system for row in rows if row.system != OURS))
    found = {(row.shape, row.system): row for row in rows}
    cells = []
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


def goal_table(goals: Sequence[Goal]) -> Table:
    """Every promise, what was measured, and whether it is kept."""
    cells = [
        [
            goal.text,
            str(goal.threads),
            f"{goal.measured:.2f}",
            f"{'<=' if goal.at_most else '>='} {goal.wanted:.3g}",
            "yes" if goal.reached else "NO",
        ]
        for goal in goals
    ]
    kept = sum(goal.reached for goal in goals)
    title = f"Goals: {kept} of {len(goals)} reached"
    return Table(title, ["goal", "threads", "measured", "wanted", "reached"], cells)


def full_text(rows: Sequence[Row], model_rows: Sequence[ModelRow]) -> str:
    """Returns every table as a document."""
    parts = [_origin_line(rows, model_rows)]
    if any(row.op == "machine" for row in rows):
        parts.append(machine_table(rows).to_markdown())
    parts += [table.to_markdown() for table in operation_tables(rows)]
    parts.append(systems_table(rows).to_markdown())
    return "\n\n".join(parts + _closing_parts(rows, model_rows))


def readme_text(rows: Sequence[Row], model_rows: Sequence[ModelRow]) -> str:
    """Returns what belongs between the markers: `linear`, which is what users wait for."""
    parts = [_origin_line(rows, model_rows)]
    linear = [row for row in rows if row.op == "linear"]
    parts += [table.to_markdown() for table in operation_tables(linear)]
    return "\n\n".join(parts + _closing_parts(rows, model_rows))


def gpu_markers(target: str) -> tuple[str, str]:
    """Returns what encloses the table of a GPU in the README."""
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


def update_readme(path: Path, text: str, markers: tuple[str, str] = (BEGIN, END)) -> None:
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
