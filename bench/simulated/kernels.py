"""gfx950 assembly of the kernels that are compared: compiled here, or kept as data.

ours()          every kernel that the dispatch can choose
max_kernels()   MAX's own kernels, compiled for one weight matrix as its graphs do
triton()        kernels that Triton compiled, kept with the simulator's tests
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import gfx950
from bench.device import REPOSITORY
from bench.simulated.kept import kept_text

HERE = Path(__file__).parent
TRITON_DATA = REPOSITORY / "tests" / "gfx950" / "data"
MARK = re.compile(r"^;;;; kernel (\S+)\n", re.MULTILINE)
LAUNCH = re.compile(r"^;;;; launch (.*)\n", re.MULTILINE)


def run_program(name: str, defines: dict[str, int], arguments: Sequence[str] = ()) -> str:
    """Runs a Mojo program of this folder; returns what it prints.

    Raises:
        RuntimeError: if the program does not compile, with the compiler's words.
    """
    mojo = Path(sys.executable).with_name("mojo")
    options = [word for key, value in defines.items() for word in ("-D", f"{key}={value}")]
    folders = ["-I", str(HERE), "-I", str(REPOSITORY)]
    command = [str(mojo), "run", *folders, *options, str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    return done.stdout


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


@cache
def max_kernels(n: int, k: int) -> dict[str, gfx950.Kernel]:
    """Returns MAX's kernels for weights [n, k] by name."""
    name, defines = "max_kernels.mojo", {"N": n, "K": k}
    sources = [(HERE / source).read_text() for source in (name, "emit.mojo")]
    parts = metadata.version("max"), sources, defines
    return kernels_of(kept_text(parts, lambda: run_program(name, defines)))


@cache
def triton(name: str) -> tuple[gfx950.Kernel, dict]:
    """Returns a kernel of the corpus and its row of the manifest."""
    row = json.loads((TRITON_DATA / "manifest.json").read_text())["kernels"][name]
    return gfx950.parse((TRITON_DATA / row["file"]).read_text(), row["symbol"]), row
