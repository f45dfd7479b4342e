"""Values that nothing has written: how they spread, and where they become errors.

Compilers copy undefined registers around freely (padding lanes, unused halves), so an undefined
source makes an undefined result. It is an error as soon as it could matter outside the
registers: as an address, as data stored to global memory, as matrix operand, as branch
condition or as EXEC. LDS bytes written from an undefined register stay undefined.
"""

from __future__ import annotations

import numpy as np

from gfx950.asm import EXEC
from gfx950.operands import Decoded
from gfx950.state import Waves


class UndefinedRead(Exception):
    """A value that nothing has written reached a place where it matters."""


def undefined_inputs(w: Waves, d: Decoded) -> np.ndarray | None:
    """Returns which lanes [waves, 64] read an undefined value, or None if none does."""
    found = None
    for register in d.v_inputs:
        if not w.v_clean[register]:
            marks = w.v_undef[register]
            marks = marks & w.exec_mask if d.masked else marks
            found = marks if found is None else found | marks
    for register in d.s_inputs:
        if not w.s_clean[register]:
            marks = w.s_undef[register][:, None]
            marks = marks & w.exec_mask if d.masked else marks
            found = marks if found is None else found | marks
    if found is None or not found.any():
        return None
    if d.strict or not (d.v_writes or d.s_writes) or EXEC in d.s_writes:
        row, lane = np.argwhere(found)[0]
        raise UndefinedRead(_describe(w, d, row, lane))
    return np.broadcast_to(found, (w.count, 64))


def _describe(w: Waves, d: Decoded, row: int, lane: int) -> str:
    names = [f"v{r}" for r in d.v_inputs if w.v_undef[r][row, lane]]
    names += [f"s{r}" for r in d.s_inputs if w.s_undef[r][row]]
    return f"reads {', '.join(names)}, which nothing has written (lane {lane})"


def mark_outputs(w: Waves, d: Decoded, found: np.ndarray | None) -> None:
    """Updates the marks of the registers that an instruction has written."""
    for register in d.v_writes:
        if found is None and w.v_clean[register]:
            continue
        marks = w.v_undef[register]
        if not d.masked or w.exec_full:
            marks[...] = False if found is None else found
        else:
            np.copyto(marks, False if found is None else found, where=w.exec_mask)
        w.v_clean[register] = not marks.any()
    for register in d.s_writes:
        if found is None and w.s_clean[register]:
            continue
        w.s_undef[register] = False if found is None else found.any(1)
        w.s_clean[register] = not w.s_undef[register].any()
