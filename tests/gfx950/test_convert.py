"""Claims about the scaled conversions to and from 8, 6 and 4-bit floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.gfx950.support import LANES, execute

F32, U32 = np.float32, np.uint32
SMALL = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}
WIDE = {"f32": F32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
BITS = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}
LARGEST = {"fp8": 448, "bf8": 57344, "fp6": 7.5, "bf6": 28, "fp4": 6}
EXPONENT = 124
SCALE = np.full(LANES, EXPONENT << 23, U32)
FACTOR = 2.0 ** (EXPONENT - 127)


def words_of(values, type_):
    """Packs wide values [elements, 64] into registers [count, 64]."""
    if type_ == "f32":
        return values.astype(F32).view(U32)
    halves = values.astype(WIDE[type_]).view(np.uint16).astype(U32)
    return halves[0::2] | halves[1::2] << 16


def values_of(words, type_):
    """Unpacks registers [count, 64] to float64 [elements, 64]."""
    if type_ == "f32":
        return words.view(F32).astype(np.float64)
    halves = np.stack([words & 0xFFFF, words >> 16], 1).reshape(-1, LANES).astype(np.uint16)
    return halves.view(WIDE[type_]).astype(np.float64)


def packed(codes, width):
    """Packs codes [elements, 64] densely into registers [count, 64]."""
    lanes = [sum(int(c) << (width * i) for i, c in enumerate(column)) for column in codes.T]
    count = len(codes) * width // 32
    return np.array([[lane >> (32 * i) & 0xFFFFFFFF for lane in lanes] for i in range(count)], U32)


def narrowed(values, format_):
    """Rounds values to codes as ml_dtypes does, saturating where the format has no infinity."""
    limit = LARGEST[format_]
    return np.clip(values, -limit, limit).astype(SMALL[format_]).view(np.uint8)


def draw(elements, format_, type_, rng):
    """Draws wide values, [elements, 64], that use the whole range of the small format."""
    x = rng.standard_normal((elements, LANES)) * LARGEST[format_] / 4 * FACTOR
    return np.clip(x, -LARGEST[format_] * FACTOR, LARGEST[format_] * FACTOR).astype(WIDE[type_])


@pytest.mark.parametrize("word", [0, 1])
@pytest.mark.parametrize("type_", WIDE)
@pytest.mark.parametrize("format_", ["fp8", "bf8"])
def test_pairs_narrow_to_fp8(format_, type_, word, rng):
    x = draw(2, format_, type_, rng)
    inputs = dict(enumerate(words_of(x, type_), start=2))
    sources = "v2, v3" if type_ == "f32" else "v2"
    body = f"""
	v_mov_b32_e32 v200, 0x55555555
	s_nop 4
	v_cvt_scalef32_pk_{format_}_{type_} v200, {sources}, v10 op_sel:[0,0,0,{word}]
"""
    out = execute(body, inputs | {10: SCALE}, 1)[0]
    codes = narrowed(x.astype(np.float64) / FACTOR, format_).astype(U32)
    pair = codes[0] | codes[1] << 8
    assert (out == (pair << 16 | 0x5555 if word else pair | 0x55550000)).all()


@pytest.mark.parametrize("type_", WIDE)
@pytest.mark.parametrize("format_", ["fp8", "bf8", "fp4"])
def test_pairs_widen(format_, type_):
    """Every code, in every position that op_sel can name."""
    width = BITS[format_]
    positions = range(4) if width == 4 else range(2)
    register = "v[200:201]" if type_ == "f32" else "v200"
    for first in range(0, 1 << width, LANES):
        codes = (first + np.arange(LANES)) % (1 << width)
        pair = codes | codes[::-1] << width
        expected = np.stack([codes, codes[::-1]]).astype(np.uint8).view(SMALL[format_])
        with np.errstate(all="ignore"):
            expected = (expected.astype(np.float64) * FACTOR).astype(WIDE[type_])
        for position in positions:
            select = f"{position & 1},{position >> 1},0" if width == 4 else f"{position},0,0"
            shifted = (pair << (2 * width * position)).astype(U32)
            body = f"\tv_cvt_scalef32_pk_{type_}_{format_} {register}, v2, v10 op_sel:[{select}]"
            out = execute(body, {2: shifted, 10: SCALE}, len(words_of(expected, type_)))
            np.testing.assert_array_equal(values_of(out, type_), expected.astype(np.float64))


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize("format_", ["fp6", "bf6"])
def test_thirty_two_elements_narrow_to_six_bits(format_, type_, rng):
    x = draw(32, format_, type_, rng) * WIDE[type_](1.5)
    body = f"\tv_cvt_scalef32_pk32_{format_}_{type_} v[200:205], v[20:35], v10"
    out = execute(body, {20: words_of(x, type_), 10: SCALE}, 6)
    codes = narrowed(x.astype(np.float64) / FACTOR, format_) & 63
    assert (out == packed(codes, 6)).all()


@pytest.mark.parametrize("format_", ["fp6", "bf6"])
def test_two_times_sixteen_floats_interleave(format_, rng):
    x = draw(32, format_, "f32", rng)
    body = f"\tv_cvt_scalef32_2xpk16_{format_}_f32 v[200:205], v[20:35], v[36:51], v10"
    out = execute(body, {20: x[:16], 36: x[16:], 10: SCALE}, 6)
    codes = narrowed(x.astype(np.float64) / FACTOR, format_) & 63
    interleaved = np.stack([codes[:16], codes[16:]], 1).reshape(32, LANES)
    assert (out == packed(interleaved, 6)).all()


@pytest.mark.parametrize("type_", WIDE)
@pytest.mark.parametrize("format_", ["fp6", "bf6"])
def test_thirty_two_elements_widen_from_six_bits(format_, type_, rng):
    codes = rng.integers(0, 64, (32, LANES)).astype(np.uint8)
    count = 32 if type_ == "f32" else 16
    body = f"\tv_cvt_scalef32_pk32_{type_}_{format_} v[200:{199 + count}], v[20:25], v10"
    out = execute(body, {20: packed(codes, 6), 10: SCALE}, count)
    expected = codes.view(SMALL[format_]).astype(np.float64) * FACTOR
    assert (values_of(out, type_) == expected).all()


@pytest.mark.parametrize("byte", range(4))
def test_single_fp8_codes_widen_to_float32_and_half(byte):
    codes = np.arange(LANES, dtype=U32) + 0x21
    select = f"op_sel:[{byte & 1},{byte >> 1},0"
    body = f"""
	v_mov_b32_e32 v201, 0x12345678
	s_nop 4
	v_cvt_scalef32_f32_fp8 v200, v2, v10 {select}]
	v_cvt_scalef32_f16_fp8 v201, v2, v10 {select},1]
"""
    wide, half = execute(body, {2: codes << (8 * byte), 10: SCALE}, 2)
    expected = codes.astype(np.uint8).view(SMALL["fp8"]).astype(np.float64) * FACTOR
    assert (wide.view(F32) == expected).all()
    assert ((half >> 16).astype(np.uint16).view(np.float16) == expected).all()
    assert ((half & 0xFFFF) == 0x5678).all()


@pytest.mark.parametrize("format_", ["fp8", "bf8"])
def test_overflow_follows_the_ocp_formats(format_):
    """fp8 has no infinity: too large a value is NaN; bf8 rounds to infinity."""
    x = np.full(LANES, LARGEST[format_] * 4.0, F32)
    body = f"\tv_mov_b32_e32 v200, 0\n\ts_nop 4\n\tv_cvt_pk_{format_}_f32 v200, v2, v2"
    out = execute(body, {2: x}, 1)
    value = (out[0] & 0xFF).astype(np.uint8).view(SMALL[format_]).astype(F32)
    assert (np.isnan(value) if format_ == "fp8" else np.isinf(value)).all()


def test_half_precision_pairs_round_as_named(rng):
    x = rng.standard_normal(LANES).astype(F32) * 3
    body = "\tv_cvt_pkrtz_f16_f32 v200, v2, v2\n\tv_cvt_pk_f16_f32 v201, v2, v2"
    toward_zero, nearest = execute(body, {2: x}, 2)
    half = x.astype(np.float16)
    assert ((nearest & 0xFFFF) == half.view(np.uint16)).all()
    truncated = (toward_zero >> 16).astype(np.uint16).view(np.float16)
    assert (np.abs(truncated) <= np.abs(x)).all()
    assert (np.abs(np.nextafter(truncated, np.float16(np.copysign(np.inf, 1)) * np.sign(half)))
            > np.abs(x)).all()  # fmt: skip
