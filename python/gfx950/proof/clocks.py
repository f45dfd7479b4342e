"""What a wave may rely on of others' memory operations: happens-before, as vector clocks.

A wave numbers its vector memory operations 1, 2, .. as it issues them. `Clock` says of other
waves up to which number

    done       operations have completed, whatever the memory system does
    seen       an announcement (atomic or flag) has been seen; what it announces is in `done`
    flushed    plain stores have been written back from their L2

Knowledge spreads in two ways. A barrier: every wave of the workgroup learns what any of them
knew, and which of its own operations each had waited for. An announcement: whoever reads the
word after it learns what the announcer knew, once its read has completed. Plain loads may be
answered by L1 and L2, so they rely on what was known at the last `buffer_inv sc1` instead.
"""

from __future__ import annotations

import numpy as np

from gfx950.isa.state import Waves


def _latest(a: dict[int, int], b: dict[int, int]) -> dict[int, int]:
    """Returns the larger number of each wave."""
    if len(a) < len(b):
        a, b = b, a
    if not b:
        return a
    joined = dict(a)
    for wave, number in b.items():
        if joined.get(wave, -1) < number:
            joined[wave] = number
    return joined


class Clock:
    """What is known of other waves, by their number in the grid. Never changed once made."""

    __slots__ = ("done", "flushed", "seen")

    def __init__(self, done: dict[int, int], seen: dict[int, int], flushed: dict[int, int]):
        self.done, self.seen, self.flushed = done, seen, flushed

    def __or__(self, other: Clock) -> Clock:
        if other is self or other is NOTHING:
            return self
        if self is NOTHING:
            return other
        return Clock(
            _latest(self.done, other.done),
            _latest(self.seen, other.seen),
            _latest(self.flushed, other.flushed),
        )


NOTHING = Clock({}, {}, {})


def joined(clocks) -> Clock:
    """Returns what any of these clocks knows."""
    total = NOTHING
    for clock in clocks:
        total = total | clock
    return total


class Knowledge:
    """What each wave of a batch of workgroups knows."""

    def __init__(self, groups: list[int], waves_per_group: int):
        self.groups, self.size = groups, waves_per_group
        self.index_of = {group: index for index, group in enumerate(groups)}
        """Place in the batch of each workgroup."""
        shape = (len(groups), waves_per_group)
        self.local = np.zeros((*shape, waves_per_group), np.int64)
        """Operations of each wave [.., j] that wave [g, i] of the same workgroup knows complete."""
        self.known = [[NOTHING] * waves_per_group for _ in groups]
        self.fresh = [[NOTHING] * waves_per_group for _ in groups]
        """What a wave knew when it, or one before a barrier, last emptied the caches."""
        self._flushing: dict[int, dict[int, int]] = {}
        """Write-backs that no wait has proven, by wave of the batch: stores they cover."""
        self._alone = True
        """Whether nobody knows anything of another workgroup."""

    def places(self, w: Waves) -> list[tuple[int, int]]:
        """Returns each wave's workgroup in the batch and place in it."""
        return [divmod(number, self.size) for number in w.ids.tolist()]

    def barrier(self, parts: list[Waves], groups: np.ndarray) -> None:
        """The waves in `parts`, all that live of `groups`, pass a barrier."""
        for w in parts:
            group, wave = np.divmod(w.ids, self.size)
            self.local[group, wave, wave] = w.retired_vm
        self.local[groups] = self.local[groups].max(axis=1, keepdims=True)
        if self._alone:
            return
        for group in groups.tolist():
            for rows in (self.known, self.fresh):
                if any(clock is not rows[group][0] for clock in rows[group]):
                    rows[group] = [joined(rows[group])] * self.size

    def announced(self, place: tuple[int, int], retired: int, own: int) -> Clock:
        """Returns what a wave tells by its operation number `own`."""
        group, wave = place
        known, first = self.known[group][wave], self.groups[group] * self.size
        done = dict(known.done)
        for other, number in enumerate(self.local[group, wave].tolist()):
            done[first + other] = max(number, done.get(first + other, 0))
        done[first + wave] = retired
        return Clock(done, {**known.seen, first + wave: own}, known.flushed)

    def gain(self, place: tuple[int, int], clock: Clock) -> None:
        """A wave has read an announcement."""
        group, wave = place
        self._alone = False
        self.known[group][wave] = self.known[group][wave] | clock
        first = self.groups[group] * self.size
        for other in range(self.size):
            number = clock.done.get(first + other, 0)
            self.local[group, wave, other] = max(number, self.local[group, wave, other])

    def invalidate(self, w: Waves) -> None:
        """Waves empty their caches of what other XCDs may have changed."""
        for group, wave in self.places(w):
            self.fresh[group][wave] = self.known[group][wave]

    def write_back(self, w: Waves) -> None:
        """Waves begin to write their L2 back: their own stores, and those known complete."""
        for row, (group, wave) in enumerate(self.places(w)):
            first = self.groups[group] * self.size
            covered = {first + j: n for j, n in enumerate(self.local[group, wave].tolist())}
            covered[first + wave] = int(w.issued_vm[row])
            self._flushing[int(w.ids[row])] = covered

    def drained(self, w: Waves) -> None:
        """Waves have waited for all their memory operations."""
        if not self._flushing:
            return
        for number in w.ids.tolist():
            covered = self._flushing.pop(number, None)
            if covered:
                self.gain(divmod(number, self.size), Clock({}, {}, covered))
