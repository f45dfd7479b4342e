"""The repository keeps its promises: entry points, pins, the map, the direction of imports.

pixi itself is not needed to know that `pixi run` works: each task's command
is run in the environment at hand, in the cheapest form that would still fail
if the entry point were broken.
"""

import ast
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace

import pytest

from mx_kernels._core import builds
from tests import artefacts, tiers
from tests.artefacts import snapshot

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MOJO_FILES = sorted((ROOT / "mojo_kernels").rglob("*.mojo"))
LONGEST_FILE = 600
LINE_BUDGET = {"mojo_kernels": 51_530, "python/mx_kernels": 21_805}
"""Lines of all files; raising one takes a reason in the commit."""
MOST_OF_A_FAILURE = 4000
"""Characters."""
# What an outer `make test ARGS=...` would hand down to the `make` and pytest of a test.
OUTER = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS", "TARGET", "PYTEST_ADDOPTS"}


def run(command: str, folder: Path = ROOT) -> str:
    """Runs a shell command with this environment's tools and returns its output."""
    env = {name: value for name, value in os.environ.items() if name not in OUTER}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    process = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = f"{process.stdout}{process.stderr}"[-MOST_OF_A_FAILURE:]
    assert process.returncode == 0, f"$ {command}\n{said}"
    return process.stdout


def tracked_files() -> list[Path]:
    """Returns the files under version control that exist."""
    paths = [ROOT / name for name in run("git ls-files -z").split("\0") if name]
    return [path for path in paths if path.is_file()]


# Entry points


# What make spells as a variable of a target.
MAKE_TARGETS = {f"bench-{name}": f"bench TARGET={name}" for name in ("cuda", "gfx950")}


@pytest.mark.parametrize("task", PIXI["tasks"])
def test_make_and_pixi_run_the_same_command(task):
    target = MAKE_TARGETS.get(task, task)
    recipe = run(f"make --no-print-directory --dry-run --old-file=.venv/.ready {target}")
    assert recipe.splitlines()[-1].strip() == PIXI["tasks"][task]


def test_pixi_has_the_tasks_of_make():
    assert set(PIXI["tasks"]) == {
        "bench",
        "docs",
        "test",
        "test-deep",
        "test-nightly",
        "lint",
        "fmt",
        *MAKE_TARGETS,
    }


def test_the_first_tier_differs_from_the_nightly_one_by_its_marker_and_limit_alone():
    nightly = PIXI["tasks"]["test-nightly"].removesuffix(" --limit 350")
    assert PIXI["tasks"]["test"] == nightly + ' -m "not deep"'


def functions(tests: set[str]) -> set[str]:
    """Returns what tests are cases of."""
    return {test.partition("[")[0] for test in tests}


@pytest.mark.deep
def test_each_test_is_in_one_tier_and_all_are_in_the_nightly_one(tmp_path):
    """To collect them compiles nothing. Of a function that is skipped here each run has one."""
    first, deep, nightly = (
        collected(PIXI["tasks"][task], tmp_path) for task in ("test", "test-deep", "test-nightly")
    )
    assert nightly <= first | deep
    spared = functions((first | deep) - nightly)
    assert functions(nightly) == functions(first | deep)
    assert spared <= functions(first) & functions(deep)
    assert not first & deep
    rooms = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert rooms == {test.split("/")[1] for test in first}
    assert not list(tmp_path.iterdir())


def test_a_bounded_run_begins_with_what_was_touched_and_leaves_no_file_out(monkeypatch):
    said = {"log": "mojo_kernels/cpu/threads.mojo\ntests/ptx/test_simt.py\nREADME.md"}
    monkeypatch.setattr(tiers, "git", lambda command, *_: said.get(command, ""))
    files = ["gfx950/test_a.py", "cpu/test_b.py", "hip/test_c.py", "ptx/test_d.py", "cpu/test_e.py"]
    touched = {"cpu/test_b.py", "ptx/test_d.py", "cpu/test_e.py"}
    tests = [SimpleNamespace(nodeid=f"tests/{file}::test_it") for file in files for _ in range(2)]
    first = set()
    for commits in range(6):
        said["rev-list"] = str(commits)
        order = [test.nodeid for test in tiers.in_turn(tests)]
        assert sorted(order) == sorted(test.nodeid for test in tests)
        assert {test.split("::")[0].removeprefix("tests/") for test in order[:4]} < touched
        first |= {order[0], order[4]}
    assert first == {test.nodeid for test in tests}


def test_a_run_whose_time_is_over_says_how_many_tests_it_left():
    printed = run("python -m pytest -p no:cacheprovider --minutes 1e-9 tests/tiers.py " + __file__)
    assert re.search(r"SKIPPED \[\d\d+\] .*left to `make test-nightly`", printed)


def test_late_in_a_run_of_limited_time_no_build_begins(monkeypatch, tmp_path):
    build = artefacts.BY_NAME["numerics/main"].build()
    monkeypatch.setattr(artefacts.Running, "builds_end", 1.0)
    with pytest.raises(pytest.skip.Exception, match="too late to make numerics-main"):
        build.find_or_make(tmp_path / "cache")


def collected(command: str, cache: Path) -> set[str]:
    """Returns the ids of the tests that a command would run, with an empty cache for builds."""
    printed = run(f"MX_KERNELS_CACHE={cache} {command} --collect-only --quiet")
    return set(re.findall(r"^tests/.*::.*$", printed, re.MULTILINE))


def test_the_bench_task_explains_itself(monkeypatch, capsys):
    python, option, module = PIXI["tasks"]["bench"].split()
    assert (python, option) == ("python", "-m")
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(module, run_name="__main__")
    assert "Usage" in capsys.readouterr().out


@pytest.fixture
def copied(tmp_path) -> Path:
    """A copy of the repository."""
    for path in tracked_files():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return tmp_path


@pytest.mark.deep
def test_the_lint_task_rejects_a_wrong_name_that_type_checks(copied):
    hints = copied / "python" / "mx_kernels" / "hints.py"
    hints.write_text(hints.read_text().replace('"mxfp8",', '"mxfp8",\n    "mxfp5",', 1))
    with pytest.raises(AssertionError, match="unused-ignore"):
        run(PIXI["tasks"]["lint"], copied)


@pytest.mark.deep
def test_the_fmt_task_repairs_what_the_lint_task_rejects(copied):
    python = '"""Ugly."""\ndef ugly( a ):\n    """Adds one."""\n    return a+1\n'
    ugly = {
        "tests/ugly.py": ("ruff format: run", python),
        "mojo_kernels/ugly.mojo": (
            "mojo format: run",
            python.replace("( a )", "( a: Int ) -> Int"),
        ),
    }
    for name, (complaint, text) in ugly.items():
        (copied / name).write_text(text)
        with pytest.raises(AssertionError, match=complaint):
            run(PIXI["tasks"]["lint"], copied)
        (copied / name).unlink()
    for name, (_, text) in ugly.items():
        (copied / name).write_text(text)
    run(PIXI["tasks"]["fmt"], copied)
    run(PIXI["tasks"]["lint"], copied)


def test_the_workflows_run_what_ci_run_and_nightly_do_room_by_room():
    folder = ROOT / ".github" / "workflows"
    rooms = sorted({path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")})
    for name, commands in {
        "ci": [".ci/run lint", ".ci/run ${{ matrix.part }} ${{ matrix.rooms }}", ".ci/run test"],
        "nightly": [
            'make test-nightly ARGS="${{ matrix.rooms }}"',
            "make .venv/.ready && .venv/bin/pip install --upgrade torch transformers",
            'make test ARGS="tests/distributed tests/numerics tests/python"',
        ],
    }.items():
        workflow = (folder / f"{name}.yml").read_text()
        assert re.findall(r"- run: (.*)", workflow) == commands
        groups = re.findall(r"^ {10}- (.*)", workflow, re.MULTILINE)
        assert sorted(" ".join(groups).replace("tests/", "").split()) == rooms


@pytest.mark.parametrize(
    "part, targets",
    [
        ("", ["lint", "test", "test-deep"]),
        ("lint", ["lint"]),
        ("test cpu simt", ["test"]),
        ("deep cpu simt", ["test-deep"]),
    ],
)
def test_ci_run_makes_what_it_is_asked_for(part, targets, tmp_path):
    """Make is replaced by what prints its arguments."""
    (tmp_path / "make").write_text("#!/bin/sh\necho made: $*\n")
    (tmp_path / "make").chmod(0o755)
    for tool in ("qemu-aarch64", "aarch64-linux-gnu-gcc"):
        (tmp_path / tool).symlink_to("/bin/true")
    _, *part_of_room = part.split(" ", 1)
    made = re.findall(r"^made: (.*)", run(f"PATH={tmp_path}:$PATH .ci/run {part}"), re.MULTILINE)
    assert [arguments.split()[0] for arguments in made] == [".venv/.ready", *targets]
    if part_of_room:
        assert made[-1].endswith("tests/cpu tests/simt")


# Versions


def test_pixi_promises_the_glibc_that_the_wheels_of_mojo_ask_for():
    tags = "".join(
        importlib.metadata.distribution(name).read_text("WHEEL")
        for name in ("max", "max-core", "mojo", "mojo-compiler")
    )
    asked = {tuple(map(int, found)) for found in re.findall(r"manylinux_(\d+)_(\d+)_", tags)}
    libc = PIXI["system-requirements"]["libc"]
    assert libc["family"] == "glibc"
    assert tuple(map(int, libc["version"].split("."))) == max(asked)


def test_pixi_installs_the_pins_of_pyproject_and_has_none_of_its_own():
    assert PIXI["pypi-dependencies"] == {
        "mx_kernels": {"path": ".", "editable": True, "extras": ["dev"]}
    }
    assert set(PIXI["dependencies"]) == {"python"}
    assert PIXI["dependencies"]["python"].startswith(PYPROJECT["project"]["requires-python"] + ",")


@pytest.mark.parametrize("package", ["max", "mojo"])
def test_the_toolchain_is_pinned_exactly_and_installed(package):
    pins = [d for d in PYPROJECT["project"]["dependencies"] if re.match(rf"{package}\b", d)]
    assert pins == [f"{package}=={importlib.metadata.version(package)}"]


def test_a_wheel_carries_every_mojo_file_and_says_that_it_has_types():
    tool = PYPROJECT["tool"]["setuptools"]
    assert tool["package-dir"]["mx_kernels.mojo_kernels"] == "mojo_kernels"
    assert tool["package-data"]["mx_kernels.mojo_kernels"] == ["**/*.mojo"]
    assert tool["package-data"]["mx_kernels"] == ["py.typed"]
    assert (ROOT / "python" / "mx_kernels" / "py.typed").is_file()
    rooms = (
        path.parent.relative_to(ROOT / "python") for path in (ROOT / "python").rglob("__init__.py")
    )
    packages = {".".join(room.parts) for room in rooms}
    beside = {"mx_kernels.examples", "mx_kernels.mojo_kernels"}
    assert packages | beside == set(tool["packages"])


LONGEST_ENTRY = 200


def test_the_changelog_has_a_line_an_entry_and_a_date_for_the_version():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    heads = [line for line in lines if line.startswith("## ")]
    assert heads[0] == "## Unreleased"
    assert re.fullmatch(rf"## {PYPROJECT['project']['version']} \(\d{{4}}-\d\d-\d\d\)", heads[1])
    for line in lines[lines.index(heads[0]) :]:
        assert not line or line.startswith(("* ", "## ", "### ")), f"goes on: {line}"
        assert len(line) <= LONGEST_ENTRY, line


# The house


def test_the_map_names_every_file_of_the_mojo_package_and_nothing_else():
    """A line of the map is a file or, with a slash, a folder, of the folder that it is under."""
    drawn, folders = set(), []
    for line in (HOUSE / "__init__.mojo").read_text().splitlines():
        entry = re.match(r"( {4,})([\w.]+)(/|\.mojo)(?: |$)", line)
        if entry:
            depth, name, kind = len(entry[1]), entry[2], entry[3]
            folders = [folder for folder in folders if folder[0] < depth]
            path = "/".join([*(folder[1] for folder in folders), name])
            if kind == "/":
                folders.append((depth, name))
            else:
                drawn.add(f"{path}.mojo")
    files = {path.relative_to(HOUSE).as_posix() for path in MOJO_FILES}
    assert drawn == {file for file in files if not file.endswith("__init__.mojo")}


HOUSE = ROOT / "mojo_kernels"
# Rooms that every other may use; a room that is not named here keeps to itself.
SHARED = {"numbers", "layouts", "schedule", "launch", "routing"}
# Hopper's kernels hand what they do not take to the portable ones.
BUILDS_ON = {"hopper": "simt"}


def mojo_imports(path: Path) -> set[Path]:
    """Returns the files of our own that a Mojo file imports."""
    return {file for _, file in builds.imports_of(path, ROOT, [ROOT])}


def room_of(path: Path) -> str:
    """Returns the room that a file is in, whatever part of it; empty for none."""
    return path.relative_to(HOUSE).parts[0] if path.parent != HOUSE else ""


def is_entry(path: Path) -> bool:
    """Says whether a file stands above the rooms: bindings do, and what uses a room's kernels."""
    if room_of(path):
        return room_of(path) == "bindings"
    rooms = {room_of(target) for target in mojo_imports(path)}
    return bool(rooms - SHARED - {""}) or path.name.endswith(("_module.mojo", "_ops.mojo"))


def test_every_import_of_ours_leads_to_a_file():
    named = re.compile(r"^\s*from (mojo_kernels|\.+)\.?([\w.]*) import", re.MULTILINE)
    for path in MOJO_FILES:
        for start, module in named.findall(path.read_text()):
            home = HOUSE if start == "mojo_kernels" else path.parents[len(start) - 1]
            target = home.joinpath(*filter(None, module.split(".")))
            assert target.is_dir() or target.with_suffix(".mojo").is_file(), f"{path}: {module}"


IMPORT = re.compile(r"^ *from ([.\w]+) import (\([^)]*\)|.*)", re.MULTILINE)
DOCSTRING = re.compile(r'"""[\s\S]*?"""')


def names_imported(text: str) -> set[tuple[str, str]]:
    """Returns the last part of a module and the name, of all that a Mojo file imports by name."""
    found = set()
    for module, names in IMPORT.findall(text):
        for name in re.sub(r"#.*", "", names).strip("()\n ,").split(","):
            found.add((module.rpartition(".")[2], name.split(" as ")[-1].strip()))
    return found


def test_mojo_files_use_what_they_import():
    tracked = (path for path in tracked_files() if path.suffix == ".mojo")
    code = {path: DOCSTRING.sub("", path.read_text()) for path in tracked}
    handed_on = set().union(*map(names_imported, code.values()))
    for path, text in code.items():
        used = set(re.findall(r"\w+", re.sub(r"#.*", "", IMPORT.sub("", text))))
        idle = {name for _, name in names_imported(text)} - used
        idle -= {name for name in idle if (path.stem, name) in handed_on}
        assert path.stem == "__init__" or not idle, f"{path.relative_to(ROOT)}: {sorted(idle)}"


def test_mojo_imports_point_one_way():
    graph = {path: mojo_imports(path) - {path} for path in MOJO_FILES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MOJO_FILES)


# Rooms that are alike have these in common: one idea, in the form of each.
OF_ALIKE_ROOMS = {
    "Choice", "EncodedBlock", "Explanation", "Family", "GatedRows", "NormedRows", "Plan", "Result",
    "Ring", "RotatedRows", "RowMaker", "Target", "TileOfC", "TileScheduler",
}  # fmt: skip


def test_the_name_of_a_type_means_one_thing():
    homes = defaultdict(set)
    for path in MOJO_FILES:
        for name in re.findall(r"^(?:struct|trait) (\w+)", path.read_text(), re.MULTILINE):
            homes[name].add(path)
    several = {name for name, paths in homes.items() if len(paths) > 1}
    assert several == OF_ALIKE_ROOMS


def test_folders_of_mojo_form_no_circle():
    """What one folder needs of another never needs that folder again: each can be read by itself.

    A file that lies beside folders stands for itself.
    """
    graph = defaultdict(set)
    for path in MOJO_FILES:
        if path.name != "__init__.mojo":
            near, *far = (node_of(file) for file in (path, *mojo_imports(path)))
            graph[near] |= set(far) - {near}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def node_of(path: Path) -> str:
    """Returns the folder of a file inside a room's folder; otherwise the file itself."""
    inside = path.relative_to(HOUSE)
    return str(inside.parent if len(inside.parts) > 2 else inside)


def test_a_room_imports_neither_the_entries_nor_another_room():
    entries = {path for path in MOJO_FILES if is_entry(path)}
    assert "bindings" in {room_of(path) for path in entries}
    for path in set(MOJO_FILES) - entries:
        room = room_of(path)
        allowed = {"", room, BUILDS_ON.get(room, ""), *SHARED}
        for target in mojo_imports(path):
            assert target not in entries, f"{path} imports {target}, which stands above the rooms"
            assert room_of(target) in allowed, f"{path} imports {target}, of another room"


def test_cdna4_decides_without_a_kernel_and_kernels_know_nothing_of_what_decides():
    """Editing a kernel leaves what explains as it is; editing what is decided, every kernel."""
    room = HOUSE / "cdna4"
    host, launchers = set((room / "host").glob("*.mojo")), set(room.rglob("dispatch.mojo"))
    for path in host | {*room.rglob("*shape.mojo")}:
        reached = {ROOT / name for name in builds.Sources.of(path, [ROOT]).files}
        assert not {file for file in reached if file.parent == room / "instructions"}, path
    for path in set(room.rglob("*.mojo")) - host - launchers:
        assert not mojo_imports(path) & host, path


def test_nothing_with_a_kernel_of_cdna4_changes_with_a_cost():
    """What is compiled for HIP, tests and the bench is told a plan; MAX's ops choose themselves."""
    bench, programs = ROOT / "bench" / "simulated", ROOT / "tests" / "cdna4" / "programs"
    entries = [*(HOUSE / "cdna4").rglob("dispatch.mojo"), *(HOUSE / "bindings").glob("hip*.mojo")]
    entries += [*bench.glob("*.mojo"), *programs.glob("*.mojo")]
    decides = {f"mojo_kernels/cdna4/host/{name}.mojo" for name in ("choices", "costs", "explain")}
    assert decides <= builds.Sources.of(HOUSE / "bindings" / "plans.mojo", [ROOT]).files.keys()
    for entry in entries:
        home = ROOT if entry.is_relative_to(HOUSE) else entry.parent
        assert not decides & builds.Sources.of(entry, [home, bench, ROOT]).files.keys(), entry


def python_imports(path: Path) -> set[str]:
    """Returns the top-level names that a Python file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


ALLOWED = {"__future__", "dataclasses", "decimal", "fractions", "numpy"}


def test_the_oracle_needs_numpy_alone():
    """Beside Python's own dataclasses and exact numbers."""
    for path in (ROOT / "tests" / "oracle").glob("*.py"):
        assert python_imports(path) <= ALLOWED, path


def test_the_simulator_knows_nothing_of_our_operations():
    for path in (ROOT / "python" / "gfx950").rglob("*.py"):
        assert not python_imports(path) & {"mx_kernels", "torch", "max", "mojo", "oracle"}, path


def test_only_the_room_of_instructions_names_amd_intrinsics():
    home = HOUSE / "cdna4" / "instructions"
    named = {path for path in MOJO_FILES if "llvm.amdgcn" in path.read_text()}
    assert {path.parent for path in named} == {home}


# Snapshots of GPU code

KERNEL = """.version 8.6
.target sm_90a
.visible .entry gemm_0123456789(.param .u64 gemm_0123456789_param_0) {
    ld.param.u64 %rd1, [gemm_0123456789_param_0];  // where
    $L__BB0_1:
    add.s64 %rd2, %rd1, %rd1;
    add.s32 %r7, %r8, %r7;
    bra.uni $L__BB0_1;
}
"""


def of_ptx(text: str) -> list[str]:
    """Returns the digest of each kernel of a module that has `text` in it."""
    return [code for _, code in snapshot.kernels_of_ptx(b"\x7fELF\0" + text.encode() + b"\0end")]


def test_a_snapshot_sees_code_and_no_names():
    for before, after in (
        ("gemm_0123456789", "gemm_of_another_name_abcdef0123"),
        ("$L__BB0_1", "$L__BB7_99"),
        ("%rd2", "%rd12"),
        ("%r7", "%r70"),
        ("  // where", ""),
    ):
        assert of_ptx(KERNEL) == of_ptx(KERNEL.replace(before, after)), before
    for before, after in (
        ("%rd1, %rd1;", "%rd1, %rd2;"),
        ("%r8, %r7", "%r7, %r8"),
        ("add.s32", "sub.s32"),
        (".u64 gemm_0123456789_param_0)", ".u32 gemm_0123456789_param_0)"),
        ("sm_90a", "sm_80"),
    ):
        assert of_ptx(KERNEL) != of_ptx(KERNEL.replace(before, after)), before


def test_a_snapshot_lists_what_one_side_alone_has():
    before = {"ptx/a": {"1": "same", "2": "old"}, "ptx/b": {"3": "gone"}}
    after = {"ptx/a": {"1": "renamed", "4": "new"}}
    assert snapshot.difference(before, after) == ["- ptx/a old", "+ ptx/a new", "- ptx/b gone"]
    assert snapshot.difference(before, before) == []


# Files


def test_no_tracked_file_names_a_machine_or_a_registry():
    hosts = r"pypi\.(?:org|python)|python(?:hosted)\.org|download\.(?:pytorch)|extra-(?:index)-url"
    pattern = re.compile(rf"/(?:root|home|opt|work|workspace)/|{hosts}|https?://(?:\d+\.){{3}}\d+")
    for path in tracked_files():
        if path.suffix not in {".png", ".npz", ".gz"}:
            found = pattern.search(path.read_text())
            assert not found, f"{path.relative_to(ROOT)} names {found.group()}"


# Words of this house for what the field has a word for, see CONTRIBUTING.md.
OUR_OWN_WORDS = (
    "crew", "crews", "filler", "fillers", "handover", "meeting", "meetings", "ticket", "tickets",
)  # fmt: skip


def test_kernels_are_written_in_the_words_of_the_field():
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(OUR_OWN_WORDS)})(?![a-z])", re.IGNORECASE)
    for path in MOJO_FILES:
        found = pattern.search(path.read_text())
        assert not found, f"{path.relative_to(ROOT)} says {found.group()}"


def test_no_source_file_is_too_long():
    for path in tracked_files():
        if path.suffix in {".py", ".mojo"}:
            lines = len(path.read_text().splitlines())
            assert lines <= LONGEST_FILE, f"{path.relative_to(ROOT)} has {lines} lines"


@pytest.mark.parametrize("folder", LINE_BUDGET)
def test_a_package_stays_within_its_lines(folder):
    inside = (path for path in tracked_files() if path.is_relative_to(ROOT / folder))
    lines = sum(len(p.read_text().splitlines()) for p in inside if p.suffix in {".py", ".mojo"})
    assert lines <= LINE_BUDGET[folder]


# Run on a lent GPU, `scripts/gpu_host.sh`, on a processor that was measured, or where other
# people's kernels or an emulator are at hand. They say that they are skipped, and why.
NEED_MORE_THAN_THIS = {
    *("test_cuda.py", "test_cuda_fp8.py", "test_cuda_bytes.py", "test_cuda_experts.py"),
    *("test_cuda_nvfp4.py", "test_cuda_ranks.py", "test_limits.py"),
    *("test_cuda_tiles.py", "test_aiter.py", "test_emulated.py"),
}


SKIPS = {
    path: 1
    for path in ("tests/conftest.py", "tests/artefacts/__init__.py", "tests/house/test_project.py")
}
"""What a run of limited time leaves, and what says so."""


def test_nothing_else_is_skipped_or_expected_to_fail():
    banned = re.compile(r"pytest\.(?:skip|xfail|importor)|mark\.(?:skip|xfail)|unittest\.(?:skip)")
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name in NEED_MORE_THAN_THIS:
            continue
        found = banned.findall(path.read_text())
        allowed = SKIPS.get(path.relative_to(ROOT).as_posix(), 0)
        assert len(found) == allowed, f"{path.relative_to(ROOT)} uses {found}"
