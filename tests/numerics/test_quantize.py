"""quantize is the oracle, bit for bit, in every format over every input that can matter.

A block's outcome depends on its largest magnitude (the scale) and, given the
scale, on each element alone. So both sweeps are whole for 16-bit types: every
pattern as the largest, and every pattern under largest values that cover all
code paths. float32 is swept at the values where a rule or an element turns.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    NUMPY_DTYPES,
    ROUNDINGS,
    VIEWS_OF_ANY_K,
    blocks_of,
    blocks_under,
    bytes_of,
    every_dtype,
    every_format,
    every_value,
    float32_corners,
    on_every_device,
    pack,
    torch_of,
    turns_under_every_scale,
    values_of,
)
from oracle import assert_bitwise_equal

pytestmark = on_every_device
every_rounding = pytest.mark.parametrize("scale_rule", ROUNDINGS)


def domain(dtype, format):
    return float32_corners(format) if dtype == "float32" else every_value(dtype)


def largest_values(dtype, format):
    """Returns the largest values of a block that lead to small scale bytes, to 127, to the last."""
    largest, kind = oracle.FORMATS[format].element.largest, oracle.FLOATS[dtype]
    if dtype == "float16":
        return [2.0**-24, 6 * 2.0**-16, 1.0, 7.0, 65504.0]
    # Kernels divide by the smallest scales in another way; E5M2 has the most of these, 19.
    smallest = largest * 2.0 ** (np.arange(24) - oracle.BIAS)
    last = largest * 2.0 ** (kind.max_exponent - oracle.FORMATS[format].element.emax)
    return [2 * kind.underflow, 2.0**-133, 2.0**-130, *smallest, 1.0, last]


def assert_quantizes(x, dtype, scale_rule, format):
    """Compares quantize with the oracle on float64 values that `dtype` holds."""
    q = mx.quantize(torch_of(x, dtype), format=format, scale_rule=scale_rule)
    codes, scales = oracle.quantize(x, scale_rule, format)
    assert q.format == format
    assert_bitwise_equal(bytes_of(q.scales), scales, zeros_are_the_claim=True)
    assert_bitwise_equal(bytes_of(q.codes), codes)


@every_rounding
@every_dtype
@every_format
def test_every_value_as_the_largest_of_its_block(format, dtype, scale_rule):
    assert_quantizes(blocks_under(domain(dtype, format), dtype), dtype, scale_rule, format)


@every_rounding
@every_dtype
@every_format
def test_every_value_under_a_fixed_largest(format, dtype, scale_rule):
    values = domain(dtype, format)
    finite = values[np.isfinite(values)]
    blocks = [blocks_of(finite, amax) for amax in largest_values(dtype, format)]
    assert_quantizes(np.concatenate(blocks), dtype, scale_rule, format)


@every_rounding
@every_dtype
@every_format
def test_every_turn_of_the_elements_at_every_scale(format, dtype, scale_rule):
    """Ties, which go to the even code, and the next numbers on both sides of each."""
    x, scales = turns_under_every_scale(format, dtype, scale_rule)
    q = mx.quantize(torch_of(x, dtype), format=format, scale_rule=scale_rule)
    assert (bytes_of(q.scales) == scales[:, None]).all()
    assert_quantizes(x, dtype, scale_rule, format)


@every_rounding
@every_dtype
@every_format
def test_a_block_of_zeros_has_scale_0_and_keeps_its_signs(format, dtype, scale_rule):
    """INT8 alone has no minus zero."""
    x = torch.zeros(3, 2 * BLOCK, dtype=getattr(torch, dtype))
    x[:, 1::2] = -0.0
    q = mx.quantize(x, format=format, scale_rule=scale_rule)
    assert not bytes_of(q.scales).any()
    element = oracle.FORMATS[format].element
    expected = pack(np.tile(element.encode([0.0, -0.0]), (3, BLOCK)), format)
    assert_bitwise_equal(bytes_of(q.codes), expected, zeros_are_the_claim=format == "mxint8")


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@every_rounding
@every_dtype
@every_format
def test_a_nan_or_infinity_anywhere_makes_its_block_nan_and_no_other(
    format, dtype, scale_rule, bad
):
    x = np.tile(np.linspace(-4, 4, 3 * BLOCK), (BLOCK, 1))
    x = oracle.round_to(x, dtype)
    x[np.arange(BLOCK), BLOCK + np.arange(BLOCK)] = bad
    q = mx.quantize(torch_of(x, dtype), format=format, scale_rule=scale_rule)
    assert (bytes_of(q.scales) == oracle.NAN_SCALE).tolist() == [[False, True, False]] * BLOCK
    codes = oracle.unpack(bytes_of(q.codes), oracle.FORMATS[format].element.bits)
    assert not codes[:, BLOCK : 2 * BLOCK].any()
    assert_quantizes(x, dtype, scale_rule, format)


@every_rounding
@every_dtype
@every_format
def test_one_block_may_hold_values_of_every_size(rng, format, dtype, scale_rule):
    exponents = rng.uniform(-24, 15, (999, 3 * BLOCK)) * (1 if dtype == "float16" else 8)
    x = oracle.round_to(rng.standard_normal(exponents.shape) * 2.0**exponents, dtype)
    assert_quantizes(x, dtype, scale_rule, format)


@pytest.mark.parametrize("shape", [(32,), (1, 32), (7, 96), (2, 3, 64), (2, 1, 5, 32), (513, 160)])
@every_dtype
@every_format
def test_every_shape_keeps_its_leading_dimensions(rng, format, shape, dtype):
    x = oracle.round_to(rng.standard_normal(shape), dtype)
    q = mx.quantize(torch_of(x, dtype), format=format)
    row_bytes = oracle.FORMATS[format].packed_bytes(shape[-1])
    assert tuple(q.shape) == shape
    assert tuple(q.codes.shape) == (*shape[:-1], row_bytes)
    assert tuple(q.scales.shape) == (*shape[:-1], shape[-1] // BLOCK)
    assert_quantizes(x, dtype, "even", format)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0, 64)])
@every_format
def test_no_rows_give_an_empty_tensor(format, shape):
    q = mx.quantize(torch.zeros(shape), format=format)
    assert tuple(q.shape) == shape
    assert q.codes.numel() == q.scales.numel() == 0


@pytest.mark.cpu_only
@every_dtype
@every_format
def test_numpy_arrays_give_the_bits_of_torch_tensors(rng, format, dtype):
    x = oracle.round_to(rng.standard_normal((5, 64)), dtype)
    q = mx.quantize(x.astype(NUMPY_DTYPES[dtype]), format=format)
    codes, scales = oracle.quantize(x, format=format)
    assert_bitwise_equal(q.codes.numpy(), codes)
    assert_bitwise_equal(q.scales.numpy(), scales)


def test_the_default_is_mxfp4_and_even(rng):
    x = torch_of(rng.standard_normal((5, 64)), "float32")
    q, named = mx.quantize(x), mx.quantize(x, format="mxfp4", scale_rule="even")
    assert q.format == "mxfp4"
    assert torch.equal(q.codes, named.codes) and torch.equal(q.scales, named.scales)


@pytest.mark.parametrize("view", VIEWS_OF_ANY_K.values(), ids=VIEWS_OF_ANY_K)
@every_dtype
@every_format
def test_a_view_quantizes_like_its_copy(rng, format, view, dtype):
    x = torch_of(oracle.round_to(rng.standard_normal((6, 128)), dtype), dtype)
    viewed = view(x)
    codes, scales = oracle.quantize(values_of(viewed), format=format)
    q = mx.quantize(viewed, format=format)
    assert_bitwise_equal(bytes_of(q.scales), scales)
    assert_bitwise_equal(bytes_of(q.codes), codes)


@pytest.mark.cpu_only
@pytest.mark.parametrize("shift", [1, 2, 3, 5])
@every_dtype
@every_format
def test_an_array_at_any_address_quantizes_like_its_aligned_copy(rng, format, dtype, shift):
    x = oracle.round_to(rng.standard_normal((3, 64)), dtype)
    aligned = x.astype(NUMPY_DTYPES[dtype])
    room = np.zeros(aligned.nbytes + shift, np.uint8)
    room[shift:] = aligned.view(np.uint8).ravel()
    shifted = np.frombuffer(room, aligned.dtype, offset=shift).reshape(aligned.shape)
    q = mx.quantize(shifted, format=format)
    codes, scales = oracle.quantize(x, format=format)
    assert_bitwise_equal(q.scales, scales)
    assert_bitwise_equal(q.codes, codes)


@pytest.mark.cpu_only
@every_dtype
@every_format
def test_every_number_of_threads_gives_the_same_bits(rng, format, dtype):
    x = torch_of(rng.standard_normal((1031, 256)), dtype)
    expected = oracle.quantize(values_of(x), format=format)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        q = mx.quantize(x, format=format)
        assert_bitwise_equal(bytes_of(q.codes), expected[0])
        assert_bitwise_equal(bytes_of(q.scales), expected[1])


@pytest.mark.cpu_only
@every_rounding
@every_dtype
@every_format
def test_a_mode_that_flushes_subnormals_changes_nothing(flushing, format, dtype, scale_rule):
    values = domain(dtype, format)
    tiny = values[abs(values) <= 2.0 ** (-14 if dtype == "float16" else -100)]
    blocks = blocks_under(tiny, dtype)
    x, (codes, scales) = torch_of(blocks, dtype), oracle.quantize(blocks, scale_rule, format)
    torch.set_num_threads(1)
    with flushing():
        q = mx.quantize(x, format=format, scale_rule=scale_rule)
    assert_bitwise_equal(bytes_of(q.codes), codes)
    assert_bitwise_equal(bytes_of(q.scales), scales, zeros_are_the_claim=True)


@every_format
def test_the_input_is_left_as_it_was(rng, format):
    x = torch_of(rng.standard_normal((4, 64)), "float32")
    before = x.clone()
    mx.quantize(x, format=format)
    assert torch.equal(x, before)
