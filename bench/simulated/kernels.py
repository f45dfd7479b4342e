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
from pathlib import Path

import gfx950
from bench.device import REPOSITORY

HERE = Path(__file__).parent
TRITON_DATA = REPOSITORY / "tests" / "gfx950_data"
MARK = re.compile(r"^;;;; kernel (\S+)\n", re.MULTILINE)
LAUNCH = re.compile(r"^;;;; launch (.*)\n", re.MULTILINE)


def run_program(
    name: str, defines: dict[str, int], arguments: Sequence[str] = ()
) -> tuple[list[list[str]], dict[str, gfx950.Kernel]]:
    """Runs a Mojo program of this folder; returns launches and kernels that it prints.

    Launches are the words of their lines, kernels go by name.

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
    lines = LAUNCH.findall(done.stdout)
    parts = MARK.split(LAUNCH.sub("", done.stdout))
    texts = zip(parts[1::2], parts[2::2], strict=True)
    return [line.split() for line in lines], {label: gfx950.parse(text) for label, text in texts}


@cache
def ours() -> dict[str, gfx950.Kernel]:
    """Returns our kernels by name."""
    return run_program("ours.mojo", {})[1]


@cache
def max_kernels(n: int, k: int) -> dict[str, gfx950.Kernel]:
    """Returns MAX's kernels for weights [n, k] by name."""
    return run_program("max_kernels.mojo", {"N": n, "K": k})[1]


@cache
def triton(name: str) -> tuple[gfx950.Kernel, dict]:
    """Returns a kernel of the corpus and its row of the manifest."""
    row = json.loads((TRITON_DATA / "manifest.json").read_text())["kernels"][name]
    return gfx950.parse((TRITON_DATA / row["file"]).read_text(), row["symbol"]), row
