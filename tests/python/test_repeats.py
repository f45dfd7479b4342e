"""A product that is like one before gives what the long way gives, and only such a one.

Whatever differs from the remembered call, in its arguments or behind them, has to be noticed: each
case makes a call, changes one thing, calls again, and compares with weights that remember nothing.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mx_kernels as mx
from mx_kernels._core.products import MAX_SHAPES

M, N, K = 3, 40, 96


def fresh(w):
    """The same bytes in a tensor that remembers nothing."""
    return mx.MXTensor(w.codes.clone(), w.scales.clone(), shape=w.shape, format=w.format,
                       layout=w.layout, dtype=w.dtype)  # fmt: skip


def bits(t):
    return t.detach().contiguous().view(torch.uint8)


@pytest.fixture
def given():
    torch.manual_seed(7)
    return {
        "x": torch.randn(M, K, dtype=torch.bfloat16),
        "w": mx.quantize(torch.randn(N, K)).preshuffle(),
        "bias": None,
    }


def remembered(given):
    """Calls until the weights know such a call: the first one looks at them."""
    for _ in range(2):
        out = mx.linear(**given)
    assert given["w"]._repeats
    return out


def check(given):
    """A call gives what one does that nobody remembers, twice."""
    wanted = mx.linear(**given | {"w": fresh(given["w"])})
    for _ in range(2):
        got = mx.linear(**given)
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert torch.equal(bits(got), bits(wanted))


OTHER = {
    "the same": lambda g: {},
    "numbers": lambda g: {"x": torch.randn(M, K, dtype=torch.bfloat16)},
    "rows": lambda g: {"x": torch.randn(M + 1, K, dtype=torch.bfloat16)},
    "axes": lambda g: {"x": torch.randn(2, M, K, dtype=torch.bfloat16)},
    "dtype": lambda g: {"x": torch.randn(M, K)},
    "strides": lambda g: {"x": torch.randn(M, 2 * K, dtype=torch.bfloat16)[:, :K]},
    "columns": lambda g: {"x": torch.randn(K, M, dtype=torch.bfloat16).T},
    "negated": lambda g: {"x": torch._neg_view(g["x"])},
    "a parameter": lambda g: {"x": torch.nn.Parameter(g["x"], requires_grad=False)},
    "NumPy": lambda g: {"x": g["x"].float().numpy()},
    "bias": lambda g: {"bias": torch.randn(N, dtype=torch.bfloat16)},
    "bias of another dtype": lambda g: {"bias": torch.randn(N)},
    "strides of bias": lambda g: {"bias": torch.randn(2 * N, dtype=torch.bfloat16)[::2]},
    "scale_rule": lambda g: {"scale_rule": "ceil", "activations": "mxfp4"},
    "activations": lambda g: {"activations": "bf16"},
    "format": lambda g: {"activations": "mxfp8"},
    "result": lambda g: {"out_dtype": "float32"},
    "result by torch": lambda g: {"out_dtype": torch.float16},
}


@pytest.mark.parametrize("first", ["the same", "bias", "axes", "activations"])
@pytest.mark.parametrize("then", OTHER)
def test_what_differs_is_computed_as_it_is(given, first, then):
    before = given | OTHER[first](given)
    remembered(before)
    after = before | OTHER[then](given)
    if then == "NumPy":
        after["bias"] = None
        after["x"] = after["x"][:2]
        wanted = mx.linear(**after | {"w": fresh(after["w"])})
        assert (mx.linear(**after) == wanted).all()
    else:
        check(after)
    check(before)


def test_bytes_that_change_are_read_anew(given):
    remembered(given)
    given["w"].codes.copy_(torch.randint(0, 256, given["w"].codes.shape, dtype=torch.uint8))
    check(given)


@pytest.mark.parametrize("part", ["codes", "scales"])
def test_arrays_that_were_resized_are_refused(given, part):
    remembered(given)
    getattr(given["w"], part).resize_(5, 4)
    with pytest.raises(ValueError, match="changed after it was made"):
        mx.linear(**given)


@pytest.mark.parametrize("which", ["x", "codes", "scales", "bias"])
def test_memory_that_was_freed_is_refused(given, which):
    given["bias"] = torch.randn(N, dtype=torch.bfloat16)
    remembered(given)
    freed = given[which] if which in given else getattr(given["w"], which)
    if which in ("codes", "scales"):
        # Preshuffled weights of a CPU share memory, which torch frees for nobody.
        with pytest.raises(RuntimeError, match="not resizable"):
            freed.untyped_storage().resize_(0)
        given["w"] = given["w"].clone()
        remembered(given)
        freed = getattr(given["w"], which)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="freed"):
        mx.linear(**given)


def test_bad_arguments_are_refused_in_the_same_words(given):
    remembered(given)
    for bad in (
        {"bias": torch.zeros(N + 1)},
        {"bias": torch.zeros(N, dtype=torch.int32)},
        {"scale_rule": "up"},
        {"out_dtype": "int8"},
        {"activations": "mxfp5"},
        {"x": given["x"][:, : K - 32]},
        {"x": given["x"].int()},
        {"x": None},
    ):
        words = []
        for w in (fresh(given["w"]), given["w"]):
            with pytest.raises((TypeError, ValueError)) as error:
                mx.linear(**given | bad | {"w": w})
            words.append(str(error.value))
        assert words[0] == words[1]


def test_gradients_flow_where_one_is_wanted(given):
    remembered(given)
    x = given["x"].clone().requires_grad_()
    mx.linear(**given | {"x": x}).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    given["bias"] = torch.randn(N, dtype=torch.bfloat16)
    remembered(given)
    bias = given["bias"].clone().requires_grad_()
    mx.linear(**given | {"bias": bias}).sum().backward()
    assert torch.equal(bias.grad, torch.full((N,), float(M), dtype=torch.bfloat16))


def seen_by_who_watches(function, given):
    """Returns the operators that a mode of torch's sees in a call."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        function(**given)
    return seen


def test_who_watches_sees_the_call(given):
    remembered(given)
    assert any("mx_kernels" in name for name in seen_by_who_watches(mx.linear, given))


def test_inference_tensors_are_like_others(given):
    remembered(given)
    with torch.inference_mode():
        check(given | {"x": torch.randn(M, K, dtype=torch.bfloat16)})


def test_shapes_are_forgotten_when_there_are_many(given):
    for rows in range(1, 3 * MAX_SHAPES):
        mx.linear(torch.zeros(rows, K, dtype=torch.bfloat16), given["w"])
        assert len(given["w"]._repeats) <= MAX_SHAPES
    check(given)


def test_copies_and_files_do_not_carry_what_is_remembered(given, tmp_path):
    remembered(given)
    torch.save(given["w"], tmp_path / "w.pt")
    with torch.serialization.safe_globals([mx.MXTensor]):
        loaded = torch.load(tmp_path / "w.pt", weights_only=False)
    for copy in (loaded, given["w"].clone(), given["w"].detach()):
        assert not copy._repeats
        check(given | {"w": copy})


# Experts

E, SLOTS, INNER = 3, 2, 32
BF16 = torch.bfloat16


def layer():
    torch.manual_seed(8)
    return {
        "x": torch.randn(M, K, dtype=BF16),
        "w_gate_up": mx.quantize(torch.randn(E, 2 * INNER, K)).preshuffle(),
        "w_down": mx.quantize(torch.randn(E, K, INNER), format="mxfp8").preshuffle(),
        "expert_ids": torch.randint(0, E, (M, SLOTS)),
        "expert_weights": torch.rand(M, SLOTS),
    }


def of_another_format(w):
    """The same bytes, which mean other numbers."""
    return mx.MXTensor(w.codes, w.scales, shape=w.shape, format="mxfp8_e5m2", layout=w.layout)


def groups():
    torch.manual_seed(9)
    w = mx.quantize(torch.randn(E, N, K)).preshuffle()
    sizes = torch.tensor([2, 0, 1], dtype=torch.int32)
    return {"x": torch.randn(M, K, dtype=BF16), "w": w, "group_sizes": sizes}


ANY_EXPERTS = {
    "the same": lambda g: {},
    "numbers": lambda g: {"x": torch.randn(M, K, dtype=BF16)},
    "dtype": lambda g: {"x": torch.randn(M, K)},
    "strides": lambda g: {"x": torch.randn(M, 2 * K, dtype=BF16)[:, :K]},
    "negated": lambda g: {"x": torch._neg_view(g["x"])},
    "NumPy": lambda g: {"x": g["x"].float().numpy()},
    "scale_rule": lambda g: {"scale_rule": "ceil"},
    "activations": lambda g: {"activations": "bf16"},
    "result": lambda g: {"out_dtype": "float32"},
}
EXPERTS = {
    mx.moe: (layer, {
        "rows": lambda g: {"x": g["x"][:2], "expert_ids": g["expert_ids"][:2],
                           "expert_weights": g["expert_weights"][:2]},
        "slots": lambda g: {"expert_ids": g["expert_ids"][:, :1].contiguous(),
                            "expert_weights": g["expert_weights"][:, :1].contiguous()},
        "ids": lambda g: {"expert_ids": torch.tensor([[-1, 0], [2, 2], [1, -1]])},
        "dtype of ids": lambda g: {"expert_ids": g["expert_ids"].int()},
        "strides of ids": lambda g: {"expert_ids": g["expert_ids"].T.contiguous().T},
        "dtype of weights": lambda g: {"expert_weights": g["expert_weights"].bfloat16()},
        "bias": lambda g: {"bias_down": torch.randn(E, K, dtype=BF16)},
        "biases": lambda g: {"bias_down": torch.randn(E, K), "bias_gate_up": torch.randn(E, 64)},
        "second weights": lambda g: {"w_down": mx.quantize(torch.randn(E, K, INNER))},
        "second weights over the same bytes": lambda g: {"w_down": of_another_format(g["w_down"])},
        "hidden_act": lambda g: {"hidden_act": "silu"},
        "limit": lambda g: {"limit": 1.0},
        "alpha": lambda g: {"alpha": 1.0},
    }),
    mx.grouped_linear: (groups, {
        "rows": lambda g: {"x": torch.randn(M + 1, K, dtype=BF16)},
        "sizes": lambda g: {"group_sizes": torch.tensor([0, 1, 1], dtype=torch.int32)},
        "strides of sizes": lambda g: {"group_sizes": torch.ones(2 * E, dtype=torch.int32)[::2]},
        "bias": lambda g: {"bias": torch.randn(E, N, dtype=BF16)},
    }),
}  # fmt: skip
REFUSED = {
    mx.moe: (
        {"expert_ids": torch.full((M, SLOTS), E)},
        {"expert_ids": torch.zeros(M, SLOTS)},
        {"limit": True},
        {"limit": -1.0},
        {"hidden_act": "gelu"},
        {"expert_weights": torch.rand(M, SLOTS + 1)},
        {"bias_down": torch.zeros(E, K + 1)},
        {"x": torch.randn(M, K).int()},
        {"w_down": None},
    ),
    mx.grouped_linear: (
        {"group_sizes": torch.tensor([M, 1, 0], dtype=torch.int32)},
        {"group_sizes": torch.tensor([-1, 1, 0], dtype=torch.int32)},
        {"group_sizes": torch.ones(E)},
        {"bias": torch.zeros(E, N + 1)},
        {"activations": "mxfp5"},
    ),
}
CASES = [(f, name) for f, (_, other) in EXPERTS.items() for name in ANY_EXPERTS | other]


def without_memory(given):
    """The same arguments, with weights that remember nothing."""
    return {n: fresh(v) if isinstance(v, mx.MXTensor) else v for n, v in given.items()}


def asserted_equal(function, given):
    wanted = function(**without_memory(given))
    for _ in range(2):
        got = function(**given)
        assert got.dtype == wanted.dtype
        assert bits(torch.as_tensor(got)).equal(bits(torch.as_tensor(wanted)))


@pytest.mark.parametrize(("function", "then"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_experts_that_differ_are_computed_as_they_are(function, then):
    make, other = EXPERTS[function]
    before = make()
    for first in ({}, other["bias"](before)):
        given = before | first
        asserted_equal(function, given)
        (weights,) = (w for w in given.values() if getattr(w, "_repeats", None))
        after = given | (ANY_EXPERTS | other)[then](given)
        asserted_equal(function, after)
        asserted_equal(function, given)
        assert weights._repeats


@pytest.mark.parametrize("function", EXPERTS, ids=lambda f: f.__name__)
def test_experts_refuse_bad_arguments_in_the_same_words(function):
    given = EXPERTS[function][0]()
    if function is mx.moe:
        given["limit"] = 1.0
    asserted_equal(function, given)
    for bad in REFUSED[function]:
        words = []
        for call in (without_memory(given), given):
            with pytest.raises((TypeError, ValueError)) as error:
                function(**call | bad)
            words.append(str(error.value))
        assert words[0] == words[1]


@pytest.mark.parametrize("function", EXPERTS, ids=lambda f: f.__name__)
def test_gradients_and_who_watches_see_experts(function):
    given = EXPERTS[function][0]()
    asserted_equal(function, given)
    x = given["x"].clone().requires_grad_()
    function(**given | {"x": x}).sum().backward()
    assert x.grad.abs().sum() > 0
    assert any("mx_kernels" in name for name in seen_by_who_watches(function, given))
