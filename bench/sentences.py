"""Real sentences for the encoder: the prose of this very repository.

They come from its documents, from the docstrings of its Python files and from
the docstrings of its Mojo files. Of all sentences those with the smallest hash
are taken, so that the choice is the same everywhere and an edit to one document
changes few of them.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CODE_FOLDERS = ("python", "mojo_kernels", "tests", "bench")
MIN_WORDS, MAX_WORDS = 6, 40
COUNT = 300

_MOJO_DOCSTRING = re.compile(r'^\s*"""(.*?)"""', re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*])")
_PROSE = re.compile(r"[A-Z][\w ,;:'`()/*.%-]*[.!?]")


def repository_sentences(repository: Path, count: int = COUNT) -> list[str]:
    """Returns up to `count` distinct sentences, in an order that only they decide."""
    found = {
        sentence for text in _texts(repository) for sentence in split_sentences(text)
    }  # fmt: skip
    return sorted(found, key=lambda s: hashlib.sha256(s.encode()).digest())[:count]


def split_sentences(text: str) -> Iterator[str]:
    """Yields the sentences of running text; headings, tables, lists and code are no prose."""
    text = _FENCE.sub("", _COMMENT.sub("", text))
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.strip().splitlines()
        if any(_is_not_prose(line) for line in lines):
            continue
        for sentence in _SENTENCE_END.split(" ".join(line.strip() for line in lines)):
            words = len(sentence.split())
            if MIN_WORDS <= words <= MAX_WORDS and _PROSE.fullmatch(sentence):
                yield sentence


def _is_not_prose(line: str) -> bool:
    """Whether a line belongs to a heading, table, list, diagram or doctest."""
    inside = line.strip()
    return inside.startswith(("#", "|", "-", "* ", ">", "+")) or "   " in inside


def _texts(repository: Path) -> Iterator[str]:
    for name in DOCUMENTS:
        if (repository / name).exists():
            yield (repository / name).read_text()
    for path in sorted((repository / "docs").rglob("*.md")):
        yield path.read_text()
    for folder in CODE_FOLDERS:
        for path in sorted((repository / folder).rglob("*.py")):
            yield from _python_docstrings(path.read_text())
        for path in sorted((repository / folder).rglob("*.mojo")):
            yield from _MOJO_DOCSTRING.findall(path.read_text())


def _python_docstrings(source: str) -> Iterator[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield docstring
