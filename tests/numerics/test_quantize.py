"""quantize is the oracle, bit for bit, over every input that can matter.

A block's outcome depends on its largest magnitude (the scale) and, given the
scale, on each element alone. So both sweeps are whole for 16-bit types: every
pattern as the largest, and every pattern under largest values that cover all
code paths. float32 is swept at the values where a rule turns.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    DTYPES,
    NUMPY_DTYPES,
    ROUNDINGS,
    blocks_of,
    blocks_under,
    bytes_of,
    every_value,
    float32_corners,
    on_every_device,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal

pytestmark = on_every_device

# The largest values of a block that lead to scale bytes 0 to 5, near 127, and to the last ones.
_LARGEST = [2.0**-133, 2.0**-130, *(6 * 2.0**e for e in range(-127, -120)), 1.0, 6 * 2.0**125]
LARGEST = {
    "bfloat16": _LARGEST,
    "float16": [2.0**-24, 6 * 2.0**-16, 1.0, 7.0, 65504.0],
    "float32": [2.0**-149, *_LARGEST],
}


def domain(dtype):
    return float32_corners() if dtype == "float32" else every_value(dtype)


def assert_quantizes(x, dtype, rounding):
    """Compares quantize with the oracle on float64 values that `dtype` holds."""
    q = mx.quantize(torch_of(x, dtype), rounding=rounding)
    codes, scales = oracle.quantize(x, rounding)
    assert_bitwise_equal(bytes_of(q.codes), codes)
    assert_bitwise_equal(bytes_of(q.scales), scales, zeros_are_the_claim=True)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_as_the_largest_of_its_block(dtype, rounding):
    assert_quantizes(blocks_under(domain(dtype), dtype), dtype, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_under_a_fixed_largest(dtype, rounding):
    finite = domain(dtype)[np.isfinite(domain(dtype))]
    for amax in LARGEST[dtype]:
        assert_quantizes(blocks_of(finite, amax), dtype, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_tie_goes_to_the_even_code_at_every_scale(dtype, rounding):
    top, codes_of_ties = 6.0, [0, 2, 2, 4, 4, 6, 6]
    if rounding == "ceil":  # its octave ends at 4
        top, codes_of_ties = 4.0, codes_of_ties[:6]
    magnitudes = oracle.E2M1_MAGNITUDES
    ties = ((magnitudes[1:] + magnitudes[:-1]) / 2)[: len(codes_of_ties)]
    row = np.zeros(BLOCK)
    row[:1], row[1 : 1 + len(ties)], row[-len(ties) :] = top, ties, -ties
    powers = oracle.decode_e8m0(np.arange(253))
    q = mx.quantize(torch_of(row * powers[:, None], dtype), rounding=rounding)
    assert_bitwise_equal(bytes_of(q.scales)[:, 0], np.arange(253, dtype=np.uint8))
    codes = oracle.unpack(bytes_of(q.codes))
    assert (codes[:, 1 : 1 + len(ties)] == codes_of_ties).all()
    assert (codes[:, -len(ties) :] == np.array(codes_of_ties) + oracle.SIGN).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_zeros_has_scale_0_and_keeps_its_signs(dtype, rounding):
    x = torch.zeros(3, 2 * BLOCK, dtype=getattr(torch, dtype))
    x[:, 1::2] = -0.0
    q = mx.quantize(x, rounding=rounding)
    assert not bytes_of(q.scales).any()
    assert (bytes_of(q.codes) == 0x80).all()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_or_infinity_anywhere_makes_its_block_nan_and_no_other(dtype, rounding, bad):
    x = np.tile(np.linspace(-4, 4, 3 * BLOCK), (BLOCK, 1))
    x = oracle.round_to(x, dtype)
    x[np.arange(BLOCK), BLOCK + np.arange(BLOCK)] = bad
    q = mx.quantize(torch_of(x, dtype), rounding=rounding)
    assert (bytes_of(q.scales) == oracle.NAN_SCALE).tolist() == [[False, True, False]] * BLOCK
    assert not oracle.unpack(bytes_of(q.codes))[:, BLOCK : 2 * BLOCK].any()
    assert_quantizes(x, dtype, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_block_may_hold_values_of_every_size(rng, dtype, rounding):
    exponents = rng.uniform(-24, 15, (999, 3 * BLOCK)) * (1 if dtype == "float16" else 8)
    x = oracle.round_to(rng.standard_normal(exponents.shape) * 2.0**exponents, dtype)
    assert_quantizes(x, dtype, rounding)


@pytest.mark.parametrize("shape", [(32,), (1, 32), (7, 96), (2, 3, 64), (2, 1, 5, 32), (513, 160)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_shape_keeps_its_leading_dimensions(rng, shape, dtype):
    x = oracle.round_to(rng.standard_normal(shape), dtype)
    q = mx.quantize(torch_of(x, dtype))
    assert tuple(q.shape) == shape
    assert tuple(q.codes.shape) == (*shape[:-1], shape[-1] // 2)
    assert tuple(q.scales.shape) == (*shape[:-1], shape[-1] // BLOCK)
    assert_quantizes(x, dtype, "even")


@pytest.mark.parametrize("shape", [(0, 32), (3, 0, 64)])
def test_no_rows_give_an_empty_tensor(shape):
    q = mx.quantize(torch.zeros(shape))
    assert tuple(q.shape) == shape
    assert q.codes.numel() == q.scales.numel() == 0


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays_give_the_bits_of_torch_tensors(rng, dtype):
    x = oracle.round_to(rng.standard_normal((5, 64)), dtype)
    q = mx.quantize(x.astype(NUMPY_DTYPES[dtype]))
    assert isinstance(q.codes, np.ndarray)
    assert isinstance(q.scales, np.ndarray)
    codes, scales = oracle.quantize(x)
    assert_bitwise_equal(q.codes, codes)
    assert_bitwise_equal(q.scales, scales)


VIEWS = {
    "a row stride": lambda x: x[:, 32:96],
    "every other row": lambda x: x[::2],
    "reversed by index": lambda x: x.flip(0)[1:],
    "transposed": lambda x: x.t().contiguous().t(),
    "every other element": lambda x: x[:, ::2],
    "one row for all": lambda x: x[:1].expand(6, -1),
    "a storage offset": lambda x: x.reshape(-1)[3 : 3 + 4 * 64].view(4, 64),
    "permuted leading dimensions": lambda x: x.view(2, 3, 128).transpose(0, 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_quantizes_like_its_copy(rng, view, dtype):
    x = torch_of(oracle.round_to(rng.standard_normal((6, 128)), dtype), dtype)
    viewed = view(x)
    codes, scales = oracle.quantize(values_of(viewed))
    q = mx.quantize(viewed)
    assert_bitwise_equal(bytes_of(q.scales), scales)
    assert_bitwise_equal(bytes_of(q.codes), codes)


@pytest.mark.cpu_only
@pytest.mark.parametrize("shift", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_at_any_address_quantizes_like_its_aligned_copy(rng, dtype, shift):
    x = oracle.round_to(rng.standard_normal((3, 64)), dtype)
    aligned = x.astype(NUMPY_DTYPES[dtype])
    room = np.zeros(aligned.nbytes + shift, np.uint8)
    room[shift:] = aligned.view(np.uint8).ravel()
    q = mx.quantize(np.frombuffer(room, aligned.dtype, offset=shift).reshape(aligned.shape))
    codes, scales = oracle.quantize(x)
    assert_bitwise_equal(q.scales, scales)
    assert_bitwise_equal(q.codes, codes)


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_threads_gives_the_same_bits(rng, dtype):
    x = torch_of(rng.standard_normal((1031, 256)), dtype)
    expected = oracle.quantize(values_of(x))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        q = mx.quantize(x)
        assert_bitwise_equal(bytes_of(q.codes), expected[0])
        assert_bitwise_equal(bytes_of(q.scales), expected[1])


@pytest.mark.cpu_only
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mode_that_flushes_subnormals_changes_nothing(flushing, dtype, rounding):
    tiny = domain(dtype)[abs(domain(dtype)) <= 2.0 ** (-14 if dtype == "float16" else -110)]
    blocks = blocks_under(tiny, dtype)
    x, (codes, scales) = torch_of(blocks, dtype), oracle.quantize(blocks, rounding)
    torch.set_num_threads(1)
    with flushing():
        q = mx.quantize(x, rounding=rounding)
    assert_bitwise_equal(bytes_of(q.codes), codes)
    assert_bitwise_equal(bytes_of(q.scales), scales, zeros_are_the_claim=True)


def test_the_input_is_left_as_it_was(rng):
    x = torch_of(rng.standard_normal((4, 64)), "float32")
    before = x.clone()
    mx.quantize(x)
    assert torch.equal(x, before)
