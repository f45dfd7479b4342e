"""Races and stale data between waves in global memory, for any order of workgroups.

Every byte remembers its last writer: which wave, by which operation. An access by another wave is
a race unless that operation is known to be complete (clocks.py). Between workgroups it also has
to get past two caches, and no rule below supposes that they share an XCD:

    store    reaches memory by `sc1`, or by a later `buffer_wbl2 sc1` that is waited for
    load     asks memory with `sc1`, or after a `buffer_inv sc1` since it knows of the store
    s_load   asks a cache that nothing empties: never sees what the launch has written

Atomics happen in memory. They, and `sc1` stores of at most 8 bytes a wave (flags), are
announcements: racing for them is their purpose. Reads are remembered too, so that a write that
might overtake one is a race. What was never executed in the run is not judged; which workgroup
arrives first at an atomic decides only who executes what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gfx950.isa.operands import Decoded
from gfx950.isa.state import Waves
from gfx950.memory.access import Capture
from gfx950.memory.islands import FIRST_ISLAND, ISLAND_BITS
from gfx950.proof.clocks import NOTHING, Clock, Knowledge

U32, I64 = np.uint32, np.int64
WORD = 4
FLAG_BYTES = 8
"""What hardware reads and writes at once."""
IN_MEMORY, ANNOUNCEMENT = 1, 2
"""Of a write: it went past the L2; others may read it without further order."""
FLAG_BITS, PC_BITS, NUMBER_BITS = 2, 16, 22
_PC, _NUMBER = (1 << PC_BITS) - 1, (1 << NUMBER_BITS) - 1
_NUMBER_SHIFT = FLAG_BITS + PC_BITS
_WAVE_SHIFT = _NUMBER_SHIFT + NUMBER_BITS


def _tags(waves: np.ndarray, numbers: np.ndarray, pc: int, flags: np.ndarray) -> np.ndarray:
    """Packs the author of a write: wave + 1, number of the operation, instruction, flags."""
    low = (numbers.astype(I64) & _NUMBER) << _NUMBER_SHIFT | (pc & _PC) << FLAG_BITS | flags
    return (waves.astype(I64) + 1) << _WAVE_SHIFT | low


@dataclass(frozen=True)
class Access:
    """One instruction's access to one island; arrays of lanes name rows by `row`."""

    pc: int
    size: int
    first: np.ndarray
    """First byte of each active lane."""
    row: np.ndarray
    waves: np.ndarray
    """Number in the grid of each row's wave."""
    numbers: np.ndarray
    """Of the operation, for each row."""
    to_memory: bool
    """sc1: neither L1 nor L2 answers or keeps it."""
    atomic: bool
    scalar: bool
    told: bool
    """Whether an atomic returns what was there."""
    inside: np.ndarray | None
    """Words of each lane [lanes, words] within their buffer; None if all are."""

    def extent(self) -> tuple[int, int]:
        """Returns the first byte and the end of all lanes."""
        return int(self.first.min()), int(self.first.max()) + self.size

    def is_short(self) -> np.ndarray:
        """Says of each row whether it touches no more than a flag."""
        low = np.full(len(self.waves), np.iinfo(I64).max)
        high = np.full(len(self.waves), -1, I64)
        np.minimum.at(low, self.row, self.first)
        np.maximum.at(high, self.row, self.first + self.size)
        return high - low <= FLAG_BYTES


@dataclass
class Shadow:
    """Who wrote each cell of an island: a word, or a byte once somebody wrote less."""

    size: int
    cell: int = WORD
    tags: np.ndarray | None = None
    announced: np.ndarray | None = None
    """Index of the clock that a cell announces; 0 is nothing."""
    reads: list[Access] = field(default_factory=list)
    _ranges: np.ndarray = field(default_factory=lambda: np.zeros((16, 2), I64))
    """First byte and end of each of `reads`."""

    def remember(self, access: Access) -> None:
        """Notes a read."""
        if len(self.reads) == len(self._ranges):
            self._ranges = np.concatenate([self._ranges, np.zeros_like(self._ranges)])
        self._ranges[len(self.reads)] = access.extent()
        self.reads.append(access)

    def reads_near(self, access: Access) -> list[Access]:
        """Returns the reads that may meet an access."""
        low, high = access.extent()
        ranges = self._ranges[: len(self.reads)]
        near = np.flatnonzero((ranges[:, 0] < high) & (ranges[:, 1] > low))
        return [self.reads[i] for i in near.tolist()]

    def cells(self, access: Access) -> tuple[np.ndarray, np.ndarray]:
        """Returns the cells of an access and the row of each."""
        if self.cell == WORD and (access.size % WORD or (access.first & (WORD - 1)).any()):
            self._split()
        steps = np.arange(-(-access.size // self.cell))
        at = (access.first // self.cell)[:, None] + steps
        row = np.broadcast_to(access.row[:, None], at.shape)
        if access.inside is None:
            return at.ravel(), row.ravel()
        kept = access.inside[:, steps * self.cell // WORD]
        return at[kept], row[kept]

    def _split(self) -> None:
        """Turns cells of words into cells of bytes."""
        self.cell = 1
        for name in ("tags", "announced"):
            if getattr(self, name) is not None:
                setattr(self, name, np.repeat(getattr(self, name), WORD))

    def open(self) -> None:
        """Begins to remember writers."""
        if self.tags is None:
            self.tags = np.zeros(-(-self.size // self.cell) + WORD, I64)

    def open_announcements(self) -> np.ndarray:
        """Returns the clocks of cells."""
        if self.announced is None:
            self.announced = np.zeros(len(self.tags), np.int32)
        return self.announced


class Sharing:
    """Follows what the waves of a launch write for each other."""

    def __init__(self, kernel, waves_per_group: int):
        self.kernel, self.size = kernel, waves_per_group
        self._shadows: dict[int, Shadow] = {}
        self._clocks: list[Clock] = [NOTHING]
        self._proven: dict[tuple, tuple] = {}
        """What has been found in order; keeps the clocks whose identity is part of the key."""
        self.knowledge: Knowledge | None = None

    def start(self, groups: list[int]) -> None:
        """Begins a batch of workgroups."""
        self.knowledge = Knowledge(groups, self.size)

    def cache(self, w: Waves, d: Decoded) -> None:
        """Waves empty their caches or write their L2 back, for the device."""
        if d.ins.name == "buffer_inv":
            self.knowledge.invalidate(w)
        else:
            self.knowledge.write_back(w)

    # --- accesses --------------------------------------------------------------------------------

    def issue(self, m, w: Waves, d: Decoded, cap: Capture) -> tuple[int, str] | None:
        """Checks and notes an access; returns the row of a race and what it is."""
        found = None
        for island, access in self._accesses(m, w, d, cap):
            shadow = self._shadows.setdefault(island, Shadow(m.memory.islands[island].size))
            if d.memory.is_store:
                found = self._write(w, shadow, access, cap) or found
            else:
                found = self._read(w, shadow, access, cap, at_once=not m.late) or found
        return found

    def landed(self, m, w: Waves, d: Decoded, cap: Capture, rows: np.ndarray | None) -> None:
        """An operation has been waited for: its waves know what they have read."""
        part = w if rows is None else _Rows(w, rows)
        if m.late and d.memory.is_load and d.memory.perform is None and _to_memory(d):
            for island, access in self._accesses(m, part, d, cap):
                shadow = self._shadows.get(island)
                if shadow is not None and shadow.announced is not None:
                    self._take(shadow, access, cap)
        if cap.gained is None:
            return
        for number, clock in zip(part.ids.tolist(), cap.gained, strict=True):
            if clock is not NOTHING:
                self.knowledge.gain(divmod(number, self.size), clock)

    def _accesses(self, m, w: Waves, d: Decoded, cap: Capture):
        """Yields (island, Access) for the islands that an instruction touches."""
        lanes, inside = cap.exec_mask, None
        if cap.inside is not None:
            inside = np.broadcast_to(cap.inside, (len(lanes), cap.inside.shape[1], lanes.shape[1]))
            lanes = lanes & inside.any(1)
        row, lane = np.nonzero(lanes)
        if not len(row):
            return
        address = cap.address[row, lane]
        words = None if inside is None else inside[row, :, lane]
        island = (address >> I64(ISLAND_BITS)) - FIRST_ISLAND
        op, waves = d.memory, m.grid_numbers(w)
        numbers = np.zeros_like(w.issued_vm) if op.scalar else w.issued_vm.copy()
        for which in [island[0]] if (island == island[0]).all() else np.unique(island):
            if not (0 <= which < len(m.memory.islands) and m.memory.islands[which].writable):
                continue
            mine = island == which
            first = address[mine] & ((1 << ISLAND_BITS) - 1)
            atomic = op.perform is not None
            yield int(which), Access(
                d.ins.pc, op.global_bytes, first, row[mine], waves, numbers,
                atomic or _to_memory(d), atomic, op.scalar, atomic and op.is_load,
                None if words is None or words.all() else words[mine],
            )  # fmt: skip

    # --- reads -----------------------------------------------------------------------------------

    def _read(self, w: Waves, shadow: Shadow, access: Access, cap: Capture, at_once: bool):
        found = None
        if shadow.tags is not None:
            cells, row = shadow.cells(access)
            found = self._conflict(shadow, access, cells, row)
            if at_once and access.to_memory and shadow.announced is not None:
                self._take(shadow, access, cap)
        shadow.remember(access)
        return found

    def _take(self, shadow: Shadow, access: Access, cap: Capture) -> None:
        """Notes what a load has been told, for when it is waited for."""
        cells, row = shadow.cells(access)
        told = shadow.announced[cells]
        if not told.any():
            return
        if cap.gained is None:
            cap.gained = np.full(len(access.waves), NOTHING, object)
        for pair in np.unique(row[told > 0].astype(I64) << 32 | told[told > 0]).tolist():
            cap.gained[pair >> 32] |= self._clocks[pair & 0xFFFFFFFF]

    # --- writes ----------------------------------------------------------------------------------

    def _write(self, w: Waves, shadow: Shadow, access: Access, cap: Capture):
        shadow.open()
        cells, row = shadow.cells(access)
        announces = access.to_memory & (access.atomic | access.is_short())
        found = self._conflict(shadow, access, cells, row, announces)
        found = self._overtaken(w, shadow, access, announces) or found
        flags = access.to_memory * IN_MEMORY | announces * ANNOUNCEMENT
        tags = _tags(access.waves, access.numbers, access.pc, flags)
        if announces.any():
            self._announce(w, shadow, access, cap, cells, row, announces)
        elif shadow.announced is not None:
            shadow.announced[cells] = 0
        shadow.tags[cells] = tags[row]
        return found

    def _announce(self, w, shadow, access, cap, cells, row, announces) -> None:
        """Adds what each wave knows to the words it writes; an atomic also learns."""
        announced = shadow.open_announcements()
        learns = access.told
        if learns:
            cap.gained = np.full(len(access.waves), NOTHING, object)
        places = self.knowledge.places(w)
        for i in np.unique(row).tolist():
            mine = cells[row == i]
            if not announces[i]:
                announced[mine] = 0
                continue
            own = self.knowledge.announced(places[i], int(w.retired_vm[i]), int(access.numbers[i]))
            if not access.atomic:
                announced[mine] = self._number(own)
                continue
            before = announced[mine]
            for number in np.unique(before).tolist():
                if learns:
                    cap.gained[i] = cap.gained[i] | self._clocks[number]
                announced[mine[before == number]] = self._number(self._clocks[number] | own)

    def _number(self, clock: Clock) -> int:
        self._clocks.append(clock)
        return len(self._clocks) - 1

    # --- verdicts --------------------------------------------------------------------------------

    def _conflict(self, shadow, access, cells, row, announces=None):
        """Finds a write that this access may not follow; returns (row, reason)."""
        tags = shadow.tags[cells]
        if not tags.any():
            return None
        foreign = tags >> _WAVE_SHIFT != access.waves[row] + 1
        foreign &= tags != 0
        if not foreign.any():
            return None
        pairs = np.unique(np.stack([row[foreign], tags[foreign]]), axis=1)
        for i, tag in pairs.T.tolist():
            reason = self._objection(access, i, tag, announces)
            if reason:
                at = int(cells[foreign & (row == i) & (tags == tag)][0]) * shadow.cell
                return i, f"byte {at} of a buffer: {reason}"
        return None

    def _objection(self, access: Access, i: int, tag: int, announces) -> str | None:
        """Says what keeps row `i` from relying on the write `tag`, or None."""
        wave, number = (tag >> _WAVE_SHIFT) - 1, tag >> _NUMBER_SHIFT & _NUMBER
        (group, place), (mine, own) = (divmod(x, self.size) for x in (wave, int(access.waves[i])))
        writes = announces is not None
        if tag & ANNOUNCEMENT and (announces[i] if writes else access.to_memory):
            return None
        k = self.knowledge
        batch = k.index_of[mine]
        if group == mine:
            if k.local[batch, own, place] >= number:
                return None
            return f"no wait and barrier after wave {place} wrote it ({self._line(tag)})"
        known, fresh = k.known[batch][own], k.fresh[batch][own]
        key = (id(known), id(fresh), tag, writes, access.to_memory)
        if key in self._proven:
            return None
        author = _Author(wave, number, tag, f"workgroup {group}", self._line(tag))
        reason = _disorder(author, known, writes) or _staleness(
            author, access, known, fresh, writes
        )
        if reason is None:
            self._proven[key] = (known, fresh)
        return reason

    def _line(self, tag: int) -> str:
        return str(self.kernel.instructions[tag >> FLAG_BITS & _PC])

    def _overtaken(self, w: Waves, shadow: Shadow, access: Access, announces):
        """Finds a read of another wave that this write may overtake; returns (row, reason)."""
        near = shadow.reads_near(access)
        if not near:
            return None
        order = np.argsort(access.first, kind="stable")
        first, rows = access.first[order], access.row[order]
        for read in near:
            below = np.searchsorted(first, read.first - access.size, side="right")
            hit = below < np.searchsorted(first, read.first + read.size)
            if not hit.any():
                continue
            pairs = np.stack([read.row[hit], rows[below[hit]]])
            other = read.waves[pairs[0]] != access.waves[pairs[1]]
            for reader, writer in np.unique(pairs[:, other], axis=1).T.tolist():
                if announces[writer] and read.to_memory:
                    continue
                reason = self._overtakes(access, writer, read, reader)
                if reason:
                    return writer, reason
        return None

    def _overtakes(self, access: Access, i: int, read: Access, j: int) -> str | None:
        """Says why the write of row `i` may come before the read of row `j`, or None."""
        wave, number = int(read.waves[j]), int(read.numbers[j])
        group, place = divmod(wave, self.size)
        mine, own = divmod(int(access.waves[i]), self.size)
        k = self.knowledge
        batch = k.groups.index(mine)
        if group == mine:
            done = int(k.local[batch, own, place])
        else:
            done = k.known[batch][own].done.get(wave, -1)
        if done >= number:
            return None
        reader = self.kernel.instructions[read.pc]
        return f"written without order after workgroup {group} wave {place} read it ({reader})"


class _Author(NamedTuple):
    """The last writer of a cell, in another workgroup."""

    wave: int
    number: int
    tag: int
    group: str
    line: str


def _disorder(a: _Author, known: Clock, writes: bool) -> str | None:
    """Says why an access may come before the write, or None."""
    seen = known.seen.get(a.wave, -1) >= a.number
    if known.done.get(a.wave, -1) >= a.number or (a.tag & ANNOUNCEMENT and seen):
        return None
    if seen:
        verb = "overwrites" if writes else "reads"
        return f"{verb} what {a.group} announced before it had waited for {a.line}"
    verb = "written" if writes else "read"
    return f"{verb} without order after {a.group} wrote it ({a.line})"


def _staleness(a: _Author, access: Access, known: Clock, fresh: Clock, writes: bool) -> str | None:
    """Says which cache may stand between a write and an access that comes after it, or None."""
    if not a.tag & IN_MEMORY and known.flushed.get(a.wave, -1) < a.number:
        return (
            f"may be in the L2 of another XCD: {a.group} stored it without sc1, and announced it "
            f"without buffer_wbl2 sc1 ({a.line})"
        )
    if access.scalar:
        return f"the scalar cache may be older than what {a.group} wrote ({a.line})"
    if not (writes or access.to_memory) and fresh.done.get(a.wave, -1) < a.number:
        return (
            f"a cache may be older than what {a.group} wrote: no sc1, and no buffer_inv sc1 since "
            f"that was announced ({a.line})"
        )
    return None


class _Rows:
    """Some waves of a front."""

    def __init__(self, w: Waves, rows: np.ndarray):
        self.ids, self.issued_vm = w.ids[rows], w.issued_vm[rows]


def _to_memory(d: Decoded) -> bool:
    return "sc1" in d.ins.mods
