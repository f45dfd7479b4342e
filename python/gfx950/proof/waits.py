"""Wait states: pairs of instructions that need others, or s_nop, between them on gfx950.

The hardware does not interlock these pairs. Numbers follow LLVM's hazard recogniser for gfx940
and gfx950; P is the passes of a matrix instruction (2, 4, 8 or 16), X = P + 3, one more if P > 2.

| first                         | then                                          | states     |
|-------------------------------|-----------------------------------------------|------------|
| MFMA writes v                 | VALU or memory reads v, VALU writes v         | X          |
| MFMA writes v                 | MFMA reads v as A, B or scale                 | X          |
| MFMA writes v                 | MFMA reads v as C, not the same registers     | X - 2      |
| MFMA reads v as C             | VALU writes v                                 | P - 1      |
| VALU writes v                 | MFMA reads v                                  | 2          |
| VALU writes v                 | DPP or permlane reads v / readlane reads v    | 2 / 1      |
| transcendental writes v       | other VALU reads v                            | 1          |
| VALU writes part of v         | VALU reads v                                  | 1          |
| dot writes v                  | other VALU reads or writes v                  | 3          |
| store of more than 8 bytes    | VALU writes its data                          | 2          |
| ... of a buffer, soffset in s | VALU writes its data                          | 1          |
| VALU writes s                 | VALU reads s / memory reads s                 | 2 / 5      |
| VALU writes s                 | lane access by lane s / div_fmas reads vcc    | 4          |
| VALU writes exec              | MFMA, readlane, writelane / DPP               | 4 / 5      |
| SALU writes m0                | load to LDS                                   | 1 *        |

* Doubtful, and so is the wait of packed float32 instructions for an MFMA: kernels that AMD ships
keep less, see `_DOUBTS`. Too few states there are a warning.
"""

from __future__ import annotations

from typing import NamedTuple

from gfx950.isa.asm import EXEC, M0, VCC
from gfx950.isa.operands import Decoded
from gfx950.isa.state import Waves

VALU_KINDS = ("valu", "trans", "dot", "convert")
MEMORY_KINDS = ("vmem", "lds")
WINDOW = 20
"""No pair is further apart."""


_LDS_AFTER_M0 = "load to LDS after SALU wrote m0"
_DOUBTS = {
    _LDS_AFTER_M0: "AITER keeps none before 1680 of 1740 such loads",
    "packed": "AITER's block-scaled FP8 kernels keep 2 to 3 before v_pk_fma_f32",
}
"""Why hardware may not need what LLVM keeps."""


class TooSoon(NamedTuple):
    """Wait states that are missing."""

    reason: str
    doubt: str | None = None
    """Why they may not be needed."""


class WaitRules:
    """The pairs in which one instruction takes part, by register.

    `needs` maps the key of an earlier event to the wait states it requires; `leaves` lists the
    events of this instruction. Matrix results carry their passes in the key's name.
    """

    __slots__ = ("_addend", "_is_packed", "leaves", "mfma_reads", "mfma_writes", "needs")

    def __init__(self, d: Decoded):
        self.needs: list[tuple[tuple, int, str]] = []
        self.leaves: list[tuple] = []
        self.mfma_reads: tuple[int, ...] = ()
        self.mfma_writes: tuple[int, ...] = ()
        self._addend: tuple[int, int] | None = None
        self._is_packed = d.ins.name.startswith("v_pk_") and d.ins.name.endswith("_f32")
        if d.kind in VALU_KINDS:
            self._valu(d)
        elif d.kind == "mfma":
            self._mfma(d)
        elif d.kind in MEMORY_KINDS:
            self._memory(d)
        elif d.kind == "salu" and M0 in d.s_writes:
            self.leaves.append(("salu m0",))

    def _need(self, event: str, registers, states: int, text: str) -> None:
        self.needs += [((event, r), states, text) for r in registers]

    def _valu(self, d: Decoded) -> None:
        self.mfma_reads, self.mfma_writes = d.v_reads, d.v_writes
        touched = (*d.v_reads, *d.v_writes)
        if d.kind != "dot":
            self._need("dot v", touched, 3, "VALU after a dot product")
        self._need("store v", d.v_writes, 2, "overwrites the data of a store")
        self._need("store s v", d.v_writes, 1, "overwrites the data of a store")
        self._need("mfma c", d.v_writes, -1, "overwrites the addend of a matrix instruction")
        self._need("valu s", d.s_reads, 2, "VALU reads an SGPR that VALU wrote")
        if d.kind != "trans":
            self._need("trans v", d.v_reads, 1, "reads a transcendental result")
        self._need("part v", d.v_reads, 1, "reads a partly written register")
        if d.info.get("dpp") or d.info.get("permlane"):
            self._need("valu v", d.v_reads, 2, "lane exchange reads a VALU result")
        if d.info.get("dpp"):
            self._need("valu exec", [EXEC], 5, "DPP after VALU wrote EXEC")
        if d.info.get("readlane"):
            self._need("valu v", d.v_reads, 1, "lane read of a VALU result")
        if d.info.get("readlane") or d.info.get("writelane"):
            self._need("valu exec", [EXEC], 4, "lane access after VALU wrote EXEC")
            selects = d.info.get("lane selects", ())
            self._need("valu s", selects, 4, "lane selected by an SGPR that VALU wrote")
        if d.ins.name.startswith("v_div_fmas"):
            self._need("valu s", [VCC], 4, "v_div_fmas after VALU wrote vcc")
        self.leaves += [("valu v", r) for r in d.v_writes]
        self.leaves += [("valu s", r) for r in d.s_writes]
        if EXEC in d.s_writes:
            self.leaves.append(("valu exec", EXEC))
        if d.kind == "trans":
            self.leaves += [("trans v", r) for r in d.v_writes]
        if d.kind == "dot":
            self.leaves += [("dot v", r) for r in d.v_writes]
        if _writes_part(d):
            self.leaves += [("part v", r) for r in d.v_writes]

    def _mfma(self, d: Decoded) -> None:
        self._need("valu v", d.v_reads, 2, "matrix instruction reads a VALU result")
        self._need("valu exec", [EXEC], 4, "matrix instruction after VALU wrote EXEC")
        addend = d.info.get("addend")
        self._addend = addend
        own = range(addend[0], addend[0] + addend[1]) if addend else ()
        self.mfma_reads = d.v_reads
        passes = d.info["passes"]
        self.leaves += [("mfma v", r, passes, d.info["result"]) for r in d.v_writes]
        self.leaves += [("mfma c", r, passes) for r in own]

    def _memory(self, d: Decoded) -> None:
        self.mfma_reads = d.v_reads
        op = d.info["memory"]
        if d.kind == "vmem":
            self._need("valu s", d.s_reads, 5, "memory instruction reads an SGPR that VALU wrote")
        if op.lds_kind == "direct":
            self.needs.append((("salu m0",), 1, _LDS_AFTER_M0))
        if op.is_store and op.global_bytes > 8 and d.kind == "vmem":
            is_buffer = d.ins.name.startswith("buffer")
            with_register = is_buffer and d.ins.operands[-1].kind == "s"
            event = "store s v" if with_register else "store v"
            self.leaves += [(event, r) for r in d.info["data"]]

    def missing(self, w: Waves) -> TooSoon | None:
        """Returns what is wrong with issuing the instruction now, or None."""
        recent, now = w.recent, w.clock
        if not recent:
            return None
        for key, states, text in self.needs:
            event = recent.get(key)
            if event is not None:
                required = event[1] - 1 if states < 0 else states
                waited = now - event[0] - 1
                if waited < required:
                    reason = f"{text}: {waited} wait states, {required} needed"
                    return TooSoon(reason, _DOUBTS.get(text))
        for read, registers in ((True, self.mfma_reads), (False, self.mfma_writes)):
            for register in registers:
                event = recent.get(("mfma v", register))
                if event is not None and (text := self._after_mfma(register, event, now, read)):
                    return TooSoon(text, _DOUBTS["packed"] if self._is_packed else None)
        return None

    def _after_mfma(self, register: int, event: tuple, now: int, read: bool) -> str | None:
        issued, passes, result = event
        required = passes + 3 + (passes > 2)
        addend = self._addend
        if addend and addend[0] <= register < addend[0] + addend[1]:
            required = (2 if passes == 2 else 0) if addend == result else required - 2
        waited = now - issued - 1
        if waited >= required:
            return None
        verb = "reads" if read else "overwrites"
        return f"{verb} a matrix result: {waited} wait states, {required} needed"

    def record(self, w: Waves) -> None:
        """Notes the events of the instruction that has just been issued."""
        recent, now = w.recent, w.clock
        for event in self.leaves:
            recent[event[:2]] = (now, *event[2:])
        if len(recent) > 400:
            w.recent = {k: e for k, e in recent.items() if now - e[0] <= WINDOW}


def _writes_part(d: Decoded) -> bool:
    """Whether only some bytes of the destination are written."""
    if d.ins.encoding == "sdwa":
        return d.ins.mods.get("dst_sel", "DWORD") != "DWORD"
    return bool(d.info.get("part"))
