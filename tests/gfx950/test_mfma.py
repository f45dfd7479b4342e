"""Claims about matrix instructions: every shape and operand format, scales, layouts."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import gfx950
from tests.gfx950.support import LANES, execute

F32, U32 = np.float32, np.uint32
CODES = {"fp8": 0, "bf8": 1, "fp6": 2, "bf6": 3, "fp4": 4}
TYPES = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
}
BITS = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4, "f16": 16, "bf16": 16, "f32": 32, "i8": 8}


def random_matrix(format_, rows, k, rng):
    """Returns codes and float64 values of a finite random [rows, k] matrix."""
    if format_ == "i8":
        values = rng.integers(-128, 128, (rows, k))
        return values.astype(np.int8).view(np.uint8), values.astype(np.float64)
    if BITS[format_] >= 16:
        values = rng.standard_normal((rows, k)).astype(TYPES[format_])
        return values.view(f"u{BITS[format_] // 8}"), values.astype(np.float64)
    codes = rng.integers(0, 2 ** BITS[format_], (rows, k)).astype(np.uint8)
    values = codes.view(TYPES[format_]).astype(np.float64)
    codes[~np.isfinite(values)] = 0
    return codes, codes.view(TYPES[format_]).astype(np.float64)


def fragment(codes, format_, split):
    """Packs a [rows, k] code matrix into registers [count, 64], as the instruction reads it."""
    rows, k = codes.shape
    groups = LANES // rows
    each = k // groups
    registers = np.zeros((each * BITS[format_] // 32, LANES), U32)
    for lane in range(LANES):
        group, row = lane // rows, lane % rows
        word = 0
        for e in range(each):
            column = (e // 16) * (k // 2) + 16 * group + e % 16 if split else group * each + e
            word |= int(codes[row, column]) << (e * BITS[format_])
        for i in range(len(registers)):
            registers[i, lane] = word >> (32 * i) & 0xFFFFFFFF
    return registers


def matrix_of(registers, size):
    """Reads C or D registers [count, 64] as a [size, size] matrix."""
    result = np.zeros((size, size), registers.dtype)
    for r, lane in itertools.product(range(len(registers)), range(LANES)):
        row = 8 * (r // 4) + 4 * (lane // size) + r % 4
        result[row, lane % size] = registers[r, lane]
    return result


def multiply(name, size, depth, formats, rng, *, scales=None, modifiers="", split=(False, False)):
    """Runs one matrix instruction on random operands; returns D, A, B, C as float64 and bound."""
    a, b = (random_matrix(f, size, depth, rng) for f in formats)
    integer = formats[0] == "i8"
    count = size * size // LANES
    c = rng.integers(-999, 999, (count, LANES)).astype(np.int32 if integer else F32)
    inputs = {
        10: fragment(a[0], formats[0], split[0]),
        20: fragment(b[0], formats[1], split[1]),
        40: c,
    }
    sizes = [len(inputs[10]), len(inputs[20])]
    tail = ""
    if scales is not None:
        inputs |= {60: scales[0], 61: scales[1]}
        tail = ", v60, v61"
    spans = zip((200, 10, 20, 40), (count, *sizes, count), strict=True)
    registers = [f"v[{at}:{at + n - 1}]" if n > 1 else f"v{at}" for at, n in spans]
    body = f"\t{name} {', '.join(registers)}{tail} {modifiers}"
    out = execute(body, inputs, count)
    d = matrix_of(out.view(np.int32 if integer else F32), size).astype(np.float64)
    return d, a[1], b[1], matrix_of(c, size).astype(np.float64)


PLAIN = [
    ("v_mfma_f32_16x16x16_f16", 16, 16, "f16"), ("v_mfma_f32_16x16x16_bf16", 16, 16, "bf16"),
    ("v_mfma_f32_32x32x8_f16", 32, 8, "f16"), ("v_mfma_f32_32x32x8_bf16", 32, 8, "bf16"),
    ("v_mfma_f32_16x16x32_f16", 16, 32, "f16"), ("v_mfma_f32_16x16x32_bf16", 16, 32, "bf16"),
    ("v_mfma_f32_32x32x16_f16", 32, 16, "f16"), ("v_mfma_f32_32x32x16_bf16", 32, 16, "bf16"),
    ("v_mfma_f32_16x16x4_f32", 16, 4, "f32"), ("v_mfma_f32_32x32x2_f32", 32, 2, "f32"),
    ("v_mfma_i32_16x16x64_i8", 16, 64, "i8"), ("v_mfma_i32_32x32x32_i8", 32, 32, "i8"),
    ("v_mfma_i32_16x16x32_i8", 16, 32, "i8"), ("v_mfma_i32_32x32x16_i8", 32, 16, "i8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "size", "depth", "format_"), PLAIN)
def test_unscaled_products(name, size, depth, format_, rng):
    d, a, b, c = multiply(name, size, depth, (format_, format_), rng)
    exact = a @ b.T + c
    assert (np.abs(d - exact) <= 2.0**-24 * np.abs(exact)).all()


@pytest.mark.parametrize("formats", list(itertools.product(("fp8", "bf8"), repeat=2)))
@pytest.mark.parametrize(("size", "depth"), [(16, 32), (32, 16)])
def test_fp8_products(size, depth, formats, rng):
    name = f"v_mfma_f32_{size}x{size}x{depth}_{formats[0]}_{formats[1]}"
    d, a, b, c = multiply(name, size, depth, formats, rng)
    exact = a @ b.T + c
    assert (np.abs(d - exact) <= 2.0**-24 * np.abs(exact)).all()


@pytest.mark.parametrize("formats", list(itertools.product(CODES, repeat=2)))
@pytest.mark.parametrize(("size", "depth"), [(16, 128), (32, 64)])
def test_f8f6f4_products_with_and_without_scales(size, depth, formats, rng):
    modifiers = f"cbsz:{CODES[formats[0]]} blgp:{CODES[formats[1]]}"
    split = [BITS[f] == 8 for f in formats]
    name = f"f32_{size}x{size}x{depth}_f8f6f4"
    d, a, b, c = multiply(f"v_mfma_{name}", size, depth, formats, rng, modifiers=modifiers,
                          split=split)  # fmt: skip
    exact = a @ b.T + c
    assert (np.abs(d - exact) <= 2.0**-24 * np.abs(exact)).all()

    scales = rng.integers(100, 150, (2, LANES, 4)).astype(np.uint8)
    for low, high in itertools.product(range(4), repeat=2):
        if (low + high) % 3:
            continue
        select = f"op_sel:[{low & 1},{high & 1},0] op_sel_hi:[{low >> 1},{high >> 1},0] "
        d, a, b, c = multiply(
            f"v_mfma_scale_{name}", size, depth, formats, rng, split=split,
            scales=scales.view(U32)[..., 0], modifiers=select + modifiers,
        )  # fmt: skip
        factors = [
            np.repeat(2.0 ** (s[:, byte].astype(int) - 127).reshape(-1, size).T, 32, axis=1)
            for s, byte in zip(scales, (low, high), strict=True)
        ]
        exact = (a * factors[0]) @ (b * factors[1]).T + c
        size_of_terms = np.abs(a * factors[0]) @ np.abs(b * factors[1]).T + np.abs(c)
        assert (np.abs(d - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-45 * size_of_terms).all()


def test_a_nan_scale_spoils_exactly_its_row(rng):
    scales = np.full((2, LANES), 127, U32)
    scales[0, 5 + 16 * 2] = 255
    d, *_ = multiply(
        "v_mfma_scale_f32_16x16x128_f8f6f4", 16, 128, ("fp4", "fp4"), rng, scales=scales,
        modifiers="op_sel_hi:[0,0,0] cbsz:4 blgp:4",
    )  # fmt: skip
    assert np.isnan(d[5]).all()
    assert np.isfinite(np.delete(d, 5, axis=0)).all()


def test_undefined_operands_spoil_their_row_and_column_only():
    """Lanes 3 and 19 of A hold parts of row 3; everything but row 3 may be stored."""
    body = """
	s_mov_b64 s[10:11], exec
	s_mov_b32 exec_lo, 0xfff7fff7
	v_mov_b32_e32 v20, v2
	v_mov_b32_e32 v21, v2
	s_mov_b64 exec, s[10:11]
	s_nop 4
	v_mfma_f32_16x16x16_f16 v[200:203], v[20:21], v[2:3], 0
	s_nop 15
	v_mov_b32_e32 v{copied}, v{source}
	{store}
"""
    store = "global_store_dword v0, v210, s[4:5]"
    inputs = {2: np.zeros((2, LANES), U32)}
    execute(body.format(copied=210, source=202, store=store), inputs, [2])
    with pytest.raises(gfx950.SimulationError, match="v210, which nothing has written"):
        execute(body.format(copied=210, source=203, store=store), inputs, [2])


def test_accumulation_registers_and_constant_addends(rng):
    a = random_matrix("fp4", 16, 128, rng)
    registers = fragment(a[0], "fp4", False)
    body = """
	v_mfma_f32_16x16x128_f8f6f4 a[0:3], v[10:13], v[10:13], 0 cbsz:4 blgp:4
	s_nop 15
	v_accvgpr_read_b32 v200, a0
	v_accvgpr_read_b32 v201, a1
	v_accvgpr_read_b32 v202, a2
	v_accvgpr_read_b32 v203, a3
"""
    out = execute(body, {10: registers}, 4, agprs=4)
    d = matrix_of(out.view(F32), 16)
    exact = a[1] @ a[1].T
    assert (np.abs(d - exact) <= 2.0**-24 * np.abs(exact)).all()


def test_an_unknown_shape_or_broadcast_raises(rng):
    for body in (
        "\tv_mfma_f32_16x16x1_4b_f32 v[200:215], v10, v11, v[200:215]",
        "\tv_mfma_f32_16x16x16_f16 v[200:203], v[10:11], v[12:13], 0 cbsz:1",
        "\tv_mfma_f32_16x16x128_f8f6f4 v[200:203], v[10:17], v[20:27], 0 cbsz:7",
    ):
        with pytest.raises(ValueError, match=r"unknown .*v_mfma"):
            execute(body, {}, 1)
