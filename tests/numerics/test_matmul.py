"""matmul against the float64 product of dequantized operands, for every pair of formats.

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
    FORMATS,
    LAYOUTS,
    code_of,
    cut_off,
    every_code_a_row,
    every_dtype,
    every_layout,
    every_pair,
    identity,
    mx_tensor,
    on_every_device,
    pack,
    quarters,
    random_operand,
    representable,
    same_bits,
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


def random_problem(rng, shape, left="mxfp4", right="mxfp4"):
    """Returns plain operands `a [m, k]`, `b [n, k]` and their float64 values."""
    m, n, k = shape
    a, b = random_operand(rng, m, k, format=left), random_operand(rng, n, k, format=right)
    return a, b, oracle.dequantize(*a, left), oracle.dequantize(*b, right)


def product(a, b, pair, layout="plain", **arguments):
    """Returns the product of plain operands, the right one stored in `layout`."""
    left, right = pair
    operands = mx_tensor(*a, format=left), mx_tensor(*b, layout, right)
    return mx.matmul(*operands, **{"out_dtype": "float32", **arguments})


# Exact claims


@every_layout
@every_pair
@pytest.mark.parametrize("n, k", [(1, 32), (16, 64), (33, 96), (48, 512)])
def test_the_identity_times_a_matrix_is_that_matrix(rng, n, k, pair, layout):
    b = representable(rng, n, k, pair[1])
    got = product(identity(k, pair[0]), b, pair, layout)
    # Adding the zero of another product turns minus zero into zero.
    assert_bitwise_equal(values_of(got) + 0.0, oracle.dequantize(*b, pair[1]).T + 0.0)


@every_layout
@every_pair
@pytest.mark.parametrize("m, k", [(1, 32), (5, 64), (33, 96), (7, 512)])
def test_a_matrix_times_the_identity_is_that_matrix(rng, m, k, pair, layout):
    a = representable(rng, m, k, pair[0])
    got = product(a, identity(k, pair[1]), pair, layout)
    assert_bitwise_equal(values_of(got) + 0.0, oracle.dequantize(*a, pair[0]) + 0.0)


@every_layout
@every_pair
def test_every_code_times_every_code_is_exact(pair, layout):
    """Row i of both operands holds code i at every place: C[i, j] is 32 equal products.

    Infinities and NaN among the codes give what IEEE says.
    """
    values = [oracle.FORMATS[format].element.values for format in pair]
    got = product(*map(every_code_a_row, pair), pair, layout)
    with np.errstate(invalid="ignore"):
        expected = BLOCK * np.outer(*values)
    assert_bitwise_equal(values_of(got) + 0.0, expected + 0.0)


@every_layout
@every_pair
def test_every_scale_times_every_scale_within_the_bound(pair, layout):
    """One product of the largest elements under all 65,536 pairs: underflow, overflow and NaN."""
    scales = np.arange(256, dtype=np.uint8)[:, None]
    operands, values = [], []
    for format in pair:
        element = oracle.FORMATS[format].element
        codes = np.zeros((256, BLOCK), np.uint8)
        codes[:, 7] = code_of(element.largest, format)
        operands.append((pack(codes, format), scales))
        values.append(oracle.dequantize(*operands[-1], format))
    got = product(*operands, pair, layout)
    assert_matmul(values_of(got), *values)
    exact = np.outer(values[0][:, 7], values[1][:, 7])
    normal = (exact >= 2.0**-126) & (exact <= oracle.FLOATS["float32"].largest)
    assert normal.sum() > 30_000
    assert_bitwise_equal(values_of(got)[normal], exact[normal])


@pytest.mark.cpu_only
@every_layout
@every_pair
def test_a_result_that_float32_holds_comes_of_sums_that_it_does_not(pair, layout):
    """The first block's sum is 2^128; the second takes half of it away."""
    left, right = np.ones((1, 2 * BLOCK)), np.ones((1, 2 * BLOCK))
    left[:, BLOCK:], right[:, BLOCK:] = -1, 0.5
    scales = [np.full((1, 2), oracle.ONE_SCALE + exponent, np.uint8) for exponent in (100, 23)]
    operands = [
        (pack(code_of(values, format), format), scale)
        for values, format, scale in zip((left, right), pair, scales, strict=True)
    ]
    assert product(*operands, pair, layout).item() == 2.0**127


@every_layout
@every_pair
def test_zeros_under_the_largest_scales_add_nothing(pair, layout):
    """0 * 2^127 * 2^127 is 0, though the product of the scales is no float32."""
    scales = np.array([[254, oracle.ONE_SCALE]], np.uint8)
    one = np.zeros((1, 2 * BLOCK))
    one[:, BLOCK] = 1
    a, b = ((pack(code_of(one, format), format), scales) for format in pair)
    assert product(a, b, pair, layout).item() == 1.0


@every_layout
@every_pair
def test_elements_that_never_meet_add_nothing_under_the_largest_scales(pair, layout):
    """Even places of a times odd places of b: each block has elements, each product is 0."""
    operands = []
    for format, rows, parity in zip(pair, (3, 18), (0, 1), strict=True):
        codes = np.zeros((rows, BLOCK), np.uint8)
        codes[:, parity::2] = code_of(oracle.FORMATS[format].element.largest, format)
        operands.append((pack(codes, format), np.full((rows, 1), 254, np.uint8)))
    assert not product(*operands, pair, layout).any()


@every_layout
@every_pair
def test_a_sum_that_float32_holds_is_rounded_once(rng, pair, layout):
    """Sums of small multiples of 1/4 are exact, and often a tie of the output type."""
    left, right = pair
    b = quarters(rng, 70, 512, right)
    for m in (5, 40):
        a = quarters(rng, m, 512, left)
        exact = oracle.matmul_reference(oracle.dequantize(*a, left), oracle.dequantize(*b, right))
        for dtype in DTYPES:
            got = product(a, b, pair, layout, out_dtype=dtype)
            assert_bitwise_equal(values_of(got) + 0.0, oracle.round_to(exact, dtype) + 0.0)


@every_layout
@every_pair
@pytest.mark.parametrize("low, high", [(0, 3), (251, 254), (0, 254), (60, 70), (184, 194)])
def test_extreme_scales_in_one_row_within_the_bound(rng, low, high, pair, layout):
    left, right = pair
    a = random_operand(rng, 17, 256, low, high, format=left)
    b = random_operand(rng, 33, 256, low, high, format=right)
    got = values_of(product(a, b, pair, layout))
    if high <= 3:  # below 2^32 * 2^-248: nothing is left in float32
        assert not got.any()
    else:
        assert_matmul(got, oracle.dequantize(*a, left), oracle.dequantize(*b, right))


@every_layout
@every_dtype
@every_pair
def test_opposite_extremes_cancel_out(rng, pair, dtype, layout):
    """a's scales are 2^127 where b's are 2^-127: their products are ordinary numbers."""
    flips = rng.integers(0, 2, (1, 4)).astype(bool)
    a_codes, _ = random_operand(rng, 9, 128, format=pair[0])
    b_codes, _ = random_operand(rng, 19, 128, format=pair[1])
    a = a_codes, np.where(flips, 254, 0).astype(np.uint8).repeat(9, 0)
    b = b_codes, np.where(flips, 0, 254).astype(np.uint8).repeat(19, 0)
    got = product(a, b, pair, layout, out_dtype=dtype)
    assert np.isfinite(values_of(got)).all() or dtype == "float16"
    values = oracle.dequantize(*a, pair[0]), oracle.dequantize(*b, pair[1])
    lost = cut_off(got, pair, layout, *values)
    assert_matmul(values_of(got), *values, dtype, more_error=lost)


@every_layout
@every_dtype
@every_pair
def test_a_nan_block_makes_nan_what_it_feeds_and_nothing_else(rng, pair, dtype, layout):
    a, b, a_values, b_values = random_problem(rng, (9, 35, 96), *pair)
    a[1][4, 1] = b[1][33, 2] = oracle.NAN_SCALE
    b[0][33, -oracle.FORMATS[pair[1]].packed_bytes(BLOCK) :] = 0
    product_of = product(a, b, pair, layout, out_dtype=dtype)
    got, rest = values_of(product_of), np.ix_(np.arange(9) != 4, np.arange(35) != 33)
    expected = np.zeros((9, 35), bool)
    expected[4], expected[:, 33] = True, True
    assert (np.isnan(got) == expected).all()
    values = a_values[rest[0].ravel()], b_values[rest[1].ravel()]
    lost = cut_off(product_of, pair, layout, *values)
    assert_matmul(got[rest], *values, dtype, more_error=lost)


def with_specials(rng, operand, format):
    """Writes each infinity and NaN of a format into a row of its own, at a place of its own."""
    element = oracle.FORMATS[format].element
    codes = oracle.unpack(operand[0], element.bits)
    for row, code in enumerate(element.special_codes):
        codes[2 * row + 1, rng.integers(codes.shape[1])] = code
    return pack(codes, format), operand[1]


@every_layout
@pytest.mark.parametrize("m", [17, 3])
@pytest.mark.parametrize("scales", [(117, 137), (0, 254)])
@every_pair
def test_infinities_and_nan_among_the_codes_reach_what_they_feed(rng, pair, m, scales, layout):
    left, right = pair
    a = random_operand(rng, 17, 96, *scales, format=left)
    b = random_operand(rng, 35, 96, *scales, format=right)
    a, b = with_specials(rng, a, left), with_specials(rng, b, right)
    a = a[0][:m], a[1][:m]
    got = values_of(product(a, b, pair, layout))
    assert_matmul(got, oracle.dequantize(*a, left), oracle.dequantize(*b, right))


@every_layout
@every_pair
def test_zeros_give_zeros_and_the_bias_alone(rng, pair, layout):
    b = random_operand(rng, 33, 64, format=pair[1])
    zeros = mx.quantize(torch.zeros(5, 64), format=pair[0])
    weights = mx_tensor(*b, layout, pair[1])
    for dtype in DTYPES:
        assert not mx.matmul(zeros, weights, out_dtype=dtype).any()
        bias = torch_of(rng.standard_normal(33), dtype)
        got = mx.matmul(zeros, weights, out_dtype=dtype, bias=bias)
        same_bits(got, bias.expand(5, 33))


# Bounded claims


@every_layout
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_within_the_bound(rng, shape, layout):
    """MXFP4 twice; every other pair meets the same kernels' edges in the test below."""
    a, b, *values = random_problem(rng, shape)
    got = product(a, b, ("mxfp4", "mxfp4"), layout)
    assert tuple(got.shape) == shape[:2]
    assert_matmul(values_of(got), *values)


SOME_SHAPES = [
    *((m, 33, k) for m in (1, 2, 5, 17) for k in (32, 96, 224)),
    *((m, n, 512) for m in (1, 33, 128) for n in (1, 16, 272)),
    (4, 288, 2880),
    (3, 49, 7168),
    (13, 65, 1056),
    (300, 49, 96),
]


def check_in_every_layout(a, b, pair, values):
    expected = oracle.Product(*values)
    for layout in LAYOUTS:
        expected.check(values_of(product(a, b, pair, layout)), layout)


@every_pair
def test_every_pair_within_the_bound(rng, pair):
    for shape in SOME_SHAPES:
        a, b, *values = random_problem(rng, shape, *pair)
        check_in_every_layout(a, b, pair, values)


@every_pair
def test_quantized_normal_numbers_within_the_bound(rng, pair):
    """Codes as they come from data, where large elements are not as frequent as small ones."""
    operands, values = [], []
    for rows, format in zip((21, 50), pair, strict=True):
        x = rng.standard_normal((rows, 1024)) * np.exp(rng.standard_normal((1, 1024)))
        operands.append(oracle.quantize(x, format=format))
        values.append(oracle.dequantize(*operands[-1], format))
    check_in_every_layout(*operands, pair, values)


@every_layout
@every_pair
def test_every_output_and_bias_type_within_the_bound(rng, pair, layout):
    a, b, *values = random_problem(rng, (7, 50, 160), *pair)
    for dtype in DTYPES:
        for bias_dtype in (None, *DTYPES):
            bias = None
            if bias_dtype is not None:
                bias = torch_of(30 * rng.standard_normal(50), bias_dtype)
            got = product(a, b, pair, layout, out_dtype=dtype, bias=bias)
            assert got.dtype == getattr(torch, dtype)
            addend = None if bias is None else values_of(bias)
            lost = cut_off(got, pair, layout, *values)
            assert_matmul(values_of(got), *values, dtype, addend, more_error=lost)


@every_dtype
@every_pair
def test_results_beyond_the_output_type_are_infinite(rng, pair, dtype):
    left, right = pair
    a = random_operand(rng, 8, 64, 190, 195, format=left)
    b = random_operand(rng, 40, 64, 185, 190, format=right)
    got = values_of(product(a, b, pair, out_dtype=dtype))
    assert np.isinf(got).any() or left == right == "mxint8"
    assert_matmul(got, oracle.dequantize(*a, left), oracle.dequantize(*b, right), dtype)


# Claims that something changes no bit


@pytest.mark.cpu_only
@every_layout
@every_pair
def test_rows_of_a_do_not_depend_on_how_many_there_are(rng, pair, layout):
    a, b, *_ = random_problem(rng, (70, 50, 288), *pair)
    weights = mx_tensor(*b, layout, pair[1])
    whole = mx.matmul(mx_tensor(*a, format=pair[0]), weights, out_dtype="float32")
    for m in (1, 2, 3, 5, 8, 16, 31, 64):
        few = mx_tensor(a[0][:m], a[1][:m], format=pair[0])
        same_bits(mx.matmul(few, weights, out_dtype="float32"), whole[:m])


@pytest.mark.cpu_only
@every_layout
@every_pair
def test_every_layout_gives_the_bits_of_plain(rng, pair, layout):
    for m in (5, 19):
        a, b, *_ = random_problem(rng, (m, 50, 288), *pair)
        same_bits(product(a, b, pair, layout), product(a, b, pair))


@pytest.mark.cpu_only
@every_layout
@every_pair
def test_every_number_of_threads_gives_the_same_bits(rng, pair, layout):
    a, b, *_ = random_problem(rng, (33, 400, 512), *pair)
    torch.set_num_threads(1)
    expected = product(a, b, pair, layout)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        same_bits(product(a, b, pair, layout), expected)


@pytest.mark.cpu_only
@every_pair
def test_a_mode_that_flushes_subnormals_flushes_results_alone(rng, flushing, pair):
    """Elements, scales and sums on the way may be subnormal; only a result that is one is lost."""
    torch.set_num_threads(1)
    smallest = 2.0 ** oracle.FLOATS["float32"].min_exponent
    for low, high in ((0, 20), (50, 70), (117, 137)):
        a = random_operand(rng, 18, 96, low, high, format=pair[0])
        b = random_operand(rng, 35, 96, 240 - high, 254 - low, format=pair[1])
        expected = values_of(product(a, b, pair))
        with flushing():
            got = product(a, b, pair)
        got = values_of(got)
        kept = abs(expected) >= smallest
        assert kept.any()
        assert_bitwise_equal(np.where(kept, got, 0), np.where(kept, expected, 0))
        assert (abs(got) < smallest)[~kept].all()


@every_layout
def test_a_bias_may_be_a_view(rng, layout):
    a, b, *_ = random_problem(rng, (4, 33, 64))
    bias = torch_of(rng.standard_normal(66), "float32")[::2]
    pair = "mxfp4", "mxfp4"
    got = product(a, b, pair, layout, bias=bias)
    same_bits(got, product(a, b, pair, layout, bias=bias.clone()))


@pytest.mark.cpu_only
@every_pair
def test_codes_in_numpy_multiply_like_tensors(rng, pair):
    a, b, *values = random_problem(rng, (4, 33, 64), *pair)
    operands = mx.MXTensor(*a, format=pair[0]), mx.MXTensor(*b, format=pair[1])
    assert_matmul(values_of(mx.matmul(*operands, out_dtype="float32")), *values)


def test_there_are_thirty_six_pairs():
    assert len(FORMATS) ** 2 == 36


# Matrices by matrices.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("right", oracle.FORMATS)
@pytest.mark.parametrize("left", oracle.FORMATS)
def test_each_matrix_is_multiplied_by_its_own(rng, left, right, layout):
    lead = (3,) if len(left) % 2 else (2, 3)
    a, b = (torch_of(rng.standard_normal((*lead, rows, 64)), "float32") for rows in (5, 32))
    bias = torch_of(rng.standard_normal((*lead, 32)), "float32")
    a, b = mx.quantize(a, format=left), mx.quantize(b, format=right)
    w = b.preshuffle(device=LAYOUTS[layout]["device"]) if LAYOUTS[layout]["device"] else b
    got = mx.matmul(a, w, bias=bias, out_dtype="float32")
    assert tuple(got.shape) == (*lead, 5, 32)
    for at in np.ndindex(*lead):
        expected = mx.matmul(a[at], b[at], bias=bias[at], out_dtype="float32")
        if got.is_cuda:
            torch.testing.assert_close(got[at], expected, rtol=1e-5, atol=1e-4)
        else:
            assert torch.equal(got[at], expected)


def test_matrices_may_lie_apart_or_be_none_and_share_a_bias(rng):
    a, b = (torch_of(rng.standard_normal((6, rows, 64)), "bfloat16") for rows in (5, 32))
    a, b, bias = mx.quantize(a), mx.quantize(b), torch_of(rng.standard_normal(32), "float32")
    whole = mx.matmul(a, b, bias=bias)
    assert torch.equal(mx.matmul(a[::2], b[::2], bias=bias), whole[::2])
    each = [mx.matmul(a[i], b[i], bias=bias) for i in range(6)]
    assert torch.equal(torch.stack(each), whole)
    for rows in (slice(0, 0), slice(None)):
        none = mx.matmul(a[:0] if rows.stop == 0 else a[:, :0], b[:0] if rows.stop == 0 else b)
        assert none.numel() == 0 and none.shape[-1] == 32
    compiled = torch.compile(lambda a, b: mx.matmul(a, b, bias=bias), backend="aot_eager")
    assert torch.equal(compiled(a, b), whole)


def test_biases_of_matrices_have_a_gradient(rng):
    a, b = (mx.quantize(torch_of(rng.standard_normal((3, n, 64)), "float32")) for n in (5, 32))
    bias = torch.zeros(3, 32, requires_grad=True)
    mx.matmul(a, b, bias=bias, out_dtype="float32").sum().backward()
    assert bias.grad.tolist() == [[5.0] * 32] * 3
    _, pushed = torch.func.jvp(lambda x: mx.matmul(a, b, bias=x), (bias,), (torch.ones(3, 32),))
    assert pushed.tolist() == [[[1.0] * 32] * 5] * 3


@pytest.mark.cpu_only
def test_matrices_that_do_not_fit_are_refused():
    a, b = mx.quantize(torch.ones(3, 5, 64)), mx.quantize(torch.ones(2, 32, 64))
    for left, right in ((a, b), (a[0], b), (a, b[:1, None].view(1, 1, 32, 64))):
        with pytest.raises(ValueError, match=r"b: got shape .* as many matrices as a has"):
            mx.matmul(left, right)
    with pytest.raises(
        ValueError, match=r"bias: got shape \[3, 32\], expected \[32\] or \[2, 32\]"
    ):
        mx.matmul(a[:2], b, bias=torch.zeros(3, 32))
