"""Modes in which the same instructions mean something else.

    s_setvskip s20, 6                       bit 6 of s20: vector instructions are skipped
    s_set_gpr_idx_on s92, gpr_idx(SRC0)     VALU operands are s92 registers further on
    s_set_gpr_idx_idx s92
    s_set_gpr_idx_off

A front of waves is in one mode; waves that come to differ part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gfx950.isa.asm import M0, Instruction
from gfx950.isa.operands import Build, Decoded
from gfx950.isa.state import Waves

VALU = ("valu", "trans", "dot", "convert")
VECTOR = (*VALU, "mfma", "vmem", "lds")
_ROLES = {"SRC0": 1, "SRC1": 2, "SRC2": 4, "DST": 8}
_ROLE_SHIFT, _INDEX_MASK = 12, 0xFF


@dataclass(frozen=True)
class Mode:
    """What differs from the plain meaning."""

    skips: bool = False
    """Whether vector instructions do nothing."""
    index: int = 0
    """Registers that are added to operands in `roles`."""
    roles: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether instructions mean what they say."""
        return not self.skips and not (self.index and self.roles)


PLAIN = Mode()


def decode_mode(b: Build) -> Decoded | None:
    """Decodes an instruction that changes the mode, or returns None if it is none."""
    name = b.ins.name
    if name == "s_setvskip":
        value, bit = b.scalar(0, "u32"), b.scalar(1, "u32")
        info = {"value": lambda w: value(w) >> (bit(w) & np.uint32(31)) & np.uint32(1),
                "mode": lambda mode, x: replace(mode, skips=bool(x))}  # fmt: skip
        return b.finish(lambda w: None, "mode", info=info)
    if name == "s_set_gpr_idx_off":
        info = {"value": lambda w: np.zeros(w.count, np.uint32),
                "mode": lambda mode, x: replace(mode, index=0, roles=0)}  # fmt: skip
        return b.finish(lambda w: None, "mode", info=info)
    if name not in ("s_set_gpr_idx_on", "s_set_gpr_idx_idx"):
        return None
    value = b.scalar(0, "u32")
    b.s_writes.append(M0)
    roles = None
    if name == "s_set_gpr_idx_on":
        roles = sum(_ROLES[r] for r in re.findall(r"SRC[012]|DST", str(b.operand(1).value)))

    def run(w: Waves) -> None:
        kept = w.s[M0] & ~np.uint32(_INDEX_MASK)
        if roles is not None:
            kept = np.full(w.count, roles << _ROLE_SHIFT, np.uint32)
        w.s[M0] = kept | value(w) & np.uint32(_INDEX_MASK)

    info = {"value": lambda w: value(w) & np.uint32(_INDEX_MASK),
            "mode": lambda mode, x: replace(
                mode, index=int(x), roles=mode.roles if roles is None else roles)}  # fmt: skip
    return b.finish(run, "mode", info=info)


def change_mode(w: Waves, d: Decoded) -> list[Waves]:
    """Puts waves into their new mode; returns them, apart where they differ."""
    values = d.info["value"](w)
    parts = []
    for value in np.unique(values).tolist():
        part = w if (values == value).all() else w.take(np.flatnonzero(values == value))
        part.mode = d.info["mode"](part.mode or PLAIN, value)
        parts.append(part)
    return parts


def shifted(ins: Instruction, mode: Mode) -> Instruction:
    """Returns a VALU instruction with its registers moved as the mode says."""
    operands = list(ins.operands)
    for role, position in ((8, 0), (1, 1), (2, 2), (4, 3)):
        if mode.roles & role and position < len(operands) and operands[position].kind == "v":
            moved = operands[position].index + mode.index
            operands[position] = replace(operands[position], index=moved)
    return replace(ins, operands=tuple(operands))
