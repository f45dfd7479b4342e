"""Every picture that is drawn while the site is built, by name, as SVG."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from bench import plot
from bench.rows import read_csv
from bench.simulated.report import SimulatedRow
from examples.ladder.rungs import BY_NAME
from made import blocks, layouts
from made.drawing import Figure, svg
from made.texts import ladder_rates, ladder_rows

ROOT = Path(__file__).parents[2]


def ladder() -> str:
    """Draws the times of the rungs, a bar from one reading of the model to the other."""
    ladders = "many_rows", "few_rows"
    rows = [row for row in ladder_rows() if BY_NAME[row["rung"]].ladder in ladders]
    figure = Figure(figsize=(9, 3.4))
    shapes = list(dict.fromkeys((row["m"], row["n"], row["k"]) for row in rows))
    widths = [sum((row["m"], row["n"], row["k"]) == shape for row in rows) for shape in shapes]
    panels = figure.subplots(1, len(shapes), gridspec_kw={"width_ratios": widths})
    for panel, shape in zip(panels, shapes, strict=True):
        here = [row for row in rows if (row["m"], row["n"], row["k"]) == shape]
        times = [sorted((float(row["clock_us"]), float(row["latency_us"]))) for row in here]
        bars = panel.bar(
            [row["rung"] for row in here], [high for _, high in times], color="#78909c"
        )
        panel.bar([row["rung"] for row in here], [low for low, _ in times], color="#455a64")
        panel.bar_label(bars, [f"{low:.1f} .. {high:.1f}" for low, high in times], fontsize=7)
        panel.set_title(" x ".join(shape), fontsize=9)
        panel.tick_params(axis="x", labelsize=7, rotation=20)
        panel.margins(y=0.12)
    panels[0].set_ylabel("us, simulated")
    figure.suptitle(
        f"timing model of gfx950, not measured; commit {rows[0]['commit']}, {rows[0]['date']}",
        fontsize=9,
    )
    return svg(figure)


def fp8_ladder() -> str:
    """Draws TFLOP/s of AMD's FP8 ladder, as published and in both readings of the model."""
    rows = [row for row in ladder_rows() if BY_NAME[row["rung"]].ladder == "fp8"]
    figure = Figure(figsize=(9, 3.4))
    panel = figure.subplots()
    places = range(len(rows))
    low, high = zip(*map(ladder_rates, rows), strict=True)
    panel.bar(places, high, color="#78909c", label="modelled, from one reading")
    panel.bar(places, low, color="#455a64", label="to the other")
    published = [BY_NAME[row["rung"]].published for row in rows]
    marks = [(place, end) for place, ends in enumerate(published) if ends for end in ends]
    panel.plot(*zip(*marks, strict=True), "_", color="#c62828", ms=16, mew=2, label="published")
    panel.set_yscale("log")
    panel.set_xticks(places, [row["rung"].removeprefix("fp8_") for row in rows])
    panel.tick_params(axis="x", labelsize=7, rotation=30)
    panel.set_ylabel("TFLOP/s")
    panel.legend(fontsize=7)
    panel.set_title(
        "FP8, M = N = K = 4096: AMD's numbers, measured on an MI355X, and the timing model's; "
        f"commit {rows[0]['commit']}, {rows[0]['date']}",
        fontsize=9,
    )
    return svg(figure)


def gfx950() -> str:
    """Draws how many times as fast as others `linear` is, as the benchmarks on hardware do."""
    rows = [row for row in read_csv(ROOT / "bench/results/gfx950.csv", SimulatedRow)
            if row.op == "linear"]  # fmt: skip
    figure = Figure(figsize=(12, 3.8))
    panel = figure.subplots()
    plot.draw(panel, rows)
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    panel.set_title(
        "linear, mx_kernels is so many times as fast as others; timing model of gfx950, not "
        f"measured; commit {rows[0].commit}, {rows[0].date}",
        fontsize=9,
    )
    return svg(figure)


def every() -> dict[str, Callable[[], str]]:
    """Returns the functions that draw, by the name of the picture; asks the compiled kernels."""
    of_layouts = {
        f"{name}-{part}": functools.partial(layouts.draw, name, part)
        for name in layouts.names()
        for part in layouts.PARTS
    }
    return of_layouts | {
        "block": blocks.block,
        "scale-rules": blocks.scale_rules,
        "block-error": blocks.block_error,
        "ladder": ladder,
        "fp8-ladder": fp8_ladder,
        "gfx950": gfx950,
    }
