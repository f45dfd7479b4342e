"""From one CU to the chip: occupancy, placement over XCDs, and who shares which cache lines.

    workgroup i  -->  XCD i % 8, there CU (i / 8) % 32, there as many as fit (Occupancy)

A launch runs in rounds: every CU takes as many workgroups as fit, runs them, takes the next.
How often a line is already in L2 follows from how many workgroups touch it. If the trace holds
the whole grid the lines are counted, XCD by XCD, and so they are if the loads of a whole round
are known (`LoadCount`). If not, the workgroups that share a line are assumed to be spread over
the XCDs at random; a kernel that remaps workgroup numbers so that sharers meet on one XCD does
better than that, which only counting shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from gfx950.memory.islands import ISLAND_BITS, SCRATCH_ISLAND
from gfx950.timing.memory import BufferLocality, Locality
from gfx950.timing.parameters import Machine
from gfx950.timing.steps import decode


@dataclass(frozen=True)
class Occupancy:
    """How many workgroups of a kernel fit on a CU, and what stops the next one."""

    groups_per_cu: int
    waves_per_simd: int
    waves_per_group: int
    limit: str


def occupancy(kernel, waves_per_group: int, machine: Machine, dynamic_lds: int = 0) -> Occupancy:
    """Computes residency from registers, LDS and wave slots.

    Raises:
        ValueError: if not even one workgroup fits.
    """

    def round_up(value, granule):
        return -(-max(value, 1) // granule) * granule

    registers = round_up(kernel.unified_registers, machine.register_granule)
    by_registers = min(machine.waves_per_simd, machine.registers_per_lane // registers)
    simds = machine.simds_per_cu
    limits = {
        "registers": by_registers * simds // waves_per_group,
        "wave slots": machine.waves_per_simd * simds // waves_per_group,
    }
    lds_bytes = kernel.lds_bytes + dynamic_lds
    if lds_bytes:
        limits["LDS"] = machine.lds_bytes_per_cu // round_up(lds_bytes, machine.lds_granule)
    groups = min(limits.values())
    limit = min(limits, key=limits.get)
    if groups < 1:
        raise ValueError(
            f"a workgroup of {waves_per_group} waves with {registers} registers a lane and "
            f"{lds_bytes} bytes of LDS does not fit on a CU ({limit})"
        )
    if groups == limits["wave slots"]:
        limit = "wave slots"
    return Occupancy(groups, -(-groups * waves_per_group // simds), waves_per_group, limit)


@dataclass(frozen=True)
class Placement:
    """How a grid falls onto the chip."""

    num_groups: int
    active_cus: int
    rounds: tuple[int, ...]
    """Workgroups on the fullest CU in each round."""

    def resident_groups(self, machine: Machine) -> list[int]:
        """Returns the workgroups that CU 0 runs in its first round."""
        stride = machine.num_cus
        return [i * stride for i in range(self.rounds[0])]

    def round_of(self, group: int, machine: Machine) -> range:
        """Returns the workgroups that the whole chip runs in the round of one of them."""
        count = machine.num_cus * self.rounds[0]
        first = group // count * count
        return range(first, min(first + count, self.num_groups))


def place(num_groups: int, fit: Occupancy, machine: Machine) -> Placement:
    """Deals workgroups round-robin over XCDs and CUs."""
    per_cu = -(-num_groups // machine.num_cus)
    full, rest = divmod(per_cu, fit.groups_per_cu)
    rounds = (fit.groups_per_cu,) * full + ((rest,) if rest else ())
    return Placement(num_groups, min(num_groups, machine.num_cus), rounds)


_GROUP_SHIFT = 38
"""Above the number of any line."""


@dataclass(frozen=True)
class Loads:
    """Which workgroups load which lines of a buffer, each pair once."""

    groups: np.ndarray
    lines: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray) -> Loads:
        """Takes pairs that are in one number each."""
        return cls(keys >> _GROUP_SHIFT, keys & ((1 << _GROUP_SHIFT) - 1))

    def miss_shares(self, machine: Machine) -> tuple[float, float]:
        """Returns (share that L2 misses, share of those that is new to the chip), by counting."""
        xcds = self.groups % machine.num_xcds
        brought = len(np.unique(xcds << _GROUP_SHIFT | self.lines))
        return brought / len(self.lines), len(np.unique(self.lines)) / brought

    def expected_shares(
        self, num_groups: int, buffer_lines: float, machine: Machine
    ) -> tuple[float, float]:
        """Returns the same for sharers that are spread over the XCDs at random."""
        requests = num_groups * len(self.lines) / len(np.unique(self.groups))
        total = min(buffer_lines, requests)
        sharers = requests / total
        reached = machine.num_xcds * (1 - (1 - 1 / machine.num_xcds) ** sharers)
        return total * reached / requests, 1 / reached


class LoadCount:
    """The loads of every buffer but private memory, from traces that need not stay."""

    def __init__(self, machine: Machine, sizes: dict[int, int]):
        self._machine, self._sizes = machine, sizes
        self._found: dict[int, list[np.ndarray]] = defaultdict(list)
        self._kinds: dict[int, str] = {}

    def add(self, trace) -> None:
        """Counts what some workgroups load."""
        for event in trace.events:
            if event.global_addr is None or self._kind(trace, event.pc) != "load":
                continue
            address = event.global_addr[event.exec_mask].astype(np.int64)
            group = np.repeat(event.waves // trace.waves_per_group, event.exec_mask.sum(axis=1))
            island = address >> ISLAND_BITS
            for number in np.unique(island).tolist():
                inside = island == number
                if number in self._sizes:
                    inside &= address - (number << ISLAND_BITS) < self._sizes[number]
                first = address[inside]
                last = first + max(event.global_bytes, 1) - 1
                lines = np.concatenate([first, last]) // self._machine.line_bytes
                keys = np.tile(group[inside], 2) << _GROUP_SHIFT | lines
                self._found[number].append(np.unique(keys))

    def _kind(self, trace, pc: int) -> str:
        if pc not in self._kinds:
            self._kinds[pc] = decode(trace.kernel.instructions[pc], self._machine).kind
        return self._kinds[pc]

    def by_buffer(self) -> dict[int, Loads]:
        """Returns the loads by island."""
        found = {n: keys for n, keys in self._found.items() if n != SCRATCH_ISLAND}
        unique = {number: np.unique(np.concatenate(keys)) for number, keys in found.items()}
        return {number: Loads.of(keys) for number, keys in unique.items() if len(keys)}


def locality(
    trace, placement, machine: Machine, *, sizes, warm: bool, of_round: LoadCount | None = None
) -> Locality:
    """Derives each buffer's hit rates beyond L1.

    Args:
        trace: of at least one workgroup.
        placement: of the whole grid.
        machine: the chip.
        sizes: bytes of each buffer by the number in its address (`ISLAND_BITS`).
        warm: whether the Infinity Cache holds the inputs when the kernel starts.
        of_round: what a whole round of the chip loads, if it was executed. It decides for
            buffers that do not outlive a round in an L2.
    """
    scratch = SCRATCH_ISLAND << ISLAND_BITS
    # A wave reads what it has written.
    result = [BufferLocality(scratch, scratch + (1 << ISLAND_BITS), l2_miss=0.0)]
    complete = len(trace.groups) == placement.num_groups
    concurrent = min(placement.num_groups, placement.active_cus * placement.rounds[0])
    traced = LoadCount(machine, sizes)
    traced.add(trace)
    counted = of_round.by_buffer() if of_round else {}
    for island, loads in traced.by_buffer().items():
        size = sizes.get(island, 0)
        fits_l2 = size <= machine.l2_bytes
        is_one_round = len(placement.rounds) == 1
        if complete and (fits_l2 or is_one_round):
            l2_miss, hbm = loads.miss_shares(machine)
        elif island in counted and (not fits_l2 or is_one_round):
            l2_miss, hbm = counted[island].miss_shares(machine)
        else:
            sharing = placement.num_groups if fits_l2 else concurrent
            lines = math.ceil(size / machine.line_bytes) or math.inf
            l2_miss, hbm = loads.expected_shares(sharing, lines, machine)
        first = island << ISLAND_BITS
        held = warm and size <= machine.infinity_bytes
        result.append(
            BufferLocality(first, first + (1 << ISLAND_BITS), l2_miss, 0.0 if held else hbm)
        )
    return Locality(tuple(result))
