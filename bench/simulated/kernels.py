"""gfx950 kernels that are compared: compiled here, or kept as data.

ours()          every kernel that the dispatch can choose, and how it is launched; other
                catalogues for K that ends within a step, and for activations of more than four bits
max_kernels()   MAX's own kernels, compiled for one weight matrix as its graphs do
triton()        kernels that Triton compiled, kept with the simulator's tests
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import gfx950
from bench.device import REPOSITORY
from bench.simulated import catalogue
from bench.simulated.catalogue import Catalogue
from mx_kernels._core import builds
from mx_kernels._core.builds import Build

WIDE = {
    "linear_bf16": ("bf16", "mxfp4"),
    "linear_mxfp8": ("mxfp8", "mxfp4"),
    "linear_nvfp4": ("bf16", "nvfp4"),
}
"""Products of activations of more than four bits: what both sides are, by operation."""
HERE = Path(__file__).parent
TRITON_DATA = REPOSITORY / "tests" / "gfx950" / "data"
MARK = re.compile(r"^;;;; kernel (\S+)\n", re.MULTILINE)


def program(name: str, defines: Mapping[str, int]) -> Build:
    """Returns what a Mojo program of this folder prints, as a file of the cache."""
    options = [word for key, value in defines.items() for word in ("-D", f"{key}={value}")]
    return builds.program_output(HERE / name, [HERE, REPOSITORY], options, ())


def kernels_of(text: str) -> dict[str, gfx950.Kernel]:
    """Returns the kernels that a program has printed, by name."""
    parts = MARK.split(text)
    return {name: gfx950.parse(code) for name, code in zip(parts[1::2], parts[2::2], strict=True)}


def catalogue_build(stem: str) -> Build:
    """Returns a catalogue of this folder as a file of the cache."""
    return catalogue.build(HERE / f"{stem}.mojo", [HERE, REPOSITORY])


@cache
def catalogue_of(stem: str) -> Catalogue:
    """Returns a catalogue of this folder."""
    return Catalogue.load(catalogue_build(stem).find_or_make(), stem)


def ours(op: str = "linear", *, k_tail: bool = False) -> Catalogue:
    """Returns our kernels by name, those for an operation among them; or for K with a tail."""
    if op in WIDE:
        return catalogue_of("wide")
    return catalogue_of("tails" if k_tail else "ours")


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
