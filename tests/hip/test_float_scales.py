"""FP8 with float32 scales on gfx950 through HIP, more rows than `test_ops` has; NVFP4; floats.

As there, a stand-in for the runtime, and the simulator for the GPU: nothing here ran on one.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from tests.tiers import deep

DEVICE = "gfx950"
SHAPE = (513, 1100, 1152)
"""Too many rows for the kernels whose waves share K, too few for the large tiles."""
SCALE_ROUNDINGS = 2
"""Of products: float scales are no powers of two."""
LAYOUT = "preshuffled_cdna4"
NVFP4_SHAPES = [(5, 40, 160), (5, 40, 4128), (70, 100, 544), (1025, 2048, 544)]
"""Few rows, K that workgroups share, more rows, and large tiles; K ends within a stage."""


def numbers(rng, rows, k):
    return torch.from_numpy(rng.standard_normal((rows, k))).to(torch.bfloat16)


def quantized(x, fmt):
    """Returns what the device makes of numbers, and what that stands for."""
    q = mx.quantize(x, format=fmt)
    return q, oracle.dequantize(q.codes.numpy(), q.scales.numpy(), fmt)


def assert_product(out, left, right):
    got = out.double().numpy()
    oracle.assert_matmul(got, left, right, "bfloat16", scale_roundings=SCALE_ROUNDINGS)


@deep
def test_the_first_middle_tile_with_scales_of_rows_is_within_the_bound(gpu, rng):
    m, n, k = SHAPE
    choice = mx.explain(m, n, k, device=DEVICE, op=mx.matmul, activations="fp8", format="fp8")
    assert "interleaved" in choice.kernel
    rows, columns = choice.tile
    (a, left), (w, right) = (quantized(numbers(rng, size, k), "fp8") for size in (m, n))
    w = w.preshuffle(DEVICE)
    gpu.groups = [0]
    assert_product(mx.matmul(a, w)[:rows, :columns], left[:rows], right[:columns])


@deep
def test_linear_with_scales_of_blocks_and_middle_tiles_is_within_the_bound(gpu, rng):
    m, n, k = SHAPE
    choice = mx.explain(m, n, k, device=DEVICE, activations="fp8_block", format="fp8_block_2d")
    assert "interleaved" in choice.kernel
    w, right = quantized(numbers(rng, n, k), "fp8_block_2d")
    x = numbers(rng, m, k)
    left = oracle.dequantize(*oracle.quantize(x.double().numpy(), format="fp8_block"), "fp8_block")
    assert_product(mx.linear(x, w.preshuffle(DEVICE), activations="fp8_block"), left, right)


def by_columns(q):
    """Returns the same codes column by column: [K, rows] in memory."""
    codes = q.codes.t().contiguous().t()
    assert codes.stride() == (1, len(codes))
    return mx.MXTensor(codes, q.scales, format=q.format)


@deep
@pytest.mark.parametrize("shape", [(272, 304, 544), (16, 32, 96), (144, 272, 512)])
def test_codes_that_lie_by_columns_on_both_sides_are_multiplied_without_a_copy(gpu, rng, shape):
    m, n, k = shape
    a, left = quantized(numbers(rng, m, k), "fp8_block")
    b, right = quantized(numbers(rng, n, k), "fp8_block_2d")
    a, b = by_columns(a), by_columns(b)
    gpu.launches.clear()
    assert_product(mx.matmul(a, b), left, right)
    (launch,) = gpu.launches
    assert {a.codes.data_ptr(), b.codes.data_ptr()} <= set(launch.arguments)


@deep
def test_one_side_by_columns_or_rows_that_are_no_pieces_are_copied_first(gpu, rng):
    a, left = quantized(numbers(rng, 40, 160), "fp8")
    b, right = quantized(numbers(rng, 48, 160), "fp8")
    expected = mx.matmul(a, b)
    assert_product(expected, left, right)
    for pair in ((by_columns(a), b), (a, by_columns(b)), (by_columns(a), by_columns(b))):
        assert torch.equal(mx.matmul(*pair), expected)


@pytest.mark.parametrize(
    "activations, format", [("fp8", "fp8"), ("fp8_block", "fp8_block_2d"), ("mxfp8", "mxfp4")]
)
def test_codes_of_eight_bits_have_tiles_for_any_number_of_rows(activations, format):
    """Where K is whole steps, workgroups are about as many as CUs, until tiles are largest."""
    families, kinds = ["streaming", "interleaved", "ping_pong"], []
    for m in (1, 64, 200, 512, 1024, 4096):
        choice = mx.explain(
            m, 7168, 2048, device=DEVICE, op=mx.matmul, activations=activations, format=format
        )
        rows, columns = choice.tile
        tiles = -(-m // rows) * -(-7168 // columns)
        kinds.append(choice.kernel.split("/")[1])
        assert m == 4096 or 64 <= tiles <= 256, choice
    assert sorted(kinds, key=families.index) == kinds and set(kinds) == set(families)


@deep
@pytest.mark.parametrize("shape", NVFP4_SHAPES)
def test_nvfp4_weights_meet_kept_activations_within_the_bound(gpu, rng, shape):
    """Of many rows the first tile."""
    m, n, k = shape
    is_large = m > 1024
    choice = mx.explain(m, n, k, device=DEVICE, activations="bf16", format="nvfp4")
    rows, columns = choice.tile if is_large else (m, n)
    gpu.groups = [0] if is_large else None
    parts = oracle.quantize(rng.standard_normal((n, k)) * 2.0 ** np.arange(-9, 9, 18 / n)[:n, None],
                            format="nvfp4")  # fmt: skip
    w = mx.MXTensor(*map(torch.from_numpy, parts), format="nvfp4")
    x = numbers(rng, m, k)
    order = oracle.LAYOUTS[LAYOUT]
    ordered = order.store(*parts)[0], order.store_e4m3(parts[1])
    shape = {"shape": (n, k), "layout": LAYOUT, "format": "nvfp4"}
    stored = mx.MXTensor(*map(torch.from_numpy, ordered), **shape)
    out = mx.linear(x, stored, activations="bf16")[:rows, :columns]
    if not is_large:
        oracle.assert_bitwise_equal(
            mx.linear(x, w, activations="bf16").double().numpy(), out.double().numpy()
        )
    right = oracle.dequantize(*parts, "nvfp4")[:columns]
    oracle.assert_matmul(
        out.double().numpy(), x.double().numpy()[:rows], right, "bfloat16", scale_roundings=1
    )


def test_what_nvfp4_weights_do_not_meet_is_refused(gpu, rng):
    x = numbers(rng, 5, 160)
    w = mx.MXTensor(*map(torch.from_numpy, oracle.quantize(x.double().numpy(), format="nvfp4")),
                    format="nvfp4")  # fmt: skip
    with pytest.raises(ValueError, match="format: got 'nvfp4', which no gfx950 kernel quantizes"):
        mx.quantize(x, format="nvfp4")
    with pytest.raises(ValueError, match="'mxfp6' x weights 'nvfp4', for which gfx950 has no kern"):
        mx.linear(x, w, activations="mxfp6")


@deep
@pytest.mark.parametrize("shape", [(5, 40, 160), (130, 300, 544), (0, 40, 160)])
def test_floats_by_floats_are_within_the_bound(gpu, rng, shape):
    """As they lie, and copied first where rows have gaps."""
    m, n, k = shape
    a, b = numbers(rng, m, k), numbers(rng, n, k)
    gpu.launches.clear()
    out = mx.matmul(a, b)
    assert out.shape == (m, n) and len(gpu.launches) == (m > 0)
    if m:
        assert {a.data_ptr(), b.data_ptr()} <= set(gpu.launches[0].arguments)
        oracle.assert_matmul(*(side.double().numpy() for side in (out, a, b)), "bfloat16")
    gaps = [torch.nn.functional.pad(side, (0, 8))[:, :k] for side in (a, b)]
    torch.testing.assert_close(mx.matmul(*gaps), out, rtol=0, atol=0)
    torch.testing.assert_close(mx.matmul(a[None], b), out[None], rtol=0, atol=0)
