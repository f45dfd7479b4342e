"""Who wrote each byte of an island of global memory, and who has read it.

A write leaves a tag of 64 bits in every cell it touches; a cell is a word, or a byte once
somebody has written less than a word:

    tag     wave + 1 | number of the operation | instruction | announcement, in memory
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

I64 = np.int64
WORD = 4
FLAG_BYTES = 8
"""What hardware reads and writes at once."""
IN_MEMORY, ANNOUNCEMENT = 1, 2
"""Of a write: it went past the L2; others may read it without further order."""
FLAG_BITS, PC_BITS, NUMBER_BITS = 2, 16, 22
_PC, _NUMBER = (1 << PC_BITS) - 1, (1 << NUMBER_BITS) - 1
_NUMBER_SHIFT = FLAG_BITS + PC_BITS
_WAVE_SHIFT = _NUMBER_SHIFT + NUMBER_BITS


def tags_of(access: Access, flags: np.ndarray) -> np.ndarray:
    """Returns the tag that each row of an access leaves."""
    low = (access.numbers.astype(I64) & _NUMBER) << _NUMBER_SHIFT
    return (access.waves.astype(I64) + 1) << _WAVE_SHIFT | low | access.pc << FLAG_BITS | flags


def author_waves(tags: np.ndarray) -> np.ndarray:
    """Returns the wave of each tag, -1 where nobody has written."""
    return (tags >> _WAVE_SHIFT) - 1


class Author(NamedTuple):
    """The last writer of a cell: the wave, which of its operations, the instruction."""

    wave: int
    number: int
    pc: int
    announces: bool
    is_in_memory: bool

    @classmethod
    def of(cls, tag: int) -> Author:
        """Takes a tag apart."""
        return cls(
            (tag >> _WAVE_SHIFT) - 1, tag >> _NUMBER_SHIFT & _NUMBER, tag >> FLAG_BITS & _PC,
            bool(tag & ANNOUNCEMENT), bool(tag & IN_MEMORY),
        )  # fmt: skip


class Cells(NamedTuple):
    """What an access touches."""

    at: np.ndarray
    row: np.ndarray
    """Row of the access to which each cell belongs."""
    values: np.ndarray | None
    """What a store leaves there."""


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
    inside: np.ndarray | None
    """Words of each lane [lanes, words] within their buffer; None if all are."""
    data: np.ndarray | None
    """Words that a store writes [lanes, words]."""
    to_memory: bool
    """sc1: neither L1 nor L2 answers or keeps it."""
    atomic: bool
    told: bool
    """Whether an atomic returns what was there."""
    scalar: bool

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
    values: np.ndarray | None = None
    """What stores left: two waves may write the same."""
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

    def cells(self, access: Access) -> Cells:
        """Returns the cells of an access."""
        if self.cell == WORD and (access.size % WORD or (access.first & (WORD - 1)).any()):
            self._split()
        steps = np.arange(-(-access.size // self.cell))
        at = (access.first // self.cell)[:, None] + steps
        row = np.broadcast_to(access.row[:, None], at.shape)
        values = access.data
        if values is not None and self.cell != WORD:
            values = np.ascontiguousarray(values).view(np.uint8)[:, : access.size]
        if access.inside is None:
            return Cells(at.ravel(), row.ravel(), None if values is None else values.ravel())
        kept = access.inside[:, steps * self.cell // WORD]
        return Cells(at[kept], row[kept], None if values is None else values[kept])

    def _split(self) -> None:
        """Turns cells of words into cells of bytes."""
        self.cell = 1
        for name in ("tags", "announced"):
            if getattr(self, name) is not None:
                setattr(self, name, np.repeat(getattr(self, name), WORD))
        if self.values is not None:
            self.values = self.values.view(np.uint8)

    def open(self) -> np.ndarray:
        """Returns the tags of all cells."""
        if self.tags is None:
            words = -(-self.size // WORD) + WORD
            self.tags = np.zeros(words * WORD // self.cell, I64)
            self.values = np.zeros(words, np.uint32)
            self.values = self.values if self.cell == WORD else self.values.view(np.uint8)
        return self.tags

    def open_announced(self) -> np.ndarray:
        """Returns the clocks of all cells."""
        if self.announced is None:
            self.announced = np.zeros(len(self.open()), np.int32)
        return self.announced
