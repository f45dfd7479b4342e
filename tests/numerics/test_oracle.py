"""The oracle against witnesses that nobody here wrote: ml_dtypes and torchao.

Both are compared over whole domains. Where torchao departs from the OCP text
the departure is named by a test of its own, so that agreement elsewhere is
not bought by leaving values out.
"""

import ctypes
import ctypes.util
import logging

import ml_dtypes
import numpy as np
import pytest
import torch

import oracle
from oracle import ELEMENTS, FORMATS, assert_bitwise_equal

logging.getLogger("torchao").setLevel(logging.ERROR)

from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402

WITNESSES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
TORCHAO = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
}
EVERY_BFLOAT16 = oracle.decode_bfloat16(np.arange(1 << 16))
FINITE = EVERY_BFLOAT16[np.isfinite(EVERY_BFLOAT16)]
POSITIVE = FINITE[FINITE > 0]

every_element = pytest.mark.parametrize("element", ELEMENTS.values(), ids=ELEMENTS)
MX = [name for name, row in FORMATS.items() if row.scale == "e8m0"]
every_format = pytest.mark.parametrize("format", MX)
every_rounding = pytest.mark.parametrize("scale_rule", oracle.ROUNDINGS)
in_torchao = pytest.mark.parametrize("format", TORCHAO)


def torchao_quantize(x, scale_rule, format):
    """Returns torchao's `(codes, scales)` of float64 values that float32 holds."""
    scales, codes = to_mx(
        torch.tensor(x, dtype=torch.float32),
        TORCHAO[format],
        oracle.BLOCK,
        ScaleCalculationMode(scale_rule),
    )
    return codes.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()


def blocks_below(amax):
    """Returns one block per `amax`, its other elements spread over [-amax, amax]."""
    spread = oracle.round_to(amax[:, None] * np.linspace(-1, 1, oracle.BLOCK), "bfloat16")
    spread[:, 0] = amax
    return spread


# Elements


@pytest.mark.parametrize("name", WITNESSES)
def test_every_code_decodes_as_in_ml_dtypes(name):
    codes = np.arange(1 << ELEMENTS[name].bits, dtype=np.uint8)
    witness = codes.view(WITNESSES[name]).astype(np.float64)
    assert_bitwise_equal(ELEMENTS[name].decode(codes), witness)


@pytest.mark.parametrize("name", WITNESSES)
def test_every_finite_bfloat16_encodes_as_in_ml_dtypes(name):
    """ml_dtypes leaves the range of eight bits for NaN or infinity, so the witness is clipped."""
    largest = float(ml_dtypes.finfo(WITNESSES[name]).max)
    witness = np.clip(FINITE, -largest, largest).astype(WITNESSES[name]).view(np.uint8)
    assert_bitwise_equal(ELEMENTS[name].encode(FINITE), witness)


def test_int8_counts_sixty_fourths_in_twos_complement():
    int8 = ELEMENTS["int8"]
    codes = np.arange(256, dtype=np.uint8)
    assert_bitwise_equal(int8.decode(codes), codes.view(np.int8) / 64.0)
    assert int8.decode(0x80) == -2.0
    near = FINITE[abs(FINITE) < 2**40]
    nearest = np.clip(np.rint(near * 64), -127, 127).astype(np.int8)
    assert_bitwise_equal(int8.encode(near), nearest.view(np.uint8))
    assert not (int8.encode(FINITE) == 0x80).any()


@every_element
def test_ties_round_to_the_even_code_and_neighbours_to_the_nearest(element):
    lower = np.arange(len(element.magnitudes) - 1)
    middles = (element.magnitudes[1:] + element.magnitudes[:-1]) / 2
    for sign, code_of in (1, np.arange(len(middles) + 1)), (-1, element.negatives):
        for toward, expected in (0, lower), (None, lower + lower % 2), (np.inf, lower + 1):
            values = middles if toward is None else np.nextafter(middles, toward)
            assert np.array_equal(element.encode(sign * values), code_of[expected])


@every_element
def test_every_finite_code_but_minus_two_survives_decode_and_encode(element):
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    back = element.encode(element.values[np.isfinite(element.values)])
    kept = np.isin(codes, element.special_codes, invert=True)
    expected = codes[kept]
    if element.name == "int8":
        expected = np.where(expected == 0x80, 0x81, expected)
    assert np.array_equal(back, expected)


@every_element
def test_what_is_beyond_the_largest_saturates(element):
    codes = element.encode([element.largest, 1e30, np.inf, -element.largest, -1e30, -np.inf])
    top = len(element.magnitudes) - 1
    assert codes.tolist() == [top] * 3 + [element.negatives[top]] * 3
    assert element.decode(codes).tolist() == [element.largest] * 3 + [-element.largest] * 3


@every_element
def test_zero_keeps_its_sign_where_the_element_has_one(element):
    zeros = element.decode(element.encode([0.0, -0.0]))
    assert np.signbit(zeros).tolist() == [False, element.name != "int8"]


@every_element
def test_nan_is_refused(element):
    with pytest.raises(ValueError, match="NaN"):
        element.encode([np.nan])


@pytest.mark.parametrize(
    "name, emax, largest, specials",
    [
        ("e2m1", 2, 6, 0),
        ("e2m3", 2, 7.5, 0),
        ("e3m2", 4, 28, 0),
        ("e4m3", 8, 448, 2),
        ("e5m2", 15, 57344, 8),
        ("int8", 0, 127 / 64, 0),
    ],
)
def test_the_table_of_elements_is_the_ocp_table(name, emax, largest, specials):
    element = ELEMENTS[name]
    assert (element.emax, element.largest) == (emax, largest)
    assert len(element.special_codes) == specials


@pytest.mark.parametrize("bits, size", [(4, 2), (6, 4), (8, 1)])
def test_packing_puts_the_first_element_in_the_lowest_bits(bits, size):
    number = np.random.default_rng(0).integers(0, 1 << bits, (50, size), np.uint8)
    whole = (number.astype(np.int64) << bits * np.arange(size)).sum(1)
    packed = oracle.pack(number, bits)
    assert packed.shape == (50, size * bits // 8)
    assert np.array_equal((packed.astype(np.int64) << 8 * np.arange(packed.shape[1])).sum(1), whole)
    assert_bitwise_equal(oracle.unpack(packed, bits), number)


def test_the_even_element_of_four_bits_is_the_low_nibble():
    assert oracle.pack(np.array([1, 2], np.uint8)).tolist() == [0x21]


# Scales


def test_every_scale_decodes_as_in_ml_dtypes():
    scales = np.arange(256, dtype=np.uint8)
    witness = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    assert_bitwise_equal(oracle.decode_e8m0(scales), witness)


def test_every_scale_but_nan_survives_decode_and_encode():
    scales = np.arange(255, dtype=np.uint8)
    exponents = np.log2(oracle.decode_e8m0(scales)).astype(int)
    assert_bitwise_equal(oracle.encode_e8m0(exponents), scales)


def test_exponents_beyond_the_scale_are_clamped():
    bytes_of_exponents = oracle.encode_e8m0([-400, -128, -127, 127, 128, 400])
    assert bytes_of_exponents.tolist() == [0, 0, 0, 254, 254, 254]


@every_rounding
@pytest.mark.parametrize(
    "name, tops",
    [
        ("e2m1", (8, 7, 4, 6)),
        ("e4m3", (512, 496, 256, 448)),
        ("e5m2", (65536, 61440, 32768, 57344)),
        ("int8", (2, 255 / 128, 1, 127 / 64)),
    ],
)
def test_a_rule_brings_every_amax_into_its_octave(name, tops, scale_rule):
    top = tops[oracle.ROUNDINGS.index(scale_rule)]
    scaled = np.ldexp(POSITIVE, -oracle.scale_exponent(POSITIVE, scale_rule, ELEMENTS[name]))
    assert top / 2 <= scaled.min() < scaled.max() <= top
    assert (scaled == top).any() == (scale_rule in ("ceil", "rceil"))


@every_element
def test_even_is_the_published_addition_to_the_bits_of_normal_numbers(element):
    bits = np.arange(0x0080, 0x7F80)
    carry = 1 << (6 - element.mantissa_bits)
    published = (bits + carry >> 7) - oracle.BIAS - element.emax
    amax = oracle.decode_bfloat16(bits)
    assert np.array_equal(oracle.scale_exponent(amax, "even", element), published)


@every_element
def test_floor_and_rceil_are_the_published_logarithms(element):
    """On numbers of few bits, whose logarithms float64 does not round across an integer."""
    floor, rceil = (oracle.scale_exponent(POSITIVE, r, element) for r in ("floor", "rceil"))
    assert np.array_equal(floor, np.floor(np.log2(POSITIVE)) - element.emax)
    assert np.array_equal(rceil, np.ceil(np.log2(POSITIVE / element.largest)))


# Tensors


@every_rounding
@in_torchao
def test_every_bfloat16_amax_quantizes_as_in_torchao(format, scale_rule):
    """Blocks whose scale is 2^-127 or NaN are the subject of the tests below."""
    x = blocks_below(FINITE)
    codes, scales = oracle.quantize(x, scale_rule, format)
    theirs, their_scales = torchao_quantize(x, scale_rule, format)
    assert_bitwise_equal(scales, their_scales)
    normal = scales[:, 0] > 0
    assert normal.sum() > 60_000
    assert_bitwise_equal(codes[normal], theirs[normal])


@in_torchao
@pytest.mark.parametrize(
    "scale_rule, divisor",
    [("floor", 2**-126), ("even", 2**-126), ("ceil", 2**-126), ("rceil", 1.0)],
)
def test_torchao_divides_by_a_larger_number_than_the_scale_it_writes_for_byte_0(
    format, scale_rule, divisor
):
    x = blocks_below(FINITE[np.abs(FINITE) < 2.0**-100])
    codes, scales = oracle.quantize(x, scale_rule, format)
    theirs, _ = torchao_quantize(x, scale_rule, format)
    smallest = scales[:, 0] == 0
    assert not smallest.all(), "no amax of this byte is left out"
    element = FORMATS[format].element
    divided = oracle.pack(element.encode(x[smallest] / divisor), element.bits)
    assert_bitwise_equal(theirs[smallest], divided)
    assert (theirs[smallest] != codes[smallest]).any()


@every_rounding
@in_torchao
def test_torchao_gives_infinity_a_finite_scale_where_the_text_has_nan(format, scale_rule):
    x = np.ones((2, oracle.BLOCK))
    x[:, 3] = np.inf, np.nan
    codes, scales = oracle.quantize(x, scale_rule, format)
    assert scales.ravel().tolist() == [255, 255]
    assert not codes.any()
    theirs, their_scales = torchao_quantize(x, scale_rule, format)
    of_infinity = 254 if scale_rule == "rceil" else 255 - FORMATS[format].element.emax
    assert their_scales.ravel().tolist() == [of_infinity, 255]
    assert theirs.any()


@in_torchao
def test_torchao_rceil_rounds_the_logarithm_of_the_float32_just_above_a_turn(format):
    turn = np.float32(FORMATS[format].element.largest * 2**10)
    x = np.nextafter(turn, np.float32(np.inf)) * np.ones((1, oracle.BLOCK))
    assert oracle.quantize(x, "rceil", format)[1] == oracle.ONE_SCALE + 11
    assert torchao_quantize(x, "rceil", format)[1] == oracle.ONE_SCALE + 10


@every_rounding
@every_format
def test_values_that_a_format_holds_survive_quantization(format, scale_rule):
    """Blocks that use the rule's whole octave, at every scale that float32 can hold."""
    element = FORMATS[format].element
    top, _ = oracle.octave_top(scale_rule, element)
    magnitudes = element.magnitudes[element.magnitudes <= top]
    values = np.concatenate([magnitudes, -magnitudes])
    blocks = np.resize(values, (-(-len(values) // 31), 31))
    blocks = np.concatenate([blocks, np.full((len(blocks), 1), magnitudes[-1])], 1)
    x = (blocks * oracle.decode_e8m0(np.arange(1, 240))[:, None, None]).reshape(-1, oracle.BLOCK)
    codes, scales = oracle.quantize(x, scale_rule, format)
    # INT8 has no minus zero: adding zero makes it plus zero.
    assert_bitwise_equal(oracle.dequantize(codes, scales, format) + 0.0, x + 0.0)


def test_int8_takes_a_subnormal_amax_by_its_value_not_by_its_bits():
    """The exponent field of a subnormal is not its exponent, and INT8's emax is 0."""
    amax = np.ldexp([1, 127, 128, 129], [-127, -133, -134, -134])
    x = np.zeros((4, oracle.BLOCK))
    x[:, 7] = amax
    for scale_rule in oracle.ROUNDINGS:
        codes, scales = oracle.quantize(x, scale_rule, "mxint8")
        expected = [0, 1, 0, 1] if scale_rule == "ceil" else [0, 0, 0, 0]
        assert scales.ravel().tolist() == expected
        assert codes[:2, 7].tolist() == [64, 64 if scale_rule == "ceil" else 127]


def test_a_block_of_rows_and_columns_takes_float32_scales():
    tile = oracle.Format("tile", ELEMENTS["e4m3"], "float32", block_rows=2, block_k=3)
    codes = np.full((5, 7), ELEMENTS["e4m3"].encode(1.0))
    scales = np.arange(9, dtype=np.float32).reshape(3, 3) + np.float32(0.1)
    rows, columns = np.indices(codes.shape)
    expected = scales[rows // 2, columns // 3].astype(np.float64)
    assert_bitwise_equal(oracle.dequantize(codes, scales, tile), expected)


def test_a_fused_operation_is_that_of_the_c_library(rng):
    """Random numbers, and sums that lie between two float32 but for a last bit far below."""
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    a, b, c = rng.standard_normal((3, 3000)).astype(np.float32)
    c *= np.exp2(rng.integers(-40, 40, c.shape)).astype(np.float32)
    half_a_unit = np.float32(2.0**-24)
    tiny = np.float32(2.0) ** rng.integers(-60, -40, 1000).astype(np.float32)
    signs = rng.choice(np.float32([-1, 1]), 1000)
    ties = 1 + half_a_unit * 2 * rng.integers(0, 4, 1000).astype(np.float32)
    # (1 + t)(h - ht) = h - ht**2: half a unit, and less.
    a = np.concatenate([a, 1 + np.float32(2.0**-23) * np.ones(1000, np.float32), signs])
    b = np.concatenate([b, half_a_unit * (1 - np.float32(2.0**-23)) * signs, tiny])
    c = np.concatenate([c, ties, ties])
    got = oracle.fused_multiply_add(a, b, c)
    expected = np.array([fmaf(*map(float, row)) for row in zip(a, b, c, strict=True)], np.float32)
    assert_bitwise_equal(got, expected)
    rounded_twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (rounded_twice != expected).any()


# Float scales


@pytest.mark.parametrize("format, largest", [("fp8", 448), ("fp8_e5m2", 57344)])
def test_scales_of_rows_are_their_largest_over_that_of_the_element(rng, format, largest):
    """Written anew in float32, as ml_dtypes rounds."""
    x = np.float32(rng.standard_normal((200, 160)) * 2.0 ** rng.uniform(-9, 9, (200, 160)))
    codes, scales = oracle.quantize(x, format=format)
    expected = abs(x).max(1, keepdims=True) / np.float32(largest)
    assert_bitwise_equal(scales, expected)
    witness = WITNESSES[FORMATS[format].element.name]
    assert_bitwise_equal(codes, (x / expected).astype(witness).view(np.uint8))


def test_float_scales_are_those_of_deepseeks_formula(rng):
    """Written anew in float32, a block at a time: amax / 448, x / scale, as ml_dtypes rounds."""
    x = np.float32(rng.standard_normal((200, 160)) * 2.0 ** rng.uniform(-9, 9, (200, 160)))
    codes, scales = oracle.quantize(x, format="fp8_block_2d")
    rows, rows_scales = oracle.quantize(x, format="fp8_block")
    for r, c in ((0, 0), (0, 128), (128, 0), (128, 128)):
        block = x[r : r + 128, c : c + 128]
        scale = abs(block).max() / np.float32(448)
        assert scales[r // 128, c // 128] == scale
        expected = (block / scale).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        assert_bitwise_equal(codes[r : r + 128, c : c + 128], expected)
        of_rows = abs(block).max(1) / np.float32(448)
        assert_bitwise_equal(rows_scales[r : r + 128, c // 128], of_rows)
        expected = (block / of_rows[:, None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        assert_bitwise_equal(rows[r : r + 128, c : c + 128], expected)
