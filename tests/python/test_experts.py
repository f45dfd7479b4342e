"""grouped_linear and moe: misuse, and the operators inside torch."""

import math
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
from cases import GATES, LAYOUTS, on_every_device

pytestmark = on_every_device

E, H, INNER, T, SLOTS = 3, 64, 32, 5, 2
OPS = torch.ops.mx_kernels


def weights(n, k, layout="plain", seed=7):
    torch.manual_seed(seed)
    q = mx.quantize(torch.randn(E, n, k) / 8)
    device = LAYOUTS[layout]["device"]
    return q.preshuffle(device=device) if device else q


def inputs(layout="plain", **leaf):
    """Returns what a good call of `moe` takes."""
    gate_up, down = weights(2 * INNER, H, layout), weights(H, INNER, layout, 8)
    torch.manual_seed(9)
    named = {
        "x": torch.randn(T, H, **leaf),
        "w_gate_up": gate_up,
        "w_down": down,
        "expert_ids": torch.randint(-1, E, (T, SLOTS)),
        "expert_weights": torch.rand(T, SLOTS, **leaf),
        "bias_gate_up": torch.randn(E, 2 * INNER, **leaf),
        "bias_down": torch.randn(E, H, **leaf),
    }
    return named


def grouped_inputs(layout="plain", **leaf):
    """Returns what a good call of `grouped_linear` takes."""
    torch.manual_seed(9)
    return {
        "x": torch.randn(T, H, **leaf),
        "w": weights(48, H, layout),
        "group_sizes": torch.tensor([2, 0, 1], dtype=torch.int32),
        "bias": torch.randn(E, 48, **leaf),
    }


# name: (argument, what makes a bad one of a good one, error, what the message contains)
BAD_MOE = {
    "x of three axes": ("x", lambda x: x[None], ValueError, r"x: got shape \[1, 5, 64\]"),
    "x of one axis": ("x", lambda x: x[0], ValueError, r"expected \[T, H\]"),
    "x of integers": ("x", lambda x: x.long(), TypeError, "x: got dtype int64"),
    "x encoded": ("x", mx.quantize, TypeError, "x: got an MXTensor"),
    "x too narrow": ("x", lambda x: x[:, :32], ValueError, "got K = 32 and K = 64"),
    "one matrix": ("w_gate_up", lambda w: w[0], ValueError, "weights of all experts"),
    "dense weights": ("w_down", lambda w: w.dequantize(), TypeError, "expected an MXTensor"),
    "fewer experts": ("w_down", lambda w: w[:2], ValueError, r"w_down: got shape \[2, 64, 32\]"),
    "odd rows": ("w_gate_up", lambda w: plain_rows(w, 63), ValueError, r"expected \[3, 64, 64\]"),
    "half the rows": ("w_gate_up", lambda w: plain_rows(w, 32), ValueError, "a gate and an up"),
    "another width": ("w_down", lambda w: plain_rows(w, 63), ValueError, r"w_down: got shape"),
    "ids as floats": ("expert_ids", lambda i: i.float(), TypeError, "got dtype float32, expected"),
    "ids as bytes": ("expert_ids", lambda i: i.byte(), TypeError, "int32 or int64"),
    "ids as a list": ("expert_ids", lambda i: i.tolist(), TypeError, "expert_ids: got list"),
    "ids of one axis": ("expert_ids", lambda i: i[:, 0], ValueError, r"expected \[5, k\]"),
    "ids of other tokens": ("expert_ids", lambda i: i[:4], ValueError, r"got shape \[4, 2\]"),
    "weights of ids": (
        "expert_weights",
        lambda w: w.long(),
        TypeError,
        "expert_weights: got dtype",
    ),
    "fewer weights": ("expert_weights", lambda w: w[:, :1], ValueError, r"expected \[5, 2\]"),
    "bias of one": ("bias_gate_up", lambda b: b[0], ValueError, r"bias_gate_up: got shape \[64\]"),
    "bias of others": ("bias_down", lambda b: b[:, :32], ValueError, r"expected \[3, 64\]"),
    "bias of integers": ("bias_down", lambda b: b.int(), TypeError, "bias_down: got dtype int32"),
    "hidden_act": ("hidden_act", "gelu", ValueError, "'swiglu_oai' or 'silu' or .* or 'relu2'"),
    "no activation": ("hidden_act", None, ValueError, "hidden_act: got None"),
    "limit": ("limit", 0, ValueError, "limit: got 0, expected a positive number"),
    "negative limit": ("limit", -7.0, ValueError, "limit: got -7.0"),
    "infinite limit below": ("limit", -math.inf, ValueError, "limit: got -inf"),
    "infinite alpha": ("alpha", math.inf, ValueError, "alpha: got inf"),
    "order": ("interleaved", 1, TypeError, "interleaved: got int, expected a bool"),
    "beta": ("beta", 4.0, ValueError, "beta: got 4.0 with hidden_act=.* 'situ' has one"),
    "linear beta": ("linear_beta", 4.0, ValueError, "linear_beta: got 4.0 with hidden_act="),
    "rows of no gate": ("hidden_act", "relu2", ValueError, r"\[3, 32, 64\]: an up for each"),
    "limit NaN": ("limit", math.nan, ValueError, "limit: got nan"),
    "large limit": ("limit", 1e39, ValueError, "that float32 holds"),
    "a limit beyond all floats": ("limit", 10**400, ValueError, "limit: got a number beyond"),
    "a limit in a list": ("limit", [7], TypeError, "limit: got list, expected a number"),
    "alpha": ("alpha", 1e-50, ValueError, "alpha: got 1e-50"),
    "alpha as text": ("alpha", "1", TypeError, "alpha: got str, expected a number"),
    "alpha as truth": ("alpha", True, TypeError, "alpha: got bool"),
    "scale_rule": ("scale_rule", "up", ValueError, "scale_rule: got 'up'"),
    "activations": ("activations", "fp6", ValueError, "activations: got 'fp6'"),
    "out_dtype": ("out_dtype", "int8", ValueError, "out_dtype: got 'int8'"),
    "device": ("w_down", lambda w: w.to("meta"), ValueError, "expected one device"),
}
BAD_GROUPED = {
    "x of one axis": ("x", lambda x: x[0], ValueError, r"expected \[T, K\], rows sorted"),
    "x too narrow": ("x", lambda x: x[:, :32], ValueError, "got K = 32 and K = 64"),
    "one matrix": ("w", lambda w: w[0], ValueError, r"expected the weights of all experts \[E"),
    "sizes of int64": ("group_sizes", lambda s: s.long(), TypeError, r"with group_sizes.to\(torch"),
    "too few sizes": ("group_sizes", lambda s: s[:2], ValueError, r"expected \[3\]"),
    "bias": ("bias", lambda b: b[:, :47], ValueError, r"bias: got shape \[3, 47\]"),
    "scale_rule": ("scale_rule", "up", ValueError, "scale_rule"),
    "activations": ("activations", "fp6", ValueError, "activations"),
    "out_dtype": ("out_dtype", "int8", ValueError, "out_dtype"),
}


# What only those who read the numbers can refuse; what a GPU does instead: tests/simt.
BAD_NUMBERS = {
    "a negative size": (lambda s: s - 1, r"got \[1, -1, 0\] for 5 rows"),
    "large sizes": (lambda s: s * 2, "5 or fewer together"),
    "sizes that wrap": (lambda s: s + 2**31 - 3, "group_sizes: got"),
}


both_calls = pytest.mark.parametrize(
    "call, make",
    [(mx.grouped_linear, grouped_inputs), (mx.moe, inputs)],
    ids=["grouped_linear", "moe"],
)


def plain_rows(w, count):
    """Returns the first rows of each expert."""
    codes, scales = (part[:, :count].contiguous() for part in (w.codes, w.scales))
    return mx.MXTensor(codes, scales, format=w.format)


def spoilt(named, bad):
    argument, change, *expected = bad
    named[argument] = change(named[argument]) if callable(change) else change
    return named, expected


@pytest.mark.parametrize("bad", BAD_MOE.values(), ids=BAD_MOE)
def test_a_wrong_call_of_moe_says_what_is_wrong(bad):
    named, (error, message) = spoilt(inputs(), bad)
    with pytest.raises(error, match=message):
        mx.moe(**named)


@pytest.mark.parametrize("bad", BAD_GROUPED.values(), ids=BAD_GROUPED)
def test_a_wrong_call_of_grouped_linear_says_what_is_wrong(bad):
    named, (error, message) = spoilt(grouped_inputs(), bad)
    with pytest.raises(error, match=message):
        mx.grouped_linear(**named)


@pytest.mark.cpu_only
def test_an_id_of_no_expert_is_refused():
    named = inputs()
    named["expert_ids"] += 3
    with pytest.raises(ValueError, match="got 5, expected at most 2"):
        mx.moe(**named)


@pytest.mark.cpu_only
@pytest.mark.parametrize("change, message", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_sizes_that_do_not_fit_are_refused(change, message):
    named = grouped_inputs()
    named["group_sizes"] = change(named["group_sizes"])
    with pytest.raises(ValueError, match=message):
        mx.grouped_linear(**named)


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: x.astype(np.int32), "x: got dtype int32"),
        (lambda x: x.astype(">f4"), "other byte order"),
        (lambda x: x.astype(object), "x: got dtype object"),
        (lambda x: x.astype(np.longdouble), "x: got dtype float128, expected"),
        (lambda x: np.ma.masked_array(x, x > 0), "x: got a masked array"),
        (lambda x: x.astype(ml_dtypes.float8_e5m2), "x: got dtype float8_e5m2"),
    ],
)
def test_arrays_that_are_no_floats_are_refused(change, message):
    named = inputs()
    named["x"] = change(named["x"].numpy())
    with pytest.raises(TypeError, match=message):
        mx.moe(**named)


TENSORS = {
    "negated lazily": lambda t: torch._neg_view(-t),
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "a parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
}
ARRAYS = {
    "a memmap": lambda a: a.view(np.memmap),
    "a matrix": lambda a: a.view(np.matrix) if a.ndim == 2 else a,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "backwards": lambda a: a[..., ::-1].copy()[..., ::-1],
    "in Fortran's order": np.asfortranarray,
}


def operands(named):
    return {name: v for name, v in named.items() if type(v) is torch.Tensor}


@both_calls
@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS)
def test_every_operand_means_what_its_copy_means(call, make, change):
    expected = call(**make())
    for name, value in operands(make()).items():
        changed = change(value)
        assert torch.equal(changed, value)
        assert torch.equal(call(**make() | {name: changed}), expected), name


@both_calls
def test_zeros_without_memory_are_zeros(call, make):
    for name, value in operands(make()).items():
        nothing = torch._efficientzerotensor(value.shape, dtype=value.dtype, device=value.device)
        assert nothing.data_ptr() == 0
        zeros = torch.zeros_like(value)
        assert torch.equal(call(**make() | {name: nothing}), call(**make() | {name: zeros})), name


@both_calls
def test_memory_that_was_freed_is_an_error(call, make):
    for name, value in operands(make()).items():
        freed = value.clone()
        freed.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="storage was freed"):
            call(**make() | {name: freed})


@pytest.mark.cpu_only
@both_calls
@pytest.mark.parametrize("change", ARRAYS.values(), ids=ARRAYS)
def test_every_array_means_what_its_copy_means(call, make, change):
    named = make()
    arrays = {name: value.numpy() for name, value in operands(named).items()}
    expected = call(**named | arrays)
    assert np.array_equal(expected, call(**named))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, array in arrays.items():
            got = call(**named | arrays | {name: change(array)})
            assert type(got) is np.ndarray, name
            assert np.array_equal(got, expected), name


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", ["uint64", ">i8", "bool", "float32"])
def test_integers_of_other_types_are_refused(dtype):
    for call, make, name in ((mx.moe, inputs, "expert_ids"),
                             (mx.grouped_linear, grouped_inputs, "group_sizes")):  # fmt: skip
        ids = abs(make()[name].numpy()).astype(dtype)
        for given in (ids, torch.from_numpy(ids)) if ids.dtype.isnative else (ids,):
            with pytest.raises(TypeError, match=rf"{name}: got .*, expected "):
                call(**make() | {name: given})


NOT_PLAIN = {
    "got a torch.sparse_coo tensor": lambda i: i.to_sparse(),
    "got a nested tensor": lambda i: torch.nested.nested_tensor([i, i]),
    "got a masked array": lambda i: np.ma.masked_array(i.numpy()),
    "got dtype .V4": lambda i: np.zeros(i.shape, [("a", "i4")]),
    "got dtype .O": lambda i: i.numpy().astype(object),
    "got dtype >i4": lambda i: i.numpy().astype(">i4"),
}


@pytest.mark.cpu_only
@both_calls
@pytest.mark.parametrize("message", NOT_PLAIN)
@pytest.mark.filterwarnings("ignore:.*prototype")
def test_integers_that_are_no_plain_array_are_refused(call, make, message):
    name = "expert_ids" if call is mx.moe else "group_sizes"
    with pytest.raises(TypeError, match=f"{name}: {message}.*, expected "):
        call(**make() | {name: NOT_PLAIN[message](make()[name])})


@pytest.mark.cpu_only
def test_ids_beyond_an_int32_are_no_small_ones():
    for far in (1 << 32, (1 << 32) + 1, 1 << 62):
        named = inputs()
        named["expert_ids"][1, 0] = far
        with pytest.raises(ValueError, match=f"expert_ids: got {far}, expected at most 2"):
            mx.moe(**named)
        named["expert_ids"][1, 0] = -far
        none = mx.moe(**named)
        named["expert_ids"][1, 0] = -1
        assert torch.equal(none, mx.moe(**named))


def test_what_activations_none_stands_for(device):
    named, grouped = inputs(), grouped_inputs()
    best = "mxint8" if device == "cpu" else "bf16"
    assert torch.equal(mx.moe(**named, activations=None), mx.moe(**named, activations=best))
    expected = mx.grouped_linear(**grouped, activations=best)
    assert torch.equal(mx.grouped_linear(**grouped, activations=None), expected)


# Inside torch.


def operator_arguments(function, layout="plain", **leaf):
    """Returns the positional arguments of an operator."""
    if function == "grouped_linear":
        x, w, sizes, bias = grouped_inputs(layout, **leaf).values()
        parts = w.codes, w.scales, w.format, w.layout, 48
        return x, *parts, sizes, bias, "even", torch.float32, "mxfp8"
    x, gate_up, down, *rest = inputs(layout, **leaf).values()
    parts = (gate_up.codes, gate_up.scales, gate_up.format, gate_up.layout, 2 * INNER)
    parts += (down.codes, down.scales, down.format, down.layout, H)
    return x, *parts, *rest, "silu", *[None] * 5, "even", torch.bfloat16, "mxfp8"


both_functions = pytest.mark.parametrize("function", ["grouped_linear", "moe"])


@both_functions
@pytest.mark.parametrize("layout", ["plain", "preshuffled_cpu"])
@pytest.mark.parametrize("wants_gradients", [False, True])
def test_opcheck(function, layout, wants_gradients):
    args = operator_arguments(function, layout, requires_grad=wants_gradients)
    torch.library.opcheck(getattr(OPS, function).default, args)


def test_operators_and_functions_give_the_same_bits():
    args = operator_arguments("grouped_linear")
    rules = {"out_dtype": "float32", "activations": "mxfp8"}
    assert torch.equal(OPS.grouped_linear(*args), mx.grouped_linear(**grouped_inputs(), **rules))
    rules = {"out_dtype": "bfloat16", "activations": "mxfp8", "hidden_act": "silu"}
    assert torch.equal(OPS.moe(*operator_arguments("moe")), mx.moe(**inputs(), **rules))


@both_functions
def test_operators_validate_too(function):
    args = list(operator_arguments(function))
    with pytest.raises(ValueError, match="activations"):
        getattr(OPS, function)(*args[:-1], "fp6")
    with pytest.raises(ValueError, match=r"hold|codes: got"):
        getattr(OPS, function)(*args[:5], 99, *args[6:])


@both_functions
def test_they_compile_as_one_graph_with_gradients(function):
    torch._dynamo.reset()
    call, make = getattr(mx, function), inputs if function == "moe" else grouped_inputs

    def f(named):
        return call(**named, out_dtype="float32").square().sum()

    grads = []
    for run in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        named = make(requires_grad=True)
        run(named).backward()
        leaves = [v for v in named.values() if type(v) is torch.Tensor and v.requires_grad]
        grads.append([leaf.grad for leaf in leaves])
    assert len(grads[0]) == (4 if function == "moe" else 2)
    for eager, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(compiled, eager)
        assert (eager != 0).any()


def test_fake_tensors_give_shapes():
    named = {
        name: value.to("meta") if isinstance(value, torch.Tensor) else value
        for name, value in inputs().items()
    }
    out = mx.moe(**named, out_dtype="float16")
    assert (out.device.type, out.shape, out.dtype) == ("meta", (T, H), torch.float16)


def dense(w):
    return w.dequantize("float32").double()


def test_gradients_of_grouped_linear_are_those_of_the_dequantized_weights():
    for layout in ("plain", "preshuffled_cpu"):
        named = grouped_inputs(layout, requires_grad=True)
        out = mx.grouped_linear(**named)
        grad = torch.randn_like(out)
        out.backward(grad)
        w, grad = dense(named["w"]), grad.double()
        expected = torch.zeros(T, H).double()
        expected[:2], expected[2:3] = grad[:2] @ w[0], grad[2:3] @ w[2]
        torch.testing.assert_close(named["x"].grad.double(), expected, rtol=1e-5, atol=1e-5)
        expected = torch.stack([grad[:2].sum(0), torch.zeros(48).double(), grad[2]])
        torch.testing.assert_close(named["bias"].grad.double(), expected, rtol=1e-5, atol=1e-5)


def hidden_of(
    sums, hidden_act, interleaved=None, limit=1.0, alpha=None, beta=4.0, linear_beta=25.0
):
    """Returns the hidden numbers of one row of sums in float64, by the formulas."""
    if hidden_act == "relu2":
        return sums.clamp(min=0) ** 2
    turns = interleaved or (interleaved is None and hidden_act == "swiglu_oai")
    gate, up = (sums[::2], sums[1::2]) if turns else sums.chunk(2)
    if hidden_act == "situ":
        up = up if linear_beta == math.inf else linear_beta * torch.tanh(up / linear_beta)
        return beta * torch.tanh(gate / beta) / (1 + torch.exp(-gate)) * up
    up = up.clamp(-limit, limit)
    if hidden_act == "swiglu_step":
        return (gate / (1 + torch.exp(-gate))).clamp(max=limit) * up
    gate = gate.clamp(max=limit)
    if hidden_act == "gelu_tanh":
        inner = (2 / math.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        return gate / 2 * (1 + torch.tanh(inner)) * up
    added = 1 if hidden_act == "swiglu_oai" else 0
    slope = {"swiglu_oai": 1.702, "silu": 1.0}[hidden_act] if alpha is None else alpha
    return (up + added) * gate / (1 + torch.exp(-slope * gate))


@pytest.mark.parametrize("weights_on_input", [False, True])
@pytest.mark.parametrize("layout", ["plain", "preshuffled_cpu"])
@pytest.mark.parametrize("gate", GATES)
def test_gradients_of_moe_are_those_of_the_layer_on_dequantized_weights(
    layout, gate, weights_on_input
):
    """In float64, slot by slot, with torch's own derivatives."""
    named, numbers = inputs(layout, requires_grad=True), dict(GATES[gate])
    if numbers["hidden_act"] not in {"situ", "relu2"}:
        numbers.setdefault("limit", 1.0)
    if gate == "relu2":
        # Of the first half of what are gates and ups otherwise.
        bias = named["bias_gate_up"].detach()[:, :INNER].clone().requires_grad_()
        w = mx.quantize(named["w_gate_up"].dequantize("float32")[:, :INNER].contiguous())
        w = w if layout == "plain" else w.preshuffle("cpu")
        named |= {"w_gate_up": w, "bias_gate_up": bias}
    on = {"apply_router_weight_on_input": True} if weights_on_input else {}
    out = mx.moe(**named, **numbers, **on)
    grad = torch.randn_like(out)
    out.backward(grad)

    leaves = {
        name: value.detach().double().requires_grad_()
        for name, value in named.items()
        if type(value) is torch.Tensor and value.is_floating_point()
    }
    gate_ups, downs = dense(named["w_gate_up"]), dense(named["w_down"])
    total = torch.zeros(T, H).double()
    for t, j in np.ndindex(T, SLOTS):
        e, weight = int(named["expert_ids"][t, j]), leaves["expert_weights"][t, j]
        if e < 0:
            continue
        x, after = (leaves["x"][t] * weight, 1) if weights_on_input else (leaves["x"][t], weight)
        sums = gate_ups[e] @ x + leaves["bias_gate_up"][e]
        row = downs[e] @ hidden_of(sums, **numbers) + leaves["bias_down"][e]
        total = total + torch.eye(T).double()[t][:, None] * after * row
    total.backward(grad.double())
    for name, leaf in leaves.items():
        expected = leaf.grad.float()
        assert (expected != 0).any()
        torch.testing.assert_close(named[name].grad, expected, rtol=1e-4, atol=1e-5)


def test_torch_func_differentiates_them():
    named = inputs()
    x = named.pop("x")
    got = torch.func.grad(lambda x: mx.moe(x, **named).sum())(x)
    leaf = x.clone().requires_grad_()
    mx.moe(leaf, **named).sum().backward()
    assert torch.equal(got, leaf.grad)
