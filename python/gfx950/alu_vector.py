"""The vector ALU: VOP1, VOP2, VOP3 and compares, one result per lane.

A table row gives the types of result and sources and a NumPy function of the sources:

    v_lshl_add_u32   u32   u32 u32 u32   (a << (b & 31)) + c

The same row serves the e32, e64, SDWA and DPP encodings: `lanes.py` wraps the sources and the
result of the last two. Transcendental functions are computed in float64 and rounded, which is
within the one-ulp error the hardware documents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950 import lanes
from gfx950.asm import EXEC, VCC
from gfx950.formats import f16_to_f32, f32_to_f16, fma
from gfx950.operands import Build, Decoded, write_register
from gfx950.results import result_function, result_modifiers
from gfx950.state import LANES, Waves, lanes_to_mask

U16, U32, I32, U64, I64 = np.uint16, np.uint32, np.int32, np.uint64, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
_LANE = np.arange(LANES, dtype=U32)


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
    wide = (a.astype(U64) << U64(32)) | b.astype(U64)
    result = U32(0)
    for byte in range(4):
        s = (select >> U32(8 * byte)) & U32(0xFF)
        picked = (wide >> ((s & U32(7)) * U32(8)).astype(U64)).astype(U32) & U32(0xFF)
        sign = wide >> (((s & U32(3)) * U32(16)) + U32(15)).astype(U64)
        fill = np.where(sign & U64(1), U32(0xFF), U32(0))
        picked = np.where(s >= 8, fill, picked)
        picked = np.where(s == 12, U32(0), np.where(s >= 13, U32(0xFF), picked))
        result = result | (picked << U32(8 * byte))
    return result


def _align(unit: int) -> Callable:
    def align(a, b, n):
        wide = (a.astype(U64) << U64(32)) | b.astype(U64)
        amount = (n & U32(31)) if unit == 1 else (n & U32(3)) * U32(8)
        return (wide >> amount.astype(U64)).astype(U32)

    return align


def _first_bit(a, from_top: bool):
    bits = ((a[..., None] >> _LANE[:32]) & U32(1)).astype(bool)
    found = np.argmax(bits[..., ::-1] if from_top else bits, axis=-1).astype(U32)
    return np.where(bits.any(-1), found, U32(0xFFFFFFFF))


def _reverse_bits(a):
    octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., ::-1]
    return np.packbits(bits, axis=-1, bitorder="little").view(U32)[..., 0]


def _count_bits(a, base):
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
    from fractions import Fraction

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


def _legacy_mul(a, b):
    return np.where((a == 0) | (b == 0), F32(0), a * b)


# --- the table ---------------------------------------------------------------------------------

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
    "v_bcnt_u32_b32": ("u32", "u32 u32", _count_bits),
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
        "f32", "u32", lambda a, s=U32(8 * _byte): ((a >> s) & U32(0xFF)).astype(F32),
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

_CONDITIONS = {
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b), "ne": np.not_equal, "ge": np.greater_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b),
    "neq": np.not_equal, "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
}  # fmt: skip


# --- decoding ----------------------------------------------------------------------------------


def _decode_table(b: Build, name: str) -> Decoded:
    type_, sources, fn = OPS[name]
    sources = sources.split()
    if b.ins.encoding in ("sdwa", "dpp"):
        return lanes.decode_wrapped(b, type_, sources, fn)
    fn = result_function(b, name, type_, fn)
    select = b.mod("op_sel", (0,) * (len(sources) + 1))
    reads = [b.src(i + 1, t, hi=bool(select[i])) for i, t in enumerate(sources)]
    if select[-1] or name in KEEPS_HIGH_HALF:
        write = _half_writer(b, bool(select[-1]))
    else:
        write = b.dst(0, type_)
    if len(reads) == 1:
        (first,) = reads
        run = lambda w: write(w, fn(first(w)))  # noqa: E731
    elif len(reads) == 2:
        first, second = reads
        run = lambda w: write(w, fn(first(w), second(w)))  # noqa: E731
    else:
        first, second, third = reads
        run = lambda w: write(w, fn(first(w), second(w), third(w)))  # noqa: E731
    kind = "trans" if _is_transcendental(name) else "valu"
    return b.finish(run, kind, info={"part": bool(select[-1])})


def _is_transcendental(name: str) -> bool:
    return name.startswith(("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"))


def _half_writer(b: Build, high: bool) -> Callable:
    """Writes 16 bits and keeps the other half."""
    index = b.vector_index(b.operand(0), 1)
    b.v_writes.append(index)
    b.v_kept.append(index)

    def write(w: Waves, x: np.ndarray) -> None:
        bits = np.asarray(x).view(U16).astype(U32)
        old = w.v[index]
        merged = (old & U32(0xFFFF)) | (bits << U32(16)) if high else (old & ~U32(0xFFFF)) | bits
        write_register(w, index, merged)

    return write


def _decode_accumulate(b: Build, name: str) -> Decoded:
    type_, _, fn = OPS[ACCUMULATING[name]]
    if b.ins.encoding in ("sdwa", "dpp"):
        return lanes.decode_wrapped(b, type_, [type_, type_], fn, accumulate=True)
    finish = result_modifiers(b, type_)
    first, second = b.src(1, type_), b.src(2, type_)
    addend, write = b.src(0, type_), b.dst(0, type_)
    run = lambda w: write(w, finish(fn(first(w), second(w), addend(w))))  # noqa: E731
    return b.finish(run, "valu")


def _decode_fma_constant(b: Build) -> Decoded:
    """v_fmamk (a * K + b) and v_fmaak (a * b + K), whose operands are printed in that order."""
    type_ = b.ins.name.rsplit("_", 1)[1]
    dtype = F32 if type_ == "f32" else F16
    reads = [b.src(i, type_) for i in (1, 2, 3)]
    write = b.dst(0, type_)
    run = lambda w: write(w, fma(*[read(w) for read in reads], dtype))  # noqa: E731
    return b.finish(run, "valu")


def _decode_compare(b: Build) -> Decoded:
    _, kind, condition, type_ = b.ins.name.split("_")
    if condition == "class":
        return _decode_class(b, type_)
    test = _CONDITIONS[condition]
    if b.ins.encoding == "sdwa":
        first, second = lanes.sdwa_source(b, 1, type_, 0), lanes.sdwa_source(b, 2, type_, 1)
    else:
        select = b.mod("op_sel", (0, 0, 0))
        first, second = (b.src(i + 1, type_, hi=bool(select[i])) for i in range(2))
    write = b.mask_dst(0)
    if kind == "cmpx":
        b.s_writes += [EXEC, EXEC + 1]

    def run(w: Waves) -> None:
        result = np.broadcast_to(test(first(w), second(w)), w.exec_mask.shape)
        write(w, result)
        if kind == "cmpx":
            w.set_s64(EXEC, lanes_to_mask(result & w.exec_mask))

    return b.finish(run, "valu")


def _decode_class(b: Build, type_: str) -> Decoded:
    value, wanted, write = b.src(1, type_), b.src(2, "u32"), b.mask_dst(0)
    if b.ins.name.startswith("v_cmpx"):
        raise b.unknown()
    quiet = {"f32": (U32, 0x400000), "f16": (U16, 0x200), "f64": (U64, 1 << 51)}[type_]

    def run(w: Waves) -> None:
        x, mask = value(w), wanted(w)
        tiny = np.finfo(x.dtype).tiny
        is_quiet = (x.view(quiet[0]) & quiet[0](quiet[1])) != 0
        nan, negative, size = np.isnan(x), np.signbit(x), np.abs(x)
        ordered = [np.isinf(x), (size >= tiny) & np.isfinite(x), (size < tiny) & (x != 0), x == 0]
        classes = [nan & ~is_quiet, nan & is_quiet]
        classes += [negative & c for c in ordered] + [~negative & c for c in reversed(ordered)]
        result = np.zeros(np.broadcast(x, mask).shape, bool)
        for bit, member in enumerate(classes):
            result |= member & (((mask >> U32(bit)) & U32(1)) != 0)
        write(w, result)

    return b.finish(run, "valu")


def _decode_carry(b: Build) -> Decoded:
    """v_add_co, v_sub_co, v_addc_co and their reversed forms."""
    name = b.ins.name
    if b.ins.encoding in ("sdwa", "dpp"):
        raise b.unknown("encoding")
    first, second = b.src(2, "u32"), b.src(3, "u32")
    carry = b.src(4, "mask") if name.startswith(("v_addc", "v_subb")) else None
    write, write_carry = b.dst(0, "u32"), b.mask_dst(1)
    is_add, is_reversed = name.startswith("v_add"), "rev" in name

    def run(w: Waves) -> None:
        a, c = first(w).astype(I64), second(w).astype(I64)
        extra = 0 if carry is None else carry(w)
        a, c = (c, a) if is_reversed else (a, c)
        total = a + c + extra if is_add else a - c - extra
        total = np.broadcast_to(total, w.exec_mask.shape)
        write(w, total.astype(U32))
        write_carry(w, (total >> 32) != 0)

    return b.finish(run, "valu")


def _decode_cndmask(b: Build) -> Decoded:
    if b.ins.encoding in ("sdwa", "dpp"):
        return lanes.decode_cndmask(b)
    first, second = b.src(1, "b32"), b.src(2, "b32")
    if any(o.neg or o.abs for o in b.ins.operands):
        first, second = b.src(1, "f32"), b.src(2, "f32")
    select, write = b.src(3, "mask"), b.dst(0, "b32")
    run = lambda w: write(w, np.where(select(w), second(w), first(w)))  # noqa: E731
    return b.finish(run, "valu")


def _decode_bitop3(b: Build) -> Decoded:
    table = int(b.mod("bitop3", 0))
    type_ = "b16" if b.ins.name.endswith("16") else "b32"
    select = b.mod("op_sel", (0, 0, 0, 0))
    reads = [b.src(i + 1, type_, hi=bool(select[i])) for i in range(3)]
    write = _half_writer(b, True) if select[3] else b.dst(0, type_)

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        result = np.zeros_like(values[0])
        for row in range(8):
            if table >> row & 1:
                term = ~np.zeros_like(values[0])
                for bit, value in zip((4, 2, 1), values, strict=True):
                    term = term & (value if row & bit else ~value)
                result = result | term
        write(w, result)

    return b.finish(run, "valu", info={"part": bool(select[3])})


def _decode_mbcnt(b: Build) -> Decoded:
    below = (U64(1) << np.arange(LANES, dtype=U64)) - U64(1)
    part = below >> U64(32) if "_hi_" in b.ins.name else below
    mask = part.astype(U32)
    bits, base, write = b.src(1, "u32"), b.src(2, "u32"), b.dst(0, "u32")
    run = lambda w: write(w, _count_bits(bits(w) & mask, base(w)))  # noqa: E731
    return b.finish(run, "valu")


def _decode_mad64(b: Build) -> Decoded:
    signed = b.ins.name == "v_mad_i64_i32"
    narrow, wide, dtype = ("i32", "i64", I64) if signed else ("u32", "u64", U64)
    first, second, addend = b.src(2, narrow), b.src(3, narrow), b.src(4, wide)
    write, write_carry = b.dst(0, wide), b.mask_dst(1)

    def run(w: Waves) -> None:
        product = first(w).astype(dtype) * second(w).astype(dtype)
        total = np.broadcast_to(product + addend(w), w.exec_mask.shape)
        write(w, total)
        write_carry(w, total < product)

    return b.finish(run, "valu")


def _decode_div_scale(b: Build) -> Decoded:
    """Scales numerator or denominator by 2^64 or 2^-64 where a division would lose bits.

    Where the published pseudo-code cannot divide correctly, this follows what the sequence
    div_scale, rcp, fma, div_fmas, div_fixup needs to give the rounded quotient.
    """
    type_ = b.ins.name.rsplit("_", 1)[1]
    if type_ != "f32":
        raise b.unknown()
    s0, s1, s2 = (b.src(i, "f32") for i in (2, 3, 4))
    write, write_flag = b.dst(0, "f32"), b.mask_dst(1)

    def run(w: Waves) -> None:
        value, den, num = np.broadcast_arrays(s0(w), s1(w), s2(w), np.empty((w.count, LANES), F32))[
            :3
        ]
        tiny = np.finfo(F32).tiny
        exponent = lambda x: (x.view(U32) >> U32(23) & U32(255)).astype(I32)  # noqa: E731
        den, num = np.ascontiguousarray(den), np.ascontiguousarray(num)
        is_den, is_num = value == den, value == num
        invalid = (num == 0) | (den == 0)
        wide = ~invalid & (exponent(num) - exponent(den) >= 96)
        den_tiny = ~invalid & ~wide & (np.abs(den) < tiny)
        rcp_tiny = np.abs(1 / den.astype(F64)) < tiny
        quotient_tiny = np.abs(num.astype(F64) / den.astype(F64)) < tiny
        rest = ~(invalid | wide | den_tiny)
        both, only_rcp = rest & rcp_tiny & quotient_tiny, rest & rcp_tiny & ~quotient_tiny
        only_quotient = rest & ~rcp_tiny & quotient_tiny
        small = rest & ~rcp_tiny & ~quotient_tiny & (exponent(num) <= 23)
        up = (wide & is_den) | den_tiny | (only_quotient & is_num) | small
        down = only_rcp | (both & is_den)
        scale = np.where(up, F32(2.0**64), np.where(down, F32(2.0**-64), F32(1)))
        write(w, np.where(invalid, F32(np.nan), value * scale))
        write_flag(w, wide | both | only_quotient)

    return b.finish(run, "valu")


def _decode_div_fmas(b: Build) -> Decoded:
    if not b.ins.name.endswith("f32"):
        raise b.unknown()
    reads, write = [b.src(i, "f32") for i in (1, 2, 3)], b.dst(0, "f32")
    b.s_reads += [VCC, VCC + 1]

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        plain = fma(*values)
        undo = np.where(np.abs(values[2]) >= 2, F32(2.0**64), F32(2.0**-64))
        write(w, np.where(lanes.mask_to_lanes(w.s64(VCC)), plain * undo, plain))

    return b.finish(run, "valu")


def _decode_div_fixup(b: Build) -> Decoded:
    type_ = b.ins.name.rsplit("_", 1)[1]
    reads, write = [b.src(i, type_) for i in (1, 2, 3)], b.dst(0, type_)

    def run(w: Waves) -> None:
        q, den, num = (read(w) for read in reads)
        sign = np.signbit(den) ^ np.signbit(num)
        result = np.copysign(q, np.where(sign, -1, 1).astype(q.dtype))
        exact = (num.astype(F64) / den.astype(F64)).astype(q.dtype)
        special = ~np.isfinite(num) | ~np.isfinite(den) | (num == 0) | (den == 0) | np.isinf(exact)
        write(w, np.where(special, exact, result).astype(q.dtype))

    return b.finish(run, "valu")


_SPECIAL = {
    "v_cndmask_b32": _decode_cndmask,
    "v_bitop3_b32": _decode_bitop3,
    "v_bitop3_b16": _decode_bitop3,
    "v_mbcnt_lo_u32_b32": _decode_mbcnt,
    "v_mbcnt_hi_u32_b32": _decode_mbcnt,
    "v_mad_u64_u32": _decode_mad64,
    "v_mad_i64_i32": _decode_mad64,
    "v_div_scale_f32": _decode_div_scale,
    "v_div_fmas_f32": _decode_div_fmas,
    "v_div_fixup_f32": _decode_div_fixup,
    "v_div_fixup_f16": _decode_div_fixup,
}


def decode_vector(b: Build) -> Decoded | None:
    """Decodes a vector ALU instruction of this module, or returns None if it is none."""
    name = b.ins.name
    if name in OPS:
        return _decode_table(b, name)
    if name in ACCUMULATING:
        return _decode_accumulate(b, name)
    if name in _SPECIAL:
        return _SPECIAL[name](b)
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return _decode_compare(b)
    if name.startswith(("v_fmamk_", "v_fmaak_")):
        return _decode_fma_constant(b)
    if name.startswith(("v_add", "v_sub")) and "_co_" in name:
        return _decode_carry(b)
    return None
