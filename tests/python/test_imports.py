"""The modules of the package import one another in one direction, wherever the import stands."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "mx_kernels"


def name_of(path: Path) -> str:
    """Returns what the package calls a file; of a folder's own file, the folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[1:] and parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imported(path: Path) -> list[str]:
    """Returns the full names that a file imports, in functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def imports(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports."""
    found = set()
    for name in imported(path):
        first, *parts = name.split(".")
        known = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        if first == "mx_kernels":
            found |= {next((module for module in known if module in MODULES), "__init__")}
    return found


def test_there_is_no_circle():
    graph = {name: imports(path) for name, path in MODULES.items()}
    assert "_facts" in graph["_calls"] and "tensor" in graph["ops"], "the walk finds nothing"
    assert "conversion.layers" in graph["conversion"]
    graph["__init__"] -= {"__init__"}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_models_are_converted_without_importing_what_they_are_made_of():
    others = {"transformers", "peft"}
    for name, path in MODULES.items():
        if name.startswith(("conversion", "experts_module", "modules")):
            assert not others & {found.split(".")[0] for found in imported(path)}, name
