"""gfx950 assembly of the kernels that are compared: compiled here, or kept as data.

ours()          every kernel that the dispatch can choose
max_kernels()   MAX's own kernels, compiled for one weight matrix as its graphs do
triton()        kernels that Triton compiled, kept with the simulator's tests
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import gfx950
from bench.device import REPOSITORY
from mx_kernels import _builds
from mx_kernels._builds import Build

HERE = Path(__file__).parent
TRITON_DATA = REPOSITORY / "tests" / "gfx950" / "data"
MARK = re.compile(r"^;;;; kernel (\S+)\n", re.MULTILINE)
LAUNCH = re.compile(r"^;;;; launch (.*)\n", re.MULTILINE)


def program(
    name: str, defines: Mapping[str, int] | None = None, arguments: Sequence[str] = ()
) -> Build:
    """Returns what a Mojo program of this folder prints, as a file of the cache."""
    options = [word for key, value in (defines or {}).items() for word in ("-D", f"{key}={value}")]
    return _builds.program_output(HERE / name, [HERE, REPOSITORY], options, arguments)


def run_program(name: str, defines: Mapping[str, int], arguments: Sequence[str] = ()) -> str:
    """Runs a Mojo program of this folder, once; returns what it prints.

    Raises:
        NativeBuildError: if the program does not compile, with the compiler's words.
    """
    return program(name, defines, arguments).find_or_make().read_text()


def launches_of(text: str) -> list[list[str]]:
    """Returns the launches that a program has printed, as the words of their lines."""
    return [line.split() for line in LAUNCH.findall(text)]


def kernels_of(text: str) -> dict[str, gfx950.Kernel]:
    """Returns the kernels that a program has printed, by name."""
    parts = MARK.split(LAUNCH.sub("", text))
    return {name: gfx950.parse(code) for name, code in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def ours() -> dict[str, gfx950.Kernel]:
    """Returns our kernels by name."""
    return kernels_of(run_program("ours.mojo", {}))


def max_program(n: int, k: int) -> Build:
    """Returns the assembly of MAX's kernels for weights [n, k]."""
    return program("max_kernels.mojo", {"N": n, "K": k})


@cache
def max_kernels(n: int, k: int) -> dict[str, gfx950.Kernel]:
    """Returns MAX's kernels for weights [n, k] by name."""
    return kernels_of(max_program(n, k).find_or_make().read_text())


@cache
def triton(name: str) -> tuple[gfx950.Kernel, dict]:
    """Returns a kernel of the corpus and its row of the manifest."""
    row = json.loads((TRITON_DATA / "manifest.json").read_text())["kernels"][name]
    return gfx950.parse((TRITON_DATA / row["file"]).read_text(), row["symbol"]), row
