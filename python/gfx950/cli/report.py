"""Renders a profile as text: what limits the kernel, first the answer, then its parts.

`print_profile` writes to a rich console. Each block answers one question: how long, how well
used, waiting for what, LDS conflicts where, bytes through which level. Every heading says
"model", because none of the numbers was measured.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from gfx950.timing.cu import STALLS
from gfx950.timing.model import Profile

TOP_CONFLICTS = 5


def _table(title, *columns):
    table = Table(title=f"{title} (model)", title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def _time(profile: Profile) -> Table:
    machine, placement = profile.machine, profile.placement
    fit = profile.occupancy
    table = _table(f"Time of {profile.kernel}", "", "")
    table.add_row("launch, whole grid", f"{profile.time_us:.2f} us")
    if profile.variants:
        named = ", ".join(f"{name} {us:.2f}" for name, us in profile.variants.items())
        low, high = min(profile.variants.values()), max(profile.variants.values())
        table.add_row("  range", f"{low:.2f} .. {high:.2f} us ({named})")
    table.add_row("  of which launch cost", f"{machine.launch_us:.2f} us")
    on_cus = profile.kernel_us - profile.write_back_us
    table.add_row("  of which on the CUs", f"{on_cus:.2f} us")
    table.add_row("  of which write-back", f"{profile.write_back_us:.2f} us")
    table.add_row("first round on a CU", f"{profile.cycles:,.0f} cycles")
    rounds = "+".join(map(str, placement.rounds[:6])) + ("+..." if placement.rounds[6:] else "")
    table.add_row(
        "grid", f"{placement.num_groups} workgroups, {placement.active_cus} of "
        f"{machine.num_cus} CUs, {rounds} a CU"
    )  # fmt: skip
    table.add_row(
        "occupancy",
        f"{fit.groups_per_cu} workgroups a CU, {fit.waves_per_simd} waves a SIMD, "
        f"limited by {fit.limit}",
    )
    table.add_row("MFMA rate of the launch", f"{profile.tflops:,.1f} TFLOP/s")
    table.add_row("MFMA utilisation, first round", f"{profile.mfma_utilisation:.1%}")
    if profile.loop:
        loop = profile.loop
        table.add_row("MFMA utilisation, busiest loop",
                      f"{loop.mfma_utilisation:.1%} of {loop.cycles:,.0f} cycles")  # fmt: skip
    return table


def _stalls(profile: Profile) -> Table:
    table = _table("Where waves wait", "reason", "share of wave cycles")
    for name, share in sorted(profile.stalls.items(), key=lambda item: -item[1]):
        table.add_row(STALLS[name], f"{share:.1%}")
    return table


def _lds(profile: Profile) -> Table:
    table = _table("LDS", "", "cycles")
    table.add_row("busy", f"{profile.lds_cycles:,}")
    table.add_row("lost to bank conflicts", f"{profile.lds_conflict_cycles:,}")
    for text, cycles in list(profile.lds_conflicts.items())[:TOP_CONFLICTS]:
        table.add_row(f"  {text}", f"{cycles:,}")
    return table


def _bytes(profile: Profile) -> Table:
    table = _table("Bytes moved", "level", "first round, one CU", "whole grid")
    names = {"l1": "L1", "l2": "L2", "infinity": "Infinity Cache", "hbm": "HBM"}
    for level, name in names.items():
        table.add_row(
            name, f"{profile.bytes_moved[level]:,.0f}", f"{profile.grid_bytes[level]:,.0f}"
        )
    return table


def print_profile(profile: Profile, console: Console) -> None:
    """Prints a profile."""
    tables = [_time(profile), _stalls(profile)]
    if profile.lds_cycles:
        tables.append(_lds(profile))
    tables.append(_bytes(profile))
    for table in tables:
        console.print(table)
        console.print()


def print_parameters(machine, console: Console) -> None:
    """Prints the table of assumptions."""
    table = Table(title="Parameters of the timing model", title_justify="left", box=None)
    for column in ("name", "value", "range", "unit", "source"):
        table.add_column(column, overflow="fold")
    for row in machine.table():
        table.add_row(
            row.name, f"{row.value:g}", f"{row.low:g} .. {row.high:g}", row.unit, row.source
        )
    console.print(table)
