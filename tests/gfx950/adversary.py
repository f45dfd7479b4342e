"""Executes a launch in orders, and on caches, that hardware may choose and that hurt most.

Nothing here asks the checker. A kernel relies on luck if any of these runs changes its results:

    late       memory answers when a wait demands it; until then registers hold anything
    orders     waves run alone and give way at random, or one of them as far as it gets
    caches     every workgroup has an XCD of its own: what it loaded once, or might have, it sees
               again until `buffer_inv sc1`; what it stores without `sc1` nobody sees before
               `buffer_wbl2 sc1` or the end of the launch

Atomics happen in memory. LLVM's memory model for gfx942 allows all of it.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import numpy as np

import gfx950
from gfx950.isa.operands import Decoded
from gfx950.isa.state import POISON
from gfx950.machine import execute
from gfx950.memory.islands import GlobalMemory

U32 = np.uint32


class Greedy(random.Random):
    """Chooses the first or the last wave, which gives way to another one only every so often."""

    PATIENCE = 64

    def __init__(self, last: bool):
        super().__init__(0)
        self.last, self.asked, self.is_tired = last, 0, False

    def random(self) -> float:
        self.asked += 1
        self.is_tired = self.asked % self.PATIENCE == 0
        return 0.0 if self.is_tired else 1.0

    def randrange(self, count: int) -> int:
        if self.is_tired:
            return self.asked // self.PATIENCE % count
        return count - 1 if self.last else 0


@dataclass(frozen=True)
class Adversary:
    """One way to execute a launch."""

    late: bool = False
    order: int | str | None = None
    """Of workgroups; with a number, waves run alone in an order of this seed."""
    greedy: str = ""
    """`first` or `last`: which wave runs as far as it gets."""
    caches: bool = False
    stale: int = POISON
    """What registers hold until memory answers."""

    def run(self, kernel, launch, steps: int) -> list[bytes]:
        """Returns the results of a launch, given as a function that makes fresh arguments.

        Raises:
            SimulationError: if the launch faults, or a wave takes more than so many steps.
        """
        grid, block, args, results = launch()
        alone = self.greedy or isinstance(self.order, int)
        module = sys.modules["gfx950.machine.run"]
        machine = partial(_Machine, adversary=self)
        with (
            mock.patch.object(module, "Machine", machine),
            mock.patch.object(execute, "POISON", self.stale),
        ):
            groups = grid[0] * grid[1] * grid[2]
            gfx950.run(kernel, grid, block, args, check=False, late=self.late, order=self.order,
                       lockstep=not alone, batch=groups, steps=steps)  # fmt: skip
        return [np.ascontiguousarray(array).tobytes() for array in results]


LARGE = 0x4F804F80
"""2**32 in float32 and bfloat16, and a number as float16."""
QUICK = (
    Adversary(late=True),
    Adversary(late=True, stale=LARGE),
    Adversary(late=True, stale=0, order="reverse", caches=True),
)
"""Waves in step: a tenth of the time of the others."""
ADVERSARIES = (
    *QUICK,
    Adversary(caches=True),
    *(Adversary(greedy=which, late=True) for which in ("first", "last")),
    *(Adversary(order=seed, late=late, caches=True) for seed, late in ((1, True), (2, False))),
)


class _Machine(execute.Machine):
    """Executes as an adversary chooses."""

    def __init__(self, *args, adversary: Adversary, **options):
        super().__init__(*args, **options)
        if adversary.greedy:
            self.rng = Greedy(adversary.greedy == "last")
        if adversary.caches:
            self.memory = _Caches()
            self.code = [self._through_caches(d) for d in self.code]

    def run_groups(self, groups, arguments) -> None:
        super().run_groups(groups, arguments)
        if isinstance(self.memory, _Caches):
            self.memory.write_back(list(self.memory.views))

    def _through_caches(self, d: Decoded) -> Decoded:
        """Tells the caches who asks."""
        bits, caches, size = d.ins.mods, self.memory, self.waves_per_group
        if d.kind == "cache" and "sc1" in bits:
            is_write_back = d.ins.name == "buffer_wbl2"
            act = caches.write_back if is_write_back else caches.invalidate

            def run(w) -> None:
                if is_write_back:
                    self._land_stores(w)
                act(set((w.ids // size).tolist()))

            return replace(d, run=run)
        op = d.memory
        if op is None or not op.global_bytes or op.perform is not None:
            return d

        def complete(m, w, rows, cap) -> None:
            caches.asking = w.ids[rows] // size, "sc1" in bits, op.scalar
            op.complete(m, w, rows, cap)
            caches.asking = None

        return replace(d, memory=replace(op, complete=complete))

    def _land_stores(self, w) -> None:
        """What waves have stored is in their L2 when it is written back."""
        for entry in w.queue:
            if entry.op.is_store and not entry.complete:
                self._complete(w, entry, entry.rows)
                entry.complete = True


class _View:
    """What a workgroup finds in its caches, and which bytes it has stored there alone."""

    def __init__(self, memory: list[np.ndarray]):
        self.data = [data.copy() for data in memory]
        self.dirty = [np.zeros_like(data) for data in memory]


class _Caches(GlobalMemory):
    """Memory behind a write-back cache of each workgroup."""

    def __init__(self) -> None:
        super().__init__()
        self.views: dict[int, _View] = {}
        self.first: _View | None = None
        """Memory as the launch found it: what scalar loads see."""
        self.asking: tuple | None = None
        """Workgroup of each row, whether L2 is passed by, whether the load is scalar."""

    def _memory(self) -> list[np.ndarray]:
        return [island.data for island in self.islands]

    def _view(self, group: int) -> _View:
        if self.first is None:
            self.first = _View(self._memory())
        return self.views.setdefault(group, _View(self.first.data))

    def _on(self, arrays, act, *args):
        """Lets the base class work on other bytes."""
        own = self._memory()
        for island, data in zip(self.islands, arrays, strict=False):
            island.data = data
        try:
            return act(*args)
        finally:
            for island, data in zip(self.islands, own, strict=True):
                island.data = data

    def load(self, addr, mask, size):
        groups, past, scalar = self.asking
        total = 0
        for group in np.unique(groups).tolist():
            view, lanes = self._view(group), mask & (groups == group)[:, None]
            seen = view.data
            if scalar:
                seen = self.first.data
            elif past:
                layers = zip(view.dirty, view.data, self._memory(), strict=False)
                seen = [np.where(dirty, data, memory) if dirty.any() else memory
                        for dirty, data, memory in layers]  # fmt: skip
            total = total | self._on(seen, super().load, addr, lanes, size)
        return total

    def store(self, addr, mask, data, size) -> None:
        groups, past, _ = self.asking
        for group in np.unique(groups).tolist():
            view, lanes = self._view(group), mask & (groups == group)[:, None]
            self._on(view.data, super().store, addr, lanes, data, size)
            if past:
                super().store(addr, lanes, data, size)
            ones = np.full_like(data, 0 if past else 0xFFFFFFFF)
            self._on(view.dirty, super().store, addr, lanes, ones, size)

    def invalidate(self, groups) -> None:
        """Workgroups forget what they have loaded."""
        for group in groups:
            view = self._view(group)
            for mine, dirty, memory in zip(view.data, view.dirty, self._memory(), strict=False):
                np.copyto(mine, memory, where=dirty == 0)

    def write_back(self, groups) -> None:
        """What workgroups have stored reaches memory."""
        for group in groups:
            view = self._view(group)
            for mine, dirty, memory in zip(view.data, view.dirty, self._memory(), strict=False):
                np.copyto(memory, mine, where=dirty != 0)
                dirty[:] = 0
