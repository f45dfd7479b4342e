"""Claims about `python -m mx_kernels`: what a user types, what they get, and how errors read."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import mx_kernels as mx
from mx_kernels._core import builds, levels, native
from mx_kernels.cli import VARIABLES, app

VARIABLE = re.compile(r"MX_KERNELS_[A-Z_]+[A-Z]")


def command(*arguments, code=0):
    """Runs the command line in this process and returns what it printed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_a_missing_library_gets_one_sentence(library, monkeypatch):
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "mx_kernels.cli")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("mx_kernels")
    assert ended.value.code == (
        f"python -m mx_kernels needs {library}: pip install 'mx_kernels[cli]'"
    )


def test_doctor_says_what_is_here():
    text = command("doctor")
    for word in (mx.__version__, torch.__version__, levels.pick().name, builds.cache_folder()):
        assert str(word) in text


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("MX_KERNELS_CPU", "avx9", "MX_KERNELS_CPU must be one of avx512_bf16, "),
        ("MX_KERNELS_CACHE", "/proc/cache", "wrong: cannot write /proc; set MX_KERNELS_CACHE to"),
        ("MX_KERNELS_CACHES", "/tmp", "MX_KERNELS_CACHES is set, which nothing reads; expected "),
        ("MX_KERNELS_NATIVE", "/none.so", "MX_KERNELS_NATIVE=/none.so: got "),
        ("PATH", "/none", "wrong: no C linker on PATH; expected cc or gcc or clang"),
    ],
)
def test_doctor_names_what_is_wrong(monkeypatch, variable, value, sentence):
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != Path("/proc"))
    monkeypatch.setenv(variable, value)
    assert sentence in command("doctor", code=1)


def test_every_variable_of_ours_is_known_and_on_a_page():
    package = Path(mx.__file__).parent
    named = {name for path in package.rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    page = (package.parents[1] / "docs" / "pages" / "install.md").read_text()
    assert named == set(VARIABLES) == set(re.findall(r"^\| `(MX_KERNELS_\w+)`", page, re.MULTILINE))


def test_build_prints_the_paths_of_the_modules_that_are_used():
    paths = [native.find_or_build(), native.find_or_build(extension=native.plans_extension())]
    paths.append(native.keep_runtime(paths))
    assert command("build").split() == list(map(str, paths))
    assert command("build", "--level", levels.pick().name).split() == list(map(str, paths))


def test_build_refuses_what_it_does_not_know():
    assert "error: --level: got 'avx9', expected avx512_bf16 or" in command(
        "build", "--level", "avx9", code=2
    )
    assert "error: --arch: got 'h100', expected sm_90a" in command(
        "build", "--arch", "h100", code=2
    )


def test_explain_says_what_the_function_says():
    text = command("explain", 16, 2112, 7168, "--device", "gfx950")
    assert text.strip() == str(mx.explain(16, 2112, 7168, device="gfx950"))
    text = command("explain", 1, 64, 64, "--activations", "bf16", "--format", "mxfp8")
    assert text.strip() == str(mx.explain(1, 64, 64, activations="bf16", format="mxfp8"))
    layer = "--op", "moe", "--experts", 8, "--slots", 2, "--device", "gfx950"
    found = mx.explain(4, 64, 96, op=mx.moe, experts=8, slots=2, device="gfx950")
    assert command("explain", 4, 64, 96, *layer).strip() == str(found)
    assert "error: device: got 'tpu'" in command("explain", 1, 2, 32, "--device", "tpu", code=2)


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_examples_are_listed_copied_and_run(tmp_path):
    text, stems = command("examples"), {path.stem for path in EXAMPLES.glob("*.py")}
    assert {line.split()[0] for line in text.splitlines()[:-2]} == stems
    assert f"in {EXAMPLES};" in text
    command("examples", "--copy", tmp_path / "all")
    files = {path.name: path.read_bytes() for path in EXAMPLES.iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()} == files
    command("examples", "gfx950_kernel", "--copy", tmp_path / "one")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "gfx950_kernel.py", "gfx950_kernel.mojo",
    }  # fmt: skip
    assert "File exists" in command("examples", "--copy", tmp_path / "one", code=2)
    assert "error: NAME: got 'none', expected calibrate, " in command("examples", "none", code=2)


def test_an_example_gets_the_arguments_behind_its_name_and_gives_its_exit_code(monkeypatch):
    ran = []

    def run(words, check):
        ran.append(words[1:])
        return subprocess.CompletedProcess(words, 3)

    monkeypatch.setattr("mx_kernels.cli.subprocess.run", run)
    command("examples", "gpt_oss", "FOLDER", "--ids", "5 70", code=3)
    command("examples", "two_ranks", code=3)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert ran == [
        [str(EXAMPLES / "gpt_oss.py"), "FOLDER", "--ids", "5 70"],
        [*launcher, str(EXAMPLES / "two_ranks.py")],
    ]
