"""Compiles small Triton kernels for gfx950 and keeps their assembly as test data.

The simulator's tests run machine code that its authors did not write. Here plain GEMMs go
through Triton's AMD backend; the `.s` files beside this script are what came out, and
`manifest.json` says how each one is called: shapes, dtypes, tile, waves and grid.
No GPU and no torch are used. Triton is needed to regenerate the files, never to run tests:

    python -m venv triton-venv && triton-venv/bin/pip install --no-deps triton==3.9.0
    triton-venv/bin/python tests/gfx950/data/generate.py

`--large FOLDER` writes the big tiles of the calibration page there instead.

Contract of every kernel: C[M, N] = A[M, K] @ B[N, K]^T, all operands row-major, K a
multiple of 32 (of 16 without scales). M, N and K need not divide by the tile. An operand
with scales holds two E2M1 codes (or one E4M3 code) a byte and one E8M0 scale for 32 codes.

Two edits are made to the compiler's text: debug directives are dropped, and the LDS size,
which Triton passes at launch, is written into the descriptor so that the file stands alone.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
TARGET = GPUTarget("hip", "gfx950", 64)
TILE_NAMES = ("TILE_M", "TILE_N", "TILE_K")
POINTERS = {"u8": "*u8", "fp8_e4m3": "*fp8e4nv", "bf16": "*bf16", "f32": "*fp32"}


@triton.jit
def load_tile(p, rows, num_rows, cols, num_cols):
    """Loads p[rows, cols] of a row-major matrix, zero outside it."""
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    return tl.load(p + rows[:, None] * num_cols + cols[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(p, tile, rows, num_rows, cols, num_cols):
    """Stores the part of `tile` that lies inside p."""
    inside = (rows[:, None] < num_rows) & (cols[None, :] < num_cols)
    tile = tile.to(p.dtype.element_ty)
    tl.store(p + rows[:, None] * num_cols + cols[None, :], tile, mask=inside)


@triton.jit
def mx_gemm(a, b, a_scales, b_scales, c, m, n, k,
            TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
            A_FORMAT: tl.constexpr, A_PER_BYTE: tl.constexpr):  # fmt: skip
    """Both operands are codes and scales; B is MXFP4."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for k0 in range(0, k, TILE_K):
        a_bytes = k0 // A_PER_BYTE + tl.arange(0, TILE_K // A_PER_BYTE)
        b_bytes = k0 // 2 + tl.arange(0, TILE_K // 2)
        blocks = k0 // 32 + tl.arange(0, TILE_K // 32)
        a_tile = load_tile(a, rows, m, a_bytes, k // A_PER_BYTE)
        b_tile = load_tile(b, cols, n, b_bytes, k // 2)
        sa = load_tile(a_scales, rows, m, blocks, k // 32)
        sb = load_tile(b_scales, cols, n, blocks, k // 32)
        acc = tl.dot_scaled(a_tile, sa, A_FORMAT, b_tile.T, sb, "e2m1", acc)
    store_tile(c, acc, rows, m, cols, n)


@triton.jit
def bf16_mxfp4_gemm(a, b, b_scales, c, m, n, k,
                    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):  # fmt: skip
    """A is bf16, B is MXFP4: Triton decodes the weights and multiplies in bf16."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for k0 in range(0, k, TILE_K):
        a_tile = load_tile(a, rows, m, k0 + tl.arange(0, TILE_K), k)
        b_tile = load_tile(b, cols, n, k0 // 2 + tl.arange(0, TILE_K // 2), k // 2)
        sb = load_tile(b_scales, cols, n, k0 // 32 + tl.arange(0, TILE_K // 32), k // 32)
        acc = tl.dot_scaled(a_tile, None, "bf16", b_tile.T, sb, "e2m1", acc)
    store_tile(c, acc, rows, m, cols, n)


@triton.jit
def gemm(a, b, c, m, n, k,
         TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):  # fmt: skip
    """No scales; the pointers' element types pick bf16 or fp8."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for k0 in range(0, k, TILE_K):
        ks = k0 + tl.arange(0, TILE_K)
        a_tile = load_tile(a, rows, m, ks, k)
        b_tile = load_tile(b, cols, n, ks, k)
        acc = tl.dot(a_tile, b_tile.T, acc)
    store_tile(c, acc, rows, m, cols, n)


@dataclass(frozen=True)
class Case:
    """One kernel to compile; `a`, `b` and `c` are element types, mxfp4 and mxfp8 with scales."""

    kernel: triton.JITFunction
    a: str
    b: str
    c: str
    tile: tuple[int, int, int]
    waves: int
    stages: int = 2
    mfma_rows: int = 0
    """Rows of the MFMA tile, 16 or 32; 0 lets Triton choose."""

    @property
    def name(self):
        """File name: operand types, tile, waves, pipeline stages."""
        tile = "x".join(map(str, self.tile))
        return f"triton_{self.a}_{self.b}_{tile}_w{self.waves}_s{self.stages}"

    def arguments(self):
        """Explicit kernel arguments, in order: name, dtype and shape (scalars have none)."""
        operands, scales = [], []
        for name, rows, dtype in (("a", "M", self.a), ("b", "N", self.b)):
            k = {"mxfp4": "K/2"}.get(dtype, "K")
            stored = "u8" if dtype.startswith("mx") else dtype
            operands.append({"name": name, "dtype": stored, "shape": [rows, k]})
            if dtype.startswith("mx"):
                scales.append({"name": f"{name}_scales", "dtype": "u8", "shape": [rows, "K/32"]})
        result = {"name": "c", "dtype": self.c, "shape": ["M", "N"], "output": True}
        sizes = [{"name": size.lower(), "dtype": "i32", "value": size} for size in "MNK"]
        hidden = [{"name": f"scratch_{i}", "dtype": "u64", "value": 0} for i in range(2)]
        return [*operands, *scales, result, *sizes, *hidden]

    def manifest(self, lds_bytes):
        """What a test needs to call the kernel."""
        m, n, _ = self.tile
        return {
            "file": f"{self.name}.s",
            "symbol": self.kernel.__name__,
            "a": self.a,
            "b": self.b,
            "tile": list(self.tile),
            "block": [64 * self.waves, 1, 1],
            "grid": [f"ceil(M/{m})", f"ceil(N/{n})", 1],
            "lds_bytes": lds_bytes,
            "args": self.arguments(),
        }


def mx(a, *rest, **more):
    """A case of `mx_gemm`."""
    return Case(mx_gemm, a, "mxfp4", *rest, **more)


SMALL = [
    mx("mxfp4", "f32", (16, 16, 128), 1, mfma_rows=16),
    mx("mxfp4", "bf16", (64, 64, 256), 4),
    mx("mxfp8", "f32", (32, 32, 128), 2, mfma_rows=16),
    Case(bf16_mxfp4_gemm, "bf16", "mxfp4", "bf16", (32, 32, 64), 2),
    Case(gemm, "fp8_e4m3", "fp8_e4m3", "bf16", (64, 64, 128), 4),
    Case(gemm, "bf16", "bf16", "f32", (32, 64, 64), 2, mfma_rows=16),
    Case(gemm, "bf16", "bf16", "bf16", (64, 64, 64), 4, stages=3),
]
LARGE = [
    mx("mxfp4", "bf16", (256, 256, 256), 8),
    Case(gemm, "fp8_e4m3", "fp8_e4m3", "bf16", (256, 256, 128), 8),
    Case(gemm, "bf16", "bf16", "bf16", (256, 256, 64), 8),
]


def compile_case(case):
    """Returns Triton's assembly and the LDS bytes its launcher would ask for."""
    constants = dict(zip(TILE_NAMES, case.tile, strict=True))
    if case.kernel is mx_gemm:
        per_byte = 2 if case.a == "mxfp4" else 1
        constants |= {"A_FORMAT": "e2m1" if per_byte == 2 else "e4m3", "A_PER_BYTE": per_byte}
    signature = dict.fromkeys(constants, "constexpr") | dict.fromkeys("mnk", "i32")
    buffers = [arg for arg in case.arguments() if "shape" in arg]
    signature |= {arg["name"]: POINTERS[arg["dtype"]] for arg in buffers}

    names = case.kernel.arg_names
    aligned = {(names.index(arg["name"]),): [["tt.divisibility", 16], ["tt.pointer_range", 32]]
               for arg in buffers}  # fmt: skip
    aligned[(names.index("k"),)] = [["tt.divisibility", 16]]
    source = ASTSource(
        case.kernel,
        {name: signature[name] for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        aligned,
    )
    options = {"num_warps": case.waves, "num_stages": case.stages, "enable_fp_fusion": True}
    if case.mfma_rows:
        options["matrix_instr_nonkdim"] = case.mfma_rows
    compiled = triton.compile(source, target=TARGET, options=options)
    return compiled.asm["amdgcn"], compiled.metadata.shared


def strip(text, lds_bytes):
    """Drops debug directives and comments; writes the LDS size into descriptor and metadata."""
    text = re.sub(r"[ \t]*;.*$", "", text, flags=re.M)
    text = re.sub(r"^\s*\.(set|loc|file|ident|cfi_\w+)\b.*\n", "", text, flags=re.M)
    text = re.sub(r"(group_segment_fixed_size:?)\s+0", rf"\1 {lds_bytes}", text)
    return re.sub(r"\n\s*\n+", "\n", text)


def main():
    """Compiles the cases and writes their assembly and the manifest."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--large", type=Path, metavar="FOLDER", help="write the big tiles there")
    large = parser.parse_args().large
    folder, cases = (large, LARGE) if large else (HERE, SMALL)
    knobs.compilation.disable_line_info = True
    folder.mkdir(parents=True, exist_ok=True)

    kernels = {}
    for case in cases:
        text, lds_bytes = compile_case(case)
        (folder / f"{case.name}.s").write_text(strip(text, lds_bytes))
        kernels[case.name] = case.manifest(lds_bytes)
        print(f"{case.name}: {lds_bytes} bytes of LDS")
    manifest = {"compiler": f"triton {triton.__version__}", "target": TARGET.arch}
    manifest["kernels"] = kernels
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
