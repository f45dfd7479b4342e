"""Where the cycles of a kernel go: a timing *model* of gfx950 over a functional trace.

    profile(asm, grid, block, args) -> Profile
        machine.run        executes the workgroups that share CU 0; what each wave did
        steps              prices every instruction, counts LDS conflicts from addresses
        grid               occupancy, rounds, XCD placement, cache sharing
        cu                 runs the resident waves against the units of one CU
        Profile            cycles, utilisation, stalls, bytes, the estimate for the grid

Every number is a model's, never a measurement; `parameters.Machine` lists what it rests on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from gfx950.isa.asm import parse
from gfx950.machine.execute import STEPS
from gfx950.machine.launch import arrays
from gfx950.machine.run import launch_sizes, run
from gfx950.memory.islands import FIRST_ISLAND
from gfx950.timing.cu import STALLS, ComputeUnit, CuResult, Span
from gfx950.timing.grid import LoadCount, Occupancy, Placement, locality, occupancy, place
from gfx950.timing.memory import Locality, Share
from gfx950.timing.parameters import Machine, variants
from gfx950.timing.steps import LANES, streams

CYCLES_PER_US_PER_GHZ = 1000.0
BYTES_PER_US_PER_GBPS = 1000.0
COPY_NUMBERS = 1 << 20
"""Keeps the wave numbers of repeated workgroups apart."""
ROUND_WAVES = 128
"""Waves of a whole round that are executed together: many share the cost of a step."""


@dataclass(frozen=True)
class Loop:
    """The loop that runs most MFMAs."""

    first_pc: int
    last_pc: int
    cycles: float
    """From its first instruction to the end of its last, on the CU."""
    mfma_utilisation: float


@dataclass
class Profile:
    """What the model says about one launch. Nothing in it was measured."""

    kernel: str
    machine: Machine
    occupancy: Occupancy
    placement: Placement
    cycles: float
    """Cycles of the first round on CU 0, from its first instruction to its last store."""
    mfma_utilisation: float
    """Busy share of the CU's matrix pipes over `cycles`."""
    mfma_flops_per_cycle: float
    """Of a busy matrix pipe."""
    loop: Loop | None
    stalls: dict[str, float]
    """Share of all wave cycles spent waiting, by reason (`cu.STALLS`)."""
    lds_cycles: float
    lds_conflict_cycles: float
    lds_conflicts: dict[str, int]
    """Conflict cycles by instruction text, worst first."""
    bytes_moved: dict[str, float]
    """Bytes of the first round on CU 0 through l1, l2, infinity and hbm."""
    issued: dict[str, int]
    """Instructions issued, by kind."""
    grid_cycles: float
    """All rounds, without launch."""
    grid_bytes: dict[str, float]
    flops: float
    """Of all MFMAs of the grid."""
    write_back_us: float = 0.0
    """What L2 still holds when the last workgroup ends goes to memory."""
    variants: dict[str, float] = field(default_factory=dict)
    """`time_us` of the variants of the machine, by name, if `profile` was asked for them."""
    spans: list[Span] = field(repr=False, default_factory=list)
    simd_of: dict[int, int] = field(repr=False, default_factory=dict)
    texts: dict[int, str] = field(repr=False, default_factory=dict)
    """Assembly text by pc."""

    @property
    def kernel_us(self) -> float:
        """Time on the CUs and of the write-back, without launch."""
        cycles_per_us = CYCLES_PER_US_PER_GHZ * self.machine.clock_ghz
        return self.grid_cycles / cycles_per_us + self.write_back_us

    @property
    def time_us(self) -> float:
        """Estimate for the whole launch."""
        return self.machine.launch_us + self.kernel_us

    @property
    def mfma_share(self) -> float:
        """Busy share of the matrix pipes over the whole launch."""
        on_cus = self.grid_cycles / (CYCLES_PER_US_PER_GHZ * self.machine.clock_ghz)
        return self.mfma_utilisation * on_cus / self.time_us

    @property
    def tflops(self) -> float:
        """MFMA rate of the whole launch."""
        return self.flops / self.time_us * 1e-6

    @property
    def lds_conflict_share(self) -> float:
        """Share of LDS cycles that bank conflicts cost."""
        return self.lds_conflict_cycles / self.lds_cycles if self.lds_cycles else 0.0


def _busiest_loop(kernel, executed: Counter):
    """Returns (first, last) pc of the innermost loop that issues most MFMAs."""
    best, best_count = None, 0
    for ins in kernel.instructions:
        if ins.target is None or ins.target > ins.pc:
            continue
        span = range(ins.target, ins.pc + 1)
        count = sum(executed[pc] for pc in span)
        if count and (
            count > best_count or (count == best_count and len(span) < len(range(*best)))
        ):  # fmt: skip
            best, best_count = (ins.target, ins.pc), count
    return best


def _loop(kernel, result: CuResult, machine: Machine):
    """Measures the busiest loop from the spans of one CU, or None without such a loop."""
    executed = Counter(s.pc for s in result.spans if s.kind == "mfma")
    region = _busiest_loop(kernel, executed)
    if region is None:
        return None
    first, last = region
    inside = [s for s in result.spans if first <= s.pc <= last]
    start = min(s.start for s in inside)
    end = max(s.end if s.kind == "mfma" else s.start for s in inside)
    busy = sum(
        s.end - s.start for s in result.spans if s.kind == "mfma" and start <= s.start <= end
    )
    total = (end - start) * machine.simds_per_cu
    return Loop(first, last, end - start, busy / total)


def _conflicts(groups) -> dict[str, int]:
    """Sums conflict cycles by instruction, worst first."""
    worst = Counter()
    for steps in (steps for group in groups for steps in group.values()):
        for op, cost in steps:
            if op.kind == "lds" and cost.conflict_cycles:
                worst[op.text] += cost.conflict_cycles
    return dict(worst.most_common())


class _Rounds:
    """Runs one CU with the first so many of its workgroups; each number once."""

    def __init__(self, groups: list[dict[int, list]], make_cu):
        self._groups, self._make_cu = groups, make_cu
        self._done: dict[int, CuResult] = {}

    def result(self, residents: int) -> CuResult:
        """Returns the CU's result, repeating the traced workgroups if they are too few."""
        if residents not in self._done:
            copies = []
            for i in range(residents):
                copy, index = divmod(i, len(self._groups))
                shift = copy * COPY_NUMBERS
                copies.append({n + shift: s for n, s in self._groups[index].items()})
            self._done[residents] = self._make_cu().run(copies)
        return self._done[residents]


@dataclass(frozen=True)
class _Priced:
    """A launch as every reading of the machine times it: what runs, and where it lies."""

    trace: object
    fit: Occupancy
    placement: Placement
    where: Locality
    groups: list[dict[int, list]]
    """Steps of the workgroups that share the timed CU, by wave."""

    @classmethod
    def of(
        cls, trace, machine: Machine, *, sizes, warm: bool, dynamic_lds: int, residents,
        of_round: LoadCount | None = None,
    ) -> _Priced:  # fmt: skip
        """Prices a trace.

        Raises:
            ValueError: if a resident workgroup was not executed.
        """
        fit = occupancy(trace.kernel, trace.waves_per_group, machine, dynamic_lds)
        placement = place(int(np.prod(trace.grid)), fit, machine)
        if residents is None:
            on_cu_0 = [group for group in trace.groups if group % machine.num_cus == 0]
            residents = on_cu_0 or trace.groups
        if missing := set(residents) - set(trace.groups):
            raise ValueError(f"workgroups {sorted(missing)} are not in the trace")
        size = trace.waves_per_group
        waves = [range(group * size, (group + 1) * size) for group in residents]
        steps = streams(trace, machine, sizes, [number for group in waves for number in group])
        where = locality(trace, placement, machine, sizes=sizes, warm=warm, of_round=of_round)
        groups = [{number: steps[number] for number in group} for group in waves]
        return cls(trace, fit, placement, where, groups)


def simulate(
    trace,
    *,
    machine: Machine | None = None,
    buffer_bytes: dict[int, int] | None = None,
    warm: bool = False,
    dynamic_lds: int = 0,
    residents: Sequence[int] | None = None,
) -> Profile:
    """Times a trace that `gfx950.run(..., trace=True)` recorded.

    Args:
        trace: of one workgroup or more.
        machine: parameters, default an MI355X.
        buffer_bytes: size of each buffer by island number; unknown buffers count as unshared.
        warm: whether the Infinity Cache holds the inputs; otherwise they come from HBM.
        dynamic_lds: bytes of LDS beyond what the kernel declares.
        residents: workgroups that share the timed CU, default those of CU 0 in the
            trace, or all if it has none.
    """
    machine = machine or Machine()
    priced = _Priced.of(
        trace, machine, sizes=buffer_bytes or {}, warm=warm, dynamic_lds=dynamic_lds,
        residents=residents,
    )  # fmt: skip
    return _timed(priced, machine)


def _timed(priced: _Priced, machine: Machine) -> Profile:
    """Runs the rounds of a launch on one CU, at the clock that its matrix pipes leave."""
    found = _timed_at(priced, machine)
    ghz = machine.ghz_of(found.mfma_share, found.mfma_flops_per_cycle)
    return found if ghz == machine.clock_ghz else _timed_at(priced, replace(machine, clock_ghz=ghz))


def _timed_at(priced: _Priced, machine: Machine) -> Profile:
    trace, placement = priced.trace, priced.placement
    share = Share(placement.active_cus)
    rounds = _Rounds(priced.groups, lambda: ComputeUnit(machine, share, priced.where))

    first = rounds.result(placement.rounds[0])
    results = [rounds.result(count) for count in placement.rounds]
    per_group = placement.num_groups / placement.rounds[0]
    wave_cycles = first.wave_cycles or 1.0
    pipes = machine.simds_per_cu * first.cycles
    return Profile(
        kernel=trace.kernel.name,
        machine=machine,
        occupancy=priced.fit,
        placement=placement,
        cycles=first.cycles,
        mfma_utilisation=first.mfma_busy / pipes if pipes else 0.0,
        mfma_flops_per_cycle=first.flops / first.mfma_busy if first.mfma_busy else 0.0,
        loop=_loop(trace.kernel, first, machine),
        stalls={name: first.stalls[name] / wave_cycles for name in STALLS if first.stalls[name]},
        lds_cycles=first.lds_cycles,
        lds_conflict_cycles=first.lds_conflict_cycles,
        lds_conflicts=_conflicts(priced.groups),
        bytes_moved=dict(first.bytes_moved),
        issued=dict(first.issued),
        grid_cycles=sum(r.cycles for r in results),
        grid_bytes={k: v * per_group for k, v in first.bytes_moved.items()},
        flops=first.flops * per_group,
        write_back_us=_write_back_us(first.bytes_written * per_group, machine),
        spans=first.spans,
        simd_of=first.simd_of,
        texts={i.pc: i.text for i in trace.kernel.instructions},
    )


def _write_back_us(num_bytes: float, machine: Machine) -> float:
    """Returns how long the dirty part of all L2s takes to reach memory."""
    dirty = min(num_bytes, machine.num_xcds * machine.l2_bytes)
    return dirty / (machine.write_back_gbps * BYTES_PER_US_PER_GBPS)


def _buffer_bytes(args) -> dict[int, int]:
    """Returns the size of each buffer by the island that `run` gives it: in order, each once."""
    unique = {id(array): array for array in arrays(args)}
    return {FIRST_ISLAND + i: array.nbytes for i, array in enumerate(unique.values())}


def profile(
    kernel,
    grid,
    block,
    args,
    *,
    name: str | None = None,
    dynamic_lds: int = 0,
    machine: Machine | None = None,
    warm: bool = False,
    whole_grid: bool = False,
    whole_round: bool = False,
    residents: Sequence[int] | None = None,
    reverse: bool = False,
    with_variants: bool = False,
    steps: int = STEPS,
    timeout: float | None = None,
) -> Profile:
    """Runs the workgroups of one CU and times them with the model. `args` stay as they are.

    >>> p = profile(text, (132, 1, 1), 256, [a, b, c, np.int32(16)])
    >>> p.time_us, p.cycles, p.mfma_utilisation, p.stalls, p.lds_conflicts, p.bytes_moved

    Args:
        kernel: assembly text, or what `parse` returned.
        grid: workgroups in x, y, z.
        block: work-items per workgroup in x, y, z.
        args: as `gfx950.run` takes them.
        name: which kernel, when the text contains several.
        dynamic_lds: bytes of LDS beyond what the kernel declares.
        machine: parameters of the model, default an MI355X under load.
        warm: whether the Infinity Cache holds the inputs when the kernel starts.
        whole_grid: execute every workgroup, which makes cache sharing exact (XCD remaps
            show) but takes time in proportion; otherwise only those of one CU's first round.
        whole_round: execute the workgroups that the whole chip runs in the round of the
            timed CU (its first, unless `residents` says otherwise) and count in it who shares
            which lines, XCD by XCD: for grids of many rounds. What an earlier round left in
            caches does not count, but for buffers that fit an L2, which are as without.
        residents: workgroups that share the timed CU, default those dealt to CU 0. Name the
            last one, with `whole_grid`, where the last to arrive does more than the others.
        with_variants: also time the variants of the machine (`parameters.VARIANTS`).
        reverse: with `whole_grid`, let the last workgroup arrive first and the first one last.
        steps: as `gfx950.run` takes them.
        timeout: as `gfx950.run` takes it, for each of at most two executions.

    Raises:
        AsmError, SimulationError: as `gfx950.run`.
        ValueError: if a workgroup does not fit on a CU, or an instruction has no timing; for
            both `whole_grid` and `whole_round`.
    """
    if whole_grid and whole_round:
        raise ValueError("got whole_grid and whole_round, expected one: a grid has all its rounds")
    machine = machine or Machine()
    kernel = parse(kernel, name) if isinstance(kernel, str) else kernel
    num_groups, num_threads = map(prod, launch_sizes(grid, block))
    fit = occupancy(kernel, -(-num_threads // LANES), machine, dynamic_lds)
    placement = place(num_groups, fit, machine)
    chosen = placement.resident_groups(machine) if residents is None else list(residents)
    order = ("reverse" if reverse else None) if whole_grid else chosen

    options = {
        "check": False,
        "dynamic_lds": dynamic_lds,
        "products": False,
        "steps": steps,
        "timeout": timeout,
    }
    trace = run(kernel, grid, block, args, order=order, trace=True, **options).trace
    sizes, of_round = _buffer_bytes(args), None
    if whole_round:
        of_round = LoadCount(machine, sizes)
        groups = placement.round_of(chosen[0], machine)
        batch = max(1, ROUND_WAVES // fit.waves_per_group)
        run(kernel, grid, block, args, order=groups, batch=batch, trace=of_round.add, **options)
    priced = _Priced.of(
        trace, machine, sizes=sizes, warm=warm, dynamic_lds=dynamic_lds, residents=chosen,
        of_round=of_round,
    )  # fmt: skip
    found = _timed(priced, machine)
    if with_variants:
        for label, other in variants(machine).items():
            found.variants[label] = (found if other == machine else _timed(priced, other)).time_us
    return found
