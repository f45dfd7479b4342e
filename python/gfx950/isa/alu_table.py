"""What each vector instruction computes, as NumPy functions of whole registers.

A row gives the types of result and sources (`operands.py` explains them) and a function:

    v_lshl_add_u32   u32   u32 u32 u32   (a << (b & 31)) + c

Transcendental functions are computed in float64 and rounded, which is within the one-ulp error
that the hardware documents.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from gfx950.isa.formats import f16_to_f32, f32_to_f16, fma

U16, U32, I32, U64, I64 = np.uint16, np.uint32, np.int32, np.uint64, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
_BIT = np.arange(32, dtype=U32)


def minimum_number(a, b):
    """IEEE-754 minNum: the other operand if one is NaN, and -0 below +0."""
    return np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))


def maximum_number(a, b):
    """IEEE-754 maxNum: the other operand if one is NaN, and +0 above -0."""
    return np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))


def _med3(a, b, c):
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _med3_float(a, b, c):
    has_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    lowest = minimum_number(minimum_number(a, b), c)
    return np.where(has_nan, lowest, _med3(a, b, c))


def _mask5(b):
    return b & b.dtype.type(31)


def _shift_left(bits: int) -> Callable:
    return lambda n, a: a << (n & n.dtype.type(bits - 1)).astype(a.dtype)


def _shift_right(bits: int) -> Callable:
    return lambda n, a: a >> (n & n.dtype.type(bits - 1)).astype(a.dtype)


def _bfe_u32(a, offset, width):
    width = _mask5(width)
    return (a >> _mask5(offset)) & ((U32(1) << width) - U32(1))


def _bfe_i32(a, offset, width):
    width = _mask5(width)
    field = _bfe_u32(a, offset, width)
    sign = np.where(width > 0, U32(1) << (np.maximum(width, U32(1)) - U32(1)), U32(0))
    return (field ^ sign) - sign


def _perm(a, b, select):
    """Picks four bytes of {a, b} by the four selector bytes."""
    a, b, select = np.broadcast_arrays(a, b, select)
    octets = np.stack((b, a), axis=-1).view(np.uint8)
    selectors = np.ascontiguousarray(select)[..., None].view(np.uint8)
    picked = np.take_along_axis(octets, (selectors & 7).astype(np.intp), axis=-1)
    if (selectors >= 8).any():
        # Signs of the four halves, then zeros and ones.
        signs = np.take_along_axis(octets, ((selectors & 3) * 2 + 1).astype(np.intp), axis=-1)
        fill = (signs.view(np.int8) >> 7).view(np.uint8)
        picked = np.where(selectors >= 8, fill, picked)
        picked = np.where(selectors == 12, 0, np.where(selectors >= 13, 255, picked))
    return picked.astype(np.uint8, copy=False).view(U32)[..., 0]


def _align(unit: int) -> Callable:
    def align(a, b, n):
        wide = (a.astype(U64) << U64(32)) | b.astype(U64)
        amount = (n & U32(31)) if unit == 1 else (n & U32(3)) * U32(8)
        return (wide >> amount.astype(U64)).astype(U32)

    return align


def _first_bit(a, from_top: bool):
    bits = ((a[..., None] >> _BIT) & U32(1)).astype(bool)
    found = np.argmax(bits[..., ::-1] if from_top else bits, axis=-1).astype(U32)
    return np.where(bits.any(-1), found, U32(0xFFFFFFFF))


def _reverse_bits(a):
    octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., ::-1]
    return np.packbits(bits, axis=-1, bitorder="little").view(U32)[..., 0]


def count_bits(a, base):
    """Returns the set bits of `a` plus `base`."""
    return np.bitwise_count(a).astype(U32) + base


def _to_int(low: int, high: int, dtype) -> Callable:
    def convert(x):
        wide = np.where(np.isnan(x), 0, np.trunc(x.astype(F64)))
        return np.clip(wide, low, high).astype(I64).astype(dtype)

    return convert


_TO_I32, _TO_U32 = _to_int(-(2**31), 2**31 - 1, I32), _to_int(0, 2**32 - 1, U32)


def _ldexp(dtype) -> Callable:
    return lambda a, n: np.ldexp(a.astype(F64), np.clip(n, -4000, 4000)).astype(dtype)


def _via_f64(op: Callable) -> Callable:
    return lambda a: op(a.astype(F64)).astype(a.dtype)


def _signed24(a):
    return (a << 8) >> 8


def _mul_hi(wide) -> Callable:
    return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)


def _fma_f64(a, b, c):
    """Exact by way of integers, element by element: rare enough."""

    def one(x, y, z):
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            return x * y + z
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        return float(exact) if exact else x * y + z

    return np.vectorize(one, otypes=[F64])(a, b, c)


def _frexp_exponent(a):
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(I32)


def _fract(a):
    below_one = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.minimum(a - np.floor(a), below_one)


def _insert_byte(a, which, kept):
    """Puts a float, rounded towards zero and clamped to 0 .. 255, into a byte of `kept`."""
    shift = (which & U32(3)) * U32(8)
    byte = np.nan_to_num(np.clip(a, 0, 255)).astype(U32)
    return (kept & ~(U32(0xFF) << shift)) | (byte << shift)


def _legacy_mul(a, b):
    return np.where((a == 0) | (b == 0), F32(0), a * b)


OPS: dict[str, tuple[str, str, Callable]] = {
    "v_mov_b32": ("b32", "b32", lambda a: a),
    "v_mov_b64": ("b64", "b64", lambda a: a),
    "v_not_b32": ("b32", "b32", lambda a: ~a),
    "v_and_b32": ("b32", "b32 b32", lambda a, b: a & b),
    "v_or_b32": ("b32", "b32 b32", lambda a, b: a | b),
    "v_xor_b32": ("b32", "b32 b32", lambda a, b: a ^ b),
    "v_xnor_b32": ("b32", "b32 b32", lambda a, b: ~(a ^ b)),
    "v_and_or_b32": ("b32", "b32 b32 b32", lambda a, b, c: (a & b) | c),
    "v_or3_b32": ("b32", "b32 b32 b32", lambda a, b, c: a | b | c),
    "v_bfi_b32": ("b32", "b32 b32 b32", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfe_u32": ("u32", "u32 u32 u32", _bfe_u32),
    "v_bfe_i32": ("u32", "u32 u32 u32", _bfe_i32),
    "v_bfm_b32": ("b32", "b32 b32", lambda a, b: ((U32(1) << _mask5(a)) - U32(1)) << _mask5(b)),
    "v_bfrev_b32": ("b32", "b32", _reverse_bits),
    "v_bcnt_u32_b32": ("u32", "u32 u32", count_bits),
    "v_ffbh_u32": ("u32", "u32", lambda a: _first_bit(a, True)),
    "v_ffbl_b32": ("u32", "u32", lambda a: _first_bit(a, False)),
    "v_ffbh_i32": ("u32", "i32", lambda a: _first_bit((a ^ (a >> 31)).view(U32), True)),
    "v_perm_b32": ("b32", "b32 b32 b32", _perm),
    "v_alignbit_b32": ("b32", "b32 b32 u32", _align(1)),
    "v_alignbyte_b32": ("b32", "b32 b32 u32", _align(8)),
    "v_lshl_or_b32": ("b32", "b32 u32 b32", lambda a, b, c: (a << _mask5(b)) | c),
    "v_lshl_add_u32": ("u32", "u32 u32 u32", lambda a, b, c: (a << _mask5(b)) + c),
    "v_add_lshl_u32": ("u32", "u32 u32 u32", lambda a, b, c: (a + b) << _mask5(c)),
    "v_add3_u32": ("u32", "u32 u32 u32", lambda a, b, c: a + b + c),
    "v_xad_u32": ("u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u64": ("u64", "u64 u32 u64", lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c),
    "v_add_u32": ("u32", "u32 u32", lambda a, b: a + b),
    "v_sub_u32": ("u32", "u32 u32", lambda a, b: a - b),
    "v_subrev_u32": ("u32", "u32 u32", lambda a, b: b - a),
    "v_add_i32": ("i32", "i32 i32", lambda a, b: a + b),
    "v_sub_i32": ("i32", "i32 i32", lambda a, b: a - b),
    "v_mul_lo_u32": ("u32", "u32 u32", lambda a, b: a * b),
    "v_mul_hi_u32": ("u32", "u32 u32", _mul_hi(U64)),
    "v_mul_hi_i32": ("i32", "i32 i32", _mul_hi(I64)),
    "v_mul_u32_u24": (
        "u32", "u32 u32", lambda a, b: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF))
    ),
    "v_mul_i32_i24": ("i32", "i32 i32", lambda a, b: _signed24(a) * _signed24(b)),
    "v_mul_hi_u32_u24": (
        "u32", "u32 u32", lambda a, b: _mul_hi(U64)(a & U32(0xFFFFFF), b & U32(0xFFFFFF))
    ),
    "v_mul_hi_i32_i24": ("i32", "i32 i32", lambda a, b: _mul_hi(I64)(_signed24(a), _signed24(b))),
    "v_mad_u32_u24": (
        "u32", "u32 u32 u32", lambda a, b, c: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF)) + c
    ),
    "v_mad_i32_i24": ("i32", "i32 i32 i32", lambda a, b, c: _signed24(a) * _signed24(b) + c),
    "v_mad_u32_u16": ("u32", "u16 u16 u32", lambda a, b, c: a.astype(U32) * b.astype(U32) + c),
    "v_mad_i32_i16": ("i32", "i16 i16 i32", lambda a, b, c: a.astype(I32) * b.astype(I32) + c),
    "v_lshlrev_b32": ("b32", "u32 b32", _shift_left(32)),
    "v_lshrrev_b32": ("b32", "u32 b32", _shift_right(32)),
    "v_ashrrev_i32": ("i32", "u32 i32", _shift_right(32)),
    "v_lshlrev_b64": ("b64", "u32 b64", _shift_left(64)),
    "v_lshrrev_b64": ("b64", "u32 b64", _shift_right(64)),
    "v_ashrrev_i64": ("i64", "u32 i64", _shift_right(64)),
    "v_lshlrev_b16": ("b16", "u16 b16", _shift_left(16)),
    "v_lshrrev_b16": ("b16", "u16 b16", _shift_right(16)),
    "v_ashrrev_i16": ("i16", "u16 i16", _shift_right(16)),
    "v_sad_u32": ("u32", "u32 u32 u32", lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
    "v_prng_b32": ("u32", "u32", lambda a: (a << U32(1)) ^ ((a >> U32(31)) * U32(197))),
    "v_cvt_f32_i32": ("f32", "i32", lambda a: a.astype(F32)),
    "v_cvt_f32_u32": ("f32", "u32", lambda a: a.astype(F32)),
    "v_cvt_i32_f32": ("i32", "f32", _TO_I32),
    "v_cvt_u32_f32": ("u32", "f32", _TO_U32),
    "v_cvt_rpi_i32_f32": ("i32", "f32", lambda a: _TO_I32(np.floor(a.astype(F64) + 0.5))),
    "v_cvt_flr_i32_f32": ("i32", "f32", lambda a: _TO_I32(np.floor(a))),
    "v_cvt_f64_i32": ("f64", "i32", lambda a: a.astype(F64)),
    "v_cvt_f64_u32": ("f64", "u32", lambda a: a.astype(F64)),
    "v_cvt_i32_f64": ("i32", "f64", _TO_I32),
    "v_cvt_u32_f64": ("u32", "f64", _TO_U32),
    "v_cvt_f64_f32": ("f64", "f32", lambda a: a.astype(F64)),
    "v_cvt_f32_f64": ("f32", "f64", lambda a: a.astype(F32)),
    "v_cvt_f16_f32": ("f16", "f32", lambda a: a.astype(F16)),
    "v_cvt_f32_f16": ("f32", "f16", lambda a: a.astype(F32)),
    "v_cvt_f32_bf16": ("f32", "bf16", lambda a: a),
    "v_cvt_f16_u16": ("f16", "u16", lambda a: a.astype(F16)),
    "v_cvt_f16_i16": ("f16", "i16", lambda a: a.astype(F16)),
    "v_cvt_u16_f16": ("u16", "f16", _to_int(0, 2**16 - 1, U16)),
    "v_cvt_i16_f16": ("i16", "f16", _to_int(-(2**15), 2**15 - 1, np.int16)),
    "v_cvt_pk_u8_f32": ("b32", "f32 u32 u32", _insert_byte),
    "v_cvt_pk_u16_u32": (
        "b32", "u32 u32",
        lambda a, b: np.minimum(a, U32(0xFFFF)) | (np.minimum(b, U32(0xFFFF)) << U32(16)),
    ),
    "v_pack_b32_f16": (
        "b32", "b16 b16", lambda a, b: a.astype(U32) | (b.astype(U32) << U32(16))
    ),
    "v_mul_legacy_f32": ("f32", "f32 f32", _legacy_mul),
    "v_maximum3_f32": ("f32", "f32 f32 f32", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_minimum3_f32": ("f32", "f32 f32 f32", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_fma_f64": ("f64", "f64 f64 f64", _fma_f64),
    "v_ldexp_f32": ("f32", "f32 i32", _ldexp(F32)),
    "v_ldexp_f64": ("f64", "f64 i32", _ldexp(F64)),
    "v_ldexp_f16": ("f16", "f16 i16", _ldexp(F16)),
    "v_cvt_pkrtz_f16_f32": (
        "b32", "f32 f32", lambda a, b: _f16_toward_zero(a) | (_f16_toward_zero(b) << U32(16))
    ),
    "v_cvt_pk_f16_f32": (
        "b32", "f32 f32", lambda a, b: f32_to_f16(a) | (f32_to_f16(b) << U32(16))
    ),
}  # fmt: skip


def _f16_toward_zero(x):
    bits = f32_to_f16(x)
    too_large = np.abs(f16_to_f32(bits)) > np.abs(x)
    return bits - too_large.astype(U32)


for _byte in range(4):
    OPS[f"v_cvt_f32_ubyte{_byte}"] = (
        "f32", "u32", lambda a, byte=_byte: ((a >> U32(8 * byte)) & U32(0xFF)).astype(F32),
    )  # fmt: skip
for _type, _dtype in (("f32", F32), ("f16", F16), ("f64", F64)):
    _two, _three = f"{_type} {_type}", f"{_type} {_type} {_type}"
    OPS |= {
        f"v_add_{_type}": (_type, _two, lambda a, b: a + b),
        f"v_sub_{_type}": (_type, _two, lambda a, b: a - b),
        f"v_subrev_{_type}": (_type, _two, lambda a, b: b - a),
        f"v_mul_{_type}": (_type, _two, lambda a, b: a * b),
        f"v_min_{_type}": (_type, _two, minimum_number),
        f"v_max_{_type}": (_type, _two, maximum_number),
        f"v_min3_{_type}": (
            _type, _three, lambda a, b, c: minimum_number(minimum_number(a, b), c)
        ),
        f"v_max3_{_type}": (
            _type, _three, lambda a, b, c: maximum_number(maximum_number(a, b), c)
        ),
        f"v_med3_{_type}": (_type, _three, _med3_float),
        f"v_trunc_{_type}": (_type, _type, np.trunc),
        f"v_ceil_{_type}": (_type, _type, np.ceil),
        f"v_floor_{_type}": (_type, _type, np.floor),
        f"v_rndne_{_type}": (_type, _type, np.rint),
        f"v_fract_{_type}": (_type, _type, _fract),
        f"v_exp_{_type}": (_type, _type, _via_f64(np.exp2)),
        f"v_log_{_type}": (_type, _type, _via_f64(np.log2)),
        f"v_rcp_{_type}": (_type, _type, _via_f64(np.reciprocal)),
        f"v_rsq_{_type}": (_type, _type, _via_f64(lambda a: 1 / np.sqrt(a))),
        f"v_sqrt_{_type}": (_type, _type, _via_f64(np.sqrt)),
        f"v_sin_{_type}": (_type, _type, _via_f64(lambda a: np.sin(2 * np.pi * a))),
        f"v_cos_{_type}": (_type, _type, _via_f64(lambda a: np.cos(2 * np.pi * a))),
        f"v_frexp_mant_{_type}": (_type, _type, lambda a: np.frexp(a)[0]),
    }  # fmt: skip
    if _type != "f64":
        OPS[f"v_fma_{_type}"] = (_type, _three, lambda a, b, c, d=_dtype: fma(a, b, c, d))
OPS |= {
    "v_rcp_iflag_f32": OPS["v_rcp_f32"],
    "v_frexp_exp_i32_f32": ("i32", "f32", _frexp_exponent),
    "v_frexp_exp_i32_f64": ("i32", "f64", _frexp_exponent),
    "v_frexp_exp_i16_f16": ("i16", "f16", lambda a: _frexp_exponent(a).astype(np.int16)),
}
for _type in ("i32", "u32", "i16", "u16"):
    _two, _three = f"{_type} {_type}", f"{_type} {_type} {_type}"
    OPS |= {
        f"v_min_{_type}": (_type, _two, np.minimum),
        f"v_max_{_type}": (_type, _two, np.maximum),
        f"v_min3_{_type}": (_type, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
        f"v_max3_{_type}": (_type, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
        f"v_med3_{_type}": (_type, _three, _med3),
    }
for _type in ("u16", "i16"):
    _two = f"{_type} {_type}"
    OPS |= {
        f"v_add_{_type}": (_type, _two, lambda a, b: a + b),
        f"v_sub_{_type}": (_type, _two, lambda a, b: a - b),
        f"v_subrev_{_type}": (_type, _two, lambda a, b: b - a),
        f"v_mul_lo_{_type}": (_type, _two, lambda a, b: a * b),
        f"v_mad_{_type}": (_type, f"{_two} {_type}", lambda a, b, c: a * b + c),
    }
ACCUMULATING = {"v_fmac_f32": "v_fma_f32", "v_fmac_f16": "v_fma_f16", "v_fmac_f64": "v_fma_f64"}
KEEPS_HIGH_HALF = ("v_mad_f16", "v_mad_u16", "v_mad_i16", "v_fma_f16")
