"""Values that nothing has written: how they spread, and where they become errors.

Compilers copy undefined registers around freely (padding lanes, unused halves), so an undefined
source makes an undefined result. It is an error as soon as it could matter outside the
registers: as an address, as data stored to global memory, as branch condition or as EXEC. LDS
bytes written from an undefined register stay undefined. An undefined operand of a matrix
instruction spoils its row or column of the result. Instructions that pack or select have an
undefined result only if all their inputs are: compilers fill an unused slot with any register.
"""

from __future__ import annotations

import numpy as np

from gfx950.isa.asm import EXEC
from gfx950.isa.operands import Decoded
from gfx950.isa.state import Waves

PACKING = ("v_cvt_pk", "v_cvt_scalef32_pk", "v_pack_", "v_perm_b32", "v_cndmask_", "v_pk_")


class UndefinedRead(Exception):
    """A value that nothing has written reached a place where it matters."""


def undefined_inputs(w: Waves, d: Decoded) -> np.ndarray | None:
    """Returns which results undefined inputs make undefined, or None if there are none.

    The shape is [waves, 64], or [registers, waves, 64] for a matrix instruction.
    """
    marks = [w.v_undef[r] for r in d.v_inputs if not w.v_clean[r]]
    marks += [w.s_undef[s][:, None] for s in d.s_inputs if not w.s_clean[s]]
    if not marks:
        return None
    if d.spread is not None:
        return d.spread(w)
    if d.ins.name.startswith(PACKING) and len(marks) < len(d.v_inputs) + len(d.s_inputs):
        return None
    found = np.logical_or.reduce(np.broadcast_arrays(*marks, w.exec_mask)[:-1])
    found = found & w.exec_mask if d.masked else found
    if not found.any():
        return None
    if d.strict or not (d.v_writes or d.s_writes) or EXEC in d.s_writes:
        row, lane = np.argwhere(found)[0]
        raise UndefinedRead(_describe(w, d, row, lane))
    return found


def _describe(w: Waves, d: Decoded, row: int, lane: int) -> str:
    names = [f"v{r}" for r in d.v_inputs if w.v_undef[r][row, lane]]
    names += [f"s{r}" for r in d.s_inputs if w.s_undef[r][row]]
    return f"reads {', '.join(names)}, which nothing has written (lane {lane})"


def mark_outputs(w: Waves, d: Decoded, found: np.ndarray | None) -> None:
    """Updates the marks of the registers that an instruction has written."""
    for position, register in enumerate(d.v_writes):
        if found is None and w.v_clean[register]:
            continue
        marks = w.v_undef[register]
        own = False if found is None else found[position] if found.ndim == 3 else found
        if not d.masked or w.exec_full:
            marks[...] = own
        else:
            np.copyto(marks, own, where=w.exec_mask)
        w.v_clean[register] = not marks.any()
    for register in d.s_writes:
        if found is None and w.s_clean[register]:
            continue
        lanes = found.any(0) if found is not None and found.ndim == 3 else found
        w.s_undef[register] = False if found is None else lanes.any(1)
        w.s_clean[register] = not w.s_undef[register].any()
