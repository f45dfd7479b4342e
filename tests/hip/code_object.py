"""Finds code objects where HIP modules keep them: in a shared library, and at an address."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from gfx950.isa.code_object import HEADER_BYTES, CodeObject, code_objects, size_of

START = re.compile(rb"\x7fELF\x02\x01\x01\x40")
"""Of an ELF file for HSA, 64 bits, little-endian."""


def loaded(image: bytes) -> CodeObject:
    """Returns the kernel of a file that must have one."""
    [code] = code_objects(image)
    return code


def at(address: int) -> CodeObject:
    """Reads the file that begins at an address."""
    size = size_of(ctypes.string_at(address, HEADER_BYTES))
    return loaded(ctypes.string_at(address, size))


def embedded_in(module: Path) -> list[CodeObject]:
    """Returns the code objects that are part of a shared library."""
    content, found = module.read_bytes(), []
    for match in START.finditer(content):
        size = size_of(content[match.start() :][:HEADER_BYTES])
        found.append(loaded(content[match.start() :][:size]))
    return found
