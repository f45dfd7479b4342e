"""linear with activations="bf16" against the float64 product of bfloat16 and dequantized weights.

Activations of any type are rounded to bfloat16, so the oracle rounds them too; the bound is
that of as many float32 additions as K has elements. Bits are compared where the claim is that
something changes none: rows, threads, layouts, strides, addresses. That the instruction levels
agree is in `cpu/test_levels.py`, that a MAX graph does in `max_graph/test_ops.py`.
"""

import ml_dtypes
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
    every_dtype,
    every_layout,
    every_value,
    mx_tensor,
    random_operand,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal, assert_matmul
from tests.numerics.test_matmul import VIEWS, identity, same_bits

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


def random_problem(rng, m, n, k, dtype="bfloat16"):
    """Returns activations, plain weights, and the float64 values of both as they are multiplied."""
    x = torch_of(rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, k)), dtype)
    weights = random_operand(rng, n, k)
    return x, weights, oracle.round_to(values_of(x), "bfloat16"), oracle.dequantize(*weights)


# Exact claims


@every_layout
@pytest.mark.parametrize("m", [3, 8, 40])
def test_activations_times_the_identity_are_those_activations(rng, m, layout):
    x = torch_of(rng.standard_normal((m, 96)) * 2.0 ** rng.integers(-100, 100, (m, 96)), "bfloat16")
    got = linear(x, mx_tensor(*identity(96), layout), out_dtype="float32")
    assert_bitwise_equal(values_of(got) + 0.0, values_of(x) + 0.0)


@every_layout
@pytest.mark.parametrize("n, k", [(1, 32), (16, 64), (33, 96), (48, 512)])
def test_the_identity_times_weights_is_those_weights(rng, n, k, layout):
    codes, scales = random_operand(rng, n, k, 1, 250)
    x = torch.eye(k).bfloat16()
    for rows in (slice(None), slice(k // 2, k // 2 + 3)):
        got = linear(x[rows], mx_tensor(codes, scales, layout), out_dtype="float32")
        expected = oracle.dequantize(codes, scales).T[rows]
        assert_bitwise_equal(values_of(got) + 0.0, expected + 0.0)


@every_layout
def test_every_bfloat16_times_every_scale_is_exact(layout):
    """One product of 1 under every scale: subnormals, infinities and NaN included."""
    values = every_value("bfloat16")
    x = np.zeros((len(values), BLOCK))
    x[:, 5] = values
    codes = np.zeros((256, BLOCK // 2), np.uint8)
    codes[:, 2] = 0x20
    scales = np.arange(256, dtype=np.uint8)[:, None]
    got = linear(torch_of(x, "bfloat16"), mx_tensor(codes, scales, layout), out_dtype="float32")
    with np.errstate(invalid="ignore"):
        exact = values[:, None] * oracle.decode_e8m0(scales).T
    expected = oracle.round_to(exact, "float32").astype(np.float32)
    assert_bitwise_equal(got.numpy() + np.float32(0), expected + np.float32(0))


@every_layout
@pytest.mark.parametrize("m", [2, 20])
def test_every_code_is_multiplied_as_its_value(rng, m, layout):
    codes = np.repeat(np.arange(16, dtype=np.uint8)[:, None] * 0x11, BLOCK // 2, axis=1)
    scales = np.full((16, 1), oracle.ONE_SCALE, np.uint8)
    x = rng.integers(-8, 9, (m, BLOCK))
    got = linear(torch_of(x, "bfloat16"), mx_tensor(codes, scales, layout), out_dtype="float32")
    expected = np.outer(x.sum(1), oracle.decode_e2m1(np.arange(16)))
    assert_bitwise_equal(values_of(got) + 0.0, expected + 0.0)


@every_dtype
def test_activations_are_rounded_to_bfloat16_to_nearest_even(rng, dtype):
    """Every 16-bit value, and for float32 the ties between neighbouring bfloat16."""
    values = every_value(dtype if dtype != "float32" else "bfloat16")
    if dtype == "float32":
        bits = np.arange(0x3F70, 0x4010, dtype=np.uint32)[:, None] << 16
        near = bits | np.array([0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
        values = np.concatenate([values, near.view(np.float32).astype(np.float64).ravel()])
    x = torch_of(np.resize(values[np.isfinite(values)], (700, 96)), dtype)
    weights = mx_tensor(*identity(96), "preshuffled_cpu")
    got = linear(x, weights, out_dtype="float32")
    rounded = oracle.round_to(values_of(x), "bfloat16")
    finite = np.isfinite(rounded).all(1)
    assert_bitwise_equal(values_of(got)[finite] + 0.0, rounded[finite] + 0.0)
    same_bits(got, linear(x.bfloat16(), weights, out_dtype="float32"))


@every_layout
@every_dtype
def test_a_sum_that_float32_holds_is_rounded_once(rng, dtype, layout):
    """Small whole activations under one scale: every sum is exact, and often a tie."""
    one = oracle.ONE_SCALE
    for m in (5, 40):
        x = torch_of(rng.integers(-16, 17, (m, 512)), "bfloat16")
        weights = random_operand(rng, 70, 512, one, one)
        got = linear(x, mx_tensor(*weights, layout), out_dtype=dtype)
        exact = oracle.matmul_reference(values_of(x), oracle.dequantize(*weights))
        assert_bitwise_equal(values_of(got) + 0.0, oracle.round_to(exact, dtype) + 0.0)


@every_layout
def test_zeros_under_the_largest_scales_add_nothing(layout):
    codes = np.zeros((1, BLOCK), np.uint8)
    codes[:, BLOCK // 2] = 2
    weights = mx_tensor(codes, np.array([[254, oracle.ONE_SCALE]], np.uint8), layout)
    x = torch.full((1, 2 * BLOCK), 3e38).bfloat16()
    x[:, BLOCK:] = 1
    assert linear(x, weights, out_dtype="float32").item() == 1.0


# Bounded claims


@every_layout
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_every_shape_within_the_bound(rng, m, n, k, layout):
    x, weights, *values = random_problem(rng, m, n, k)
    got = linear(x, mx_tensor(*weights, layout), out_dtype="float32")
    assert tuple(got.shape) == (m, n)
    assert_matmul(values_of(got), *values)


@every_layout
@every_dtype
@pytest.mark.parametrize("out_dtype", [None, *DTYPES])
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES])
def test_every_type_within_the_bound(rng, dtype, out_dtype, bias_dtype, layout):
    for m in (7, 18):
        x, weights, *values = random_problem(rng, m, 50, 160, dtype)
        bias = None if bias_dtype is None else torch_of(30 * rng.standard_normal(50), bias_dtype)
        got = linear(x, mx_tensor(*weights, layout), bias=bias, out_dtype=out_dtype)
        assert got.dtype == getattr(torch, out_dtype or dtype)
        addend = None if bias is None else values_of(bias)
        assert_matmul(values_of(got), *values, out_dtype or dtype, addend)


@every_layout
@pytest.mark.parametrize("m", [4, 30])
@pytest.mark.parametrize("x_exponents", [(-126, -100), (-10, 10), (100, 126), (-126, 126)])
@pytest.mark.parametrize("w_scales", [(0, 3), (60, 70), (250, 254), (0, 254)])
def test_magnitudes_that_float32_cannot_multiply(rng, m, x_exponents, w_scales, layout):
    exponents = rng.integers(*x_exponents, (m, 128))
    x = torch_of(rng.standard_normal((m, 128)) * 2.0**exponents, "bfloat16")
    weights = random_operand(rng, 37, 128, *w_scales)
    got = linear(x, mx_tensor(*weights, layout), out_dtype="float32")
    values = values_of(x), oracle.dequantize(*weights)
    if abs(oracle.matmul_reference(*values)).max() < oracle.FLOATS["float32"].underflow:
        assert not got.any()
    else:
        assert_matmul(values_of(got), *values)


@every_layout
def test_subnormal_activations_are_not_taken_for_zero(rng, layout):
    """Weights of 2^100 bring them back to ordinary numbers."""
    x = torch_of(rng.integers(-127, 128, (9, 64)) * 2.0**-133, "bfloat16")
    weights = random_operand(rng, 40, 64, 227, 227)
    got = linear(x, mx_tensor(*weights, layout), out_dtype="float32")
    exact = oracle.matmul_reference(values_of(x), oracle.dequantize(*weights))
    assert_bitwise_equal(values_of(got) + 0.0, exact + 0.0)


@every_layout
@every_dtype
@pytest.mark.parametrize("m", [6, 20])
def test_nan_and_infinity_reach_what_they_feed_and_nothing_else(rng, m, dtype, layout):
    x, weights, *_ = random_problem(rng, m, 35, 96, dtype)
    x[1, 40], x[2, 95], x[3, 0] = float("nan"), float("inf"), -float("inf")
    weights[1][33, 2] = oracle.NAN_SCALE
    weights[0][33, 32:] = 0
    weights[0][5, 47] = 0x22  # so that the infinity meets no zero
    got = linear(x, mx_tensor(*weights, layout), out_dtype="float32")
    values = values_of(x.bfloat16()), oracle.dequantize(*weights)
    expected = oracle.matmul_reference(*values)
    assert np.isposinf(expected[2, 5]) and np.isnan(expected[:, 33]).all()
    strange = ~np.isfinite(expected)
    assert strange[1].all() and not strange[[0, 4, 5]][:, :33].any()
    assert np.array_equal(values_of(got)[strange], expected[strange], equal_nan=True)
    rows = [0, 4, 5]
    assert_matmul(values_of(got)[rows][:, :33], values[0][rows], values[1][:33])


# Claims that something changes no bit


@every_layout
def test_rows_do_not_depend_on_how_many_there_are(rng, layout):
    x, weights, *_ = random_problem(rng, 70, 50, 288)
    x[12, 3], x[13, 4] = float("nan"), 1e-38
    weights = mx_tensor(*weights, layout)
    whole = linear(x, weights, out_dtype="float32")
    for m in (1, 2, 3, 5, 8, 9, 16, 31, 64):
        same_bits(linear(x[:m], weights, out_dtype="float32"), whole[:m])
    for row in (12, 13, 69):
        same_bits(linear(x[row : row + 1], weights, out_dtype="float32"), whole[row : row + 1])


@every_layout
def test_every_layout_gives_the_bits_of_plain(rng, layout):
    for m in (5, 19):
        x, weights, *_ = random_problem(rng, m, 50, 288)
        plain = linear(x, mx_tensor(*weights), out_dtype="float32")
        same_bits(linear(x, mx_tensor(*weights, layout), out_dtype="float32"), plain)


@every_layout
def test_every_number_of_threads_gives_the_same_bits(rng, layout):
    x, weights, *_ = random_problem(rng, 200, 400, 512)
    weights = mx_tensor(*weights, layout)
    torch.set_num_threads(1)
    many, few = (linear(rows, weights, out_dtype="float32") for rows in (x, x[:33]))
    for threads in (2, 3):
        torch.set_num_threads(threads)
        same_bits(linear(x, weights, out_dtype="float32"), many)
        same_bits(linear(x[:33], weights, out_dtype="float32"), few)


def test_a_mode_that_flushes_subnormals_changes_nothing(rng, flushing):
    x, weights, *_ = random_problem(rng, 20, 50, 288)
    x *= 2.0**-90
    weights = mx_tensor(*weights, "preshuffled_cpu")
    expected = linear(x, weights, out_dtype="float32")
    with flushing():
        got = linear(x, weights, out_dtype="float32")
    same_bits(got, expected)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@every_dtype
def test_views_like_their_copies(rng, dtype, view):
    x = view(torch_of(rng.standard_normal((6, 128)), dtype))
    weights = mx_tensor(*random_operand(rng, 33, 64), "preshuffled_cpu")
    same_bits(linear(x, weights), linear(x.clone(memory_format=torch.contiguous_format), weights))


@pytest.mark.parametrize("shift", [1, 3])
@every_layout
def test_operands_at_any_address_like_aligned_ones(rng, layout, shift):
    weights = mx_tensor(*random_operand(rng, 33, 96), layout)

    def shifted(array):
        room = np.zeros(array.nbytes + shift, np.uint8)
        room[shift:] = array.view(np.uint8).ravel()
        return np.frombuffer(room, array.dtype, offset=shift).reshape(array.shape)

    parts = shifted(weights.codes.numpy()), shifted(weights.scales.numpy())
    moved = mx.MXTensor(*parts, shape=tuple(weights.shape), layout=layout)
    for dtype in DTYPES:
        x = rng.standard_normal((5, 96)).astype(NUMPY_DTYPES[dtype])
        expected = linear(torch_of(values_of(x), dtype), weights)
        assert_bitwise_equal(values_of(linear(shifted(x), moved)), values_of(expected))


@every_layout
@pytest.mark.parametrize("m, shape", [(0, (0,)), (6, (2, 3)), (0, (2, 0)), (1, ())])
def test_leading_dimensions_are_kept(rng, m, shape, layout):
    x = torch_of(rng.standard_normal((*shape, 64)), "float32")
    weights = mx_tensor(*random_operand(rng, 33, 64), layout)
    got = linear(x, weights)
    assert tuple(got.shape) == (*shape, 33)
    same_bits(got.reshape(m, 33), linear(x.reshape(m, 64), weights))


def test_numpy_operands_give_numpy_results(rng):
    x, weights, *values = random_problem(rng, 4, 33, 64)
    got = linear(x.float().numpy().astype(ml_dtypes.bfloat16), mx.MXTensor(*weights))
    assert isinstance(got, np.ndarray) and got.dtype == ml_dtypes.bfloat16
    assert_matmul(values_of(got), *values, "bfloat16")


# The name of the mode


def test_the_default_quantizes_the_activations(rng):
    x, weights, *_ = random_problem(rng, 5, 33, 64)
    weights = mx_tensor(*weights)
    same_bits(mx.linear(x, weights), mx.linear(x, weights, activations="mxfp4"))
    assert not torch.equal(mx.linear(x, weights), linear(x, weights))


@pytest.mark.parametrize("name", ["fp16", "bfloat16", "", None, 4])
def test_an_unknown_mode_is_refused_by_name(rng, name):
    x, weights, *_ = random_problem(rng, 5, 33, 64)
    w = mx_tensor(*weights)
    with pytest.raises(ValueError, match=r"activations: got .*, expected 'mxfp4' or 'bf16'"):
        mx.linear(x, w, activations=name)
    with pytest.raises(ValueError, match=r"activations: got .*, expected 'mxfp4' or 'bf16'"):
        mx.MXLinear(w, activations=name)


@pytest.mark.parametrize("rounding", [rule for rule in ROUNDINGS if rule != "even"])
def test_a_scale_rule_that_has_nothing_to_do_is_refused(rng, rounding):
    x, weights, *_ = random_problem(rng, 5, 33, 64)
    with pytest.raises(ValueError, match=f"rounding: got '{rounding}' with activations='bf16'"):
        linear(x, mx_tensor(*weights), rounding=rounding)


def test_a_module_and_a_converted_model_keep_their_activations(rng):
    dense = torch.nn.Linear(64, 48).bfloat16()
    x = torch_of(rng.standard_normal((5, 64)), "bfloat16")
    for rounding in ROUNDINGS:
        module = mx.convert(dense, rounding=rounding, activations="bf16")
        assert "activations=bf16" in repr(module)
        w = mx.quantize(dense.weight.detach(), rounding=rounding)
        same_bits(module(x), linear(x, w, bias=dense.bias.detach()))
    values = values_of(x), oracle.dequantize(w.codes.numpy(), w.scales.numpy())
    assert_matmul(values_of(module(x)), *values, "bfloat16", values_of(dense.bias))


# torch's machinery


def test_gradients_are_those_of_the_dequantized_weights(rng):
    x, weights, *_ = random_problem(rng, 5, 33, 64, "float32")
    w = mx_tensor(*weights, "preshuffled_cpu")
    x.requires_grad_()
    bias = torch.zeros(33, requires_grad=True)
    dy = torch_of(rng.standard_normal((5, 33)), "float32")
    linear(x, w, bias=bias).backward(dy)
    dense = w.dequantize("float32")
    torch.testing.assert_close(x.grad, dy @ dense)
    torch.testing.assert_close(bias.grad, dy.sum(0))
    _, tangent = torch.func.jvp(lambda x: linear(x, w), (x.detach(),), (torch.ones(5, 64),))
    torch.testing.assert_close(tangent, torch.ones(5, 64) @ dense.T)


def test_the_operator_passes_torchs_own_checks(rng):
    x, weights, *_ = random_problem(rng, 5, 33, 64)
    w = mx_tensor(*weights, "preshuffled_cpu")
    parts = (w.codes, w.scales, w.layout, 33, None, "even", torch.bfloat16, "bf16")
    for leaf in (x, x.clone().requires_grad_()):
        torch.library.opcheck(torch.ops.mx_kernels.linear.default, (leaf, *parts))


def test_compiled_and_mapped_calls_give_the_eager_bits(rng):
    x, weights, *_ = random_problem(rng, 6, 33, 64)
    w = mx_tensor(*weights, "preshuffled_cpu")
    module = mx.MXLinear(w, activations="bf16")
    eager = linear(x, w)
    same_bits(torch.compile(module, fullgraph=True)(x), eager)
    same_bits(torch.vmap(lambda row: linear(row, w))(x), eager)
    same_bits(torch.func.vmap(lambda row: linear(row[None], w)[0])(x), eager)
