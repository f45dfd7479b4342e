"""A wheel works where there is nothing else of ours: installed, and in an image without a compiler.

Environments are made with what pip puts there for the wheel alone. The libraries that it needs are
links to those of this environment, so that nothing is fetched.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import mx_kernels as mx
from mx_kernels._core import builds, levels, native

ROOT = Path(__file__).resolve().parents[2]
COMPILER = re.compile(r"(max|mojo|mblack|modular)([_-].*|\.pth)?$")
"""What pip installs for Mojo and MAX."""
OURS = re.compile(r".*mx_kernels.*|.*\.pth$")
SETUP = runpy.run_path(str(ROOT / "setup.py"))
ADDRESS = "https://host.example/someone/mx_kernels"


@pytest.fixture(scope="module")
def wheel_of(tmp_path_factory) -> Callable[[str], Path]:
    """Builds the wheel with an address of the repository, or none; each once."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source / name)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    server, _, repository = ADDRESS.rpartition("/someone/")
    known = {"GITHUB_SERVER_URL": server, "GITHUB_REPOSITORY": f"someone/{repository}"}

    @cache
    def build(address: str) -> Path:
        place = tmp_path_factory.mktemp("wheel")
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "-w", place, "."]
        environment = plain | (known | {"GITHUB_REF_NAME": "v9"} if address else {})
        run("-m", "pip", "wheel", *options, folder=source, environment=environment)
        (wheel,) = place.glob("*.whl")
        return wheel

    return build


def run(*words, folder: Path, environment: dict[str, str], python: str = sys.executable) -> str:
    """Runs Python and returns what it prints."""
    done = subprocess.run(
        [python, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def environment_of(folder: Path, wheel: Path, hidden: re.Pattern) -> str:
    """Makes an environment that has a wheel, and what this one has but for some names.

    Returns:
        Its Python.
    """
    venv.create(folder / "venv")
    python = str(folder / "venv" / "bin" / "python")
    words = "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel
    run("-m", "pip", *words, folder=folder, environment=dict(os.environ))
    theirs = folder / "theirs"
    theirs.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not OURS.fullmatch(path.name) and not hidden.fullmatch(path.name):
            (theirs / path.name).symlink_to(path)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "theirs.pth").write_text(f"{theirs}\n")
    return python


def bare(**more: str) -> dict[str, str]:
    """Returns an environment without variables of ours or Python's."""
    kept = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    return kept | more


@pytest.mark.deep
@pytest.mark.compiles
@pytest.mark.parametrize("address", [ADDRESS, ""])
def test_an_installed_wheel_does_what_its_readme_says(wheel_of, tmp_path, address):
    python = environment_of(tmp_path, wheel_of(address), re.compile("(?!)"))
    here = bare(PATH=os.environ["PATH"], MX_KERNELS_CACHE=str(builds.cache_folder()))
    words = [ROOT / "tests" / "house" / "installed.py", *([address] if address else [])]
    assert run(*words, folder=tmp_path, environment=here, python=python).endswith("README says\n")


WITHOUT_COMPILER = """
import runpy, sys
import torch
import mx_kernels as mx
from mx_kernels._core import builds

assert not builds.has_compiler()
x, w = torch.load("operands.pt")
torch.save([mx.linear(x, mx.quantize(w)), str(mx.explain(16, 64, 64, device="gfx950"))], "found.pt")
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*sorted(path for path in mapped if "modular" in path or "cache" in path), sep="\\n")
sys.argv = ["mx_kernels", "doctor"]
runpy.run_module("mx_kernels", run_name="__main__")
"""


def test_a_copy_of_the_cache_serves_an_image_without_compiler_and_linker(wheel_of, tmp_path):
    modules = [native.find_or_build(extension=make()) for make in MADE]
    kept = tmp_path / "cache"
    for folder in [*(path.parent for path in modules), native.keep_runtime(modules)]:
        shutil.copytree(folder, kept / folder.name)
    python = environment_of(tmp_path, wheel_of(""), COMPILER)
    here = bare(PATH=str(tmp_path / "empty"), MX_KERNELS_CACHE=str(kept))
    before = sorted(kept.rglob("*"))

    x, w = torch.randn(3, 64, dtype=torch.bfloat16), torch.randn(32, 64)
    torch.save([x, w], tmp_path / "operands.pt")
    said = run("-c", WITHOUT_COMPILER, folder=tmp_path, environment=here, python=python)
    y, explained = torch.load(tmp_path / "found.pt")
    assert torch.equal(y, mx.linear(x, mx.quantize(w)))
    assert explained == str(mx.explain(16, 64, 64, device="gfx950"))
    expected = {str(kept / path.parent.name / path.name) for path in modules}
    assert expected < {path for path in said.split() if path.startswith(str(kept))}
    assert "modular" not in said, "a library of Mojo's package"
    assert "none: kernels have to be built" in said and str(kept / modules[0].parent.name) in said
    assert sorted(kept.rglob("*")) == before, "something was written"

    shutil.rmtree(kept / modules[0].parent.name)
    words = [python, "-m", "mx_kernels", "doctor"]
    done = subprocess.run(
        words, cwd=tmp_path, env=here, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 1
    for word in ("compiler is not installed", modules[0].name, modules[1].parent.name, "--level"):
        assert word in done.stderr


def test_the_dockerfile_installs_what_we_require_but_for_the_compiler():
    page = (ROOT / "docs" / "pages" / "install.md").read_text()
    (dockerfile,) = re.findall(r"^```dockerfile\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    build, last = dockerfile.split("\n\n")
    named = set(re.findall(r'"([^"]*)"', last))
    text = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)[1]
    needed = set(re.findall(r'^    "(.*)",$', needed, re.MULTILINE))
    assert needed - named == {one for one in needed if one.startswith(("max=", "mojo="))}
    assert named < needed
    known = {level.name for level in levels.LEVELS}
    assert set(re.findall(r"--level (\S+)", build)) < known
    assert build.splitlines()[0].removesuffix(" AS build") == last.splitlines()[0]


MADE = native.cpu_extension, native.plans_extension


def test_links_of_the_readme_are_absolute_or_words():
    text = "![a b](x/y.png)\n[`c`](d.md), [e](https://f.example), [g](#h), x[:, 1](z)\n"
    known = SETUP["readme_of"](text, ADDRESS, "v9")
    assert known == (
        f"![a b]({ADDRESS}/raw/v9/x/y.png)\n[`c`]({ADDRESS}/blob/v9/d.md), [e](https://f.example), "
        f"[g](#h), x[:, 1]({ADDRESS}/blob/v9/z)\n"
    )
    plain = SETUP["readme_of"](text, "", "v9")
    assert plain.startswith("\n`c`, [e](https://f.example), [g](#h)")
    assert SETUP["readme_of"]('pip install "a[b] @ git+ADDRESS"  # words\n', "", "") == (
        'pip install "a[b]"\n'
    )
    names = {"GITHUB_SERVER_URL": "https://host.example", "GITHUB_REPOSITORY": "a/b"}
    assert SETUP["address_of"](names) == "https://host.example/a/b"
    assert SETUP["address_of"]({"GITHUB_SERVER_URL": "https://host.example"}) == ""
