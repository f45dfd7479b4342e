"""The oracle against witnesses that nobody here wrote: ml_dtypes and torchao.

Both are compared over whole domains. Where torchao departs from the OCP text
the departure is named by a test of its own, so that agreement elsewhere is
not bought by leaving values out.
"""

import logging

import ml_dtypes
import numpy as np
import pytest
import torch

import oracle
from oracle import assert_bitwise_equal

logging.getLogger("torchao").setLevel(logging.ERROR)

from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402

E2M1 = ml_dtypes.float4_e2m1fn
EVERY_BFLOAT16 = oracle.decode_bfloat16(np.arange(1 << 16))
FINITE = EVERY_BFLOAT16[np.isfinite(EVERY_BFLOAT16)]
POSITIVE = FINITE[FINITE > 0]


def torchao_quantize(x, rounding):
    """Returns torchao's `(codes, scales)` of float64 values that float32 holds."""
    scales, codes = to_mx(
        torch.tensor(x, dtype=torch.float32),
        torch.float4_e2m1fn_x2,
        oracle.BLOCK,
        ScaleCalculationMode(rounding),
    )
    return codes.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()


def blocks_below(amax):
    """Returns one block per `amax`, its other elements spread over [-amax, amax]."""
    spread = oracle.round_to(amax[:, None] * np.linspace(-1, 1, oracle.BLOCK), "bfloat16")
    spread[:, 0] = amax
    return spread


# Elements


def test_every_code_decodes_as_in_ml_dtypes():
    codes = np.arange(16, dtype=np.uint8)
    assert_bitwise_equal(oracle.decode_e2m1(codes), codes.view(E2M1).astype(np.float64))


def test_every_finite_bfloat16_encodes_as_in_ml_dtypes():
    assert_bitwise_equal(oracle.encode_e2m1(FINITE), FINITE.astype(E2M1).view(np.uint8))


@pytest.mark.parametrize("lower", range(7))
@pytest.mark.parametrize("sign", [1, -1])
def test_ties_round_to_the_even_code_and_neighbours_to_the_nearest(lower, sign):
    middle = oracle.E2M1_MAGNITUDES[lower : lower + 2].mean()
    below, above = np.nextafter(np.float32(middle), np.float32([0, 8])).astype(np.float64)
    even = lower + lower % 2
    codes = oracle.encode_e2m1(sign * np.array([below, middle, above]))
    assert codes.tolist() == [code + 8 * (sign < 0) for code in (lower, even, lower + 1)]


def test_nan_is_refused_because_e2m1_has_none():
    with pytest.raises(ValueError, match="NaN"):
        oracle.encode_e2m1([np.nan])


def test_packing_puts_the_even_element_in_the_low_nibble():
    assert oracle.pack(np.array([1, 2], np.uint8)).tolist() == [0x21]
    every_byte = np.arange(256, dtype=np.uint8)
    assert_bitwise_equal(oracle.pack(oracle.unpack(every_byte)), every_byte)


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
    assert oracle.encode_e8m0([-400, -128, -127, 127, 128, 400]).tolist() == [
        0,
        0,
        0,
        254,
        254,
        254,
    ]


@pytest.mark.parametrize(
    "rounding, largest", [("floor", 8.0), ("even", 7.0), ("ceil", 4.0), ("rceil", 6.0)]
)
def test_a_rule_brings_every_amax_into_its_octave(rounding, largest):
    scaled = np.ldexp(POSITIVE, -oracle.scale_exponent(POSITIVE, rounding))
    assert largest / 2 <= scaled.min() < scaled.max() <= largest
    assert (scaled == largest).any() == (rounding in ("ceil", "rceil"))


def test_even_is_the_published_addition_to_the_bits():
    bits = np.arange(0x0080, 0x7F80)
    published = np.maximum((bits + 0x20 >> 7) - oracle.BIAS - 2, -oracle.BIAS)
    ours = oracle.scale_exponent(oracle.decode_bfloat16(bits), "even")
    assert np.array_equal(np.maximum(ours, -oracle.BIAS), published)


# Tensors


@pytest.mark.parametrize("rounding", oracle.ROUNDINGS)
def test_every_bfloat16_amax_quantizes_as_in_torchao(rounding):
    """Blocks whose scale is 2^-127 or NaN are the subject of the tests below."""
    x = blocks_below(FINITE)
    codes, scales = oracle.quantize(x, rounding)
    theirs, their_scales = torchao_quantize(x, rounding)
    assert_bitwise_equal(scales, their_scales)
    normal = scales[:, 0] > 0
    assert normal.sum() > 64_000
    assert_bitwise_equal(codes[normal], theirs[normal])


@pytest.mark.parametrize(
    "rounding, divisor", [("floor", 2**-126), ("even", 2**-126), ("ceil", 2**-126), ("rceil", 1.0)]
)
def test_torchao_divides_by_a_larger_number_than_the_scale_it_writes_for_byte_0(rounding, divisor):
    x = blocks_below(FINITE)
    codes, scales = oracle.quantize(x, rounding)
    theirs, _ = torchao_quantize(x, rounding)
    smallest = scales[:, 0] == 0
    assert_bitwise_equal(theirs[smallest], oracle.pack(oracle.encode_e2m1(x[smallest] / divisor)))
    assert (theirs[smallest] != codes[smallest]).any()


@pytest.mark.parametrize("rounding", oracle.ROUNDINGS)
def test_torchao_gives_infinity_a_finite_scale_where_the_text_has_nan(rounding):
    x = np.ones((2, oracle.BLOCK))
    x[:, 3] = np.inf, np.nan
    codes, scales = oracle.quantize(x, rounding)
    assert scales.ravel().tolist() == [255, 255]
    assert not codes.any()
    theirs, their_scales = torchao_quantize(x, rounding)
    assert their_scales.ravel().tolist() == [254 if rounding == "rceil" else 253, 255]
    assert theirs.any()


def test_torchao_rceil_rounds_the_logarithm_of_the_float32_just_above_six_powers_of_two():
    x = np.nextafter(np.float32(6 * 2**10), np.float32(np.inf)) * np.ones((1, oracle.BLOCK))
    assert oracle.quantize(x, "rceil")[1] == oracle.ONE_SCALE + 11
    assert torchao_quantize(x, "rceil")[1] == oracle.ONE_SCALE + 10


@pytest.mark.parametrize("rounding", oracle.ROUNDINGS)
def test_values_that_mxfp4_holds_survive_quantization(rounding):
    """A block that uses the rule's whole octave, at every scale that float32 can hold."""
    magnitudes = oracle.E2M1_MAGNITUDES[: 7 if rounding == "ceil" else 8]
    block = np.resize(magnitudes, oracle.BLOCK)
    block[1::2] *= -1
    x = block * oracle.decode_e8m0(np.arange(1, 253))[:, None]
    codes, scales = oracle.quantize(x, rounding)
    assert_bitwise_equal(oracle.dequantize(codes, scales), x)


# Rounding, bounds and assertions


@pytest.mark.parametrize("dtype", oracle.FLOATS)
def test_rounding_to_a_float_type_is_numpys(dtype):
    numpy_type = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(50_000) * 2.0 ** rng.integers(-160, 125, 50_000)
    values = values.astype(np.float32).astype(np.float64)
    values = np.append(values, [0.0, -0.0, np.inf, -np.inf, np.nan, 65519.0, 65520.0])
    with np.errstate(over="ignore"):
        witness = values.astype(np.float32).astype(numpy_type).astype(np.float64)
    assert_bitwise_equal(oracle.round_to(values, dtype), witness)


@pytest.mark.parametrize("seed", range(3))
def test_float32_accumulation_in_any_order_stays_within_the_bound(seed):
    rng = np.random.default_rng(seed)
    a, b = (oracle.dequantize(*oracle.quantize(rng.standard_normal((8, 256)))) for _ in "ab")
    products = (a[:, None] * b[None]).astype(np.float32)
    forward = np.zeros(products.shape[:2], np.float32)
    for k in rng.permutation(256):
        forward += products[..., k]
    oracle.assert_matmul(forward, a, b)
    oracle.assert_matmul(oracle.round_to(forward, "bfloat16"), a, b, "bfloat16")


def test_a_product_beyond_the_bound_is_reported_with_its_coordinates():
    a, b = np.ones((2, 32)), np.ones((3, 32))
    wrong = a @ b.T
    wrong[1, 2] += 1e-3
    with pytest.raises(AssertionError, match=r"1 of 6 are wrong\n  \(1, 2\): got .*32\.001"):
        oracle.assert_matmul(wrong, a, b)


@pytest.mark.parametrize("wrong", [np.nan, 0.0, -np.inf])
def test_a_sum_of_one_sign_that_overflows_must_be_infinite(wrong):
    a = np.full((1, 32), 2.0**100)
    oracle.assert_matmul([[np.inf]], a, a)
    with pytest.raises(AssertionError, match="wrong"):
        oracle.assert_matmul([[wrong]], a, a)


def test_a_product_with_nan_must_be_nan():
    a = np.full((1, 32), np.nan)
    oracle.assert_matmul([[np.nan]], a, np.ones((1, 32)))
    with pytest.raises(AssertionError, match="wrong"):
        oracle.assert_matmul([[0.0]], a, np.ones((1, 32)))


def test_zeros_against_zeros_fail():
    zeros = np.zeros((2, 32))
    with pytest.raises(AssertionError, match="zeros"):
        assert_bitwise_equal(zeros, zeros)
    with pytest.raises(AssertionError, match="zeros"):
        oracle.assert_matmul(np.zeros((2, 2)), zeros, zeros)
    assert_bitwise_equal(zeros, zeros, zeros_are_the_claim=True)


def test_a_wrong_byte_is_reported_with_its_coordinates_and_both_patterns():
    expected = np.arange(6, dtype=np.uint8).reshape(2, 3)
    got = expected.copy()
    got[1, 0] = 0xFF
    with pytest.raises(AssertionError, match=r"\(1, 0\): got 0xff \(255\), expected 0x03 \(3\)"):
        assert_bitwise_equal(got, expected)


def test_minus_zero_is_not_zero_and_any_nan_is_any_nan():
    nans = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert_bitwise_equal(nans, nans[::-1])
    with pytest.raises(AssertionError, match="0x8000"):
        assert_bitwise_equal(np.float32([-0.0, 1]), np.float32([0.0, 1]))


# Layouts


@pytest.mark.parametrize("name", oracle.LAYOUTS)
@pytest.mark.parametrize("rows, k", [(32, 256), (64, 768)])
def test_the_permutation_of_a_layout_is_its_closed_formula(name, rows, k):
    layout = oracle.LAYOUTS[name]
    codes, scales = (np.arange(rows * k // size).reshape(rows, -1) for size in (2, oracle.BLOCK))
    stored_codes, stored_scales = layout.store(codes, scales)
    n, kb = np.indices(codes.shape)
    assert np.array_equal(stored_codes.ravel()[oracle.code_offset(name, n, kb, k // 2)], codes)
    n, s = np.indices(scales.shape)
    row_scales = k // oracle.BLOCK
    assert np.array_equal(
        stored_scales.ravel()[oracle.scale_offset(name, n, s, row_scales)], scales
    )


@pytest.mark.parametrize("name", oracle.LAYOUTS)
def test_padding_holds_code_0_and_a_scale_of_one(name):
    layout = oracle.LAYOUTS[name]
    codes, scales = layout.store(np.full((33, 48), 0x77, np.uint8), np.full((33, 3), 9, np.uint8))
    assert codes.shape[0] % layout.row_multiple == 0
    assert scales.shape[0] % layout.scale_row_multiple == 0
    assert scales.shape[1] % layout.scale_k_multiple == 0
    assert (codes == 0x77).sum() == 33 * 48
    assert (codes == 0).sum() == codes.size - 33 * 48
    assert (scales == 9).sum() == 33 * 3
    assert (scales == oracle.ONE_SCALE).sum() == scales.size - 33 * 3
