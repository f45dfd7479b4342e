"""matmul and linear against the float64 product of dequantized operands.

Where float32 can say the answer exactly the comparison is bit for bit: a
product with the identity returns the other operand, so a lane map or a scale
that is off by one shows up by its coordinates. Elsewhere the bound is derived
from the number of additions and the output type, never tuned.
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
    every_dtype,
    every_layout,
    mx_tensor,
    on_every_device,
    random_operand,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal, assert_matmul

pytestmark = on_every_device

RAGGED = [1, 31, 32, 33, 63, 100]
SHAPES = [
    *((m, n, 96) for m in RAGGED for n in RAGGED),
    *((m, 33, k) for m in (1, 2, 3, 4, 5, 8, 17) for k in (32, 64, 224)),
    *((m, n, 512) for m in (1, 16, 128) for n in (1, 16, 64, 272)),
    (4, 288, 2880),
    (3, 49, 7168),
    (13, 33, 1056),
    (12, 65, 544),
    (300, 49, 96),
    (513, 17, 64),
]


def identity(k):
    """Returns plain operands of the [k, k] identity."""
    codes = oracle.pack(np.eye(k, dtype=np.uint8) * 2)
    return codes, np.full((k, k // BLOCK), oracle.ONE_SCALE, np.uint8)


def random_problem(rng, m, n, k):
    """Returns plain operands `a [m, k]`, `b [n, k]` and their float64 values."""
    a, b = random_operand(rng, m, k), random_operand(rng, n, k)
    return a, b, oracle.dequantize(*a), oracle.dequantize(*b)


def same_bits(got, expected):
    """Compares two torch tensors, minus zero told from zero."""
    assert_bitwise_equal(values_of(got), values_of(expected))


# Exact claims


@every_layout
@pytest.mark.parametrize("n, k", [(1, 32), (16, 64), (33, 96), (48, 512)])
def test_the_identity_times_a_matrix_is_that_matrix(rng, n, k, layout):
    codes, scales = random_operand(rng, n, k, 1, 250)
    got = mx.matmul(mx_tensor(*identity(k)), mx_tensor(codes, scales, layout), out_dtype="float32")
    # Adding the zero of another product turns minus zero into zero.
    assert_bitwise_equal(values_of(got) + 0.0, oracle.dequantize(codes, scales).T + 0.0)


@every_layout
@pytest.mark.parametrize("m, k", [(1, 32), (5, 64), (33, 96), (7, 512)])
def test_a_matrix_times_the_identity_is_that_matrix(rng, m, k, layout):
    codes, scales = random_operand(rng, m, k, 1, 250)
    got = mx.matmul(mx_tensor(codes, scales), mx_tensor(*identity(k), layout), out_dtype="float32")
    assert_bitwise_equal(values_of(got) + 0.0, oracle.dequantize(codes, scales) + 0.0)


@every_layout
def test_every_code_times_every_code_is_exact(layout):
    """Row i of both operands holds code i at every place: C[i, j] is 32 equal products."""
    codes = np.repeat(np.arange(16, dtype=np.uint8)[:, None] * 0x11, BLOCK // 2, axis=1)
    scales = np.full((16, 1), oracle.ONE_SCALE, np.uint8)
    got = mx.matmul(mx_tensor(codes, scales), mx_tensor(codes, scales, layout), out_dtype="float32")
    values = oracle.decode_e2m1(np.arange(16))
    assert_bitwise_equal(values_of(got) + 0.0, BLOCK * np.outer(values, values) + 0.0)


@every_layout
def test_every_scale_times_every_scale_within_the_bound(layout):
    """One product of 6 * 6 under all 65,536 pairs: underflow, overflow and NaN included."""
    codes = np.zeros((256, BLOCK // 2), np.uint8)
    codes[:, 3] = 0x70
    scales = np.arange(256, dtype=np.uint8)[:, None]
    values = oracle.dequantize(codes, scales)
    got = mx.matmul(mx_tensor(codes, scales), mx_tensor(codes, scales, layout), out_dtype="float32")
    assert_matmul(values_of(got), values, values)
    exact = 36 * oracle.decode_e8m0(scales) * oracle.decode_e8m0(scales).T
    normal = (exact >= 2.0**-126) & (exact <= oracle.FLOATS["float32"].largest)
    assert normal.sum() > 30_000
    assert_bitwise_equal(values_of(got)[normal], exact[normal])


@every_layout
def test_zeros_under_the_largest_scales_add_nothing(layout):
    """0 * 2^127 * 2^127 is 0, though the product of the scales is no float32."""
    codes = np.zeros((1, BLOCK), np.uint8)
    codes[:, BLOCK // 2] = 2
    scales = np.array([[254, oracle.ONE_SCALE]], np.uint8)
    got = mx.matmul(mx_tensor(codes, scales), mx_tensor(codes, scales, layout), out_dtype="float32")
    assert got.item() == 1.0


@every_layout
def test_elements_that_never_meet_add_nothing_under_the_largest_scales(layout):
    """Even places of a times odd places of b: each block has elements, each product is 0."""
    a = np.full((3, BLOCK // 2), 0x07, np.uint8), np.full((3, 1), 254, np.uint8)
    b = np.full((18, BLOCK // 2), 0x70, np.uint8), np.full((18, 1), 254, np.uint8)
    assert not mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype="float32").any()


@every_layout
@every_dtype
def test_a_sum_that_float32_holds_is_rounded_once(rng, dtype, layout):
    """Under one scale every sum is a small multiple of 1/4: exact, and often a tie."""
    one = oracle.ONE_SCALE
    for m in (5, 40):
        a, b = random_operand(rng, m, 512, one, one), random_operand(rng, 70, 512, one, one)
        got = mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype=dtype)
        exact = oracle.matmul_reference(oracle.dequantize(*a), oracle.dequantize(*b))
        assert_bitwise_equal(values_of(got) + 0.0, oracle.round_to(exact, dtype) + 0.0)


@every_layout
@pytest.mark.parametrize("low, high", [(0, 3), (251, 254), (0, 254), (60, 70), (184, 194)])
def test_extreme_scales_in_one_row_within_the_bound(rng, low, high, layout):
    a, b = random_operand(rng, 17, 256, low, high), random_operand(rng, 33, 256, low, high)
    got = mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype="float32")
    reference = oracle.dequantize(*a), oracle.dequantize(*b)
    if high <= 3:  # below 36 * 2^-248: nothing is left in float32
        assert not values_of(got).any()
    else:
        assert_matmul(values_of(got), *reference)


@every_layout
@every_dtype
def test_opposite_extremes_cancel_out(rng, dtype, layout):
    """a's scales are 2^127 where b's are 2^-127: their products are ordinary numbers."""
    flips = rng.integers(0, 2, (1, 4)).astype(bool)
    a_codes, _ = random_operand(rng, 9, 128)
    b_codes, _ = random_operand(rng, 19, 128)
    a = a_codes, np.where(flips, 254, 0).astype(np.uint8).repeat(9, 0)
    b = b_codes, np.where(flips, 0, 254).astype(np.uint8).repeat(19, 0)
    got = mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype=dtype)
    assert np.isfinite(values_of(got)).all()
    assert_matmul(values_of(got), oracle.dequantize(*a), oracle.dequantize(*b), dtype)


@every_layout
@every_dtype
def test_a_nan_block_makes_nan_what_it_feeds_and_nothing_else(rng, dtype, layout):
    a, b, a_values, b_values = random_problem(rng, 9, 35, 96)
    a[1][4, 1] = b[1][33, 2] = oracle.NAN_SCALE
    b[0][33, 32:] = 0
    got = values_of(mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype=dtype))
    expected = np.zeros((9, 35), bool)
    expected[4], expected[:, 33] = True, True
    assert (np.isnan(got) == expected).all()
    rest = np.ix_(np.arange(9) != 4, np.arange(35) != 33)
    assert_matmul(got[rest], a_values[rest[0].ravel()], b_values[rest[1].ravel()], dtype)


@every_layout
@every_dtype
def test_zeros_give_zeros_and_the_bias_alone(rng, dtype, layout):
    _, b, _, _ = random_problem(rng, 1, 33, 64)
    zeros = mx.quantize(torch.zeros(5, 64))
    weights = mx_tensor(*b, layout)
    assert not mx.matmul(zeros, weights, out_dtype=dtype).any()
    bias = torch_of(rng.standard_normal(33), dtype)
    got = mx.matmul(zeros, weights, out_dtype=dtype, bias=bias)
    same_bits(got, bias.expand(5, 33))


# Bounded claims


@every_layout
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_every_shape_within_the_bound(rng, m, n, k, layout):
    a, b, *values = random_problem(rng, m, n, k)
    got = mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype="float32")
    assert tuple(got.shape) == (m, n)
    assert_matmul(values_of(got), *values)


@every_layout
@every_dtype
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES])
def test_every_output_and_bias_type_within_the_bound(rng, dtype, bias_dtype, layout):
    a, b, *values = random_problem(rng, 7, 50, 160)
    bias = None if bias_dtype is None else torch_of(30 * rng.standard_normal(50), bias_dtype)
    got = mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype=dtype, bias=bias)
    assert got.dtype == getattr(torch, dtype)
    assert_matmul(values_of(got), *values, dtype, None if bias is None else values_of(bias))


@every_dtype
def test_results_beyond_the_output_type_are_infinite(rng, dtype):
    a, b = random_operand(rng, 8, 64, 190, 195), random_operand(rng, 40, 64, 185, 190)
    got = mx.matmul(mx_tensor(*a), mx_tensor(*b), out_dtype=dtype)
    assert np.isinf(values_of(got)).any()
    assert_matmul(values_of(got), oracle.dequantize(*a), oracle.dequantize(*b), dtype)


@pytest.mark.cpu_only
@every_layout
def test_rows_of_a_do_not_depend_on_how_many_there_are(rng, layout):
    a, b, *_ = random_problem(rng, 70, 50, 288)
    weights = mx_tensor(*b, layout)
    whole = mx.matmul(mx_tensor(*a), weights, out_dtype="float32")
    for m in (1, 2, 3, 5, 8, 16, 31, 64):
        part = mx.matmul(mx_tensor(a[0][:m], a[1][:m]), weights, out_dtype="float32")
        same_bits(part, whole[:m])


@pytest.mark.cpu_only
@every_layout
def test_every_layout_gives_the_bits_of_plain(rng, layout):
    a, b, *_ = random_problem(rng, 19, 50, 288)
    plain = mx.matmul(mx_tensor(*a), mx_tensor(*b), out_dtype="float32")
    same_bits(mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), out_dtype="float32"), plain)


@pytest.mark.cpu_only
@every_layout
def test_every_number_of_threads_gives_the_same_bits(rng, layout):
    a, b, *_ = random_problem(rng, 33, 400, 512)
    x, weights = torch_of(rng.standard_normal((33, 512)), "bfloat16"), mx_tensor(*b, layout)
    torch.set_num_threads(1)
    product = mx.matmul(mx_tensor(*a), weights, out_dtype="float32")
    fused = mx.linear(x, weights, out_dtype="float32")
    for threads in (2, 3):
        torch.set_num_threads(threads)
        same_bits(mx.matmul(mx_tensor(*a), weights, out_dtype="float32"), product)
        same_bits(mx.linear(x, weights, out_dtype="float32"), fused)


@every_layout
@pytest.mark.parametrize("m, shape", [(0, (0,)), (6, (2, 3)), (0, (2, 0)), (1, ())])
def test_leading_dimensions_are_kept(rng, m, shape, layout):
    x = torch_of(rng.standard_normal((*shape, 64)), "float32")
    weights = mx_tensor(*random_operand(rng, 33, 64), layout)
    product, fused = mx.matmul(mx.quantize(x), weights, out_dtype="float32"), mx.linear(x, weights)
    assert tuple(product.shape) == tuple(fused.shape) == (*shape, 33)
    same_bits(fused, product)
    assert product.numel() == m * 33


# The fused operation


@every_layout
@pytest.mark.parametrize("rounding", ROUNDINGS)
@every_dtype
def test_linear_is_matmul_of_quantize(rng, dtype, rounding, layout):
    for m, n, k in [(1, 1, 32), (1, 100, 96), (3, 33, 64), (17, 31, 288), (64, 144, 512)]:
        x = torch_of(rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, k)), dtype)
        weights = mx_tensor(*random_operand(rng, n, k), layout)
        bias = torch_of(rng.standard_normal(n), dtype)
        for b in (None, bias):
            got = mx.linear(x, weights, bias=b, rounding=rounding, out_dtype="float32")
            q = mx.quantize(x, rounding=rounding)
            same_bits(got, mx.matmul(q, weights, bias=b, out_dtype="float32"))


@every_layout
@every_dtype
def test_linear_within_the_bound_of_the_oracles_own_quantization(rng, dtype, layout):
    x = torch_of(rng.standard_normal((21, 224)), dtype)
    b = random_operand(rng, 47, 224)
    got = mx.linear(x, mx_tensor(*b, layout))
    assert got.dtype == x.dtype
    a_values = oracle.dequantize(*oracle.quantize(values_of(x)))
    assert_matmul(values_of(got), a_values, oracle.dequantize(*b), dtype)


@every_layout
@every_dtype
def test_linear_makes_rows_with_nan_or_infinity_nan_and_no_others(rng, dtype, layout):
    x = rng.standard_normal((6, 96))
    x[1, 40], x[4, 95] = np.nan, np.inf
    got = mx.linear(torch_of(x, dtype), mx_tensor(*random_operand(rng, 33, 96), layout))
    assert np.isnan(values_of(got)).all(1).tolist() == [False, True, False, False, True, False]
    assert np.isfinite(values_of(got)[[0, 2, 3, 5]]).all()


@every_layout
@every_dtype
def test_linear_takes_the_corner_blocks_that_quantize_takes(rng, dtype, layout):
    """Blocks of zeros, of the smallest subnormals and of the largest values, side by side."""
    kind = oracle.FLOATS[dtype]
    sizes = np.array([0.0, 2 * kind.underflow, 1.0, kind.largest])
    x = torch_of(np.tile(sizes.repeat(BLOCK), (4, 1)) * rng.choice([-1, 1], (4, 128)), dtype)
    weights = mx_tensor(*random_operand(rng, 20, 128), layout)
    got = mx.linear(x, weights, out_dtype="float32")
    same_bits(got, mx.matmul(mx.quantize(x), weights, out_dtype="float32"))


VIEWS = {
    "a row stride": lambda x: x[:, 32:96],
    "every other row": lambda x: x[::2, :64],
    "transposed": lambda x: x[:, :64].t().contiguous().t(),
    "every other element": lambda x: x[:, ::2],
    "one row for all": lambda x: x[:1, :64].expand(6, -1),
    "an odd storage offset": lambda x: x.reshape(-1)[3 : 3 + 4 * 64].view(4, 64),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@every_dtype
def test_linear_takes_views_like_their_copies(rng, dtype, view):
    x = view(torch_of(rng.standard_normal((6, 128)), dtype))
    weights = mx_tensor(*random_operand(rng, 33, 64), "preshuffled_cpu")
    same_bits(
        mx.linear(x, weights), mx.linear(x.clone(memory_format=torch.contiguous_format), weights)
    )


@pytest.mark.cpu_only
@pytest.mark.parametrize("shift", [1, 3])
@every_layout
def test_operands_at_any_address_multiply_like_aligned_ones(rng, layout, shift):
    b = mx_tensor(*random_operand(rng, 33, 96), layout)

    def shifted(array):
        room = np.zeros(array.nbytes + shift, np.uint8)
        room[shift:] = array.view(np.uint8).ravel()
        return np.frombuffer(room, array.dtype, offset=shift).reshape(array.shape)

    weights = mx.MXTensor(
        shifted(b.codes.numpy()), shifted(b.scales.numpy()), shape=tuple(b.shape), layout=layout
    )
    for dtype in DTYPES:
        x = rng.standard_normal((5, 96)).astype(NUMPY_DTYPES[dtype])
        expected = mx.linear(torch_of(values_of(x), dtype), b)
        assert_bitwise_equal(values_of(mx.linear(shifted(x), weights)), values_of(expected))


@every_layout
def test_a_bias_may_be_a_view(rng, layout):
    a, b, *_ = random_problem(rng, 4, 33, 64)
    bias = torch_of(rng.standard_normal(66), "float32")[::2]
    got = mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), bias=bias)
    same_bits(got, mx.matmul(mx_tensor(*a), mx_tensor(*b, layout), bias=bias.clone()))


@pytest.mark.cpu_only
def test_numpy_operands_give_numpy_results(rng):
    a, b, *values = random_problem(rng, 4, 33, 64)
    got = mx.matmul(mx.MXTensor(*a), mx.MXTensor(*b), out_dtype="float32")
    assert isinstance(got, np.ndarray)
    assert_matmul(got, *values)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    fused = mx.linear(x, mx.MXTensor(*b))
    assert fused.dtype == np.float32
    assert_bitwise_equal(fused, mx.linear(torch.from_numpy(x), mx_tensor(*b)).numpy())
