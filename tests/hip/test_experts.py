"""Experts on gfx950 through HIP: the stand-in for the runtime, the simulator for the GPU."""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from tests.numerics.test_experts import assert_is_composed, composed, routes

pytestmark = pytest.mark.deep

LAYOUT = "preshuffled_cdna4"
ACTIVATIONS = pytest.mark.parametrize("activations", ["mxfp4", "mxfp6"])


def experts(rng, count, n, k):
    """Draws weights [count, n, k]; returns plain parts, and the preshuffled tensor."""
    codes = rng.integers(0, 256, (count, n, k // 2), np.uint8)
    scales = rng.integers(118, 125, (count, n, k // 32)).astype(np.uint8)
    pairs = [oracle.LAYOUTS[LAYOUT].store(*pair) for pair in zip(codes, scales, strict=True)]
    stored = [torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True)]
    return (codes, scales), mx.MXTensor(*stored, layout=LAYOUT, shape=(count, n, k))


def floats(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape)).bfloat16()


@ACTIVATIONS
def test_a_grouped_product_is_one_launch_within_the_bound(gpu, rng, activations):
    sizes, x = torch.tensor([7, 0, 20]).int(), floats(rng, 30, 160)
    (codes, scales), w = experts(rng, 3, 40, 160)
    out = mx.grouped_linear(x, w, sizes, out_dtype="float32", activations=activations)
    assert len(gpu.launches) == 1
    encoded = oracle.quantize(x.double().numpy(), format=activations)
    left = oracle.dequantize(*encoded, activations)
    for rows, expert in ((slice(7), 0), (slice(7, 27), 2)):
        right = oracle.dequantize(codes[expert], scales[expert])
        oracle.assert_matmul(out[rows].double().numpy(), left[rows], right, "float32")
    assert (out[27:] == 0).all()


def test_weights_in_other_layouts_and_rows_with_gaps_are_moved_first(gpu, rng):
    (codes, scales), w = experts(rng, 3, 40, 160)
    plain = mx.MXTensor(torch.from_numpy(codes), torch.from_numpy(scales))
    x, sizes = floats(rng, 60, 192)[::2, :160], torch.tensor([7, 0, 20]).int()
    expected = mx.grouped_linear(x.contiguous(), w, sizes, out_dtype="float32", activations="mxfp4")
    got = mx.grouped_linear(x, plain, sizes, out_dtype="float32", activations="mxfp4")
    oracle.assert_bitwise_equal(got.numpy(), expected.numpy())


@ACTIVATIONS
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
def test_a_layer_is_made_of_its_parts_and_waits_for_nothing(gpu, rng, hidden_act, activations):
    (_, gate_up), (_, down) = experts(rng, 4, 128, 96), experts(rng, 4, 96, 64)
    x, (ids, weights) = floats(rng, 9, 96), routes(rng, 9, 3, 4)
    rules = {"hidden_act": hidden_act, "activations": activations, "out_dtype": "float32"}
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    assert len(gpu.launches) == 4 + (hidden_act == "silu")
    assert "hipStreamSynchronize" not in gpu.calls and "hipMalloc" not in gpu.calls
    assert_is_composed(got, *composed(x, gate_up, down, ids, weights, **rules))


@ACTIVATIONS
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
def test_a_layer_with_more_rows_encodes_its_tokens_once(gpu, rng, hidden_act, activations):
    (_, gate_up), (_, down) = experts(rng, 4, 128, 96), experts(rng, 4, 96, 64)
    x, (ids, weights) = floats(rng, 40, 96), routes(rng, 40, 3, 4)
    rules = {"hidden_act": hidden_act, "activations": activations, "out_dtype": "float32"}
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    # Hidden numbers of neighbours are encoded where they are computed.
    assert len(gpu.launches) == (5 if hidden_act == "swiglu_oai" else 7)
    # Sums are added in another order than those of `grouped_linear`, so few bits differ.
    expected, _ = composed(x, gate_up, down, ids, weights, **rules)
    assert torch.linalg.norm(got - expected) <= 1e-2 * torch.linalg.norm(expected)


def test_an_id_of_no_expert_makes_its_token_nan(gpu, rng):
    (_, gate_up), (_, down) = experts(rng, 4, 128, 96), experts(rng, 4, 96, 64)
    x, (ids, weights) = floats(rng, 9, 96), routes(rng, 9, 3, 4)
    ids[5, 1] = 4
    y = mx.moe(x, gate_up, down, ids, weights, out_dtype="float32", activations="mxfp4")
    assert y[5].isnan().all() and not y[torch.arange(9) != 5].isnan().any()


def test_formats_without_kernels_are_named(gpu, rng):
    _, w = experts(rng, 3, 40, 160)
    with pytest.raises(ValueError, match="mxint8"):
        mx.grouped_linear(floats(rng, 9, 160), w, torch.ones(3).int(), activations="mxint8")


def test_rows_of_six_bit_weights_that_fill_no_tile_are_refused(gpu, rng):
    codes, scales = oracle.quantize(rng.standard_normal((3 * 40, 96)), format="mxfp6")
    parts = (torch.from_numpy(part.reshape(3, 40, -1)) for part in (codes, scales))
    w, sizes = mx.MXTensor(*parts, format="mxfp6"), torch.ones(3).int()
    with pytest.raises(ValueError, match="got K = 96, expected a multiple of 64 of mxfp6"):
        mx.grouped_linear(floats(rng, 9, 96), w, sizes, activations="mxfp6")
    assert not gpu.launches
