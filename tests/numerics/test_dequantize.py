"""dequantize is exact: every code under every scale, rounded once to the output type."""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    NUMPY_DTYPES,
    bytes_of,
    every_dtype,
    every_format,
    every_layout,
    finite_codes,
    mx_tensor,
    on_every_device,
    pack,
    random_operand,
    values_of,
)
from oracle import assert_bitwise_equal

pytestmark = on_every_device


def every_code_under_every_scale(format):
    """Returns plain operands of 256 rows: row `s` holds every code, scale bytes `s`."""
    bits = oracle.FORMATS[format].element.bits
    codes = np.resize(np.arange(1 << bits, dtype=np.uint8), max(1 << bits, BLOCK))
    scales = np.arange(256, dtype=np.uint8)[:, None]
    return np.tile(pack(codes, format), (256, 1)), scales.repeat(len(codes) // BLOCK, 1)


def expected_values(codes, scales, dtype, format):
    return oracle.round_to(oracle.dequantize(codes, scales, format), dtype)


@every_layout
@every_dtype
@every_format
def test_every_code_under_every_scale_is_rounded_once(format, dtype, layout):
    """Infinities and NaN of the elements, and -2 of INT8, included."""
    codes, scales = every_code_under_every_scale(format)
    got = mx.dequantize(mx_tensor(codes, scales, layout, format), dtype=dtype)
    assert got.dtype == getattr(torch, dtype)
    assert_bitwise_equal(values_of(got), expected_values(codes, scales, dtype, format))


@pytest.mark.cpu_only
@every_dtype
@every_format
def test_a_mode_that_flushes_subnormals_changes_nothing(flushing, format, dtype):
    codes, scales = every_code_under_every_scale(format)
    q = mx_tensor(codes, scales, format=format)
    expected = expected_values(codes, scales, dtype, format)
    torch.set_num_threads(1)
    with flushing():
        got = mx.dequantize(q, dtype=dtype)
    assert_bitwise_equal(values_of(got), expected)


@every_layout
@every_dtype
@every_format
@pytest.mark.parametrize("shape", [(1, 32), (15, 96), (16, 32), (33, 288), (64, 512), (700, 96)])
def test_every_block_finds_its_own_scale(rng, shape, format, dtype, layout):
    codes, scales = random_operand(rng, *shape, format=format)
    got = mx.dequantize(mx_tensor(codes, scales, layout, format), dtype=dtype)
    assert_bitwise_equal(values_of(got), expected_values(codes, scales, dtype, format))


@every_layout
@every_dtype
@every_format
def test_memory_that_is_given_gets_the_numbers_and_memory_around_it_nothing(
    rng, format, dtype, layout
):
    codes, scales = random_operand(rng, 33, 288, format=format)
    q, expected = (
        mx_tensor(codes, scales, layout, format),
        expected_values(codes, scales, dtype, format),
    )
    around = torch.full((35, 288), 7, dtype=getattr(torch, dtype))
    out = around[1:-1]
    assert mx.dequantize(q, out=out) is out and (around[::34] == 7).all()
    assert_bitwise_equal(values_of(out), expected)
    if q.is_cpu:
        array = np.full((33, 288), 7, NUMPY_DTYPES[dtype])
        assert q.dequantize(dtype, out=array) is array
        assert_bitwise_equal(array.astype(np.float64), expected)


@every_dtype
def test_the_type_may_be_named_or_given(rng, dtype):
    q = mx_tensor(*random_operand(rng, 3, 64))
    named = mx.dequantize(q, dtype=dtype)
    assert torch.equal(named, mx.dequantize(q, dtype=getattr(torch, dtype)))
    assert torch.equal(named, mx.dequantize(q, dtype=NUMPY_DTYPES[dtype]))
    assert torch.equal(named, q.dequantize(dtype))


@pytest.mark.cpu_only
@every_dtype
@every_format
def test_codes_in_numpy_have_the_same_values(rng, format, dtype):
    codes, scales = random_operand(rng, 3, 64, format=format)
    got = mx.dequantize(mx.MXTensor(codes, scales, format=format), dtype=dtype)
    assert got.dtype == getattr(torch, dtype)
    assert_bitwise_equal(values_of(got), expected_values(codes, scales, dtype, format))


@pytest.mark.parametrize("shape", [(64,), (2, 3, 96), (0, 32)])
@every_format
def test_leading_dimensions_are_kept(rng, format, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    got = mx.dequantize(mx.quantize(torch.tensor(x), format=format), dtype="float32")
    assert tuple(got.shape) == shape
    expected = oracle.dequantize(*oracle.quantize(x, format=format), format)
    assert_bitwise_equal(values_of(got), expected)


@pytest.mark.parametrize("scale_rule", oracle.ROUNDINGS)
@every_format
def test_quantizing_what_was_dequantized_changes_nothing(rng, format, scale_rule):
    """Blocks keep their scale because each holds the top code of the rule's octave."""
    element = oracle.FORMATS[format].element
    top, _ = oracle.octave_top(scale_rule, element)
    codes = finite_codes(format)
    codes = codes[abs(element.decode(codes)) <= min(top, element.largest)]
    elements = rng.choice(codes, (50, 128))
    elements[:, ::BLOCK] = codes[np.argmax(element.decode(codes))]
    scales = rng.integers(0, 255 - element.emax, (50, 128 // BLOCK)).astype(np.uint8)
    packed = pack(elements, format)
    x = mx.dequantize(mx_tensor(packed, scales, format=format), dtype="float32")
    q = mx.quantize(x, format=format, scale_rule=scale_rule)
    assert_bitwise_equal(bytes_of(q.scales), scales)
    assert_bitwise_equal(bytes_of(q.codes), packed)


@pytest.mark.cpu_only
@every_format
def test_every_number_of_threads_gives_the_same_bits(rng, format):
    codes, scales = random_operand(rng, 1031, 256, format=format)
    expected = oracle.dequantize(codes, scales, format)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        got = mx.dequantize(mx_tensor(codes, scales, format=format), dtype="float32")
        assert_bitwise_equal(values_of(got), expected)
