"""linear: activations of every format and kept bfloat16 against what they are made of.

Quantizing inside the kernel gives the bits of `matmul(quantize(x), w)`, which is
compared with the oracle in `test_matmul.py`; `test_weight_only.py` has the claims
about activations that stay floats.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    DTYPES,
    LAYOUTS,
    NUMPY_DTYPES,
    ROUNDINGS,
    VIEWS,
    every_dtype,
    every_layout,
    every_pair,
    mx_tensor,
    on_every_device,
    random_operand,
    same_bits,
    shifted,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal, assert_matmul
from tests.tiers import tiered

pytestmark = on_every_device


def both(x, weights, left, scale_rule="even", bias=None):
    """Returns the fused product, and that of the activations quantized before."""
    fused = mx.linear(
        x, weights, bias=bias, activations=left, scale_rule=scale_rule, out_dtype="float32"
    )
    q = mx.quantize(x, format=left, scale_rule=scale_rule)
    return fused, mx.matmul(q, weights, bias=bias, out_dtype="float32")


@pytest.mark.parametrize("layout", tiered(LAYOUTS, first=["plain", "preshuffled_cpu"]))
@pytest.mark.parametrize("scale_rule", ROUNDINGS)
@every_pair
def test_linear_is_matmul_of_quantize(rng, pair, scale_rule, layout):
    left, right = pair
    for m, n, k in [(1, 1, 32), (1, 100, 96), (3, 33, 64), (17, 31, 288), (64, 80, 160)]:
        values = rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, k))
        weights = mx_tensor(*random_operand(rng, n, k, format=right), layout, right)
        for dtype in DTYPES:
            bias = torch_of(rng.standard_normal(n), dtype) if n % 2 else None
            same_bits(*both(torch_of(values, dtype), weights, left, scale_rule, bias))


@every_layout
@every_dtype
@every_pair
def test_linear_within_the_bound_of_the_oracles_own_quantization(rng, pair, dtype, layout):
    left, right = pair
    x = torch_of(rng.standard_normal((21, 224)), dtype)
    b = random_operand(rng, 47, 224, format=right)
    got = mx.linear(x, mx_tensor(*b, layout, right), activations=left)
    assert got.dtype == x.dtype
    a_values = oracle.dequantize(*oracle.quantize(values_of(x), format=left), left)
    assert_matmul(values_of(got), a_values, oracle.dequantize(*b, right), dtype)


@every_layout
@every_dtype
@every_pair
def test_linear_makes_rows_with_nan_or_infinity_nan_and_no_others(rng, pair, dtype, layout):
    x = rng.standard_normal((6, 96))
    x[1, 40], x[4, 95] = np.nan, np.inf
    weights = mx_tensor(*random_operand(rng, 33, 96, format=pair[1]), layout, pair[1])
    got = mx.linear(torch_of(x, dtype), weights, activations=pair[0], out_dtype="float32")
    assert np.isnan(values_of(got)).all(1).tolist() == [False, True, False, False, True, False]
    assert np.isfinite(values_of(got)[[0, 2, 3, 5]]).all()


@every_layout
@every_dtype
@every_pair
def test_linear_takes_the_corner_blocks_that_quantize_takes(rng, pair, dtype, layout):
    """Blocks of zeros, of the smallest subnormals and of the largest values, side by side."""
    kind = oracle.FLOATS[dtype]
    sizes = np.array([0.0, 2 * kind.underflow, 1.0, kind.largest])
    x = np.tile(sizes.repeat(BLOCK), (4, 1)) * rng.choice([-1, 1], (4, 4 * BLOCK))
    weights = mx_tensor(*random_operand(rng, 20, 4 * BLOCK, format=pair[1]), layout, pair[1])
    for scale_rule in ROUNDINGS:
        same_bits(*both(torch_of(x, dtype), weights, pair[0], scale_rule))


@every_layout
@every_pair
def test_linear_takes_weights_whose_codes_and_scales_are_not_finite(rng, pair, layout):
    left, right = pair
    element = oracle.FORMATS[right].element
    codes, scales = random_operand(rng, 35, 96, 0, 254, format=right)
    if len(element.special_codes):
        codes[np.arange(1, 33, 2), np.arange(16)] = np.resize(element.special_codes, 16)
    scales[34, 1] = oracle.NAN_SCALE
    x = torch_of(rng.standard_normal((9, 96)), "bfloat16")
    same_bits(*both(x, mx_tensor(codes, scales, layout, right), left))


@pytest.mark.cpu_only
@every_layout
@every_pair
def test_every_number_of_threads_gives_the_same_bits(rng, pair, layout):
    x = torch_of(rng.standard_normal((33, 512)), "bfloat16")
    weights = mx_tensor(*random_operand(rng, 400, 512, format=pair[1]), layout, pair[1])
    torch.set_num_threads(1)
    expected = mx.linear(x, weights, activations=pair[0], out_dtype="float32")
    for threads in (2, 3):
        torch.set_num_threads(threads)
        got = mx.linear(x, weights, activations=pair[0], out_dtype="float32")
        same_bits(got, expected)


@every_layout
@every_pair
@pytest.mark.parametrize("m, shape", [(0, (0,)), (6, (2, 3)), (0, (2, 0)), (1, ())])
def test_leading_dimensions_are_kept(rng, m, shape, pair, layout):
    x = torch_of(rng.standard_normal((*shape, 64)), "float32")
    weights = mx_tensor(*random_operand(rng, 33, 64, format=pair[1]), layout, pair[1])
    fused, product = both(x, weights, pair[0])
    assert tuple(product.shape) == tuple(fused.shape) == (*shape, 33)
    same_bits(fused, product)
    assert product.numel() == m * 33


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@every_dtype
@every_pair
def test_linear_takes_views_like_their_copies(rng, pair, dtype, view):
    x = view(torch_of(rng.standard_normal((6, 128)), dtype))
    weights = random_operand(rng, 33, 64, format=pair[1])
    weights = mx_tensor(*weights, "preshuffled_cpu", pair[1])
    copy = x.clone(memory_format=torch.contiguous_format)
    same_bits(*(mx.linear(values, weights, activations=pair[0]) for values in (x, copy)))


@pytest.mark.cpu_only
@pytest.mark.parametrize("shift", [1, 3])
@every_layout
@every_pair
def test_operands_at_any_address_multiply_like_aligned_ones(rng, pair, layout, shift):
    left, right = pair
    b = mx_tensor(*random_operand(rng, 33, 192, format=right), layout, right)
    parts = shifted(b.codes.numpy(), shift), shifted(b.scales.numpy(), shift)
    weights = mx.MXTensor(*parts, shape=tuple(b.shape), layout=layout, format=right)
    for dtype in DTYPES:
        x = rng.standard_normal((5, 192)).astype(NUMPY_DTYPES[dtype])
        expected = mx.linear(torch_of(values_of(x), dtype), b, activations=left)
        got = mx.linear(shifted(x, shift), weights, activations=left)
        assert_bitwise_equal(values_of(got), values_of(expected))


@pytest.mark.cpu_only
@every_pair
def test_numpy_operands_give_numpy_results(rng, pair):
    left, right = pair
    b = random_operand(rng, 33, 64, format=right)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    fused = mx.linear(x, mx.MXTensor(*b, format=right), activations=left)
    assert fused.dtype == np.float32
    expected = mx.linear(torch.from_numpy(x), mx_tensor(*b, format=right), activations=left)
    assert_bitwise_equal(fused, expected.numpy())
