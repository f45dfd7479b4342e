"""Every sentence that an error, a refusal or a warning of ours can say, by what one was doing.

Sentences are read from the sources: the text that is raised, with "..." for what varies. So the
page has all of them, and a search for the words of one finds the group that says what to do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUPS = {
    "build": (
        "mx_kernels/_core/builds",
        "mx_kernels/_core/native",
        "mx_kernels/_core/levels",
        "mx_kernels/_core/trust",
        "mx_kernels/__",
        "mx_kernels/cli",
    ),
    "devices": (
        "mx_kernels/_core/cuda",
        "mx_kernels/_core/hip",
        "mx_kernels/_core/devices",
        "mojo_kernels/cdna4",
        "mojo_kernels/hopper",
        "mojo_kernels/launch",
        "mojo_kernels/simt",
    ),
    "checkpoints": ("mx_kernels/checkpoints",),
    "models": ("mx_kernels/conversion", "mx_kernels/fused"),
    "libraries": (
        "mx_kernels/integrations/transformers",
        "mx_kernels/integrations/torchao",
        "mx_kernels/integrations/offload",
    ),
    "ranks": ("mx_kernels/integrations/distributed", "mx_kernels/integrations/torch_distributed"),
    "vllm": ("mx_kernels/integrations/vllm",),
    "max": (
        "mx_kernels/max_",
        "mx_kernels/integrations/max_pipelines",
        "mojo_kernels/bindings/max_",
    ),
    "simulator": ("gfx950",),
    "tensors": ("mx_kernels", "mojo_kernels"),
}
"""Sources whose sentences a group has; the first that fits has a file."""
SAID = re.compile(r"\w*(Error|Fault|Read|UnknownInstruction|Warning)|warn|warning")
"""What is called with a sentence: errors, also where they are returned, and warnings."""
NAMED = {"cause", "remedy"}
"""Variables that become a part of a sentence."""
VARIES = "..."


def group_of(path: str) -> str:
    """Returns the group that has a file's sentences."""
    return next(name for name, starts in GROUPS.items() if path.startswith(starts))


@cache
def sentences() -> dict[str, list[str]]:
    """Returns the sentences of each group, each once."""
    found: dict[str, dict[str, None]] = {name: {} for name in GROUPS}
    python = ROOT / "python"
    trees = {path: ast.parse(path.read_text()) for path in sorted(python.rglob("*.py"))}
    calls = [call for tree in trees.values() for call in _said_by(tree)]
    writers = {
        ast.unparse(argument.func)
        for call in calls
        for argument in call.args
        if isinstance(argument, ast.Call)
    }
    for path, tree in trees.items():
        said = found[group_of(path.relative_to(python).as_posix())]
        said |= dict.fromkeys(_of_python(tree, writers))
    for path in sorted((ROOT / "mojo_kernels").rglob("*.mojo")):
        said = found[group_of(path.relative_to(ROOT).as_posix())]
        said |= dict.fromkeys(_of_mojo(path.read_text()))
    return {name: sorted(filter(None, said)) for name, said in found.items()}


def _said_by(tree: ast.AST) -> Iterator[ast.Call]:
    """Yields the calls that make an error or a warning."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.Call) and SAID.fullmatch(
            ast.unparse(node.func).rpartition(".")[2]
        ):
            yield node


def _of_python(tree: ast.AST, writers: set[str]) -> Iterator[str]:
    """Yields what a module raises or warns of.

    Args:
        tree: the module.
        writers: functions that return the sentence of an error.
    """
    texts = [" ".join(filter(None, map(_text, call.args))) for call in _said_by(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in NAMED:
            texts.append(_text(node.value))
        elif isinstance(node, ast.FunctionDef):
            is_writer = node.name in writers
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value:
                    branches = [inner.value]
                    if isinstance(inner.value, ast.IfExp):
                        branches = [inner.value.body, inner.value.orelse]
                    found = map(_text, branches)
                    texts += [one for one in found if is_writer or one.startswith("got ")]
    # Fewer words are put into another sentence.
    yield from (_shown(text) for text in texts if len(text.split()) > 2)


def _text(node: ast.expr) -> str:
    """Returns a string of the source; what is put into it varies."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(map(_text, parts))
        case ast.FormattedValue():
            return VARIES
        case ast.BinOp(left, ast.Add(), right):
            return (_text(left) or VARIES) + (_text(right) or VARIES)
    return ""


def _of_mojo(source: str) -> Iterator[str]:
    """Yields what a Mojo file raises."""
    for begin in re.finditer(r"raise Error\(", source):
        # Strings and what is between them, to the closing parenthesis.
        depth, text = 1, ""
        for string, other in re.findall(r't?"([^"]*)"|([^"])', source[begin.end() :]):
            depth += {"(": 1, ")": -1}.get(other, 0)
            if not depth:
                break
            text += string or VARIES * other.isalnum()
        text = re.sub(r"\{[^}]*\}", VARIES, text.removeprefix(VARIES * len("String")))
        if len(text.split()) > 2:
            yield _shown(text)


def _shown(text: str) -> str:
    """Returns a sentence in one line, where what varies is one "..."."""
    return re.sub(r"(\.\.\.)+", VARIES, " ".join(text.split()))


def listed(group: str) -> str:
    """Returns the sentences of a group as Markdown that is folded away."""
    lines = [f"    * ``` {sentence} ```" for sentence in sentences()[group]]
    return "\n".join([f'??? note "All {len(lines)} sentences"', "", *lines])


TEXTS = {f"errors_{name}": partial(listed, name) for name in GROUPS}
