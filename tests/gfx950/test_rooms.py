"""The rooms of the simulator import one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gfx950

ROOMS = ("isa", "memory", "proof", "machine", "timing", "cli")
"""Each may import itself and those before it."""
ROOT = Path(gfx950.__file__).parent


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("gfx950.")}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_those_before_it(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in (ROOT / room).glob("*.py"):
        assert imported_rooms(path) <= allowed, path.relative_to(ROOT)


def test_every_room_is_listed():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(ROOMS)
