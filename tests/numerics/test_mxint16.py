"""linear with activations="mxint16" against the float64 product of 16-bit integers and weights.

The oracle rounds activations by frexp and rint. The bound is that of float32 additions: a block
adds two sums, of high digits and of low ones, each exact until then. That the instruction levels
agree is in `cpu/test_levels.py`, on ARM64 in `cpu/test_emulated.py`.
"""

from functools import partial

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    INTEGER_FORMATS,
    LAYOUTS,
    blocks_under,
    every_dtype,
    every_layout,
    every_value,
    float32_corners,
    identity,
    in_layout,
    mx_tensor,
    random_operand,
    same_bits,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal, assert_matmul
from tests.tiers import tiered

pytestmark = pytest.mark.cpu_only
every_weight = pytest.mark.parametrize("format", INTEGER_FORMATS)
SHAPES = [
    *((m, n, 96) for m in (1, 7, 13, 50) for n in (1, 16, 33)),
    *((m, 33, k) for m in (2, 12, 37) for k in (32, 512, 544)),
    (4, 48, 2880),
    (300, 49, 96),
]
linear = partial(mx.linear, activations="mxint16")


def weights_of(rng, n, k, format, layout="plain"):
    """Returns random weights, and their values."""
    if format == "nvfp4":
        values = rng.standard_normal((n, k))
        codes, scales = oracle.quantize(oracle.round_to(values, "float32"), format=format)
    else:
        codes, scales = random_operand(rng, n, k, 97, 147, format=format)
    return mx_tensor(codes, scales, layout, format), oracle.dequantize(codes, scales, format)


def activations_of(rng, m, k, dtype):
    """Returns floats whose magnitudes within a block differ, and their values."""
    x = torch_of(rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, k)), dtype)
    return x, values_of(x)


def rounded_by_the_kernel(x):
    """Returns activations [M, 32] as they are multiplied: their product with the identity."""
    return values_of(linear(x, mx_tensor(*identity(BLOCK)), out_dtype="float32"))


@every_dtype
def test_a_block_becomes_the_integers_of_its_largest_magnitude(dtype):
    values = float32_corners("mxint8") if dtype == "float32" else every_value(dtype)
    blocks = np.concatenate([blocks_under(values, dtype), values.reshape(-1, 1).repeat(BLOCK, 1)])
    # A NaN or an infinity is on its own in a block, and all of it.
    expected = oracle.round_to(oracle.round_to_mxint16(blocks), "float32")
    got = rounded_by_the_kernel(torch_of(blocks, dtype))
    assert_bitwise_equal(got + 0.0, expected + 0.0)


@pytest.mark.parametrize("exponent", [-126, -100, -3, 0, 60, 113])
def test_every_integer_and_every_tie_between_two(exponent):
    halves = np.arange(-(2**15) + 1, 2**15) / 2
    blocks = np.full((len(halves) // (BLOCK - 1) + 1, BLOCK), 2.0**14 - 1)
    blocks[:, 1:] = np.resize(halves, blocks[:, 1:].shape)
    blocks = np.ldexp(blocks, exponent)
    x = torch_of(blocks, "float32")
    assert_bitwise_equal(values_of(x), blocks)
    expected = oracle.round_to_mxint16(blocks)
    assert_bitwise_equal(rounded_by_the_kernel(x) + 0.0, expected + 0.0)


@every_layout
@every_weight
@pytest.mark.parametrize("shape", tiered(SHAPES, first=SHAPES[::3]), ids=str)
def test_a_product_is_that_of_the_integers(rng, shape, format, layout):
    m, n, k = shape
    for dtype in ("float32", "bfloat16"):
        x, values = activations_of(rng, m, k, dtype)
        w, w_values = weights_of(rng, n, k, format, layout)
        got = linear(x, w, out_dtype="float32")
        left = oracle.round_to_mxint16(values)
        assert_matmul(values_of(got), left, w_values, scale_roundings=2 * (format == "nvfp4"))


@every_weight
def test_scales_beyond_float32_are_multiplied_in_float64(rng, format):
    x = torch_of(2.0 ** rng.integers(-149, 128, (24, 96)), "float32")
    x[3, 5], x[4, 40] = torch.inf, torch.nan
    if format == "nvfp4":
        w, w_values = weights_of(rng, 33, 96, format)
    else:
        operand = random_operand(rng, 33, 96, 0, 255, format=format)
        w, w_values = mx_tensor(*operand, "plain", format), oracle.dequantize(*operand, format)
    left = oracle.round_to_mxint16(values_of(x))
    got = linear(x, w, out_dtype="float32")
    with np.errstate(all="ignore"):
        assert_matmul(values_of(got), left, w_values, scale_roundings=2 * (format == "nvfp4"))


@every_weight
def test_the_error_beside_float_activations_is_a_hundredth_of_a_per_cent(rng, format):
    """Of bfloat16 it is 0.17 per cent, of MXINT8 0.9."""
    x = torch_of(rng.standard_normal((16, 2880)), "float32")
    w = mx.quantize(torch_of(rng.standard_normal((64, 2880)), "float32"), format=format)
    exact = values_of(x) @ values_of(mx.dequantize(w, dtype="float32")).T
    got = values_of(linear(x, w, out_dtype="float32"))
    assert 0 < np.linalg.norm(got - exact) < 1e-4 * np.linalg.norm(exact)


@every_weight
def test_rows_threads_and_layouts_change_no_bits(rng, format):
    x, _ = activations_of(rng, 130, 544, "bfloat16")
    w, _ = weights_of(rng, 80, 544, format)
    expected, threads = linear(x, w), torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for layout in LAYOUTS:
                same_bits(linear(x, in_layout(w, layout)), expected)
    finally:
        torch.set_num_threads(threads)
    for first, last in ((0, 1), (3, 9), (20, 57), (100, 130)):
        same_bits(linear(x[first:last], w), expected[first:last])


@every_weight
def test_experts_multiply_each_row_as_linear_does(rng, format):
    x, _ = activations_of(rng, 11, 96, "float32")
    floats = torch_of(rng.standard_normal((3, 64, 96)), "float32")
    w, sizes = mx.quantize(floats, format=format), [4, 0, 7]
    got = mx.grouped_linear(x, w, torch.tensor(sizes).int(), activations="mxint16")
    same_bits(got, torch.cat([linear(x[:4], w[0]), linear(x[4:], w[2])]))

    down = mx.quantize(torch_of(rng.standard_normal((3, 96, 32)), "float32"), format=format)
    ids, shares = torch.tensor([[2, 0]] * 11), torch.ones(11, 2)
    rules = {"hidden_act": "silu", "interleaved": False}
    got = mx.moe(x, w, down, ids, shares, activations="mxint16", **rules)
    expected = 0
    for expert in (2, 0):
        gate, up = linear(x, w[expert]).chunk(2, 1)
        expected = expected + linear(torch.nn.functional.silu(gate) * up, down[expert])
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4) and got.any()
    halves = mx.mlp(x, w[2], down[2], activations="mxint16", **rules)
    halves = halves + mx.mlp(x, w[0], down[0], activations="mxint16", **rules)
    assert torch.allclose(got, halves, rtol=1e-4, atol=1e-4)


def test_layers_keep_the_mode_and_compiled_graphs_have_the_bits(rng):
    layer = mx.convert(torch.nn.Sequential(torch.nn.Linear(96, 64)), activations="mxint16")
    x = torch_of(rng.standard_normal((5, 96)), "float32")
    assert layer[0].activations == "mxint16"
    expected = linear(x, layer[0].weight, bias=layer[0].bias)
    same_bits(layer(x), expected)
    same_bits(torch.compile(layer, backend="eager", fullgraph=True)(x), expected)
    found = mx.explain(5, 64, 96, activations="mxint16")
    assert found.kernel == "cpu/bytes/kernel.mojo" and "16-bit integers" in found.reason


OTHERS = [name for name in oracle.FORMATS if name not in INTEGER_FORMATS]


@pytest.mark.parametrize("format", OTHERS)
def test_weights_that_are_no_integers_are_refused_by_name(format):
    w = mx.quantize(torch.ones(2, 3, 64), format=format)
    sizes, ids = torch.tensor([1, 1]).int(), torch.zeros(2, 1).int()
    good = mx.quantize(torch.ones(2, 64, 64))
    calls = (
        lambda: linear(torch.ones(2, 64), w[0]),
        lambda: mx.MXLinear(w[0], activations="mxint16"),
        lambda: mx.grouped_linear(torch.ones(2, 64), w, sizes, activations="mxint16"),
        lambda: mx.moe(torch.ones(2, 64), mx.quantize(torch.ones(2, 128, 64), format=format), good,
                       ids, torch.ones(2, 1), activations="mxint16"),
        lambda: mx.explain(2, 3, 64, activations="mxint16", format=format),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match=f"got 'mxint16' by '{format}' on cpu") as raised:
            call()
        for known in INTEGER_FORMATS:
            assert f"'{known}'" in str(raised.value)


@pytest.mark.parametrize("gpu", ["cuda", "gfx950"])
def test_gpus_are_refused_by_name(gpu):
    with pytest.raises(ValueError, match=f"got 'mxint16' by 'mxfp4' on {gpu}, expected .* CPU"):
        mx.explain(2, 64, 64, device=gpu, activations="mxint16")


@pytest.mark.parametrize("scale_rule", ["floor", "ceil", "rceil"])
def test_a_scale_rule_is_refused(scale_rule):
    with pytest.raises(ValueError, match=f"got '{scale_rule}' with activations='mxint16'"):
        linear(torch.ones(2, 64), mx.quantize(torch.ones(3, 64)), scale_rule=scale_rule)
