"""Ranks the cuts that the CDNA4 dispatch table could name for a shape, on the timing model.

    python -m bench.simulated.tune 16,4096,4096 64,7168,2048

The rows of `CHOICES` in mojo_kernels/cdna4/dispatch.mojo are chosen from what this prints. Cuts
that spill registers or do not fit a compute unit are left out.
"""

from __future__ import annotations

import sys

import numpy as np

import mx_kernels as mx
from bench.shapes import Shape
from bench.simulated import kernels
from bench.simulated.systems import TILE, Launch, Operands, executes_whole_grid
from gfx950.parameters import Machine

SHOWN = 8


def candidates(shape: Shape) -> list[Launch]:
    """Compiles every cut for a shape; returns those that can run well."""
    m, n, k = shape
    operands = Operands(shape)
    emitted = kernels.run_program("candidates.mojo", {"M": m, "N": n, "K": k})
    found = []
    for label, kernel in emitted.items():
        name, *numbers = label.split(":")
        x, y, z, threads, chunks, workspace = map(int, numbers)
        if kernel.scratch_bytes or kernel.lds_bytes > Machine().lds_bytes_per_cu:
            continue
        sizes = [np.int32(size) for size in (m, n, k, chunks)]
        args = [
            operands.x, *operands.preshuffled, operands.c, *sizes,
            np.zeros(0, np.uint8), np.zeros(workspace, np.uint8),
        ]  # fmt: skip
        found.append(Launch(name, kernel, (x, y, z), threads, args, ends_last=z > 1))
    return found


def rank(shape: Shape) -> list[tuple[float, Launch]]:
    """Returns the cuts with their times in microseconds, fastest first."""
    whole_grid = executes_whole_grid(shape)
    timed = [(launch.profile(whole_grid).time_us, launch) for launch in candidates(shape)]
    return sorted(timed, key=lambda row: row[0])


def main(arguments: list[str]) -> None:
    """Ranks the cuts of each shape on the command line."""
    for text in arguments:
        shape = Shape(*map(int, text.split(",")))
        plan = mx.explain(*shape, device="gfx950")
        chosen = f"m{plan.tile[0] // TILE}n{plan.tile[1] // TILE}w{plan.waves}s{plan.splits}"
        print(f"{shape}, model; the dispatch chooses {chosen}")
        for place, (time_us, launch) in enumerate(rank(shape)):
            if place < SHOWN or launch.name == chosen:
                print(f"    {time_us:7.2f} us  {launch.name:12} grid {launch.grid}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
