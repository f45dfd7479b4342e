"""Executes some workgroups together, all waves that share a program counter in lockstep.

    run_groups -> fronts = sets of waves at one instruction
             the front that is furthest behind runs until it branches apart, meets another
             front, waits at a barrier, ends or has looped for long; fronts that meet merge

A workgroup passes its barrier when each of its live waves has arrived at one, whichever one.
`late` completes memory operations only when a wait proves them; until then registers hold
poison, LDS and global memory their old bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from gfx950.isa.asm import EXEC, VCC, AsmError, Kernel
from gfx950.isa.operands import Decoded
from gfx950.isa.state import POISON, Waves
from gfx950.machine.decode import CodeFault, decode, decode_kernel, end_of
from gfx950.machine.launch import ArgumentError, KernelArguments, start_waves
from gfx950.machine.modes import VALU, VECTOR, change_mode, shifted
from gfx950.machine.trace import Event, Trace
from gfx950.memory.access import Capture
from gfx950.memory.islands import GlobalMemory, MemoryFault
from gfx950.memory.lds import LDS_LIMIT, Lds, LdsFault
from gfx950.memory.scratch import Scratch
from gfx950.proof.hazards import Hazard, LdsShadow, Pending, retire
from gfx950.proof.sharing import Sharing
from gfx950.proof.undefined import UndefinedRead, mark_outputs, undefined_inputs

WAVE = 64
STEPS = 1_000_000
"""Instructions of a wave, by default; our longest kernels execute 17 thousand at K = 18944."""
STEPS_BETWEEN_LOOKS = 1000
"""At the clock."""
PATIENCE = 1000
"""Turns of a loop after which waves give way to others, for whom they may be waiting."""
FAULTS = (CodeFault, MemoryFault, LdsFault, UndefinedRead)
UNFORESEEN = (ArithmeticError, LookupError, TypeError, ValueError)
"""What an instruction that no assembler writes may lead NumPy to."""


class SimulationError(RuntimeError):
    """The kernel did something that has no defined result; `hazards` holds earlier findings."""

    def __init__(self, message: str, hazards: list[Hazard] = ()):
        super().__init__(message)
        self.hazards = list(hazards)


class HazardError(SimulationError):
    """Waits or barriers are missing."""


@dataclass
class Result:
    """Outcome of a run; array arguments have been updated in place."""

    kernel: Kernel
    hazards: list[Hazard]
    steps: int
    """Instructions executed, counting waves that stepped together once."""
    wave_instructions: int
    """Instructions executed, counting every wave."""
    trace: Trace | None = None
    proofs: dict[int, int] = field(default_factory=dict)
    """For each executed s_waitcnt, by pc, the most operations it ever proved complete."""
    warnings: list[Hazard] = field(default_factory=list)
    """Findings that shipping kernels contradict."""

    def raise_on_hazards(self) -> Result:
        """Raises `HazardError` if anything was found, and returns self otherwise."""
        if self.hazards:
            lines = "\n".join(str(h) for h in self.hazards[:20])
            raise HazardError(f"{len(self.hazards)} hazards:\n{lines}", self.hazards)
        return self


class Machine:
    """One launch of a kernel."""

    def __init__(
        self, kernel: Kernel, grid, block, *,
        check, late, lockstep, dynamic_lds, trace, rng, products, first_finding=False,
        steps=STEPS, timeout=None,
    ):  # fmt: skip
        self.kernel, self.grid, self.block = kernel, grid, block
        self.check, self.late, self.lockstep = check, late, lockstep
        self.products, self.first_finding = products, first_finding
        self.code = [*decode_kernel(kernel), end_of(kernel)]
        self.memory = GlobalMemory()
        self.lds_size = kernel.lds_bytes + dynamic_lds
        if not kernel.lds_bytes <= self.lds_size <= LDS_LIMIT:
            raise ArgumentError(f"kernel needs {self.lds_size} bytes of LDS of {LDS_LIMIT}")
        threads = block[0] * block[1] * block[2]
        self.max_steps, self.timeout = steps, timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.waves_per_group = -(-threads // WAVE)
        self.hazards: list[Hazard] = []
        self.warnings: list[Hazard] = []
        self._seen: set[tuple[str, int]] = set()
        self.trace = Trace(kernel, grid, block, self.waves_per_group) if trace else None
        self.steps = self.wave_instructions = 0
        self._moved: dict[tuple, Decoded] = {}
        self.proofs: dict[int, int] = {}
        self.rng = rng
        self.sharing = Sharing(kernel, self.waves_per_group) if check else None
        self.groups: list[int] = []
        self.live: dict[int, set[int]] = {}

    # --- workgroups ------------------------------------------------------------------------------

    def run_groups(self, groups: list[int], arguments: KernelArguments) -> None:
        """Executes some workgroups together."""
        self.groups = groups
        count = len(groups)
        self.lds = Lds(count, self.lds_size)
        self.scratch = Scratch(count * self.waves_per_group, self.kernel.scratch_bytes)
        self.shadow = LdsShadow(count, self.lds.stride, self.waves_per_group)
        if self.sharing is not None:
            self.sharing.start(groups)
        if self.trace is not None:
            self.trace.groups += groups
        waves = start_waves(self, groups, arguments)
        fronts = (
            [waves] if self.lockstep else [waves.take(np.array([i])) for i in range(waves.count)]
        )
        self.live = {g: set(range(g * self.waves_per_group, (g + 1) * self.waves_per_group))
                     for g in range(count)}  # fmt: skip
        waiting: list[Waves] = []
        while fronts or waiting:
            if not fronts:
                fronts, waiting = self._release(waiting)
                continue
            front = self._next_front(fronts)
            others = min((f.pc for f in fronts), default=None) if self.lockstep else None
            outcome, parts = self._advance_or_fail(front, others)
            if outcome == "barrier":
                waiting += parts
                if not fronts or not self.lockstep:
                    released, waiting = self._try_release(waiting)
                    fronts += released
            else:
                fronts += parts
        if any(self.live.values()):
            raise SimulationError("waves never finished", self.hazards)

    def _next_front(self, fronts: list[Waves]) -> Waves:
        """Takes the front that is furthest behind, merged with all at the same place."""
        if not self.lockstep:
            return fronts.pop(self.rng.randrange(len(fronts)))
        turns = min(f.turns for f in fronts)
        first = min((f for f in fronts if f.turns == turns), key=lambda f: f.pc)
        same = [f for f in fronts if f.pc == first.pc and f.mode == first.mode]
        fronts[:] = [f for f in fronts if f not in same]
        return same[0] if len(same) == 1 else Waves.merge(same)

    def _try_release(self, waiting: list[Waves]) -> tuple[list[Waves], list[Waves]]:
        """Lets the workgroups pass whose live waves have all arrived."""
        arrived = np.concatenate([w.ids for w in waiting])
        groups = [
            g for g in np.unique(arrived // self.waves_per_group)
            if self.live[int(g)] <= set(arrived.tolist())
        ]  # fmt: skip
        if not groups:
            return [], waiting
        ready, still = [], []
        for w in waiting:
            inside = np.isin(w.ids // self.waves_per_group, groups)
            if inside.all():
                ready.append(w)
            elif inside.any():
                ready.append(w.take(np.flatnonzero(inside)))
                still.append(w.take(np.flatnonzero(~inside)))
            else:
                still.append(w)
        if self.check:
            self.shadow.barrier(ready, np.array(groups), self.waves_per_group)
            self.sharing.knowledge.barrier(ready, np.array(groups))
        for w in ready:
            w.pc += 1
            w.clock += 1
        return ready, still

    def _release(self, waiting: list[Waves]) -> tuple[list[Waves], list[Waves]]:
        released, still = self._try_release(waiting)
        if not released:
            lines = {str(self.kernel.instructions[w.pc]) for w in waiting}
            raise SimulationError(f"deadlock at a barrier: {sorted(lines)}", self.hazards)
        return released, still

    # --- one front -------------------------------------------------------------------------------

    def _advance_or_fail(self, w: Waves, stop: int | None) -> tuple[str, list[Waves]]:
        """Does as `_advance`; whatever an instruction fails with becomes a `SimulationError`."""
        try:
            return self._advance(w, stop)
        except AsmError:
            raise
        except (*FAULTS, *UNFORESEEN) as error:
            raise self._failure(self.code[w.pc], error) from error

    def _failure(self, d: Decoded, error: Exception) -> SimulationError:
        reason = str(error)
        if not isinstance(error, FAULTS):
            reason = f"cannot be executed ({type(error).__name__}: {error})"
        return SimulationError(f"{d.ins}: {reason}", self.hazards)

    def _advance(self, w: Waves, stop: int | None) -> tuple[str, list[Waves]]:
        """Runs a front until it must give way; returns why and what is left of it."""
        code, check = self.code, self.check
        look = self.max_steps if self._deadline is None else self._look(w, code[w.pc])
        while True:
            d = code[w.pc] if w.mode is None else self._in_mode(w)
            if stop is None and not self.lockstep and d.kind == "wait" and self.rng.random() < 0.5:
                return "yield", [w]
            self.steps += 1
            self.wave_instructions += w.count
            w.executed += 1
            if w.executed > look:
                look = self._look(w, d)
            found = self._check_before(w, d) if check else None
            op = d.memory
            if op is None:
                if self.trace is not None:
                    self._note(w, d, None)
                if self.products or d.kind != "mfma":
                    d.run(w)
                elif "copy_addend" in d.info:
                    d.info["copy_addend"](w)
            else:
                self._issue(w, d)
            if check:
                if op is None:
                    mark_outputs(w, d, found)
                d.rules.record(w)
            w.clock += d.states
            kind = d.kind
            if kind == "branch":
                parts = self._branch(w, d)
                w.loops += stop is not None and w.pc < d.ins.pc
                if w.loops > PATIENCE:
                    w.turns, w.loops = w.turns + 1, 0
                    return "yield", [w]
                if len(parts) > 1 or (stop is not None and parts[0].pc >= stop):
                    return "split", parts
                continue
            if kind == "wait":
                self._wait(w, d)
            elif kind == "mode":
                parts = change_mode(w, d)
                if len(parts) > 1:
                    for part in parts:
                        part.pc += 1
                    return "split", parts
            elif kind == "cache":
                if check and d.info["device"]:
                    self.sharing.cache(w, d)
            elif kind == "barrier":
                w.clock -= d.states
                return "barrier", [w]
            elif kind == "end":
                self._end(w)
                return "end", []
            w.pc += 1
            if stop is not None and w.pc >= stop:
                return "met", [w]

    def _look(self, w: Waves, d: Decoded) -> int:
        """Ends a run that took too many steps or too long; returns when to look again."""
        group, wave = divmod(int(w.ids[0]), self.waves_per_group)
        where = f"at pc {d.ins.pc}, {d.ins} (workgroup {self.groups[group]} wave {wave})"
        if w.executed > self.max_steps:
            raise SimulationError(
                f"a wave has not ended after {self.max_steps} steps, {where}: it waits for what "
                "never comes, or needs more steps",
                self.hazards,
            )
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise SimulationError(f"not finished after {self.timeout:g} s, {where}", self.hazards)
        return min(self.max_steps, w.executed + STEPS_BETWEEN_LOOKS)

    def _in_mode(self, w: Waves) -> Decoded:
        """Returns what the next instruction means in the mode of the waves."""
        d = self.code[w.pc]
        if w.mode.is_plain:
            w.mode = None
        elif w.mode.skips and d.kind in VECTOR:
            d = replace(d, run=lambda w: None, kind="nop", v_reads=(), v_writes=(), s_writes=(),
                        memory=None, v_inputs=(), s_inputs=(), touches=frozenset())  # fmt: skip
        elif w.mode.index and d.kind in VALU:
            key = w.pc, w.mode
            if key not in self._moved:
                self._moved[key] = decode(self.kernel, shifted(d.ins, w.mode))
            d = self._moved[key]
        return d

    def _check_before(self, w: Waves, d: Decoded) -> np.ndarray | None:
        if w.busy and not d.touches.isdisjoint(w.busy):
            self._report_in_flight(w, d)
        if found := d.rules.missing(w):
            self._report("wait states", d, w, (0, found.reason), found.doubt)
        return undefined_inputs(w, d)

    def _report_in_flight(self, w: Waves, d: Decoded) -> None:
        for entry in w.queue:
            keys = entry.d.loads & d.touches
            if not keys:
                continue
            both_vm = d.kind == "vmem" and entry.d.kind == "vmem"
            if both_vm and keys <= d.loads and not (keys & d.reads):
                continue
            key = min(keys)
            name = f"s{~key}" if key < 0 else f"v{key}"
            verb = "overwrites" if key in d.loads and key not in d.reads else "uses"
            row = 0 if entry.rows is None else int(entry.rows[0])
            self._report("in flight", d, w, (row, f"{verb} {name} of {entry.d.ins}"))

    def _report(
        self, kind: str, d: Decoded, w: Waves, found: tuple[int, str] | None, doubt=None
    ) -> None:
        """Notes a finding, (row, reason), once an instruction."""
        if found is None or (kind, d.ins.pc) in self._seen:
            return
        row, reason = found
        self._seen.add((kind, d.ins.pc))
        group, wave = divmod(int(w.ids[row]), self.waves_per_group)
        place = d.ins.line, d.ins.text, self.groups[group], wave
        hazard = Hazard(kind, *place, reason, doubt)
        (self.warnings if doubt else self.hazards).append(hazard)
        if self.first_finding and not doubt:
            raise HazardError(str(hazard), self.hazards)

    def grid_numbers(self, w: Waves) -> np.ndarray:
        """Returns the waves' numbers in the grid."""
        group = w.ids // self.waves_per_group
        return np.array(self.groups)[group] * self.waves_per_group + w.ids % self.waves_per_group

    def _note(self, w: Waves, d: Decoded, cap: Capture | None) -> None:
        numbers = self.grid_numbers(w)
        event = Event(d.ins.pc, numbers, w.exec_mask.copy())
        if cap is not None:
            event.global_addr, event.global_bytes = cap.address, d.memory.global_bytes
            if cap.private is not None:
                event.global_addr = self.scratch.addresses(cap.private, numbers, event.global_bytes)
            event.lds_addr, event.lds_bytes = cap.lds, d.memory.lds_bytes
        self.trace.events.append(event)

    # --- memory ----------------------------------------------------------------------------------

    def lds_base(self, w: Waves) -> np.ndarray:
        """Returns where each wave's workgroup starts in the LDS array."""
        return (w.ids // self.waves_per_group) * self.lds.stride

    def _issue(self, w: Waves, d: Decoded) -> None:
        op = d.memory
        cap = op.capture(self, w)
        if self.trace is not None:
            self._note(w, d, cap)
        if "vm" in op.counters:
            w.issued_vm += 1
        if op.lds_kind in ("read", "write", "atomic"):
            w.issued_lds += 1
        if self.check and op.lds_kind:
            self._check_lds(w, d, cap)
        if self.check and cap.address is not None:
            self._report("race", d, w, self.sharing.issue(self, w, d, cap))
        if op.perform is not None:
            self._land_overlapping(w, cap, op.global_bytes)
            op.perform(self, cap)
        if self.late:
            self._poison(w, d)
        else:
            op.complete(self, w, slice(None), cap)
        if self.late or self.check:
            entry = Pending(d, op, None, cap, not self.late, set(op.counters))
            w.queue.append(entry)
            w.busy |= d.loads

    def _check_lds(self, w: Waves, d: Decoded, cap: Capture) -> None:
        wave = w.ids % self.waves_per_group
        op = d.memory
        if op.lds_kind == "read":
            found, gap = self.shadow.read(w, op, cap, wave)
        else:
            sequence = w.issued_vm if op.lds_kind == "direct" else w.issued_lds
            found, gap = self.shadow.write(w, op, cap, wave, sequence)
        self._report("race", d, w, found)
        self._report("unwritten", d, w, gap)

    def _land_overlapping(self, w: Waves, cap: Capture, size: int) -> None:
        """Completes late stores to the bytes that an atomic is about to change."""
        for entry in w.queue:
            if entry.complete or not entry.op.is_store or entry.cap.address is None:
                continue
            first = np.sort(entry.cap.address[entry.cap.exec_mask])
            mine = cap.address[cap.exec_mask]
            near = np.searchsorted(first, mine - entry.op.global_bytes, side="right")
            if (near < np.searchsorted(first, mine + size)).any():
                entry.op.complete(self, w, slice(None) if entry.rows is None else entry.rows,
                                  entry.cap)  # fmt: skip
                entry.complete = True

    def _poison(self, w: Waves, d: Decoded) -> None:
        """Makes the destination of a late load unreadable until it lands."""
        for register in d.v_writes:
            np.copyto(w.v[register], np.uint32(POISON), where=w.exec_mask)
            w.v_undef[register] |= w.exec_mask
            w.v_clean[register] = 0
        for register in d.s_writes:
            w.s[register], w.s_undef[register], w.s_clean[register] = POISON, True, 0

    def _retire(self, w: Waves, counter: str, limit: int) -> int:
        """Completes what a wait proves and returns how many operations that are."""
        if not w.queue:
            return 0
        finished = retire(w, counter, limit)
        for entry, rows in finished:
            if not entry.complete:
                self._complete(w, entry, rows)
            if self.check and entry.cap.address is not None:
                self.sharing.landed(self, w, entry.d, entry.cap, rows)
        if finished:
            w.busy = frozenset().union(*(e.d.loads for e in w.queue))
        return len(finished)

    def _complete(self, w: Waves, entry: Pending, rows: np.ndarray | None) -> None:
        try:
            entry.op.complete(self, w, slice(None) if rows is None else rows, entry.cap)
        except (*FAULTS, *UNFORESEEN) as error:
            raise self._failure(entry.d, error) from error

    def _wait(self, w: Waves, d: Decoded) -> None:
        counters, proved = d.info["counters"], 0
        if "vmcnt" in counters:
            limit = counters["vmcnt"]
            proved += self._retire(w, "vm", limit)
            w.retired_vm = np.maximum(w.retired_vm, w.issued_vm - limit)
            if self.check and not limit:
                self.sharing.knowledge.drained(w)
        if "lgkmcnt" in counters:
            limit = counters["lgkmcnt"]
            proved += self._retire(w, "lgkm", limit)
            w.retired_lds = np.maximum(w.retired_lds, w.issued_lds - limit)
        self.proofs[d.ins.pc] = max(proved, self.proofs.get(d.ins.pc, 0))

    def _end(self, w: Waves) -> None:
        self._retire(w, "vm", 0)
        self._retire(w, "lgkm", 0)
        for number in w.ids.tolist():
            self.live[number // self.waves_per_group].discard(number)

    # --- control flow ----------------------------------------------------------------------------

    def _branch(self, w: Waves, d: Decoded) -> list[Waves]:
        taken = _taken(w, d.info["condition"])
        if taken.all():
            w.pc = d.ins.target
            return [w]
        if not taken.any():
            w.pc += 1
            return [w]
        jumping, falling = w.take(np.flatnonzero(taken)), w.take(np.flatnonzero(~taken))
        jumping.pc = d.ins.target
        falling.pc += 1
        return [falling, jumping]


def _taken(w: Waves, condition: str) -> np.ndarray:
    if condition == "always":
        return np.ones(w.count, bool)
    if condition.startswith("scc"):
        return w.scc if condition == "scc1" else ~w.scc
    value = w.s64(VCC if condition.startswith("vcc") else EXEC)
    return value != 0 if condition.endswith("nz") else value == 0
