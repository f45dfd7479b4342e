"""The devices that can be measured, one module each.

A target module has `measure(plan, origin, report)`, which hands every row to
`report` as soon as it is measured and says what it is doing meanwhile. It is
imported only inside a worker process, after that was pinned to its cores. To add
a device, write its module and list it in `MODULES`.

A target of `WITH_OWN_ROWS` is no device whose products are timed: a timing model of one that is not
here, or the accuracy of a model. Its module has `measure_rows(origin, progress, quick=)`, which
yields rows of its own kind, and `tables(rows)`; without a page it has `text(rows)` too. It runs in
the process of the command; threads mean nothing to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from bench.rows import ModelRow, Row
from bench.shapes import Shape

MODULES = {
    "cpu": "bench.targets.cpu",
    "cpu-sweep": "bench.targets.cpu_sweep",
    "cpu-experts": "bench.targets.cpu_experts",
    "cuda": "bench.targets.cuda",
}
"""Target name and its module."""
SWEEP = "cpu-sweep"
"""The target whose rows are points of curves (`bench.sweep`)."""
EXPERTS = "cpu-experts"
"""The target whose rows are layers of experts (`bench.experts`)."""
SIMULATED_EXPERTS = "gfx950-experts"
"""The same on the timing model of gfx950."""
SIMULATED_EIGHT_BITS = "gfx950-eight-bits"
"""The target whose rows are products of eight-bit codes, on that model."""
SIMULATED_AITER = "gfx950-aiter"
"""The target whose rows are products beside AITER's tuned tiles, on that model."""
SIMULATED_NORMS = "gfx950-norms"
"""The target whose rows are norms before products, on that model."""
ACCURACY = "accuracy"
"""What formats cost a language model."""
LIMITS = "cpu-limits"
"""The target whose rows are sizes of groups of rows."""
MAX = "max"
"""Whole models by MAX's engine."""
WITHOUT_PAGE = (
    SWEEP, EXPERTS, ACCURACY, LIMITS, MAX, SIMULATED_EXPERTS, SIMULATED_EIGHT_BITS, SIMULATED_AITER,
    SIMULATED_NORMS,
)  # fmt: skip
"""Targets whose tables are only in bench/results."""
WITH_MODEL = ("cpu",)
"""Targets that run the sentence encoder too."""
GPUS = ("cuda",)
"""Targets that are measured by one process, whatever its threads: their rows have zero."""
SIMULATED = {
    "gfx950": "bench.targets.gfx950",
    SIMULATED_EXPERTS: "bench.targets.gfx950_experts",
    SIMULATED_EIGHT_BITS: "bench.targets.gfx950_eight_bits",
    SIMULATED_AITER: "bench.targets.gfx950_aiter",
    SIMULATED_NORMS: "bench.simulated.norms",
}
"""Target name and its module, of those that are simulated."""
WITH_OWN_ROWS = {
    ACCURACY: "bench.accuracy",
    LIMITS: "bench.targets.cpu_limits",
    MAX: "bench.targets.max",
    **SIMULATED,
}
"""The same of all whose rows are no `Row`."""

WIDER = {"mxfp8": 8, "mxfp8_e5m2": 8, "mxint8": 8, "mxfp6": 6}
"""Formats beside MXFP4 that activations can be rounded to, and the bits of a code."""
QUANTIZERS = ("quantize", *(f"quantize {format}" for format in WIDER))
PRODUCTS = (
    "matmul", "linear", "linear mxint8", "linear mxint16", "linear mxfp6", "linear nvfp4",
    "linear mxfp8", "linear bf16",
)  # fmt: skip
OPS = (*QUANTIZERS, *PRODUCTS)


@dataclass(frozen=True)
class Plan:
    """What one worker process measures."""

    target: str
    threads: int
    shapes: Sequence[Shape]
    ops: Sequence[str]
    budget_s: float
    """Seconds of timing for each shape."""
    model: bool
    """Whether to run the sentence encoder too."""
    quick: bool
    """Whether this is a trial run whose numbers are not kept."""


class Reporter(Protocol):
    """Where a target sends what it does and what it found."""

    def progress(self, text: str) -> None:
        """Says what is being done now."""

    def remark(self, text: str) -> None:
        """Says something that belongs beside the results."""

    def row(self, row: Row | ModelRow) -> None:
        """Hands over one result."""


def load(name: str) -> ModuleType:
    """Imports the module of a target.

    Raises:
        ValueError: if there is no such target.
    """
    check(name)
    return importlib.import_module({**MODULES, **WITH_OWN_ROWS}[name])


def check(name: str) -> None:
    """Raises ValueError, with the names there are, unless `name` is a target."""
    known = [*MODULES, *WITH_OWN_ROWS]
    if name not in known:
        raise ValueError(f"unknown target {name!r}, expected one of: {', '.join(known)}")
