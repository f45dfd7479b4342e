"""Claims about single vector instructions of the gfx950 simulator, at their corners."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.gfx950.support import LANES, execute

F32, U32, I32 = np.float32, np.uint32, np.int32
INF, NAN = np.inf, np.nan
CORNERS = np.array(
    [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45, 3.4e38, 1.1754944e-38, 0.5, 2.5, -2.5,
     65504.0, 1e-30],
    F32,
)  # fmt: skip
PAIRS = np.array([(a, b) for a in CORNERS for b in CORNERS], F32)
WORDS = np.array(
    [0, 1, 2, 31, 32, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000,
     0xFFFFFFFF, 0x12345678, 0xDEADBEEF],
    U32,
)  # fmt: skip
WORD_PAIRS = np.array([(a, b) for a in WORDS for b in WORDS], U32)


def chunks(*columns):
    """Cuts equally long columns into 64-lane pieces, repeating the last value."""
    size = -(-len(columns[0]) // LANES) * LANES
    padded = [np.concatenate([c, np.repeat(c[-1:], size - len(c))]) for c in columns]
    return [np.array_split(c, size // LANES) for c in padded]


def apply(instruction, *columns, outputs=1):
    """Runs an instruction over columns v2, v3, ...; returns the columns v200, v201, ..."""
    parts = []
    for lanes in zip(*chunks(*columns), strict=True):
        parts.append(execute(instruction, {2 + i: x for i, x in enumerate(lanes)}, outputs))
    return np.concatenate(parts, axis=1)[:, : len(columns[0])]


def same_floats(actual, expected):
    """Whether two float32 columns have equal bits, any NaN equal to any other."""
    actual, expected = actual.view(F32), expected.astype(F32)
    both_nan = np.isnan(actual) & np.isnan(expected)
    return ((actual.view(U32) == expected.view(U32)) | both_nan).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v_add_f32_e32", lambda a, b: a + b),
        ("v_sub_f32_e32", lambda a, b: a - b),
        ("v_subrev_f32_e32", lambda a, b: b - a),
        ("v_mul_f32_e32", lambda a, b: a * b),
    ],
)
def test_float_arithmetic_follows_ieee_with_denormals(name, expected):
    a, b = PAIRS.T
    with np.errstate(all="ignore"):
        assert same_floats(apply(f"\t{name} v200, v2, v3", a, b)[0], expected(a, b))


@pytest.mark.parametrize(("name", "sign"), [("v_max_f32_e32", 1), ("v_min_f32_e32", -1)])
def test_min_and_max_prefer_numbers_and_order_zeros(name, sign):
    a, b = PAIRS.T
    expected = []
    for x, y in PAIRS:
        if np.isnan(x) or np.isnan(y):
            expected.append(y if np.isnan(x) else x)
        elif x == y == 0:
            expected.append(
                F32(-0.0) if np.signbit(x * sign) and np.signbit(y * sign) else F32(0.0)
            )
        else:
            expected.append(max(x, y) if sign > 0 else min(x, y))
    actual = apply(f"\t{name} v200, v2, v3", a, b)[0]
    if sign < 0:
        zeros = (a == 0) & (b == 0)
        assert (np.signbit(actual.view(F32))[zeros] == (np.signbit(a) | np.signbit(b))[zeros]).all()
        actual, expected = actual[~zeros], np.array(expected, F32)[~zeros]
    assert same_floats(actual, np.array(expected, F32))


def test_maximum3_propagates_nan_and_max3_does_not():
    a, b = np.array([1, NAN, 3], F32), np.array([2, 2, NAN], F32)
    c = np.array([0, 5, 1], F32)
    assert same_floats(apply("\tv_maximum3_f32 v200, v2, v3, v4", a, b, c)[0],
                       np.array([2, NAN, NAN], F32))  # fmt: skip
    assert same_floats(apply("\tv_max3_f32 v200, v2, v3, v4", a, b, c)[0], np.array([2, 5, 3], F32))


def test_fma_rounds_once(rng):
    a, b = (rng.standard_normal(1024).astype(F32) for _ in range(2))
    c = -(a * b) * rng.choice([1, 1 + 2**-23, 2**20, 2**-20], 1024).astype(F32)
    actual = apply("\tv_fma_f32 v200, v2, v3, v4", a, b, c)[0].view(F32)
    for x, y, z, r in zip(a, b, c, actual, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        nearest = [np.nextafter(r, F32(-INF)), np.nextafter(r, F32(INF))]
        error = abs(Fraction(float(r)) - exact)
        assert all(error <= abs(Fraction(float(n)) - exact) for n in nearest)


def test_fma_sees_which_side_of_a_tie_it_is_on():
    a, b = F32(1 + 2**-12), F32(1 + 2**-12)
    c = np.array([2**-60, -(2**-60)], F32)
    low, high = F32(1 + 2**-11), np.nextafter(F32(1 + 2**-11), F32(2))
    actual = apply("\tv_fma_f32 v200, v2, v3, v4", np.full(2, a), np.full(2, b), c)[0].view(F32)
    assert list(actual) == [high, low]


def test_modifiers_negate_take_absolutes_scale_and_clamp():
    a = np.array([-3.0, 0.25], F32)
    assert list(apply("\tv_add_f32_e64 v200, -|v2|, 1.0", a)[0].view(F32)) == [-2.0, 0.75]
    assert list(apply("\tv_mul_f32_e64 v200, v2, 2.0 mul:4", a)[0].view(F32)) == [-24.0, 2.0]
    assert list(apply("\tv_add_f32_e64 v200, v2, 0 clamp", a)[0].view(F32)) == [0.0, 0.25]


INTEGER_CASES = {
    "v_add_u32_e32 v200, v2, v3": lambda a, b: a + b,
    "v_sub_u32_e32 v200, v2, v3": lambda a, b: a - b,
    "v_mul_lo_u32 v200, v2, v3": lambda a, b: a * b,
    "v_mul_hi_u32 v200, v2, v3": lambda a, b: (a * b) >> 32,
    "v_mul_u32_u24_e32 v200, v2, v3": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_lshlrev_b32_e32 v200, v2, v3": lambda a, b: b << (a & 31),
    "v_lshrrev_b32_e32 v200, v2, v3": lambda a, b: b >> (a & 31),
    "v_and_b32_e32 v200, v2, v3": lambda a, b: a & b,
    "v_xnor_b32_e32 v200, v2, v3": lambda a, b: ~(a ^ b),
    "v_lshl_add_u32 v200, v2, 3, v3": lambda a, b: (a << 3) + b,
    "v_lshl_or_b32 v200, v2, v3, v2": lambda a, b: (a << (b & 31)) | a,
    "v_and_or_b32 v200, v2, v3, v2": lambda a, b: (a & b) | a,
    "v_add3_u32 v200, v2, v3, 7": lambda a, b: a + b + 7,
    "v_xad_u32 v200, v2, v3, v3": lambda a, b: (a ^ b) + b,
    "v_bfi_b32 v200, v2, v3, v2": lambda a, b: (a & b) | (~a & a),
    "v_bfe_u32 v200, v2, v3, 5": lambda a, b: (a >> (b & 31)) & 31,
    "v_alignbit_b32 v200, v2, v3, 9": lambda a, b: (a << 32 | b) >> 9,
    "v_alignbyte_b32 v200, v2, v3, 3": lambda a, b: (a << 32 | b) >> 24,
    "v_bcnt_u32_b32 v200, v2, v3": lambda a, b: a.bit_count() + b,
    "v_max_u32_e32 v200, v2, v3": max,
    "v_min3_u32 v200, v2, v3, 9": lambda a, b: min(a, b, 9),
    "v_med3_u32 v200, v2, v3, 9": lambda a, b: sorted((a, b, 9))[1],
    "v_mul_lo_u16_e32 v200, v2, v3": lambda a, b: (a * b) & 0xFFFF,
    "v_add_u16_e32 v200, v2, v3": lambda a, b: (a + b) & 0xFFFF,
    "v_bfrev_b32_e32 v200, v2": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32_e32 v200, v2": lambda a, b: 32 - a.bit_length() if a else -1,
    "v_ffbl_b32_e32 v200, v2": lambda a, b: (a & -a).bit_length() - 1 if a else -1,
    "v_pack_b32_f16 v200, v2, v3": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16,
    "v_cvt_pk_u16_u32 v200, v2, v3": lambda a, b: min(a, 65535) | min(b, 65535) << 16,
    "v_add_u32_e64 v200, v2, v3 clamp": lambda a, b: min(a + b, 2**32 - 1),
    "v_sub_u32_e64 v200, v2, v3 clamp": lambda a, b: max(a - b, 0),
}


@pytest.mark.parametrize("instruction", INTEGER_CASES)
def test_integer_instructions_match_python(instruction):
    a, b = WORD_PAIRS.T
    expected = [INTEGER_CASES[instruction](int(x), int(y)) & 0xFFFFFFFF for x, y in WORD_PAIRS]
    assert list(apply("\t" + instruction, a, b)[0]) == expected


SIGNED_CASES = {
    "v_ashrrev_i32_e32 v200, v2, v3": lambda a, b: b >> (a & 31),
    "v_mul_hi_i32 v200, v2, v3": lambda a, b: (a * b) >> 32,
    "v_min_i32_e32 v200, v2, v3": min,
    "v_max3_i32 v200, v2, v3, -5": lambda a, b: max(a, b, -5),
    "v_mul_i32_i24_e32 v200, v2, v3": lambda a, b: signed(a, 24) * signed(b, 24),
    "v_bfe_i32 v200, v2, 4, 8": lambda a, b: signed(a >> 4, 8),
    "v_add_i32 v200, v2, v3 clamp": lambda a, b: min(max(a + b, -(2**31)), 2**31 - 1),
}


def signed(value, width):
    """Reads the low `width` bits as two's complement."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


@pytest.mark.parametrize("instruction", SIGNED_CASES)
def test_signed_instructions_match_python(instruction):
    a, b = WORD_PAIRS.T
    expected = [
        SIGNED_CASES[instruction](signed(int(x), 32), signed(int(y), 32)) & 0xFFFFFFFF
        for x, y in WORD_PAIRS
    ]
    assert list(apply("\t" + instruction, a, b)[0]) == expected


def test_perm_picks_every_kind_of_byte():
    select = np.arange(16, dtype=U32)
    a, b = np.full(16, 0x81020384, U32), np.full(16, 0x05860788, U32)
    data = [0x88, 0x07, 0x86, 0x05, 0x84, 0x03, 0x02, 0x81]
    signs = [0xFF * (data[i] >> 7) for i in (1, 3, 5, 7)]
    expected = [*data, *signs, 0, 255, 255, 255]
    assert list(apply("\tv_perm_b32 v200, v2, v3, v4", a, b, select)[0] & 0xFF) == expected


@pytest.mark.parametrize("table", range(0, 256, 5))
def test_bitop3_is_its_truth_table(table):
    values = [np.array([0xF0F0F0F0], U32), np.array([0xCCCCCCCC], U32), np.array([0xAAAAAAAA], U32)]
    actual = int(apply(f"\tv_bitop3_b32 v200, v2, v3, v4 bitop3:{table}", *values)[0, 0])
    expected = sum(
        (table >> (4 * (i >> 2 & 1) + 2 * (i >> 1 & 1) + (i & 1)) & 1) << i for i in range(8)
    )
    assert actual == expected * 0x01010101


def test_wide_integers_carry_between_halves():
    low, high = WORD_PAIRS.T
    total = apply("\tv_lshl_add_u64 v[200:201], v[2:3], 4, v[2:3]", low, high, outputs=2)
    values = low.astype(object) + high.astype(object) * 2**32
    expected = (values * 17) % 2**64
    assert list(total[0] + total[1].astype(object) * 2**32) == list(expected)
    body = """
	v_add_co_u32_e32 v200, vcc, v2, v3
	s_nop 4
	v_addc_co_u32_e32 v201, vcc, v3, v2, vcc
"""
    carried = apply(body, low, high, outputs=2)
    sums = low.astype(object) + high.astype(object)
    assert list(carried[0]) == list(sums % 2**32)
    assert list(carried[1]) == list((sums + sums // 2**32) % 2**32)


def test_mad_u64_adds_the_whole_product():
    a, b = WORD_PAIRS.T
    actual = apply("\tv_mad_u64_u32 v[200:201], s[10:11], v2, v3, v[2:3]", a, b, outputs=2)
    expected = [(int(x) * int(y) + int(x) + (int(y) << 32)) % 2**64 for x, y in WORD_PAIRS]
    assert list(actual[0] + actual[1].astype(object) * 2**32) == expected


@pytest.mark.parametrize(
    ("condition", "test"),
    [
        ("lt", lambda a, b: a < b), ("eq", lambda a, b: a == b), ("le", lambda a, b: a <= b),
        ("gt", lambda a, b: a > b), ("lg", lambda a, b: a < b or a > b),
        ("ge", lambda a, b: a >= b), ("nlt", lambda a, b: not a < b),
        ("neq", lambda a, b: a != b), ("nge", lambda a, b: not a >= b),
        ("u", lambda a, b: np.isnan(a) or np.isnan(b)),
        ("o", lambda a, b: not (np.isnan(a) or np.isnan(b))),
    ],
)  # fmt: skip
def test_float_compares_treat_nan_as_unordered(condition, test):
    a, b = PAIRS.T
    body = f"\tv_cmp_{condition}_f32_e32 vcc, v2, v3\n\ts_nop 4\n"
    body += "\tv_cndmask_b32_e64 v200, 0, 1, vcc"
    expected = [int(test(float(x), float(y))) for x, y in PAIRS]
    assert list(apply(body, a, b)[0]) == expected


def test_class_tells_every_kind_of_float():
    kinds = np.array([0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0,
                      1, 0x3F800000, 0x7F800000], U32)  # fmt: skip
    body = "\tv_cmp_class_f32_e32 vcc, v2, v3\n\ts_nop 4\n\tv_cndmask_b32_e64 v200, 0, 1, vcc"
    for bit in range(10):
        actual = apply(body, kinds, np.full(10, 1 << bit, U32))[0]
        assert list(actual) == [int(i == bit) for i in range(10)]


def test_conversions_to_integers_saturate_and_map_nan_to_zero():
    x = np.array([NAN, INF, -INF, 2.9, -2.9, 3e9, -3e9, 5e9], F32)
    signed_result = apply("\tv_cvt_i32_f32_e32 v200, v2", x)[0].view(I32)
    assert list(signed_result) == [0, 2**31 - 1, -(2**31), 2, -2, 2**31 - 1, -(2**31), 2**31 - 1]
    unsigned = apply("\tv_cvt_u32_f32_e32 v200, v2", x)[0]
    assert list(unsigned) == [0, 2**32 - 1, 0, 2, 0, 3_000_000_000, 0, 2**32 - 1]


def test_bf16_conversion_rounds_ties_to_even(rng):
    x = rng.integers(0, 2**32, 4096, np.uint64).astype(U32)
    x[::3] = (x[::3] & U32(0xFFFF0000)) | U32(0x8000)
    floats = x.view(F32)
    actual = apply("\tv_cvt_pk_bf16_f32 v200, v2, v2", floats)[0]
    with np.errstate(all="ignore"):
        expected = floats.astype(ml_dtypes.bfloat16)
    number = ~np.isnan(floats)
    assert ((actual & 0xFFFF) == expected.view(np.uint16))[number].all()
    assert np.isnan(actual.astype(np.uint16).view(ml_dtypes.bfloat16)[~number].astype(F32)).all()
    assert ((actual >> 16) == (actual & 0xFFFF)).all()


SMALL = {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("format_", SMALL)
def test_fp8_codes_widen_and_narrow_as_ocp_says(format_):
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(SMALL[format_]).astype(F32)
    wide = apply(f"\tv_cvt_f32_{format_}_e32 v200, v2", codes.astype(U32))[0]
    assert same_floats(wide, values)
    finite = np.sort(values[np.isfinite(values)])
    ties = (finite[:-1] + finite[1:]) / 2
    x = np.concatenate([finite, ties, np.nextafter(ties, F32(INF)), np.nextafter(ties, F32(-INF))])
    body = "\tv_mov_b32_e32 v200, -1\n\ts_nop 4\n"
    narrow = apply(f"{body}\tv_cvt_pk_{format_}_f32 v200, v2, v2 op_sel:[0,0,1]", x)[0]
    assert ((narrow & 0xFFFF) == 0xFFFF).all()
    assert ((narrow >> 24) == x.astype(SMALL[format_]).view(np.uint8)).all()


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("source", ["bf16", "f16", "f32"])
def test_scaled_fp4_conversion_rounds_every_input(source, position):
    """All 2^16 halves as bf16 or f16; every third float32 neighbour of a tie."""
    if source == "f32":
        ties = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 7, 1e30, INF], F32)
        x = np.concatenate([ties, np.nextafter(ties, F32(0)), np.nextafter(ties, F32(99))])
        values = np.concatenate([x, -x])
    else:
        dtype = ml_dtypes.bfloat16 if source == "bf16" else np.float16
        values = np.arange(position, 65536, 4).astype(np.uint16).view(dtype).astype(F32)
    values = values[~np.isnan(values)]
    scale = F32(2.0**-3)
    low = [0, 0, 1, 1][position], [0, 1, 0, 1][position]
    select = f"op_sel:[0,0,{position & 1},{position >> 1}]"
    assert low is not None
    if source == "f32":
        body, columns = f"v200, v2, v3, v4 {select}", [values, values[::-1]]
        second = values[::-1]
    else:
        halves = values.astype(dtype).view(np.uint16).astype(U32)
        second = np.roll(values, 1)
        body = f"v200, v2, v4 {select}"
        columns = [halves | np.roll(halves, 1) << 16, halves]
    prefix = "\tv_mov_b32_e32 v200, 0\n\ts_nop 4\n"
    instruction = f"{prefix}\tv_cvt_scalef32_pk_fp4_{source} {body}"
    actual = apply(instruction, *columns, np.full(len(values), scale, F32))[0]
    with np.errstate(all="ignore"):
        codes = [np.clip(v / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
                 for v in (values, second)]  # fmt: skip
    expected = (codes[0].astype(U32) | codes[1].astype(U32) << 4) << (8 * position)
    assert (actual == expected).all()


@pytest.mark.parametrize("exponent", [0, 1, 100, 127, 140, 254])
def test_scaled_fp4_widening_is_exact(exponent):
    codes = np.arange(256, dtype=U32)
    scale = np.full(256, exponent << 23 | 0x7FFFFF | 1 << 31, U32)
    actual = apply("\tv_cvt_scalef32_pk_f32_fp4 v[200:201], v2, v3", codes, scale, outputs=2)
    for half, nibble in ((actual[0], codes & 15), (actual[1], codes >> 4)):
        values = nibble.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        with np.errstate(all="ignore"):
            assert same_floats(half, (values * 2.0 ** (exponent - 127)).astype(F32))


def test_sdwa_selects_extends_and_preserves():
    a, b = np.array([0x81828384], U32), np.array([0x10], U32)
    word = "src0_sel:BYTE_2 src1_sel:DWORD"
    cases = {
        f"v_add_u32_sdwa v200, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD {word}": 0x92,
        f"v_add_u32_sdwa v200, sext(v2), v3 dst_sel:DWORD dst_unused:UNUSED_PAD {word}": 0xFFFFFF92,
        f"v_add_u32_sdwa v200, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD {word}": 0x920000,
        f"v_add_u32_sdwa v200, v2, v3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE {word}": 0x77779277,
    }
    for instruction, expected in cases.items():
        body = f"\tv_mov_b32_e32 v200, 0x77777777\n\ts_nop 4\n\t{instruction}"
        assert int(apply(body, a, b)[0, 0]) == expected, instruction


LANE = np.arange(LANES)
DPP = {
    "quad_perm:[3,2,1,0]": LANE // 4 * 4 + 3 - LANE % 4,
    "row_shl:3": np.where(LANE % 16 < 13, LANE + 3, -1),
    "row_shr:1": np.where(LANE % 16 > 0, LANE - 1, -1),
    "row_ror:5": LANE // 16 * 16 + (LANE - 5) % 16,
    "row_mirror": LANE // 16 * 16 + 15 - LANE % 16,
    "row_half_mirror": LANE // 8 * 8 + 7 - LANE % 8,
    "row_bcast:15": np.where(LANE >= 16, LANE // 16 * 16 - 1, -1),
    "row_bcast:31": np.where(LANE >= 32, 31, -1),
    "row_newbcast:6": LANE // 16 * 16 + 6,
    "wave_shr:1": LANE - 1,
}


@pytest.mark.parametrize("control", DPP)
def test_dpp_moves_lanes_and_keeps_or_zeroes_the_rest(control):
    source = DPP[control]
    values = np.arange(100, 164, dtype=U32)
    body = f"\tv_mov_b32_e32 v200, 7\n\tv_mov_b32_e32 v201, 7\n\ts_nop 4\n\tv_mov_b32_dpp v200, v2 {control} row_mask:0xf bank_mask:0xf\n\tv_mov_b32_dpp v201, v2 {control} row_mask:0xf bank_mask:0xf bound_ctrl:1"  # noqa: E501
    kept, zeroed = execute(body, {2: values}, 2)
    assert list(kept) == [int(values[s]) if s >= 0 else 7 for s in source]
    assert list(zeroed) == [int(values[s]) if s >= 0 else 0 for s in source]


def test_dpp_masks_disable_rows_and_banks():
    body = "\tv_mov_b32_e32 v200, 7\n\ts_nop 4\n\tv_mov_b32_dpp v200, v2 quad_perm:[0,1,2,3] row_mask:0xa bank_mask:0x3"  # noqa: E501
    actual = execute(body, {2: LANE}, 1)[0]
    chosen = (LANE // 16 % 2 == 1) & (LANE % 16 < 8)
    assert (actual == np.where(chosen, LANE, 7)).all()


@pytest.mark.parametrize("half", [16, 32])
def test_permlane_swap_exchanges_halves(half):
    body = f"\tv_mov_b32_e32 v200, v2\n\tv_mov_b32_e32 v201, v3\n\ts_nop 4\n\tv_permlane{half}_swap_b32_e32 v200, v201"  # noqa: E501
    first, second = execute(body, {2: LANE, 3: LANE + 100}, 2)
    upper = LANE % (2 * half) >= half
    assert (first == np.where(upper, LANE - half + 100, LANE)).all()
    assert (second == np.where(upper, LANE + 100, LANE + half)).all()


def test_lane_reads_and_writes():
    body = """
	v_readfirstlane_b32 s10, v2
	v_readlane_b32 s11, v2, 63
	s_mov_b32 s12, 5
	v_mov_b32_e32 v200, s10
	v_mov_b32_e32 v201, s11
	v_mov_b32_e32 v202, v2
	v_writelane_b32 v202, s12, 9
"""
    first, last, written = execute(body, {2: LANE + 40}, 3)
    assert set(first) == {40}
    assert set(last) == {103}
    assert (written == np.where(LANE == 9, 5, LANE + 40)).all()


def test_exec_masks_results_and_mbcnt_counts_below():
    body = """
	v_mov_b32_e32 v200, 0
	s_mov_b64 s[10:11], exec
	s_mov_b32 exec_lo, 0xf0f0f0f0
	s_mov_b32 exec_hi, 0x1
	v_mov_b32_e32 v200, 5
	s_mov_b64 exec, s[10:11]
	v_mbcnt_lo_u32_b32 v201, -1, 0
	s_nop 4
	v_mbcnt_hi_u32_b32 v201, -1, v201
"""
    masked, lane = execute(body, {}, 2)
    active = ((0x1F0F0F0F0 >> LANE.astype(object)) & 1).astype(bool)
    assert (masked == np.where(active, 5, 0)).all()
    assert (lane == LANE).all()


def test_packed_halves_follow_op_sel_and_neg():
    x = np.array([1.5, -2.0], np.float16).view(U32)
    y = np.array([0.25, 8.0], np.float16).view(U32)

    def halves(instruction):
        return list(apply("\t" + instruction, x, y)[0].view(np.float16))

    assert halves("v_pk_add_f16 v200, v2, v3") == [1.75, 6.0]
    assert halves("v_pk_add_f16 v200, v2, v3 op_sel:[1,0] op_sel_hi:[0,1]") == [-1.75, 9.5]
    assert halves("v_pk_mul_f16 v200, v2, v3 neg_lo:[1,0] neg_hi:[0,1]") == [-0.375, 16.0]
    assert halves("v_pk_fma_f16 v200, v2, v3, v3") == [0.625, -8.0]
    assert halves("v_pk_max_f16 v200, v2, v3") == [1.5, 8.0]


def test_packed_words_and_moves():
    a = np.array([[1.5], [-2.0]], F32)
    body = """
	v_pk_mul_f32 v[200:201], v[2:3], v[2:3] op_sel:[0,1] op_sel_hi:[1,0]
	v_pk_mov_b32 v[202:203], v[2:3], v[2:3] op_sel:[1,0]
	v_pk_fma_f32 v[204:205], v[2:3], v[2:3], v[2:3]
"""
    out = execute(body, {2: np.repeat(a, LANES, 1)}, 6)[:, 0].view(F32)
    assert list(out) == [-3.0, -3.0, -2.0, 1.5, 3.75, 2.0]


def test_mixed_precision_fma_reads_halves():
    x = np.array([1.5, -2.0], np.float16).view(U32)
    y = np.array([3.0], F32)
    body = "\tv_fma_mix_f32 v200, v2, v3, v2 op_sel:[1,0,0] op_sel_hi:[1,0,1]"
    assert float(apply(body, x, y)[0].view(F32)[0]) == -2.0 * 3.0 + 1.5


def test_dot_products():
    a = np.array([1.0, 2.0], ml_dtypes.bfloat16).view(U32)
    b = np.array([3.0, -4.0], ml_dtypes.bfloat16).view(U32)
    c = np.array([10.0], F32)
    assert float(apply("\tv_dot2_f32_bf16 v200, v2, v3, v4", a, b, c)[0].view(F32)[0]) == 5.0
    x, y = np.array([0x80FF0102], U32), np.array([0x02030405], U32)
    assert int(apply("\tv_dot4_i32_i8 v200, v2, v3, 1", x, y)[0].view(I32)[0]) == (
        2 * 5 + 1 * 4 - 1 * 3 - 128 * 2 + 1
    )


def test_division_sequence_gives_the_rounded_quotient(rng):
    """The expansion that LLVM emits for a float32 division."""
    body = """
	v_div_scale_f32 v4, s[10:11], v3, v3, v2
	v_div_scale_f32 v5, vcc, v2, v3, v2
	v_rcp_f32_e32 v6, v4
	s_nop 4
	v_fma_f32 v7, -v4, v6, 1.0
	v_fmac_f32_e32 v6, v7, v6
	v_mul_f32_e32 v8, v5, v6
	v_fma_f32 v9, -v4, v8, v5
	v_fmac_f32_e32 v8, v9, v6
	v_fma_f32 v10, -v4, v8, v5
	v_div_fmas_f32 v11, v10, v6, v8
	v_div_fixup_f32 v200, v11, v3, v2
"""
    a = np.concatenate([rng.standard_normal(1000).astype(F32), PAIRS[:, 0]])
    b = np.concatenate([rng.standard_normal(1000).astype(F32), PAIRS[:, 1]])
    with np.errstate(all="ignore"):
        assert same_floats(apply(body, a, b)[0], a / b)
