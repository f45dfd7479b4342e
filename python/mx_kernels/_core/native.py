"""Finds or builds the Mojo extension modules for this machine, each once.

The kernels are compiled where they run, for the instruction level of the CPU (`levels.py`) and
the architecture of the GPU, into the cache of `builds.py`:

    <level>-<hash>/_mx_kernels_native[-<defines>].so
    <level>-<hash>/_mx_kernels_plans.so
    <architecture>-<level>-<hash>/_mx_kernels_gpu.so
    <architecture>-<level>-<hash>/_mx_kernels_hip[-FUSED=1].so
    <architecture>-<level>-<hash>/_mx_kernels_hip_product-<defines>.so
    runtime-<hash>/lib*.so              what modules are linked to, for hosts without the compiler

Environment variables:

    MX_KERNELS_CACHE    the cache folder (default: the user's cache folder)
    MX_KERNELS_CPU      the instruction level (default: the best one that this CPU runs)
    MX_KERNELS_NATIVE   the path of a module built elsewhere, for a host without the compiler
    MX_KERNELS_PLANS    the same for the module of what GPUs would do
    MX_KERNELS_GPU      the same for the module of the GPU

The CPU's is compiled in parts, what the first calls need and no more; `python -m mx_kernels build`
compiles the whole module, which is taken where it is there:

    everything but products      at the first call of all
    products of a kernel with    when one is computed; those of small integers with MXFP4 weights,
    weights of a format          which most programs want, beside the part above on another core

A module built elsewhere is looked at before it is loaded: code for another machine, or a file that
was cut, ends the process. Modules that are built here say at their end what they are and what CPU
they need.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from mx_kernels._core import builds, levels
from mx_kernels._core.builds import Build, NativeBuildError, Sources
from mx_kernels._core.levels import Level
from mx_kernels._core.protocol import MULTIPLY, MULTIPLY_EXPERTS, MULTIPLY_GROUPED

MAX_ANSWERS = 4096
"""Calls whose plans are remembered."""
ELF = b"\x7fELF"
SHARED_OBJECT = 3
"""The type in an ELF header."""
LAST_WORDS = re.compile(rb"\nmx_kernels module (.+) for CPU (\S+)\n\Z")
"""What a module says of itself at its end, which nothing loads."""
RUNTIME = ("libKGENCompilerRTShared.so", "libAsyncRTMojoBindings.so", "libMGPRT.so")
"""Libraries of the Mojo package that modules are linked to."""
RUNTIME_BESIDE = {
    RUNTIME[0]: ("libMSupportGlobals.so", "libAsyncRTRuntimeGlobals.so"),
    RUNTIME[2]: ("libNVPTX.so",),
}
"""What some of them load in turn, and load themselves later."""
BASE = ("KERNEL=0",)
FUSED = ("FUSED=1",)
"""Of CDNA4: what quantizes behind norms, gates and rotations."""
FIRST_PRODUCTS = ("KERNEL=1", "RIGHT=0")
_KIND, _LEFT = MULTIPLY.at("left.kind"), MULTIPLY.at("left.format")
_RIGHT, _EXPERTS = MULTIPLY.at("right.format"), MULTIPLY_GROUPED.at("experts.format")
_GATE_UP, _DOWN = MULTIPLY_EXPERTS.at("gate_up.format"), MULTIPLY_EXPERTS.at("down.format")
"""Where a call says what decides its part."""


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
    def identity(self) -> str:
        """What the module has, for which GPU, and for which Python: it uses what is inside one."""
        words = self.file_name.removesuffix(".so"), self.architecture
        return " ".join(filter(None, (*words, str(sys.implementation.cache_tag))))

    @property
    def compiler_options(self) -> tuple[str, ...]:
        """What the compiler is told about the machine, and to the source."""
        accelerator = ("--target-accelerator", self.architecture) if self.architecture else ()
        defines = (word for define in self.defines for word in ("-D", define))
        return *self.level.compiler_options, *accelerator, *defines

    def build(self) -> Build:
        """Returns the module as a file of the cache."""
        package = source_folder()
        sources = Sources.of(package / self.source, [package.parent])
        # The module finds Python's symbols by their names in one version of Python.
        facts = [builds.toolchain(), platform.machine(), str(sys.implementation.cache_tag)]
        # Home folders may be shared between machines.
        key = sources.digest([*facts, self.level.cpu, *self.compiler_options])
        command = ["build", "--emit", "shared-lib", *self.compiler_options]
        return Build(
            "-".join(filter(None, (self.architecture, self.level.name, key))),
            self.file_name,
            f"compiling the kernels for {self.architecture or 'this machine'}",
            lambda target: self._make(sources, [*command, "-o", str(target)], target),
        )

    def _make(self, sources: Sources, command: list[str], target: Path) -> None:
        """Compiles the module and adds what it is, wherever it will be copied."""
        builds.compile_mojo(sources, command)
        with target.open("ab") as file:
            words = f"\nmx_kernels module {self.identity} for CPU {self.level.cpu}\n"
            file.write(words.encode())


def cpu_extension(level: Level | None = None, defines: tuple[str, ...] = ()) -> Extension:
    """Returns the module of this CPU, at a level or the best one: whole, or a part of it."""
    name, source, level = "_mx_kernels_native", "bindings/cpu.mojo", level or levels.pick()
    return Extension(name, source, "" if defines else "MX_KERNELS_NATIVE", level, defines=defines)


def plans_extension(level: Level | None = None) -> Extension:
    """Returns the module that says what GPUs would do, for a CPU of a level or this one."""
    name, source, level = "_mx_kernels_plans", "bindings/plans.mojo", level or levels.pick()
    return Extension(name, source, "MX_KERNELS_PLANS", level)


@cache
def gpu_plans() -> ModuleType:
    """Returns what says which kernels GPUs would launch; the first call finds or builds it.

    Raises:
        NativeBuildError: if it cannot be built or loaded.
    """
    return load_extension(plans_extension())


def planner(kernels: ModuleType, choose: Callable[[tuple], tuple]) -> Callable[[tuple], tuple]:
    """Returns who plans for a module of kernels, and remembers answers.

    It asks `choose`, of `gpu_plans()`, which answers with the text of a plan and the bytes that the
    call is lent; instead of the text it returns what the module's `plan` makes of it. Kernels know
    no plan's cost: they stay as they are when one changes.
    """
    handles = cache(kernels.plan)

    @lru_cache(MAX_ANSWERS)
    def plan_for(question: tuple) -> tuple:
        text, *num_bytes = choose(question)
        return handles(text), *num_bytes

    return plan_for


def gpu_extension(architecture: str) -> Extension:
    """Returns the module of an NVIDIA GPU of an architecture, for example sm_90a."""
    level = levels.pick()
    return Extension("_mx_kernels_gpu", "bindings/cuda.mojo", "MX_KERNELS_GPU", level, architecture)


def hip_extension(architecture: str, defines: tuple[str, ...] = ()) -> Extension:
    """Returns the module of an AMD GPU of an architecture, gfx950, but for products and `FUSED`."""
    name, source = "_mx_kernels_hip", "bindings/hip.mojo"
    return Extension(name, source, "", levels.pick(), architecture, defines)


def hip_product_extension(architecture: str, defines: tuple[str, ...]) -> Extension:
    """Returns the module of one kind of product for the same."""
    name, source = "_mx_kernels_hip_product", "bindings/hip_product.mojo"
    return Extension(name, source, "", levels.pick(), architecture, defines)


def hip_experts_extension(architecture: str, defines: tuple[str, ...]) -> Extension:
    """Returns the module of one kind of experts for the same."""
    name, source = "_mx_kernels_hip_experts", "bindings/hip_experts.mojo"
    return Extension(name, source, "", levels.pick(), architecture, defines)


def load_extension(extension: Extension, build: Build | None = None) -> ModuleType:
    """Imports a module, building it first where there is none yet; the caller keeps it.

    Args:
        extension: the module.
        build: its `build()`, for who has it: following all imports takes some 20 ms.

    Raises:
        NativeBuildError: if the compiler or the linker is missing or fails.
    """
    if built_elsewhere := os.environ.get(extension.variable):
        path = builds.absolute(built_elsewhere, extension.variable)
        if why_not := objection(path, extension):
            raise NativeBuildError(
                f"{extension.variable}={built_elsewhere}: got {why_not}, expected a module "
                f"{extension.identity} for this machine; build one with `python -m mx_kernels "
                "build` or scripts/gpu_host.sh"
            )
        return import_module(path, extension.name, f"set {extension.variable} anew")
    path = (build or extension.build()).find_or_make()
    return import_module(path, extension.name, "delete it to build anew")


def objection(path: Path, extension: Extension) -> str:
    """Says what a file is if it is not the module, as far as can be seen; else ""."""
    try:
        if not path.is_file():
            return "no file"
        content = path.read_bytes()
        with open("/proc/self/exe", "rb") as python:
            ours = python.read(20)
    except OSError as error:
        return f"a file that cannot be read ({error})"
    if content[:4] != ELF:
        return "a file that is no ELF module"
    if content[4:6] + content[18:20] != ours[4:6] + ours[18:20]:
        return f"a file for another machine than {platform.machine()}"
    wanted_bytes, last = _elf_end(content)
    if len(content) < wanted_bytes:
        return f"the first {len(content)} bytes of a file that had {wanted_bytes} or more"
    if not last.strip(b"\0"):
        return "a file that ends in zeros, of which not all was written"
    if int.from_bytes(content[16:18], sys.byteorder) != SHARED_OBJECT:
        return "an ELF file that is no shared library"
    if f"PyInit_{extension.name}\0".encode() not in content:
        return f"a library without PyInit_{extension.name}"
    if words := LAST_WORDS.search(content, max(0, len(content) - 1000)):
        identity, cpu = (word.decode() for word in words.groups())
        here = [level.cpu for level in levels.here()]
        if identity != extension.identity:
            return f"a module {identity}"
        if cpu not in here:
            return f"a module for CPUs of level {cpu}, where this one runs {', '.join(here)}"
    return ""


def _elf_end(content: bytes) -> tuple[int, bytes]:
    """Returns where a 64-bit ELF file ends by its header, and the last entry that linkers write.

    That is the header of the last section, behind all that is loaded.
    """
    try:
        segments, sections = struct.unpack_from("=QQ", content, 32)
        segment_bytes, num_segments, section_bytes, num_sections = struct.unpack_from(
            "=4H", content, 54
        )
        end = sections + section_bytes * num_sections
        ends = [end, segments + segment_bytes * num_segments]
        for i in range(num_segments):
            offset, size = struct.unpack_from("=Q16xQ", content, segments + i * segment_bytes + 8)
            ends.append(offset + size)
    except struct.error:
        return len(content) + 1, b""
    # Files that were stripped of these headers tell nothing.
    return max(ends), content[end - section_bytes : end] if num_sections else ELF


def find_or_build(cache: Path | None = None, extension: Extension | None = None) -> Path:
    """Returns the path of the built module.

    Args:
        cache: the cache folder; None for the user's.
        extension: the module; None for `cpu_extension()`.
    """
    return (extension or cpu_extension()).build().find_or_make(cache)


def source_folder() -> Path:
    """Returns the folder of the Mojo package: inside the wheel, or beside `python/`."""
    package = Path(__file__).resolve().parents[1]
    candidates = [package / "mojo_kernels", package.parents[1] / "mojo_kernels"]
    for folder in candidates:
        if (folder / "__init__.mojo").exists():
            return folder
    raise NativeBuildError(
        f"the Mojo sources are missing, looked in {' and '.join(map(str, candidates))}; "
        "reinstall mx_kernels, or work in a complete clone"
    )


def mojo_path() -> Path:
    """Returns the folder that the Mojo compiler's `-I` takes to find `mojo_kernels`.

    Raises:
        NativeBuildError: if the Mojo sources are missing.
    """
    return source_folder().parent


def import_module(path: Path, name: str, remedy: str) -> ModuleType:
    """Imports the built module `name` and leaves the environment of child processes alone.

    On import, Mojo's runtime looks for Python's symbols in the library that
    MOJO_PYTHON_LIBRARY names, or starts a `python3` to find one; any library does, since the
    symbols are in this process. It also sets variables without `os.environ` knowing.

    Args:
        path: its file.
        name: what its code calls it.
        remedy: what to do if it does not load.

    Raises:
        NativeBuildError: if it does not load.
    """
    _load_runtime(path)
    with _unchanged_environment("MOJO_PYTHON_LIBRARY", "PYTHONEXECUTABLE", "PYTHONPATH"):
        os.putenv("MOJO_PYTHON_LIBRARY", str(path))
        # A module built elsewhere may have any name.
        loader = ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError as error:
            raise NativeBuildError(f"{path} does not load ({error}); {remedy}") from error
    return module


def _load_runtime(module: Path) -> None:
    """Loads what a module is linked to from this environment, so that it is found by its name.

    A module carries the path of the libraries that it was built with, which another environment
    may have had, and taken away since. Without a Mojo package they are those that `keep_runtime`
    put into the cache, or the loader's to find.
    """
    folders, needed = _runtime_folders(), _needed_by(module)
    for name in needed if folders else ():
        if name in RUNTIME:
            ctypes.CDLL(str(folders[0] / name))
    if not folders and builds.is_known():
        for build in _runtime_builds(needed):
            if build.is_whole():
                ctypes.CDLL(str(build.path()))


def keep_runtime(modules: Iterable[Path], cache: Path | None = None) -> Path:
    """Copies what modules are linked to into the cache, and returns the folder.

    With it they load where there is no Mojo package.

    Args:
        modules: files that were built.
        cache: the cache folder; None for `cache_folder()`.

    Raises:
        NativeBuildError: if the cache cannot be written.
    """
    names = [name for module in modules for name in _needed_by(module)]
    paths = [build.find_or_make(cache, is_quiet=True) for build in _runtime_builds(names)]
    return paths[0].parent


def _needed_by(module: Path) -> list[str]:
    """Returns the libraries of the Mojo package that a module needs, each behind what it loads."""
    content = module.read_bytes()
    linked = [name for name in RUNTIME if name.encode() in content]
    return [each for name in linked for each in (*RUNTIME_BESIDE.get(name, ()), name)]


def _runtime_folders() -> list[Path]:
    """Returns where this environment has them: a folder, or none."""
    package = importlib.util.find_spec("modular")
    folders = (
        Path(place) / "lib" for place in (package and package.submodule_search_locations) or ()
    )
    return [folder for folder in folders if (folder / RUNTIME[0]).is_file()]


def _runtime_builds(names: Iterable[str]) -> list[Build]:
    """Returns libraries as files of the cache, copied from where this environment has them."""
    facts = builds.toolchain(), platform.machine()
    key = hashlib.sha256(" ".join(facts).encode()).hexdigest()[: builds.HASH_DIGITS]

    def copy(target: Path) -> None:
        shutil.copyfile(_runtime_folders()[0] / target.name, target)

    return [
        Build(f"runtime-{key}", name, f"copying {name}", copy, is_compiled=False)
        for name in dict.fromkeys(names)
    ]


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


class LoadLock:
    """Is held while a module is found, built or loaded; a forked child finds it free.

    The thread that holds it in the parent, maybe for the seconds of a compilation, is not there.
    """

    _all: ClassVar[weakref.WeakSet[LoadLock]] = weakref.WeakSet()

    def __init__(self):
        self._lock = self._held = threading.Lock()
        self._all.add(self)

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._held = lock

    def __exit__(self, *_) -> None:
        self._held.release()

    @classmethod
    def free_all(cls) -> None:
        """Replaces every lock."""
        for one in cls._all:
            one._lock = threading.Lock()


os.register_at_fork(after_in_child=LoadLock.free_all)


def find_or_load() -> ModuleType | Parts:
    """Returns the whole module if it has been built, else what loads its parts.

    Raises:
        NativeBuildError: if the compiler or the linker is missing or fails.
    """
    whole = cpu_extension()
    if os.environ.get(whole.variable):
        return load_extension(whole)
    if (build := whole.build()).is_there() or not builds.has_compiler():
        return load_extension(whole, build)
    base, products = (cpu_extension(defines=parts) for parts in (BASE, FIRST_PRODUCTS))
    build, has_another_core = base.build(), len(os.sched_getaffinity(0)) > 1
    if has_another_core and not (build.is_there() or products.build().is_there()):
        threading.Thread(target=_build_quietly, args=(products,)).start()
    return Parts(load_extension(base, build))


def _build_quietly(extension: Extension) -> None:
    """Compiles a part ahead of time; who needs it says why that failed."""
    try:
        extension.build().find_or_make(is_quiet=True)
    except NativeBuildError:
        return


class Parts:
    """Has the functions of the whole module; the numbers of kernels are `cpu/dispatch.mojo`'s."""

    def __init__(self, base: ModuleType):
        self._kernel_of = base.kernel_of
        self._products: dict[tuple[int, ...], ModuleType] = {}
        self._loaded: dict[tuple[str, ...], ModuleType] = {}
        self._lock = LoadLock()
        for name, function in vars(base).items():
            if not name.startswith("_"):
                setattr(self, name, function)

    def multiply(self, call: tuple[int, ...]) -> None:
        """Computes a product."""
        self._of(call[_KIND], call[_LEFT], call[_RIGHT]).multiply(call)

    def multiply_grouped(self, call: tuple[int, ...]) -> bool:
        """Computes a grouped product; returns whether the sizes fit."""
        return self._of(call[_KIND], call[_LEFT], call[_EXPERTS]).multiply_grouped(call)

    def multiply_experts(self, call: tuple[int, ...]) -> bool:
        """Computes a layer of experts; returns whether the ids fit."""
        rights = call[_GATE_UP], call[_DOWN]
        return self._of(call[_KIND], call[_LEFT], *rights).multiply_experts(call)

    def _of(self, *codes: int) -> ModuleType:
        """Returns the part for a kind and format of the left side, and formats of weights."""
        module = self._products.get(codes)
        if module is None:
            with self._lock:
                module = self._products[codes] = self._load(*codes)
        return module

    def _load(self, kind: int, left: int, *rights: int) -> ModuleType:
        defines = ()
        if len(set(rights)) == 1:
            kernel = self._kernel_of((kind, left, rights[0]))
            defines = (f"KERNEL={kernel}", f"RIGHT={rights[0]}")
        if defines not in self._loaded:
            self._loaded[defines] = load_extension(cpu_extension(defines=defines))
        return self._loaded[defines]
