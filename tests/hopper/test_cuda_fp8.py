"""MXFP4 x MXFP4 on FP8 tensor cores: exact where codes allow it, bounded elsewhere, never wrong.

Blocks' scales differ within a row by up to 250 powers of two; rows whose span E5M2 cannot hold
take another way, which the device chooses.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import numbers_of, values_of
from mx_kernels._core.cuda import CUDA

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)

PLANS = [
    "ss_e5m2 128x128 prepared", "rs_e5m2 64x128", "rs_e5m2 128x128",
    "rs_e5m2 64x128 splitK4", "rs_e5m2 128x128 splitK2", "rs_e5m2 64x128 streamK",
    "rs_e5m2 128x128 streamK",
]  # fmt: skip
SPAN = 26
STAGE = 256
"""Of K: what tensor cores add up, before float32 registers do, at most."""
NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


@pytest.fixture(autouse=True, params=PLANS)
def plan(request, monkeypatch):
    """Makes dispatch take FP8 tensor cores."""
    monkeypatch.setattr(CUDA, "plan", request.param)


def coded(rows, k, spread=0, seed=0):
    """Returns random codes under scales that differ by up to `spread`."""
    generator = torch.Generator(device="cuda").manual_seed(rows + 3 * k + 7 * spread + seed)
    q = mx.quantize(torch.randn(rows, k, generator=generator, device="cuda"))
    least = 127 - spread // 2
    scales = torch.randint(least, least + spread + 1, q.scales.shape, generator=generator,
                           device="cuda")  # fmt: skip
    q.scales.copy_(scales)
    if spread:
        q.scales[:, 0], q.scales[:, -1] = least, least + spread
    return q


def check(a, w, *, dtype=torch.bfloat16, bias=None):
    got = mx.matmul(a, w.preshuffle(), bias=bias, out_dtype=dtype)
    x, y = numbers_of(a), numbers_of(w)
    bias = None if bias is None else values_of(bias)
    lost = oracle.fp8_cutoff_bound(x, y, stage=STAGE)
    oracle.assert_matmul(values_of(got), x, y, NAMES[dtype], bias, more_error=lost)


@pytest.mark.parametrize("shape", [(300, 130, 512), (193, 257, 4096), (7, 33, 32), (385, 96, 1056)])
def test_rows_of_one_scale_are_multiplied_exactly(shape):
    m, n, k = shape
    a, w = coded(m, k), coded(n, k)
    got = mx.matmul(a, w.preshuffle(), out_dtype=torch.bfloat16)
    exact = oracle.round_to(oracle.matmul_reference(numbers_of(a), numbers_of(w)), "bfloat16")
    assert np.array_equal(values_of(got), exact)


@pytest.mark.parametrize("spread", [1, 3, 6, 13, 20, SPAN, SPAN + 1, 40, 120, 250])
def test_any_span_of_scales_is_within_the_bound(spread):
    k = 288
    a, w = coded(70, k, spread), coded(40, k, min(spread, 90))
    check(a, w)


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_bias_is_added_after_the_scales(dtype):
    check(coded(70, 416, 5), coded(40, 416, 2), dtype=dtype,
          bias=torch.randn(40, device="cuda").to(dtype))  # fmt: skip


def test_one_huge_block_does_not_swallow_the_rest_of_another_stage():
    a, w = coded(70, 512), coded(40, 512)
    a.scales[:, 3] = 127 + SPAN - 1
    a.scales[:, 4:] = 127
    check(a, w)


def test_products_that_cancel_leave_what_they_should():
    a, w = coded(70, 512), coded(40, 512)
    a.codes[:, 64:128] = a.codes[:, :64]
    w.codes[:, 64:128] = w.codes[:, :64] ^ 0x88
    check(a, w)
    a.codes[:, 128:], w.codes[:, 128:] = a.codes[:, :128], w.codes[:, :128]
    got = mx.matmul(a, w.preshuffle(), out_dtype=torch.bfloat16)
    assert not got.any()


def far_token(a, w):
    a.scales[3, 2] = 127 + SPAN + 1


def far_weight(a, w):
    w.scales[9, 3] = 127 - SPAN - 1


def nan_weight(a, w):
    w.scales[9, 3] = 255


def large_rows(a, w):
    a.scales[:], w.scales[:] = 40, 220


@pytest.mark.parametrize("corner", [far_token, far_weight, nan_weight, large_rows])
def test_rows_out_of_range_are_multiplied_another_way(corner):
    a, w = coded(300, 416), coded(200, 416)
    corner(a, w)
    got = mx.matmul(a, w.preshuffle(), out_dtype=torch.bfloat16)
    oracle.assert_matmul(values_of(got), numbers_of(a), numbers_of(w), "bfloat16")


def test_blocks_of_zeros_are_in_every_range():
    a, w = coded(70, 416, 3), coded(40, 416, 3)
    a.scales[:, 5], w.scales[:, 7], a.codes[0] = 0, 1, 0
    a.codes[:, 80:96], w.codes[:, 112:128] = 0x80, 0x08
    check(a, w)


def test_a_graph_takes_the_way_that_its_new_activations_want():
    x = torch.randn(300, 416, device="cuda").bfloat16()
    w = mx.quantize(torch.randn(200, 416, device="cuda")).preshuffle()
    mx.linear(x, w, activations="mxfp4")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mx.linear(x, w, activations="mxfp4")
    for factor in (1.0, 2.0**40, 1.0):
        x.copy_(torch.randn(300, 416, device="cuda"))
        x[7, :32] *= factor
        graph.replay()
        assert torch.equal(out, mx.linear(x, w, activations="mxfp4"))
        x64 = mx.dequantize(mx.quantize(x), dtype="float32").double()
        w64 = mx.dequantize(w.unshuffle(), dtype="float32").double()
        assert float((out - x64 @ w64.T).norm() / (x64 @ w64.T).norm()) < 3e-3


def test_results_that_show_what_is_cut_off_are_refused():
    with pytest.raises(Exception, match="plan: E5M2 is for MXFP4 activations"):
        mx.matmul(coded(70, 64), coded(40, 64).preshuffle(), out_dtype=torch.float32)
