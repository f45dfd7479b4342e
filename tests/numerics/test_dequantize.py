"""dequantize is exact: every code under every scale, rounded once to the output type."""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    DTYPES,
    LAYOUTS,
    NUMPY_DTYPES,
    bytes_of,
    mx_tensor,
    on_every_device,
    random_operand,
    values_of,
)
from oracle import assert_bitwise_equal

pytestmark = on_every_device


def every_code_under_every_scale():
    """Returns plain operands of 256 rows: row `s` holds all 16 codes twice, scale byte `s`."""
    row = oracle.pack(np.resize(np.arange(16, dtype=np.uint8), 32))
    return np.tile(row, (256, 1)), np.arange(256, dtype=np.uint8)[:, None]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_under_every_scale_is_rounded_once(dtype, layout):
    codes, scales = every_code_under_every_scale()
    got = mx.dequantize(mx_tensor(codes, scales, layout), dtype=dtype)
    assert got.dtype == getattr(torch, dtype)
    assert_bitwise_equal(values_of(got), oracle.round_to(oracle.dequantize(codes, scales), dtype))


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mode_that_flushes_subnormals_changes_nothing(flushing, dtype):
    codes, scales = every_code_under_every_scale()
    q, expected = mx_tensor(codes, scales), oracle.round_to(oracle.dequantize(codes, scales), dtype)
    torch.set_num_threads(1)
    with flushing():
        got = mx.dequantize(q, dtype=dtype)
    assert_bitwise_equal(values_of(got), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, k", [(1, 32), (15, 96), (16, 32), (33, 288), (64, 512), (700, 96)])
def test_every_block_finds_its_own_scale(rng, rows, k, dtype, layout):
    codes, scales = random_operand(rng, rows, k)
    got = mx.dequantize(mx_tensor(codes, scales, layout), dtype=dtype)
    assert_bitwise_equal(values_of(got), oracle.round_to(oracle.dequantize(codes, scales), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_type_may_be_named_or_given(rng, dtype):
    q = mx_tensor(*random_operand(rng, 3, 64))
    named = mx.dequantize(q, dtype=dtype)
    assert torch.equal(named, mx.dequantize(q, dtype=getattr(torch, dtype)))
    assert torch.equal(named, mx.dequantize(q, dtype=NUMPY_DTYPES[dtype]))
    assert torch.equal(named, q.dequantize(dtype))


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_operands_give_numpy_values(rng, dtype):
    codes, scales = random_operand(rng, 3, 64)
    got = mx.dequantize(mx.MXTensor(codes, scales), dtype=dtype)
    assert isinstance(got, np.ndarray)
    assert got.dtype == NUMPY_DTYPES[dtype]
    assert_bitwise_equal(values_of(got), oracle.dequantize(codes, scales))


@pytest.mark.parametrize("shape", [(64,), (2, 3, 96), (0, 32)])
def test_leading_dimensions_are_kept(rng, shape):
    x = rng.standard_normal(shape)
    got = mx.dequantize(mx.quantize(torch.tensor(x, dtype=torch.float32)), dtype="float32")
    assert tuple(got.shape) == shape
    expected = oracle.dequantize(*oracle.quantize(x.astype(np.float32)))
    assert_bitwise_equal(values_of(got), expected)


@pytest.mark.parametrize("rounding", oracle.ROUNDINGS)
def test_quantizing_what_was_dequantized_changes_nothing(rng, rounding):
    """Blocks keep their scale because each holds the top code of the rule's octave."""
    codes, scales = random_operand(rng, 50, 128, 1, 252)
    elements = oracle.unpack(codes)
    elements[:, ::32] = 6 if rounding == "ceil" else 7
    elements[(elements % 8 == 7) & (rounding == "ceil")] = 6
    codes = oracle.pack(elements)
    x = mx.dequantize(mx_tensor(codes, scales), dtype="float32")
    q = mx.quantize(x, rounding=rounding)
    assert_bitwise_equal(bytes_of(q.codes), codes)
    assert_bitwise_equal(bytes_of(q.scales), scales)


@pytest.mark.cpu_only
def test_every_number_of_threads_gives_the_same_bits(rng):
    codes, scales = random_operand(rng, 1031, 256)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        got = mx.dequantize(mx_tensor(codes, scales), dtype="float32")
        assert_bitwise_equal(values_of(got), oracle.dequantize(codes, scales))
