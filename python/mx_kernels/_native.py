"""Finds or builds the Mojo extension modules for this machine, each once.

The kernels are compiled where they run, for the instruction level of the CPU (`_levels.py`) and
the architecture of the GPU. A build is keyed by everything that can change its bytes or its
ability to load:

    <cache>/<level>-<hash of sources, toolchain, level, Python>/_mx_kernels_native.so
    <cache>/<architecture>-<level>-<the same>/_mx_kernels_gpu.so
    <cache>/<architecture>-<level>-<the same>/_mx_kernels_hip_product-<defines>.so

Processes that start together build once: they queue on a file lock, and the finished module
appears by an atomic rename. Environment variables:

    MX_KERNELS_CACHE    the cache folder (default: the user's cache folder)
    MX_KERNELS_CPU      the instruction level (default: the best one that this CPU runs)
    MX_KERNELS_NATIVE   the path of a module built elsewhere, for a host without the compiler
    MX_KERNELS_GPU      the same for the module of the GPU
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import platformdirs

from mx_kernels import _levels
from mx_kernels._levels import Level

_load_lock = threading.Lock()
_module: ModuleType | None = None


class NativeBuildError(ImportError):
    """The extension module could not be built or loaded; the message says what to do."""


@dataclass(frozen=True)
class Extension:
    """An extension module: what it is called, where it comes from, what it is compiled for."""

    name: str
    source: str
    """The file of the Mojo package that defines it."""
    variable: str
    """The environment variable that may name a module built elsewhere; empty for none."""
    level: Level
    architecture: str = ""
    """The GPU's, as the compiler calls it; empty for none."""
    defines: tuple[str, ...] = ()
    """What the source is told, NAME=value; modules that differ in this are different files."""

    @property
    def file_name(self) -> str:
        """The name of the module's file."""
        return f"{'-'.join((self.name, *self.defines))}.so"

    @property
    def compiler_options(self) -> tuple[str, ...]:
        """What the compiler is told about the machine, and to the source."""
        accelerator = ("--target-accelerator", self.architecture) if self.architecture else ()
        defines = (word for define in self.defines for word in ("-D", define))
        return *self.level.compiler_options, *accelerator, *defines


def cpu_extension() -> Extension:
    """Returns the module of this CPU."""
    return Extension(
        "_mx_kernels_native", "bindings/cpu.mojo", "MX_KERNELS_NATIVE", _levels.pick()
    )


def gpu_extension(architecture: str) -> Extension:
    """Returns the module of an NVIDIA GPU of an architecture, for example sm_90a."""
    return Extension(
        "_mx_kernels_gpu", "gpu_module.mojo", "MX_KERNELS_GPU", _levels.pick(), architecture
    )


def hip_extension(architecture: str) -> Extension:
    """Returns the module of an AMD GPU of an architecture, gfx950, but for products."""
    return Extension("_mx_kernels_hip", "hip_module.mojo", "", _levels.pick(), architecture)


def hip_product_extension(architecture: str, defines: tuple[str, ...]) -> Extension:
    """Returns the module of one kind of product for the same."""
    name, source = "_mx_kernels_hip_product", "hip_product_module.mojo"
    return Extension(name, source, "", _levels.pick(), architecture, defines)


def load() -> ModuleType:
    """Returns the module of this CPU, building it first where this machine has none yet.

    Raises:
        NativeBuildError: if the compiler or the linker is missing or fails.
    """
    global _module  # noqa: PLW0603  one module a process, like any import
    with _load_lock:
        if _module is None:
            _module = load_extension(cpu_extension())
        return _module


def load_extension(extension: Extension) -> ModuleType:
    """Imports a module, building it first where there is none yet; the caller keeps it.

    Raises:
        NativeBuildError: if the compiler or the linker is missing or fails.
    """
    built_elsewhere = os.environ.get(extension.variable)
    path = Path(built_elsewhere) if built_elsewhere else find_or_build(extension=extension)
    return _import_from(path, extension.name)


def cache_folder() -> Path:
    """Returns the folder of everything that is built: MX_KERNELS_CACHE or the user's cache."""
    return Path(os.environ.get("MX_KERNELS_CACHE") or platformdirs.user_cache_dir("mx_kernels"))


def find_or_build(cache: Path | None = None, extension: Extension | None = None) -> Path:
    """Returns the path of the built module.

    Args:
        cache: the cache folder; None for `cache_folder()`.
        extension: the module; None for `cpu_extension()`.
    """
    cache = cache or cache_folder()
    extension = extension or cpu_extension()
    sources = source_folder()
    key = build_key(sources, extension.level, extension.architecture)
    target = cache / key / extension.file_name
    if target.exists():
        return target

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NativeBuildError(
            f"cannot write the build cache {cache} ({error}); "
            "set MX_KERNELS_CACHE to a folder that you can write"
        ) from error
    with only_one_process(cache / f"{key}.lock"):
        if not target.exists():
            _build(sources, target, extension)
    return target


def source_folder() -> Path:
    """Returns the folder of the Mojo package: inside the wheel, or beside `python/`."""
    here = Path(__file__).resolve()
    candidates = [here.parent / "mojo_kernels", here.parents[2] / "mojo_kernels"]
    for folder in candidates:
        if (folder / "bindings/cpu.mojo").exists():
            return folder
    raise NativeBuildError(
        f"the Mojo sources are missing, looked in {' and '.join(map(str, candidates))}; "
        "reinstall mx_kernels, or work in a complete clone"
    )


def build_key(sources: Path, level: Level, architecture: str = "") -> str:
    """Returns the cache folder's name for `sources` at `level` with this toolchain."""
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.mojo")):
        digest.update(f"{path.relative_to(sources)}\0".encode())
        digest.update(path.read_bytes())
        digest.update(b"\0")
    # The module carries the path of the toolchain's runtime library, so another environment
    # needs another build.
    python = str(sys.implementation.cache_tag)
    facts = [*_toolchain(), level.name, architecture, platform.machine(), python]
    if level is _levels.NATIVE:
        # Home folders may be shared between machines.
        facts.append(platform.processor() + " ".join(sorted(_levels.cpu_flags())))
    digest.update("\0".join(facts).encode())
    return "-".join(filter(None, (architecture, level.name, digest.hexdigest()[:16])))


def _toolchain() -> tuple[str, str]:
    """Version and place of the installed Mojo."""
    try:
        distribution = importlib.metadata.distribution("mojo")
    except importlib.metadata.PackageNotFoundError as error:
        raise NativeBuildError(
            "the Mojo compiler is not installed in this environment; it comes with "
            f"`pip install mx_kernels`, or install {_pinned_mojo()}"
        ) from error
    return distribution.version, str(distribution.locate_file(""))


def _pinned_mojo() -> str:
    """The requirement on Mojo, read from our own metadata."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for requirement in importlib.metadata.requires("mx_kernels") or []:
            if requirement.startswith("mojo"):
                return requirement
    return "mojo"


@contextlib.contextmanager
def only_one_process(lock_path: Path) -> Iterator[None]:
    """Holds an exclusive lock; the kernel releases it if the holder dies."""
    with open(lock_path, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with one_line("waiting for another process that is building the kernels"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            # No locks on this file system: at worst two processes build, the rename is atomic.
            pass
        yield


@contextlib.contextmanager
def one_line(doing: str) -> Iterator[None]:
    """Says on stderr what is going on and, at the end of the same line, how long it took."""
    start = time.perf_counter()
    outcome = "failed"
    print(f"mx_kernels: {doing} ... ", end="", file=sys.stderr, flush=True)
    try:
        yield
        outcome = "done"
    finally:
        seconds = time.perf_counter() - start
        print(f"{outcome} after {seconds:.1f} s", file=sys.stderr, flush=True)


def _build(sources: Path, target: Path, extension: Extension) -> None:
    """Compiles `sources` into `target`, which appears complete or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        fresh = Path(scratch) / target.name
        command = ["build", "--emit", "shared-lib", "-I", str(sources.parent)]
        command += [*extension.compiler_options, "-o", str(fresh)]
        command.append(str(sources / extension.source))
        machine = extension.architecture or "this machine"
        run_mojo(command, f"compiling the kernels for {machine}, once, into {target.parent}")
        os.replace(fresh, target)


def run_mojo(command: list[str], doing: str) -> None:
    """Runs the Mojo compiler, with one line that says so.

    Raises:
        NativeBuildError: if the compiler is missing or fails; carries its output.
    """
    try:
        from mojo.run import subprocess_run_mojo  # noqa: PLC0415  only where a build is due

        with one_line(doing):
            result = subprocess_run_mojo(command, capture_output=True, text=True)
            if result.returncode != 0:
                raise NativeBuildError(_explain(command, result.stdout + result.stderr))
    except NativeBuildError:
        raise
    except (ImportError, OSError, RuntimeError) as error:
        raise NativeBuildError(
            f"the Mojo compiler cannot be started: {error}; reinstall {_pinned_mojo()}"
        ) from error


def _explain(command: list[str], output: str) -> str:
    """Says why a build failed, with the compiler's own words at the end."""
    cause = "the Mojo compiler failed"
    if not any(shutil.which(linker) for linker in ("cc", "gcc", "clang")):
        cause = (
            "there is no C linker on PATH, which the Mojo compiler needs; install one "
            "(Debian and Ubuntu: apt install gcc; Fedora: dnf install gcc)"
        )
    return f"{cause}\n$ mojo {' '.join(command)}\n{output.strip()}"


def _import_from(path: Path, name: str) -> ModuleType:
    """Imports the built module `name` and leaves the environment of child processes alone.

    On import, Mojo's runtime looks for Python's symbols in the library that
    MOJO_PYTHON_LIBRARY names, or starts a `python3` to find one; any library does, since the
    symbols are in this process. It also sets variables without `os.environ` knowing.
    """
    with _unchanged_environment("MOJO_PYTHON_LIBRARY", "PYTHONEXECUTABLE", "PYTHONPATH"):
        os.putenv("MOJO_PYTHON_LIBRARY", str(path))
        spec = importlib.util.spec_from_file_location(name, path)
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError as error:
            raise NativeBuildError(
                f"{path} does not load ({error}); delete it to build anew"
            ) from error
    return module


@contextlib.contextmanager
def _unchanged_environment(*names: str) -> Iterator[None]:
    """Restores what the C library holds for `names` to what `os.environ` says."""
    try:
        yield
    finally:
        for name in names:
            value = os.environ.get(name)
            if value is None:
                os.unsetenv(name)
            else:
                os.putenv(name, value)
