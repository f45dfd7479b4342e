"""Do the kernels of `mojo_kernels/cdna4` share by luck? All that orders them is tampered with.

Every mutant (mutations.py) of every kernel (landed.py) is judged twice: by `check`, at once and
late, and by adversaries that know nothing of it (adversary.py). What `check` lets pass must be
harmless: no adversary changes a result, and it is one of

    never executed       the launch does not come there
    proves nothing       whenever the wait runs, its operations have been waited for already
    proves too much      it proves what the launch does not rely on before the next wait
    ordered twice        another barrier orders what waves share; this one is for their pace
    read after the end   a store whose bytes no other wave touches again in the launch
    no order             `nt` says how long caches keep a line, and nothing of order
    in memory            an atomic happens in memory, with sc1 and without

The last two are what the memory model says; they and the first two, of which the kernel as it is
says that nothing changes, are counted without being run. One in three waits of a kernel is tampered
with, which ones depends on the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

import gfx950
from gfx950.memory.islands import ISLAND_BITS
from tests.cdna4.support import Decode
from tests.gfx950 import landed
from tests.gfx950.adversary import ADVERSARIES, QUICK
from tests.gfx950.mutations import Mutant, mutants

BY_THE_MODEL = {"store nt": "no order", "load nt": "no order", "atomic sc1": "in memory"}
MAY_BE_HARMLESS = {"store sc1"}
"""Kinds of which a kernel may have harmless ones alone: sums that are set back to zero."""
WAITS = 3
"""One in so many waits is tampered with: they are most of what there is, and alike."""
ISLAND = 1 << ISLAND_BITS
ENDLESS = 30
"""Times the steps of the kernel as it is: whoever takes more waits for ever."""
SHARE = 0.98
"""Of what changes a result, at least, must be caught. Where nothing is missed that is all of it, so
adversaries meet what is caught until as much changes as what is missed asks for: at least one."""


@dataclass
class Verdicts:
    """What became of the mutants of one kernel."""

    caught: list[Mutant] = field(default_factory=list)
    harmless: Counter = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)


class Subject:
    """A kernel, and what its launch does as it is."""

    def __init__(self, kernel: landed.Landed):
        self.landed, self.kernel = kernel, kernel.kernel
        grid, block, args, _ = kernel.launch()
        result = gfx950.run(self.kernel, grid, block, args, trace=True)
        assert result.hazards == []
        self.executed = {event.pc for event in result.trace.events} | result.proofs.keys()
        self.proofs, self.trace = result.proofs, result.trace
        self.steps = ENDLESS * result.wave_instructions
        first, *others = (self.results(self.kernel, adversary) for adversary in ADVERSARIES)
        assert all(other == first for other in others), "adversaries change the kernel as it is"
        self.expected = first

    def results(self, kernel, adversary):
        """Returns the bytes that a launch leaves."""
        return adversary.run(kernel, self.landed.launch, self.steps)

    def is_caught(self, kernel, launch) -> bool:
        """Whether `check` objects."""
        for late in (False, True):
            grid, block, args, _ = launch()
            try:
                gfx950.run(kernel, grid, block, args, late=late, first_finding=True)
            except gfx950.SimulationError:
                return True
        return False

    def changes(self, kernel, adversaries) -> bool:
        """Whether an adversary gets other results, or none."""
        for adversary in adversaries:
            try:
                if self.results(kernel, adversary) != self.expected:
                    return True
            except gfx950.SimulationError:
                return True
        return False

    def judge(self, mutant: Mutant, verdicts: Verdicts) -> None:
        """Adds what becomes of a mutant."""
        if mutant.kind in BY_THE_MODEL:
            verdicts.harmless[BY_THE_MODEL[mutant.kind]] += 1
            return
        if nothing := self.nothing(mutant):
            verdicts.harmless[nothing] += 1
            return
        caught = self.is_caught(mutant.kernel, self.landed.launch)
        if not caught and mutant.kind == "store sc1" and self.landed.wide:
            caught = self.is_caught(mutant.kernel, self.landed.wide)
        if caught:
            verdicts.caught.append(mutant)
            return
        reason = self.reason(mutant)
        if reason is None or self.changes(mutant.kernel, ADVERSARIES):
            verdicts.missed.append(mutant.label)
        else:
            verdicts.harmless[reason] += 1

    def as_many_change(self, caught: list[Mutant], wanted: float) -> bool:
        """Whether so many of the mutants change results, tried until they do.

        Waits by adversaries in step: the others may need another order.
        """
        changing = 0
        for mutant in caught:
            quick = mutant.kind == "wait"
            changing += self.changes(mutant.kernel, QUICK if quick else ADVERSARIES)
            if changing >= wanted:
                return True
        return False

    def nothing(self, mutant: Mutant) -> str:
        """Says why a launch is the same with a mutant, nothing if another one may differ."""
        is_wait = mutant.kind == "wait"
        if mutant.pc not in self.executed and (is_wait or not self.landed.wide):
            return "never executed"
        return "proves nothing" if is_wait and not self.proofs.get(mutant.pc) else ""

    def reason(self, mutant: Mutant) -> str | None:
        """Says why a mutant that `check` lets pass may be harmless, None if nothing does."""
        if mutant.pc not in self.executed:
            return "never executed"
        if mutant.kind == "wait":
            return "proves too much"
        if mutant.kind == "barrier":
            return "ordered twice"
        if mutant.kind == "store sc1" and self.is_last_to_touch(mutant.pc):
            return "read after the end"
        return None

    def is_last_to_touch(self, pc: int) -> bool:
        """Says whether no other wave touches the bytes of a store after it, by the trace."""
        size = max(array.nbytes for array in self.landed.launch()[2] if hasattr(array, "nbytes"))
        owners: dict[int, np.ndarray] = {}
        """Wave that stored each word with the instruction, by island."""
        for event in self.trace.events:
            if event.global_addr is None:
                continue
            for row, wave in enumerate(event.waves.tolist()):
                lanes = event.exec_mask[row]
                address = np.broadcast_to(event.global_addr[row], lanes.shape)[lanes]
                inside = address[address % ISLAND < size]
                for island in np.unique(inside // ISLAND).tolist():
                    mine = inside[inside // ISLAND == island] % ISLAND
                    words = mine[:, None] // 4 + np.arange(-(-event.global_bytes // 4))
                    owner = owners.get(island)
                    if owner is not None and (~np.isin(owner[words], (-1, wave))).any():
                        return False
                    if event.pc == pc:
                        fresh = np.full(size // 4 + 4, -1)
                        owners.setdefault(island, fresh)[words] = wave
        return bool(owners)


PARTS = {"choices": 1, "columns": 2, "decode": 2, "experts": 2, "fp8": 2, "prefill": 4}
"""Into how many tests the kernels of a program are dealt."""


def kernels_of(program: str) -> list[landed.Landed]:
    """Returns the kernels of a catalogue, those with many instructions last.

    A kernel takes minutes. Of prefill kernels the shortest of each operation and tile: types of
    floats and a ragged K add no barrier, flag or cache bit. Of decode kernels, and of those that
    the dispatch chooses, the shortest of each operation and way of sharing: loops that are unrolled
    repeat themselves.
    """
    found = sorted(landed.kernels(program), key=lambda kernel: len(kernel.kernel.instructions))
    if program in KINDS:
        num_kinds, kind_of = KINDS[program]
        of_each: dict[tuple, landed.Landed] = {}
        for kernel in found:
            of_each.setdefault(kind_of(kernel.name.partition("/")[2]), kernel)
        found = list(of_each.values())
        assert len(found) == num_kinds
    return found


def kind_of_decode(name: str) -> tuple[str, bool, bool]:
    """Returns the operation, with other formats than MXFP4 before it, and what is shared: sums by
    workgroups, activations by waves."""
    cut = Decode.named(name)
    return name.partition("_")[0], cut.splits > 1, cut.sharers > 1


KINDS = {
    "prefill": (4, lambda name: tuple(name.split("_")[:2])),
    "decode": (6, kind_of_decode),
    "choices": (6, kind_of_decode),
}
"""Of what kinds only the shortest kernel is judged: how many there are, and the kind of a name."""


def judged(kernel: gfx950.Kernel) -> Iterator[Mutant]:
    """Yields the mutants of a kernel, of waits some."""
    waits = len(kernel.instructions)
    for mutant in mutants(kernel):
        waits += mutant.kind == "wait"
        if mutant.kind != "wait" or waits % WAITS == 0:
            yield mutant


def assert_no_luck(kernel: landed.Landed, say) -> None:
    """Judges every mutant of a kernel."""
    subject, verdicts = Subject(kernel), Verdicts()
    every = list(judged(kernel.kernel))
    for mutant in every:
        subject.judge(mutant, verdicts)
    missed, harmless = len(verdicts.missed), sum(verdicts.harmless.values())
    caught = Counter(mutant.kind for mutant in verdicts.caught)
    say(f"{kernel.name}: {len(every)} mutants, {len(verdicts.caught)} caught ({dict(caught)}), "
        f"{harmless} harmless ({dict(verdicts.harmless)}), {missed} missed")  # fmt: skip
    assert len(verdicts.caught) + harmless + missed == len(every)
    wanted = max(1, missed * SHARE / (1 - SHARE))
    assert subject.as_many_change(verdicts.caught, wanted), verdicts.missed
    kinds = {mutant.kind for mutant in every} - BY_THE_MODEL.keys()
    assert caught.keys() >= kinds - MAY_BE_HARMLESS


@pytest.fixture
def say(capsys):
    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)

    return line


@pytest.mark.deep
@pytest.mark.parametrize(
    "program, part", [(program, i) for program, count in PARTS.items() for i in range(count)]
)
def test_what_changes_results_is_caught(program, part, say):
    for kernel in kernels_of(program)[part :: PARTS[program]]:
        assert_no_luck(kernel, say)


def test_quantizers_share_nothing():
    """They have waits, and no barrier, atomic or cache bit: nothing here is for them."""
    for kernel in kernels_of("quantize"):
        assert {mutant.kind for mutant in mutants(kernel.kernel)} == {"wait"}
