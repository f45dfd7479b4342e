"""grouped_linear and moe: the same bits as products one by one, and the oracle's activation.

A grouped product is compared with `linear` of each expert, which has its own claims. A layer of
experts is composed: a grouped product in float32, the oracle's activation, a grouped product, sums
over slots. The activation is known up to a bound; where both of its ends become the same left side
of the second product, a token is "decided", and its bits are the claim.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    DTYPES,
    FORMATS,
    GATES,
    LAYOUTS,
    NUMPY_DTYPES,
    VIEWS,
    identity,
    mx_tensor,
    on_every_device,
    random_operand,
    same_bits,
    sums_of,
    torch_of,
    values_of,
)
from mx_kernels._core.gates import GateOptions
from oracle import assert_bitwise_equal, assert_matmul
from tests.tiers import tiered

pytestmark = on_every_device

MODES = [*FORMATS, "bf16"]
ACTIVATIONS = ["swiglu_oai", "silu"]
SOME_LAYOUTS = ["plain", "preshuffled_cpu"]
IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
every_mode = pytest.mark.parametrize("mode", MODES)
every_gate = pytest.mark.parametrize("gate", GATES)
every_activation = pytest.mark.parametrize("hidden_act", ACTIVATIONS)
some_formats = pytest.mark.parametrize("format", tiered(FORMATS, first=["mxfp4", "mxint8"]))
some_layouts = pytest.mark.parametrize("layout", tiered(LAYOUTS, first=SOME_LAYOUTS))


def experts(rng, count, n, k, format="mxfp4", layout="plain", **scales):
    """Returns random weights [count, n, k] as plain NumPy parts and as an MXTensor."""
    parts = [random_operand(rng, n, k, format=format, **scales) for _ in range(count)]
    codes, scales = map(np.stack, zip(*parts, strict=True))
    return (codes, scales), mx_tensor(codes, scales, layout, format)


def numbers(rng, *shape, dtype="float32"):
    return torch_of(rng.standard_normal(shape), dtype)


# grouped_linear


def one_by_one(x, w, sizes, bias=None, **rules):
    """Returns the products of each group, `linear` by `linear`; rows behind them are zero.

    On a GPU those of plain weights, which have the kernel that experts have too.
    """
    if w.is_cuda and w.layout != "plain":
        w = w.unshuffle()
    out_dtype = rules.setdefault("out_dtype", x.dtype)
    rows = torch.zeros(x.shape[0], w.shape[1], dtype=out_dtype)
    first = 0
    for expert, size in enumerate(sizes):
        if size:
            of_expert = slice(first, first + size)
            added = None if bias is None else bias[expert]
            rows[of_expert] = mx.linear(x[of_expert], w[expert], bias=added, **rules)
        first += size
    return rows


def has_own_kernel(w):
    """Says whether experts have a kernel of their own, as on Hopper: sums in another order."""
    return (w.format, w.layout) == ("mxfp4", "preshuffled_cuda") and w.is_cuda and IS_HOPPER


def assert_same_product(got, expected, w, mode):
    """Compares products of the same numbers: the same bits, unless kernels differ, as on GPUs.

    There sums are in another order; FP8 tensor cores keep 13 bits below the largest product.
    """
    if not w.is_cuda:
        return same_bits(got, expected)
    are_bytes = mode in ("mxfp4", "mxfp8") and got.dtype != torch.float32
    steps, lost = (2, 2.0**-12) if has_own_kernel(w) and are_bytes else (1, 2.0**-20)
    largest = expected.float().abs().max() if expected.numel() else 0
    step = steps * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, expected, rtol=step, atol=float(largest) * lost)


# Rows of each expert, n, k.
GROUPS = [
    ([5], 48, 96),
    ([0, 3, 1, 0, 17, 2], 33, 64),
    ([1] * 9, 64, 544),
    ([0, 0, 40], 7, 32),
    ([13, 0, 30, 7], 100, 160),
    ([0, 0], 5, 32),
]


@some_layouts
@some_formats
@every_mode
@pytest.mark.parametrize("dtype", tiered(DTYPES, first=["bfloat16"]))
def test_a_grouped_product_is_that_of_each_expert(rng, dtype, mode, format, layout):
    for sizes, n, k in GROUPS:
        _, w = experts(rng, len(sizes), n, k, format, layout)
        x = numbers(rng, sum(sizes) + 3, k, dtype=dtype)
        bias = numbers(rng, len(sizes), n, dtype=dtype) if n % 2 else None
        rules = {"activations": mode, "bias": bias}
        got = mx.grouped_linear(x, w, torch.tensor(sizes, dtype=torch.int32), **rules)
        assert got.dtype == x.dtype
        assert_same_product(got, one_by_one(x, w, sizes, **rules), w, mode)
        assert (got[sum(sizes) :] == 0).all()


@every_mode
@pytest.mark.parametrize("scale_rule", ["floor", "ceil", "rceil"])
def test_a_grouped_product_rounds_as_it_is_told(rng, scale_rule, mode):
    if mode == "bf16":
        scale_rule = "even"
    sizes = [3, 0, 8]
    _, w = experts(rng, 3, 40, 96)
    x = numbers(rng, 11, 96)
    rules = {"activations": mode, "scale_rule": scale_rule}
    for out_dtype in (torch.float32, torch.float16, torch.bfloat16):
        got = mx.grouped_linear(x, w, torch.tensor(sizes).int(), out_dtype=out_dtype, **rules)
        same_bits(got, one_by_one(x, w, sizes, out_dtype=out_dtype, **rules))


@some_layouts
@every_mode
def test_a_grouped_product_is_within_the_bound_of_the_oracle(rng, mode, layout):
    (codes, scales), w = experts(rng, 3, 33, 96, "mxfp4", layout)
    x = numbers(rng, 12, 96, dtype="bfloat16")
    bias = rng.standard_normal((3, 33)).astype(np.float32)
    sizes = torch.tensor([7, 0, 5]).int()
    got = values_of(mx.grouped_linear(x, w, sizes, bias=torch.tensor(bias), activations=mode))
    left = values_of(x)
    if mode != "bf16":
        left = oracle.dequantize(*oracle.quantize(left, format=mode), mode)
    for rows, expert in ((slice(7), 0), (slice(7, 12), 2)):
        right = oracle.dequantize(codes[expert], scales[expert], "mxfp4")
        assert_matmul(got[rows], left[rows], right, "bfloat16", bias[expert].astype(np.float64))


@every_mode
def test_irregular_rows_and_experts_disturb_no_others(rng, mode):
    """NaN, infinities, and scales whose products float32 cannot hold."""
    _, w = experts(rng, 4, 40, 96, layout="preshuffled_cpu", low_scale=0, high_scale=255)
    sizes = [4, 9, 0, 5]
    x = numbers(rng, 18, 96) * torch.exp2(torch.randint(-120, 120, (18, 1)))
    x[2, 5], x[6, 0] = torch.nan, torch.inf
    got = mx.grouped_linear(x, w, torch.tensor(sizes).int(), activations=mode)
    same_bits(got, one_by_one(x, w, sizes, activations=mode))
    assert got.isnan().any()
    assert got.isfinite().any()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_grouped_linear_takes_views_like_their_copies(rng, view):
    x = view(numbers(rng, 6, 128))
    _, w = experts(rng, 2, 33, 64)
    sizes = torch.tensor([1, 7, x.shape[0] - 1, 8]).int()[::2]
    copy = x.clone(memory_format=torch.contiguous_format)
    bias = numbers(rng, 33, 2).T
    expected = mx.grouped_linear(copy, w, sizes.contiguous(), bias=bias.contiguous())
    same_bits(mx.grouped_linear(x, w, sizes, bias=bias), expected)


# moe


def composed(x, w_gate_up, w_down, ids, weights, biases=(None, None), **rules):
    """Returns a layer of experts made of its parts, and which of its tokens are decided."""
    gate = {name: rules.pop(name) for name in GateOptions._fields if name in rules}
    if has_own_kernel(w_gate_up) != has_own_kernel(w_down):
        # A layer has one kind of kernel, here that of any GPU, as plain weights have.
        w_gate_up, w_down = w_gate_up.unshuffle(), w_down.unshuffle()
    out_dtype = rules.pop("out_dtype", x.dtype)
    tokens, slots = ids.shape
    order = torch.argsort(ids.reshape(-1), stable=True)
    order = order[ids.reshape(-1)[order] >= 0]
    sizes = torch.bincount(ids.reshape(-1)[order], minlength=w_down.shape[0]).int()
    in_float32 = {**rules, "out_dtype": "float32"}

    sums = mx.grouped_linear(x[order // slots], w_gate_up, sizes, bias=biases[0], **in_float32)
    hidden, error = oracle.gated(values_of(sums), **{"hidden_act": "swiglu_oai", **gate})
    name = str(x.dtype).removeprefix("torch.")
    ends = [torch_of(oracle.round_to(hidden + e, name), name) for e in (-error, 0 * error, error)]
    are_decided = same_left_side(ends, rules["activations"], rules.get("scale_rule", "even"))

    rows = mx.grouped_linear(ends[1], w_down, sizes, bias=biases[1], **in_float32).cpu().numpy()
    place = {slot: row for row, slot in enumerate(order.tolist())}
    counts = values_of(weights).reshape(-1).astype(np.float32)
    out = np.zeros((tokens, w_down.shape[1]), np.float32)
    decided = np.ones(tokens, bool)
    for token in range(tokens):
        for slot in range(token * slots, (token + 1) * slots):
            if slot in place:
                out[token] = oracle.fused_multiply_add(counts[slot], rows[place[slot]], out[token])
                decided[token] &= are_decided[place[slot]]
    return torch.from_numpy(out).to(getattr(torch, str(out_dtype).removeprefix("torch."))), decided


def same_left_side(ends, mode, scale_rule):
    """Says of each row whether all its candidates are multiplied as the same numbers."""
    if mode == "bf16":
        found = [values_of(rows.bfloat16()) for rows in ends]
    elif mode == "mxint16":
        found = [values_of(rows) for rows in ends]
    else:
        found = [mx.quantize(rows, format=mode, scale_rule=scale_rule) for rows in ends]
        found = [values_of(q.dequantize("float32")) for q in found]
    return np.all((found[0] == found[1]) & (found[1] == found[2]), 1)


def assert_is_composed(got, expected, decided, at_least=0.5):
    assert decided.mean() >= at_least
    same_bits(got[torch.from_numpy(decided)], expected[torch.from_numpy(decided)])


def layer(rng, count, width, inner, formats=("mxfp4", "mxfp4"), layout="plain", sums=None):
    """Returns the weights of a layer whose hidden numbers are about one, of so many sums each."""
    found, sums = [], 2 * inner if sums is None else sums
    for format, n, k in ((formats[0], sums, width), (formats[1], width, inner)):
        scale = 124 - oracle.FORMATS[format].element.emax
        scales = {"low_scale": scale - 2, "high_scale": scale}
        found.append(experts(rng, count, n, k, format, layout, **scales)[1])
    return found


def routes(rng, tokens, slots, count, missing=0.1):
    """Returns experts of each token, some of them none, and what they count."""
    ids = rng.integers(0, count, (tokens, slots))
    ids[rng.random(ids.shape) < missing] = -1
    return torch.tensor(ids), numbers(rng, tokens, slots)


@some_layouts
@some_formats
@every_mode
@pytest.mark.parametrize("gate", tiered(GATES, first=["swiglu_oai", "silu with a limit"]))
def test_moe_is_made_of_its_parts(rng, gate, mode, format, layout):
    formats, sums = (format, FORMATS[FORMATS.index(format) - 1]), sums_of(gate, 64)
    gate_up, down = layer(rng, 4, 96, 64, formats, layout, sums)
    for tokens, slots, dtype in ((1, 2, "bfloat16"), (9, 3, "bfloat16"), (40, 2, "float32")):
        x = numbers(rng, tokens, 96, dtype=dtype)
        ids, weights = routes(rng, tokens, slots, 4)
        biases = [numbers(rng, 4, n, dtype=dtype) for n in (sums, 96)] if tokens > 1 else [None] * 2
        rules = {"activations": mode, "out_dtype": "float32", **GATES[gate]}
        named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
        got = mx.moe(x, gate_up, down, ids, weights, **named, **rules)
        assert got.dtype == torch.float32
        expected, decided = composed(x, gate_up, down, ids, weights, biases, **rules)
        assert_is_composed(got, expected, decided, 0.5 if tokens > 1 else 0)


@every_activation
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_moe_takes_and_gives_every_float(rng, hidden_act, dtype, out_dtype):
    gate_up, down = layer(rng, 3, 64, 32)
    x = numbers(rng, 12, 64, dtype=dtype)
    ids, weights = routes(rng, 12, 2, 3)
    weights = weights.to(getattr(torch, dtype))
    for ids_dtype in (torch.int32, torch.int64):
        rules = {"hidden_act": hidden_act, "out_dtype": out_dtype, "activations": "mxfp8"}
        got = mx.moe(x, gate_up, down, ids.to(ids_dtype), weights, **rules)
        assert got.dtype == getattr(torch, out_dtype)
        assert_is_composed(got, *composed(x, gate_up, down, ids, weights, **rules))
    got = mx.moe(x, gate_up, down, ids, weights)
    assert got.dtype == x.dtype


@pytest.mark.parametrize("limit, alpha", [(7.0, 1.702), (0.5, 1.0), (100.0, 0.1), (3.0, 40.0)])
def test_limit_and_alpha_reach_the_activation(rng, limit, alpha):
    gate_up, down = layer(rng, 3, 64, 64)
    x = 4 * numbers(rng, 20, 64, dtype="bfloat16")
    ids, weights = routes(rng, 20, 2, 3)
    rules = {"limit": limit, "alpha": alpha, "activations": "mxint8", "out_dtype": "float32"}
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    assert_is_composed(got, *composed(x, gate_up, down, ids, weights, **rules))


def hidden_numbers(sums, inner=32, **gate):
    """Returns the hidden numbers of sums [count, sums of 32 hidden numbers], as bfloat16 has them.

    The sums are biases, of any float32. The second product is with the identity, and where a
    hidden number is not finite, its zeros make the whole row NaN.
    """
    count, n = sums.shape
    codes, scales = (np.stack([part] * count) for part in identity(inner))
    zeros = mx.MXTensor(torch.zeros(count, n, 16).byte(), torch.full((count, n, 1), 127).byte())
    ids, x = torch.arange(count)[:, None], torch.zeros(count, 32, dtype=torch.bfloat16)
    rules = {"activations": "bf16", "out_dtype": "float32", **gate}
    arguments = x, zeros, mx_tensor(codes, scales), ids, torch.ones(count, 1)
    return mx.moe(*arguments, bias_gate_up=torch.tensor(sums), **rules)


def assert_hidden_numbers(found, sums, **gate):
    """Compares them with the oracle's; returns which rows are finite, and the share of those that
    are known to the bit."""
    exact, error = oracle.gated(sums, **gate)
    with np.errstate(invalid="ignore"):
        low, high = (oracle.round_to(exact + e, "bfloat16") for e in (-error, error))
    are_finite = np.isfinite(low), np.isfinite(high)
    finite, no_number = np.all(are_finite, (0, 2)), (~np.any(are_finite, 0)).any(1)
    found = values_of(found)
    assert ((low <= found) & (found <= high))[finite].all()
    assert np.isnan(found[no_number]).all()
    return finite, (low == high)[finite]


@every_gate
def test_the_activation_is_within_its_bound(rng, gate):
    count = 40
    sums = rng.standard_normal((count, sums_of(gate, 32))) * 2.0 ** rng.integers(-30, 9, (count, 1))
    sums[0], sums[1, :3] = 0, [np.inf, -np.inf, np.nan]
    sums = sums.astype(np.float32)
    got = hidden_numbers(sums, **GATES[gate])
    finite, is_known = assert_hidden_numbers(got, sums, **GATES[gate])
    assert finite.sum() == count - 1
    assert is_known.mean() > 0.9


UPS = [1.0, -0.0, -3.0, 0.7, 2.0**100, -np.inf, np.nan]


@pytest.mark.parametrize(
    "gate, up", [(gate, up) for gate in GATES for up in (UPS if gate != "relu2" else UPS[:1])]
)
def test_every_bfloat16_gate_is_within_the_bound(gate, up):
    """And, without a gate, every up: signed zeros, subnormal numbers, infinities and NaN too."""
    every = np.arange(1 << 16, dtype=np.uint32) << 16
    gates = every.view(np.float32).reshape(-1, 32)
    sums, ups = gates, np.full_like(gates, up)
    if gate != "relu2":
        turns = GATES[gate].get("interleaved", gate == "swiglu_oai")
        sums = (
            np.stack([gates, ups], 2).reshape(len(gates), -1) if turns else np.hstack([gates, ups])
        )
    got = hidden_numbers(sums, **GATES[gate])
    finite, _ = assert_hidden_numbers(got, sums, **GATES[gate])
    assert finite.any() or not np.isfinite(up)


def test_an_infinite_limit_is_none_and_silu_has_no_other(rng):
    gate_up, down = layer(rng, 3, 64, 64)
    x, (ids, weights) = 8 * numbers(rng, 20, 64), routes(rng, 20, 2, 3)
    call = partial(mx.moe, x, gate_up, down, ids, weights, activations="bf16")
    for hidden_act in ("silu", "gelu_tanh"):
        expected = call(hidden_act=hidden_act)
        same_bits(call(hidden_act=hidden_act, limit=math.inf), expected)
        same_bits(call(hidden_act=hidden_act, limit=3e38), expected)
        assert not torch.equal(call(hidden_act=hidden_act, limit=2.0), expected)
    same_bits(call(hidden_act="silu", alpha=1.0), call(hidden_act="silu"))


@pytest.mark.parametrize("gate", [name for name in GATES if name != "relu2"])
def test_the_order_of_rows_is_a_choice_of_its_own(rng, gate):
    """Weights and biases of the other order give the same bits."""
    gate_up, down = layer(rng, 3, 64, 64)
    x, (ids, weights) = numbers(rng, 20, 64), routes(rng, 20, 2, 3)
    bias, own = numbers(rng, 3, 128), dict(GATES[gate])
    turns = own.pop("interleaved", own["hidden_act"] == "swiglu_oai")
    call = partial(mx.moe, x, expert_ids=ids, expert_weights=weights, w_down=down, **own)
    order = torch.arange(128).view(2, 64).T.flatten()
    order = order.argsort() if turns else order
    moved = mx.MXTensor(gate_up.codes[:, order], gate_up.scales[:, order])
    expected = call(w_gate_up=gate_up, bias_gate_up=bias, interleaved=turns)
    same_bits(call(w_gate_up=moved, bias_gate_up=bias[:, order], interleaved=not turns), expected)


@every_mode
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_on_the_input_multiply_rows_before_they_are_rounded(rng, dtype, slots, mode):
    gate_up, down = layer(rng, 3, 64, 32)
    x = numbers(rng, 12, 64, dtype=dtype)
    ids, weights = routes(rng, 12, slots, 3)
    call = partial(mx.moe, w_gate_up=gate_up, w_down=down, hidden_act="silu", activations=mode)
    got = call(x, expert_ids=ids, expert_weights=weights, apply_router_weight_on_input=True)
    assert got.dtype == x.dtype
    expected = torch.zeros(12, 64)
    for slot in range(slots):
        rows = (x.float() * weights[:, slot, None]).to(x.dtype)
        of_slot = ids[:, slot, None], torch.ones(12, 1)
        expected += call(
            rows, expert_ids=of_slot[0], expert_weights=of_slot[1], out_dtype="float32"
        )
    same_bits(got, expected.to(x.dtype))


@every_mode
def test_the_second_product_is_within_the_bound_of_the_oracles_quantization(rng, mode):
    """One slot that counts one: the layer's result is the product of its hidden numbers."""
    gate_up, _ = layer(rng, 2, 64, 64)
    parts, down = experts(rng, 2, 64, 64)
    x, ids = numbers(rng, 16, 64, dtype="bfloat16"), torch.arange(16)[:, None] % 2
    rules = {"activations": mode, "out_dtype": "float32"}
    got = values_of(mx.moe(x, gate_up, down, ids, torch.ones(16, 1), **rules))
    for expert in range(2):
        rows = slice(expert, None, 2)
        sums = mx.linear(x[rows], gate_up[expert], **rules)
        exact, error = oracle.gated(values_of(sums), "swiglu_oai")
        ends = [oracle.round_to(exact + e, "bfloat16") for e in (-error, error)]
        decided = np.all(ends[0] == ends[1], 1)
        left = ends[0][decided]
        if mode != "bf16":
            left = oracle.dequantize(*oracle.quantize(left, format=mode), mode)
        assert decided.mean() > 0.5
        right = oracle.dequantize(parts[0][expert], parts[1][expert])
        assert_matmul(got[rows][decided], left, right)


SHAPES = [
    # tokens, slots, experts
    *((tokens, 4, 8) for tokens in (0, 1, 2, 31, 64)),
    *((7, slots, 16) for slots in range(1, 9)),
    *((9, 2, count) for count in (1, 2, 32, 128)),
    (512, 8, 128),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", ["mxfp4", "bf16"])
def test_moe_of_every_size(rng, shape, mode):
    tokens, slots, count = shape
    gate_up, down = layer(rng, count, 32, 32, layout="preshuffled_cpu")
    x = numbers(rng, tokens, 32, dtype="bfloat16")
    ids, weights = routes(rng, tokens, slots, count)
    rules = {"activations": mode, "out_dtype": "float32"}
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    assert got.shape == (tokens, 32)
    if tokens:
        expected, decided = composed(x, gate_up, down, ids, weights, **rules)
        assert_is_composed(got, expected, decided, 0)


@every_mode
def test_all_tokens_to_one_expert(rng, mode):
    gate_up, down = layer(rng, 4, 64, 64)
    x, weights = numbers(rng, 50, 64, dtype="bfloat16"), numbers(rng, 50, 2)
    ids = torch.full((50, 2), 2)
    rules = {"activations": mode, "out_dtype": "float32"}
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    assert_is_composed(got, *composed(x, gate_up, down, ids, weights, **rules))


def test_slots_without_an_expert_add_nothing(rng):
    gate_up, down = layer(rng, 4, 64, 32)
    x, (ids, weights) = numbers(rng, 6, 64), routes(rng, 6, 3, 4, missing=0)
    expected = mx.moe(x, gate_up, down, ids, weights)
    wider = torch.full((6, 5), -3)
    counts = torch.full((6, 5), torch.nan)
    wider[:, [0, 2, 4]], counts[:, [0, 2, 4]] = ids, weights
    same_bits(mx.moe(x, gate_up, down, wider, counts), expected)
    nothing = mx.moe(x, gate_up, down, torch.full((6, 2), -1), torch.full((6, 2), torch.nan))
    assert nothing.shape == (6, 64)
    assert (nothing == 0).all()
    assert (mx.moe(x, gate_up, down, ids[:, :0], weights[:, :0]) == 0).all()


@every_mode
@every_activation
def test_a_tokens_bits_depend_on_no_other_token(rng, mode, hidden_act):
    gate_up, down = layer(rng, 5, 96, 64, layout="preshuffled_cpu")
    x, (ids, weights) = numbers(rng, 70, 96, dtype="bfloat16"), routes(rng, 70, 3, 5)
    rules = {"activations": mode, "hidden_act": hidden_act}
    expected = mx.moe(x, gate_up, down, ids, weights, **rules)
    order = torch.tensor(rng.permutation(70))
    same_bits(mx.moe(x[order], gate_up, down, ids[order], weights[order], **rules), expected[order])
    for some in (slice(1), slice(3, 9), slice(30, 70)):
        got = mx.moe(x[some], gate_up, down, ids[some], weights[some], **rules)
        same_bits(got, expected[some])


@pytest.mark.cpu_only
@every_mode
@every_activation
def test_every_number_of_threads_gives_the_same_bits(rng, mode, hidden_act):
    gate_up, down = layer(rng, 6, 256, 192, layout="preshuffled_cpu")
    x, (ids, weights) = numbers(rng, 200, 256, dtype="bfloat16"), routes(rng, 200, 4, 6)
    rules = {"activations": mode, "hidden_act": hidden_act}
    torch.set_num_threads(1)
    expected = mx.moe(x, gate_up, down, ids, weights, **rules)
    few = mx.moe(x[:2], gate_up, down, ids[:2], weights[:2], **rules)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        same_bits(mx.moe(x, gate_up, down, ids, weights, **rules), expected)
        same_bits(mx.moe(x[:2], gate_up, down, ids[:2], weights[:2], **rules), few)


@pytest.mark.parametrize("layout", LAYOUTS)
@every_activation
def test_every_layout_gives_the_same_bits(rng, layout, hidden_act):
    gate_up, down = layer(rng, 3, 96, 64)
    x, (ids, weights) = numbers(rng, 30, 96, dtype="bfloat16"), routes(rng, 30, 2, 3)
    device = LAYOUTS[layout]["device"]
    moved = [w.preshuffle(device=device) if device else w for w in (gate_up, down)]
    for mode in ("mxfp4", "bf16"):
        rules = {"hidden_act": hidden_act, "activations": mode}
        expected = mx.moe(x, gate_up, down, ids, weights, **rules)
        got = mx.moe(x, *moved, ids, weights, **rules)
        if not has_own_kernel(moved[0]):
            same_bits(got, expected)
            continue
        # Sums in another order may round a hidden number to a neighbour, and a token with it.
        difference = (got - expected).abs().amax(1) / expected.abs().max()
        assert (difference <= 2.0**-18).float().mean() > 0.5
        assert difference.max() < 2.0**-2


@every_mode
@every_activation
def test_nan_and_infinity_reach_their_token_and_no_other(rng, mode, hidden_act):
    gate_up, down = layer(rng, 3, 96, 64)
    x, (ids, weights) = numbers(rng, 12, 96), routes(rng, 12, 2, 3, missing=0)
    rules = {"activations": mode, "hidden_act": hidden_act}
    expected = mx.moe(x, gate_up, down, ids, weights, **rules)
    x[3, 40] = torch.nan
    weights[7, 1] = torch.inf
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    assert got[3].isnan().all()
    assert not got[7].isfinite().any()
    others = [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    same_bits(got[others], expected[others])


def test_scales_beyond_float32_are_taken_in_float64(rng):
    """Products of first weights as large as float32 allows, and activations as small."""
    (codes, scales), _ = experts(rng, 2, 128, 64, low_scale=240, high_scale=250)
    gate_up, (_, down) = mx_tensor(codes, scales), layer(rng, 2, 64, 64)
    x = numbers(rng, 10, 64) * 2.0**-120
    ids, weights = routes(rng, 10, 2, 2)
    rules = {"activations": "mxfp8", "out_dtype": "float32"}
    got = mx.moe(x, gate_up, down, ids, weights, **rules)
    assert got.isfinite().all()
    assert_is_composed(got, *composed(x, gate_up, down, ids, weights, **rules))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_moe_takes_views_like_their_copies(rng, view):
    x = view(numbers(rng, 6, 128))
    tokens = x.shape[0]
    gate_up, down = layer(rng, 3, 64, 32)
    ids, weights = routes(rng, 4, 2 * tokens, 3)
    biases = {"bias_gate_up": numbers(rng, 64, 3).T, "bias_down": numbers(rng, 3, 128)[:, ::2]}
    arguments = ids.T[::2, :2], weights.T[::2, :2]
    copies = (x.clone(memory_format=torch.contiguous_format), *(a.contiguous() for a in arguments))
    copied = {name: bias.contiguous() for name, bias in biases.items()}
    expected = mx.moe(copies[0], gate_up, down, *copies[1:], **copied)
    same_bits(mx.moe(x, gate_up, down, *arguments, **biases), expected)


@pytest.mark.cpu_only
def test_numpy_tokens_give_numpy_results(rng):
    gate_up, down = layer(rng, 3, 64, 32)
    x, (ids, weights) = numbers(rng, 5, 64), routes(rng, 5, 2, 3)
    sizes = np.array([2, 3, 0], np.int32)
    for dtype in DTYPES:
        values = x.to(getattr(torch, dtype))
        array = mx_array(values)
        got = mx.moe(array, gate_up, down, ids.numpy(), weights.numpy())
        assert got.dtype == array.dtype
        assert_bitwise_equal(values_of(got), values_of(mx.moe(values, gate_up, down, ids, weights)))
        got = mx.grouped_linear(array, gate_up, sizes)
        assert got.dtype == array.dtype
        expected = mx.grouped_linear(values, gate_up, torch.from_numpy(sizes))
        assert_bitwise_equal(values_of(got), values_of(expected))


def mx_array(values):
    """Returns the NumPy array of a tensor of any float type."""
    dtype = NUMPY_DTYPES[str(values.dtype).removeprefix("torch.")]
    return values.double().numpy().astype(dtype)
