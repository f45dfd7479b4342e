"""The rungs of the ladder: what each launches, on which product, and what the model says of it.

    many rows    4096 x 4096 x 4096 from codes: naive, shared, swizzled, double_buffered, ping_pong
    few rows     16 x 2112 x 7168 from codes: few_rows, split_k; from bfloat16: two_launches, fused
    contest      three shapes of a contest from bfloat16, one launch: contest_wave and so on
    FP8          4096 x 4096 x 4096 from codes, the ladder that AMD published: fp8_scalar and so on
    float16      4096 x 4096 x 8192, rungs of AMD's Gluon tutorial: f16_pieces and so on; its
                 memory-bound product of 32 rows
    E5M2         4096 x 4096 x 16384, what that tutorial makes of it: bf8_regions, bf8_ping_pong

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
MANY_ROWS, FEW_ROWS, LARGE = (4096, 4096, 4096), (16, 2112, 7168), (8192, 8192, 8192)
BLOCKS, SHORT = (256, 3072, 1536), (32, 4096, 512)
"""Shapes of the contest, beside `FEW_ROWS`: much of C, and little of K."""
LONG, LONGER, MEMORY_BOUND = (4096, 4096, 8192), (4096, 4096, 16384), (32, 65536, 8192)
PUBLISHED = {
    "fp8_scalar": (1.15, 1.15),
    "fp8_scalar_lds": (4.8, 4.8),
    "fp8_bytes": (30, 30),
    "fp8_pieces": (337, 341),
    "fp8_straight": (501, 507),
    "fp8_swizzled": (495, 495),
    "fp8_double_plain": (1057, 1057),
    "fp8_double_buffered": (1150, 1166),
    "fp8_128x128": (1808, 1829),
    "fp8_256x256": (2003, 2288),
    "fp8_256x256_16": (2084, 2228),
    "fp8_ping_pong": (2650, 2680),
    "fp8_ping_pong_8192": (3204, 3204),
    "f16_pieces": (525, 541),
    "f16_straight": (672, 673),
    "f16_swizzled": (738, 755),
    "f16_double_buffered": (964, 1123),
    "f16_read_ahead": (1034, 1034),
    "f16_regions": (1569, 1569),
    "f16_banded": (1418, 1634),
    "f16_ping_pong": (1437, 1479),
    "f16_memory_bound": (204.9, 205.2),
    "bf8_regions": (3233, 3257),
    "bf8_ping_pong": (3076, 3076),
}
"""TFLOP/s that AMD measured on an MI355X, the lower and the higher of two publications: *FP8 GEMM
optimization on AMD CDNA4-based GPUs* (a notebook, averages of its recorded output), and *FP8 GEMM
Optimization on AMD CDNA4 Architecture* (a post of 10 March 2026). Of float16, of revisions of
*gfx950-gluon-tutorials*: a16w16 v0, v2, v3, v4, v5 without its scheduler, v8, v9, and the kernel of
eight waves; the memory-bound product, 6430 and 6442 GB/s there; a8w8 by four waves and by eight."""
F16 = "f16"
UNSCALED = {"fp8": torch.float8_e4m3fn, F16: torch.float16, "bf8": torch.float8_e5m2}
"""Ladders whose operands have no scales, and their type."""
SMALL = {"many_rows": (128, 256, 768), "few_rows": (16, 64, 1792), "contest": (32, 64, 7168)}
SMALL |= dict.fromkeys(UNSCALED, (256, 512, 512))
SMALL_SCALAR = (48, 80, 272)
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
    ladder: str = "many_rows"
    """The table it belongs to."""
    k_share: int = 1
    """K over what is timed of it, where all takes minutes: the kernel's time is multiplied."""

    @property
    def small(self) -> tuple[int, int, int]:
        """(M, N, K) that is computed in place of it: few tiles, three stages or more."""
        m, n, k = SMALL_SCALAR if self.k_share > 1 else SMALL[self.ladder]
        return m, n, min(k, self.shape[2])

    @property
    def published(self) -> tuple[float, float] | None:
        """TFLOP/s that others measured with the same idea, tile, threads and loads."""
        return PUBLISHED.get(self.name)


def tiled(kernel: str, rows: int, columns: int, waves: int):
    """Returns the launch of a kernel with a fixed tile of C."""
    args = ("codes", "code_scales", "w_codes", "w_scales", "c")
    return lambda m, n, k: [
        Launch(kernel, (n // columns, m // rows, 1), 64 * waves, (*args, m, n, k))
    ]


def unscaled(kernel: str, rows: int, columns: int, waves: int):
    """Returns the launch of a kernel with a fixed tile of C on operands without scales."""
    kind = kernel.partition("_")[0]
    args = (kind, "none", f"w_{kind}", "none", "c")
    return lambda m, n, k: [
        Launch(kernel, (n // columns, m // rows, 1), 64 * waves, (*args, m, n, k))
    ]


def scalar(kernel: str):
    """Returns the launch of a kernel with a value of C for each thread, 16 x 16 a workgroup."""
    args = ("fp8", "w_fp8", "c")
    return lambda m, n, k: [Launch(kernel, (n // 16, m // 16, 1), 256, (*args, n, k))]


def along_k(kernel: str, splits: int, activations=("codes", "code_scales")):
    """Returns the launch of a kernel whose workgroups may share K."""
    args = (*activations, "w_codes", "w_scales", "c", "workspace")
    return lambda m, n, k: [
        Launch(
            kernel, (n // COLUMNS, 1, splits), 64, (*args, n, k, k // STAGE_K // splits), splits > 1
        )
    ]


def fused(kernel: str, columns: int = COLUMNS, splits: int = 1):
    """Returns the launch of a kernel that quantizes, a wave for each tile of C and part of K."""
    args = ("x", "w_codes", "w_scales", "c", "workspace")
    return lambda m, n, k: [
        Launch(
            kernel, (n // columns, m // 16, splits), 64,
            (*args, m, n, k, k // STAGE_K // splits), splits > 1,
        )
    ]  # fmt: skip


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
         FEW_ROWS, along_k("few_rows", 1), "few_rows"),
    Rung("split_k", f"{SPLITS} waves share K; whoever comes last adds their sums up.",
         FEW_ROWS, along_k("split_k", SPLITS), "few_rows"),
    Rung("two_launches", "Activations are bfloat16: a launch quantizes them, then split_k.",
         FEW_ROWS, two_launches, "few_rows"),
    Rung("fused", "The product quantizes them in registers: one launch.",
         FEW_ROWS, fused("fused", splits=SPLITS), "few_rows"),
    Rung("contest_wave", "A wave computes 16 x 32 of C, operands straight from memory.",
         FEW_ROWS, fused("contest_wave"), "contest"),
    Rung("contest_lds", "Loads go straight to LDS, a stage at a time.",
         FEW_ROWS, fused("contest_lds"), "contest"),
    Rung("contest_swizzled", "The pieces of a row are exchanged in LDS.",
         FEW_ROWS, fused("contest_swizzled"), "contest"),
    Rung("contest_double_buffered", "Two stages in LDS: one arrives while the other is multiplied.",
         FEW_ROWS, fused("contest_double_buffered"), "contest"),
    Rung("contest_split_k", f"{SPLITS} waves share K; whoever comes last adds their sums up.",
         FEW_ROWS, fused("contest_split_k", splits=SPLITS), "contest"),
    Rung("contest_preloaded", "Arguments are in registers when the kernel starts.",
         FEW_ROWS, fused("contest_preloaded", splits=SPLITS), "contest"),
    Rung("contest_priority", "A wave goes first while it starts loads.",
         FEW_ROWS, fused("contest_priority", splits=SPLITS), "contest"),
    Rung("contest_transposed", "W is multiplied by A, so that a lane stores 8 bytes at once.",
         FEW_ROWS, fused("contest_transposed", splits=SPLITS), "contest"),
    Rung("contest_up_front", "A wave's four stages have LDS of their own: all loads start first.",
         FEW_ROWS, fused("contest_up_front", splits=SPLITS), "contest"),
    Rung("contest_tile", "Double-buffered again: a wave computes 16 x 32.",
         BLOCKS, fused("contest_double_buffered"), "contest"),
    Rung("contest_blocked", "A wave computes 16 x 64: rows are quantized half as often.",
         BLOCKS, fused("contest_blocked", columns=64), "contest"),
    Rung("contest_short", "contest_up_front without split-K: K is two stages.",
         SHORT, fused("contest_short"), "contest"),
    Rung("contest_registers", "All loads go to registers instead.",
         SHORT, fused("contest_registers"), "contest"),
    Rung("fp8_scalar", "A thread computes one value of C, a byte of each operand at a time.",
         MANY_ROWS, scalar("fp8_scalar"), "fp8", 8),
    Rung("fp8_scalar_lds", "16 along K as float32 in LDS; a wave has LDS of its own.",
         MANY_ROWS, scalar("fp8_scalar_lds"), "fp8", 4),
    Rung("fp8_bytes", "Matrix instructions: a wave computes 16 x 16 from LDS of its own.",
         MANY_ROWS, unscaled("fp8_bytes", 32, 32, 4), "fp8"),
    Rung("fp8_pieces", "A load has 16 bytes a lane instead of one.",
         MANY_ROWS, unscaled("fp8_pieces", 32, 32, 4), "fp8"),
    Rung("fp8_straight", "Loads go straight to LDS.",
         MANY_ROWS, unscaled("fp8_straight", 32, 32, 4), "fp8"),
    Rung("fp8_swizzled", "The pieces of a row are exchanged in LDS.",
         MANY_ROWS, unscaled("fp8_swizzled", 32, 32, 4), "fp8"),
    Rung("fp8_shared", "A wave computes 32 x 32, four share 64 x 64 in LDS. Not published.",
         MANY_ROWS, unscaled("fp8_shared", 64, 64, 4), "fp8"),
    Rung("fp8_double_plain", "Two stages in LDS, 64 x 64; not swizzled.",
         MANY_ROWS, unscaled("fp8_double_plain", 64, 64, 4), "fp8"),
    Rung("fp8_double_buffered", "Two stages in LDS, 64 x 64; swizzled.",
         MANY_ROWS, unscaled("fp8_double_buffered", 64, 64, 4), "fp8"),
    Rung("fp8_128x128", "Eight waves, 128 x 128.",
         MANY_ROWS, unscaled("fp8_128x128", 128, 128, 8), "fp8"),
    Rung("fp8_256x256", "Eight waves, 256 x 256.",
         MANY_ROWS, unscaled("fp8_256x256", 256, 256, 8), "fp8"),
    Rung("fp8_256x256_16", "Sixteen waves, 256 x 256.",
         MANY_ROWS, unscaled("fp8_256x256_16", 256, 256, 16), "fp8"),
    Rung("fp8_ping_pong", "Eight waves: one half multiplies a quarter while the other half moves.",
         MANY_ROWS, unscaled("fp8_ping_pong", 256, 256, 8), "fp8"),
    Rung("fp8_ping_pong_8192", "The same kernel; four rounds of workgroups.",
         LARGE, unscaled("fp8_ping_pong", 256, 256, 8), "fp8"),
    Rung("f16_pieces", "Four waves, 256 x 256: 64 along K go through registers to LDS.",
         LONG, unscaled("f16_pieces", 256, 256, 4), F16),
    Rung("f16_straight", "Loads go straight to LDS.",
         LONG, unscaled("f16_straight", 256, 256, 4), F16),
    Rung("f16_swizzled", "The pieces of a row are exchanged in LDS.",
         LONG, unscaled("f16_swizzled", 256, 256, 4), F16),
    Rung("f16_double_buffered", "Two stages in LDS: one arrives while the other is multiplied.",
         LONG, unscaled("f16_double_buffered", 256, 256, 4), F16),
    Rung("f16_read_ahead", "Loads are two stages ahead, reads of LDS one.",
         LONG, unscaled("f16_read_ahead", 256, 256, 4), F16),
    Rung("f16_regions", "Between products of a quarter: reads of a half, loads of another.",
         LONG, unscaled("f16_regions", 256, 256, 4), F16),
    Rung("f16_xcd", "An XCD has tiles that follow each other in a row: GROUP_M is 1.",
         LONG, unscaled("f16_xcd", 256, 256, 4), F16),
    Rung("f16_banded", "An XCD has a block of tiles: GROUP_M is 4.",
         LONG, unscaled("f16_banded", 256, 256, 4), F16),
    Rung("f16_ping_pong", "Eight waves: one half multiplies a quarter while the other half moves.",
         LONG, unscaled("f16_ping_pong", 256, 256, 8), F16),
    Rung("f16_memory_bound", "f16_read_ahead with 32 x 256: W is read once.",
         MEMORY_BOUND, unscaled("f16_memory_bound", 32, 256, 4), F16),
    Rung("bf8_regions", "f16_regions and GROUP_M with codes of eight bits.",
         LONGER, unscaled("bf8_regions", 256, 256, 4), "bf8"),
    Rung("bf8_ping_pong", "f16_ping_pong with codes of eight bits.",
         LONGER, unscaled("bf8_ping_pong", 256, 256, 8), "bf8"),
]  # fmt: skip
BY_NAME = {rung.name: rung for rung in RUNGS}


def assembly(*defines: str) -> builds.Build:
    """Returns the assembly of all kernels, or with `F16` of Gluon's, as a file of the cache."""
    options = [word for name in defines for word in ("-D", name)]
    return builds.program_output(HERE / "main.mojo", FOLDERS, options)


@cache
def kernels(*defines: str) -> dict[str, gfx950.Kernel]:
    """Returns the compiled kernels by name."""
    parts = KERNEL.split(assembly(*defines).find_or_make().read_text())
    return {name: gfx950.parse(code) for name, code in zip(parts[1::2], parts[2::2], strict=True)}


def kernel_of(launch: Launch) -> gfx950.Kernel:
    """Returns the compiled kernel of a launch."""
    defines = ("F16",) if launch.kernel.startswith((F16, "bf8")) else ()
    return kernels(*defines)[launch.kernel]


def workspace_bytes(m: int, n: int) -> int:
    """Returns the bytes of counters and sums of workgroups that share K."""
    return m // 16 * n // COLUMNS * 4 * (1 + SPLITS * 2 * 64 * 4)


def operands(m: int, n: int, k: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns arrays for the arguments, by name, and C as the CPU's kernels compute it."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, n))
    a, w = mx.quantize(x), mx.quantize(weight)
    expected = mx.matmul(a, w, out_dtype="float32").numpy()
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
        "workspace": np.zeros(workspace_bytes(m, n), np.uint8),
        "none": np.zeros(0, np.uint8),
    }, expected


def unscaled_operands(
    kind: str, m: int, n: int, k: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns arrays for the arguments of kernels without scales, by name, and C in float64."""
    generator = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, k, generator=generator).to(UNSCALED[kind]) for rows in (m, n))
    return {
        kind: a.view(torch.uint8).numpy(),
        f"w_{kind}": w.view(torch.uint8).numpy(),
        "c": np.zeros((m, n), np.uint16),
        "none": np.zeros(0, np.uint8),
    }, (a.double() @ w.double().T).numpy()


def bind(launch: Launch, arrays: dict[str, np.ndarray]) -> list:
    """Returns the arguments of a launch."""
    return [arrays[a] if isinstance(a, str) else np.int32(a) for a in launch.args]


def run(rung: Rung, shape: tuple[int, int, int], **options) -> tuple[np.ndarray, np.ndarray, list]:
    """Computes a product on the simulator.

    Returns:
        C in float32, C as the CPU computes it, and what hazards were found.
    """
    is_unscaled = rung.ladder in UNSCALED
    arrays, expected = unscaled_operands(rung.ladder, *shape) if is_unscaled else operands(*shape)
    hazards = []
    for launch in rung.launches(*shape):
        kernel = kernel_of(launch)
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

    def tflops(self, us: float) -> float:
        """Returns the rate of the product in a time."""
        return 2e-6 * self.m * self.n * self.k / us


def profiles(rung: Rung) -> list[gfx950.Profile]:
    """Returns the profile of each launch of a rung, on operands of zeros, along its part of K."""
    m, n, k = rung.shape
    k //= rung.k_share
    launches = rung.launches(m, n, k)
    named = {name for launch in launches for name in launch.args if isinstance(name, str)}
    shapes = {
        "x": ((m, k), np.uint16),
        "codes": ((m, k // 2), np.uint8),
        "w_codes": ((n, k // 2), np.uint8),
        "code_scales": ((-(-m // 32) * 32, k // 32), np.uint8),
        "w_scales": ((n, k // 32), np.uint8),
        "fp8": ((m, k), np.uint8),
        "w_fp8": ((n, k), np.uint8),
        F16: ((m, k), np.uint16),
        "w_f16": ((n, k), np.uint16),
        "bf8": ((m, k), np.uint8),
        "w_bf8": ((n, k), np.uint8),
        "c": ((m, n), np.uint16),
        "workspace": (workspace_bytes(m, n), np.uint8),
        "none": (0, np.uint8),
    }
    arrays = {
        name: np.zeros(*shape) for name, shape in shapes.items() if {name, f"{name}_out"} & named
    }
    arrays |= {f"{name}_out": arrays[name] for name in ("codes", "code_scales") if name in arrays}
    return [_profile(launch, arrays) for launch in launches]


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
            kernel_of(launch), launch.grid, launch.threads,
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
    last, launch_us = found[-1], Machine().launch_us

    def us(reading: str) -> float:
        kernels_us = sum(one.variants[reading] - launch_us for one in found)
        return round(len(found) * launch_us + rung.k_share * kernels_us, 2)

    stalls = sorted(last.stalls.items(), key=lambda item: -item[1])[:2]
    return Timing(
        rung.name,
        *rung.shape,
        launches=len(found),
        clock_us=us("clock"),
        latency_us=us("latency"),
        mfma_utilisation=round(last.mfma_utilisation, 3),
        lds_conflict_share=round(last.lds_conflict_share, 3),
        stalls=", ".join(f"{name} {share:.0%}" for name, share in stalls),
    )
