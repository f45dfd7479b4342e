"""The extension modules that say what a CUDA device would be told, one for each architecture."""

from mx_kernels._core import levels
from mx_kernels._core.native import Extension

ARCHITECTURES = ("sm_90a", "sm_80")
"""Hopper, and one that has the portable kernels alone."""


def extension(architecture: str) -> Extension:
    """Returns the module of an architecture."""
    name, source = "_mx_kernels_ptx", "bindings/ptx.mojo"
    return Extension(name, source, "", levels.pick(), architecture)
