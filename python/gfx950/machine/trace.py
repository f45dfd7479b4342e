"""What a run did, wave by wave: the input of the timing model and of the timeline.

Waves that stand at the same instruction step together, so one `Event` covers them all:

    Event     pc          index into `kernel.instructions`
              waves       [n]          number of each wave, workgroup * waves_per_group + wave
              exec_mask   [n, 64]      lanes that took part
              global_addr [n, 64]      byte address of each lane, or None
              lds_addr    [n, 64, p]   LDS byte address of each lane and part, or None

`p` is 2 for read2 / write2 and 1 otherwise; lanes outside `exec_mask` hold arbitrary numbers.
Events of one wave are in program order; events of different waves are in no special order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gfx950.isa.asm import Instruction, Kernel


@dataclass(slots=True)
class Event:
    """One instruction issued by `waves` together."""

    pc: int
    waves: np.ndarray
    exec_mask: np.ndarray
    global_addr: np.ndarray | None = None
    global_bytes: int = 0
    """Bytes each lane moves between global memory and registers or LDS."""
    lds_addr: np.ndarray | None = None
    lds_bytes: int = 0
    """Bytes each lane moves per part of `lds_addr`."""

    def take(self, rows: np.ndarray) -> Event:
        """Returns what some of the waves did."""
        global_addr, lds_addr = (
            None if array is None else array[rows] for array in (self.global_addr, self.lds_addr)
        )
        return Event(self.pc, self.waves[rows], self.exec_mask[rows], global_addr,
                     self.global_bytes, lds_addr, self.lds_bytes)  # fmt: skip


@dataclass(slots=True)
class WaveStep:
    """One instruction of one wave; arrays are the wave's row of the `Event`."""

    instruction: Instruction
    exec_mask: np.ndarray
    global_addr: np.ndarray | None
    global_bytes: int
    lds_addr: np.ndarray | None
    lds_bytes: int


@dataclass
class Trace:
    """All events of a run, and enough of the launch to place them."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    waves_per_group: int
    groups: list[int] = field(default_factory=list)
    """Linear indices of the workgroups that were executed, in execution order."""
    events: list[Event] = field(default_factory=list)

    def wave_numbers(self) -> list[int]:
        """Returns the number of every wave that executed."""
        return [
            g * self.waves_per_group + w for g in self.groups for w in range(self.waves_per_group)
        ]

    def wave(self, number: int) -> Iterator[WaveStep]:
        """Yields the steps of one wave in program order."""
        for event in self.events:
            for row in np.flatnonzero(event.waves == number):
                yield WaveStep(
                    self.kernel.instructions[event.pc],
                    event.exec_mask[row],
                    None if event.global_addr is None else event.global_addr[row],
                    event.global_bytes,
                    None if event.lds_addr is None else event.lds_addr[row],
                    event.lds_bytes,
                )
