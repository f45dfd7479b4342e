"""Old names, which work as before with a DeprecationWarning that says the new one.

Of modules, both paths are one, so that classes, pickles and `isinstance` do not tell them apart.
Of arguments, `renamed` takes the old one where a function is called.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

MOVED = {
    "mx_kernels.distributed": "mx_kernels.integrations.distributed",
    "mx_kernels.experts_module": "mx_kernels.experts",
    "mx_kernels.torch_ops": "mx_kernels._core.torch_ops",
    "mx_kernels.transformers": "mx_kernels.integrations.transformers",
    "mx_kernels.vllm": "mx_kernels.integrations.vllm",
    # Private, but programs that look into builds and launches import them.
    "mx_kernels._builds": "mx_kernels._core.builds",
    "mx_kernels._cuda": "mx_kernels._core.cuda",
    "mx_kernels._facts": "mx_kernels._core.facts",
    "mx_kernels._levels": "mx_kernels._core.levels",
    "mx_kernels._native": "mx_kernels._core.native",
    "mx_kernels._parts": "mx_kernels._core.native",
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a moved module, or one below it, where it is now."""

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        """Returns the spec of an old path, None for any other."""
        old = ".".join(fullname.split(".", 2)[:2])
        if old not in MOVED:
            return None
        new = MOVED[old] + fullname.removeprefix(old)
        return ModuleSpec(fullname, self, loader_state={"new": new})

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports the module by its new path."""
        new = spec.loader_state["new"]
        if spec.name in MOVED:
            message = f"{spec.name} has moved to {new}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        # The import system is about to write the old one.
        spec.loader_state["spec"] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back; it has run."""
        module.__spec__ = module.__spec__.loader_state["spec"]


def find_moved() -> None:
    """Lets old paths be imported; before all else, which would find a second copy."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


Function = TypeVar("Function", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[Function], Function]:
    """Lets a function be called with old names of arguments, which warn; NEW of each OLD=NEW.

    >>> @renamed(colour="color")
    ... def paint(*, color): return color
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args, **kwargs):
            for old, new in names.items():
                if old in kwargs:
                    what = f"{function.__qualname__}: {old} is {new} now"
                    if new in kwargs:
                        raise TypeError(f"{what}; got both, expected {new} alone")
                    warnings.warn(what, DeprecationWarning, stacklevel=2)
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(Function, call)

    return decorate
