"""A norm before a product of MXFP4 by MXFP4 on the simulator's timing model, three ways.

    fused    a norm, then `linear`, which quantizes
    codes    `rms_norm_quantize`, then `matmul`
    three    a norm, then `quantize`, then `matmul`

`rms_norm_quantize` is what HIP launches behind the tests' stand-in for its runtime; products are
those of `bench.simulated.systems`. The norm of floats is no kernel of ours: it takes as long as
`rms_norm_quantize`, or its bytes at the memory's peak and a launch where that is more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
import torch

import mx_kernels as mx
from bench.cuda_quantize import LAYERS, TOKENS
from bench.report import Table
from bench.rows import Origin
from bench.shapes import Shape
from bench.simulated import systems
from bench.simulated.launches import Launch, Operands
from gfx950.timing import Machine, Profile
from tests.hip import support

QUICK_TOKENS = (1, 64)
FLOAT_BYTES = 2
FORMS = {
    "norm, `linear`": ("floats", "linear"),
    "codes": ("norm", "matmul"),
    "three": ("floats", "quantize", "matmul"),
}
"""Steps of each way; "floats" is a norm of floats, "norm" one to codes."""


@dataclass(frozen=True)
class StepRow:
    """A step of what is behind a norm."""

    m: int
    n: int
    k: int
    step: str
    kernels: str
    time_us: float
    """All launches, their cost included."""
    latency_us: float
    """The same in the other reading of the machine (timing.parameters)."""
    source: str
    commit: str
    date: str


@dataclass
class TimedLaunches(support.StandIn):
    """Times launches on the model, and runs nothing else."""

    profiles: list[Profile] = field(default_factory=list)

    def run(self, kernel, grid, block, operands) -> None:
        """Times a launch."""
        launch = Launch(kernel.name, kernel, grid, block[0], operands)
        self.profiles.append(launch.profile(whole_grid=False))


def launched(call: Callable[[], object]) -> list[Profile]:
    """Returns what the model says of the launches of a call on gfx950."""
    runtime = TimedLaunches()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        runtime.install(support.build_runtime(Path(folder)), patch)
        call()
    return runtime.profiles


def timed(shape: Shape) -> dict[str, list[Profile]]:
    """Returns what the model says of each step that we have kernels for."""
    x, weight = (
        torch.ones(*size, dtype=torch.bfloat16) for size in ((shape.m, shape.k), shape[2:])
    )
    operands, stopwatch = Operands(shape), systems.Stopwatch(shape)
    offers = {op: systems.ours(operands, op) for op in ("linear", "matmul")}
    offers["quantize"] = systems.our_quantizer(operands)
    steps = {op: stopwatch.time(offer) for op, offer in offers.items()}
    return {"norm": launched(lambda: mx.rms_norm_quantize(x, weight)), **steps}


def measure_rows(
    origin: Origin, progress: Callable[[str], None], *, quick: bool = False
) -> Iterator[StepRow]:
    """Yields a row for each shape and step."""
    for (n, k), m in product(LAYERS, QUICK_TOKENS if quick else TOKENS):
        shape = Shape(m, n, k)
        progress(f"{shape}: compiling, executing and timing on the model")
        for step, profiles in timed(shape).items():
            times = (sum(p.variants[name] for p in profiles) for name in ("clock", "latency"))
            names = " + ".join(p.kernel for p in profiles)
            yield StepRow(*shape, step, names, *times, "model", origin.commit, origin.date)


def times_of(steps: dict[str, StepRow]) -> dict[str, tuple[float, float]]:
    """Returns the microseconds of each way, in both readings, from those of a shape's steps."""
    norm, machine = steps["norm"], Machine()
    num_bytes = 2 * norm.m * norm.k * FLOAT_BYTES
    least_us = machine.launch_us + num_bytes / (machine.hbm_gbps * 1e3)
    found = {step: (row.time_us, row.latency_us) for step, row in steps.items()}
    found["floats"] = tuple(max(us, least_us) for us in found["norm"])
    return {
        form: tuple(map(sum, zip(*(found[step] for step in parts), strict=True)))
        for form, parts in FORMS.items()
    }


def tables(found: Sequence[StepRow]) -> list[Table]:
    """Returns a table, a line for each number of rows, columns for each layer."""
    shapes: dict[tuple, dict[str, StepRow]] = {}
    for row in found:
        shapes.setdefault((row.m, row.n, row.k), {})[row.step] = row
    layers = list(dict.fromkeys(shape[1:] for shape in shapes))
    headings, cells = ["M"], []
    for n, k in layers:
        first, *others = FORMS
        headings += [f"{n} x {k}: {first}", *others]
    for m in dict.fromkeys(shape[0] for shape in shapes):
        cells.append([str(m)])
        for layer in layers:
            for times in times_of(shapes[(m, *layer)]).values():
                cells[-1].append(" .. ".join(f"{us:.1f}" for us in sorted(times)))
    return [Table("An RMS norm and a product, *simulated*", headings, cells)]


def text(found: Sequence[StepRow]) -> str:
    """Returns the table as a document."""
    title = (
        "An RMS norm and a product of MXFP4 by MXFP4, bfloat16 rows, microseconds, *simulated*: a "
        "timing model of gfx950, no number here was measured on a GPU. A range is between the two "
        "readings of what the model was fitted to, launch cost included. A norm of floats is no "
        "kernel of ours: it takes as long as our norm to codes, or its bytes at 8 TB/s and a "
        f"launch where that is more. Commit {found[0].commit}, {found[0].date}."
    )
    return "\n\n".join([title, tables(found)[0].to_markdown()]) + "\n"
