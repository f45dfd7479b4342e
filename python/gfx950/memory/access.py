"""A memory operation in two halves: issue captures its operands, completion moves the data.

Hardware may complete an operation at any time between its issue and the wait that retires it.
Splitting the two lets the machine complete it at once (normal mode) or as late as legal:

    issue       capture(machine, waves) -> Capture     addresses, store data, EXEC
      ...       registers may be reused, other waves may run
    completion  complete(machine, waves, rows, capture)

Every array of a `Capture` has one row per wave, so that a queue of pending operations can
follow its waves when they diverge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from gfx950.isa.state import Waves

U32 = np.uint32
Rows = slice | np.ndarray


@dataclass(slots=True, eq=False)
class Capture:
    """Operands of a memory operation at its issue."""

    exec_mask: np.ndarray
    address: np.ndarray | None = None
    """Global byte addresses [waves, lanes], int64."""
    lds: np.ndarray | None = None
    """LDS byte addresses [waves, lanes, parts], int64, within the workgroup."""
    lds_base: np.ndarray | None = None
    """Start of each wave's workgroup in the LDS array [waves]."""
    data: np.ndarray | None = None
    """Data registers [waves, count, lanes]."""
    undefined: np.ndarray | None = None
    """Whether `data` was never written [waves, count, lanes]."""
    inside: np.ndarray | None = None
    """Dwords within the buffer [waves, count, lanes]; None when all are."""
    private: np.ndarray | None = None
    """Byte positions in `Scratch` [waves, lanes]."""
    gained: np.ndarray | None = None
    """What each wave will know once the operation is waited for (proof.clocks.Clock)."""

    def take(self, rows: np.ndarray) -> Capture:
        """Returns the rows of some waves."""
        values = (getattr(self, f.name) for f in fields(self))
        return Capture(*[None if v is None else v[rows] for v in values])


@dataclass
class MemoryOp:
    """What an instruction does to memory."""

    capture: Callable[..., Capture]
    complete: Callable[..., None]
    counters: tuple[str, ...]
    """"vm", "lgkm" or both (flat)."""
    perform: Callable[..., None] | None = None
    """A global atomic's effect on memory: it may overtake older stores to other addresses."""
    scalar: bool = False
    is_load: bool = False
    is_store: bool = False
    lds_kind: str = ""
    """"read", "write", "atomic", "direct" (a load that writes LDS) or none."""
    lds_bytes: int = 0
    global_bytes: int = 0


@dataclass(frozen=True)
class LoadFormat:
    """How the bytes of a load become registers."""

    size: int
    sign_bits: int = 0
    half: str = ""
    """"lo" or "hi" if the load fills half a register and keeps the other."""

    @property
    def registers(self) -> int:
        """Registers that the result occupies."""
        return (self.size + 3) // 4

    def extend(self, words: np.ndarray) -> np.ndarray:
        """Sign-extends a byte or a short."""
        if not self.sign_bits:
            return words
        shift = np.int32(32 - self.sign_bits)
        return ((words.view(np.int32) << shift) >> shift).view(U32)


def _load_formats() -> dict[str, LoadFormat]:
    table = {"dword": LoadFormat(4), "dwordx2": LoadFormat(8)}
    table |= {"dwordx3": LoadFormat(12), "dwordx4": LoadFormat(16)}
    for name, size in (("byte", 1), ("short", 2)):
        table[f"u{name}"] = LoadFormat(size)
        table[f"s{name}"] = LoadFormat(size, 8 * size)
    for suffix, half in (("_d16", "lo"), ("_d16_hi", "hi")):
        table[f"ubyte{suffix}"] = LoadFormat(1, 0, half)
        table[f"sbyte{suffix}"] = LoadFormat(1, 8, half)
        table[f"short{suffix}"] = LoadFormat(2, 0, half)
    return table


LOADS = _load_formats()
"""By the name that follows `global_load_`."""
STORES = {
    "byte": (1, 0), "short": (2, 0), "byte_d16_hi": (1, 16), "short_d16_hi": (2, 16),
    "dword": (4, 0), "dwordx2": (8, 0), "dwordx3": (12, 0), "dwordx4": (16, 0),
}  # fmt: skip
"""Size and shift of the source, by the name that follows `global_store_`."""


def write_loaded(
    w: Waves, rows: Rows, index: int, words: np.ndarray, cap: Capture,
    *, form: LoadFormat, undefined: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Writes loaded registers [count, waves, 64] under the captured EXEC.

    `undefined` has the shape of `words`; without it the result counts as defined.
    """
    count = len(words)
    registers = slice(index, index + count)
    block = w.v[registers] if isinstance(rows, slice) else w.v[registers][:, rows]
    words = form.extend(words)
    if form.half == "lo":
        words = (block & U32(0xFFFF0000)) | (words & U32(0xFFFF))
    elif form.half == "hi":
        words = (block & U32(0xFFFF)) | (words << U32(16))
    np.copyto(block, words, where=cap.exec_mask)
    if not isinstance(rows, slice):
        w.v[registers, rows] = block
    if undefined is None and all(w.v_clean[registers]):
        return
    marks = w.v_undef[registers] if isinstance(rows, slice) else w.v_undef[registers][:, rows]
    np.copyto(marks, False if undefined is None else undefined, where=cap.exec_mask)
    if not isinstance(rows, slice):
        w.v_undef[registers, rows] = marks
    for register in range(index, index + count):
        w.v_clean[register] = not w.v_undef[register].any()


def source_rows(values: np.ndarray, waves: int) -> np.ndarray:
    """Returns data registers [count, waves, lanes] as a copy with the wave axis first."""
    shape = (values.shape[0], waves, 64)
    return np.broadcast_to(values, shape).transpose(1, 0, 2).copy()


def runs_through_memory(w: Waves) -> None:
    """Stands in for the `run` of a memory instruction, which the machine never calls."""
    raise AssertionError("memory operations run through their MemoryOp")
