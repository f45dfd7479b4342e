"""The benchmark command: `python -m bench.run`, which `make bench` calls.

    run.py --- plan ---> worker (1 thread) --- rows --->  tables, CSV, PNG, pages
           --- plan ---> worker (2 threads) -- rows --->

Each thread count is measured by a process of its own (see `bench.worker`), one
after the other. Results go to `build/bench`, or where --results says. Only --record, which
takes a complete run, touches tracked files: `bench/results` and the pages of the
documentation that show it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import device, experts, report, sweep, targets
from bench.goals import MADE_ON, check_goals, check_model_goals
from bench.plot import plot_linear, plot_sweep
from bench.rows import ModelRow, Origin, Row, write_csv
from bench.shapes import NAMED_SHAPES, QUICK_SHAPES
from bench.simulated import report as simulated
from bench.worker import plan_to_json

DEFAULT_MAX_THREADS = 2
FULL_BUDGET_S, QUICK_BUDGET_S = 4.0, 0.2
PREPARING_S = 20.0
"""Of a shape, for all peers: what one took on two cores of an AMD EPYC (family 25)."""
BUSY_LOAD = 1.0
"""Load average above which other work probably takes cores away from the benchmark."""
MIN_CONSOLE_WIDTH = 170
"""Columns: what the widest table needs where the output is no terminal."""

RESULTS = device.REPOSITORY / "bench" / "results"
TRIAL_RESULTS = device.REPOSITORY / "build" / "bench"
PAGES = device.REPOSITORY / "docs" / "pages" / "benchmarks"
"""A page for each target that has one: `<target>.md`."""


app = typer.Typer(add_completion=False)


@dataclass
class Findings:
    """What all workers found."""

    rows: list[Row] = field(default_factory=list)
    model_rows: list[ModelRow] = field(default_factory=list)
    remarks: dict[str, None] = field(default_factory=dict)


@app.command()
def main(
    *,
    target: Annotated[str, typer.Option(help="The device to measure.")] = "cpu",
    threads: Annotated[str, typer.Option(help="Thread counts, as 1,2 (default: 1 and 2).")] = "",
    only: Annotated[str, typer.Option(help="Operations, as linear,quantize.")] = "",
    model: Annotated[bool, typer.Option(help="Run the sentence encoder too.")] = True,
    quick: Annotated[bool, typer.Option(help="Two shapes, few repetitions.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder for CSV and PNG files.")] = None,
    record: Annotated[bool, typer.Option(help="Keep them: bench/results and docs/pages.")] = False,
) -> None:
    """Measures mx_kernels against its peers on the named shapes and on a real model."""
    start = time.monotonic()
    console = make_console()
    if record and results:
        raise typer.BadParameter("--record says where results go: drop --results")
    folder = results or (RESULTS if record else TRIAL_RESULTS)
    if target in targets.WITH_OWN_ROWS:
        if threads or only or not model:
            raise typer.BadParameter(f"--threads, --only and --no-model mean nothing to {target}")
        measure_here(target, quick, folder, record, console)
        console.print(f"{time.monotonic() - start:.0f} s in all")
        return
    try:
        plans = make_plans(target, threads, only, model, quick)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if record and not is_complete(plans):
        raise typer.BadParameter("--record takes a complete run: drop the other options")

    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        console.print(f"load average {load:.1f}: other work runs here, expect noise")

    if not quick:
        seconds = sum(len(plan.shapes) * (plan.budget_s + PREPARING_S) for plan in plans)
        console.print(f"about {seconds / 60:.0f} minutes, with --quick one")

    findings = Findings()
    for plan in plans:
        run_worker(plan, findings, console)

    show(findings, target, console)
    for path in save(findings, target, folder):
        console.print(f"wrote {_relative(path)}")
    if record and target not in targets.WITHOUT_PAGE:
        page = PAGES / f"{target}.md"
        if target in targets.GPUS:
            report.update_page(page, report.gpu_text(findings.rows), report.gpu_markers(target))
        else:
            report.update_page(page, report.page_text(findings.rows, findings.model_rows))
        console.print(f"updated the tables of {_relative(page)}")
    console.print(f"{time.monotonic() - start:.0f} s in all")


def measure_here(target: str, quick: bool, folder: Path, record: bool, console: Console) -> None:
    """Runs a target that has rows of its own kind, in this process, and reports them."""
    if record and quick:
        raise typer.BadParameter("--record takes a complete run: drop --quick")
    on = f"{target}, simulated" if target in targets.SIMULATED else device.describe_cpu()
    origin = Origin(on, device.describe_commit(), device.today())
    module = targets.load(target)
    rows = list(module.measure_rows(origin, console.print, quick=quick))
    for table in module.tables(rows):
        console.print(table.to_rich())
    path = folder / f"{target}.csv"
    write_csv(path, rows)
    console.print(f"wrote {_relative(path)}")
    if target in targets.WITHOUT_PAGE:
        path.with_suffix(".md").write_text(module.text(rows))
    elif record:
        markers = simulated.BEGIN, simulated.END
        page = PAGES / f"{target}.md"
        report.update_page(page, simulated.page_text(rows), markers)
        console.print(f"updated the tables of {_relative(page)}")


def make_plans(
    target: str, threads: str, only: str, model: bool, quick: bool
) -> list[targets.Plan]:
    """Returns one plan for each thread count; the model runs with the last.

    Raises:
        ValueError: if target, thread counts or operations are not possible here.
    """
    targets.check(target)
    if target in targets.GPUS and threads:
        raise ValueError(f"threads: got {threads!r}, but they mean nothing to {target}")
    counts = _thread_counts(target, threads)
    ops = parse_ops(only)
    return [
        targets.Plan(
            target=target,
            threads=count,
            shapes=QUICK_SHAPES if quick else NAMED_SHAPES,
            ops=ops,
            budget_s=QUICK_BUDGET_S if quick else FULL_BUDGET_S,
            model=model and count == counts[-1] and target in targets.WITH_MODEL,
            quick=quick,
        )
        for count in counts
    ]


def _thread_counts(target: str, text: str) -> tuple[int, ...]:
    """Returns the thread counts of a target's workers; peers of a GPU compile on every core."""
    cores = len(os.sched_getaffinity(0))
    return (cores,) if target in targets.GPUS else parse_threads(text, cores)


def parse_threads(text: str, cores: int) -> tuple[int, ...]:
    """Returns the thread counts, ascending; without text 1 and 2, if there are cores.

    Raises:
        ValueError: if one is no number or there are not that many cores.
    """
    if not text:
        return tuple(range(1, min(DEFAULT_MAX_THREADS, cores) + 1))
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"threads: got {text!r}, expected numbers as in 1,2") from None
    if counts[0] < 1 or counts[-1] > cores:
        raise ValueError(f"threads: got {text!r}, expected 1 to {cores}, the usable cores")
    return tuple(counts)


def parse_ops(text: str) -> tuple[str, ...]:
    """Returns the chosen operations; without text, all.

    Raises:
        ValueError: if one does not exist.
    """
    chosen = tuple(text.split(",")) if text else targets.OPS
    unknown = set(chosen) - set(targets.OPS)
    if unknown:
        raise ValueError(f"only: got {text!r}, expected some of {', '.join(targets.OPS)}")
    return chosen


def is_complete(plans: list[targets.Plan]) -> bool:
    """Whether the plans leave nothing out, so that their numbers are worth keeping."""
    target, threads = plans[0].target, tuple(plan.threads for plan in plans)
    return (
        (plans[-1].model or target not in targets.WITH_MODEL)
        and threads == _thread_counts(target, "")
        and all(plan.ops == targets.OPS and not plan.quick for plan in plans)
    )


def run_worker(plan: targets.Plan, findings: Findings, console: Console) -> None:
    """Measures one plan in a process of its own and collects what it reports."""
    name = _plan_name(plan)
    start = time.monotonic()
    with console.status(f"{name}: starting") as status:
        for kind, content in worker_events(plan):
            if kind == "row":
                findings.rows.append(Row(**content))
            elif kind == "model_row":
                findings.model_rows.append(ModelRow(**content))
            elif kind == "remark":
                findings.remarks[content] = None
            else:
                text = f"{time.monotonic() - start:4.0f} s  {name}: {content}"
                status.update(text)
                if not console.is_terminal:
                    console.print(text)


def worker_events(plan: targets.Plan) -> Iterator[tuple[str, object]]:
    """Starts a worker and yields its events as (kind, content) until it ends.

    Raises:
        RuntimeError: if the worker fails; its own message is on standard error.
    """
    reader, writer = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.worker", str(writer)],
        stdin=subprocess.PIPE,
        pass_fds=[writer],
        cwd=device.REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": str(plan.threads)},
    )
    os.close(writer)
    try:
        worker.stdin.write(plan_to_json(plan).encode())
        worker.stdin.close()
        with os.fdopen(reader) as lines:
            for line in lines:
                event = json.loads(line)
                yield event["kind"], event["content"]
        if worker.wait():
            raise RuntimeError(
                f"the worker for {_plan_name(plan)} failed (exit status {worker.returncode}); "
                "its own message is above"
            )
    finally:
        worker.kill()
        worker.wait()


def show(findings: Findings, target: str, console: Console) -> None:
    """Prints a line for each measured operation, and the goals that were missed."""
    rows = findings.rows
    if target == targets.SWEEP:
        curves = sweep.summarize(rows)
        tables, goals = [report.machine_table(rows), sweep.table(curves)], sweep.check_goals(curves)
    elif target == targets.EXPERTS:
        tables, goals = experts.tables(rows), list(experts.check_goals(rows))
    else:
        tables = [report.machine_table(rows), report.nearest_table(rows)]
        if findings.model_rows:
            tables.append(report.model_table(findings.model_rows))
        goals = check_goals(rows) + check_model_goals(findings.model_rows)
    if goals:
        tables.append(report.goal_table(goals, "" if target in targets.GPUS else MADE_ON))
    for table in tables:
        console.print(table.to_rich())
    if line := report.overhead_line(rows):
        console.print(line)
    for remark in findings.remarks:
        console.print(remark, markup=False)


def save(findings: Findings, target: str, folder: Path) -> list[Path]:
    """Writes CSV, Markdown and PNG files and returns those written."""
    if target == targets.SWEEP:
        return save_sweep(findings.rows, target, folder)
    if target == targets.EXPERTS:
        written = [folder / f"{target}.csv", folder / f"{target}.md"]
        write_csv(written[0], findings.rows)
        written[1].write_text(experts.text(findings.rows) + "\n")
        return written
    written = [folder / f"{target}.csv", folder / f"{target}.md"]
    write_csv(written[0], findings.rows)
    written[1].write_text(report.full_text(findings.rows, findings.model_rows) + "\n")
    if findings.model_rows:
        written.append(folder / f"{target}_model.csv")
        write_csv(written[-1], findings.model_rows)
    pictures = {f"{target}.png": False}
    if len({row.threads for row in findings.rows}) > 1:
        pictures[f"{target}-short.png"] = True
    for name, most_threads in pictures.items():
        if plot_linear(findings.rows, folder / name, most_threads=most_threads):
            written.append(folder / name)
    return written


def save_sweep(rows: list[Row], target: str, folder: Path) -> list[Path]:
    """Writes what the curves show; their points, thousands, always lie in the trials' folder."""
    curves = sweep.summarize(rows)
    written = [TRIAL_RESULTS / f"{target}-points.csv"]
    written += [folder / f"{target}.{ending}" for ending in ("csv", "md", "png")]
    write_csv(written[0], rows)
    write_csv(written[1], curves)
    written[2].write_text(sweep.text(curves) + "\n")
    plot_sweep(rows, written[3])
    return written


def make_console() -> Console:
    """Returns a console that is wide enough for the tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=MIN_CONSOLE_WIDTH)


def _plan_name(plan: targets.Plan) -> str:
    if plan.target in targets.GPUS:
        return plan.target
    return f"{plan.target}, {plan.threads} thread" + "s" * (plan.threads != 1)


def _relative(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(device.REPOSITORY) if path.is_relative_to(device.REPOSITORY) else path


if __name__ == "__main__":
    app()
