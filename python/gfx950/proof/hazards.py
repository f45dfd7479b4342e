"""Finds missing waits and races: what in-order execution cannot show.

Every memory operation stays in its wave's queue until an `s_waitcnt` proves it complete:

    vmcnt(n)    all but the newest n vector memory operations (loads, stores, loads to LDS)
    lgkmcnt(n)  all but the newest n LDS operations; scalar loads return in any order, so only
                lgkmcnt(0) proves them

Using or overwriting a register that a queued load will write is a hazard. LDS is shadowed byte
by byte: an access is ordered after another wave's only if that wave had waited for its
operation before a barrier that both have passed. Within a wave, LDS operations are in order, but
loads to LDS are ordered only by vmcnt. A read of bytes that no wave of the workgroup has written
is a finding even if nobody uses them: they are what an earlier workgroup left there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gfx950.isa.operands import Decoded
from gfx950.isa.state import Waves
from gfx950.memory.access import Capture, MemoryOp

U8, U32, I64 = np.uint8, np.uint32, np.int64
WAVE_BITS = 5
SEQUENCE_BITS = 25
DIRTY, UNWRITTEN = 1, 2


@dataclass(frozen=True, slots=True)
class Hazard:
    """One finding: the instruction that exposes it, the first wave, and why."""

    kind: str
    """"in flight", "race", "unwritten" (LDS) or "wait states"."""
    line: int
    text: str
    group: int
    """Linear index of the workgroup."""
    wave: int
    """Wave within the workgroup."""
    reason: str
    doubt: str | None = None
    """Why this may be no hazard: then it is a warning."""

    def __str__(self) -> str:
        where = f"workgroup {self.group} wave {self.wave}"
        reason = f"{self.reason}; {self.doubt}" if self.doubt else self.reason
        return f"line {self.line}: {self.text}: {self.kind}: {reason} ({where})"


@dataclass(slots=True, eq=False)
class Pending:
    """A memory operation that no wait has retired."""

    d: Decoded
    op: MemoryOp
    rows: np.ndarray | None
    """Rows of the waves that issued it; None for all."""
    cap: Capture
    complete: bool
    waiting: set[str] = field(default_factory=set)

    def take(self, rows: np.ndarray) -> Pending | None:
        """Follows the waves in `rows` to a new `Waves`."""
        if self.rows is None:
            return Pending(self.d, self.op, None, self.cap.take(rows), self.complete,
                           set(self.waiting))  # fmt: skip
        places = np.flatnonzero(np.isin(self.rows, rows))
        if not len(places):
            return None
        order = {int(row): i for i, row in enumerate(rows)}
        mapped = np.array([order[int(r)] for r in self.rows[places]])
        return Pending(self.d, self.op, mapped, self.cap.take(places), self.complete,
                       set(self.waiting))  # fmt: skip

    def shift(self, first: int) -> Pending:
        """Renumbers rows for a merge that puts this part's waves at `first`."""
        rows = np.arange(len(self.cap.exec_mask)) if self.rows is None else self.rows
        return Pending(self.d, self.op, rows + first, self.cap, self.complete, set(self.waiting))

    def count(self) -> int:
        """Number of waves."""
        return len(self.cap.exec_mask)


def retire(w: Waves, counter: str, limit: int) -> list[tuple[Pending, np.ndarray | None]]:
    """Takes the operations that `counter` <= `limit` proves complete out of the queue.

    Returns them oldest first, each with the rows for which it is proved (None for all).
    """
    queue = w.queue
    own = [e for e in queue if counter in e.waiting and not (limit and e.op.scalar)]
    if all(e.rows is None for e in own):
        done = [(e, None) for e in (own[:-limit] if limit else own)]
    else:
        done = _retire_by_wave(w, own, limit)
    finished = []
    for entry, rows in done:
        target = entry
        if rows is not None and len(rows) < entry.count():
            target = _split_entry(w, entry, rows)
        target.waiting.discard(counter)
        if not target.waiting:
            finished.append((target, target.rows))
    gone = {id(e) for e, _ in finished}
    w.queue = [e for e in w.queue if id(e) not in gone]
    return finished


def _retire_by_wave(w: Waves, own: list[Pending], limit: int) -> list:
    """Counts newer operations wave by wave, for waves with different histories."""
    newer = np.zeros(w.count, int)
    done = []
    for entry in reversed(own):
        rows = np.arange(w.count) if entry.rows is None else entry.rows
        ready = rows[newer[rows] >= limit]
        if len(ready):
            done.append((entry, ready))
        newer[rows] += 1
    return done[::-1]


def _split_entry(w: Waves, entry: Pending, rows: np.ndarray) -> Pending:
    """Splits off the part of an entry that belongs to `rows` and returns it."""
    all_rows = np.arange(w.count) if entry.rows is None else entry.rows
    chosen = np.isin(all_rows, rows)
    part = Pending(entry.d, entry.op, all_rows[chosen], entry.cap.take(np.flatnonzero(chosen)),
                   entry.complete, set(entry.waiting))  # fmt: skip
    entry.rows, entry.cap = all_rows[~chosen], entry.cap.take(np.flatnonzero(~chosen))
    w.queue.insert(w.queue.index(entry), part)
    return part


def _written_bytes(cap: Capture, part: int, size: int) -> np.ndarray:
    """Returns the bytes [size, waves, lanes] that a write stores."""
    count = (size + 3) // 4
    words = cap.data[:, part * count : (part + 1) * count].transpose(0, 2, 1)
    raw = np.ascontiguousarray(words).view(U8)[..., :size]
    return raw.transpose(2, 0, 1)


class LdsShadow:
    """Who last wrote and who has read each LDS byte since it was last safe to touch."""

    def __init__(self, groups: int, stride: int, waves: int):
        self.stride, self.waves = stride, waves
        size = groups * stride
        self.dirty = np.full(size, UNWRITTEN, U8)
        """`DIRTY` where a write may not be visible to everyone yet, `UNWRITTEN` or 0."""
        self.writer = np.zeros(size, U32)
        """Its wave, kind and sequence number."""
        self.value = np.zeros(size, U8)
        """What it wrote: two waves may write the same value."""
        self.readers = np.zeros((waves, size), U8)
        """Which waves have read the byte since the last barrier."""
        self.spare = stride - 16
        self.dirty.reshape(groups, stride)[:, self.spare :] = 0

    def _bytes(self, cap: Capture, part: int, size: int) -> np.ndarray:
        """Returns byte positions [size, waves, lanes]; inactive lanes point at spare space."""
        local = np.where(cap.exec_mask, cap.lds[..., part], self.spare)
        return (local + cap.lds_base[:, None]) + np.arange(size)[:, None, None]

    def _words(self, cap: Capture, part: int, size: int) -> np.ndarray | None:
        """Returns word positions if every access is whole and aligned."""
        if size % 4:
            return None
        local = np.where(cap.exec_mask, cap.lds[..., part], self.spare) + cap.lds_base[:, None]
        if (local & 3).any():
            return None
        return (local >> 2) + np.arange(size // 4)[:, None, None]

    def _encode(self, wave: np.ndarray, sequence: np.ndarray, direct: bool, atomic: bool):
        tag = (int(direct) << 1 | int(atomic)) << (WAVE_BITS + SEQUENCE_BITS)
        number = sequence & ((1 << SEQUENCE_BITS) - 1)
        return (tag | (wave << SEQUENCE_BITS) | number).astype(U32)

    def _conflicts(
        self,
        w: Waves,
        cap: Capture,
        part: int,
        at: np.ndarray,
        *,
        wave: np.ndarray,
        kind: str,
        value: np.ndarray | None = None,
    ) -> tuple[int, str] | None:
        """Finds an earlier write that this access is not ordered after."""
        lanes = np.broadcast_to(cap.exec_mask, at.shape) & (self.dirty[at] == DIRTY)
        entry = self.writer[at]
        author = (entry >> U32(SEQUENCE_BITS)).astype(I64) & ((1 << WAVE_BITS) - 1)
        sequence = entry.astype(I64) & ((1 << SEQUENCE_BITS) - 1)
        direct = (entry >> U32(SEQUENCE_BITS + WAVE_BITS + 1)) & U32(1) != 0
        atomic = (entry >> U32(SEQUENCE_BITS + WAVE_BITS)) & U32(1) != 0
        own = author == wave[None, :, None]
        landed = sequence <= w.retired_vm[None, :, None]
        safe = own & (~direct | landed)
        if kind == "atomic":
            safe |= atomic
        if kind == "direct":
            safe &= ~own | landed
        if value is not None:
            safe |= ~direct & (value == self.value[at])
        bad = lanes & ~safe
        if not bad.any():
            return None
        _, row, lane = np.argwhere(bad)[0]
        byte = np.argwhere(bad[:, row, lane])[0][0]
        where = int(cap.lds[row, lane, part]) + int(byte)
        what = "load to LDS" if direct[byte, row, lane] else "write"
        if own[byte, row, lane]:
            return row, f"LDS byte {where} is still awaited from this wave's {what}"
        other = int(author[byte, row, lane])
        return row, f"LDS byte {where}: no wait and barrier after the {what} of wave {other}"

    def read(self, w: Waves, op: MemoryOp, cap: Capture, wave: np.ndarray):
        """Checks a read and notes it; returns (row, reason) of a race, and of unwritten bytes."""
        found, gap, size = None, None, op.lds_bytes
        for part in range(cap.lds.shape[-1]):
            words = self._words(cap, part, size)
            at = self._bytes(cap, part, size) if words is None else words
            dirty = self.dirty if words is None else self.dirty.view(U32)
            if dirty[at].any():
                where = self._bytes(cap, part, size)
                found = found or self._conflicts(w, cap, part, where, wave=wave, kind="read")
                gap = gap or self._gap(cap, part, where)
            if self.waves > 1:
                readers = self.readers if words is None else self.readers.view(U32)
                readers[wave[None, :, None], at] = 1 if words is None else 0x01010101
        return found, gap

    def _gap(self, cap: Capture, part: int, at: np.ndarray) -> tuple[int, str] | None:
        """Finds bytes of a read that nobody has written; the range is that of one wave."""
        unwritten = (self.dirty[at] == UNWRITTEN) & cap.exec_mask
        if not unwritten.any():
            return None
        row = int(np.argwhere(unwritten)[0][1])
        byte, lane = np.nonzero(unwritten[:, row])
        local = cap.lds[row, lane, part] + byte
        return row, f"reads LDS bytes {local.min()} to {local.max()}, which no wave has written"

    def write(self, w: Waves, op: MemoryOp, cap: Capture, wave: np.ndarray, sequence: np.ndarray):
        """Checks a write against writes and reads and notes it; returns what `read` does."""
        found, gap, size, kind = None, None, op.lds_bytes, op.lds_kind
        entry = self._encode(wave, sequence, kind == "direct", kind == "atomic")
        for part in range(cap.lds.shape[-1]):
            at = self._bytes(cap, part, size)
            value = _written_bytes(cap, part, size) if kind == "write" else None
            before = self.dirty[at]
            if (before == DIRTY).any():
                found = found or self._conflicts(
                    w, cap, part, at, wave=wave, kind=kind, value=value
                )
            if kind == "atomic" and before.any():
                gap = gap or self._gap(cap, part, at)
            if self.waves > 1:
                found = found or self._read_before(cap, part, size, wave)
            if kind == "direct":
                found = found or self._own_reads(w, cap, at)
            lanes = np.broadcast_to(cap.exec_mask, at.shape)
            is_shared = self.waves > 1 or kind == "direct"
            self.dirty[at[lanes]] = DIRTY if is_shared else 0
            if is_shared:
                self.writer[at[lanes]] = np.broadcast_to(entry[None, :, None], at.shape)[lanes]
                if value is not None:
                    self.value[at[lanes]] = value[lanes]
                if kind != "atomic":
                    found = found or self._collision(cap, part, at, entry, value)
        return found, gap

    def _collision(self, cap: Capture, part: int, at: np.ndarray, entry: np.ndarray, value):
        """Finds a wave whose bytes another wave wrote by the same instruction."""
        lost = (self.writer[at] != entry[None, :, None]) & cap.exec_mask
        if value is not None:
            lost &= self.value[at] != value
        if not lost.any():
            return None
        byte, row, lane = np.argwhere(lost)[0]
        where = int(cap.lds[row, lane, part]) + int(byte)
        other = int(self.writer[at[byte, row, lane]] >> U32(SEQUENCE_BITS)) & ((1 << WAVE_BITS) - 1)
        return row, f"LDS byte {where}: wave {other} writes it by the same instruction"

    def _read_before(self, cap: Capture, part: int, size: int, wave: np.ndarray):
        """Finds another wave's read that this write is not ordered after."""
        words = self._words(cap, part, size)
        at = self._bytes(cap, part, size) if words is None else words
        readers = self.readers if words is None else self.readers.view(U32)
        others = readers[:, at] != 0
        if not others.any():
            return None
        others[wave, :, np.arange(len(wave)), :] = False
        others &= cap.exec_mask
        if not others.any():
            return None
        other, _, row, lane = np.argwhere(others)[0]
        where = int(cap.lds[row, lane, part])
        return row, f"LDS byte {where}: no wait and barrier after the read of wave {other}"

    def _own_reads(self, w: Waves, cap: Capture, at: np.ndarray):
        """Finds a read of the same wave that is still in flight where a load will land."""
        target, low, high = None, 0, 0
        for entry in w.queue:
            if entry.op.lds_kind != "read":
                continue
            if target is None:
                target = at[np.broadcast_to(cap.exec_mask, at.shape)]
                low, high = (int(target.min()), int(target.max())) if target.size else (1, 0)
            mask, size = entry.cap.exec_mask, entry.op.lds_bytes
            for part in range(entry.cap.lds.shape[-1]):
                first = (entry.cap.lds[..., part] + entry.cap.lds_base[:, None])[mask]
                if not first.size or first.max() + size <= low or first.min() > high:
                    continue
                read = (first + np.arange(size)[:, None]).ravel()
                if np.isin(read, target).any():
                    row = 0 if entry.rows is None else int(entry.rows[0])
                    return row, f"a read of the same LDS bytes is in flight ({entry.d.ins})"
        return None

    def barrier(self, parts: list[Waves], groups: np.ndarray, waves_per_group: int) -> None:
        """All waves of `groups` pass a barrier: what they had waited for is now ordered."""
        retired = {}
        for w in parts:
            for row, number in enumerate(w.ids):
                retired[int(number)] = (w.retired_lds[row], w.retired_vm[row])
        for group in groups:
            own = slice(int(group) * self.stride, (int(group) + 1) * self.stride)
            at = np.flatnonzero(self.dirty[own] == DIRTY) + own.start
            if len(at):
                entry = self.writer[at]
                author = (entry >> U32(SEQUENCE_BITS)) & U32((1 << WAVE_BITS) - 1)
                direct = (entry >> U32(SEQUENCE_BITS + WAVE_BITS + 1)) & U32(1)
                first = int(group) * waves_per_group
                limits = np.array([retired.get(first + i, (1 << 60, 1 << 60))
                                   for i in range(waves_per_group)])  # fmt: skip
                sequence = entry & U32((1 << SEQUENCE_BITS) - 1)
                self.dirty[at[sequence <= limits[author, direct]]] = 0
            self.readers[:, own] = 0
        for w in parts:
            self._keep_pending_reads(w, set(groups.tolist()), waves_per_group)

    def _keep_pending_reads(self, w: Waves, groups: set[int], waves_per_group: int) -> None:
        """Reads still in flight at a barrier have not happened yet."""
        for entry in w.queue:
            if entry.op.lds_kind != "read" or self.waves == 1:
                continue
            ids = w.ids if entry.rows is None else w.ids[entry.rows]
            inside = np.isin(ids // waves_per_group, list(groups))
            for part in range(entry.cap.lds.shape[-1]):
                at = self._bytes(entry.cap, part, entry.op.lds_bytes)
                wave = np.broadcast_to((ids % waves_per_group)[None, :, None], at.shape)
                lanes = np.broadcast_to(entry.cap.exec_mask & inside[:, None], at.shape)
                self.readers[wave[lanes], at[lanes]] = 1
