"""The kernels of `mojo_kernels/cdna4`, each with a launch in which waves and workgroups share.

A launch has one tile of C or a few, several workgroups wherever the kernel shares between them,
and enough steps along K for every loop to come round. Operands are random: what is not handed
over as it should be shows in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

import gfx950
import oracle
from tests.cdna4 import support as cdna4
from tests.cdna4.support import Decode, Problem
from tests.cdna4.test_fp8 import BLOCKS, LOW_MATMUL, MATMUL, operand, stored

ROUNDS = 2
"""Times that a loop along K comes round, at least."""
STEP_K = 128
POISON = 0xA5


@dataclass(frozen=True)
class Landed:
    """A kernel and how it is launched."""

    name: str
    kernel: gfx950.Kernel
    launch: Callable[[], tuple]
    """Makes grid, threads, arguments and those of them that hold results."""
    wide: Callable[[], tuple] | None = None
    """A launch in which stores lie inside their buffer that otherwise do not."""


def decode_shape(decode: Decode) -> tuple[int, int, int]:
    """Returns M, N and K of one tile of C, with several chunks for each wave."""
    groups = decode.waves // decode.sharers * decode.splits
    rounds = decode.depth * (1 if decode.up_front else ROUNDS)
    k = STEP_K * decode.k_tiles * groups * rounds
    return 16 * decode.m_tiles, 16 * decode.n_tiles, k


def decode_kernels(program: str) -> Iterator[Landed]:
    """Yields the decode kernels of a catalogue."""
    for name, kernel in cdna4.compile_kernels(program).items():
        yield Landed(f"{program}/{name}", kernel, _decode_launch(Decode.named(name)))


def _decode_launch(decode: Decode) -> Callable:
    @cache
    def problem() -> Problem:
        rng = np.random.default_rng(30)
        x = decode.x or "bfloat16"
        return Problem.random(rng, decode_shape(decode), x, decode.bias, decode.right)

    def launch():
        made = cdna4.multiply_launch(decode, problem())
        return made.grid, made.block, made.args, made.results

    return launch


STAGES_K, PART_K = 512, 2048
"""Along K of a prefill kernel: two stages; a whole part of what workgroups prepare."""
PREFILL_COLUMNS = 512
"""Of C: two workgroups share rows, so that one waits for what the other prepares."""


def prefill_kernels() -> Iterator[Landed]:
    """Yields the prefill kernels of their catalogue."""
    for name, kernel in cdna4.compile_kernels("prefill").items():
        rows = 32 * int(name.split("_")[1][1:])
        launch, wide = (
            _prefill_launch(name, (rows, PREFILL_COLUMNS, k)) for k in (STAGES_K, PART_K)
        )
        wide = wide if name.startswith("matmul") else None
        yield Landed(f"prefill/{name}", kernel, launch, wide)


def _prefill_launch(name: str, shape: tuple[int, int, int]) -> Callable:
    (m, n, k), words = shape, name.removesuffix("t").split("_")
    bias_type, result_type = words[-1], words[-2]
    rng = np.random.default_rng(31)
    problem = Problem.random(rng, shape, words[2] if words[0] == "linear" else "bfloat16",
                             bias_type)  # fmt: skip

    def launch():
        found = cdna4.described(name, m, n, k)
        a, a_scales = problem.x, None
        if words[0] == "matmul":
            a, a_scales = oracle.quantize(problem.x.astype(np.float64))
        w_codes, w_scales = cdna4.poisoned_weights(*problem.weights)
        workspace = found.workspace()
        workspace[found.cleared_bytes :] = POISON
        c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[result_type])
        bias = np.zeros(0, np.uint8) if problem.bias is None else problem.bias
        args = found.bind(a=a, a_scales=a_scales, w_codes=w_codes, w_scales=w_scales, c=c,
                          bias=bias, workspace=workspace)  # fmt: skip
        return found.grid, found.threads, args, (c, workspace)

    return launch


BLOCKS_K = {MATMUL: 2304, LOW_MATMUL: 1280}
"""Along K of a kernel of float scales: each place of a run of them is taken twice."""


def block_kernels() -> Iterator[Landed]:
    """Yields the prefill kernels of FP8 with scales of blocks, without a tail."""
    for name, k in BLOCKS_K.items():
        kernel = cdna4.compile_kernels("fp8")[BLOCKS + name]
        rows = 32 * int(name.split("_")[1][1:])

        def launch(name=BLOCKS + name, shape=(rows, 256, k)):
            m, n, k = shape
            rng = np.random.default_rng(33)
            a, b = operand(rng, m, k, "fp8_block"), operand(rng, n, k, "fp8_block_2d")
            w_codes, w_scales = stored(*b)
            c = np.full(shape[:2], np.nan, cdna4.NUMPY_DTYPES["bfloat16"])
            found = cdna4.described(name, *shape)
            args = found.bind(a=a[0], a_scales=a[1], w_codes=w_codes, w_scales=w_scales, c=c,
                              bias=np.zeros(0, np.uint8))  # fmt: skip
            return found.grid, found.threads, args, (c,)

        yield Landed(f"fp8/{name}", kernel, launch)


def quantize_kernels() -> Iterator[Landed]:
    """Yields the quantize kernels of their catalogue."""
    for name, kernel in cdna4.compile_kernels("quantize").items():
        dtype, rounding = name.split("_")

        def launch(dtype=dtype, rounding=rounding):
            x = np.random.default_rng(32).standard_normal((33, 544))
            made = cdna4.quantize_launch(x.astype(cdna4.NUMPY_DTYPES[dtype]), rounding)
            return made.grid, made.block, made.args, made.results

        yield Landed(f"quantize/{name}", kernel, launch)


def kernels(program: str) -> list[Landed]:
    """Returns those of a catalogue."""
    made = {"prefill": prefill_kernels, "fp8": block_kernels, "quantize": quantize_kernels}
    return list(made[program]() if program in made else decode_kernels(program))
