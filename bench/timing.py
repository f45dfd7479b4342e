"""Interleaved timing: every competitor meets the same state of the machine.

Competitors take turns, round after round, each round in another order:

    round 0    A A A   B B B   C C C        A A A = settle, warm up, one timed burst
    round 1    B B B   C C C   A A A
    round 2    C C C   A A A   B B B        median over rounds, per competitor

A burst is as many calls as fill `BURST_S`, so a clock tick never matters. The
warm-up before it puts the competitor's own weights back into the caches. The
pause before that lets the thread pool of the previous competitor stop spinning:
OpenMP workers burn a core for about 8 ms after their last task.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BURST_S = 0.5e-3
WARM_UP_S = 0.3e-3
SETTLE_S = 10e-3
CALIBRATING_CALLS = 2
MIN_ROUNDS = 5
MAX_ROUNDS = 101


class Competitor(NamedTuple):
    """Something that can be timed: a name and a call without arguments."""

    name: str
    call: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """Called before each of its turns, untimed."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one value per round."""

    samples_s: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """The median over the rounds, in microseconds."""
        return statistics.median(self.samples_s) * 1e6

    @property
    def best_us(self) -> float:
        """The fastest round, in microseconds."""
        return min(self.samples_s) * 1e6


def interleave(
    competitors: Sequence[Competitor],
    *,
    budget_s: float,
    settle_s: float = 0.0,
    min_rounds: int = MIN_ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Times all competitors in turns until the budget is spent.

    Runs at least `min_rounds` and at most `MAX_ROUNDS` rounds, whatever the budget.

    Raises:
        ValueError: if two competitors share a name, since one would hide the other.
    """
    names = [competitor.name for competitor in competitors]
    if len(set(names)) != len(names):
        raise ValueError(f"competitors need distinct names, got {names}")

    call_s = {}
    for name, call, before in competitors:
        before()
        call_s[name] = min(_seconds_per_call(call, 1, clock) for _ in range(CALIBRATING_CALLS))
    samples: dict[str, list[float]] = {name: [] for name in names}

    start, rounds = clock(), 0
    while rounds < min_rounds or (rounds < MAX_ROUNDS and clock() - start < budget_s):
        for turn in range(len(competitors)):
            name, call, before = competitors[(turn + rounds) % len(competitors)]
            time.sleep(settle_s)
            before()
            _seconds_per_call(call, _calls_to_fill(WARM_UP_S, call_s[name]), clock)
            burst = _calls_to_fill(BURST_S, call_s[name])
            samples[name].append(_seconds_per_call(call, burst, clock))
        rounds += 1
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def _seconds_per_call(call: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count


def _calls_to_fill(span_s: float, call_s: float) -> int:
    return max(1, math.ceil(span_s / max(call_s, 1e-7)))
