"""The modules of the package import one another in one direction, wherever the import stands."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "mx_kernels"
MODULES = {path.stem: path for path in PACKAGE.glob("*.py")}


def imports(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("mx_kernels.")}
    return found & set(MODULES)


def test_there_is_no_circle():
    graph = {name: imports(path) for name, path in MODULES.items()}
    assert "_facts" in graph["_calls"] and "tensor" in graph["ops"], "the walk finds nothing"
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)
