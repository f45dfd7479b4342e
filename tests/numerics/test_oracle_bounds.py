"""What the oracle says of floats, sums, agreement and layouts, by arithmetic of its own."""

import ml_dtypes
import numpy as np
import pytest

import oracle
from oracle import FORMATS, assert_bitwise_equal

MX = [name for name, row in FORMATS.items() if row.scale == "e8m0"]
every_format = pytest.mark.parametrize("format", MX)


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


@pytest.mark.parametrize("right", MX)
@pytest.mark.parametrize("left", [*MX, "bf16"])
def test_float32_accumulation_in_any_order_stays_within_the_bound(left, right):
    """Forward, in a random order, and block by block with the right scale behind the sum."""
    rng, single = np.random.default_rng(0), np.float32

    def operand(format):
        x = rng.standard_normal((8, 256)) * 2.0 ** rng.integers(-9, 9, (8, 256))
        if format == "bf16":
            return oracle.round_to(x, "bfloat16"), None, None
        codes, scales = oracle.quantize(x, format=format)
        element = FORMATS[format].element
        elements = element.decode(oracle.unpack(codes, element.bits))
        return oracle.dequantize(codes, scales, format), elements, oracle.decode_e8m0(scales)

    (a, *_), (b, elements, scales) = operand(left), operand(right)
    products = (a[:, None] * b[None]).astype(single)
    assert np.array_equal(products, a[:, None] * b[None]), "products are exact in float32"
    for order in (np.arange(256), rng.permutation(256)):
        forward = np.zeros((8, 8), single)
        for k in order:
            forward += products[..., k]
        oracle.assert_matmul(forward, a, b)
        oracle.assert_matmul(oracle.round_to(forward, "bfloat16"), a, b, "bfloat16")

    by_block = np.zeros((8, 8), single)
    terms = (a[:, None] * elements[None]).astype(single).reshape(8, 8, -1, oracle.BLOCK)
    for block in range(terms.shape[2]):
        total = np.zeros((8, 8), single)
        for k in range(oracle.BLOCK):
            total += terms[:, :, block, k]
        by_block += total * scales[:, block].astype(single)
    oracle.assert_matmul(by_block, a, b)


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


@pytest.mark.parametrize("wrong", [np.nan, 1.0, -np.inf])
def test_a_product_with_one_infinity_must_be_that_infinity(wrong):
    a, b = np.ones((1, 32)), np.ones((1, 32))
    a[0, 4] = np.inf
    oracle.assert_matmul([[np.inf]], a, b)
    with pytest.raises(AssertionError, match="wrong"):
        oracle.assert_matmul([[wrong]], a, b)
    b[0, 4] = 0
    oracle.assert_matmul([[np.nan]], a, b)


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


@every_format
@pytest.mark.parametrize("name", oracle.LAYOUTS)
@pytest.mark.parametrize("rows, k", [(32, 256), (64, 768)])
def test_the_permutation_of_a_layout_is_its_closed_formula(name, rows, k, format):
    layout, kind = oracle.LAYOUTS[name], FORMATS[format]
    row_bytes, row_scales = kind.packed_bytes(k), k // kind.block_k
    codes, scales = (np.arange(rows * size).reshape(rows, -1) for size in (row_bytes, row_scales))
    stored_codes, stored_scales = layout.store(codes, scales)
    n, kb = np.indices(codes.shape)
    assert np.array_equal(stored_codes.ravel()[oracle.code_offset(name, n, kb, row_bytes)], codes)
    n, s = np.indices(scales.shape)
    offsets = oracle.scale_offset(name, n, s, row_scales)
    assert np.array_equal(stored_scales.ravel()[offsets], scales)


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
