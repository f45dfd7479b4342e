"""The module of this CPU in parts: what the first calls need is compiled, and no more.

    everything but products      at the first call of all
    products of a kernel with    when one is computed; those of small integers with MXFP4 weights,
    weights of a format          which most programs want, beside the part above on another core

`python -m mx_kernels build` compiles the whole module, which is taken where it is there. The
numbers of kernels are those of `cpu/dispatch.mojo`; the formats', of the table.
"""

from __future__ import annotations

import os
import threading
from types import ModuleType

from mx_kernels._core.builds import NativeBuildError
from mx_kernels._core.native import Extension, LoadLock, cpu_extension, load_extension

BASE = ("KERNEL=0",)
FIRST_PRODUCTS = ("KERNEL=1", "RIGHT=0")
_KIND, _LEFT, _RIGHT, _RIGHT_OF_DOWN = 0, 5, 9, 18
"""Where a call says what its left side is, its format, that of the weights, that of others."""


def find_or_load() -> ModuleType | Parts:
    """Returns the whole module if it has been built, else what loads its parts.

    Raises:
        NativeBuildError: if the compiler or the linker is missing or fails.
    """
    whole = cpu_extension()
    if os.environ.get(whole.variable):
        return load_extension(whole)
    if (build := whole.build()).is_there():
        return load_extension(whole, build)
    base, products = (cpu_extension(defines=parts) for parts in (BASE, FIRST_PRODUCTS))
    build, has_another_core = base.build(), len(os.sched_getaffinity(0)) > 1
    if has_another_core and not (build.is_there() or products.build().is_there()):
        threading.Thread(target=_build_quietly, args=(products,)).start()
    return Parts(load_extension(base, build))


def _build_quietly(extension: Extension) -> None:
    """Compiles a part ahead of time; who needs it says why that failed."""
    try:
        extension.build().find_or_make(is_quiet=True)
    except NativeBuildError:
        return


class Parts:
    """Has the functions of the whole module."""

    def __init__(self, base: ModuleType):
        self._kernel_of = base.kernel_of
        self._products: dict[tuple[int, ...], ModuleType] = {}
        self._loaded: dict[tuple[str, ...], ModuleType] = {}
        self._lock = LoadLock()
        for name, function in vars(base).items():
            if not name.startswith("_"):
                setattr(self, name, function)

    def multiply(self, call: tuple[int, ...]) -> None:
        """Computes a product."""
        self._of(call[_KIND], call[_LEFT], call[_RIGHT]).multiply(call)

    def multiply_grouped(self, call: tuple[int, ...]) -> bool:
        """Computes a grouped product; returns whether the sizes fit."""
        return self._of(call[_KIND], call[_LEFT], call[_RIGHT]).multiply_grouped(call)

    def multiply_experts(self, call: tuple[int, ...]) -> bool:
        """Computes a layer of experts; returns whether the ids fit."""
        rights = call[_RIGHT], call[_RIGHT_OF_DOWN]
        return self._of(call[_KIND], call[_LEFT], *rights).multiply_experts(call)

    def _of(self, *codes: int) -> ModuleType:
        """Returns the part for a kind and format of the left side, and formats of weights."""
        module = self._products.get(codes)
        if module is None:
            with self._lock:
                module = self._products[codes] = self._load(*codes)
        return module

    def _load(self, kind: int, left: int, *rights: int) -> ModuleType:
        defines = ()
        if len(set(rights)) == 1:
            kernel = self._kernel_of((kind, left, rights[0]))
            defines = (f"KERNEL={kernel}", f"RIGHT={rights[0]}")
        if defines not in self._loaded:
            self._loaded[defines] = load_extension(cpu_extension(defines=defines))
        return self._loaded[defines]
