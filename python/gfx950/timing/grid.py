"""From one CU to the chip: occupancy, placement over XCDs, and who shares which cache lines.

    workgroup i  -->  XCD i % 8, there CU (i / 8) % 32, there as many as fit (Occupancy)

A launch runs in rounds: every CU takes as many workgroups as fit, runs them, takes the next.
How often a line is already in L2 follows from how many workgroups touch it. If the trace holds
the whole grid the lines are counted, XCD by XCD. If not, the workgroups that share a line are
assumed to be spread over the XCDs at random; a kernel that remaps workgroup numbers so that
sharers meet on one XCD does better than that, which only a full trace shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from gfx950.memory.islands import ISLAND_BITS, SCRATCH_ISLAND
from gfx950.timing.memory import BufferLocality, Locality
from gfx950.timing.parameters import Machine
from gfx950.timing.steps import SECTOR_BYTES


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


def place(num_groups: int, fit: Occupancy, machine: Machine) -> Placement:
    """Deals workgroups round-robin over XCDs and CUs."""
    per_cu = -(-num_groups // machine.num_cus)
    full, rest = divmod(per_cu, fit.groups_per_cu)
    rounds = (fit.groups_per_cu,) * full + ((rest,) if rest else ())
    return Placement(num_groups, min(num_groups, machine.num_cus), rounds)


def _lines_by_group(trace, streams, machine):
    """Returns, for each shared buffer, the set of lines that each executed workgroup loads."""
    per_line = machine.line_bytes // SECTOR_BYTES
    buffers = defaultdict(lambda: defaultdict(set))
    for wave, steps in streams.items():
        group = wave // trace.waves_per_group
        for op, cost in steps:
            if op.kind == "load" and cost is not None:
                for sector in cost.sectors:
                    line = sector // per_line
                    buffers[line * machine.line_bytes >> ISLAND_BITS][group].add(line)
    buffers.pop(SCRATCH_ISLAND, None)
    return buffers


def _counted(groups, machine):
    """Returns (l2_miss, share of them that is new to the chip) by counting lines."""
    per_xcd = defaultdict(set)
    requests = 0
    for group, lines in groups.items():
        per_xcd[group % machine.num_xcds] |= lines
        requests += len(lines)
    brought = sum(map(len, per_xcd.values()))
    return brought / requests, len(set().union(*per_xcd.values())) / brought


def _expected(groups, num_groups, buffer_lines, machine):
    """Returns the same two fractions for sharers spread over the XCDs at random."""
    lines = sum(map(len, groups.values())) / len(groups)
    requests = num_groups * lines
    total = min(buffer_lines, requests)
    sharers = requests / total
    reached = machine.num_xcds * (1 - (1 - 1 / machine.num_xcds) ** sharers)
    return total * reached / requests, 1 / reached


def locality(trace, streams, placement, machine: Machine, *, sizes, warm: bool) -> Locality:
    """Derives each buffer's hit rates beyond L1.

    Args:
        trace: of at least one workgroup.
        streams: its priced steps.
        placement: of the whole grid.
        machine: the chip.
        sizes: bytes of each buffer by the number in its address (`ISLAND_BITS`).
        warm: whether the Infinity Cache holds the inputs when the kernel starts.
    """
    scratch = SCRATCH_ISLAND << ISLAND_BITS
    # A wave reads what it has written.
    result = [BufferLocality(scratch, scratch + (1 << ISLAND_BITS), l2_miss=0.0)]
    complete = len(trace.groups) == placement.num_groups
    concurrent = min(placement.num_groups, placement.active_cus * placement.rounds[0])
    for island, groups in _lines_by_group(trace, streams, machine).items():
        size = sizes.get(island, 0)
        fits_l2 = size <= machine.l2_bytes
        if complete and (fits_l2 or len(placement.rounds) == 1):
            l2_miss, hbm = _counted(groups, machine)
        else:
            sharing = placement.num_groups if fits_l2 else concurrent
            lines = math.ceil(size / machine.line_bytes) or math.inf
            l2_miss, hbm = _expected(groups, sharing, lines, machine)
        first = island << ISLAND_BITS
        held = warm and size <= machine.infinity_bytes
        result.append(
            BufferLocality(first, first + (1 << ISLAND_BITS), l2_miss, 0.0 if held else hbm)
        )
    return Locality(tuple(result))
