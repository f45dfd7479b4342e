"""Compiles our gfx950 kernels and launches them in the simulator.

`compile_kernels(program)` runs a Mojo program of `gfx950_mx`, which prints assembly, and
returns a `gfx950.Kernel` for each name. `quantize`, `linear` and `matmul` do what the host
does: lay out, choose the grid, pass arguments. Every launch is checked for hazards, and
arrays are exactly as long as the operands, so that the simulator faults on any access beyond.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

import gfx950
import oracle

TESTS = Path(__file__).parent
PROGRAMS = TESTS / "gfx950_mx"
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
    """Runs a Mojo program and returns the assembly texts it prints, by name."""
    mojo = Path(sys.executable).with_name("mojo")
    command = [mojo, "run", "-I", TESTS.parent, "-I", PROGRAMS, PROGRAMS / f"{program}.mojo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program}.mojo failed:\n{done.stderr}")
    parts = re.split(r"^;;;; kernel (\S+)\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def compile_kernels(program: str) -> dict[str, gfx950.Kernel]:
    """Returns the kernels that a Mojo program prints, by name."""
    return {name: gfx950.parse(text) for name, text in compile_texts(program).items()}


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceildiv(a, b) * b


def quantize(kernel, x, layout: str = "plain", **options):
    """Launches the quantize kernel; returns codes and scales as stored."""
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
    launch(kernel, grid, QUANTIZE_WAVES * LANES, args, **options)
    return codes, scales


def launch(kernel, grid, block, args, **options):
    """Runs a kernel and raises on hazards."""
    return gfx950.run(kernel, grid, block, args, **options).raise_on_hazards()
