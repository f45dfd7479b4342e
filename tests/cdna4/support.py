"""Compiles our gfx950 kernels and launches them in the simulator.

`compile_kernels(program)` reads the assembly that a Mojo program of `programs` prints, and
returns a `gfx950.Kernel` for each name. `quantize`, `linear` and `matmul` do what the host
does: lay out, choose the grid, pass arguments. Every launch is checked for hazards, and
arrays are exactly as long as the operands, so that the simulator faults on any access beyond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import gfx950
import oracle
from tests import artefacts

CONTEST = [
    (4, 2880, 512),
    (16, 2112, 7168),
    (32, 4096, 512),
    (32, 2880, 512),
    (64, 7168, 2048),
    (256, 3072, 1536),
]
"""(M, N, K) of the products that CDNA4 is measured by."""
LANES = 64
NUM_XCDS = 8
TILE = 16
TILE_K = 128
TILE_SUM_BYTES = 1024
QUANTIZE_WAVES = 2
QUANTIZE_ROWS = 32
QUANTIZE_COLUMNS = QUANTIZE_WAVES * 256
NUMPY_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


@cache
def compile_texts(program: str) -> dict[str, str]:
    """Returns the assembly texts that a Mojo program prints, by name."""
    parts = re.split(
        r"^;;;; kernel (\S+)\n", artefacts.text(f"cdna4/{program}"), flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def compile_kernels(program: str) -> dict[str, gfx950.Kernel]:
    """Returns the kernels that a Mojo program prints, by name."""
    return {name: gfx950.parse(text) for name, text in compile_texts(program).items()}


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceildiv(a, b) * b


@dataclass(frozen=True)
class Launch:
    """What a launch takes besides the kernel; `results` are those arguments that it writes."""

    grid: tuple[int, ...]
    block: int
    args: list
    results: tuple[np.ndarray, ...]

    def run(self, kernel, **options):
        """Runs a kernel and raises on hazards."""
        return gfx950.run(kernel, self.grid, self.block, self.args, **options).raise_on_hazards()


def quantize_launch(x, layout: str = "plain") -> Launch:
    """Returns a launch of the quantize kernel; its outputs begin poisoned."""
    rows, k = x.shape
    stored = oracle.LAYOUTS[layout]
    codes = np.full((rows, k // 2), 0xA5, np.uint8)
    scales = np.full(
        (
            round_up(rows, stored.scale_row_multiple),
            round_up(k // oracle.BLOCK, stored.scale_k_multiple),
        ),
        0xA5,
        np.uint8,
    )
    grid = (ceildiv(k, QUANTIZE_COLUMNS), ceildiv(rows, QUANTIZE_ROWS))
    args = [np.ascontiguousarray(x), codes, scales, np.int32(rows), np.int32(k)]
    return Launch(grid, QUANTIZE_WAVES * LANES, args, (codes, scales))


def quantize(kernel, x, layout: str = "plain", **options):
    """Launches the quantize kernel; returns codes and scales as stored."""
    launch = quantize_launch(x, layout)
    launch.run(kernel, **options)
    return launch.results


@dataclass(frozen=True)
class Decode:
    """A decode kernel, from its name: what it computes and how it cuts its work."""

    op: str
    x: str
    rounding: str
    result: str
    bias: str
    m_tiles: int
    n_tiles: int
    k_tiles: int
    waves: int
    depth: int
    splits: int
    sharers: int
    up_front: bool
    k_tail: bool

    NAME = re.compile(
        r"(?:[\dx]+/)?(?:(linear)_(\w+?)_(\w+?)|matmul)_(\w+?)_(\w+?)"
        r"_m(\d+)n(\d+)k(\d+)w(\d+)d(\d+)s(\d+)a(\d+)(u?)(t?)"
    )

    @classmethod
    def named(cls, name: str) -> Decode:
        """Parses a name of `programs/named.mojo`."""
        match = cls.NAME.fullmatch(name)
        op, x, rounding, result, bias, *cut = match.groups()
        counts, marks = map(int, cut[:-2]), map(bool, cut[-2:])
        return cls(op or "matmul", x or "", rounding or "", result, bias, *counts, *marks)

    def supports(self, k: int) -> bool:
        """Says whether the kernel may be launched for K."""
        has_chunks = self.k_tail or k % (self.k_tiles * TILE_K) == 0
        return has_chunks and (not self.up_front or self.chunks_per_wave(k) == self.depth)

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """Returns the workgroups; x is rounded up so that equal x share an XCD."""
        x, y = ceildiv(n, self.n_tiles * TILE), ceildiv(m, self.m_tiles * TILE)
        return (round_up(x, NUM_XCDS) if y > 1 else x, y, self.splits)

    def chunks_per_wave(self, k: int) -> int:
        """Returns how many chunks a wave has: a multiple of the depth."""
        chunks = ceildiv(k, self.k_tiles * TILE_K)
        return round_up(ceildiv(chunks, self.waves // self.sharers * self.splits), self.depth)

    def workspace(self, m: int, n: int) -> np.ndarray:
        """Returns the nodes where sums meet, which are zero between launches."""
        groups = ceildiv(n, self.n_tiles * TILE) * ceildiv(m, self.m_tiles * TILE)
        nodes = groups * (self.splits - 1)
        return np.zeros(nodes * self.m_tiles * self.n_tiles * TILE_SUM_BYTES, np.uint8)


@dataclass
class Problem:
    """Operands of one product, and what their encoded forms stand for."""

    x: np.ndarray
    weights: tuple[np.ndarray, np.ndarray]
    """Plain codes and scales [N, K / 2], [N, K / 32]."""
    bias: np.ndarray | None

    @classmethod
    def random(cls, rng, shape, x: str = "bfloat16", bias: str = "none") -> Problem:
        """Draws operands; the scales of neighbouring blocks differ by up to 2**9."""
        m, n, k = shape
        exponents = np.repeat(rng.integers(-4, 5, (m, k // oracle.BLOCK)), oracle.BLOCK, 1)
        values = (rng.standard_normal((m, k)) * np.exp2(exponents)).astype(NUMPY_DTYPES[x])
        codes = rng.integers(0, 256, (n, k // 2), np.uint8)
        scales = rng.integers(118, 127, (n, k // oracle.BLOCK)).astype(np.uint8)
        addend = None if bias == "none" else rng.standard_normal(n).astype(NUMPY_DTYPES[bias])
        return cls(values, (codes, scales), addend)


def multiply_launch(decode: Decode, problem: Problem, workspace=None) -> Launch:
    """Returns a launch of a decode kernel; scales in the padding of the weights are NaN."""
    (m, k), n = problem.x.shape, len(problem.weights[0])
    if decode.op == "linear":
        activations = [problem.x]
    else:
        activations = list(oracle.quantize(problem.x.astype(np.float64)))
    c = np.full((m, n), np.nan, NUMPY_DTYPES[decode.result])
    workspace = decode.workspace(m, n) if workspace is None else workspace
    bias = np.zeros(0, np.uint8) if problem.bias is None else problem.bias
    sizes = [np.int32(i) for i in (m, n, k, decode.chunks_per_wave(k))]
    args = [*activations, *poisoned_weights(*problem.weights), c, *sizes, bias, workspace]
    return Launch(decode.grid(m, n), decode.waves * LANES, args, (c, workspace))


def multiply(kernel, decode: Decode, problem: Problem, *, workspace=None, **options):
    """Launches a decode kernel; returns C."""
    launch = multiply_launch(decode, problem, workspace)
    launch.run(kernel, **options)
    c, workspace = launch.results
    assert not workspace.any(), "the workspace is zero after a launch"
    return c


def poisoned_weights(codes, scales):
    """Returns the weights as stored for CDNA4, with NaN in all padding of the scales."""
    stored = oracle.LAYOUTS["preshuffled_cdna4"]
    inside = stored.store(codes, np.zeros_like(scales))[1] == 0
    codes, scales = stored.store(codes, scales)
    return codes, np.where(inside, scales, np.uint8(oracle.NAN_SCALE))


def assert_multiplies(kernel, decode: Decode, problem: Problem, **options):
    """Launches a decode kernel and compares C with the oracle's bound; returns C."""
    c = multiply(kernel, decode, problem, **options)
    rounding = decode.rounding or "even"
    a = oracle.dequantize(*oracle.quantize(problem.x.astype(np.float64), rounding))
    b = oracle.dequantize(*problem.weights)
    bias = None if problem.bias is None else problem.bias.astype(np.float64)
    oracle.assert_matmul(c.astype(np.float64), a, b, decode.result, bias)
    return c
