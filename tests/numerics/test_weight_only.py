"""linear with activations="bf16" against the float64 product of bfloat16 and dequantized weights.

Activations of any type are rounded to bfloat16, so the oracle rounds them too; the bound is
that of as many float32 additions as K has elements. Bits are compared where the claim is that
something changes none: rows, threads, layouts, strides, addresses. That the instruction levels
agree is in `cpu/test_levels.py`, that a MAX graph does in `max_graph/test_ops.py`.
"""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    ACTIVATIONS,
    BLOCK,
    DTYPES,
    FORMATS,
    LAYOUTS,
    NUMPY_DTYPES,
    ROUNDINGS,
    VIEWS,
    code_of,
    every_code_a_row,
    every_dtype,
    every_format,
    every_layout,
    every_value,
    identity,
    mx_tensor,
    pack,
    quarters,
    random_operand,
    representable,
    same_bits,
    shifted,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal, assert_matmul
from tests.tiers import tiered

RAGGED = [1, 15, 16, 17, 33, 100]
SHAPES = [
    *((m, n, 96) for m in (1, 7, 8, 9, 50) for n in RAGGED),
    *((m, 33, k) for m in range(1, 18) for k in (32, 64, 224, 288)),
    *((m, n, 512) for m in (1, 16, 128) for n in (1, 64, 272)),
    (4, 288, 2880),
    (3, 49, 7168),
    (13, 33, 1056),
    (300, 49, 96),
    (513, 17, 64),
]


def linear(x, w, **arguments):
    return mx.linear(x, w, activations="bf16", **arguments)


def random_problem(rng, shape, dtype="bfloat16", *, format="mxfp4"):
    """Returns activations, plain weights, and the float64 values of both as they are multiplied."""
    m, n, k = shape
    x = torch_of(rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, k)), dtype)
    weights = random_operand(rng, n, k, format=format)
    rounded = oracle.round_to(values_of(x), "bfloat16")
    return x, weights, rounded, oracle.dequantize(*weights, format)


# Exact claims


@every_layout
@every_format
@pytest.mark.parametrize("m", [3, 8, 40])
def test_activations_times_the_identity_are_those_activations(rng, m, format, layout):
    x = torch_of(rng.standard_normal((m, 96)) * 2.0 ** rng.integers(-100, 100, (m, 96)), "bfloat16")
    got = linear(x, mx_tensor(*identity(96, format), layout, format), out_dtype="float32")
    assert_bitwise_equal(values_of(got) + 0.0, values_of(x) + 0.0)


@every_layout
@every_format
@pytest.mark.parametrize("n, k", [(1, 32), (16, 64), (33, 96), (48, 512)])
def test_the_identity_times_weights_is_those_weights(rng, n, k, format, layout):
    weights = representable(rng, n, k, format)
    x = torch.eye(k).bfloat16()
    for rows in (slice(None), slice(k // 2, k // 2 + 3)):
        got = linear(x[rows], mx_tensor(*weights, layout, format), out_dtype="float32")
        expected = oracle.dequantize(*weights, format).T[rows]
        assert_bitwise_equal(values_of(got) + 0.0, expected + 0.0)


@cache
def bfloat16s_under_scales():
    """Returns every bfloat16 times every scale, as float32."""
    scales = oracle.decode_e8m0(np.arange(256, dtype=np.uint8))
    with np.errstate(invalid="ignore"):
        exact = every_value("bfloat16")[:, None] * scales
    return oracle.round_to(exact, "float32").astype(np.float32)


@pytest.mark.parametrize("layout", tiered(LAYOUTS, first=["plain"]))
@every_format
def test_every_bfloat16_times_every_scale_is_exact(format, layout):
    """One product of 1 under every scale: subnormals, infinities and NaN included."""
    values = every_value("bfloat16")
    x = np.zeros((len(values), BLOCK))
    x[:, 5] = values
    one = np.zeros((256, BLOCK))
    one[:, 5] = 1
    scales = np.arange(256, dtype=np.uint8)[:, None]
    weights = mx_tensor(pack(code_of(one, format), format), scales, layout, format)
    got = linear(torch_of(x, "bfloat16"), weights, out_dtype="float32").numpy()
    assert_bitwise_equal(got + np.float32(0), bfloat16s_under_scales() + np.float32(0))


@every_layout
@every_format
@pytest.mark.parametrize("m", [2, 20])
def test_every_code_is_multiplied_as_its_value(rng, m, format, layout):
    """Infinities and NaN among the codes give what IEEE says."""
    x = rng.integers(-8, 9, (m, BLOCK))
    weights = mx_tensor(*every_code_a_row(format), layout, format)
    got = linear(torch_of(x, "bfloat16"), weights, out_dtype="float32")
    element = oracle.FORMATS[format].element
    expected = oracle.matmul_reference(x, element.values[:, None].repeat(BLOCK, 1))
    assert_bitwise_equal(values_of(got) + 0.0, expected + 0.0)


@every_dtype
@every_format
def test_activations_are_rounded_to_bfloat16_to_nearest_even(rng, format, dtype):
    """Every 16-bit value, and for float32 the ties between neighbouring bfloat16."""
    values = every_value(dtype if dtype != "float32" else "bfloat16")
    if dtype == "float32":
        bits = np.arange(0x3F70, 0x4010, dtype=np.uint32)[:, None] << 16
        near = bits | np.array([0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
        values = np.concatenate([values, near.view(np.float32).astype(np.float64).ravel()])
    x = torch_of(np.resize(values[np.isfinite(values)], (700, 96)), dtype)
    weights = mx_tensor(*identity(96, format), "preshuffled_cpu", format)
    got = linear(x, weights, out_dtype="float32")
    rounded = oracle.round_to(values_of(x), "bfloat16")
    finite = np.isfinite(rounded).all(1)
    assert_bitwise_equal(values_of(got)[finite] + 0.0, rounded[finite] + 0.0)
    same_bits(got, linear(x.bfloat16(), weights, out_dtype="float32"))


@every_layout
@every_format
def test_a_sum_that_float32_holds_is_rounded_once(rng, format, layout):
    """Small whole activations, multiples of 1/4: every sum is exact, and often a tie."""
    weights = quarters(rng, 70, 512, format)
    for m in (5, 40):
        x = torch_of(rng.integers(-16, 17, (m, 512)), "bfloat16")
        exact = oracle.matmul_reference(values_of(x), oracle.dequantize(*weights, format))
        for dtype in DTYPES:
            got = linear(x, mx_tensor(*weights, layout, format), out_dtype=dtype)
            assert_bitwise_equal(values_of(got) + 0.0, oracle.round_to(exact, dtype) + 0.0)


@every_layout
@every_format
def test_zeros_under_the_largest_scales_add_nothing(format, layout):
    one = np.zeros((1, 2 * BLOCK))
    one[:, BLOCK] = 1
    codes = pack(code_of(one, format), format)
    scales = np.array([[254, oracle.ONE_SCALE]], np.uint8)
    x = torch.full((1, 2 * BLOCK), 3e38).bfloat16()
    x[:, BLOCK:] = 1
    assert linear(x, mx_tensor(codes, scales, layout, format), out_dtype="float32").item() == 1.0


# Bounded claims


@every_layout
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_within_the_bound(rng, shape, layout):
    x, weights, *values = random_problem(rng, shape)
    got = linear(x, mx_tensor(*weights, layout), out_dtype="float32")
    assert tuple(got.shape) == shape[:2]
    assert_matmul(values_of(got), *values)


@every_format
def test_every_format_within_the_bound(rng, format):
    for shape in [*SHAPES[::6], *SHAPES[-5:]]:
        x, weights, *values = random_problem(rng, shape, format=format)
        expected = oracle.Product(*values)
        for layout in LAYOUTS:
            got = linear(x, mx_tensor(*weights, layout, format), out_dtype="float32")
            expected.check(values_of(got), layout)


@every_layout
@every_dtype
@every_format
def test_every_type_within_the_bound(rng, format, dtype, layout):
    for m in (7, 18):
        x, weights, *values = random_problem(rng, (m, 50, 160), dtype, format=format)
        w = mx_tensor(*weights, layout, format)
        for out_dtype in (None, *DTYPES):
            for bias_dtype in (None, *DTYPES):
                bias = None
                if bias_dtype is not None:
                    bias = torch_of(30 * rng.standard_normal(50), bias_dtype)
                got = linear(x, w, bias=bias, out_dtype=out_dtype)
                assert got.dtype == getattr(torch, out_dtype or dtype)
                addend = None if bias is None else values_of(bias)
                assert_matmul(values_of(got), *values, out_dtype or dtype, addend)


@every_layout
@every_format
@pytest.mark.parametrize("m", [4, 30])
@pytest.mark.parametrize("x_exponents", [(-126, -100), (-10, 10), (100, 126), (-126, 126)])
def test_magnitudes_that_float32_cannot_multiply(rng, m, x_exponents, format, layout):
    exponents = rng.integers(*x_exponents, (m, 128))
    x = torch_of(rng.standard_normal((m, 128)) * 2.0**exponents, "bfloat16")
    for low, high in ((0, 3), (60, 70), (250, 254), (0, 254)):
        weights = random_operand(rng, 37, 128, low, high, format=format)
        got = linear(x, mx_tensor(*weights, layout, format), out_dtype="float32")
        values = values_of(x), oracle.dequantize(*weights, format)
        if abs(oracle.matmul_reference(*values)).max() < oracle.FLOATS["float32"].underflow:
            assert not got.any()
        else:
            assert_matmul(values_of(got), *values)


@every_layout
@every_format
def test_subnormal_activations_are_not_taken_for_zero(rng, format, layout):
    """Weights of 2^100 bring them back to ordinary numbers."""
    x = torch_of(rng.integers(-127, 128, (9, 64)) * 2.0**-133, "bfloat16")
    codes, scales = quarters(rng, 40, 64, format)
    weights = codes, scales + np.uint8(100)
    got = linear(x, mx_tensor(*weights, layout, format), out_dtype="float32")
    exact = oracle.matmul_reference(values_of(x), oracle.dequantize(*weights, format))
    assert_bitwise_equal(values_of(got) + 0.0, exact + 0.0)


@every_layout
@every_dtype
@every_format
@pytest.mark.parametrize("m", [6, 20])
def test_nan_and_infinity_reach_what_they_feed_and_nothing_else(rng, m, format, dtype, layout):
    x, weights, *_ = random_problem(rng, (m, 35, 96), dtype, format=format)
    x[1, 40], x[2, 95], x[3, 0] = float("nan"), float("inf"), -float("inf")
    weights[1][33, 2] = oracle.NAN_SCALE
    row_bytes = oracle.FORMATS[format].packed_bytes(96)
    weights[0][33, 2 * row_bytes // 3 :] = 0
    weights[0][5, row_bytes - 1] = 0x22  # so that the infinity meets no zero
    got = linear(x, mx_tensor(*weights, layout, format), out_dtype="float32")
    values = values_of(x.bfloat16()), oracle.dequantize(*weights, format)
    expected = oracle.matmul_reference(*values)
    assert np.isposinf(expected[2, 5]) and np.isnan(expected[:, 33]).all()
    strange = ~np.isfinite(expected)
    assert strange[1].all() and not strange[[0, 4, 5]][:, :33].any()
    assert np.array_equal(values_of(got)[strange], expected[strange], equal_nan=True)
    rows = [0, 4, 5]
    assert_matmul(values_of(got)[rows][:, :33], values[0][rows], values[1][:33])


def special_codes(format):
    return oracle.FORMATS[format].element.special_codes


@every_layout
@every_dtype
@pytest.mark.parametrize("format", [f for f in FORMATS if special_codes(f).size])
@pytest.mark.parametrize("scales", [(117, 137), (0, 254)])
def test_infinities_and_nan_among_the_codes(rng, scales, format, dtype, layout):
    x = torch_of(rng.standard_normal((20, 96)), dtype)
    codes, scales = random_operand(rng, 35, 96, *scales, format=format)
    special = special_codes(format)
    codes[np.arange(1, 33, 2), rng.integers(0, 96, 16)] = np.resize(special, 16)
    got = linear(x, mx_tensor(codes, scales, layout, format), out_dtype="float32")
    rounded = oracle.round_to(values_of(x), "bfloat16")
    assert_matmul(values_of(got), rounded, oracle.dequantize(codes, scales, format))


# Claims that something changes no bit


@every_layout
@every_format
def test_rows_do_not_depend_on_how_many_there_are(rng, format, layout):
    x, weights, *_ = random_problem(rng, (70, 50, 288), format=format)
    x[12, 3], x[13, 4] = float("nan"), 1e-38
    weights = mx_tensor(*weights, layout, format)
    whole = linear(x, weights, out_dtype="float32")
    for m in (1, 2, 3, 5, 8, 9, 16, 31, 64):
        same_bits(linear(x[:m], weights, out_dtype="float32"), whole[:m])
    for row in (12, 13, 69):
        same_bits(linear(x[row : row + 1], weights, out_dtype="float32"), whole[row : row + 1])


@every_layout
@every_format
def test_every_layout_gives_the_bits_of_plain(rng, format, layout):
    for m in (5, 19):
        x, weights, *_ = random_problem(rng, (m, 50, 288), format=format)
        plain = linear(x, mx_tensor(*weights, format=format), out_dtype="float32")
        got = linear(x, mx_tensor(*weights, layout, format), out_dtype="float32")
        same_bits(got, plain)


@every_layout
@every_format
def test_every_number_of_threads_gives_the_same_bits(rng, format, layout):
    x, weights, *_ = random_problem(rng, (200, 400, 512), format=format)
    weights = mx_tensor(*weights, layout, format)
    torch.set_num_threads(1)
    many, few = (linear(rows, weights, out_dtype="float32") for rows in (x, x[:33]))
    for threads in (2, 3):
        torch.set_num_threads(threads)
        same_bits(linear(x, weights, out_dtype="float32"), many)
        same_bits(linear(x[:33], weights, out_dtype="float32"), few)


@every_format
def test_a_mode_that_flushes_subnormals_changes_nothing(rng, format, flushing):
    x, weights, *_ = random_problem(rng, (20, 50, 288), format=format)
    x *= 2.0**-90
    weights = mx_tensor(*weights, "preshuffled_cpu", format)
    expected = linear(x, weights, out_dtype="float32")
    with flushing():
        got = linear(x, weights, out_dtype="float32")
    same_bits(got, expected)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@every_dtype
@every_format
def test_views_like_their_copies(rng, format, dtype, view):
    x = view(torch_of(rng.standard_normal((6, 128)), dtype))
    weights = mx_tensor(*random_operand(rng, 33, 64, format=format), "preshuffled_cpu", format)
    same_bits(linear(x, weights), linear(x.clone(memory_format=torch.contiguous_format), weights))


@pytest.mark.parametrize("shift", [1, 3])
@every_layout
@every_format
def test_operands_at_any_address_like_aligned_ones(rng, format, layout, shift):
    weights = mx_tensor(*random_operand(rng, 33, 192, format=format), layout, format)
    parts = shifted(weights.codes.numpy(), shift), shifted(weights.scales.numpy(), shift)
    moved = mx.MXTensor(*parts, shape=tuple(weights.shape), layout=layout, format=format)
    for dtype in DTYPES:
        x = rng.standard_normal((5, 192)).astype(NUMPY_DTYPES[dtype])
        expected = linear(torch_of(values_of(x), dtype), weights)
        assert_bitwise_equal(values_of(linear(shifted(x, shift), moved)), values_of(expected))


@every_layout
@pytest.mark.parametrize("m, shape", [(0, (0,)), (6, (2, 3)), (0, (2, 0)), (1, ())])
def test_leading_dimensions_are_kept(rng, m, shape, layout):
    x = torch_of(rng.standard_normal((*shape, 64)), "float32")
    weights = mx_tensor(*random_operand(rng, 33, 64), layout)
    got = linear(x, weights)
    assert tuple(got.shape) == (*shape, 33)
    same_bits(got.reshape(m, 33), linear(x.reshape(m, 64), weights))


def test_numpy_operands_give_numpy_results(rng):
    x, weights, *values = random_problem(rng, (4, 33, 64))
    got = linear(x.float().numpy().astype(ml_dtypes.bfloat16), mx.MXTensor(*weights))
    assert isinstance(got, np.ndarray) and got.dtype == ml_dtypes.bfloat16
    assert_matmul(values_of(got), *values, "bfloat16")


# The name of the mode


def test_the_default_is_the_best_of_the_device_which_is_not_four_bits(rng):
    x, weights, *_ = random_problem(rng, (5, 33, 64))
    weights = mx_tensor(*weights)
    best = "bf16" if weights.device.type == "cuda" else "mxint8"
    same_bits(mx.linear(x, weights), mx.linear(x, weights, activations=best))
    assert not torch.equal(mx.linear(x, weights), mx.linear(x, weights, activations="mxfp4"))


@pytest.mark.parametrize("name", ["fp16", "bfloat16", "", 4])
def test_an_unknown_mode_is_refused_by_name(rng, name):
    x, weights, *_ = random_problem(rng, (5, 33, 64))
    w = mx_tensor(*weights)
    names = " or ".join(map(repr, ACTIVATIONS))
    with pytest.raises(ValueError, match=f"activations: got .*, expected {names}"):
        mx.linear(x, w, activations=name)
    with pytest.raises(ValueError, match=f"activations: got .*, expected {names}"):
        mx.MXLinear(w, activations=name)


@pytest.mark.parametrize("scale_rule", [rule for rule in ROUNDINGS if rule != "even"])
def test_a_scale_rule_that_has_nothing_to_do_is_refused(rng, scale_rule):
    x, weights, *_ = random_problem(rng, (5, 33, 64))
    with pytest.raises(ValueError, match=f"scale_rule: got '{scale_rule}' with activations='bf16'"):
        linear(x, mx_tensor(*weights), scale_rule=scale_rule)


def test_a_module_and_a_converted_model_keep_their_activations(rng):
    dense = torch.nn.Linear(64, 48).bfloat16()
    x = torch_of(rng.standard_normal((5, 64)), "bfloat16")
    for scale_rule in ROUNDINGS:
        module = mx.convert(dense, scale_rule=scale_rule, activations="bf16")
        assert "activations=bf16" in repr(module)
        w = mx.quantize(dense.weight.detach(), scale_rule=scale_rule)
        same_bits(module(x), linear(x, w, bias=dense.bias.detach()))
    values = values_of(x), oracle.dequantize(w.codes.numpy(), w.scales.numpy())
    assert_matmul(values_of(module(x)), *values, "bfloat16", values_of(dense.bias))


# torch's machinery


@every_format
def test_gradients_are_those_of_the_dequantized_weights(rng, format):
    x, weights, *_ = random_problem(rng, (5, 33, 64), "float32", format=format)
    w = mx_tensor(*weights, "preshuffled_cpu", format)
    x.requires_grad_()
    bias = torch.zeros(33, requires_grad=True)
    dy = torch_of(rng.standard_normal((5, 33)), "float32")
    linear(x, w, bias=bias).backward(dy)
    dense = w.dequantize("float32")
    torch.testing.assert_close(x.grad, dy @ dense)
    torch.testing.assert_close(bias.grad, dy.sum(0))
    _, tangent = torch.func.jvp(lambda x: linear(x, w), (x.detach(),), (torch.ones(5, 64),))
    torch.testing.assert_close(tangent, torch.ones(5, 64) @ dense.T)


@every_format
def test_the_operator_passes_torchs_own_checks(rng, format):
    x, weights, *_ = random_problem(rng, (5, 33, 64), format=format)
    w = mx_tensor(*weights, "preshuffled_cpu", format)
    parts = (w.codes, w.scales, w.format, w.layout, 33, None, "even", torch.bfloat16, "bf16")
    for leaf in (x, x.clone().requires_grad_()):
        torch.library.opcheck(torch.ops.mx_kernels.linear.default, (leaf, *parts))


def test_compiled_and_mapped_calls_give_the_eager_bits(rng):
    x, weights, *_ = random_problem(rng, (6, 33, 64))
    w = mx_tensor(*weights, "preshuffled_cpu")
    module = mx.MXLinear(w, activations="bf16")
    eager = linear(x, w)
    same_bits(torch.compile(module, fullgraph=True)(x), eager)
    same_bits(torch.vmap(lambda row: linear(row, w))(x), eager)
    same_bits(torch.func.vmap(lambda row: linear(row[None], w)[0])(x), eager)
