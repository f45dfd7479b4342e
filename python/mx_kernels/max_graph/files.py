"""The library of the ops, built once a version; graphs as files."""

from __future__ import annotations

import atexit
import os
import time
from functools import cache
from pathlib import Path

from max.driver import CPU, Device
from max.engine import InferenceSession, Model
from max.graph import Graph

from mx_kernels._core import builds, native
from mx_kernels._core.builds import Build, Sources

PACKAGE = "mojo_kernels"
LAST_MOMENT = 0.2
"""Seconds that MAX's threads get when Python ends."""


def library() -> Path:
    """Returns the op library for `Graph(custom_extensions=[...])`, precompiled once a version.

    Raises:
        NativeBuildError: if the Mojo compiler is missing or fails.
    """
    return library_build().find_or_make()


def library_build() -> Build:
    """Returns the op library as a file of the cache."""
    package = native.source_folder()
    files = sorted(package.rglob("*.mojo"))
    sources = Sources("", {path.relative_to(package).as_posix(): path for path in files})
    return Build(
        f"graph-{sources.digest([builds.toolchain()])}",
        f"{PACKAGE}.mojoc",
        "precompiling the MAX ops",
        lambda target: builds.run_mojo(
            ["precompile", "-I", str(package.parent), "-o", str(target), str(package)]
        ),
    )


def export(graph: Graph, path: str | os.PathLike[str], *, device: Device | None = None) -> None:
    """Compiles `graph` and writes it, constants included, as a MEF.

    Args:
        graph: built with the ops of this module.
        path: the file to write; its folder is made.
        device: what the graph runs on; None is this machine's CPU. A virtual accelerator
            compiles for a GPU that is not here (`max.driver.set_virtual_device_api`).

    Raises:
        TypeError: if graph is no `max.graph.Graph`.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph: got {type(graph).__name__}, expected a max.graph.Graph")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _session(device).compile(graph).export_mef(path)


def load(path: str | os.PathLike[str], *, device: Device | None = None) -> Model:
    """Loads what `export` wrote; neither sources nor compiler are needed.

    Args:
        path: the MEF, made with the same release of MAX for the same kind of device.
        device: what the graph runs on; None is this machine's CPU.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"path: got {os.fspath(path)!r}, which does not exist; see export")
    return _session(device).load(Path(path))


def _session(device: Device | None) -> InferenceSession:
    _let_threads_finish()
    return InferenceSession(devices=[CPU() if device is None else device])


@cache
def _let_threads_finish() -> None:
    """Lets MAX's threads drop what they hold before Python ends.

    Without it one compilation in some dozens aborts its process, all done: a thread of MAX that
    still has a Python object wants Python's lock, and Python ends threads that come for it late.
    """
    atexit.register(time.sleep, LAST_MOMENT)
