"""What an artefact can be: each function makes a row of the list in `artefacts`."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.simulated import catalogue as catalogues
from mx_kernels._core import builds, levels, native
from mx_kernels._core.builds import Build, NativeBuildError, Sources

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


@dataclass(frozen=True)
class Artefact:
    """One file that tests use."""

    name: str
    """<room>/<what>."""
    build: Callable[[], Build]
    tests: tuple[str, ...]
    """The tests that may use it: how their paths begin, within tests/."""
    deep: bool = False
    """Whether none of them is in the first tier."""

    def is_for(self, test: str, is_deep: bool) -> bool:
        """Says whether a test may use it.

        Args:
            test: the id of the test, as pytest writes it.
            is_deep: whether the test is in the second tier alone.
        """
        return is_deep >= self.deep and test.removeprefix("tests/").startswith(self.tests)


def program(name: str, *tests: str, deep: bool = False) -> Artefact:
    """Returns what tests/<room>/programs/<stem>.mojo prints."""
    room, stem = name.split("/")
    folder = TESTS / room / "programs"
    return Artefact(
        name,
        lambda: builds.program_output(folder / f"{stem}.mojo", [folder, ROOT]),
        tests or (f"{room}/",),
        deep,
    )


def catalogue(name: str, *tests: str, deep: bool = False) -> Artefact:
    """Returns tests/<room>/programs/<stem>.mojo, a catalogue of kernels, as a module."""
    room, stem = name.split("/")
    folder = TESTS / room / "programs"
    return Artefact(
        name,
        lambda: catalogues.build(folder / f"{stem}.mojo", [folder, ROOT]),
        tests or (f"{room}/",),
        deep,
    )


def executable(name: str, *tests: str, deep: bool = False) -> Artefact:
    """Returns tests/<room>/mojo/<stem>.mojo, compiled for this machine."""
    room, stem = name.split("/")
    folder = TESTS / room / "mojo"

    def build() -> Build:
        sources = Sources.of(folder / f"{stem}.mojo", [folder, ROOT])
        # A program finds Mojo's libraries in the environment that it was built in.
        facts = [builds.toolchain(), *machine(), sys.prefix]
        return Build(
            f"{room}-{stem}-{sources.digest(facts)}",
            stem,
            f"compiling {stem}.mojo of tests/{room}",
            lambda target: builds.compile_mojo(sources, ["build", "-o", str(target)]),
        )

    return Artefact(name, build, tests or (f"{room}/",), deep)


CPU_GRAPHS_ARE_WITHOUT = ("cdna4", "hopper", "simt")
"""The folders of kernels for GPUs."""
OPS = tuple(f"mojo_kernels/bindings/max_{room}.mojo" for room in ("ops", "experts", "fused"))
IMPORTED = re.compile(r"^ *from (tests\.\S+) import", re.MULTILINE)
GRAPHS_ARE_OF = (
    "max_graph",
    *("_core/arrays.py", "_core/calls.py", "_core/checks.py", "_core/facts.py"),
)
"""What of the Python package says what is in a graph; the rest may make other weights, which a test
of the graph, beside the same call of torch, finds."""


def graph(
    name: str,
    *tests: str,
    deep: bool = False,
    script: str = "",
    arguments: tuple[str, ...] = (),
    example: str = "",
    without: tuple[str, ...] = CPU_GRAPHS_ARE_WITHOUT,
) -> Artefact:
    """Returns the MEF that tests/<room>/graphs/<stem>.py writes, or another script there.

    `example` names one of examples/ that the script imports, `without` folders of mojo_kernels
    that have nothing for the graph's device: it stays as it is when they change.
    """
    room, stem = name.split("/")
    source = TESTS / room / "graphs" / f"{script or stem}.py"

    def build() -> Build:
        package = ROOT / "python" / "mx_kernels"
        python = [path for part in GRAPHS_ARE_OF for path in files_of(package / part)]
        python += [TESTS / "cases.py", *files_of(TESTS / "oracle"), *scripts_of(source)]
        python += [ROOT / "examples" / f"{example}.py"] if example else []
        files = {path.relative_to(ROOT).as_posix(): path for path in python}
        for ops in OPS:
            of_ops = Sources.of(ROOT / ops, [ROOT]).files
            files |= {name: of_ops[name] for name in of_ops if name.split("/")[1] not in without}
        sources = Sources("", dict(sorted(files.items())))
        facts = [builds.toolchain(), *machine(), *arguments]
        return Build(
            f"graph-{stem}-{sources.digest(facts)}",
            f"{stem}.mef",
            f"compiling the graph {name}",
            lambda target: run_script(source, target, *arguments),
        )

    return Artefact(name, build, tests or (f"{room}/",), deep)


def files_of(path: Path) -> list[Path]:
    """Returns a Python file, or all of a folder."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def scripts_of(script: Path) -> Iterator[Path]:
    """Yields a script and those of the tests that it imports as `tests....`."""
    yield script
    for module in IMPORTED.findall(script.read_text("utf-8")):
        yield from scripts_of(ROOT.joinpath(*module.split(".")).with_suffix(".py"))


def object_file(name: str, source: str, options: tuple[str, ...], *tests: str) -> Artefact:
    """Returns a Mojo file of the repository, compiled for another machine; for deep tests."""
    room, stem = name.split("/")

    def build() -> Build:
        sources = Sources.of(ROOT / source, [ROOT])
        command = ["build", "--emit", "object", *options]
        return Build(
            f"{stem}-{sources.digest([builds.toolchain(), *options])}",
            f"{stem}.o",
            f"compiling {source} for {stem}",
            lambda target: builds.compile_mojo(sources, [*command, "-o", str(target)]),
        )

    return Artefact(name, build, tests or (f"{room}/",), deep=True)


def extension(
    name: str, which: Callable[[], native.Extension], *tests: str, deep: bool = False
) -> Artefact:
    """Returns a module of the product, which finds it without our help."""
    return Artefact(name, lambda: which().build(), tests, deep)


def run_script(script: Path, *arguments: Path | str) -> str:
    """Runs a Python script of the tests in a process of its own; returns what it prints.

    One that dies of a signal is started once more: on a busy machine MAX's threads may outlast
    what `max_graph` grants them, and abort a process that has finished.

    Raises:
        NativeBuildError: if it fails; carries its output.
    """
    path = os.pathsep.join(map(str, (ROOT / "python", TESTS, ROOT)))
    # As a module: beside a script, its siblings would hide modules of the same name.
    module = ".".join(script.relative_to(ROOT).with_suffix("").parts)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode >= 0:
            break
    if done.returncode:
        raise NativeBuildError(f"{script} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def machine() -> list[str]:
    """Returns what machine code for this CPU depends on."""
    return [platform.machine(), platform.processor(), *sorted(levels.cpu_flags())]
