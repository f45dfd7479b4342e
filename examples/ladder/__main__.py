"""Compiles, checks and times every rung: `python -m examples.ladder`, in a clone.

`--record` keeps what the model says in `results.csv`, and two timelines, which the documentation
shows.
"""

import csv
import dataclasses
import sys
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench import device
from examples.ladder import rungs
from gfx950.timing.timeline import draw

RESULTS = rungs.HERE / "results.csv"
TIMELINES = ("double_buffered", "ping_pong")
WINDOW = (20_000, 23_000)
"""Cycles that are drawn: within the loop."""
console = Console(width=130, highlight=False)


def main(
    record: Annotated[bool, typer.Option(help="Keep the table in results.csv.")] = False,
) -> None:
    """Compiles the kernels, compares small products with the CPU's, times the large ones."""
    table = Table(title="simulated gfx950, no number was measured on a GPU", title_justify="left")
    for heading in ("rung", "us", "TFLOP/s", "published", "MFMA busy", "LDS conflicts", "waits"):
        table.add_column(heading)
    timings = []
    for rung in rungs.RUNGS:
        got, expected, hazards = rungs.run(rung, rung.small)
        if hazards or not np.allclose(got, expected, rtol=2**-8, atol=1e-3):
            console.print(f"{rung.name}: wrong, or a hazard: {hazards}", markup=False)
            sys.exit(1)
        found = rungs.timing(rung)
        timings.append(found)
        table.add_row(
            found.rung, f"{found.clock_us} / {found.latency_us}",
            " / ".join(f"{found.tflops(us):.4g}" for us in (found.clock_us, found.latency_us)),
            " .. ".join(f"{tflops:g}" for tflops in sorted(set(rung.published or ()))),
            f"{found.mfma_utilisation:.0%}", f"{found.lds_conflict_share:.0%}", found.stalls,
        )  # fmt: skip
    console.print(table)
    if record:
        rows = [
            dataclasses.asdict(found) | {"commit": device.describe_commit(), "date": device.today()}
            for found in timings
        ]
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        for name in TIMELINES:
            found = rungs.profiles(rungs.BY_NAME[name])[0]
            draw(found, rungs.HERE / f"{name}.png", start=WINDOW[0], end=WINDOW[1])


if __name__ == "__main__":
    typer.run(main)
