"""The tiers: what is marked `deep`, and how much of it `make test-deep` runs.

    make test          what is not marked: every claim once, in every room, at this CPU's best
                       instruction level, on one tile of each distinct kernel
    make test-deep     what is marked, for 20 minutes: two files of rooms that the commits of the
                       last days touched, one of the others, and so on; with each commit both
                       lists begin at another file, so that none is left out for long
    make test-nightly  everything: all levels and architectures, whole grids of shapes, all
                       mutations

Mark a test, or those of its parameters that the first tier spares:

    @pytest.mark.deep
    @pytest.mark.parametrize("shape", tiered(SHAPES, first=SHAPES[:1]))
"""

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

deep = pytest.mark.deep


def tiered(values, first):
    """Returns parameters; those that are not in `first` are marked `deep`."""
    return [value if value in first else pytest.param(value, marks=deep) for value in values]


def late_by_turns(**axes):
    """Parametrizes by all combinations of values, and `late`: whether memory answers late.

    Neighbours along every axis differ in that.
    """
    places = itertools.product(*(range(len(values)) for values in axes.values()))
    cases = [
        (
            *(values[at] for values, at in zip(axes.values(), place, strict=True)),
            sum(place) % 2 == 1,
        )
        for place in places
    ]
    return pytest.mark.parametrize([*axes, "late"], cases)


ROOT = Path(__file__).resolve().parents[1]
RECENT = "3 days"
"""Which commits a bounded run tests first."""
TESTED_BY = {
    "bench/simulated": ("bench", "cdna4"),
    "bench": ("bench",),
    "docs": ("house",),
    "examples": ("house", "max_graph"),
    "mojo_kernels/bindings": ("hip", "max_graph", "ptx", "python"),
    "mojo_kernels/cdna4": ("cdna4", "gfx950", "hip", "bench"),
    "mojo_kernels/cpu": ("cpu", "numerics"),
    "mojo_kernels/hopper": ("hopper", "ptx"),
    "mojo_kernels/simt": ("simt", "ptx"),
    "mojo_kernels": ("cdna4", "cpu", "hip", "hopper", "numerics", "ptx", "simt"),
    "python/gfx950": ("gfx950", "cdna4"),
    "python/mx_kernels/integrations/distributed": ("distributed",),
    "python/mx_kernels/max_graph": ("max_graph",),
    "python/mx_kernels/integrations/transformers": ("python", "distributed"),
    "python/mx_kernels/integrations/vllm": ("serving",),
    "python/mx_kernels": ("python", "numerics", "distributed"),
}
"""Folders, and the rooms of tests that a change below them asks for; the first that fits counts."""


def in_turn(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns tests in the order of a bounded run: whole files, see the module's head."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.split("::")[0], []).append(item)
    touched = rooms_of(git("log", f"--since={RECENT}", "--name-only", "--format=").split())
    start = int(git("rev-list", "--count", "HEAD") or 0)
    first, rest = (
        iter(rotated([file for file in files if (file.split("/")[1] in touched) is wanted], start))
        for wanted in (True, False)
    )
    order = []
    while batch := [*itertools.islice(first, 2), *itertools.islice(rest, 1)]:
        order += batch
    return [item for file in order for item in files[file]]


def rooms_of(paths: Sequence[str]) -> set[str]:
    """Returns the rooms of tests that changes of some files ask for."""
    rooms = set()
    for path in paths:
        if path.startswith("tests/") and path.count("/") > 1:
            rooms.add(path.split("/")[1])
        else:
            fits = (rooms for folder, rooms in TESTED_BY.items() if path.startswith(f"{folder}/"))
            rooms.update(next(fits, ()))
    return rooms


def rotated(values: list, start: int) -> Iterator:
    """Yields all values, from one of them on."""
    for index in range(len(values)):
        yield values[(start + index) % len(values)]


def git(*arguments: str) -> str:
    """Returns what git prints; nothing where there is no repository."""
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip()
