"""Kernels that other people compiled, with operands, references and bounds for them.

A `Case` is one kernel at one problem size: `launch` runs it in the simulator on fresh operands
and returns what it wrote. The reference is the float64 product of the decoded operands. Every
kernel sums in float32, in an order of its own, so that

    |c - reference| <= K * 2^-24 * (|a| @ |b|^T)          (+ half an ulp of the output type)

holds for any order (the standard bound of a K-term float32 sum).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import ml_dtypes
import numpy as np

import gfx950
from tests import artefacts

HERE = Path(__file__).parent
DATA = HERE / "data"
BLOCK = 32
ULP_BITS = {"f32": 24, "bf16": 8}
DTYPES = {
    "u8": np.uint8,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
}


@dataclass
class Matrix:
    """One operand: what the kernel gets, and what it means."""

    codes: np.ndarray
    scales: np.ndarray | None
    values: np.ndarray
    """float64 [rows, K]."""


def make_matrix(format_: str, rows: int, k: int, rng: np.random.Generator) -> Matrix:
    """Draws a random operand; scaled formats cover 2^-7 to 2^7."""
    if format_ == "bf16":
        codes = rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16)
        return Matrix(codes, None, codes.astype(np.float64))
    if format_ == "mxfp4":
        codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
        nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(rows, k)
        values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        codes = rng.integers(0, 255, (rows, k), np.uint8)
        codes[codes == 0x7F] = 0
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    if format_ == "fp8_e4m3":
        return Matrix(codes.view(ml_dtypes.float8_e4m3fn), None, values)
    scales = rng.integers(120, 135, (rows, k // BLOCK), np.uint8)
    factors = np.repeat(2.0 ** (scales.astype(int) - 127), BLOCK, axis=1)
    return Matrix(codes, scales, values * factors)


@dataclass
class Case:
    """One kernel at one problem size."""

    label: str
    kernel: gfx950.Kernel
    grid: tuple[int, ...]
    block: int
    formats: tuple[str, str]
    out: str
    shape: tuple[int, int, int]
    """M, N, K."""
    style: str = "max"
    """How arguments are passed: "max" (tensors with sizes) or "triton" (by the manifest)."""
    manifest: list = field(default_factory=list)

    @cached_property
    def operands(self) -> tuple[Matrix, Matrix]:
        """The two operands, drawn once."""
        rng = np.random.default_rng(7)
        m, n, k = self.shape
        return make_matrix(self.formats[0], m, k, rng), make_matrix(self.formats[1], n, k, rng)

    @cached_property
    def reference(self) -> np.ndarray:
        """The float64 product."""
        a, b = self.operands
        return a.values @ b.values.T

    @cached_property
    def bound(self) -> np.ndarray:
        """The largest error that correct code can make."""
        a, b = self.operands
        total = np.abs(a.values) @ np.abs(b.values).T
        error = self.shape[2] * 2.0**-24 * total
        return error + (0 if self.out == "f32" else 2.0 ** -ULP_BITS[self.out]) * (
            np.abs(self.reference) + error
        )

    def arguments(self, c: np.ndarray) -> list:
        """Returns the kernel's arguments for output `c`."""
        a, b = self.operands
        m, n, k = self.shape
        if self.style == "max":
            rows = np.int64(m)
            return [(c, rows), (a.codes, rows), b.codes, (a.scales, rows), b.scales]
        named = {
            "a": a.codes, "b": b.codes, "a_scales": a.scales, "b_scales": b.scales, "c": c,
            "m": m, "n": n, "k": k, "scratch_0": 0, "scratch_1": 0,
        }  # fmt: skip
        return [named[entry["name"]] for entry in self.manifest]

    def launch(self, **options) -> tuple[np.ndarray, gfx950.Result]:
        """Runs the kernel; returns its output as float64 and the result."""
        c = np.zeros(self.shape[:2], DTYPES[self.out])
        kernel = options.pop("kernel", self.kernel)
        result = gfx950.run(kernel, self.grid, self.block, self.arguments(c), **options)
        return c.astype(np.float64), result

    def within_bound(self, c: np.ndarray) -> bool:
        """Whether every element is as close as it must be."""
        return bool((np.abs(c - self.reference) <= self.bound).all())


def corpus_names() -> list[str]:
    """Names of the Triton kernels kept as data."""
    return sorted(json.loads((DATA / "manifest.json").read_text())["kernels"])


def corpus_case(name: str, m: int, n: int, k: int) -> Case:
    """Returns a Triton kernel at a problem size."""
    entry = json.loads((DATA / "manifest.json").read_text())["kernels"][name]
    kernel = gfx950.parse((DATA / entry["file"]).read_text(), entry["symbol"])
    tile_m, tile_n, _ = entry["tile"]
    out = next(a["dtype"] for a in entry["args"] if a.get("output"))
    return Case(
        name, kernel, (-(-m // tile_m), -(-n // tile_n)), entry["block"][0],
        (entry["a"], entry["b"]), out, (m, n, k), "triton", entry["args"],
    )  # fmt: skip


@dataclass(frozen=True)
class Tiling:
    """One instantiation of MAX's matmul that `programs/max_matmul.mojo` compiles."""

    out: str
    n: int
    k: int
    tile: tuple[int, int]
    block: int
    m: int
    """Default row count."""

    @property
    def label(self) -> str:
        """A name for test ids."""
        return f"max_{self.tile[0]}x{self.tile[1]}_n{self.n}_k{self.k}_{self.out}"


TILINGS = (
    Tiling("f32", 128, 1024, (128, 128), 256, 128),
    Tiling("bf16", 64, 512, (64, 32), 64, 64),
    Tiling("f32", 256, 512, (64, 64), 256, 64),
    Tiling("bf16", 128, 512, (64, 64), 256, 64),
    Tiling("f32", 128, 512, (16, 128), 128, 16),
    Tiling("f32", 256, 1024, (128, 128), 256, 256),
    Tiling("f32", 256, 1024, (64, 64), 256, 256),
)
"""In the order in which `max_matmul.mojo` prints them."""


@cache
def compile_mojo(source: str) -> list[str]:
    """Returns the texts that a Mojo program of `programs` prints."""
    printed = artefacts.text(f"gfx950/{source.removesuffix('.mojo')}")
    return [text for text in printed.split(";;;; end of kernel\n") if text.strip()]


def max_case(tiling: Tiling, m: int | None = None) -> Case:
    """Returns one of MAX's kernels at `m` rows."""
    m = tiling.m if m is None else m
    text = compile_mojo("max_matmul.mojo")[TILINGS.index(tiling)]
    grid = (-(-tiling.n // tiling.tile[1]), -(-m // tiling.tile[0]))
    return Case(
        tiling.label, gfx950.parse(text), grid, tiling.block, ("mxfp4", "mxfp4"), tiling.out,
        (m, tiling.n, tiling.k),
    )  # fmt: skip


# --- single instructions ------------------------------------------------------------------------

LANES = 64
SETTLE = "\ts_nop 7\n" * 3
"""More wait states than any pair of instructions needs."""


def bits(x) -> np.ndarray:
    """Returns 4-byte values as uint32 [64]; a scalar fills all lanes."""
    x = np.asarray(x)
    if x.dtype.itemsize != 4:
        x = x.astype(np.int64).astype(np.uint32)
    return np.broadcast_to(x.view(np.uint32), (LANES,))


def kernel_text(body: str, *, vgprs=256, agprs=0, sgprs=96, lds=0, kernarg=64) -> str:
    """Wraps instructions in a kernel whose s[0:1] point at the arguments; v0 is the work-item."""
    return f"""
k:
{body}
	s_endpgm
.Lfunc_end0:
	.amdhsa_kernel k
		.amdhsa_group_segment_fixed_size {lds}
		.amdhsa_kernarg_size {kernarg}
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_next_free_vgpr {vgprs + agprs}
		.amdhsa_next_free_sgpr {sgprs}
		.amdhsa_accum_offset {vgprs}
	.end_amdhsa_kernel
"""


def execute(
    body: str, inputs: dict[int, np.ndarray], outputs: int | list[int], *, lds=0, agprs=0, **options
) -> np.ndarray:
    """Runs `body` in one wave and returns registers as uint32 [outputs, 64].

    `inputs` maps a VGPR to its 64 lanes, or the first of several to [count, 64]. Inputs start at
    v2, because v0 is the lane's byte offset and v1 its number; s[2:5] are taken. `outputs` names
    registers, or is the number of registers from v200 on.
    """
    rows = {}
    for first, values in inputs.items():
        stack = values if np.ndim(values) == 2 else [values]
        rows |= {first + i: bits(row) for i, row in enumerate(stack)}
    outputs = list(range(200, 200 + outputs)) if isinstance(outputs, int) else outputs
    offset = 4 * LANES
    text = "\ts_load_dwordx4 s[2:5], s[0:1], 0x0\n\tv_mov_b32_e32 v1, v0\n"
    text += "\tv_lshlrev_b32_e32 v0, 2, v0\n\ts_waitcnt lgkmcnt(0)\n"
    for i, register in enumerate(rows):
        text += f"\tglobal_load_dword v{register}, v0, s[2:3] offset:{i * offset}\n"
    text += f"\ts_waitcnt vmcnt(0)\n{SETTLE}{body}\n{SETTLE}"
    for i, register in enumerate(outputs):
        text += f"\tglobal_store_dword v0, v{register}, s[4:5] offset:{i * offset}\n"
    source = np.stack(list(rows.values())) if rows else np.zeros((1, LANES), np.uint32)
    target = np.zeros((max(1, len(outputs)), LANES), np.uint32)
    kernel = kernel_text(text, lds=lds, agprs=agprs)
    result = gfx950.run(kernel, 1, LANES, [np.ascontiguousarray(source), target], **options)
    result.raise_on_hazards()
    return target


def execute_scalar(body: str, inputs: dict[int, int], outputs: list[int]) -> list[int]:
    """Runs scalar code; inputs are literals for SGPRs from s10 on, results are read back."""
    text = "".join(f"\ts_mov_b32 s{r}, 0x{v & 0xFFFFFFFF:x}\n" for r, v in inputs.items())
    text += body + "\n"
    text += "".join(f"\tv_mov_b32_e32 v{200 + i}, s{r}\n" for i, r in enumerate(outputs))
    return [int(row[0]) for row in execute(text, {}, len(outputs))]
