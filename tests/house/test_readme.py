"""Every code block of README.md works as written.

    python            run from top to bottom in one namespace; `>>>` lines show their real output
    mojo              compiled and run, one program a block
    sh                each line is run, in a cheap form where the real one takes minutes
    text, mermaid     not code

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

from mx_kernels import _builds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BIN = Path(sys.executable).parent
NOT_CODE = {"text", "mermaid"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line where the text begins."""

    language: str
    text: str
    line: int


def blocks_of(markdown: str) -> list[Block]:
    """Returns the fenced blocks; a fence may be indented, as in a list."""
    fence = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    return [
        Block(
            match[2].strip(),
            re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE),
            markdown.count("\n", 0, match.start()) + 2,
        )
        for match in fence.finditer(markdown)
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
    _builds.program_output(file, [folder, ROOT]).find_or_make()


def commands_of(block: Block) -> list[str]:
    """Returns the command lines, without prompts, comments and shown output."""
    lines = [line.strip() for line in block.text.replace("\\\n", " ").splitlines()]
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


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
        case ["pip", "install", *_, target]:
            place, extras = re.fullmatch(r"(\.)(?:\[(.*)\])?", target).groups()
            known = pyproject["project"]["optional-dependencies"]
            assert place == "." and set((extras or "dev").split(",")) <= set(known)
        case ["python" | "mojo" | "pytest" | "ruff", *_]:
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
    assert markdown.count("```") == 2 * len(blocks), "a fence is not closed"
    run_python([block for block in blocks if block.language == "python"])
    for block in blocks:
        if block.language == "mojo":
            run_mojo(block, folder)
        elif block.language == "sh":
            for command in commands_of(block):
                if examples or "examples/" not in command:
                    run_command(command)
        else:
            assert block.language in NOT_CODE | {"python"}, f"line {block.line}: what language?"


@pytest.mark.compiles
def test_every_block_of_the_readme_works_as_written(tmp_path, monkeypatch):
    markdown = README.read_text()
    languages = {block.language for block in blocks_of(markdown)}
    assert {"python", "sh"} <= languages
    monkeypatch.chdir(tmp_path)
    run_all(markdown, tmp_path, examples=False)


@pytest.mark.deep
def test_every_example_of_the_readme_runs():
    blocks = [block for block in blocks_of(README.read_text()) if block.language == "sh"]
    commands = [command for block in blocks for command in commands_of(block)]
    examples = [command for command in commands if "examples/" in command]
    assert examples
    for command in examples:
        run_command(command)


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
    with pytest.raises((AssertionError, NameError, _builds.NativeBuildError)):
        run_all(markdown, tmp_path)
