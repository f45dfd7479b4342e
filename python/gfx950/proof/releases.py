"""Finds data that a workgroup announces to others before its stores have completed.

Workgroups order their work with atomics. A wave that has not waited for a store before its
atomic lets others see the announcement first, and in order nothing shows it:

    store, s_waitcnt vmcnt(0), atomic     announced
    store, atomic                         remembered, until the wave's next atomic after a wait

A load by another workgroup of bytes that are remembered is a race.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from gfx950.isa.state import Waves
from gfx950.memory.access import Capture
from gfx950.proof.hazards import Pending

PAGE_BITS = 12


@dataclass(eq=False)
class Remembered:
    """A wave's stores of one instruction that an atomic has overtaken."""

    group: int
    first: np.ndarray
    """First bytes of the lanes, ascending."""
    size: int
    text: str

    def touches(self, first: np.ndarray, size: int) -> bool:
        """Says whether loads of `size` bytes from `first` meet one of these bytes."""
        below = np.searchsorted(self.first, first - self.size, side="right")
        return bool((below < np.searchsorted(self.first, first + size)).any())


class Releases:
    """What the waves of a grid have stored and not announced properly."""

    def __init__(self, waves_per_group: int):
        self._waves_per_group = waves_per_group
        self._by_wave: dict[int, list[Remembered]] = {}
        self._by_page: dict[int, list[Remembered]] = defaultdict(list)

    def announce(self, w: Waves, numbers: np.ndarray) -> None:
        """Notes an atomic by waves, whose numbers in the grid are given."""
        stores = [entry for entry in w.queue if entry.op.is_store]
        if not stores and self._by_wave.keys().isdisjoint(numbers.tolist()):
            return
        for row in np.flatnonzero(w.exec_mask.any(1)):
            number = int(numbers[row])
            self._forget(number)
            for entry in stores:
                self._remember(number, entry, int(row))

    def _remember(self, number: int, entry: Pending, row: int) -> None:
        if entry.rows is not None:
            found = np.flatnonzero(entry.rows == row)
            if not len(found):
                return
            row = int(found[0])
        first = np.sort(_addresses(entry.cap, row))
        if len(first):
            size = entry.op.global_bytes
            kept = Remembered(number // self._waves_per_group, first, size, str(entry.d.ins))
            self._by_wave.setdefault(number, []).append(kept)
            for page in _pages(first, size):
                self._by_page[page].append(kept)

    def _forget(self, number: int) -> None:
        for kept in self._by_wave.pop(number, ()):
            for page in _pages(kept.first, kept.size):
                self._by_page[page].remove(kept)

    def read(self, numbers: np.ndarray, cap: Capture, size: int) -> tuple[int, str] | None:
        """Returns the row of a wave whose load is a race, and why; None if there is none."""
        if not self._by_wave:
            return None
        for row, number in enumerate(numbers.tolist()):
            first = _addresses(cap, row)
            for page in _pages(first, size):
                for kept in self._by_page.get(page, ()):
                    other = kept.group != number // self._waves_per_group
                    if other and kept.touches(first, size):
                        return row, (
                            f"reads what workgroup {kept.group} announced before it had waited "
                            f"for {kept.text}"
                        )
        return None


def _addresses(cap: Capture, row: int) -> np.ndarray:
    """Returns the first bytes of a wave's active lanes that are within their buffer."""
    lanes = cap.exec_mask[row]
    if cap.inside is not None:
        lanes = lanes & cap.inside[row].any(0)
    return cap.address[row][lanes]


def _pages(first: np.ndarray, size: int) -> list[int]:
    ends = np.concatenate([first, first + size - 1]) >> PAGE_BITS
    return np.unique(ends).tolist()
