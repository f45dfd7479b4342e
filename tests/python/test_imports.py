"""The modules of the package import one another in one direction, wherever the import stands."""

import ast
import importlib
import pickle
import sys
import warnings
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

from mx_kernels._core.moved import MOVED

PACKAGE = Path(__file__).parents[2] / "python" / "mx_kernels"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports(path: Path) -> set[str]:
    """Returns the modules of the package that a file imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports relatively"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else node.module)
    return found & set(MODULES) - {PACKAGE.name}


def test_there_is_no_circle():
    graph = {name: imports(path) for name, path in MODULES.items()}
    assert "mx_kernels._core.facts" in graph["mx_kernels._core.calls"], "the walk finds nothing"
    assert "mx_kernels.checkpoints" in graph["mx_kernels"], "the walk finds no packages"
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def test_models_are_converted_without_importing_what_they_are_made_of():
    for name, path in MODULES.items():
        if "conversion" in name or name in ("mx_kernels.modules", "mx_kernels.experts"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            names = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
            names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
            assert not {"transformers", "peft"} & {found.split(".")[0] for found in names}, name
    assert "mx_kernels.conversion.layers" in MODULES, "the walk finds no conversion"


def test_transformers_is_imported_for_its_own_package_alone():
    importing = set()
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            if any("transformers" in found.split(".")[:3] for found in names):
                importing.add(name.removeprefix("mx_kernels.integrations."))
    assert importing >= {"transformers", "transformers.config", "transformers.quantizer"}
    assert all(name.split(".")[0] == "transformers" for name in importing)


# Old paths

OLD_PATHS = {
    "mx_kernels.experts_module": "MXExperts",
    "mx_kernels.torch_ops": "weights_of",
    "mx_kernels.transformers": "MXConfig",
    "mx_kernels.transformers.config": "MXConfig",
    "mx_kernels.vllm": "register",
    "mx_kernels.distributed": "Colwise",
    "mx_kernels.distributed.cuts": "sizes",
    "mx_kernels._builds": "Build",
    "mx_kernels._cuda": "Cuda",
    "mx_kernels._facts": "Format",
    "mx_kernels._levels": "pick",
    "mx_kernels._native": "gpu_plans",
    "mx_kernels._parts": "Extension",
}


def imported(path: str) -> tuple[ModuleType, list[str]]:
    """Imports a module; returns it, and what was said of its path."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = importlib.import_module(path)
    return module, [str(w.message) for w in said if "mx_kernels" in str(w.message)]


def test_an_old_path_is_the_new_module_and_says_so_once():
    assert {".".join(path.split(".")[:2]) for path in OLD_PATHS} == set(MOVED)
    for path in OLD_PATHS.keys() & sys.modules.keys():  # Another test has asked for it.
        del sys.modules[path]
    for path, name in OLD_PATHS.items():
        old = ".".join(path.split(".")[:2])
        said = imported(old)[1]
        assert said == ([f"{old} has moved to {MOVED[old]}"] if old == path else []), path
        new = path.replace(old, MOVED[old])
        assert imported(path) == imported(new), path
        module = imported(path)[0]
        assert module.__spec__.name == module.__name__ == new
        assert getattr(module, name) is pickle.loads(f"c{path}\n{name}\n.".encode())
