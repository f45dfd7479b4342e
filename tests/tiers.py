"""The tiers: what is marked `deep`, and how much of it `make test-deep` runs.

    make test          what is not marked: every claim once, in every room, at this CPU's best
                       instruction level, on one tile of each distinct kernel; of a test of many
                       combinations so many that every two values of its axes meet
    make test-deep     what is marked, for 20 minutes: two files of rooms that the commits of the
                       last days touched, one of the others, and so on; with each commit both
                       lists begin at another file, so that none is left out for long
    make test-nightly  everything: all levels and architectures, whole grids of shapes, all
                       mutations

Mark a test, or those of its parameters that the first tier spares:

    @pytest.mark.deep
    @pytest.mark.parametrize("shape", tiered(SHAPES, first=SHAPES[:1]))

What `spare_combinations` spares need not be marked.
"""

import itertools
import random
import subprocess
from collections.abc import Iterable, Iterator, Sequence
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


MANY = 32
"""Combinations of parameters of one test: up to so many are all in the first tier."""


def spare_combinations(items: Iterable[pytest.Item]) -> None:
    """Marks tests `deep`: of a function of many, those that `pairwise` leaves out."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("deep") is None:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for tests in functions.values():
        if len(tests) > MANY:
            # The values of an axis are the same objects in all combinations.
            cells = [{(n, id(v)) for n, v in test.callspec.params.items()} for test in tests]
            kept = pairwise(cells)
            for place, test in enumerate(tests):
                if place not in kept:
                    test.add_marker(deep)


def pairwise(combinations: Sequence[set]) -> set[int]:
    """Returns the places of few combinations that have each pair of values that any has.

    It takes those with the most new pairs first, the same every time.
    """
    # Of a single axis, each value.
    pairs = [{*map(frozenset, itertools.combinations(c, min(2, len(c))))} for c in combinations]
    missing = set().union(*pairs)
    places = list(range(len(pairs)))
    random.Random(0).shuffle(places)
    kept = set()
    for wanted in range(max(map(len, pairs)), 0, -1):
        for place in places:
            if len(pairs[place] & missing) >= wanted:
                kept.add(place)
                missing -= pairs[place]
    return kept


def leave_one_of_skipped(items: list[pytest.Item]) -> list[pytest.Item]:
    """Takes tests away that this machine skips, but for one of a function, which says so."""
    said, kept, taken = set(), [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        is_skipped = any(mark.args[0] for mark in item.iter_markers("skipif"))
        (taken if is_skipped and function in said else kept).append(item)
        if is_skipped:
            said.add(function)
    items[:] = kept
    return taken


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
    "mojo_kernels/simt": ("numerics", "simt", "ptx"),
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
