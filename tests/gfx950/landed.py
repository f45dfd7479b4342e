"""The kernels of `mojo_kernels/cdna4`, each with a launch in which waves and workgroups share.

A launch has one tile of C or a few, several workgroups wherever the kernel shares between them,
and enough steps along K for every loop to come round. Operands are random: what is not handed
over as it should be shows in the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np

import gfx950
import oracle
from tests.cdna4 import expert_layers as layers
from tests.cdna4 import support as cdna4
from tests.cdna4.support import Decode, Problem
from tests.cdna4.test_columns import PREFIX as COLUMNS
from tests.cdna4.test_experts import GROUPED
from tests.cdna4.test_experts import layer as random_layer
from tests.cdna4.test_fp8 import BLOCKS, LOW_MATMUL, MATMUL, ROWS, operand, stored

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


EIGHT_BITS = {
    BLOCKS + MATMUL: 2304,
    BLOCKS + LOW_MATMUL: 1280,
    ROWS + MATMUL: 1024,
    ROWS + LOW_MATMUL: 1024,
}
"""Along K of FP8 prefill kernels without a tail: each place of a run of scales is taken twice."""
BY_COLUMNS = {COLUMNS + MATMUL: 2304, COLUMNS + LOW_MATMUL: 1280}
"""The same of kernels whose operands lie column by column."""


def byte_kernels(program: str) -> Iterator[Landed]:
    """Yields the prefill kernels of FP8, or those of columns."""
    are_columns = program == "columns"
    for name, k in (BY_COLUMNS if are_columns else EIGHT_BITS).items():
        left, right = name.partition("/")[0].removesuffix("-columns").split("-")
        m, n = 32 * int(re.search(r"matmul_m(\d)", name)[1]), 256
        rng = np.random.default_rng(33)
        a, b = operand(rng, m, k, left), operand(rng, n, k, right)
        codes, scales = (a[0], b[0]), (a[1], b[1])
        if are_columns:
            codes = tuple(np.ascontiguousarray(part.T) for part in codes)
        else:
            codes = a[0], stored(*b)[0]

        def launch(name=name, shape=(m, n, k), codes=codes, scales=scales):
            c = np.full(shape[:2], np.nan, cdna4.NUMPY_DTYPES["bfloat16"])
            found = cdna4.described(name, *shape)
            args = found.bind(a=codes[0], a_scales=scales[0], w_codes=codes[1], w_scales=scales[1],
                              c=c, bias=np.zeros(0, np.uint8))  # fmt: skip
            return found.grid, found.threads, args, (c,)

        yield Landed(f"{program}/{name}", cdna4.compile_kernels(program)[name], launch)


class OfLayer(NamedTuple):
    """Which launch of which layer of experts: tokens, slots, width, inner and experts."""

    sizes: tuple[int, int, int, int, int]
    launch: int
    workgroups: int | None = None
    """How many go through the tiles of C, two or more each."""


EXPERTS = {
    "route": OfLayer((700, 3, 64, 64, 3), 0),
    "gate_up_streaming": OfLayer((9, 3, 2048, 64, 2), 1),
    "gate_up_interleaved": OfLayer((40, 2, 1536, 256, 2), 2, 2),
    "down_interleaved": OfLayer((40, 2, 384, 1536, 2), 3, 2),
    "order": OfLayer((110, 4, 2048, 64, 2), 2),
    "gate_up_ping_pong": OfLayer((110, 4, 512, 128, 2), 3, 1),
    "down_ping_pong": OfLayer((110, 4, 256, 512, 2), 4, 1),
}
"""Kernels of experts; the loops along K come round, and those from tile to tile."""


def expert_kernels() -> Iterator[Landed]:
    """Yields kernels of layers of experts, each behind the launches before it."""
    for name, of in EXPERTS.items():
        layer = random_layer(np.random.default_rng(34), GROUPED[0], *of.sizes)
        launches, num_bytes = layer.launches()
        operands, own = layer.operands(), launches[of.launch]

        @cache
        def before(launches=launches[: of.launch], operands=operands, num_bytes=num_bytes):
            workspace = np.full(num_bytes, POISON, np.uint8)
            layers.run(launches, operands, workspace)
            return workspace

        def launch(of=of, own=own, launches=launches, operands=operands, before=before):
            workspace = before().copy()
            made = layers.bound(launches, own, operands, workspace, of.workgroups)
            return *made, (workspace,)

        yield Landed(f"experts/{name}", layers.kernel(own["text"]), launch)


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
    made = {
        "prefill": prefill_kernels, "quantize": quantize_kernels, "experts": expert_kernels,
        "fp8": partial(byte_kernels, "fp8"), "columns": partial(byte_kernels, "columns"),
    }  # fmt: skip
    return list(made[program]() if program in made else decode_kernels(program))
