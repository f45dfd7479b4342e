"""What earlier runs computed: profiles under build/, and rows of peers that are not here.

A profile is found again only if nothing that it depends on has changed: the machine code, the
launch with every byte of its arguments, and the simulator's own source.

AITER's kernels are in few places. Where they are missing, the rows of bench/results/gfx950.csv
go on with the date and commit of the run that timed them.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

import gfx950
from bench.device import REPOSITORY
from bench.rows import OURS, read_csv
from bench.simulated.report import SimulatedRow
from gfx950.timing import Profile

FOLDER = REPOSITORY / "build" / "bench" / "gfx950"
RECORD = REPOSITORY / "bench" / "results" / "gfx950.csv"
RARE = ("AITER",)
"""Systems whose rows are kept."""


def kept_profile(launch, options: dict, compute: Callable[[], Profile]) -> Profile:
    """Returns the profile of a launch, without its timeline, computing it if it is not known."""
    path = FOLDER / f"{_key(launch, options)}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())
    found = replace(compute(), spans=[], simd_of={}, texts={})
    _write(path, pickle.dumps(found))
    return found


def _write(path: Path, content: bytes) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _key(launch, options: dict) -> str:
    kernel = launch.kernel
    code = [(i.text, i.target) for i in kernel.instructions], kernel.preload_entry
    facts = sorted(kernel.descriptor.items()), sorted(kernel.metadata.items()), kernel.args
    numbers = launch.grid, launch.threads, sorted(options.items())
    digest = hashlib.sha256(repr((_simulator(), code, facts, numbers)).encode())
    for value in _leaves(launch.args):
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def _leaves(args: Sequence | Mapping) -> Iterator[np.ndarray]:
    """Yields arrays and numbers, those within structs too."""
    for value in args.values() if isinstance(args, Mapping) else args:
        if isinstance(value, tuple):
            yield from _leaves(value)
        else:
            yield np.atleast_1d(value)


@cache
def _simulator() -> str:
    """Returns a digest of the simulator."""
    digest = hashlib.sha256()
    for path in sorted(Path(gfx950.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def predicted(op: str, shape: tuple[int, int, int]) -> dict[str, float]:
    """Returns the microseconds of ours in each reading of the model, if they were recorded."""
    for row in read_csv(RECORD, SimulatedRow) if RECORD.exists() else ():
        if (row.op, row.system, row.source) == (op, OURS, "model") and row.shape == tuple(shape):
            return {"clock": row.clock_us, "latency": row.latency_us}
    return {}


def recorded(rows: Sequence[SimulatedRow]) -> Iterator[SimulatedRow]:
    """Yields the rows of rare systems that are missing among those of an operation and shape.

    Args:
        rows: of one operation and shape, ours first.
    """
    ours, present = rows[0], {row.system for row in rows}
    for row in read_csv(RECORD, SimulatedRow) if RECORD.exists() else ():
        same = (row.op, row.shape) == (ours.op, ours.shape)
        if same and row.system in RARE and row.system not in present:
            yield replace(row, times_ours=row.time_us / ours.time_us)
