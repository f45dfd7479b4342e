"""Experts on Hopper's tensor cores: every tile, every kind of rows, and what memory may hold.

What all kernels share is claimed in `numerics/test_experts.py` and `simt/test_cuda.py`; here are
the shapes that only these have, beside the portable kernels on plain weights and the oracle.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import same_bits, values_of
from tests.hopper.expert_claims import (
    DTYPES,
    LONG_LAYERS,
    assert_is_layer,
    assert_is_product,
    assert_stays_in_its_row,
    experts,
    layer,
    long_layer,
    sizes_cut,
)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device on this machine"
)

MODES = ["bf16", "mxfp4", "mxfp8", "mxfp8_e5m2", "mxint8"]
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(autouse=True)
def _on_the_device():
    torch.set_default_device("cuda")
    torch.manual_seed(11)
    yield
    torch.set_default_device(None)


def check_grouped(
    x, plain, shuffled, sizes, mode, *, dtype=torch.float32, bias=None, of_bytes=False
):
    """Claims the bound for every expert, zeros behind; returns the product."""
    given = torch.tensor(sizes, dtype=torch.int32)
    rules = {"activations": mode, "out_dtype": dtype, "bias": bias}
    got = mx.grouped_linear(x, shuffled, given, **rules)
    assert got.dtype == dtype
    assert_is_product(got, x, plain, sizes, mode, bias, of_bytes=of_bytes)
    return got


# Rows of each expert, rows behind them, n, k: tiles of 16, 32, 128 and 256 rows.
GROUPS = [
    ([1], 0, 8, 32),
    ([3, 0, 1, 9, 0, 17], 2, 130, 96),
    ([0, 0, 33], 0, 33, 64),
    ([20, 1, 40, 7], 5, 257, 160),
    ([33, 70, 0, 2], 0, 128, 1056),
    ([129, 300, 5, 64], 70, 384, 544),
    ([1] * 130, 3, 40, 96),
]
# The same for tiles of eight and of 16 rows of the kernel for few rows: full ones, one row more,
# all rows to one of the experts, more blocks of K than a warp has on the way; of 24 for activations
# that are kept.
SIZES_OF_FEW = [0, 1, 7, 8, 9, 16, 17]
GROUPS_OF_FEW = [
    ([*SIZES_OF_FEW, *([0] * 20)], 3, 100, 96),
    (SIZES_OF_FEW, 9, 100, 96),
    ([*([0] * 30), 40, 0], 0, 2880, 64),
    ([0, 0, 40, 0], 1, 2880, 64),
    ([1, 0, 2], 0, 72, 2880),
    ([9, 0, 17], 4, 1032, 4128),
    ([24, 3, 25, 0, 8], 1, 1032, 96),
    ([16, 17, 9, 23], 0, 72, 2880),
    ([32, 33, 0, 7, 24, 31], 2, 1032, 96),
    ([0, 50], 0, 264, 2880),
]


@every_mode
@pytest.mark.parametrize(
    "groups", GROUPS + GROUPS_OF_FEW, ids=lambda g: f"{sum(g[0])} rows, {g[2]} x {g[3]}"
)
def test_a_grouped_product_is_within_the_derived_bound(groups, mode):
    sizes, behind, n, k = groups
    plain, shuffled = experts(len(sizes), n, k)
    x = torch.randn(sum(sizes) + behind, k).bfloat16()
    check_grouped(x, plain, shuffled, sizes, mode)


@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_and_every_type(dtype, x_dtype):
    plain, shuffled = experts(3, 100, 288)
    x, sizes = torch.randn(30, 288).to(x_dtype), [7, 0, 21]
    for mode in ("bf16", "mxfp4", "mxfp8"):
        bias = torch.randn(3, 100).to(x_dtype)
        check_grouped(x, plain, shuffled, sizes, mode, dtype=dtype, bias=bias)


@every_mode
@pytest.mark.parametrize("count", [2, 4, 12])
def test_rows_and_scales_at_the_ends_of_the_range(count, mode):
    """Numbers that bfloat16 cannot hold, on either side, are computed another way."""
    plain, _ = experts(max(count, 4), 64, 256)
    plain.scales[0, 5, 0], plain.scales[1, 7, -1], plain.scales[2, 9], plain.scales[3, 3] = (
        254,
        253,
        0,
        200,
    )
    x = torch.randn(40, 256) * 2.0**-80
    x[1, :32], x[30, 32:64] = 2.0**-140, 0
    sizes = [10, 3, 20, 5, *([0] * (count - 4))]
    check_grouped(x, plain, plain.preshuffle(device="cuda"), sizes, mode)
    plain, shuffled = experts(count, 64, 256, 2.0**-60)
    huge = torch.randn(40, 256)
    huge[3, :32], huge[22, -32:] = 3.3e38, 3.0e38
    check_grouped(huge, plain, shuffled, [20, 20, *([0] * (count - 2))], mode)


@every_mode
@pytest.mark.parametrize("sizes", [[130, 3, 2], [300, 40, 193]], ids=str)
def test_many_rows_and_scales_at_the_ends_of_the_range(sizes, mode):
    plain, _ = experts(3, 136, 256)
    plain.scales[1, 5, 0], plain.scales[1, 7, -1], plain.scales[2, 9] = 254, 253, 0
    x = torch.randn(sum(sizes), 256) * 2.0**-80
    x[1, :32], x[-1, 32:64] = 2.0**-140, 0
    check_grouped(x, plain, plain.preshuffle(device="cuda"), sizes, mode)


@every_mode
def test_nan_and_infinity_reach_their_row_and_no_other(mode):
    _, shuffled = experts(2, 40, 96)
    x, sizes = torch.randn(20, 96).bfloat16(), torch.tensor([12, 8], dtype=torch.int32)
    assert_stays_in_its_row(
        lambda x: mx.grouped_linear(x, shuffled, sizes, activations=mode), x, 3, 15
    )


SIZES = [
    [5, -3, 4, 0, 2],
    [40, 40, 40, 1, 2],
    [-1] * 5,
    [2**31 - 1] * 5,
    [-(2**31)] * 5,
    [3, 2**31 - 1, -(2**31), 7, 7],
    [*([0] * 40), 7, *([1] * 30), -5, 2**31 - 1, 3],
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_that_do_not_fit_are_cut(sizes):
    plain, shuffled = experts(len(sizes), 40, 96)
    x, cut = torch.randn(33, 96), sizes_cut(sizes, 33)
    given = torch.tensor(sizes, dtype=torch.int32)
    rules = {"out_dtype": "float32", "activations": "mxfp4"}
    got = mx.grouped_linear(x, shuffled, given, **rules)
    same_bits(got, check_grouped(x, plain, shuffled, cut, "mxfp4"))


@pytest.mark.parametrize("count", [1, 31, 33, 1000, 1024])
def test_a_row_finds_its_expert_among_many(count):
    rng = np.random.default_rng(count)
    sizes = rng.integers(0, 3, count).tolist()
    plain, shuffled = experts(count, 8, 32)
    check_grouped(torch.randn(sum(sizes) + 2, 32), plain, shuffled, sizes, "bf16")


# Layers


def composed(x, gate_up, down, ids, counts, biases, *, hidden_act, mode):
    """Returns a layer made of grouped products, and which of its tokens the oracle decides."""
    tokens, slots = ids.shape
    flat = ids.reshape(-1).cpu()
    order = torch.argsort(flat, stable=True)
    order = order[flat[order] >= 0]
    sizes = torch.bincount(flat[order], minlength=down.shape[0]).int().cuda()
    order = order.cuda()
    rules = {"activations": mode, "out_dtype": "float32"}
    sums = mx.grouped_linear(x[order // slots], gate_up, sizes, bias=biases[0], **rules)
    exact, error = oracle.gated(values_of(sums), hidden_act)
    name = DTYPES[x.dtype]
    low, high = (oracle.round_to(exact + e, name) for e in (-error, error))
    hidden = torch.tensor(low).to(x.dtype).cuda()
    rows = mx.grouped_linear(hidden, down, sizes, bias=biases[1], **rules)
    out, decided = torch.zeros(tokens, down.shape[1]).cpu().numpy(), np.ones(tokens, bool)
    place = {slot: row for row, slot in enumerate(order.tolist())}
    rows, weights = rows.cpu().numpy(), values_of(counts).reshape(-1).astype(np.float32)
    for slot in range(tokens * slots):
        if slot in place:
            at = slot // slots
            out[at] = oracle.fused_multiply_add(weights[slot], rows[place[slot]], out[at])
            decided[at] &= (low[place[slot]] == high[place[slot]]).all()
    return torch.from_numpy(out).cuda(), decided


# Tokens, slots, experts, width, inner.
LAYERS = [
    (1, 4, 8, 96, 64),
    (9, 3, 4, 160, 96),
    (9, 3, 30, 1056, 2208),
    (64, 2, 5, 64, 32),
    (200, 4, 6, 96, 160),
]


@every_mode
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_a_layer_is_made_of_its_parts(shape, hidden_act, mode):
    tokens, slots, count, width, inner = shape
    _, (gate_up, down) = layer(count, width, inner)
    ids, counts = torch.randint(-1, count, (tokens, slots)), torch.rand(tokens, slots)
    x = torch.randn(tokens, width).bfloat16()
    biases = [torch.randn(count, n) for n in (2 * inner, width)] if tokens > 1 else [None, None]
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    rules = {"hidden_act": hidden_act, "activations": mode}
    got = mx.moe(x, gate_up, down, ids, counts, out_dtype="float32", **named, **rules)
    expected, decided = composed(x, gate_up, down, ids, counts, biases, hidden_act=hidden_act,
                                 mode=mode)  # fmt: skip
    assert decided.mean() > 0.2 or tokens == 1
    same_bits(got[torch.from_numpy(decided).cuda()], expected[torch.from_numpy(decided).cuda()])


@pytest.mark.parametrize("mode", ["bf16", "mxfp4"])
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", LONG_LAYERS, ids=str)
def test_a_layer_with_a_long_k_is_near_the_exact_one(shape, hidden_act, mode):
    """Parts of K are added up, with the bias once; what bfloat16 cannot hold is of its part."""
    plain, shuffled, x, ids, counts, biases = long_layer(shape)
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    rules = {"hidden_act": hidden_act, "activations": mode, "out_dtype": "float32", **named}
    got = mx.moe(x, *shuffled, ids, counts, **rules)
    assert_is_layer(got, x, *plain, ids, counts, biases, hidden_act, mode)
    same_bits(mx.moe(x, *shuffled, ids, counts, **rules), got)


@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
def test_layers_agree_with_the_portable_kernels(hidden_act, x_dtype):
    plain, shuffled = layer(6, 192, 96)
    for tokens in (1, 7, 40, 300):
        x = torch.randn(tokens, 192).to(x_dtype)
        ids, counts = torch.randint(-1, 6, (tokens, 3)), torch.rand(tokens, 3).to(x_dtype)
        rules = {"hidden_act": hidden_act, "activations": "bf16", "out_dtype": "float32"}
        got = mx.moe(x, *shuffled, ids.int(), counts, **rules)
        expected = mx.moe(x, *plain, ids.int(), counts, **rules)
        # Sums in another order may round a hidden number to a neighbour.
        scale = expected.abs().max()
        assert (got - expected).abs().max() <= scale * 2.0**-7
        assert ((got - expected).abs() <= scale * 2.0**-19).float().mean() > 0.5
        again = mx.moe(x, *shuffled, ids.int(), counts, **rules)
        same_bits(again, got)


# FP8 tensor cores: activations of MXFP4 and MXFP8, results of two bytes

BYTE_MODES = ["mxfp4", "mxfp8"]
every_byte_mode = pytest.mark.parametrize("mode", BYTE_MODES)
# Rows of each expert, rows behind them, n, k: instructions of 32, 64 and 128 tokens, several tiles.
BYTE_GROUPS = [([17, 30], 0, 40, 1056), ([70, 205], 3, 264, 288), ([140, 0, 300], 0, 264, 2880)]


@every_byte_mode
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "groups", GROUPS + BYTE_GROUPS, ids=lambda g: f"{sum(g[0])} rows, {g[2]} x {g[3]}"
)
def test_a_product_of_bytes_is_within_the_derived_bound(groups, dtype, mode):
    sizes, behind, n, k = groups
    plain, shuffled = experts(len(sizes), n, k)
    x, bias = torch.randn(sum(sizes) + behind, k), torch.randn(len(sizes), n)
    check_grouped(x.to(dtype), plain, shuffled, sizes, mode, dtype=dtype, bias=bias, of_bytes=True)


@every_byte_mode
def test_rows_that_have_no_base_are_computed_another_way(mode):
    plain, _ = experts(3, 200, 288)
    plain.scales[0, 5, 0], plain.scales[1, 70, -1], plain.scales[2, 9] = 254, 90, 0
    plain.scales[2, 199, 3] = 180
    x = torch.randn(200, 288)
    x[1, :32], x[40, 64:96], x[170] = 2.0**40, 2.0**-60, 2.0**-100
    shuffled = plain.preshuffle(device="cuda")
    check_grouped(x, plain, shuffled, [30, 3, 147], mode, dtype=torch.bfloat16, of_bytes=True)


@every_byte_mode
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize("shape", [(30, 96, 96), (90, 160, 32), (200, 288, 416)], ids=str)
def test_a_layer_of_bytes_is_near_what_its_parts_are_exactly(shape, hidden_act, mode):
    tokens, width, inner = shape
    (gate_up, down), shuffled = layer(2, width, inner)
    gate_up.scales[1, 7, 0] = 90
    shuffled = [w.preshuffle(device="cuda") for w in (gate_up, down)]
    ids, counts = torch.randint(-1, 2, (tokens, 2)), torch.rand(tokens, 2)
    x = torch.randn(tokens, width).bfloat16()
    biases = [torch.randn(2, n) for n in (2 * inner, width)]
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    got = mx.moe(x, *shuffled, ids, counts, hidden_act=hidden_act, activations=mode, **named)
    assert_is_layer(got, x, gate_up, down, ids, counts, biases, hidden_act, mode)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ids_may_be_any_numbers(dtype):
    values = [0, 1, 2, 3, -1, 2**31 - 1, -(2**31), 77, 1024, 4]
    if dtype == torch.int64:
        values += [2**63 - 1, -(2**63), 2**32, 2**32 + 1, -(2**32)]
    _, shuffled = layer(4, 96, 64)
    shuffled = list(shuffled)
    rng = np.random.default_rng(2)
    ids = torch.tensor(rng.choice(np.array(values), (60, 3)), dtype=dtype)
    x, counts = torch.randn(60, 96), torch.rand(60, 3)
    got = mx.moe(x, *shuffled, ids, counts)
    is_bad = (ids >= 4).any(1)
    assert got[is_bad].isnan().all()
    assert is_bad.any()
    assert not is_bad.all()
    expected = mx.moe(x, *shuffled, torch.where(ids < 4, ids, -1), counts)
    same_bits(got[~is_bad], expected[~is_bad])
    assert expected.isfinite().all()
    nothing = mx.moe(x, *shuffled, torch.full_like(ids, -1), torch.full_like(counts, torch.nan))
    assert (nothing == 0).all()


# Tokens, and some of them for which the same kernel is taken.
SOME = [(20, [slice(1), slice(3, 9), slice(2, 19)]), (300, [slice(30, 170), slice(5, 205)])]


@pytest.mark.parametrize(("tokens", "parts"), SOME, ids=["few", "many"])
def test_a_tokens_bits_depend_on_no_other_token(tokens, parts):
    _, shuffled = layer(5, 288, 160)
    shuffled = list(shuffled)
    x, counts = torch.randn(tokens, 288).bfloat16(), torch.rand(tokens, 3)
    ids = torch.randint(0, 5, (tokens, 3))
    for mode in MODES:
        expected = mx.moe(x, *shuffled, ids, counts, activations=mode)
        order = torch.randperm(tokens)
        got = mx.moe(x[order], *shuffled, ids[order], counts[order], activations=mode)
        same_bits(got, expected[order])
        for some in parts:
            got = mx.moe(x[some], *shuffled, ids[some], counts[some], activations=mode)
            same_bits(got, expected[some])


def test_calls_can_be_captured_and_wait_for_nothing():
    _, shuffled = layer(4, 96, 64)
    gate_up, down = shuffled
    _, w = experts(4, 40, 96)
    x, counts = torch.randn(20, 96), torch.rand(20, 2)
    ids, sizes = torch.zeros(20, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int32)
    run = {
        "moe": lambda: mx.moe(x, gate_up, down, ids, counts),
        "grouped": lambda: mx.grouped_linear(x, w, sizes),
    }
    for call in run.values():
        call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for call in run.values():
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = {name: call() for name, call in run.items()}
    for values in ([1, 0, 3, 4], [20, 0, 0, 0], [7, 7, 7, 7]):
        sizes.copy_(torch.tensor(values, dtype=torch.int32))
        ids.copy_(torch.randint(-1, 5, (20, 2)))
        x.copy_(torch.randn(20, 96))
        graph.replay()
        for name, call in run.items():
            same_bits(results[name], call())


@pytest.mark.parametrize("offset", [1, 2, 5])
def test_activations_at_odd_addresses_give_the_same_bits(offset):
    _, shuffled = layer(4, 96, 64)
    shuffled = list(shuffled)
    counts, ids = torch.rand(20, 2), torch.randint(-1, 4, (20, 2))
    for dtype in (torch.bfloat16, torch.float32):
        straight = torch.randn(20, 96).to(dtype)
        moved = torch.zeros(20 * 96 + offset, dtype=dtype)[offset:].view(20, 96).copy_(straight)
        assert moved.data_ptr() % 16
        for mode in MODES:
            rules = {"activations": mode}
            same_bits(mx.moe(moved, *shuffled, ids, counts, **rules),
                      mx.moe(straight, *shuffled, ids, counts, **rules))  # fmt: skip


def test_two_streams_do_not_interfere():
    _, shuffled = layer(4, 256, 128)
    shuffled = list(shuffled)
    inputs = []
    for tokens in (3, 130):
        ids, counts = torch.randint(0, 4, (tokens, 2)), torch.rand(tokens, 2)
        inputs.append((torch.randn(tokens, 256).bfloat16(), *shuffled, ids, counts))
    expected = [mx.moe(*arguments) for arguments in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    results = []
    for _ in range(30):
        for arguments, stream in zip(inputs, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(mx.moe(*arguments))
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        same_bits(result, expected[i % 2])


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_a_layer_of_the_size_of_gpt_oss(tokens):
    slots, count, width = 4, 32, 2880
    plain, (gate_up, down) = layer(count, width, width)
    x = torch.randn(tokens, width).bfloat16()
    ids = torch.stack([torch.randperm(count)[:slots] for _ in range(tokens)])
    counts = torch.rand(tokens, slots)
    got = mx.moe(x, gate_up, down, ids, counts, activations="bf16", out_dtype="float32")
    expected = mx.moe(x, *plain, ids, counts, activations="bf16", out_dtype="float32")
    assert (got - expected).abs().max() <= 2.0**-8 * expected.abs().max()
