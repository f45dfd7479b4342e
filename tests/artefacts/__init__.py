"""Everything that is compiled for the tests, listed once, kept in the cache of `_core.builds`.

To add one: a line in `ARTEFACTS`, next to its room's. It says what is made and which tests
use it, by the beginnings of their paths; `deep=True` where only tests marked
`deep` do. A test then asks for it by name:

    artefacts.text("cdna4/decode")      what a program printed
    artefacts.path("numerics/main")     the file itself

The kinds that there are:

    program       tests/<room>/programs/<stem>.mojo, run: what it prints, mostly assembly
    catalogue     tests/<room>/programs/<stem>.mojo, compiled: gfx950 kernels and their launches
    catalogue     tests/<room>/programs/<stem>.mojo, a catalogue of kernels, as a module
    executable    tests/<room>/mojo/<stem>.mojo, compiled: the tests run it
    object_file   any Mojo file, compiled for another machine
    graph         tests/<room>/graphs/<stem>.py, run with a path: what it writes there
    extension     a module of the product, which finds it by itself
    Artefact      anything else that is a `Build`

Before the first test runs, what the selected tests use and the cache lacks is made, in the
order of the list, which begins with what takes longest. Processes of pytest-xdist share that
work: each takes what no other has begun. Nothing else is compiled while tests run, but for
those marked `compiles`, which are about compiling.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

import pytest

from bench.simulated import kernels
from mx_kernels._core import levels, native
from mx_kernels._core.builds import Build, NativeBuildError
from tests.artefacts.kinds import (
    Artefact,
    catalogue,
    executable,
    extension,
    graph,
    object_file,
    program,
)
from tests.hip.kinds import EXPERTS, FLOAT_SCALES, KINDS
from tests.ptx.kinds import ARCHITECTURES
from tests.ptx.kinds import extension as ptx_extension
from tests.watchdog import BUILD_SECONDS, Limit

GFX950 = "gfx950"
ARM64 = "--target-triple", "aarch64-unknown-linux-gnu", "--target-cpu"
ARM64_CPUS = {"generic": "generic", "dotprod": "neoverse-n1", "i8mm": "neoverse-v1"}
"""One of each kind of ARM64 processors."""
USERS_OF_THE_CPU = (
    *("bench/", "cpu/", "distributed/", "hip/", "hopper/", "max_graph/", "numerics/", "python/"),
    *("cdna4/test_experts", "gfx950/test_sharing_mut", "house/test_readme", "house/test_docs"),
    "house/test_wheel",
    *("ptx/", "serving/"),
)
USERS_OF_PLANS = (
    *("bench/", "cdna4/test_assembly", "cdna4/test_decode", "cdna4/test_experts", "hip/"),
    *("gfx950/test_sharing_mut", "hopper/", "house/", "max_graph/test_gfx950"),
    *("python/test_cli", "python/test_explain"),
)
CPU_LEVEL = "cpu/level"
"""The module of this CPU, which the package finds by itself: without it, it would compile parts."""
OTHER_LEVELS = [level for level in levels.here() if level is not levels.pick()]


def ladder_program(*defines: str) -> Build:
    """Returns the assembly of the ladder's kernels; only who needs them imports the example."""
    from examples.ladder import rungs  # noqa: PLC0415

    return rungs.assembly(*defines)


def max_library() -> Build:
    """Returns the MAX ops; only who needs them imports MAX."""
    from mx_kernels import max_graph  # noqa: PLC0415

    return max_graph.library_build()


ARTEFACTS = (
    extension(CPU_LEVEL, native.cpu_extension, *USERS_OF_THE_CPU),
    *(
        extension(
            f"cpu/{level.name}",
            partial(native.cpu_extension, level),
            f"cpu/test_levels.py::test_a_level_gives_the_bits_of_the_best[{level.name}]",
            deep=True,
        )
        for level in OTHER_LEVELS
    ),
    # Weights of MXFP4 alone: those of all formats are in the objects below, but for experts.
    object_file(
        "cpu/arm64",
        "mojo_kernels/bindings/cpu.mojo",
        (*ARM64, ARM64_CPUS["dotprod"], "-D", "RIGHT=0"),
        "cpu/test_levels",
    ),
    *(
        object_file(
            f"cpu/arm64_{kind}",
            "tests/cpu/emulated/entry.mojo",
            (*ARM64, cpu),
            "cpu/test_emulated",
        )
        for kind, cpu in ARM64_CPUS.items()
    ),
    extension("plans/level", native.plans_extension, *USERS_OF_PLANS),
    Artefact(
        "max_graph/library",
        max_library,
        ("max_graph/", "house/test_readme.py", "python/test_arguments.py"),
    ),
    graph("max_graph/first", script="cases", arguments=("first",)),
    graph("max_graph/others", script="cases", arguments=("others",), deep=True),
    graph("max_graph/experts", "max_graph/test_experts", deep=True),
    graph("max_graph/fused", deep=True),
    graph("max_graph/gpt_oss", "max_graph/test_gpt_oss", deep=True, example="max_gpt_oss_layer"),
    graph("max_graph/gfx950", deep=True, without=("hopper",)),
    graph(
        "max_graph/gfx950_pairs",
        "max_graph/test_gfx950",
        script="gfx950",
        arguments=("pairs",),
        deep=True,
        without=("hopper",),
    ),
    *(
        graph(
            f"max_graph/{architecture}",
            script="layer",
            arguments=(architecture,),
            deep=True,
            without=("cdna4",),
        )
        for architecture in ("sm_90a", "sm_80")
    ),
    *(
        extension(
            f"ptx/{architecture}",
            partial(ptx_extension, architecture),
            "ptx/",
            "hopper/test_machine_code",
            "hopper/test_launches",
            deep=True,
        )
        for architecture in ARCHITECTURES
    ),
    extension("hip/module", partial(native.hip_extension, GFX950), "hip/"),
    extension(
        "hip/fused",
        partial(native.hip_extension, GFX950, native.FUSED),
        *("hip/test_fused", "hip/test_ops"),
        deep=True,
    ),
    *(
        extension(
            f"hip/{name}",
            partial(native.hip_product_extension, GFX950, kind.defines()),
            "hip/test_ops",
            *(["hip/test_float_scales"] if name in FLOAT_SCALES else []),
            deep=name != "kept",
        )
        for name, kind in KINDS.items()
    ),
    *(
        extension(
            f"hip/{name}",
            partial(native.hip_experts_extension, GFX950, kind.defines()),
            "hip/test_experts",
            deep=True,
        )
        for name, kind in EXPERTS.items()
    ),
    program("gfx950/max_matmul", deep=True),
    program("gfx950/max_ping_pong", deep=True),
    program("gfx950/probes"),
    catalogue("cdna4/decode", "bench/test_gfx950.py", "cdna4/", "gfx950/test_sharing_mut"),
    catalogue("cdna4/choices", "cdna4/", "gfx950/test_sharing_mut", deep=True),
    catalogue("cdna4/wide", deep=True),
    catalogue("cdna4/quantize_wide", deep=True),
    catalogue("cdna4/fp8", "cdna4/test_fp8", "gfx950/test_sharing_mut", deep=True),
    catalogue("cdna4/columns", "cdna4/test_columns", "gfx950/test_sharing_mut", deep=True),
    catalogue("cdna4/floats", "cdna4/test_floats", deep=True),
    catalogue("cdna4/prefill", "cdna4/", "gfx950/test_sharing_mut"),
    catalogue("cdna4/prefill_types", "cdna4/", deep=True),
    catalogue("cdna4/prefill_wide", deep=True),
    catalogue("cdna4/middle", deep=True),
    catalogue("cdna4/middle_wide", deep=True),
    catalogue("cdna4/quantize", "bench/test_gfx950.py", "cdna4/", "gfx950/test_sharing_mut"),
    catalogue("cdna4/experts", "cdna4/", "gfx950/test_sharing_mut", deep=True),
    catalogue("cdna4/encode"),
    Artefact("bench/ours", lambda: kernels.catalogue_build("ours"), ("bench/",), deep=True),
    Artefact("bench/tails", lambda: kernels.catalogue_build("tails"), ("bench/",), deep=True),
    Artefact("bench/wide", lambda: kernels.catalogue_build("wide"), ("bench/",), deep=True),
    Artefact(
        "bench/eight_bits",
        lambda: kernels.catalogue_build("eight_bits"),
        ("bench/test_gfx950_eight_bits",),
        deep=True,
    ),
    Artefact("bench/max", lambda: kernels.max_program(256, 512), ("bench/",)),
    Artefact("examples/ladder", ladder_program, ("house/test_docs",)),
    Artefact(
        "examples/ladder_f16", partial(ladder_program, "F16"), ("house/test_docs",), deep=True
    ),
    executable("numerics/main", "numerics/test_mojo"),
    program("simt/tiles", "simt/test_machine_code", deep=True),
    executable("hopper/test_experts", "hopper/test_experts", deep=True),
)
BY_NAME = {artefact.name: artefact for artefact in ARTEFACTS}


def path(name: str) -> Path:
    """Returns the file of an artefact that the running test may use.

    Raises:
        LookupError: if the list does not know it, or not for this test.
        NativeBuildError: if it cannot be made.
    """
    artefact = BY_NAME[name]
    test = Running.test
    if test and not artefact.is_for(test.nodeid, is_deep(test)):
        raise LookupError(f"tests/artefacts: {name} is not listed for {test.nodeid}")
    return made(artefact)


def text(name: str) -> str:
    """Returns the content of an artefact that the running test may use, see `path`."""
    return path(name).read_text(encoding="utf-8")


def run_mojo_tests(name: str, *arguments: str) -> None:
    """Runs an executable of Mojo unit tests; none may fail or be skipped."""
    command = [path(name), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 failed , 0 skipped" in run.stdout, run.stdout
    assert " 0 tests run" not in run.stdout, run.stdout


def is_deep(test: pytest.Item) -> bool:
    """Says whether a test is in the second tier alone."""
    return test.get_closest_marker("deep") is not None


def prepare(tests: Iterable[pytest.Item], say: Callable[[str], None]) -> None:
    """Makes what some tests use and the cache lacks, but for what other processes are making."""
    wanted = {(test.nodeid, is_deep(test)) for test in tests}
    for artefact in ARTEFACTS:
        if any(artefact.is_for(*test) for test in wanted):
            start = time.perf_counter()
            try:
                # What is said to users while it is made comes in a line of ours.
                with contextlib.redirect_stderr(io.StringIO()):
                    if is_made(artefact) or made(artefact, wait=False) is None:
                        continue
            except Exception as error:
                # The tests that use it fail with the whole of it.
                say(f"cannot make {artefact.name}: {str(error).splitlines()[0]}")
            else:
                say(f"made {artefact.name} in {time.perf_counter() - start:.1f} s")
    level = BY_NAME[CPU_LEVEL]
    if any(level.is_for(*test) for test in wanted):
        # Another process may still be at it; other artefacts are waited for as tests ask for them.
        # A host with modules of its own need not have a compiler.
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(NativeBuildError):
            if level.build().key not in _failures:
                made(level)


def is_made(artefact: Artefact) -> bool:
    """Says whether the cache has an artefact."""
    return artefact.build().is_whole()


_failures: dict[str, NativeBuildError] = {}


def made(artefact: Artefact, *, wait: bool = True) -> Path | None:
    """Finds or makes an artefact; what failed once fails again, at once."""
    build = artefact.build()
    if build.key in _failures:
        raise _failures[build.key]
    try:
        return build.find_or_make(wait=wait)
    except NativeBuildError as error:
        _failures[build.key] = error
        raise


class Running:
    """What this process is at."""

    test: pytest.Item | None = None
    is_collecting = True
    """Whether no test has begun yet; modules of tests load nothing that is compiled."""
    builds_end: float | None = None
    """When a run of limited time begins no build any more, in seconds since 1970."""


def refuse_others() -> None:
    """From now on this process compiles what is listed, and nothing while it collects tests."""
    make, find = Build._make, Build.find_or_make

    def find_for_tests(self: Build, *args, **options) -> Path | None:
        if Running.is_collecting:
            raise NativeBuildError(
                f"{self.doing}: a module of tests wants {self.key} while it is imported, expected "
                "only tests to: whoever loads a part of the CPU's kernels now lacks the rest later"
            )
        with Limit.of(BUILD_SECONDS):
            return find(self, *args, **options)

    def make_listed(self: Build, target: Path) -> None:
        test = Running.test
        is_allowed = test is None or not self.is_compiled or test.get_closest_marker("compiles")
        if Running.builds_end and not is_allowed and time.time() > Running.builds_end:
            pytest.skip(f"left to `make test-nightly`: too late to make {self.key}")
        if not is_allowed and self.key not in listed_keys():
            raise NativeBuildError(
                f"{self.doing}: {test.nodeid} needs {self.key}/{self.file_name}, which "
                "tests/artefacts does not list"
            )
        make(self, target)

    Build._make, Build.find_or_make = make_listed, find_for_tests


@cache
def listed_keys() -> frozenset[str]:
    """Returns the keys of everything that is listed."""
    return frozenset(artefact.build().key for artefact in ARTEFACTS)
