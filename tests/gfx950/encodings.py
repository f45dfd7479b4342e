"""Which instructions a piece of gfx950 machine code has, by encoding and opcode alone.

Enough of the ISA manual's microcode formats to step from one instruction to the next; knows
nothing of the simulator's decoders and of what instructions do:

    0 . .           VOP1, VOP2, VOPC    4 bytes, 8 with a literal, SDWA or DPP
    1 0 . .         SOP1 .. SOPP        4 bytes, 8 with a literal
    1 1 . .         all others          8 bytes
"""

from __future__ import annotations

import numpy as np

LITERAL, SDWA, DPP = 255, 249, 250
_WITH_LITERAL = {"VOP2": (0x17, 0x18, 0x24, 0x25), "SOPK": (0x14,)}
"""Opcodes that always have one: v_madmk, v_madak, s_setreg_imm32."""
_LONG = {0x30: ("SMEM", 18, 255), 0x36: ("DS", 17, 255), 0x37: ("FLAT", 18, 127),
         0x38: ("MUBUF", 18, 127), 0x3A: ("MTBUF", 15, 15)}  # fmt: skip
"""Name, shift and mask of the opcode, by the first six bits."""
_MODIFIERS = {"SMEM": 3 << 16, "DS": 1 << 16, "FLAT": 3 << 14, "MUBUF": 7 << 12 | 1 << 16}
"""Bits of the first word that change what an instruction does: lds, offen, idxen, sc0, segment."""


def instructions(code: bytes) -> set[tuple]:
    """Returns encoding, opcode and what else tells instructions apart."""
    words, at, found = np.frombuffer(code[: len(code) // 4 * 4], "<u4").tolist(), 0, set()
    while at < len(words):
        key, length = _vector(words[at]) if not words[at] >> 31 else _other(words[at])
        found.add(key)
        at += length
    return found


def _vector(word: int) -> tuple[tuple, int]:
    source, op = word & 511, word >> 25
    name, op = {63: ("VOP1", word >> 9 & 255), 62: ("VOPC", word >> 17 & 255)}.get(op, ("VOP2", op))
    form = {SDWA: "SDWA", DPP: "DPP"}.get(source, "")
    is_long = form or source == LITERAL or op in _WITH_LITERAL.get(name, ())
    return (name, op, form), 1 + bool(is_long)


def _other(word: int) -> tuple[tuple, int]:
    if word >> 30 == 3:
        return _long(word), 2
    first, second = (word & 255) == LITERAL, (word >> 8 & 255) == LITERAL
    if word >> 23 == 0x17F:
        return ("SOPP", word >> 16 & 127), 1
    if word >> 23 == 0x17D:
        return ("SOP1", word >> 8 & 255), 1 + first
    if word >> 23 == 0x17E:
        return ("SOPC", word >> 16 & 127), 1 + (first or second)
    if word >> 28 == 0xB:
        op = word >> 23 & 31
        return ("SOPK", op), 1 + (op in _WITH_LITERAL["SOPK"])
    return ("SOP2", word >> 23 & 127), 1 + (first or second)


def _long(word: int) -> tuple:
    if word >> 23 == 0x1A7:
        return "VOP3P", word >> 16 & 127
    if word >> 26 == 0x34:
        return "VOP3", word >> 16 & 1023
    name, shift, mask = _LONG.get(word >> 26, ("unknown", 26, 63))
    return name, word >> shift & mask, word & _MODIFIERS.get(name, 0)
