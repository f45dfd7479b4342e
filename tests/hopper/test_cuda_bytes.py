"""Codes of E4M3 on both sides on FP8 tensor cores: bounded, and exact where sums are small.

Other tests of float scales are `numerics/test_fp8`. Results of float32 and weights in another
layout go to the portable kernel.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import E4M3_FORMATS, codes_far_below, far_blocks, numbers_of, ones_there, values_of
from mx_kernels._core.cuda import CUDA

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)

NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
ROWS, BLOCKS, SQUARES = E4M3_FORMATS
MX = ("mxfp8", "mxfp8")
NARROW = ("mxfp8", "mxfp4")
SIXES = [("mxfp8", "mxfp6"), ("mxfp6", "mxfp6"), ("mxfp6_e3m2", "mxfp6_e3m2")]
"""K of six-bit weights is a multiple of 64, or they stay plain."""
PAIRS = [*((left, right) for left in E4M3_FORMATS for right in E4M3_FORMATS), MX, NARROW, *SIXES]
LINEAR = [(ROWS, ROWS), (BLOCKS, SQUARES), MX, NARROW, *SIXES]
SCALE_ROUNDINGS = 2
SHAPES = [
    (1, 32, 32), (7, 33, 160), (16, 129, 128), (33, 100, 96), (193, 257, 1056), (300, 130, 512),
    (385, 1000, 2080), (2600, 2300, 544), (4200, 4300, 96),
]  # fmt: skip
PLANS = [
    "", "ss_e4m3 128x128 prepared", "rs_e4m3 64x128 splitK2", "rs_e4m3 128x128",
    "rs_e4m3 128x128 splitK4", "ss_e4m3 64x256 prepared", "ss_e4m3 128x128 splitK2 prepared",
    "ss_e4m3 64x64", "ss_e4m3 128x128", "ss_e4m3 64x64 splitK4", "ss_e4m3 128x128 splitK2",
    "ss_e4m3 64x128", "ss_e4m3 64x128 splitK8",
]  # fmt: skip
"""Those of MX formats, and of float scales; of the others, the table chooses."""


@pytest.fixture(autouse=True, params=PLANS)
def plan(request, monkeypatch):
    """Leaves the choice to the table, then takes one plan after the other."""
    monkeypatch.setattr(CUDA, "plan", request.param)


def scaled(scales, exponents):
    """Writes powers of two, of whole exponents where scales are bytes."""
    scales.copy_(2.0**exponents if scales.is_floating_point() else 127 + exponents.round())


def coded(rows, k, format, seed=0, spread=3):
    """Returns random codes, and float scales of any mantissa."""
    generator = torch.Generator(device="cuda").manual_seed(rows + 3 * k + seed)
    q = mx.quantize(torch.randn(rows, k, generator=generator, device="cuda"), format=format)
    exponents = torch.rand(q.scales.shape, generator=generator, device="cuda")
    scaled(q.scales, 2 * spread * exponents - spread - 6)
    return q


def small_integers(rows, k, format, seed):
    """Returns codes of -2 .. 2 under powers of two: every sum of a stage is exact, and C too."""
    generator = torch.Generator(device="cuda").manual_seed(rows + 3 * k + seed)
    x = torch.randint(-2, 3, (rows, k), generator=generator, device="cuda").float()
    q = mx.quantize(x, format=format)
    if "fp8" in format:  # codes of others are small integers anyway
        q.codes.copy_(x.to(torch.float8_e4m3fn).view(torch.uint8))
    exponents = torch.randint(-2, 3, q.scales.shape, generator=generator, device="cuda")
    scaled(q.scales, exponents.float())
    return q


def check(a, w, *, dtype=torch.bfloat16, bias=None, more_error=0.0):
    got = mx.matmul(a, w.preshuffle(), bias=bias, out_dtype=dtype)
    x, y = numbers_of(a), numbers_of(w)
    lost = 0.0 if dtype == torch.float32 else oracle.fp8_cutoff_bound(x, y)
    bias = None if bias is None else values_of(bias)
    oracle.assert_matmul(values_of(got), x, y, NAMES[dtype], bias,
                         scale_roundings=SCALE_ROUNDINGS, more_error=lost + more_error)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_products_of_small_integers_are_exact(pair, shape):
    m, n, k = shape
    k += -k % (64 if pair in SIXES else 32)
    if m * n > 1e6 and pair not in LINEAR:
        m, n, k = 200, 300, k + 128
    a, w = small_integers(m, k, pair[0], 1), small_integers(n, k, pair[1], 2)
    got = mx.matmul(a, w.preshuffle(), out_dtype=torch.bfloat16)
    exact = (
        mx.dequantize(a, dtype="float32").double() @ mx.dequantize(w, dtype="float32").double().T
    )
    assert exact.any() and torch.equal(got, exact.bfloat16())


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_products_of_any_codes_are_within_the_bound(pair):
    for m, n, k in [(5, 40, 288), (70, 130, 576)]:
        check(coded(m, k, pair[0], 1), coded(n, k, pair[1], 2))


@pytest.mark.parametrize("pair", LINEAR, ids="-".join)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_bias_is_added_after_the_scales(dtype, pair):
    for n in (40, 35):
        bias = torch.randn(n, device="cuda").to(dtype)
        check(coded(70, 448, pair[0]), coded(n, 448, pair[1]), dtype=dtype, bias=bias)


@pytest.mark.parametrize("scale_rule", ["even", "rceil"])
@pytest.mark.parametrize("left, right", LINEAR)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_linear_is_matmul_of_what_quantize_gives(dtype, left, right, scale_rule):
    for m, n, k in [(3, 40, 96), (200, 130, 2368), (70, 64, 4128)]:
        x = (torch.randn(m, k, device="cuda") * 2.0 ** torch.randint(-9, 9, (m, 1)).cuda()).to(
            dtype
        )
        x[m // 2], x[0, :32] = 0, 0
        w = coded(n, k, right).preshuffle()
        got = mx.linear(x, w, activations=left, scale_rule=scale_rule, out_dtype=torch.bfloat16)
        a = mx.quantize(x, format=left, scale_rule=scale_rule)
        assert got.any() and torch.equal(got, mx.matmul(a, w, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("row, scale, other", [(0, 2.0**-140, 20), (-1, 2.0**110, -60), (0, 0, 0)])
@pytest.mark.parametrize("right", E4M3_FORMATS)
@pytest.mark.parametrize("left", [ROWS, BLOCKS])
def test_scales_beyond_float32_sums_take_another_way(left, right, row, scale, other):
    a, w = coded(70, 288, left), coded(200, 288, right)
    a.scales.mul_(2.0**other)
    w.scales[row] = scale
    check(a, w)


@pytest.mark.parametrize("left, right", [(0, 254), (254, 0), (200, 40), (40, 200), (127, 1)])
@pytest.mark.parametrize("weights", ["mxfp8", "mxfp4", "mxfp6", "mxfp6_e3m2"])
def test_scales_of_mx_blocks_are_any_power_of_two(weights, left, right):
    a, w = coded(70, 448, "mxfp8"), coded(200, 448, weights, 1)
    a.scales[:, 1:3], w.scales[:150, 1:3] = left, right
    check(a, w)
    a.scales[:], w.scales[:] = left, right
    check(a, w)


@pytest.mark.parametrize("weights", ["mxfp8", "mxfp4"])
def test_codes_below_the_largest_scale_of_their_stage_are_rounded_once_more(weights):
    a, expected = codes_far_below("cuda")
    got = mx.matmul(a, ones_there(weights, "cuda").preshuffle(), out_dtype=torch.bfloat16)
    assert torch.equal(got.float(), expected)


def test_codes_below_the_largest_scale_of_a_weight_row_are_too():
    w, expected = codes_far_below("cuda")
    # Weight rows have one base, those of the last block would have none.
    w.scales[:, 4], expected[:, 2] = w.scales[:, 0], expected[:, 2] * 2.0**25
    got = mx.matmul(ones_there("mxfp8", "cuda"), w.preshuffle(), out_dtype=torch.bfloat16)
    assert torch.equal(got.float().T, expected)


def test_small_blocks_beside_large_ones_are_within_the_bound_of_a_common_scale():
    a, w = far_blocks("cuda")
    check(a, w, more_error=oracle.common_scale_bound(numbers_of(a), numbers_of(w)))


def test_scales_of_activations_may_have_any_size():
    for exponent in (-140, -100, 60, 100):
        for left, right in LINEAR[:2]:
            a, w = coded(40, 288, left), coded(50, 288, right)
            a.scales.mul_(2.0**exponent)
            check(a, w)


@pytest.mark.parametrize("pair", [(ROWS, ROWS), (BLOCKS, BLOCKS), MX], ids="-".join)
def test_what_is_no_number_reaches_what_it_feeds_and_nothing_else(pair):
    a, w = coded(200, 288, pair[0]), coded(140, 288, pair[1])
    a.codes[3, 200], w.codes[9, 287] = 0x7F, 0xFF
    a.scales[150, 0] = 255 if pair == MX else float("nan")
    w.scales[130, 0] = 255 if pair == MX else float("inf")
    got = mx.matmul(a, w.preshuffle(), out_dtype=torch.bfloat16)
    rows, columns = torch.zeros(200, 1).cuda() > 0, torch.zeros(140).cuda() > 0
    rows[[3, 150]], columns[[9, 130]] = True, True
    assert torch.equal(~got.isfinite(), rows | columns)


def test_activations_that_are_no_numbers_spoil_their_block_or_row():
    x = torch.randn(200, 288, device="cuda").bfloat16()
    x[7, 5], x[199, 287] = float("nan"), float("inf")
    for left, right in LINEAR:
        got = mx.linear(x, coded(64, 288, right).preshuffle(), activations=left)
        assert got.isnan().all(1).nonzero().flatten().tolist() == [7, 199]
        assert int(got.isnan().sum()) == 128


def test_what_it_does_not_take_is_multiplied_all_the_same():
    a, w = coded(40, 288, BLOCKS), coded(50, 288, SQUARES)
    x, y = numbers_of(a), numbers_of(w)
    for weights in (w, w.preshuffle("cpu")):
        got = mx.matmul(a, weights, out_dtype=torch.float32)
        oracle.assert_matmul(values_of(got), x, y, scale_roundings=SCALE_ROUNDINGS)
    kept = torch.randn(40, 288, device="cuda").bfloat16()
    got = mx.linear(kept, w.preshuffle(), activations="bf16", out_dtype=torch.float32)
    oracle.assert_matmul(values_of(got), values_of(kept), y, scale_roundings=SCALE_ROUNDINGS)


def test_a_graph_replays_with_new_activations_on_its_own_stream():
    x = torch.randn(300, 416, device="cuda").bfloat16()
    w = mx.quantize(torch.randn(200, 416, device="cuda"), format=SQUARES).preshuffle()
    mx.linear(x, w, activations=BLOCKS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mx.linear(x, w, activations=BLOCKS)
    for _ in range(3):
        x.copy_(torch.randn(300, 416, device="cuda"))
        graph.replay()
        assert torch.equal(out, mx.linear(x, w, activations=BLOCKS))
    x64 = mx.dequantize(mx.quantize(x, format=BLOCKS), dtype="float32").double()
    w64 = mx.dequantize(w.unshuffle(), dtype="float32").double()
    assert float((out - x64 @ w64.T).norm() / (x64 @ w64.T).norm()) < 3e-3


def test_a_product_gives_the_same_bits_every_time():
    for left, right in LINEAR:
        a, w = coded(1000, 1088, left), coded(1000, 1088, right).preshuffle()
        first = mx.matmul(a, w, out_dtype=torch.bfloat16)
        for _ in range(20):
            assert torch.equal(first, mx.matmul(a, w, out_dtype=torch.bfloat16))
        assert np.isfinite(values_of(first)).all()
