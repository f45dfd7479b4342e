"""The build of the extension module: once, atomically, and with words when it fails.

A package of one small Mojo file stands in for the kernels, so that a build takes seconds.
"""

import dataclasses
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest

import mx_kernels as mx
from mx_kernels._core import builds as _builds
from mx_kernels._core import cuda, facts, levels, native, trust
from tests import CORE_ALONE

SOURCE = '''"""A module with one function."""

from std.os import abort
from std.python import PythonObject
from std.python.bindings import PythonModuleBuilder


def answer() raises -> PythonObject:
    """Returns the answer."""
    return PythonObject({value})


@export
def PyInit__mx_kernels_native() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        var module = PythonModuleBuilder("_mx_kernels_native")
        module.def_function[answer]("answer")
        return module.finalize()
    except error:
        abort(String(error))
'''

pytestmark = pytest.mark.compiles

# What a process of its own does: build or find, load, answer.
PROCESS = f"""{CORE_ALONE}
from pathlib import Path
from mx_kernels._core import native
native.source_folder = lambda: Path(sys.argv[1])
print(native.find_or_build(), native.find_or_load().answer())
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    return make_sources(tmp_path, monkeypatch)


def make_sources(parent, monkeypatch):
    """Writes the stand-in's package and makes it the product's."""
    folder = parent / "mojo_kernels"
    for package in (folder, module_of(folder).parent):
        package.mkdir()
        (package / "__init__.mojo").write_text("")
    write(folder, 42)
    monkeypatch.setattr(native, "source_folder", lambda: folder)
    monkeypatch.delenv("MX_KERNELS_CPU", raising=False)
    monkeypatch.delenv("MX_KERNELS_CACHE", raising=False)
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns a cache that has the module of the stand-in as it is at first, and what was said."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
        patch.setattr(_builds.LOG, "propagate", False)  # pytest has set up a log.
        package = make_sources(tmp_path_factory.mktemp("built"), patch)
        cache = package.parent / "cache"
        native.find_or_build(cache)
        return cache, said.getvalue()


def module_of(folder):
    """Returns where the source of this CPU's module is in a package."""
    return folder / native.cpu_extension().source


def write(folder, value):
    module_of(folder).write_text(SOURCE.replace("{value}", str(value)))


def start(sources, cache, **environment):
    """Starts a process that builds or finds, loads and prints."""
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(sources)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MX_KERNELS_CACHE": str(cache), **environment},
    )


@pytest.mark.deep
def test_processes_that_start_together_build_once(sources, cache):
    processes = [start(sources, cache) for _ in range(3)]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    paths, answers = zip(*(out.split() for out, _ in outputs), strict=True)
    assert len(set(paths)) == 1
    assert set(answers) == {"42"}

    said = "".join(err for _, err in outputs)
    assert said.count("compiling the kernels for this machine, once, into") == 1
    # Leaves the module, its mark and its lock, nothing half-made.
    target = Path(paths[0])
    assert_nothing_else(target)
    assert sorted(path.name for path in cache.iterdir()) == [
        target.parent.name,
        f"{target.parent.name}.lock",
    ]


def assert_nothing_else(target):
    """Its folder has a file and what says that it is whole."""
    assert [name[:7] for name in sorted(os.listdir(target.parent))] == [target.name[:7], "sha256-"]


def test_a_build_says_so_in_one_line_and_a_find_says_nothing(sources, built, capfd):
    cache, said = built
    path = native.cpu_extension().build().path(cache)
    assert said.startswith("mx_kernels: compiling the kernels for this machine, once, into ")
    assert str(path.parent) in said
    assert said.count("\n") == 1
    assert float(said.rsplit("after ", 1)[1].removesuffix(" s\n")) > 0

    start_time = time.process_time()
    assert native.find_or_build(cache) == path
    assert time.process_time() - start_time < 0.1
    assert capfd.readouterr().err == ""


@pytest.mark.deep
def test_a_killed_build_takes_its_compiler_along_and_leaves_nothing_for_long(sources, cache):
    process = start(sources, cache)
    deadline = time.monotonic() + 60
    while not (compilers := compilers_of(process.pid)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    while any(Path(f"/proc/{pid}").exists() for pid in compilers):
        assert time.monotonic() < deadline, "the compiler goes on"
        time.sleep(0.01)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert [path.name[:7] for path in folder.iterdir()] == [".build-"]
    assert_nothing_else(native.find_or_build(cache))


def compilers_of(pid):
    """Returns the processes that a process has started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in children for child in file.read_text().split()]


def test_the_cache_keeps_what_was_used_last(tmp_path):
    def used(days_ago, name):
        folder = tmp_path / name
        folder.mkdir()
        (tmp_path / f"{name}.lock").touch()
        moment = time.time() - days_ago * 86400
        os.utime(folder, (moment, moment))
        return folder

    builds = [used(days, f"avx2-{days:016x}") for days in range(20)]
    others = [used(30, f"avx512_vnni-{1:016x}"), used(30, f"sm_90a-avx2-{1:016x}")]
    _builds.forget_old(builds[0])
    kept = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {path.name for path in [*builds[: _builds.KEPT_OF_A_LABEL], *others]}
    assert {path.name for path in tmp_path.glob("*.lock")} == {f"{name}.lock" for name in kept}

    today = [used(0, f"sse4-{i:016x}") for i in range(12)]
    _builds.forget_old(today[0])
    assert all(path.exists() for path in today)


@pytest.mark.deep
def test_a_waiting_process_says_what_it_waits_for(sources, cache):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD_LOCK,
            str(cache / f"{key_at()}.lock"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "held\n"
    waiter = start(sources, cache)
    line = b""
    while b"waiting for another process" not in line:
        line += os.read(waiter.stderr.fileno(), 100)
    # The kernel releases the lock of a process that dies, however it dies.
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    out, _ = waiter.communicate(timeout=300)
    assert out.split()[1] == "42"


HOLD_LOCK = """
import fcntl, pathlib, sys, time
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
lock = open(path, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def key_at(level=None, architecture=""):
    """Returns the key of the stand-in's module at a level."""
    extension = native.cpu_extension()
    level = level or extension.level
    return dataclasses.replace(extension, level=level, architecture=architecture).build().key


def test_the_key_follows_all_that_changes_the_build(sources, monkeypatch):
    def change_source():
        write(sources, 43)

    def add_import():
        with module_of(sources).open("a") as file:
            file.write("\nfrom ..cpu import (  # vectors\n    more,\n)\n")

    def add_imported_file():
        (sources / "cpu").mkdir()
        (sources / "cpu" / "__init__.mojo").write_text("")
        (sources / "cpu" / "more.mojo").write_text("from mojo_kernels.other import x\n")

    def add_file_behind_it():
        (sources / "other.mojo").write_text("")

    keys = [key_at(levels.NATIVE)]
    for step in (
        change_source,
        add_import,
        add_imported_file,
        add_file_behind_it,
        lambda: (sources / "__init__.mojo").write_text("comptime ONE = 1\n"),
        lambda: monkeypatch.setattr(_builds, "toolchain", lambda: "9.9"),
        lambda: monkeypatch.setattr(levels, "cpu_flags", lambda: frozenset(("another", "cpu"))),
    ):
        step()
        keys.append(key_at(levels.NATIVE))
    keys += [key_at(level) for level in levels.LEVELS]
    assert len(set(keys)) == len(keys)
    assert keys[-1].startswith(f"{levels.LEVELS[-1].name}-")


def test_files_that_are_not_imported_do_not_change_the_key(sources):
    before = key_at()
    (sources / "notes.txt").write_text("no source")
    (sources / "cdna4").mkdir()
    (sources / "cdna4" / "mma.mojo").write_text("")
    assert key_at() == before


def test_what_describes_a_package_does_not_change_the_key_and_code_there_does(sources):
    before, described = key_at(), sources / "__init__.mojo"
    described.write_text('"""A map of\n    files.mojo    "words"\n"""\n')
    assert key_at() == before
    for code in ("comptime A = 1\n", '"""Words."""\ncomptime A = 1\n', '"""A.""" + """B."""\n'):
        described.write_text(code)
        assert key_at() != before, code


@pytest.mark.deep
def test_the_compiler_sees_imported_files_alone(sources, cache, monkeypatch):
    """What the key overlooks cannot get into a build."""
    module = module_of(sources)
    hidden = "from mojo_kernels.hidden import VALUE"
    module.write_text(SOURCE.replace("{value}", "VALUE").replace("\n\n", f"\n\n{hidden}\n", 1))
    (sources / "hidden.mojo").write_text("comptime VALUE = 7\n")
    with monkeypatch.context() as patch:
        patch.setattr(_builds, "IMPORT", re.compile("(?!)"))
        with pytest.raises(_builds.NativeBuildError, match=rf"{module}:3[\s\S]*hidden"):
            native.find_or_build(cache)
    assert native.find_or_build(cache).exists()


def test_a_named_level_does_not_depend_on_this_machine(sources, monkeypatch):
    keys = [key_at(level) for level in levels.LEVELS]
    monkeypatch.setattr(levels, "cpu_flags", lambda: frozenset(("another", "cpu")))
    assert [key_at(level) for level in levels.LEVELS] == keys


def test_the_best_level_that_the_cpu_runs_is_picked(monkeypatch):
    monkeypatch.delenv("MX_KERNELS_CPU", raising=False)
    monkeypatch.setattr(levels.platform, "machine", lambda: "x86_64")
    for level in levels.LEVELS:
        monkeypatch.setattr(levels, "cpu_flags", lambda flags=level.cpu_flags: flags)
        assert levels.pick() is level
    monkeypatch.setattr(levels, "cpu_flags", frozenset)
    assert levels.pick() is levels.NATIVE


def test_other_machines_get_the_compilers_own_choice(monkeypatch):
    monkeypatch.delenv("MX_KERNELS_CPU", raising=False)
    monkeypatch.setattr(levels.platform, "machine", lambda: "aarch64")
    assert levels.pick() is levels.NATIVE


def test_a_level_that_this_cpu_cannot_run_is_refused(monkeypatch):
    avx2 = levels.by_name("avx2")
    monkeypatch.setattr(levels, "cpu_flags", lambda: avx2.cpu_flags)
    monkeypatch.setenv("MX_KERNELS_CPU", "avx512_vnni")
    with pytest.raises(ValueError, match=r"avx512_vnni needs .*avx512bw.* which this CPU"):
        levels.pick()


def test_a_gpu_module_has_a_folder_and_options_of_its_own(sources):
    keys = {key_at(levels.NATIVE, name) for name in ("", "sm_90a", "sm_80")}
    assert len(keys) == 3
    extension = native.gpu_extension("sm_90a")
    assert extension.compiler_options[-2:] == ("--target-accelerator", "sm_90a")
    assert extension.compiler_options[:-2] == levels.pick().compiler_options


@pytest.mark.parametrize(
    "capability, name",
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")],
)
def test_a_gpu_is_named_as_the_compiler_does(capability, name):
    assert cuda.architecture(capability) == name


def test_a_module_built_elsewhere_needs_no_compiler(sources, built, tmp_path):
    elsewhere = tmp_path / "another name.so"
    shutil.copy(native.find_or_build(built[0]), elsewhere)
    program = "from mx_kernels._core import native; print(native.find_or_load().answer())"
    process = subprocess.run(
        [sys.executable, "-c", CORE_ALONE + program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MX_KERNELS_NATIVE": str(elsewhere), "PATH": ""},
    )
    assert process.stdout == "42\n"


def test_without_compiler_and_metadata_libraries_are_the_loaders(sources, built, monkeypatch):
    """As on a host with a checkout and modules: nothing says which versions we ask for."""
    module = native.find_or_build(built[0])
    monkeypatch.setattr(_builds, "has_compiler", lambda: ())
    monkeypatch.setattr(_builds, "_pinned", lambda name: name)
    monkeypatch.setattr(native, "_runtime_folders", lambda: [])
    native._load_runtime(module)
    with pytest.raises(_builds.NativeBuildError, match="compiler is not installed"):
        _builds.toolchain()


def test_what_is_not_the_module_is_named_before_it_is_loaded(sources, built, tmp_path, monkeypatch):
    extension = native.cpu_extension()
    good, file = native.find_or_build(built[0]).read_bytes(), tmp_path / "elsewhere"
    words = native.LAST_WORDS.search(good)
    code = good[: words.start()]

    def said_of(content):
        file.write_bytes(content)
        return native.objection(file, extension)

    def ending(identity, cpu):
        return code + f"\nmx_kernels module {identity} for CPU {cpu}\n".encode()

    assert [said_of(content) for content in (good, code)] == ["", ""], "words may be missing"
    for num_bytes in range(64, len(code), len(code) // 50):
        assert f"the first {num_bytes} bytes of a file" in said_of(code[:num_bytes]), num_bytes
        zeros = code[:num_bytes].ljust(len(good), b"\0")
        assert re.search("of which not all was written|bytes of a file that had", said_of(zeros))
    machine = (0xFFFF).to_bytes(2, sys.byteorder)
    other = dataclasses.replace(extension, defines=("KERNEL=0",)).identity
    python = extension.identity.replace(sys.implementation.cache_tag, "cpython-39")
    level = extension.level.cpu
    for content, why_not in (
        (b"", "no ELF module"),
        (b"root:x:0:0", "no ELF module"),
        (good[:18] + machine + good[20:], "another machine"),
        (good[:4] + b"\1" + good[5:], "another machine"),
        (good.replace(b"PyInit_", b"PyExit_"), "without PyInit__mx_kernels_native"),
        (Path(sys.executable).read_bytes(), "without PyInit|no shared library"),
        (ending(other, level), "a module _mx_kernels_native-KERNEL=0"),
        (ending(python, level), "cpython-39"),
        (ending(extension.identity, "avx1024"), "of level avx1024, where this one runs .*native"),
        (ending(extension.identity, "native-0123456789abcdef"), "of level native-0123"),
    ):
        assert re.search(why_not, said_of(content)), why_not

    for path, why_not in ((tmp_path, "no file"), (tmp_path / "none", "no file"), (file, "level")):
        monkeypatch.setenv(extension.variable, str(path))
        with pytest.raises(_builds.NativeBuildError, match=rf"{path}: got .*{why_not}.* expected"):
            native.load_extension(extension)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(extension.variable, "~/elsewhere")
    with pytest.raises(_builds.NativeBuildError, match="~/elsewhere: got a module for CPUs"):
        native.load_extension(extension)


def test_a_module_of_another_version_is_named():
    without_tables = type(sys)("stand-in")
    with pytest.raises(_builds.NativeBuildError, match=r"stand-in.*of another version"):
        facts._facts_of(without_tables)


def test_a_module_built_in_another_environment_loads(sources, built, cache):
    """Its own path to Mojo's runtime leads nowhere."""
    shutil.copytree(built[0], cache)
    path = native.find_or_build(cache)
    (place,) = importlib.util.find_spec("modular").submodule_search_locations
    content = path.read_bytes()
    assert place.encode() in content
    path.write_bytes(content.replace(place.encode(), b"/" + b"x" * (len(place) - 1)))
    trust.keep(path, path.parent)
    out, err = start(sources, cache).communicate(timeout=300)
    assert out == f"{path} 42\n", err


def test_environment_variables_pick_cache_and_level(sources, cache, monkeypatch):
    monkeypatch.setenv("MX_KERNELS_CACHE", str(cache))
    monkeypatch.setenv("MX_KERNELS_CPU", "native")
    path = native.cpu_extension().build().path()
    assert path.parent.parent == cache
    assert path.parent.name.startswith("native-")


def test_without_the_variable_the_cache_is_the_users(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = native.cpu_extension().build().path()
    assert path.parent.parent == tmp_path / "home" / "mx_kernels"


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing(sources, cache, caplog):
    module_of(sources).write_text("def broken(\n")
    caplog.set_level("INFO", logger="mx_kernels")
    with pytest.raises(_builds.NativeBuildError) as raised:
        native.find_or_build(cache)
    text = str(raised.value)
    assert text.startswith("the Mojo compiler failed")
    assert "$ mojo build --emit shared-lib" in text
    assert f"{module_of(sources)}:1:" in text
    assert [path.name for path in cache.rglob("*") if path.is_file()] == [f"{key_at()}.lock"]
    begun, ended = caplog.records
    assert begun.message.startswith("compiling the kernels for this machine, once, into ")
    assert re.fullmatch(re.escape(begun.message) + r": failed after \d+\.\d s", ended.message)
    assert [begun.levelname, ended.levelname] == ["INFO", "WARNING"]


@pytest.mark.deep
def test_what_failed_is_built_when_it_is_right(sources, cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_builds, "compile_mojo", fail)
        with pytest.raises(_builds.NativeBuildError, match="for now"):
            native.find_or_build(cache)
    assert native.find_or_build(cache).exists()


def fail(*_):
    raise _builds.NativeBuildError("for now")


def test_an_unknown_level_is_named(monkeypatch):
    monkeypatch.setenv("MX_KERNELS_CPU", "pdp11")
    with pytest.raises(ValueError, match=r"must be one of avx512_bf16, .*native, got 'pdp11'"):
        levels.pick()


@pytest.mark.deep
def test_a_missing_linker_is_named(sources, cache, monkeypatch):
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(
        _builds.NativeBuildError, match=r"no C linker on PATH[\s\S]*apt install gcc"
    ):
        native.find_or_build(cache)


def test_a_missing_compiler_is_named(sources, cache, monkeypatch):
    installed = importlib.metadata.version

    def missing(name):
        if name == "mojo":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", missing)
        with pytest.raises(_builds.NativeBuildError, match=r"not installed.*install mojo==1\.2\.0"):
            native.find_or_build(cache)
    monkeypatch.setitem(sys.modules, "mojo.run", None)
    with pytest.raises(_builds.NativeBuildError, match=r"cannot be started: .*; reinstall mojo=="):
        native.find_or_build(cache)


def test_a_cache_that_cannot_be_written_is_named(sources, cache):
    cache.write_text("a file, not a folder")
    with pytest.raises(_builds.NativeBuildError, match="set MX_KERNELS_CACHE to a folder"):
        native.find_or_build(cache)


def test_a_module_that_does_not_load_is_named(sources, cache, monkeypatch):
    target = cache / key_at() / "_mx_kernels_native.so"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"no module")
    trust.keep(target, target.parent)
    process = start(sources, cache)
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert f"NativeBuildError: {target} does not load" in err
    assert "delete it to build anew" in err


def test_missing_sources_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "__file__", str(tmp_path / "a" / "b" / "native.py"))
    with pytest.raises(_builds.NativeBuildError, match="the Mojo sources are missing, looked in"):
        native.source_folder()


def test_importing_builds_nothing(cache):
    """Nor does the command line, which runs as a module and knows its version."""
    run = [sys.executable, "-m", "mx_kernels", "--version"]
    env = {**os.environ, "MX_KERNELS_CACHE": str(cache)}
    printed = subprocess.run(run, capture_output=True, text=True, check=True, env=env).stdout
    assert printed == f"mx_kernels {mx.__version__}\n"
    assert len(mx.__all__) <= 23
    assert not cache.exists()
