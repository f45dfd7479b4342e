"""One CU, cycle by cycle where it matters: waves of the resident workgroups compete for units.

    4 x SIMD   one VALU or MFMA issue, one scalar issue a turn (4 cycles) from its waves;
               the matrix pipe stays busy for the passes of an MFMA
    shared     LDS, address unit, global memory (memory.py), scalar cache

A wave issues in order, at most one instruction a turn. The next event is always the wave that
can go first (then higher s_setprio, then the one that waits longest for LDS or memory, then
older). If a unit is taken, the wave waits and the wait is booked under the unit's name. MFMA
results are tracked per register; everything that memory returns is guarded by the s_waitcnt
in the code, which proof/hazards.py proves sufficient.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from gfx950.timing.memory import GlobalMemory, Locality, Share
from gfx950.timing.parameters import Machine

SIMDS_PER_LDS_BUS = 2
STALLS = {
    "vmcnt": "waiting for global memory (s_waitcnt vmcnt)",
    "lgkmcnt": "waiting for LDS or scalar loads (s_waitcnt lgkmcnt)",
    "barrier": "waiting for other waves (s_barrier)",
    "mfma_result": "waiting for an MFMA's result",
    "mfma_pipe": "matrix pipe taken by another MFMA",
    "valu": "vector issue taken by another wave",
    "salu": "scalar issue taken by another wave",
    "lds": "LDS queue full",
    "vmem": "global memory queue full or too many bytes in flight",
    "nop": "s_nop and s_sleep",
}


SHARED = ("lds", "vmem")
"""Units of the whole CU: they serve waves in the order in which these asked."""


class Span(NamedTuple):
    """One issued instruction: who, what and when, in cycles."""

    wave: int
    pc: int
    kind: str
    start: float
    end: float


@dataclass(slots=True)
class WaveState:
    """A wave between two instructions."""

    number: int
    group: int
    simd: int
    steps: list
    at: int = 0
    priority: int = 0
    vm: deque = field(default_factory=deque)
    """Completion times of outstanding global accesses, oldest first."""
    lds: deque = field(default_factory=deque)
    """Completion times of outstanding LDS accesses, oldest first."""
    scalar: list = field(default_factory=list)
    """Completion times of outstanding scalar loads, which return in any order."""
    results: dict = field(default_factory=dict)
    """Pair of registers -> (ready for a chained MFMA, ready for anyone) of recent MFMAs."""
    results_until: float = 0.0
    last_vm: float = 0.0
    drained: float = 0.0
    since: float | None = None
    """When a blocked s_waitcnt or access to a shared unit first tried to issue."""
    stalls: Counter = field(default_factory=Counter)


@dataclass
class CuResult:
    """What one CU did."""

    cycles: float
    spans: list[Span]
    stalls: Counter
    wave_cycles: float
    mfma_busy: float
    flops: int
    lds_cycles: float
    lds_conflict_cycles: float
    bytes_moved: dict[str, float]
    bytes_written: int
    """Distinct bytes that stores have changed."""
    issued: Counter
    simd_of: dict[int, int]


class ComputeUnit:
    """Runs the step streams of the workgroups resident on one CU."""

    def __init__(self, machine: Machine, share: Share, locality: Locality):
        self.machine = machine
        self.memory = GlobalMemory(machine, share, locality)
        count = machine.simds_per_cu
        self.valu_free = [0.0] * count
        self.salu_free = [0.0] * count
        self.mfma_free = [0.0] * count
        self.lds_free = 0.0
        self.lds_bus_free = [0.0] * (count // SIMDS_PER_LDS_BUS)
        self.lds_fifo = [deque() for _ in self.lds_bus_free]
        self.scalar_lines: dict[int, float] = {}
        self.barriers: dict[int, list] = {}
        self.waves: list[WaveState] = []
        self.heap: list[tuple[float, int, float, int]] = []
        self.spans: list[Span] = []
        self.issued: Counter = Counter()
        self.mfma_busy = self.flops = self.lds_cycles = self.lds_conflicts = 0
        self.earliest = {
            "valu": self._valu_at, "mfma": self._mfma_at, "lds": self._lds_at,
            "load": self._vmem_at, "store": self._vmem_at, "atomic": self._vmem_at,
            "salu": self._salu_at, "smem": self._salu_at, "branch": self._salu_at,
            "wait": self._wait_at,
        }  # fmt: skip
        self.commit = {
            "valu": self._valu, "mfma": self._mfma, "lds": self._lds, "load": self._load,
            "store": self._store, "atomic": self._atomic, "wait": self._wait,
            "salu": self._salu, "smem": self._smem, "branch": self._branch, "nop": self._nop,
            "prio": self._prio,
        }  # fmt: skip

    def run(self, groups: list[dict[int, list]]) -> CuResult:
        """Runs workgroups, each a dict of wave number -> steps, from cycle 0 to the last store."""
        self.waves = waves = []
        load = [0] * self.machine.simds_per_cu
        for group, streams in enumerate(groups):
            self.barriers[group] = [len(streams), []]
            for number, steps in streams.items():
                simd = load.index(min(load))
                load[simd] += 1
                waves.append(WaveState(number, group, simd, steps))
        self.heap = heap = [(0.0, 0, 0.0, order) for order in range(len(waves))]
        finish = {}
        while heap:
            now, _, _, order = heapq.heappop(heap)
            wave = waves[order]
            if wave.at == len(wave.steps):
                finish[order] = now
                self._leave(wave, now)
                continue
            after = self._advance(wave, order, now)
            if after is not None:
                queued = after if wave.since is None else wave.since
                heapq.heappush(heap, (after, -wave.priority, queued, order))
        if len(finish) != len(waves):
            raise RuntimeError("waves wait at a barrier that the others never reach")
        return self._result(finish)

    def _advance(self, wave, order, now):
        """Issues the wave's next step if it can go now; returns when to look again."""
        op, payload = wave.steps[wave.at]
        kind = op.kind
        check = self.earliest.get(kind)
        if check is not None:
            time, reason = check(wave, op, payload, now)
            if time > now:
                wave.stalls[reason] += time - now
                if kind != "wait" and reason not in SHARED:
                    wave.since = None
                elif wave.since is None:
                    wave.since = now
                return time
        start = now if wave.since is None or kind != "wait" else wave.since
        wave.since = None
        wave.at += 1
        self.issued[kind] += 1
        if kind == "barrier":
            self._arrive(wave, order, op, now)
            return None
        if kind == "end":
            wave.drained = max([now, *wave.vm, *wave.lds, *wave.scalar])
            wave.at = len(wave.steps)
            return now + self.machine.issue_cycles
        end, busy = self.commit[kind](wave, op, payload, now)
        self.spans.append(Span(wave.number, op.pc, kind, start, max(busy, now + 1)))
        return end

    def _arrive(self, wave, order, op, now):
        """Parks a wave at a barrier; the last one to arrive releases all."""
        barrier = self.barriers[wave.group]
        barrier[1].append((now, order, op.pc))
        self._release(barrier, now)

    def _leave(self, wave, now):
        """Takes a finished wave out of its group's barrier count."""
        barrier = self.barriers[wave.group]
        barrier[0] -= 1
        if barrier[1]:
            self._release(barrier, now)

    def _release(self, barrier, now):
        expected, parked = barrier
        if len(parked) < expected:
            return
        go = now + self.machine.barrier_cycles
        for arrived, order, pc in parked:
            wave = self.waves[order]
            wave.stalls["barrier"] += go - arrived
            self.spans.append(Span(wave.number, pc, "barrier", arrived, go))
            heapq.heappush(self.heap, (go, -wave.priority, go, order))
        barrier[1] = []

    def _result_at(self, wave, op, now):
        """Returns when the MFMA results that an instruction touches can be used."""
        if wave.results_until <= now or not wave.results:
            return now
        time = now
        results = wave.results
        for pair in op.touched:
            ready = results.get(pair)
            if ready is not None and ready[1] > time:
                time = ready[1]
        if op.chained:
            for pair in op.result:
                ready = results.get(pair)
                if ready is not None and ready[0] > time:
                    time = ready[0]
        return time

    def _valu_at(self, wave, op, payload, now):
        ready = self._result_at(wave, op, now)
        free = self.valu_free[wave.simd]
        return (ready, "mfma_result") if ready >= free else (free, "valu")

    def _mfma_at(self, wave, op, payload, now):
        ready = self._result_at(wave, op, now)
        simd = wave.simd
        if ready > max(now, self.mfma_free[simd], self.valu_free[simd]):
            return ready, "mfma_result"
        if self.mfma_free[simd] >= self.valu_free[simd]:
            return self.mfma_free[simd], "mfma_pipe"
        return self.valu_free[simd], "valu"

    def _lds_at(self, wave, op, payload, now):
        ready = self._result_at(wave, op, now)
        fifo = self.lds_fifo[wave.simd // SIMDS_PER_LDS_BUS]
        while fifo and fifo[0] <= now:
            fifo.popleft()
        room = fifo[0] if len(fifo) >= self.machine.lds_queue else now
        return (ready, "mfma_result") if ready >= room else (room, "lds")

    def _vmem_at(self, wave, op, payload, now):
        ready = self._result_at(wave, op, now)
        room = self.memory.busy_until[0] - self.machine.vmem_queue_cycles
        if op.kind == "load":
            room = max(room, self.memory.room_at(now, payload.num_bytes))
        return (ready, "mfma_result") if ready >= room else (room, "vmem")

    def _salu_at(self, wave, op, payload, now):
        return self.salu_free[wave.simd], "salu"

    def _wait_at(self, wave, op, payload, now):
        vm_time = lgkm_time = now
        if op.vmcnt is not None and len(wave.vm) > op.vmcnt:
            vm_time = wave.vm[len(wave.vm) - op.vmcnt - 1]
        if op.lgkmcnt is not None:
            if op.lgkmcnt < len(wave.lds):
                lgkm_time = wave.lds[len(wave.lds) - op.lgkmcnt - 1]
            if wave.scalar and op.lgkmcnt < len(wave.lds) + len(wave.scalar):
                lgkm_time = max(lgkm_time, *wave.scalar)
        return (vm_time, "vmcnt") if vm_time >= lgkm_time else (lgkm_time, "lgkmcnt")

    def _turn(self, now):
        return now + self.machine.issue_cycles

    def _valu(self, wave, op, payload, now):
        self.valu_free[wave.simd] = now + op.cycles
        return max(self._turn(now), now + op.cycles), now + op.cycles

    def _mfma(self, wave, op, payload, now):
        simd, m = wave.simd, self.machine
        self.valu_free[simd] = now + m.issue_cycles
        self.mfma_free[simd] = now + op.cycles
        ready = (now + op.cycles, now + op.result_cycles)
        if wave.results_until <= now:
            wave.results.clear()
        for pair in op.result:
            wave.results[pair] = ready
        wave.results_until = max(wave.results_until, ready[1])
        self.mfma_busy += op.cycles
        self.flops += op.flops
        return self._turn(now), now + op.cycles

    def _lds(self, wave, op, cost, now):
        m, pair = self.machine, wave.simd // SIMDS_PER_LDS_BUS
        self.lds_free = max(now, self.lds_free) + cost.cycles
        self.lds_cycles += cost.cycles
        self.lds_conflicts += cost.conflict_cycles
        bus_cycles = cost.returned_bytes / m.lds_pair_bytes
        served = max(self.lds_free, self.lds_bus_free[pair] + bus_cycles)
        self.lds_bus_free[pair] = served
        self.lds_fifo[pair].append(served)
        done = served + m.lds_latency
        wave.lds.append(max(done, wave.lds[-1] if wave.lds else 0))
        return self._turn(now), served

    def _vm_done(self, wave, done):
        wave.last_vm = max(done, wave.last_vm)
        wave.vm.append(wave.last_vm)

    def _load(self, wave, op, cost, now):
        if not cost.sectors:
            self._vm_done(wave, now + self.machine.l1_latency)
            return self._turn(now), self._turn(now)
        done = self.memory.load(now, cost.sectors, op.past_l2)
        if cost.lds_cycles:
            self.lds_cycles += cost.lds_cycles
            self.lds_free = max(self.lds_free, now) + cost.lds_cycles
            done += cost.lds_cycles
        self._vm_done(wave, done)
        return self._turn(now), done

    def _store(self, wave, op, cost, now):
        self._vm_done(wave, self.memory.store(now, cost.sectors))
        return self._turn(now), self._turn(now)

    def _atomic(self, wave, op, cost, now):
        self._vm_done(wave, self.memory.atomic(now, cost.sectors))
        return self._turn(now), self._turn(now)

    def _wait(self, wave, op, payload, now):
        if op.vmcnt is not None:
            while len(wave.vm) > op.vmcnt:
                wave.vm.popleft()
        if op.lgkmcnt is not None:
            wave.scalar = [t for t in wave.scalar if t > now]
            while wave.lds and len(wave.lds) + len(wave.scalar) > op.lgkmcnt:
                wave.lds.popleft()
        return self._turn(now), self._turn(now)

    def _salu(self, wave, op, payload, now):
        self.salu_free[wave.simd] = self._turn(now)
        return self._turn(now), self._turn(now)

    def _smem(self, wave, op, payload, now):
        self.salu_free[wave.simd] = self._turn(now)
        arrival = self.scalar_lines.setdefault(op.pc, now + self.machine.scalar_cold_latency)
        wave.scalar.append(max(arrival, now + self.machine.scalar_latency))
        return self._turn(now), wave.scalar[-1]

    def _branch(self, wave, op, payload, now):
        self.salu_free[wave.simd] = self._turn(now)
        taken = wave.at < len(wave.steps) and wave.steps[wave.at][0].pc != op.pc + 1
        end = now + self.machine.branch_cycles if taken else self._turn(now)
        return end, end

    def _nop(self, wave, op, payload, now):
        wave.stalls["nop"] += op.cycles
        return now + op.cycles, now + op.cycles

    def _prio(self, wave, op, payload, now):
        wave.priority = op.value
        return self._turn(now), self._turn(now)

    def _result(self, finish):
        stalls = Counter()
        for wave in self.waves:
            stalls.update(wave.stalls)
        return CuResult(
            max([0.0, *(max(t, self.waves[i].drained) for i, t in finish.items())]),
            self.spans, stalls, sum(finish.values()), self.mfma_busy, self.flops,
            self.lds_cycles, self.lds_conflicts, self.memory.bytes_moved,
            self.memory.bytes_written, self.issued,
            {wave.number: wave.simd for wave in self.waves},
        )  # fmt: skip
