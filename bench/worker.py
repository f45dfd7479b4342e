"""One benchmark process: pins itself to its cores, then measures one plan.

    python -m bench.worker FD      plan as JSON on standard input

Results leave as JSON lines on file descriptor FD, because libraries write to
standard output as they like: `progress`, `remark`, `row` and `model_row`.

MAX sizes its thread pool by the cores a process may use and OpenMP its own by
an environment variable read at load time, so a thread count is a process, and
the pinning comes before any import of torch or max.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TextIO

from bench import device, targets
from bench.rows import ModelRow, Origin, Row
from bench.shapes import Shape


def pin(threads: int) -> None:
    """Confines this process to the last `threads` of its cores.

    Raises:
        ValueError: if there are fewer cores than threads.
    """
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise ValueError(f"got {threads} threads, expected at most the {len(cores)} usable cores")
    os.sched_setaffinity(0, cores[-threads:])
    os.environ["OMP_NUM_THREADS"] = str(threads)


class LineReporter:
    """Writes every event as one line of JSON."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def progress(self, text: str) -> None:
        """Says what is being done now."""
        self._write("progress", text)

    def remark(self, text: str) -> None:
        """Says something that belongs beside the results."""
        self._write("remark", text)

    def row(self, row: Row | ModelRow) -> None:
        """Hands over one result."""
        kind = "row" if isinstance(row, Row) else "model_row"
        self._write(kind, dataclasses.asdict(row))

    def _write(self, kind: str, content: object) -> None:
        print(json.dumps({"kind": kind, "content": content}), file=self.stream, flush=True)


def plan_to_json(plan: targets.Plan) -> str:
    """Returns the plan as text for a worker's standard input."""
    return json.dumps(dataclasses.asdict(plan))


def plan_from_json(text: str) -> targets.Plan:
    """Reads what `plan_to_json` wrote."""
    fields = json.loads(text)
    fields["shapes"] = tuple(Shape(*shape) for shape in fields["shapes"])
    fields["ops"] = tuple(fields["ops"])
    return targets.Plan(**fields)


def main() -> None:
    """Reads the plan, pins the process, measures."""
    plan = plan_from_json(sys.stdin.read())
    origin = Origin(device.describe_cpu(), device.describe_commit(), device.today())
    with os.fdopen(int(sys.argv[1]), "w") as stream:
        report = LineReporter(stream)
        pin(plan.threads)
        report.progress("importing torch and mx_kernels (compiles the kernels the first time)")
        targets.load(plan.target).measure(plan, origin, report)


if __name__ == "__main__":
    main()
