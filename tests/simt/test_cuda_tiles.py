"""Products of more than a few rows by the portable kernels, which tile them on tensor cores.

A GPU with kernels of its own leaves them to the portable ones here. What all kernels share is
claimed in `numerics`, also with `--portable`; here are sizes and numbers at which tiles turn.
"""

import pytest
import torch

import mx_kernels as mx
import oracle
from cases import E4M3_FORMATS, FLOAT_FORMATS, FORMATS, LAYOUTS, numbers_of, same_bits, values_of
from mx_kernels._core.cuda import CUDA, PORTABLE

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)

LEFT = [name for name in oracle.FORMATS if oracle.FORMATS[name].block_rows == 1]
PAIRS = [(left, right) for left in LEFT for right in oracle.FORMATS]
NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
SCALE_ROUNDINGS = 2
SHAPES = [
    (17, 1, 32), (64, 128, 64), (65, 129, 160), (63, 127, 288), (130, 300, 416), (257, 140, 1056),
]  # fmt: skip
NO_RULE = ("nvfp4", "rceil")
"""Its scales have no powers of two to go up to."""
LARGE = (1300, 1290, 96)
"""More than 96 tiles of 128 x 128, the last of them cut."""


@pytest.fixture(autouse=True)
def _portable_kernels_on_the_device():
    torch.set_default_device("cuda")
    torch.manual_seed(7)
    plan, CUDA.plan = CUDA.plan, PORTABLE
    yield
    CUDA.plan = plan
    torch.set_default_device(None)


def coded(rows, k, format, spread=3):
    """Returns codes of random numbers, and scales of some sizes."""
    q = mx.quantize(torch.randn(rows, k), format=format)
    exponents = 2 * spread * torch.rand(q.scales.shape) - spread
    if q.tensor_scale is not None:
        floats = q.tensor_scale.unsqueeze(-1) * 2.0 ** exponents[:, :1]
        q.scales[:, -4:] = floats.view(torch.uint8)
    elif q.scales.is_floating_point():
        q.scales.mul_(2.0**exponents)
    else:
        q.scales.copy_(q.scales + exponents.round())
    return q


def check(got, left, w, bias=None):
    x = numbers_of(left) if isinstance(left, mx.MXTensor) else values_of(left)
    bias = None if bias is None else values_of(bias)
    dtype = NAMES[got.dtype]
    oracle.assert_matmul(
        values_of(got), x, numbers_of(w), dtype, bias, scale_roundings=SCALE_ROUNDINGS
    )


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_in_every_layout_at_the_edges_of_tiles(pair):
    for index, (m, n, k) in enumerate(SHAPES):
        a, w = coded(m, k, pair[0]), coded(n, k, pair[1])
        layout = list(LAYOUTS)[index % len(LAYOUTS)]
        weights = w if layout == "plain" else w.preshuffle(LAYOUTS[layout]["device"])
        check(mx.matmul(a, weights, out_dtype=torch.float32), a, w)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("right", FORMATS + FLOAT_FORMATS)
def test_every_layout_gives_the_bits_of_plain(right, layout):
    for m, n, k in ((40, 200, 352), (150, 70, 1024)):
        a, w = coded(m, k, "mxfp8"), coded(n, k, right)
        weights = w if layout == "plain" else w.preshuffle(LAYOUTS[layout]["device"])
        same_bits(mx.matmul(a, weights), mx.matmul(a, w))


@pytest.mark.parametrize("right", FORMATS + FLOAT_FORMATS)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_activations_that_stay_floats(dtype, right):
    for m, n, k in SHAPES:
        x, w, bias = torch.randn(m, k + 40).to(dtype), coded(n, k, right), torch.randn(n).to(dtype)
        for view in (x[:, :k], x[:, 1 : k + 1], x[:, 8 : k + 8].contiguous()):
            for out in (dtype, torch.float32):
                got = mx.linear(view, w, bias=bias, activations="bf16", out_dtype=out)
                check(got, view.bfloat16(), w, bias)


@pytest.mark.parametrize(
    "left, scale_rule",
    [(left, rule) for left in LEFT for rule in ("even", "rceil") if (left, rule) != NO_RULE],
)
def test_linear_is_matmul_of_what_quantize_gives(left, scale_rule):
    for m, n, k in ((33, 70, 4128), (200, 130, 96)):
        x = torch.randn(m, k) * 2.0 ** torch.randint(-9, 9, (m, 1))
        x[m // 2], x[0, :32] = 0, 0
        for right in ("mxfp4", "fp8_block_2d"):
            w = coded(n, k, right)
            for floats in (x, x.bfloat16(), x.half()):
                a = mx.quantize(floats, format=left, scale_rule=scale_rule)
                got = mx.linear(floats, w, activations=left, scale_rule=scale_rule)
                same_bits(got, mx.matmul(a, w, out_dtype=floats.dtype))


@pytest.mark.parametrize("right", FORMATS)
def test_large_products_have_tiles_of_twice_the_rows(right):
    m, n, k = LARGE
    a, w = coded(m, k, "mxfp8"), coded(n, k, right)
    got = mx.matmul(a, w, out_dtype=torch.float32)
    check(got, a, w)
    check(mx.matmul(a, w, out_dtype=torch.bfloat16), a, w)


@pytest.mark.parametrize("m", [15, 16, 17, 18])
def test_rows_where_tiles_begin(m):
    for left, right in (("mxfp4", "mxfp4"), ("fp8", "mxint8")):
        a, w = coded(m, 544, left), coded(100, 544, right)
        check(mx.matmul(a, w, out_dtype=torch.float32), a, w)


@pytest.mark.parametrize("left, right", [(0, 254), (254, 0), (200, 40), (40, 200), (127, 1)])
@pytest.mark.parametrize("pair", [(a, b) for a in FORMATS for b in FORMATS], ids="-".join)
def test_scales_that_numbers_cannot_hold_in_some_rows_and_columns(pair, left, right):
    a, w = coded(150, 416, pair[0]), coded(200, 416, pair[1])
    plain = mx.matmul(a, w, out_dtype=torch.float32)
    a.scales[70, 1:3], w.scales[[5, 190], 1:3] = left, right
    got = mx.matmul(a, w, out_dtype=torch.float32)
    check(got, a, w)
    rows, columns = torch.arange(150) != 70, ~torch.isin(torch.arange(200), torch.tensor([5, 190]))
    same_bits(got[rows][:, columns], plain[rows][:, columns])


@pytest.mark.parametrize("row, scale, other", [(0, 2.0**-140, 20), (-1, 2.0**110, -60), (0, 0, 0)])
@pytest.mark.parametrize("pair", [(a, b) for a in ("fp8", "fp8_block", "mxfp8", "mxfp4")
                                  for b in E4M3_FORMATS], ids="-".join)  # fmt: skip
def test_float_scales_of_any_size(pair, row, scale, other):
    a, w = coded(70, 288, pair[0]), coded(200, 288, pair[1])
    if a.scales.is_floating_point():
        a.scales.mul_(2.0**other)
    else:
        a.scales.copy_(a.scales + other)
    w.scales[row] = scale
    check(mx.matmul(a, w, out_dtype=torch.float32), a, w)


def test_activations_of_any_size_by_float_scales():
    for exponent in (-110, -60, 30, 60, 100):
        x, w = torch.randn(40, 288).bfloat16() * 2.0**exponent, coded(50, 288, "fp8_block_2d")
        x[:20] /= 2.0**exponent
        for scale in (1.0, 2.0**-exponent):
            w.scales.mul_(scale)
            check(mx.linear(x, w, activations="bf16", out_dtype=torch.float32), x, w)


@pytest.mark.parametrize("pair", [("mxfp8", "mxfp8"), ("fp8_block", "fp8_e5m2")], ids="-".join)
def test_what_is_no_number_reaches_what_it_feeds_and_nothing_else(pair):
    a, w = coded(200, 288, pair[0]), coded(140, 288, pair[1])
    a.codes[3, 200], w.codes[9, 287] = 0x7F, 0xFF
    a.scales[150, 0] = 255 if pair[0] == "mxfp8" else float("nan")
    w.scales[130, 0] = 255 if pair[1] == "mxfp8" else float("inf")
    got = mx.matmul(a, w, out_dtype=torch.bfloat16)
    rows, columns = torch.zeros(200, 1) > 0, torch.zeros(140) > 0
    rows[[3, 150]], columns[[9, 130]] = True, True
    assert torch.equal(~got.isfinite(), rows | columns)


def test_weights_at_any_address():
    a, w = coded(70, 288, "mxfp4"), coded(200, 288, "mxfp8")
    for shift in (1, 2, 4, 8):
        room = torch.zeros(w.codes.numel() + shift, dtype=torch.uint8)[shift:].view(w.codes.shape)
        moved = mx.MXTensor(room.copy_(w.codes), w.scales, format="mxfp8")
        check(mx.matmul(a, moved, out_dtype=torch.float32), a, w)


def test_a_graph_replays_with_new_activations():
    x, w = torch.randn(300, 416).bfloat16(), mx.quantize(torch.randn(200, 416), format="mxint8")
    modes = ("mxint8", "bf16")
    for mode in modes:
        mx.linear(x, w, activations=mode)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [mx.linear(x, w, activations=mode) for mode in modes]
    for _ in range(3):
        x.copy_(torch.randn(300, 416))
        graph.replay()
        for mode, result in zip(modes, results, strict=True):
            same_bits(result, mx.linear(x, w, activations=mode))


def test_a_product_gives_the_same_bits_every_time():
    for left, right in (("mxfp4", "mxfp4"), ("fp8_block", "fp8_block_2d")):
        a, w = coded(1000, 1056, left), coded(1000, 1056, right)
        first = mx.matmul(a, w)
        for _ in range(20):
            same_bits(mx.matmul(a, w), first)
