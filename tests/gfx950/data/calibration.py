"""Prints the model's side of the calibration page, python/gfx950/README.md.

    python tests/gfx950/data/calibration.py            seconds
    python tests/gfx950/data/calibration.py --max      also compiles MAX's FP8 ping-pong matmul

The published side, with sources, stands on that page. Three tables: loops of nothing but
MFMAs against the data sheet's peaks, LDS patterns with known conflicts, and whole kernels.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from gfx950.timing import profile
from gfx950.timing.conflicts import access_cycles
from gfx950.timing.parameters import Machine

HERE = Path(__file__).parent
LANE = np.arange(64)
MFMA_LOOP = """
k:
	s_movk_i32 s0, {trips}
.L0:
{body}
	s_sub_u32 s0, s0, 1
	s_cmp_lg_u32 s0, 0
	s_cbranch_scc1 .L0
	s_endpgm
.Lfunc_end0:
	.amdhsa_kernel k
		.amdhsa_next_free_vgpr 128
		.amdhsa_next_free_sgpr 32
		.amdhsa_accum_offset 128
	.end_amdhsa_kernel
"""
MFMAS = {
    "MXFP4 16x16x128": ("v_mfma_f32_16x16x128_f8f6f4", 4, "cbsz:4 blgp:4"),
    "MXFP4 32x32x64": ("v_mfma_f32_32x32x64_f8f6f4", 16, "cbsz:4 blgp:4"),
    "FP8 16x16x128": ("v_mfma_f32_16x16x128_f8f6f4", 4, ""),
    "BF16 16x16x32": ("v_mfma_f32_16x16x32_bf16", 4, ""),
}
PATTERNS = {
    "b32, stride 1 dword": (LANE * 4, 4),
    "b32, stride 2 dwords": (LANE * 8, 4),
    "b32, stride 4 dwords": (LANE * 16, 4),
    "b32, stride 8 dwords": (LANE * 32, 4),
    "b128, 128-byte rows, 16x16x32 fragment": (LANE % 16 * 128 + LANE // 16 * 16, 16),
    "b128, the same, 16-byte granule ^ (row>>1)&7": (
        LANE % 16 * 128 + (LANE // 16 ^ (LANE % 16 >> 1)) * 16,
        16,
    ),
}


def mfma_loops():
    """Prints the rate of loops of 64 independent-by-four MFMAs, one wave a SIMD."""
    for label, (op, registers, mods) in MFMAS.items():
        operand = "v[64:67], v[72:75]" if "16x16x32" in op else "v[64:71], v[72:79]"
        if "cbsz:4" in mods:
            operand = "v[64:67], v[72:75]"
        tiles = [f"v[{i * registers}:{(i + 1) * registers - 1}]" for i in range(4)]
        body = "\n".join(f"\t{op} {tile}, {operand}, {tile} {mods}" for tile in tiles * 16)
        result = profile(MFMA_LOOP.format(trips=16, body=body), 256, 256, [])
        pflops = result.flops / result.kernel_us * 1e-9
        print(f"{label:18} {result.loop.mfma_utilisation:6.1%} {pflops:6.2f} PFLOP/s")


def lds_patterns():
    """Prints cycles of a wave's read and its conflict degree."""
    everyone = np.ones((1, 64), bool)
    for label, (address, num_bytes) in PATTERNS.items():
        cycles, free = access_cycles(
            address[None], everyone, num_bytes, Machine().lds_banks, is_write=False
        )
        print(f"{label:48} {cycles[0]:3} cycles, {cycles[0] // free[0]}-way")


def max_ping_pong(size):
    """Compiles MAX's FP8 ping-pong matmul for a square problem and prints its profile."""
    source = (HERE / "max_ping_pong.mojo").read_text()
    source = source.replace("comptime SIZE = 4096", f"comptime SIZE = {size}")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ping_pong.mojo"
        program.write_text(source)
        mojo = Path(sys.executable).with_name("mojo")
        text = subprocess.run(
            [str(mojo), "run", str(program)], capture_output=True, text=True, check=True
        ).stdout
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 80, size * size, np.uint8) for _ in range(2))
    arguments = [a, b, np.zeros(2 * size * size, np.uint8)]
    for in_flight in (32768, 45056):
        machine = replace(Machine(), in_flight_bytes=in_flight)
        tiles = size // 256
        result = profile(text, (tiles, tiles), 512, arguments, machine=machine)
        print(
            f"MAX FP8 ping-pong {size}^3, {in_flight >> 10} KiB in flight: loop "
            f"{result.loop.mfma_utilisation:.1%}, all {result.mfma_utilisation:.1%}, "
            f"{result.kernel_us:.1f} us + launch, {result.tflops:.0f} TFLOP/s at "
            f"{machine.clock_ghz} GHz, LDS conflicts {result.lds_conflict_share:.0%}"
        )


if __name__ == "__main__":
    mfma_loops()
    lds_patterns()
    if "--max" in sys.argv[1:]:
        for problem_size in (4096, 8192):
            max_ping_pong(problem_size)
