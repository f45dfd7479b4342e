"""Catalogues of gfx950 kernels: their machine code, and what their own host code would launch.

A catalogue is a Mojo program that lists kernels, compiled to a module of Python
(mojo_kernels/bindings/catalogue.mojo). Grids, workspaces and the order of arguments come from
there, so nobody here computes one. `cooperative` says how workgroups that share rows count.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

import numpy as np

import gfx950
from mx_kernels._core import builds, levels, native
from mx_kernels._core.builds import Build, Sources


@dataclass(frozen=True)
class Described:
    """One launch of a kernel, before there is memory for it."""

    grid: tuple[int, int, int]
    threads: int
    cleared_bytes: int
    """Bytes at the beginning of the workspace that are zero before and after."""
    handed_over_bytes: int
    arguments: tuple[str | int, ...]
    """Names of what addresses stand for, and integers of 32 bits, in the kernel's order."""

    def workspace(self) -> np.ndarray:
        """Returns memory for the workgroups to meet in, all zero."""
        return np.zeros(self.cleared_bytes + self.handed_over_bytes, np.uint8)

    def bind(self, **operands: np.ndarray) -> list:
        """Returns the kernel's arguments; `operands` are arrays by name."""
        return [operands[a] if isinstance(a, str) else np.int32(a) for a in self.arguments]


class Catalogue:
    """The kernels that one program lists."""

    def __init__(self, module: ModuleType):
        self._module = module

    @classmethod
    def load(cls, path: Path, stem: str) -> Catalogue:
        """Loads the module that was made of `<stem>.mojo`."""
        return cls(module_of(path, stem))

    @cached_property
    def texts(self) -> dict[str, str]:
        """The assembly of every kernel, by name."""
        return dict(self._module.assembly())

    @cached_property
    def kernels(self) -> dict[str, gfx950.Kernel]:
        """Every kernel for the simulator, by name."""
        return {name: gfx950.parse(text) for name, text in self.texts.items()}

    @cached_property
    def cooperative(self) -> Mapping:
        """Counters of workgroups that share rows: words, finished_word, pair_rows, part_k."""
        return self._module.cooperative()

    def launch(self, name: str, m: int, n: int, k: int) -> Described | None:
        """Returns the launch of a kernel for a shape, None if it does not compute that."""
        found = self._module.launch(name, m, n, k)
        if found is None:
            return None
        return Described(**{**found, "arguments": tuple(found["arguments"])})


def module_of(path: Path, stem: str) -> ModuleType:
    """Returns the module that was made of `<stem>.mojo`."""
    return native.import_module(path, stem, "delete it to build anew")


def build(entry: Path, folders: Sequence[Path]) -> Build:
    """Returns the module of a program as a file of the cache."""
    sources = Sources.of(entry, folders)
    facts = [builds.toolchain(), platform.machine(), *sorted(levels.cpu_flags())]
    options = ["build", "--emit", "shared-lib"]
    return Build(
        f"catalogue-{entry.stem}-{sources.digest(facts)}",
        f"{entry.stem}.so",
        f"compiling the gfx950 kernels of {entry.name}",
        lambda target: builds.compile_mojo(sources, [*options, "-o", str(target)]),
    )
