"""The CDNA4 quantize kernel, compiled and run in the simulator, against the oracle bit for bit."""

import numpy as np
import pytest

import oracle
from cases import blocks_of, blocks_under, every_value, float32_corners
from tests.cdna4 import support as cdna4
from tests.cdna4.support import NUMPY_DTYPES
from tests.tiers import tiered

COLUMNS = 16 * oracle.BLOCK
RAGGED = [(m, k) for m in (1, 3, 15, 17, 33, 100) for k in (32, 96, 160, 544, 7200)]


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("quantize")


def assert_quantizes(kernel, values, dtype, scale_rule, **options):
    with np.errstate(invalid="ignore", over="ignore"):
        codes, scales = cdna4.quantize(kernel, values.astype(NUMPY_DTYPES[dtype]), **options)
    expected = oracle.quantize(values, scale_rule)
    # The launch poisons its outputs, so zeros were written.
    oracle.assert_bitwise_equal(codes, expected[0], zeros_are_the_claim=True)
    oracle.assert_bitwise_equal(scales.ravel(), expected[1].ravel(), zeros_are_the_claim=True)


def rows_of(blocks):
    """Returns `[n, 32]` blocks as rows of 16; the last row is filled up with the first blocks."""
    return np.resize(blocks, (cdna4.ceildiv(blocks.size, COLUMNS), COLUMNS))


def normal_values(rng, shape, dtype):
    spread = np.exp2(rng.integers(-8, 8, (shape[0], shape[1] // oracle.BLOCK)))
    values = rng.standard_normal(shape) * np.repeat(spread, oracle.BLOCK, 1)
    return oracle.round_to(values, dtype)


@pytest.mark.parametrize("scale_rule", oracle.ROUNDINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_16_bit_float_can_be_the_largest_of_a_block(kernels, dtype, scale_rule):
    values = rows_of(blocks_under(every_value(dtype), dtype))
    assert_quantizes(kernels[f"{dtype}_{scale_rule}"], values, dtype, scale_rule, check=False)


@pytest.mark.parametrize("scale_rule", oracle.ROUNDINGS)
def test_every_float32_at_a_turn_can_be_the_largest_of_a_block(kernels, scale_rule):
    values = rows_of(blocks_under(float32_corners(), "float32"))
    kernel = kernels[f"float32_{scale_rule}"]
    assert_quantizes(kernel, values, "float32", scale_rule, check=False)


# The fast path ends at 2**-121 and 2**121 (bfloat16), 2**-9 (float16): both sides, and the middle.
AMAX_EXPONENTS = {
    "bfloat16": (-133, -127, -126, -125, -124, -122, -121, -120, 0, 119, 120, 121, 127),
    "float16": (-24, -15, -14, -13, -10, -9, -8, 0, 15),
    "float32": (-149, -127, -126, -125, -122, -121, -120, 0, 119, 120, 121, 127),
}


@pytest.mark.parametrize(
    "dtype, exponent", [(d, e) for d, exponents in AMAX_EXPONENTS.items() for e in exponents]
)
def test_every_element_is_encoded_under_a_scale(kernels, dtype, exponent):
    elements = float32_corners() if dtype == "float32" else every_value(dtype)
    elements = elements[np.isfinite(elements)]
    values = rows_of(blocks_of(elements, 2.0**exponent))
    assert_quantizes(kernels[f"{dtype}_even"], values, dtype, "even", check=False)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_block_with_nan_or_infinity_is_nan_wherever_it_stands(kernels, dtype, bad):
    blocks = np.ones((32, 32)) * np.linspace(-1, 1, 32)
    blocks = oracle.round_to(blocks, dtype)
    blocks[np.arange(32), np.arange(32)] = bad
    values = np.concatenate([rows_of(blocks), rows_of(oracle.round_to(np.eye(32), dtype))])
    assert_quantizes(kernels[f"{dtype}_even"], values, dtype, "even")


def test_zeros_keep_their_signs_under_the_smallest_scale(kernels):
    values = rows_of(np.where(np.arange(1024).reshape(32, 32) % 3, 0.0, -0.0))
    assert_quantizes(kernels["bfloat16_even"], values, "bfloat16", "even")


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("dtype", tiered(NUMPY_DTYPES, first=["bfloat16"]))
def test_any_number_of_rows_and_blocks_without_hazards(kernels, rng, dtype, late):
    for shape in RAGGED:
        values = normal_values(rng, shape, dtype)
        assert_quantizes(kernels[f"{dtype}_even"], values, dtype, "even", late=late)
