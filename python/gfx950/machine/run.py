"""One launch: `run` executes the workgroups of a grid, batch after batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import index, mul

import numpy as np

from gfx950.isa.asm import Kernel, parse
from gfx950.machine.execute import STEPS, Machine, Result
from gfx950.machine.launch import ArgumentError, KernelArguments
from gfx950.machine.trace import Trace

BATCH_WAVES = 32
MAX_THREADS, MAX_GRID_THREADS = 1024, (1 << 32) - 1
"""Of a workgroup, and of a grid along an axis."""
MAX_GROUPS = 1 << 31
MAX_EXECUTED_GROUPS = 1 << 20
"""Already these take hours."""


def _workgroup_order(count: int, order, rng: random.Random) -> Sequence[int]:
    if count > MAX_EXECUTED_GROUPS and (order is None or isinstance(order, str | int)):
        raise ArgumentError(
            f"grid has {count} workgroups, expected at most {MAX_EXECUTED_GROUPS}: a list in "
            "`order` executes some of a larger grid"
        )
    if order is None:
        return range(count)
    if isinstance(order, str):
        if order == "reverse":
            return range(count)[::-1]
        raise ArgumentError(f"order must be None, 'reverse', a seed or a list, got {order!r}")
    if isinstance(order, int):
        return rng.sample(range(count), count)
    order = [int(g) for g in order]
    if len(set(order)) != len(order) or not all(0 <= group < count for group in order):
        raise ArgumentError(f"order must name workgroups 0..{count - 1} once, got {order}")
    return order


def _three(size: int | Sequence[int]) -> tuple[int, int, int]:
    try:
        sizes = tuple(map(index, size if isinstance(size, Iterable) else (size,)))
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ArgumentError(f"grid and block are one to three positive sizes, got {size}")
    return (*sizes, 1, 1)[:3]


def launch_sizes(grid, block) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Returns grid and block in x, y and z.

    Raises:
        ArgumentError: for sizes that no launch can have.
    """
    grid, block = _three(grid), _three(block)
    if prod(block) > MAX_THREADS:
        raise ArgumentError(f"block has {prod(block)} threads, expected at most {MAX_THREADS}")
    if max(map(mul, grid, block)) > MAX_GRID_THREADS or prod(grid) > MAX_GROUPS:
        raise ArgumentError(
            f"grid {grid} of blocks {block}: expected at most {MAX_GRID_THREADS} threads along an "
            f"axis and {MAX_GROUPS} workgroups"
        )
    return grid, block


def run(
    kernel: Kernel | str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence | Mapping,
    *,
    name: str | None = None,
    check: bool = True,
    late: bool = False,
    order: int | str | Sequence[int] | None = None,
    lockstep: bool = True,
    batch: int | None = None,
    dynamic_lds: int = 0,
    trace: bool | Callable[[Trace], None] = False,
    products: bool = True,
    first_finding: bool = False,
    steps: int = STEPS,
    timeout: float | None = None,
) -> Result:
    """Executes a kernel and updates the arrays in `args` in place.

    Args:
        kernel: assembly text, or what `parse` returned (faster when run again).
        grid: workgroups in x, y, z.
        block: work-items per workgroup in x, y, z.
        args: one entry per kernel argument, in order or by name: an array (a pointer), a NumPy
            scalar, an int or float (sized by the metadata), bytes, or a tuple of these, which
            is laid out like a C struct. Arguments that are not named read as zero.
        name: which kernel, when the text contains several.
        check: look for hazards and undefined values.
        late: complete memory operations only when a wait proves them.
        order: order of the workgroups: None, "reverse", a seed for a random order, or a list
            of linear indices (x fastest), which may name only some of them.
        lockstep: with False each wave runs alone, and gives way at waits and barriers to
            another, as the seed in `order` decides.
        batch: workgroups executed together; 1 makes them strictly sequential.
        dynamic_lds: bytes of LDS beyond what the kernel declares.
        trace: record `Result.trace`; a function gets the trace of each batch instead, and none
            is kept.
        products: with False matrix instructions add zeros and no array is written back: for a
            trace of a kernel whose addresses and branches do not depend on sums.
        first_finding: end the run at the first hazard.
        steps: most instructions that a wave may execute; one that needs more waits for what never
            comes.
        timeout: seconds that the run may take; None is any time.

    Raises:
        AsmError: for text that cannot be read; UnknownInstruction, a subclass, for
            instructions or modifiers that are not implemented.
        SimulationError: for faults: memory outside the arguments, undefined values, deadlock, more
            than `steps` or `timeout`; HazardError, a subclass, for what `first_finding` ends the
            run at.
    """
    kernel = parse(kernel, name) if isinstance(kernel, str) else kernel
    grid, block = launch_sizes(grid, block)
    if steps < 1 or not (timeout is None or timeout > 0):
        raise ArgumentError(f"steps and timeout must be positive, got {steps} and {timeout}")
    rng = random.Random(order if isinstance(order, int) else 0)
    machine = Machine(
        kernel, grid, block, check=check, late=late, lockstep=lockstep,
        dynamic_lds=dynamic_lds, trace=bool(trace), rng=rng, products=products,
        first_finding=first_finding, steps=steps, timeout=timeout,
    )  # fmt: skip
    groups = _workgroup_order(grid[0] * grid[1] * grid[2], order, rng)
    arguments = KernelArguments(kernel, args, machine.memory, grid, block)
    batch = batch or max(1, BATCH_WAVES // machine.waves_per_group)
    with np.errstate(all="ignore"):
        for first in range(0, len(groups), batch):
            machine.run_groups(list(groups[first : first + batch]), arguments)
            if callable(trace):
                trace(machine.trace)
                machine.trace = replace(machine.trace, groups=[], events=[])
    if products:
        arguments.copy_back()
    return Result(
        kernel, machine.hazards, machine.steps, machine.wave_instructions, machine.trace,
        machine.proofs, machine.warnings,
    )  # fmt: skip
