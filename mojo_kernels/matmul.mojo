"""Host entries for matmul and linear: expand the activations, launch the panels.

Both are one computation with two sources of activation blocks: `matmul` reads
encoded ones, `linear` encodes floats on the fly. What follows is shared, so
linear(x, w) equals matmul(quantize(x), w) to the bit.
"""

from std.math import ceildiv

from .cpu.activations import Activations, BlockSource, ExpandGroups, GROUP_ROWS
from .cpu.matmul import MatmulPanels
from .cpu.scratch import Scratch
from .cpu.threads import Team
from .cpu.weights import WeightTiles
from .operands import Flat, Matrix
from .quantize import rows_per_task

comptime MIN_SHARED_PRODUCTS = 1 << 22
"""Fewer products than this take some 10 us on one thread (AVX-512), less than waking a team
that sleeps, which takes 40 us and more. Measured on one machine, 2026-11-21."""


def matmul[
    Source: BlockSource, Tiles: WeightTiles, dtype: DType, T: Team
](source: Source, weights: Tiles, bias: Flat[DType.float32], result: Matrix[dtype], team: T):
    """Computes result[M, N] = blocks[M, k] @ weights[N, k].T + bias[N]; empty bias for none."""
    var shape = source.shape()
    if shape.rows == 0:
        return

    var scratch = Scratch(Activations.num_bytes(shape))
    var activations = Activations.carve(shape, scratch)
    var groups = rows_per_task(shape.k, GROUP_ROWS) // GROUP_ROWS
    var num_expansions = ceildiv(shape.rows, groups * GROUP_ROWS)
    team.run_all(ExpandGroups(source, activations, groups), num_expansions)

    var panels = MatmulPanels(activations, weights, bias, result)
    var num_tasks = panels.num_tasks()
    if shape.rows * weights.shape().rows * shape.k < MIN_SHARED_PRODUCTS:
        for task in range(num_tasks):
            panels.run(task)
    else:
        team.run_all(panels^, num_tasks)
    _ = scratch^
