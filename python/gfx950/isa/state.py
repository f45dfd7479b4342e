"""Registers of waves that stand at the same instruction.

Waves that share a program counter execute together, so every register is a row over waves:

    v[register, wave, lane]   uint32   VGPRs, then AGPRs from `accum_offset` on
    s[register, wave]         uint32   SGPRs by operand number: vcc 106, m0 124, exec 126
    exec_mask[wave, lane]     bool     EXEC unpacked, kept equal to s[126:128]

`v_undef` and `s_undef` mark values that nothing has written; the `clean` byte of a register is 1
when it has no such value, which makes the common case one table look-up.
`split` and `merge` follow divergence: handlers always see dense arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gfx950.isa.asm import EXEC

LANES = 64
SGPRS = 128
POISON = 0x7FBADBAD
"""Pattern of registers that nothing has written: a signalling NaN as float32."""
WAVE_AXIS = {"v": 1, "s": 1, "v_undef": 1, "s_undef": 1}


def mask_to_lanes(mask: np.ndarray) -> np.ndarray:
    """Unpacks uint64 [waves] to bool [waves, 64]."""
    packed = np.ascontiguousarray(mask).view(np.uint8).reshape(len(mask), 8)
    return np.unpackbits(packed, axis=1, bitorder="little").view(bool)


def lanes_to_mask(lanes: np.ndarray) -> np.ndarray:
    """Packs bool [waves, 64] to uint64 [waves]."""
    return np.packbits(lanes, axis=1, bitorder="little").view(np.uint64).ravel()


class Waves:
    """State of the waves numbered `ids`, all at instruction `pc`."""

    def __init__(self, ids: np.ndarray, registers: int):
        count = len(ids)
        self.pc = 0
        self.ids = ids
        self.v = np.full((registers, count, LANES), POISON, np.uint32)
        self.s = np.full((SGPRS, count), POISON, np.uint32)
        self.scc = np.zeros(count, bool)
        self.v_undef = np.ones((registers, count, LANES), bool)
        self.s_undef = np.ones((SGPRS, count), bool)
        self.v_clean = bytearray(registers)
        self.s_clean = bytearray(SGPRS)
        self.exec_mask = np.ones((count, LANES), bool)
        self.exec_full = True
        self.queue: list = []
        """Memory operations not yet known to be complete, oldest first (proof.hazards.Pending)."""
        self.busy: frozenset[int] = frozenset()
        """Registers that queued loads will write; SGPRs are negative."""
        self.recent: dict = {}
        """Recent register writes that wait states depend on (proof.waits)."""
        self.clock = 0
        self.mode = None
        """How instructions are to be read (machine.modes.Mode); None is plain."""
        self.turns = 0
        """How often the waves have given way in a loop that waits for others."""
        self.loops = 0
        """Jumps back, beside others, since the waves last gave way or met some."""
        self.executed = 0
        """Instructions that one of the waves has executed, at most."""
        self.issued_vm = np.zeros(count, np.int64)
        self.retired_vm = np.zeros(count, np.int64)
        self.issued_lds = np.zeros(count, np.int64)
        self.retired_lds = np.zeros(count, np.int64)

    ARRAYS = (
        *("ids", "v", "s", "scc", "v_undef", "s_undef", "exec_mask"),
        *("issued_vm", "retired_vm", "issued_lds", "retired_lds"),
    )

    @property
    def count(self) -> int:
        """Number of waves."""
        return len(self.ids)

    def s64(self, index: int) -> np.ndarray:
        """Returns an SGPR pair as uint64 [waves]."""
        return self.s[index].astype(np.uint64) | (self.s[index + 1].astype(np.uint64) << 32)

    def set_s64(self, index: int, value: np.ndarray) -> None:
        """Writes an SGPR pair."""
        value = np.asarray(value, np.uint64)
        self.s[index] = (value & 0xFFFFFFFF).astype(np.uint32)
        self.s[index + 1] = (value >> np.uint64(32)).astype(np.uint32)

    def refresh_exec(self) -> None:
        """Rebuilds the unpacked EXEC after its SGPR pair changed."""
        self.exec_mask = mask_to_lanes(self.s64(EXEC))
        self.exec_full = bool(self.exec_mask.all())

    def undefined_lanes(self, v: Sequence[int], s: Sequence[int]) -> np.ndarray:
        """Returns the active lanes [waves, 64] for which one of these registers is undefined."""
        found = self.v_undef[list(v)].any(0) | self.s_undef[list(s)].any(0)[:, None]
        return found & self.exec_mask

    def refresh_clean(self) -> None:
        """Recomputes the summaries of undefined registers."""
        self.v_clean = bytearray(~self.v_undef.any(axis=(1, 2)))
        self.s_clean = bytearray(~self.s_undef.any(axis=1))

    def take(self, rows: np.ndarray) -> Waves:
        """Returns a copy of the waves in `rows` (indices into `ids`)."""
        part = object.__new__(Waves)
        for name in self.ARRAYS:
            setattr(part, name, getattr(self, name).take(rows, axis=WAVE_AXIS.get(name, 0)))
        part.pc, part.clock, part.turns = self.pc, self.clock, self.turns
        part.mode, part.executed, part.loops = self.mode, self.executed, 0
        part.recent = dict(self.recent)
        part.queue = [q for q in (entry.take(rows) for entry in self.queue) if q is not None]
        part.busy = frozenset().union(*(entry.d.loads for entry in part.queue))
        part.exec_full = bool(part.exec_mask.all())
        part.refresh_clean()
        return part

    @staticmethod
    def merge(parts: list[Waves]) -> Waves:
        """Joins waves that reached the same instruction."""
        whole = object.__new__(Waves)
        for name in Waves.ARRAYS:
            arrays = [getattr(p, name) for p in parts]
            setattr(whole, name, np.concatenate(arrays, axis=WAVE_AXIS.get(name, 0)))
        whole.pc, whole.clock = parts[0].pc, 0
        whole.mode = parts[0].mode
        whole.turns = max(part.turns for part in parts)
        whole.executed, whole.loops = max(part.executed for part in parts), 0
        whole.exec_full = bool(whole.exec_mask.all())
        whole.recent, whole.queue, first = {}, [], 0
        for part in parts:
            for key, (clock, *facts) in part.recent.items():
                event = (clock - part.clock, *facts)
                whole.recent[key] = max(event, whole.recent.get(key, event))
            whole.queue += [entry.shift(first) for entry in part.queue]
            first += part.count
        whole.busy = frozenset().union(*(part.busy for part in parts))
        order = np.argsort(whole.ids, kind="stable")
        whole = whole if (order == np.arange(len(order))).all() else whole.take(order)
        whole.refresh_clean()
        return whole
