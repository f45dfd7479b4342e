"""The rungs of the ladder: what each launches, on which product, and what the model says of it.

    many rows    4096 x 4096 x 4096 from codes: naive, shared, swizzled, double_buffered, ping_pong
    few rows     16 x 2112 x 7168 from codes: few_rows, split_k; from bfloat16: two_launches, fused

Kernels are compiled for gfx950 and run on its simulator: no GPU is needed, and no time here
was measured on one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

import gfx950
import mx_kernels as mx
from gfx950.timing.parameters import Machine
from mx_kernels._core import builds

HERE = Path(__file__).parent
FOLDERS = [HERE, HERE.parents[1]]
KERNEL = re.compile(r"^;;;; kernel (\S+)\n", re.MULTILINE)
MANY_ROWS, FEW_ROWS = (4096, 4096, 4096), (16, 2112, 7168)
STAGE_K, COLUMNS, THREADS, CUS = 256, 32, 256, 256
SPLITS = 7
"""Workgroups that share K: 66 tiles of C become 462 waves, of four stages each."""


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid, the threads of a workgroup, and the names of its arguments."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    args: tuple[str | int, ...]
    """Names of arrays, and integers of 32 bits."""
    has_last_arriver: bool = False
    """Whether whoever comes last does more than the others."""


@dataclass(frozen=True)
class Rung:
    """A step of the ladder."""

    name: str
    adds: str
    """What is new, in a sentence."""
    shape: tuple[int, int, int]
    """(M, N, K) that is timed; N and K of another shape must fit the tiles."""
    launches: Callable[[int, int, int], list[Launch]]


def tiled(kernel: str, rows: int, columns: int, waves: int):
    """Returns the launch of a kernel with a fixed tile of C."""
    args = ("codes", "code_scales", "w_codes", "w_scales", "c")
    return lambda m, n, k: [
        Launch(kernel, (n // columns, m // rows, 1), 64 * waves, (*args, m, n, k))
    ]


def along_k(kernel: str, splits: int, activations=("codes", "code_scales")):
    """Returns the launch of a kernel whose workgroups may share K."""
    args = (*activations, "w_codes", "w_scales", "c", "workspace")
    return lambda m, n, k: [
        Launch(
            kernel, (n // COLUMNS, 1, splits), 64, (*args, n, k, k // STAGE_K // splits), splits > 1
        )
    ]


def quantize(m: int, n: int, k: int) -> Launch:
    """Returns the launch that quantizes the activations."""
    grid = (-(-m * k // 32 // THREADS), 1, 1)
    return Launch("quantize", grid, THREADS, ("x", "codes_out", "code_scales_out", m, k))


def two_launches(m: int, n: int, k: int) -> list[Launch]:
    """Returns the launches that quantize and multiply."""
    made = ("codes_out", "code_scales_out")
    return [quantize(m, n, k), *along_k("split_k", SPLITS, made)(m, n, k)]


RUNGS = [
    Rung("naive", "A wave computes 32 x 32 of C, operands straight from memory.",
         MANY_ROWS, tiled("naive", 32, 32, 1)),
    Rung("shared", "Four waves compute 128 x 128 and share each stage of both operands in LDS.",
         MANY_ROWS, tiled("shared", 128, 128, 4)),
    Rung("swizzled", "The pieces of a row are exchanged in LDS: no bank is asked twice at once.",
         MANY_ROWS, tiled("swizzled", 128, 128, 4)),
    Rung("double_buffered", "Loads go straight to LDS, one stage ahead of the products.",
         MANY_ROWS, tiled("double_buffered", 128, 128, 4)),
    Rung("ping_pong", "Eight waves, 128 x 256: one half multiplies while the other half moves.",
         MANY_ROWS, tiled("ping_pong", 128, 256, 8)),
    Rung("few_rows", "A wave computes 16 x 32 of C, operands straight from memory.",
         FEW_ROWS, along_k("few_rows", 1)),
    Rung("split_k", f"{SPLITS} waves share K; whoever comes last adds their sums up.",
         FEW_ROWS, along_k("split_k", SPLITS)),
    Rung("two_launches", "Activations are bfloat16: a launch quantizes them, then split_k.",
         FEW_ROWS, two_launches),
    Rung("fused", "The product quantizes them in registers: one launch.",
         FEW_ROWS, along_k("fused", SPLITS, ("x", "none"))),
]  # fmt: skip
BY_NAME = {rung.name: rung for rung in RUNGS}


def assembly() -> builds.Build:
    """Returns the printed assembly of all kernels as a file of the cache."""
    return builds.program_output(HERE / "main.mojo", FOLDERS)


@cache
def kernels() -> dict[str, gfx950.Kernel]:
    """Returns the compiled kernels by name."""
    parts = KERNEL.split(assembly().find_or_make().read_text())
    return {name: gfx950.parse(code) for name, code in zip(parts[1::2], parts[2::2], strict=True)}


def operands(m: int, n: int, k: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns arrays for the arguments, by name, and C as the CPU's kernels compute it."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, n))
    a, w = mx.quantize(x), mx.quantize(weight)
    expected = mx.matmul(a, w, out_dtype="float32").numpy()
    parts = n // COLUMNS * 4 * (1 + SPLITS * 2 * 64 * 4)
    scales = {
        name: q.preshuffle(device="gfx950").scales.numpy()
        for name, q in (("code_scales", a), ("w_scales", w))
    }
    return {
        "x": x.view(torch.int16).numpy(),
        "codes": a.codes.numpy(),
        "w_codes": w.codes.numpy(),
        **scales,
        "codes_out": np.zeros_like(a.codes.numpy()),
        "code_scales_out": np.full_like(scales["code_scales"], 127),
        "c": np.zeros((m, n), np.uint16),
        "workspace": np.zeros(parts, np.uint8),
        "none": np.zeros(0, np.uint8),
    }, expected


def bind(launch: Launch, arrays: dict[str, np.ndarray]) -> list:
    """Returns the arguments of a launch."""
    return [arrays[a] if isinstance(a, str) else np.int32(a) for a in launch.args]


def run(rung: Rung, shape: tuple[int, int, int], **options) -> tuple[np.ndarray, np.ndarray, list]:
    """Computes a product on the simulator.

    Returns:
        C in float32, C as the CPU's kernels compute it, and what hazards were found.
    """
    arrays, expected = operands(*shape)
    hazards = []
    for launch in rung.launches(*shape):
        kernel = kernels()[launch.kernel]
        args = bind(launch, arrays)
        hazards += gfx950.run(kernel, launch.grid, launch.threads, args, **options).hazards
    got = (arrays["c"].astype(np.uint32) << 16).view(np.float32)
    return got, expected, hazards


@dataclass(frozen=True)
class Timing:
    """What the timing model says of a rung. Nothing here was measured on a GPU."""

    rung: str
    m: int
    n: int
    k: int
    launches: int
    clock_us: float
    """All launches, the cost of a launch included, in the first reading of the model."""
    latency_us: float
    """In the second one."""
    mfma_utilisation: float
    """Busy share of the matrix pipes, last launch."""
    lds_conflict_share: float
    """Share of its LDS cycles lost to bank conflicts."""
    stalls: str
    """What its waves wait for most, and their share of cycles."""


def profiles(rung: Rung) -> list[gfx950.Profile]:
    """Returns the profile of each launch of a rung, on operands of zeros."""
    m, n, k = rung.shape
    arrays = {
        "x": np.zeros((m, k), np.uint16),
        "codes": np.zeros((m, k // 2), np.uint8),
        "w_codes": np.zeros((n, k // 2), np.uint8),
        "code_scales": np.zeros((-(-m // 32) * 32, k // 32), np.uint8),
        "w_scales": np.zeros((n, k // 32), np.uint8),
        "c": np.zeros((m, n), np.uint16),
        "workspace": np.zeros(n // COLUMNS * 4 * (1 + SPLITS * 2 * 64 * 4), np.uint8),
        "none": np.zeros(0, np.uint8),
    }
    arrays |= {f"{name}_out": arrays[name] for name in ("codes", "code_scales")}
    return [_profile(launch, arrays) for launch in rung.launches(m, n, k)]


def _profile(launch: Launch, arrays: dict[str, np.ndarray]) -> gfx950.Profile:
    """Times a launch; where the last to arrive does more, on its compute unit, in both orders."""
    orders = [{}]
    if launch.has_last_arriver:
        last = int(np.prod(launch.grid)) - 1
        orders = [
            {"whole_grid": True, "residents": range(last % CUS, last + 1, CUS)},
            {"whole_grid": True, "reverse": True},
        ]
    found = [
        gfx950.profile(
            kernels()[launch.kernel], launch.grid, launch.threads,
            [array.copy() if isinstance(array, np.ndarray) else array
             for array in bind(launch, arrays)],
            machine=Machine(), with_variants=True, **order,
        )
        for order in orders
    ]  # fmt: skip
    return max(found, key=lambda one: one.time_us)


def timing(rung: Rung) -> Timing:
    """Times a rung with the model."""
    found = profiles(rung)
    last = found[-1]
    stalls = sorted(last.stalls.items(), key=lambda item: -item[1])[:2]
    return Timing(
        rung.name,
        *rung.shape,
        launches=len(found),
        clock_us=round(sum(one.variants["clock"] for one in found), 2),
        latency_us=round(sum(one.variants["latency"] for one in found), 2),
        mfma_utilisation=round(last.mfma_utilisation, 3),
        lds_conflict_share=round(last.lds_conflict_share, 3),
        stalls=", ".join(f"{name} {share:.0%}" for name, share in stalls),
    )
