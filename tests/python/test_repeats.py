"""A call of `linear` that is like one before gives what the long way gives, and only such a call.

Whatever differs from the remembered call, in its arguments or behind them, has to be noticed: each
case makes a call, changes one thing, calls again, and compares with weights that remember nothing.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mx_kernels as mx
from mx_kernels._core.repeats import MAX_SHAPES

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
    "rounding": lambda g: {"rounding": "ceil", "activations": "mxfp4"},
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
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="freed"):
        mx.linear(**given)


def test_bad_arguments_are_refused_in_the_same_words(given):
    remembered(given)
    for bad in (
        {"bias": torch.zeros(N + 1)},
        {"bias": torch.zeros(N, dtype=torch.int32)},
        {"rounding": "up"},
        {"out_dtype": "int8"},
        {"activations": "mxfp6"},
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


def test_who_watches_sees_the_call(given):
    remembered(given)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        mx.linear(**given)
    assert any("mx_kernels" in name for name in seen)


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
