"""Formats with float32 scales are the oracle: quantize bit for bit, products within the bound.

`fp8` and `fp8_e5m2` have a scale a row, `fp8_block` one for 1 x 128, `fp8_block_2d` one for
128 x 128. Blocks are cut where rows or the matrix end, so sizes here are no multiples of 128. A
scale is a quotient and not a power of two: a product is rounded twice more than one of MX formats.
`nvfp4` has E4M3 scales, and a float32 for each row, see `test_nvfp4`.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    DTYPES,
    FLOAT_FORMATS,
    FORMATS,
    FP8_FORMATS,
    NVFP4_FORMATS,
    blocks_of,
    cut_off,
    every_dtype,
    every_layout,
    every_value,
    float32_corners,
    floats_of,
    layout_of_rows,
    numbers_of,
    on_every_device,
    random_operand,
    torch_of,
    values_of,
)
from mx_kernels._core.facts import facts
from oracle import assert_bitwise_equal, assert_matmul

pytestmark = on_every_device
every_format = pytest.mark.parametrize("format", FLOAT_FORMATS)
every_fp8 = pytest.mark.parametrize("format", FP8_FORMATS)
RULES = [(name, rule) for name in FP8_FORMATS for rule in ("even", "rceil")]
RULES += [(name, "even") for name in NVFP4_FORMATS]
every_rule = pytest.mark.parametrize("format, scale_rule", RULES, ids="-".join)
ROWS = [name for name in FLOAT_FORMATS if oracle.FORMATS[name].block_rows == 1]
SCALE_ROUNDINGS = 2
SMALLEST_SCALES = {"e4m3": 2.0**-116, "e5m2": 2.0**-109, "e2m1": 2.0**-115}
"""Under them half the smallest number of an element, which may have an E4M3 scale, is the smallest
regular float32."""


def element_of(format):
    return oracle.FORMATS[format].element


def largest_of(format):
    """Returns the largest number, which may be that of a code times that of a scale."""
    kind = oracle.FORMATS[format]
    scale = oracle.ELEMENTS["e4m3"].largest if kind.scale == "e4m3" else 1.0
    return kind.element.largest * scale


def assert_quantizes(x, dtype, scale_rule, format):
    """Compares quantize with the oracle on float64 values that `dtype` holds."""
    q = mx.quantize(torch_of(x, dtype), format=format, scale_rule=scale_rule)
    codes, scales = oracle.quantize(x, scale_rule, format)
    assert (q.format, q.scales.dtype, q.codes.dtype) == (format, scale_dtype(format), torch.uint8)
    assert_bitwise_equal(q.scales.cpu().numpy(), scales)
    assert_bitwise_equal(q.codes.cpu().numpy(), codes, zeros_are_the_claim=True)
    return q


def scale_dtype(format):
    return torch.uint8 if format in NVFP4_FORMATS else torch.float32


def domain(dtype, format):
    return float32_corners(format) if dtype == "float32" else every_value(dtype)


def operand(rng, rows, k, format, spread=0):
    """Returns codes of every finite number, scales of any mantissa, and the exact values.

    The largest are near one, so that float16 holds their products.
    """
    if format in FORMATS:
        codes, scales = random_operand(rng, rows, k, format=format)
        return codes, scales, oracle.dequantize(codes, scales, format)
    element = element_of(format)
    codes = rng.integers(0, 256, (rows, oracle.FORMATS[format].packed_bytes(k))).astype(np.uint8)
    if format in NVFP4_FORMATS:
        scales = np.empty((rows, k // 16 + 4), np.uint8)
        scales[:, :-4] = rng.integers(0x10, 0x48, (rows, k // 16))
        tensor = np.float32(2.0 ** (rng.uniform(-spread, spread, (rows, 1)) - 2))
        floats_of(scales)[:] = tensor
        return codes, scales, oracle.dequantize(codes, scales, format)
    codes[np.isin(codes, element.special_codes)] = 1
    _, scales = oracle.quantize(np.zeros((rows, k)), format=format)
    exponents = rng.uniform(-spread, spread, scales.shape) - element.emax
    scales = np.float32(2.0**exponents)
    return codes, scales, oracle.dequantize(codes, scales, format)


def tensor(codes, scales, format, layout="plain"):
    q = mx.MXTensor(torch.tensor(codes), torch.tensor(scales), format=format)
    return q._relayout(facts().layouts[layout_of_rows(q.shape[-1], layout, format)])


# Quantize


@every_rule
@every_dtype
def test_every_value_as_the_largest_of_its_block(format, dtype, scale_rule):
    values = domain(dtype, format)
    finite = np.where(np.isfinite(values), values, 1.0)
    x = oracle.round_to(finite[:, None] * np.linspace(-1, 1, BLOCK), dtype)
    x[:, -1] = values
    if format == "fp8_block_2d":  # One block for 128 rows: those of one size each.
        order = np.argsort(abs(np.nan_to_num(values)), kind="stable")
        x = x[order][:: 1 if dtype == "float32" else 16]
    assert_quantizes(x, dtype, scale_rule, format)


@every_rule
@every_dtype
def test_every_value_under_a_fixed_largest(format, dtype, scale_rule):
    values, element = domain(dtype, format), element_of(format)
    finite = values[np.isfinite(values)]
    tops = [2.0**-24, 1.0, 7.0, 2.0**15]
    if dtype != "float16":
        smallest = largest_of(format) * SMALLEST_SCALES[element.name]
        tops += [2.0**-133, smallest / 2, smallest, 1.5 * smallest, 2.0**-20, 2.0**100]
    for top in tops:
        assert_quantizes(blocks_of(finite, top), dtype, scale_rule, format)


@every_fp8
def test_every_tie_of_the_elements_goes_to_the_even_code(format):
    """Under a scale of one, which the largest number gives: the middles, and their neighbours."""
    magnitudes = element_of(format).magnitudes
    middles = np.float32((magnitudes[1:] + magnitudes[:-1]) / 2)
    around = [middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(9e9))]
    around = np.concatenate([*around, *np.negative(around)]).astype(np.float64)
    x = blocks_of(around, magnitudes[-1])
    q = assert_quantizes(x, "float32", "even", format)
    assert (q.scales == 1).all()


@every_rule
@every_dtype
def test_zeros_keep_their_signs_under_the_smallest_scale(format, dtype, scale_rule):
    x = np.tile([0.0, -0.0], (130, 80))
    q = assert_quantizes(x, dtype, scale_rule, format)
    scales = q.scales if q.tensor_scale is None else q.tensor_scale
    assert (scales == SMALLEST_SCALES[element_of(format).name]).all()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@every_dtype
@every_format
def test_a_nan_or_infinity_makes_its_block_nan_and_no_other(format, dtype, bad):
    x = oracle.round_to(np.tile(np.linspace(-4, 4, 288), (200, 1)), dtype)
    x[150, 200] = bad
    q = assert_quantizes(x, dtype, "even", format)
    kind = oracle.FORMATS[format]
    expected = min(kind.block_rows, 200 - 128) * min(kind.block_k, 288)
    assert int(q.dequantize("float32").isnan().sum()) == expected


@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (2, 3, 160), (2, 130, 288), (513, 160)])
@every_rule
@every_dtype
def test_every_shape_and_blocks_cut_at_its_ends(rng, format, shape, scale_rule, dtype):
    x = oracle.round_to(rng.standard_normal(shape) * 2.0 ** rng.uniform(-9, 9, shape), dtype)
    q = assert_quantizes(x, dtype, scale_rule, format)
    assert tuple(q.shape) == shape


@pytest.mark.cpu_only
@every_dtype
@every_format
def test_a_view_and_any_number_of_threads_give_the_bits_of_a_copy(rng, format, dtype):
    x = torch_of(rng.standard_normal((700, 400)), dtype)[:, 32:352]
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        q = mx.quantize(x, format=format)
        codes, scales = oracle.quantize(values_of(x), format=format)
        assert_bitwise_equal(q.codes.numpy(), codes)
        assert_bitwise_equal(q.scales.numpy(), scales)


@pytest.mark.cpu_only
@every_format
def test_a_mode_that_flushes_subnormals_changes_nothing(flushing, format):
    values = domain("bfloat16", format)
    tiny = values[abs(values) <= 2.0**-100]
    x = blocks_of(tiny, 2.0**-100)
    expected = oracle.quantize(x, format=format)
    torch.set_num_threads(1)
    given = torch_of(x, "bfloat16")
    with flushing():
        q = mx.quantize(given, format=format)
    assert_bitwise_equal(q.codes.numpy(), expected[0])
    assert_bitwise_equal(q.scales.numpy(), expected[1])


# Dequantize and layouts


@every_layout
@every_dtype
@every_format
def test_decoding_rounds_the_product_of_code_and_scale(rng, format, dtype, layout):
    codes, scales, values = operand(rng, 200, 288, format, spread=4)
    special = element_of(format).special_codes
    codes[3, : len(special)] = special
    rare = np.float32([np.inf, -np.inf, 2.0**-130, 2.0**-149])
    if format in NVFP4_FORMATS:
        floats_of(scales)[:4, 0] = rare
        scales[4:19, :-4] = np.arange(15 * 18).reshape(15, 18) % 256
    else:
        scales.flat[:4] = rare
    q = tensor(codes, scales, format, layout)
    with np.errstate(invalid="ignore"):
        expected = oracle.round_to(oracle.dequantize(codes, scales, format), dtype)
    assert_bitwise_equal(values_of(q.dequantize(dtype)), expected)
    assert np.isfinite(values).all()


@every_layout
@pytest.mark.parametrize("format", FP8_FORMATS)
def test_a_layout_moves_codes_and_leaves_scales(rng, format, layout):
    codes, scales, _ = operand(rng, 33, 96, format)
    q = tensor(codes, scales, format, layout)
    stored, _ = oracle.LAYOUTS[layout].store(codes, np.zeros((33, 3), np.uint8))
    assert_bitwise_equal(q.codes.cpu().numpy().ravel(), stored.ravel())
    assert_bitwise_equal(q.scales.cpu().numpy(), scales)
    back = q.unshuffle()
    assert_bitwise_equal(back.codes.cpu().numpy(), codes)


@pytest.mark.parametrize("format", FP8_FORMATS)
def test_cuda_reads_codes_under_float_scales_as_they_lie(rng, format):
    q = tensor(*operand(rng, 33, 96, format)[:2], format)
    assert q.preshuffle("cuda") is q and q.preshuffle("cpu").preshuffle("cuda").layout == "plain"
    assert mx.quantize(torch.randn(33, 96), format="mxfp8").preshuffle("cuda").layout != "plain"


# Products

SHAPES = [(1, 1, 32), (1, 130, 160), (3, 33, 288), (9, 144, 224), (40, 17, 2880), (2, 16, 128)]
PAIRS = [
    *((left, right) for left in FLOAT_FORMATS for right in FLOAT_FORMATS),
    *((left, right) for left in FORMATS for right in (FP8_FORMATS[-1], *NVFP4_FORMATS)),
    *(("nvfp4", right) for right in FORMATS),
    *(("fp8_block", right) for right in FORMATS),
]


@every_layout
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_matmul_is_the_product_of_the_dequantized_operands(rng, pair, layout):
    for m, n, k in SHAPES:
        *a, x = operand(rng, m, k, pair[0], spread=3)
        *b, w = operand(rng, n, k, pair[1], spread=3)
        bias = np.float64(rng.standard_normal(n).astype(np.float32))
        left, right = tensor(*a, pair[0]), tensor(*b, pair[1], layout)
        for out in DTYPES:
            got = mx.matmul(left, right, out_dtype=out, bias=torch_of(bias, "float32"))
            lost = cut_off(got, pair, layout, x, w)
            assert_matmul(values_of(got), x, w, out, bias, scale_roundings=SCALE_ROUNDINGS,
                          more_error=lost)  # fmt: skip


@every_format
@pytest.mark.parametrize("lead", [(1,), (3,), (2, 2), (0,), (2, 0, 1)])
@pytest.mark.parametrize("rows", [1, 4, 128, 130])
def test_each_matrix_of_a_batch_is_multiplied_under_its_own_scales(rng, format, lead, rows):
    sizes = 10.0 ** np.arange(np.prod(lead)).reshape(*lead, 1, 1)
    x = torch.tensor(sizes * rng.standard_normal((*lead, rows, 160)), dtype=torch.float32)
    a, w = mx.quantize(x, format=format), tensor(*operand(rng, 17, 160, "mxfp4")[:2], "mxfp4")
    got = mx.matmul(a, w, out_dtype="float32")
    assert got.shape == (*lead, rows, 17)
    for at in np.ndindex(lead):
        alone = mx.matmul(a[at], w, out_dtype="float32")
        assert got.is_cuda or torch.equal(got[at], alone)
        values = numbers_of(a[at]), numbers_of(w)
        assert_matmul(values_of(got[at]), *values, scale_roundings=SCALE_ROUNDINGS)
    if lead == (3,):
        last = mx.matmul(a[1:], w, out_dtype="float32")
        assert got.is_cuda or torch.equal(last, got[1:])


@every_layout
@every_format
def test_weight_only_is_the_product_with_bfloat16(rng, format, layout):
    for m, n, k in SHAPES:
        *b, w = operand(rng, n, k, format, spread=3)
        x = oracle.round_to(rng.standard_normal((m, k)), "bfloat16")
        got = mx.linear(
            torch_of(x, "bfloat16"), tensor(*b, format, layout), activations="bf16",
            out_dtype="float32",
        )  # fmt: skip
        assert_matmul(values_of(got), x, w, scale_roundings=SCALE_ROUNDINGS)


@pytest.mark.parametrize(
    "activations, scale_rule", [rule for rule in RULES if rule[0] in ROWS], ids="-".join
)
@every_dtype
@every_format
def test_linear_is_matmul_of_what_quantize_gives(rng, format, activations, dtype, scale_rule):
    for m, n, k in SHAPES:
        w = tensor(*operand(rng, n, k, format, spread=3)[:2], format, "preshuffled_cpu")
        x = torch_of(rng.standard_normal((m, k + 32)), dtype)[:, :k]
        got = mx.linear(x, w, activations=activations, scale_rule=scale_rule)
        a = mx.quantize(x, format=activations, scale_rule=scale_rule)
        expected = mx.matmul(a, w, out_dtype=dtype)
        if got.device.type == "cpu":
            assert_bitwise_equal(values_of(got), values_of(expected), zeros_are_the_claim=True)
        _, scales = a.codes, a.scales.cpu().numpy()
        exact = oracle.dequantize(a.codes.cpu().numpy(), scales, activations)
        plain = w.unshuffle()
        weights = plain.codes.cpu().numpy(), plain.scales.cpu().numpy()
        values = oracle.dequantize(*weights, format)
        assert_matmul(values_of(got), exact, values, dtype, scale_roundings=SCALE_ROUNDINGS)


@pytest.mark.parametrize("exponents", [(-126, -100), (-60, -50), (-20, 20), (50, 60), (100, 120)])
@pytest.mark.parametrize("right", FLOAT_FORMATS)
@pytest.mark.parametrize("left", ROWS)
def test_scales_of_every_size_give_what_float32_can_say(rng, left, right, exponents):
    """Where float32 could not hold a block's sum or scale, the sums are taken in float64."""
    m, n, k = 5, 20, 160
    codes_a, scales_a, _ = operand(rng, m, k, left)
    codes_b, scales_b, _ = operand(rng, n, k, right)
    codes_a[0], codes_b[3] = 0, 0
    floats_a, floats_b = floats_of(scales_a), floats_of(scales_b)
    floats_a *= np.float32(2.0 ** rng.uniform(*exponents, floats_a.shape))
    floats_b *= np.float32(2.0 ** rng.uniform(-12, 12, floats_b.shape))
    floats_b[0, 0] = 0
    a, b = (codes_a, scales_a), (codes_b, scales_b)
    got = mx.matmul(tensor(*a, left), tensor(*b, right), out_dtype="float32")
    x, w = oracle.dequantize(*a, left), oracle.dequantize(*b, right)
    assert_matmul(values_of(got), x, w, scale_roundings=SCALE_ROUNDINGS)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("bad", ["code", "nan", "inf"])
@pytest.mark.parametrize("format", ROWS)
def test_nan_and_infinity_reach_what_they_feed(rng, format, bad, side):
    a, b = operand(rng, 5, 288, format)[:2], operand(rng, 20, 288, format)[:2]
    codes, scales = a if side == "left" else b
    if bad == "code":
        if format in NVFP4_FORMATS:
            scales[2, 9] = oracle.ELEMENTS["e4m3"].special_codes[0]
        else:
            codes[2, 200] = element_of(format).special_codes[0]
    else:
        floats_of(scales)[2, -1] = np.float32(bad)
    got = mx.matmul(tensor(*a, format), tensor(*b, format), out_dtype="float32")
    # A GPU multiplies the sum of a block by an infinite scale, not its zeros one by one.
    if bad != "inf" or got.device.type == "cpu":
        x, w = oracle.dequantize(*a, format), oracle.dequantize(*b, format)
        assert_matmul(values_of(got), x, w, scale_roundings=SCALE_ROUNDINGS)
    touched = values_of(got)[2] if side == "left" else values_of(got)[:, 2]
    assert not np.isfinite(touched).any()


@every_format
def test_the_table_says_which_rules_fit_and_which_are_activations(format):
    row = facts().formats[format]
    assert row.roundings == [rule for name, rule in RULES if name == format]
    assert row.has_float_scales == (format in FP8_FORMATS)
    ordered = {name for name, layout in facts().layouts.items() if not layout.keeps_scales(row)}
    orders = {name for name, layout in oracle.LAYOUTS.items() if layout.e4m3_run}
    assert ordered == (orders if format == "nvfp4" else set())
    assert (format in facts().activations) == (oracle.FORMATS[format].block_rows == 1)


# Experts


@pytest.mark.cpu_only
@pytest.mark.parametrize("activations", [*ROWS, "bf16"])
@every_format
def test_experts_equal_their_products_one_by_one(rng, format, activations):
    x = torch_of(rng.standard_normal((12, 160)), "float32")
    w = mx.quantize(torch_of(rng.standard_normal((3, 48, 160)), "float32"), format=format)
    sizes = torch.tensor([5, 0, 7], dtype=torch.int32)
    for weights in (w, w.preshuffle("cpu")):
        got = mx.grouped_linear(x, weights, sizes, activations=activations)
        expected = [
            mx.linear(x[:5], weights[0], activations=activations),
            mx.linear(x[5:], weights[2], activations=activations),
        ]
        assert torch.equal(got, torch.cat(expected))


@pytest.mark.cpu_only
def test_a_layer_of_experts_takes_float_scales(rng):
    up = mx.quantize(torch_of(rng.standard_normal((2, 320, 96)), "float32"), format="fp8_block_2d")
    down = mx.quantize(torch_of(rng.standard_normal((2, 96, 160)), "float32"), format="fp8_block")
    x = torch_of(rng.standard_normal((4, 96)), "float32")
    ids, one = torch.tensor([[0], [1], [1], [0]]), torch.ones(4, 1)
    got = mx.moe(x, up, down, ids, one, hidden_act="silu", activations="fp8_block")
    for token, expert in enumerate(ids[:, 0]):
        gate_up = mx.linear(x[token : token + 1], up[expert], activations="fp8_block")
        gate, linear = gate_up[:, :160], gate_up[:, 160:]
        hidden = torch.nn.functional.silu(gate) * linear
        row = mx.linear(hidden, down[expert], activations="fp8_block")
        torch.testing.assert_close(got[token : token + 1], row, rtol=0.05, atol=0.5)
