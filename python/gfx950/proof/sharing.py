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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gfx950.isa.operands import Decoded
from gfx950.isa.state import Waves
from gfx950.memory.access import Capture
from gfx950.memory.islands import FIRST_ISLAND, ISLAND_BITS, distinct
from gfx950.proof.cells import (
    ANNOUNCEMENT,
    IN_MEMORY,
    Access,
    Author,
    Cells,
    Shadow,
    author_waves,
    tags_of,
)
from gfx950.proof.clocks import NOTHING, Clock, Knowledge

I64 = np.int64
NEVER = -1


@dataclass(frozen=True)
class Place:
    """A wave: its workgroup in the grid, that workgroup in the batch, the wave in both."""

    group: int
    index: int
    wave: int


class Sharing:
    """Follows what the waves of a launch write for each other."""

    def __init__(self, kernel, waves_per_group: int):
        self.kernel, self.size = kernel, waves_per_group
        self.knowledge: Knowledge | None = None
        self._shadows: dict[int, Shadow] = {}
        self._clocks: list[Clock] = [NOTHING]
        """What words announce, by `Shadow.announced`."""
        self._proven: dict[tuple, tuple] = {}
        """What has been found in order; keeps the clocks whose identity is part of the key."""

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
        for island, access in _accesses(m, w, d, cap):
            shadow = self._shadows.setdefault(island, Shadow(m.memory.islands[island].size))
            if d.memory.is_store:
                found = self._write(w, shadow, access, cap) or found
            else:
                found = self._read(shadow, access, None if m.late else cap) or found
        return found

    def landed(self, m, w: Waves, d: Decoded, cap: Capture, rows: np.ndarray | None) -> None:
        """An operation has been waited for: its waves know what they have been told."""
        part = w if rows is None else _Rows(w, rows)
        if m.late and d.memory.is_load and d.memory.perform is None and _asks_memory(d):
            for island, access in _accesses(m, part, d, cap):
                shadow = self._shadows.get(island)
                if shadow is not None and shadow.announced is not None:
                    self._listen(shadow, access, shadow.cells(access), cap)
        if cap.gained is None:
            return
        for number, clock in zip(part.ids.tolist(), cap.gained, strict=True):
            if clock is not NOTHING:
                self.knowledge.gain(divmod(number, self.size), clock)

    def _read(self, shadow: Shadow, access: Access, cap: Capture | None):
        """Checks a read; `cap` is for what it is told, if it lands at once."""
        found = None
        if shadow.tags is not None:
            cells = shadow.cells(access)
            found = self._conflict(shadow, access, cells)
            if cap is not None and access.to_memory and shadow.announced is not None:
                self._listen(shadow, access, cells, cap)
        shadow.remember(access)
        return found

    def _listen(self, shadow: Shadow, access: Access, cells: Cells, cap: Capture) -> None:
        """Notes what a load has been told, for when it is waited for."""
        told = shadow.announced[cells.at]
        if not told.any():
            return
        if cap.gained is None:
            cap.gained = np.full(len(access.waves), NOTHING, object)
        pairs = cells.row[told > 0].astype(I64) << 32 | told[told > 0]
        for pair in np.unique(pairs).tolist():
            cap.gained[pair >> 32] |= self._clocks[pair & 0xFFFFFFFF]

    def _write(self, w: Waves, shadow: Shadow, access: Access, cap: Capture):
        shadow.open()
        cells = shadow.cells(access)
        announces = access.to_memory & (access.atomic | access.is_short())
        found = self._conflict(shadow, access, cells, announces)
        found = self._overtaken(shadow, access, announces) or found
        if shadow.announced is not None:
            keeps = announces[cells.row] & access.atomic
            shadow.announced[cells.at[~keeps]] = 0
        if access.told:
            cap.gained = np.full(len(access.waves), NOTHING, object)
        for i in np.flatnonzero(announces).tolist():
            place = divmod(int(w.ids[i]), self.size)
            own = self.knowledge.announced(place, int(w.retired_vm[i]), int(access.numbers[i]))
            before = self._announce(shadow, cells.at[cells.row == i], own)
            if access.told:
                cap.gained[i] = before
        flags = access.to_memory * IN_MEMORY | announces * ANNOUNCEMENT
        tags = tags_of(access, flags)[cells.row]
        shadow.tags[cells.at] = tags
        if cells.values is None:
            return found
        shadow.values[cells.at] = cells.values
        return found or _collision(shadow, cells, tags, announces)

    def _announce(self, shadow: Shadow, at: np.ndarray, own: Clock) -> Clock:
        """Adds a clock to what words announce; returns what they announced before."""
        announced, before = shadow.open_announced(), NOTHING
        old = announced[at]
        for number in distinct(old).tolist():
            before |= self._clocks[number]
            announced[at[old == number]] = len(self._clocks)
            self._clocks.append(self._clocks[number] | own)
        return before

    # --- verdicts --------------------------------------------------------------------------------

    def _place(self, wave: int) -> Place:
        group, own = divmod(wave, self.size)
        return Place(group, self.knowledge.index_of.get(group, NEVER), own)

    def _conflict(self, shadow: Shadow, access: Access, cells: Cells, announces=None):
        """Finds a write that this access may not follow; returns (row, reason)."""
        tags = shadow.tags[cells.at]
        if not tags.any():
            return None
        foreign = (tags != 0) & (author_waves(tags) != access.waves[cells.row])
        if cells.values is not None:
            foreign &= (cells.values != shadow.values[cells.at]) | (tags & ANNOUNCEMENT != 0)
        if not foreign.any():
            return None
        pairs = np.unique(np.stack([cells.row[foreign], tags[foreign]]), axis=1)
        for i, tag in pairs.T.tolist():
            reason = self._objection(access, i, tag, announces)
            if reason:
                mine = foreign & (cells.row == i) & (tags == tag)
                where = int(cells.at[mine][0]) * shadow.cell
                line = self.kernel.instructions[Author.of(tag).pc]
                return i, f"byte {where} of a buffer {reason} ({line})"
        return None

    def _objection(self, access: Access, i: int, tag: int, announces) -> str | None:
        """Says what keeps row `i` from relying on the write `tag`, or None."""
        author, writes = Author.of(tag), announces is not None
        if author.announces and (announces[i] if writes else access.to_memory):
            return None
        k, mine, other = self.knowledge, self._place(int(access.waves[i])), self._place(author.wave)
        if other.group == mine.group:
            if k.local[mine.index, mine.wave, other.wave] >= author.number:
                return None
            return f"has no wait and barrier after wave {other.wave} wrote it"
        known, fresh = k.known[mine.index][mine.wave], k.fresh[mine.index][mine.wave]
        key = (id(known), id(fresh), tag, writes, access.to_memory)
        if key in self._proven:
            return None
        reason = _disorder(author, known, writes)
        reason = reason or _staleness(author, access, known, fresh, writes)
        if reason:
            return reason.format(who=f"workgroup {other.group}")
        self._proven[key] = (known, fresh)
        return None

    def _overtaken(self, shadow: Shadow, access: Access, announces):
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
                wave, number = int(read.waves[reader]), int(read.numbers[reader])
                if not self._knows(int(access.waves[writer]), wave, number):
                    who = self._place(wave)
                    line = self.kernel.instructions[read.pc]
                    return writer, (
                        f"written without order after workgroup {who.group} wave {who.wave} "
                        f"read it ({line})"
                    )
        return None

    def _knows(self, wave: int, author: int, number: int) -> bool:
        """Says whether `wave` knows that operation `number` of `author` is complete."""
        mine, other = self._place(wave), self._place(author)
        if mine.group == other.group:
            return bool(self.knowledge.local[mine.index, mine.wave, other.wave] >= number)
        known = self.knowledge.known[mine.index][mine.wave]
        return known.done.get(author, NEVER) >= number


def _accesses(m, w: Waves, d: Decoded, cap: Capture) -> Iterator[tuple[int, Access]]:
    """Yields the writable islands that an instruction touches, and how.

    What begins outside all of them faults when it is performed.
    """
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
    op, atomic = d.memory, d.memory.perform is not None
    numbers = np.zeros_like(w.issued_vm) if op.scalar else w.issued_vm.copy()
    for which in distinct(island):
        if not (0 <= which < len(m.memory.islands) and m.memory.islands[which].writable):
            continue
        first = address & ((1 << ISLAND_BITS) - 1)
        mine = (island == which) & (first < m.memory.islands[which].size)
        if not mine.any():
            continue
        yield (
            int(which),
            Access(
                pc=d.ins.pc,
                size=op.global_bytes,
                first=first[mine],
                row=row[mine],
                waves=m.grid_numbers(w),
                numbers=numbers,
                data=cap.data[row[mine], :, lane[mine]] if op.is_store and not atomic else None,
                inside=None if words is None or words.all() else words[mine],
                to_memory=atomic or _asks_memory(d),
                atomic=atomic,
                told=atomic and op.is_load,
                scalar=op.scalar,
            ),
        )


def _collision(shadow: Shadow, cells: Cells, tags, announces) -> tuple[int, str] | None:
    """Finds a wave whose bytes another wave wrote by the same instruction."""
    lost = (shadow.tags[cells.at] != tags) & (shadow.values[cells.at] != cells.values)
    lost &= ~announces[cells.row]
    if not lost.any():
        return None
    first = np.flatnonzero(lost)[0]
    where = int(cells.at[first]) * shadow.cell
    return int(cells.row[first]), f"byte {where} of a buffer is written by another wave too"


def _disorder(author: Author, known: Clock, writes: bool) -> str | None:
    """Says why an access may come before the write of {who}, or None."""
    seen = known.seen.get(author.wave, NEVER) >= author.number
    if known.done.get(author.wave, NEVER) >= author.number or (author.announces and seen):
        return None
    if seen:
        return "was announced before {who} had waited for its store"
    verb = "written" if writes else "read"
    return f"is {verb} without order after {{who}} wrote it"


def _staleness(
    author: Author, access: Access, known: Clock, fresh: Clock, writes: bool
) -> str | None:
    """Says which cache may stand between the write of {who} and a later access, or None."""
    if not author.is_in_memory and known.flushed.get(author.wave, NEVER) < author.number:
        return (
            "may be in the L2 of another XCD: {who} stored it without sc1, and announced it "
            "without buffer_wbl2 sc1"
        )
    if access.scalar:
        return "may be older in the scalar cache than what {who} wrote"
    if not (writes or access.to_memory) and fresh.done.get(author.wave, NEVER) < author.number:
        return (
            "may be older in a cache than what {who} wrote: no sc1, and no buffer_inv sc1 since "
            "that was announced"
        )
    return None


class _Rows:
    """Some waves of a front."""

    def __init__(self, w: Waves, rows: np.ndarray):
        self.ids, self.issued_vm = w.ids[rows], w.issued_vm[rows]


def _asks_memory(d: Decoded) -> bool:
    """Says whether L1 and L2 are passed by."""
    return "sc1" in d.ins.mods
