"""Experts on Hopper's FP8 tensor cores, as compiled: MXFP4 and MXFP8 activations, two-byte results.

Claims, bounds and oracle are those of `hopper/test_cuda_experts.py`, which needs a device.
"""

import pytest
import torch

from cases import GATES, OTHER_GATES, USUAL_GATES, same_bits, sums_of
from tests.hopper.expert_claims import (
    assert_is_layer,
    assert_is_product,
    assert_stays_in_its_row,
    experts,
    layer,
    sizes_cut,
)
from tests.ptx import calls, device

pytestmark = pytest.mark.deep

ENTRY = "hopper_gemm_rs"
THREADS = 384
"""Of a group of a product, and of no other one here."""
MODES = ["mxfp4", "mxfp8"]
every_mode = pytest.mark.parametrize("mode", MODES)
GROUPS = 3
"""Groups of threads of a product: each has several tiles."""


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(13)


def run(recorded, num_launches, seed=0):
    """Runs a call whose products are those of bytes."""
    ours = [launch for launch in recorded.launches if ENTRY in launch.entry]
    products = [launch for launch in ours if launch.threads == THREADS]
    assert len(recorded.launches) == num_launches
    assert len(products) == num_launches // 3
    cut = [
        launch._replace(grid=(min(GROUPS, launch.grid[0]), 1, 1)) if launch in products else launch
        for launch in recorded.launches
    ]
    return device.run(recorded._replace(launches=cut), seed)


def grouped(x, w, sizes, *, seed=0, dtype=torch.bfloat16, **rules):
    """Returns a grouped product."""
    given = torch.tensor(sizes, dtype=torch.int32)
    return run(calls.grouped_linear(x, w, given, out_dtype=dtype, **rules), 3, seed)


# Rows of each expert, rows behind them, n, k: instructions of 32, 64 and 128 tokens, several tiles
# of an expert, columns that are no whole groups, more stages than there is room for.
SHAPES = [
    ([20, 1, 0, 40], 3, 130, 160),
    ([0, 133], 40, 40, 96),
    ([70, 30], 0, 136, 32),
    ([17, 30], 0, 40, 1056),
]


@every_mode
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{sum(s[0])} rows, {s[2]} x {s[3]}")
def test_a_grouped_product_is_within_the_derived_bound(shape, mode):
    sizes, behind, n, k = shape
    plain, shuffled = experts(len(sizes), n, k)
    x = torch.randn(sum(sizes) + behind, k).bfloat16()
    got = grouped(x, shuffled, sizes, activations=mode)
    assert_is_product(got, x, plain, sizes, mode, of_bytes=True)


@every_mode
@pytest.mark.parametrize("x_dtype", [torch.float16, torch.float32], ids=str)
def test_bias_and_every_type(x_dtype, mode):
    plain, shuffled = experts(3, 100, 288)
    x, sizes = torch.randn(60, 288).to(x_dtype), [17, 0, 41]
    bias = torch.randn(3, 100)
    got = grouped(x, shuffled, sizes, activations=mode, bias=bias, dtype=torch.float16)
    assert_is_product(got, x, plain, sizes, mode, bias, of_bytes=True)


@every_mode
def test_the_order_of_warps_changes_no_bits(mode):
    _, shuffled = experts(2, 136, 160)
    x = torch.randn(60, 160).bfloat16()
    same_bits(
        grouped(x, shuffled, [20, 40], activations=mode, seed=1),
        grouped(x, shuffled, [20, 40], activations=mode, seed=2),
    )


@every_mode
def test_rows_that_have_no_base_are_computed_another_way(mode):
    """Of activations and of weights: both ends of the range, and blocks far apart."""
    plain, _ = experts(3, 72, 96)
    plain.scales[0, 5, 0], plain.scales[1, 70, -1], plain.scales[2, 9] = 254, 90, 0
    x = torch.randn(40, 96)
    x[1, :32], x[20, 64:96], x[38] = 2.0**40, 2.0**-60, 2.0**-100
    sizes = [17, 3, 20]
    got = grouped(x, plain.preshuffle(device="cuda"), sizes, activations=mode)
    assert_is_product(got, x, plain, sizes, mode, of_bytes=True)


@every_mode
def test_nan_and_infinity_reach_their_row_and_no_other(mode):
    _, shuffled = experts(2, 40, 96)
    x, sizes = torch.randn(50, 96).bfloat16(), [32, 18]
    assert_stays_in_its_row(lambda x: grouped(x, shuffled, sizes, activations=mode), x, 3, 35)


@pytest.mark.parametrize("sizes", [[5, -3, 40, 0, 2], [70, 2**31 - 1, -(2**31), 7, 7]], ids=str)
def test_sizes_that_do_not_fit_are_cut(sizes):
    plain, shuffled = experts(len(sizes), 40, 32)
    x = torch.randn(83, 32)
    got = grouped(x, shuffled, sizes, activations="mxfp4")
    assert_is_product(got, x, plain, sizes_cut(sizes, 83), "mxfp4", of_bytes=True)


@every_mode
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize("shape", [(30, 96, 96), (66, 32, 32)], ids=str)
def test_a_layer_is_near_what_its_parts_are_exactly(shape, hidden_act, mode):
    tokens, width, inner = shape
    (gate_up, down), shuffled = layer(2, width, inner)
    ids, counts = torch.randint(-1, 2, (tokens, 2)), torch.rand(tokens, 2)
    x = torch.randn(tokens, width).bfloat16()
    biases = [torch.randn(2, n) for n in (2 * inner, width)]
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    rules = {"hidden_act": hidden_act, "activations": mode, **named}
    got = run(calls.moe(x, *shuffled, ids, counts, **rules), 6)
    assert_is_layer(got, x, gate_up, down, ids, counts, biases, hidden_act, mode)


@pytest.mark.parametrize("gate", OTHER_GATES)
def test_every_gate_makes_its_hidden_numbers(gate):
    (gate_up, down), shuffled = layer(2, 96, 96, gate)
    ids, counts = torch.randint(-1, 2, (40, 2)), torch.rand(40, 2)
    x = torch.randn(40, 96).bfloat16()
    biases = [torch.randn(2, n) for n in (sums_of(gate, 96), 96)]
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    call = calls.moe(x, *shuffled, ids, counts, activations="mxfp8", **named, **GATES[gate])
    got = run(call, 6 if GATES[gate]["hidden_act"] in USUAL_GATES else 7)
    assert_is_layer(got, x, gate_up, down, ids, counts, biases, gate, "mxfp8")


@every_mode
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
def test_gates_and_ups_without_a_base_are_computed_another_way(hidden_act, mode):
    (gate_up, down), _ = layer(2, 96, 64)
    gate_up.scales[0, 7, 1], gate_up.scales[1, 70, 0] = 90, 90
    shuffled = [w.preshuffle(device="cuda") for w in (gate_up, down)]
    x, ids = torch.randn(40, 96).bfloat16(), torch.arange(40)[:, None] % 2
    x[5, :32] = 2.0**-70
    counts = torch.rand(40, 1)
    rules = {"hidden_act": hidden_act, "activations": mode}
    got = run(calls.moe(x, *shuffled, ids, counts, **rules), 6)
    assert_is_layer(got, x, gate_up, down, ids, counts, (None, None), hidden_act, mode)


def test_ids_may_be_any_numbers():
    _, shuffled = layer(2, 96, 32)
    ids = torch.randint(0, 2, (40, 2))
    ids[3, 1], ids[7, 0], ids[9], ids[11, 1] = 5, -4, -1, 2**31 - 1
    x, counts = torch.randn(40, 96).bfloat16(), torch.rand(40, 2)
    got = run(calls.moe(x, *shuffled, ids, counts), 6)
    assert got[[3, 11]].isnan().all()
    assert (got[9] == 0).all()
    there = torch.where(ids < 2, ids, -1)
    expected = run(calls.moe(x, *shuffled, there, counts), 6)
    others = [row for row in range(40) if row not in (3, 11)]
    same_bits(got[others], expected[others])
