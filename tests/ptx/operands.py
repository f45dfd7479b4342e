"""Operands of instructions: what gives their bits, for all lanes of a warp."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from tests.ptx.memory import LOCAL, Fault
from tests.ptx.scalar import BITS, LANES

NUMBER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)U?$")
ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]")

YIELD, BLOCK = "yield", "block"
"""What an instruction returns: its warp asks again later, or waits until somebody lets it go on."""


def names_in(text: str) -> list[str]:
    """Returns the operands in braces, or the only one."""
    return [name.strip() for name in text.strip("{} ").split(",")]


class Operands:
    """Names and numbers of a function; `slots` has its registers, `locals` its own memory."""

    slots: dict[str, int]
    locals: dict[str, int]
    statics: dict[str, int]
    """Where variables in shared memory begin."""
    constants: dict[str, tuple[int, np.ndarray]]
    param_places: dict[str, int]
    """Where parameters of the launch begin."""

    def value(self, text: str, kind: str = "u32") -> Callable:
        """Returns what gives the bits of an operand."""
        if text in self.slots:
            slot = self.slots[text]
            return lambda w: w.r[slot]
        if text.startswith("%"):
            return lambda w: w.special(text)
        width = int(re.sub(r"\D", "", kind) or 32)
        width = {2: 32}.get(width, width)
        constant = self.constant(text, width)
        array = np.full(LANES, constant, BITS[width])
        return lambda w: array

    def constant(self, text: str, width: int) -> int:
        """Returns the bits of a number or of an address."""
        if text.startswith(("0f", "0F")):
            return int(text[2:], 16)
        if text.startswith(("0d", "0D")):
            return int(text[2:], 16)
        if NUMBER.match(text):
            return int(text.rstrip("U"), 0) & ((1 << width) - 1)
        if re.fullmatch(r"-?\d+\.\d+", text):
            code = struct.pack("<f" if width == 32 else "<d", float(text))
            return int.from_bytes(code, "little")
        if text in self.locals:
            return self.locals[text] + (LOCAL if width == 64 else 0)
        if text in self.statics:
            return self.statics[text]
        if text in self.constants:
            return self.constants[text][0]
        if text in self.param_places:
            return self.param_places[text]
        raise Fault(f"unknown operand {text!r}")

    def address(self, text: str, width: int) -> Callable:
        """Returns what gives the address in brackets."""
        base, offset = ADDRESS.match(text).groups()
        value = self.value(base, f"u{width}")
        if not offset:
            return value
        distance = BITS[width](int(offset, 0) & ((1 << width) - 1))
        return lambda w: value(w).astype(BITS[width]) + distance

    def targets(self, text: str) -> list[int]:
        """Returns the registers that an instruction writes; `_` is none."""
        return [self.slots.get(name, -1) for name in names_in(text)]

    def values(self, text: str, kind: str) -> list[Callable]:
        """Returns the operands in braces, or the only one."""
        return [self.value(name, kind) for name in names_in(text)]

    def predicate(self, text: str) -> Callable:
        """Returns a predicate operand: a register, its opposite or a number."""
        if NUMBER.match(text):
            array = np.full(LANES, int(text, 0) != 0)
            return lambda w: array
        slot = self.slots[text.lstrip("!")]
        return (lambda w: ~w.r[slot]) if text.startswith("!") else (lambda w: w.r[slot])
