"""No input crashes the process: every call gives a sound result or a TypeError or ValueError.

Arguments are drawn from what people pass by mistake, mixed with what is right, so that many
calls get past the first check. A crash would take pytest with it, which is the failure.
"""

import contextlib

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mx_kernels as mx
import oracle
from cases import (
    ACTIVATIONS,
    DTYPES,
    FORMATS,
    INTEGER_FORMATS,
    LAYOUTS,
    NUMPY_DTYPES,
    NVFP4_FORMATS,
    ROUNDINGS,
    finite_codes,
    floats_of,
    layout_of_rows,
    mx_tensor,
    on_every_device,
    pack,
    random_operand,
    same_bits,
    torch_of,
    values_of,
)
from mx_kernels._core.facts import facts
from oracle import assert_bitwise_equal, assert_matmul
from tests.numerics.test_experts import composed
from tests.tiers import tiered

pytestmark = on_every_device
REFUSALS = (TypeError, ValueError)
RULES = {"e8m0": ROUNDINGS, "float32": ("even", "rceil"), "e4m3": ("even",)}
"""The roundings of each kind of scales."""
K_SIZES = (0, 1, 16, 31, 32, 33, 64, 96, 256)
ROWS = (0, 1, 2, 3, 15, 16, 17, 33)

many = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
)

junk = st.sampled_from(
    [None, 0, -1, 1.5, "", "even", b"x", [], [[1.0] * 32], (), {}, object(), int, np.nan, 2**70]
)
torch_dtypes = st.sampled_from(
    [getattr(torch, name) for name in DTYPES] * 4
    + [torch.float64, torch.uint8, torch.int8, torch.int64, torch.bool, torch.cfloat]
    + [torch.float8_e4m3fn, torch.float8_e8m0fnu]
)
numpy_dtypes = st.sampled_from(
    [np.float32, np.float16, ml_dtypes.bfloat16] * 4
    + [np.float64, np.uint8, np.int64, bool, complex, object, ">f4", "U3", ml_dtypes.float8_e5m2]
)
shapes = st.one_of(
    st.tuples(st.sampled_from(ROWS), st.sampled_from(K_SIZES)),
    st.tuples(st.sampled_from(K_SIZES)),
    st.tuples(st.sampled_from((0, 1, 2)), st.sampled_from(ROWS), st.sampled_from(K_SIZES)),
    st.just(()),
)


def torch_view(t, how):
    """Turns `t` into something with the same or another shape and odd memory."""
    views = {
        "as it is": lambda: t,
        "transposed": lambda: t.mT if t.ndim > 1 else t,
        "every other": lambda: t[..., ::2] if t.ndim else t,
        "rows apart": lambda: t[::2] if t.ndim else t,
        "expanded": lambda: t.expand(3, *t.shape),
        "offset": lambda: t[1:] if t.ndim else t,
        "reversed lead": lambda: t.permute(tuple(reversed(range(t.ndim)))),
        "parameter": lambda: torch.nn.Parameter(t, requires_grad=False),
        "wants gradient": lambda: t.requires_grad_() if t.is_floating_point() else t,
        "meta": lambda: t.to("meta"),
        "cpu": t.cpu,
        "sparse": lambda: t.to_sparse() if t.dtype == torch.float32 else t,
        "freed": lambda: (t.untyped_storage().resize_(0), t)[1],
        "subclass": lambda: t.as_subclass(type("Sub", (torch.Tensor,), {})),
    }
    return views[how]()


VIEWS = (
    *["as it is"] * 6, "transposed", "every other", "rows apart", "expanded", "offset",
    "reversed lead", "parameter", "wants gradient", "meta", "cpu", "sparse", "freed", "subclass",
)  # fmt: skip


@st.composite
def tensors(draw):
    shape, dtype = draw(shapes), draw(torch_dtypes)
    seed = draw(st.integers(0, 3))
    values = torch.tensor(np.random.default_rng(seed).standard_normal(shape))
    if seed == 3:
        values *= float("inf")
    if not dtype.is_floating_point and not dtype.is_complex:
        values = values.nan_to_num(0, 0, 0)
    return torch_view(values.to(dtype).clone(), draw(st.sampled_from(VIEWS)))


@st.composite
def arrays(draw):
    shape, dtype = draw(shapes), draw(numpy_dtypes)
    with np.errstate(all="ignore"):
        array = np.array(np.random.default_rng(4).standard_normal(shape)).astype(dtype)
    step = draw(st.sampled_from([None, None, None, 2, -1]))
    if array.ndim and step:
        array = array[::step] if draw(st.booleans()) else array[..., ::step]
    if draw(st.booleans()):
        array.flags.writeable = False
    return array


@st.composite
def mx_tensors(draw):
    """Sound MX tensors of all formats and layouts, and some that were damaged later."""
    format = draw(st.sampled_from([*["mxfp4"] * 3, *FORMATS]))
    packed = facts().formats[format].packed_bytes
    rows, k = draw(st.sampled_from(ROWS)), draw(st.sampled_from((32, 64, 96, 256)))
    lead = draw(st.sampled_from([(), (), (), (2,), (0,)]))
    generator = np.random.default_rng(draw(st.integers(0, 3)))
    codes, scales = (
        torch.tensor(generator.integers(0, 256, (*lead, rows, size), np.uint8))
        for size in (packed(k), k // 32)
    )
    q = mx.MXTensor(codes, scales, format=format)
    device = LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))]["device"]
    if device:
        q = q.preshuffle(device=device)
    damage = draw(
        st.sampled_from([*["none"] * 8, "arrays", "arrays", "meta", "cpu", "shrunk", "freed"])
    )
    if damage == "arrays":
        arrays = (part.cpu().numpy() for part in (q.codes, q.scales))
        return mx.MXTensor(*arrays, shape=q.shape, format=format, layout=q.layout)
    if damage in ("meta", "cpu"):
        return q.to(damage)
    if damage == "shrunk":
        q = mx.MXTensor(
            q.codes.clone(), q.scales.clone(), shape=q.shape, format=format, layout=q.layout
        )
        q.codes.resize_(0, 0)
    if damage == "freed":
        q = mx.MXTensor(
            q.codes.clone(), q.scales.clone(), shape=q.shape, format=format, layout=q.layout
        )
        q.scales.untyped_storage().resize_(0)
    return q


floats = st.one_of(tensors(), tensors(), arrays(), junk, mx_tensors())
operands = st.one_of(mx_tensors(), mx_tensors(), mx_tensors(), tensors(), junk)
biases = st.one_of(st.none(), st.none(), floats)
formats = st.one_of(*[st.sampled_from(FORMATS)] * 3, junk)
modes = st.one_of(*[st.sampled_from([*FORMATS, "bf16"])] * 3, junk)
roundings = st.one_of(st.sampled_from(ROUNDINGS), st.sampled_from(ROUNDINGS), junk)
dtypes = st.one_of(st.sampled_from(DTYPES), st.none(), torch_dtypes, numpy_dtypes, junk)
devices = st.one_of(st.sampled_from([None, "cpu", "gfx950", "meta", "cuda", "cpu:0"]), junk)


def attempt(call):
    """Returns what `call` gives, or None if it refuses in words; anything else is a failure."""
    try:
        return call()
    except REFUSALS as error:
        assert "got" in str(error) and "expected" in str(error), error
        return None


def assert_floats(out, shape):
    assert tuple(out.shape) == tuple(shape)
    assert str(out.dtype).removeprefix("torch.") in DTYPES


@many
@given(floats, formats, roundings)
def test_quantize(x, format, scale_rule):
    q = attempt(lambda: mx.quantize(x, format=format, scale_rule=scale_rule))
    if q is not None:
        assert tuple(q.shape) == tuple(x.shape)


@many
@given(floats, operands, biases, roundings, dtypes, modes)
def test_linear(x, w, bias, scale_rule, dtype, mode):
    rules = {"scale_rule": scale_rule, "out_dtype": dtype, "activations": mode}
    out = attempt(lambda: mx.linear(x, w, bias=bias, **rules))
    if out is not None:
        assert_floats(out, (*x.shape[:-1], w.shape[0]))


@many
@given(operands, operands, biases, dtypes)
def test_matmul(a, b, bias, dtype):
    out = attempt(lambda: mx.matmul(a, b, bias=bias, out_dtype=dtype))
    if out is not None:
        assert_floats(out, (*a.shape[:-1], b.shape[-2]))


@many
@given(operands, dtypes, devices, floats)
def test_dequantize_and_layouts(q, dtype, device, memory):
    out = attempt(lambda: mx.dequantize(q, dtype=dtype))
    if out is not None:
        assert_floats(out, q.shape)
    if memory is not None:
        out = attempt(lambda: mx.dequantize(q, dtype=dtype, out=memory))
        assert out is None or out is memory
    for call in (lambda: mx.preshuffle(q, device=device), lambda: mx.unshuffle(q)):
        moved = attempt(call)
        if moved is not None:
            assert tuple(moved.shape) == tuple(q.shape)


@many
@given(
    floats,
    floats,
    st.one_of(st.none(), shapes, junk),
    st.one_of(st.sampled_from(list(LAYOUTS)), junk),
    formats,
)
def test_the_constructor(codes, scales, shape, layout, format):
    q = attempt(lambda: mx.MXTensor(codes, scales, shape=shape, format=format, layout=layout))
    if q is not None:
        attempt(q.dequantize)
        attempt(q.unshuffle)
        attempt(lambda: mx.linear(torch.ones(2, q.k), q))


@many
@given(
    mx_tensors(),
    tensors(),
    st.sampled_from(ROWS),
    st.sampled_from(list(LAYOUTS)),
    torch_dtypes,
    st.sampled_from(FORMATS),
)
def test_the_operators(w, x, n, layout, dtype, format):
    # torch's dispatcher refuses with a RuntimeError of its own what does not fit a schema.
    ops = torch.ops.mx_kernels
    parts = (w.codes, w.scales)
    for call in (
        lambda: ops.linear(x, *parts, w.format, layout, n, None, "even", dtype, format),
        lambda: ops.matmul(*parts, format, *parts, w.format, layout, n, x, dtype),
        lambda: ops.matmul_floats(x, x, None, dtype),
        lambda: ops.relayout(*parts, n, format, layout, w.layout),
        lambda: ops.dequantize(*parts, list(x.shape), format, layout, dtype),
        lambda: ops.quantize(x, format, layout),
        lambda: ops.quantize(x, format, "even"),
    ):
        try:
            call()
        except (*REFUSALS, RuntimeError):
            continue


@many
@given(st.data())
def test_what_fits_is_not_refused(data):
    # Otherwise the claims above would hold for functions that refuse everything.
    dtype = getattr(torch, data.draw(st.sampled_from(DTYPES)))
    k = data.draw(st.sampled_from((32, 96, 256)))
    lead = data.draw(st.sampled_from([(), (1,), (3,), (2, 5), (0,)]))
    n = data.draw(st.sampled_from(ROWS))
    format, mode = (data.draw(st.sampled_from([*FORMATS, *more])) for more in ((), ("bf16",)))
    w = mx.quantize(torch.randn(n, k), format=format)
    layout = layout_of_rows(k, data.draw(st.sampled_from(list(LAYOUTS))), format)
    device = LAYOUTS[layout]["device"]
    w = w.preshuffle(device=device) if device else w
    bias = torch.randn(n, dtype=dtype) if data.draw(st.booleans()) else None
    out = mx.linear(torch.randn(*lead, k, dtype=dtype), w, bias=bias, activations=mode)
    assert (out.shape, out.dtype) == ((*lead, n), dtype)
    assert facts().layouts[w.layout].device == device


# What a call gives is right. Operands, views and rules are drawn; the oracle says what is due.


class Sub(torch.Tensor):
    """A tensor that is nothing else."""


CALLS_OF_A_PART, PARTS = 500, 10
LEADS = [(), (), (1,), (2,), (3,), (0,), (2, 2), (3, 1), (2, 0, 2), (2, 1, 2), (1, 2, 1, 2)]
MANY_ROWS = [0, 1, 1, 2, 3, 5, 16, 17, 33, 127, 128, 129, 130]
LENGTHS = [32, 64, 96, 128, 160, 288]
WIDTHS = [0, 1, 3, 16, 33, 64, 130]
TENSOR_VIEWS = {
    "as it is": lambda t: t,
    "rows apart": lambda t: torch.cat([t, t[..., :5]], -1)[..., : t.shape[-1]],
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "of another order": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "leads turned": lambda t: t.transpose(0, -2).contiguous().transpose(0, -2) if t.ndim > 1 else t,
    "negated": lambda t: torch._neg_view(-t),
    "of a conjugate": lambda t: torch.complex(t, -t).conj().imag if t.dtype == torch.float32 else t,
    "one for all": lambda t: t[:1].expand(t.shape) if t.ndim > 1 and len(t) else t,
    "one of two": lambda t: torch.stack([t, t])[1],
    "at an odd address": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
    "a parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "wants a gradient": lambda t: t.clone().requires_grad_(),
    "of a subclass": lambda t: t.as_subclass(Sub),
    "without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device),
}
ARRAY_VIEWS = {
    "as it is": lambda a: a,
    "rows backwards": lambda a: a[::-1].copy()[::-1],
    "backwards": lambda a: a[..., ::-1].copy()[..., ::-1],
    "every other": lambda a: a.repeat(2, -1)[..., ::2],
    "in Fortran's order": np.asfortranarray,
    "one for all": lambda a: np.broadcast_to(a[:1], a.shape) if a.ndim > 1 and len(a) else a,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) if a.size else a,
    "a memmap": lambda a: a.view(np.memmap),
    "a matrix": lambda a: a.view(np.matrix) if a.ndim == 2 else a,
}
OPERAND_VIEWS = {
    "as it is": lambda q: q,
    "one of two": lambda q: torch.stack([q, q])[1],
    "a part": lambda q: torch.cat([q, q])[len(q) :] if q.ndim > 2 else q,
    "by columns": lambda q: mx.MXTensor(
        q.codes.t().contiguous().t(), q.scales, format=q.format
    ) if q.ndim == 2 and q.codes.shape[-1] == q.k and q.layout == "plain" else q,
    "of arrays": lambda q: mx.MXTensor(
        q.codes.numpy(), q.scales.numpy(), format=q.format, shape=q.shape, layout=q.layout
    ),
}  # fmt: skip


class Drawn:
    """One call's arguments, drawn from a seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.is_numpy = self.rng.random() < 0.3

    def one_of(self, values):
        values = list(values)
        return values[self.rng.integers(len(values))]

    def shape(self):
        lead, rows = self.one_of(LEADS), self.one_of(MANY_ROWS)
        return (*lead, rows)

    def values(self, *shape, dtype):
        """Draws numbers of sizes that differ by row, a few of them irregular."""
        x = self.rng.standard_normal(shape) * 2.0 ** self.rng.integers(-6, 6, (*shape[:-1], 1))
        if x.size and self.rng.random() < 0.1:
            x.flat[self.rng.integers(x.size)] = self.one_of([np.nan, np.inf, -0.0, 1e-7, 6e4])
        return oracle.round_to(x, dtype)

    def floats(self, *shape, dtype=None):
        """Draws a view of floats of this call's kind; returns it and its values."""
        dtype = dtype or self.one_of(DTYPES)
        values = self.values(*shape, dtype=dtype)
        if self.is_numpy:
            x = self.one_of(ARRAY_VIEWS.values())(values.astype(NUMPY_DTYPES[dtype]))
        else:
            x = self.one_of(TENSOR_VIEWS.values())(torch_of(values, dtype))
        return x, values_of(x).reshape(shape)

    def coded(self, *shape, format, layouts=("plain",)):
        """Draws a view of codes and scales; returns it and its values."""
        *lead, rows, k = shape
        count = int(np.prod(lead, dtype=int)) * rows
        if oracle.FORMATS[format].scale == "e8m0":
            codes, scales = random_operand(self.rng, count, k, format=format)
            codes, scales = (part.reshape(*lead, rows, part.shape[-1]) for part in (codes, scales))
        else:
            element = oracle.FORMATS[format].element
            codes = pack(self.rng.choice(finite_codes(format), (*lead, rows, k)), format)
            scales = oracle.quantize(np.zeros(shape), format=format)[1]
            if format in NVFP4_FORMATS:
                scales[..., :-4] = self.rng.integers(0x10, 0x40, scales[..., :-4].shape)
            floats = floats_of(scales)
            floats[:] = 2.0 ** self.rng.uniform(-3, 3, floats.shape) / element.largest
        q = mx_tensor(codes, scales, self.one_of(layouts), format)
        return self.one_of(OPERAND_VIEWS.values())(q), oracle.dequantize(codes, scales, format)

    def rules(self, *formats):
        """Draws what activations become; returns the arguments, and whether they fit weights."""
        mode, scale_rule = self.one_of(ACTIVATIONS), self.one_of(ROUNDINGS)
        if mode in ("bf16", "mxint16"):
            fits = scale_rule == "even"
            fits = fits and (mode == "bf16" or set(formats) <= set(INTEGER_FORMATS))
        else:
            fits = scale_rule in RULES[oracle.FORMATS[mode].scale]
        rules = {"activations": mode, "scale_rule": scale_rule, "out_dtype": self.one_of(DTYPES)}
        return rules, fits

    def integers(self, values):
        """Returns a view of integers of this call's kind, and what it holds."""
        if self.is_numpy:
            view = self.one_of(ARRAY_VIEWS.values())(values)
            return view, np.array(view).reshape(values.shape)
        return torch.tensor(values), values

    def bias(self, *shape):
        """Draws a bias, or none; returns it and its values."""
        if self.rng.random() < 0.5:
            return None, None
        return self.floats(*shape)


def multiplied_as(values, mode, scale_rule):
    """Returns what activations [rows, K] become before they are multiplied."""
    if mode == "bf16":
        return oracle.round_to(values, "bfloat16")
    if mode == "mxint16":
        return oracle.round_to_mxint16(values)
    return oracle.dequantize(*oracle.quantize(values, scale_rule, mode), mode)


def assert_product(got, left, right, out_dtype, bias=None):
    """Compares one matrix with the oracle's, of operands whose scales may be no powers of two."""
    got = values_of(got)
    if not (left.any() and right.any()) and (bias is None or not bias.any()):
        assert got.shape == (len(left), len(right)) and not got.any()
        return
    assert_matmul(got, left, right, out_dtype, bias, scale_roundings=2)


def quantized(drawn):
    shape, k = drawn.shape(), drawn.one_of([*LENGTHS, 0, 40])
    format, scale_rule = drawn.one_of(oracle.FORMATS), drawn.one_of(ROUNDINGS)
    row = oracle.FORMATS[format]
    x, values = drawn.floats(*(shape if drawn.rng.random() < 0.9 else ()), k)
    fits = k % 32 == 0 and k and (row.block_rows == 1 or x.ndim > 1)
    fits = fits and scale_rule in RULES[row.scale]
    q = yield fits, lambda: mx.quantize(x, format=format, scale_rule=scale_rule)
    codes, scales = oracle.quantize(values, scale_rule, format)
    assert q.shape == values.shape
    assert_bitwise_equal(q.codes.numpy(), codes, zeros_are_the_claim=True)
    assert_bitwise_equal(q.scales.numpy(), scales, zeros_are_the_claim=True)


def dequantized(drawn):
    format, dtype = drawn.one_of(oracle.FORMATS), drawn.one_of(DTYPES)
    q, values = drawn.coded(*drawn.shape(), drawn.one_of(LENGTHS), format=format, layouts=LAYOUTS)
    got = yield True, lambda: mx.dequantize(q, dtype=dtype)
    assert_bitwise_equal(values_of(got), oracle.round_to(values, dtype), zeros_are_the_claim=True)


def multiplied(drawn):
    drawn.is_numpy = False
    k, n, out_dtype = drawn.one_of(LENGTHS), drawn.one_of(WIDTHS), drawn.one_of(DTYPES)
    left, right = drawn.one_of(oracle.FORMATS), drawn.one_of(oracle.FORMATS)
    a, a_values = drawn.coded(*drawn.shape(), k, format=left)
    w, w_values = drawn.coded(n, k, format=right, layouts=LAYOUTS)
    bias, added = drawn.bias(n)
    got = yield True, lambda: mx.matmul(a, w, bias=bias, out_dtype=out_dtype)
    assert got.shape == (*a.shape[:-1], n)
    for at in np.ndindex(*a.shape[:-2]):
        assert_product(got[at], a_values[at], w_values, out_dtype, added)


def linear(drawn):
    shape, k, n = drawn.shape(), drawn.one_of(LENGTHS), drawn.one_of(WIDTHS)
    format = drawn.one_of(oracle.FORMATS)
    rules, fits = drawn.rules(format)
    x, values = drawn.floats(*shape, k)
    w, w_values = drawn.coded(n, k, format=format, layouts=LAYOUTS)
    bias, added = drawn.bias(n)
    wrong = drawn.rng.random() < 0.1
    if wrong:
        w = drawn.one_of([w.codes, torch.stack([w, w]), mx.quantize(torch.ones(n, k + 32))])
    got = yield fits and not wrong, lambda: mx.linear(x, w, bias=bias, **rules)
    assert isinstance(got, np.ndarray) == drawn.is_numpy
    assert got.shape == (*shape, n)
    left = multiplied_as(
        values.reshape(int(np.prod(shape)), k), rules["activations"], rules["scale_rule"]
    )
    assert_product(got.reshape(len(left), n), left, w_values, rules["out_dtype"], added)


def grouped(drawn):
    count, k, n = drawn.one_of([1, 2, 5]), drawn.one_of(LENGTHS), drawn.one_of(WIDTHS)
    sizes = drawn.rng.integers(0, 9, count).astype(np.int32)
    format = drawn.one_of(oracle.FORMATS)
    rules, fits = drawn.rules(format)
    x, values = drawn.floats(int(sizes.sum()) + drawn.one_of([0, 0, 3]), k)
    w, w_values = drawn.coded(count, n, k, format=format, layouts=LAYOUTS)
    bias, added = drawn.bias(count, n)
    wrong = drawn.rng.random() < 0.1
    given, _ = drawn.integers(sizes - 9 if wrong else sizes)
    got = yield fits and not wrong, lambda: mx.grouped_linear(x, w, given, bias=bias, **rules)
    left, first = multiplied_as(values, rules["activations"], rules["scale_rule"]), 0
    for expert, size in enumerate(sizes):
        of_expert = slice(first, first + size)
        addend = None if added is None else added[expert]
        assert_product(
            got[of_expert], left[of_expert], w_values[expert], rules["out_dtype"], addend
        )
        first += size
    assert not got[first:].any()


def mixed(drawn):
    """A layer of experts: composed of its parts, whose products are compared above."""
    count, width, inner = drawn.one_of([1, 3]), drawn.one_of([32, 96]), drawn.one_of([32, 64])
    tokens, slots = drawn.one_of([0, 1, 5, 17]), drawn.one_of([1, 2, 3])
    formats = [drawn.one_of(oracle.FORMATS) for _ in range(2)]
    rules, fits = drawn.rules(*formats)
    gate = {"hidden_act": drawn.one_of(["swiglu_oai", "silu"])}
    if drawn.rng.random() < 0.3:
        gate |= drawn.one_of([{"limit": 1.0}, {"alpha": 3.0}, {"limit": 2, "alpha": 0.5}])
    dtype = drawn.one_of(DTYPES)
    gate_up, _ = drawn.coded(count, 2 * inner, width, format=formats[0], layouts=LAYOUTS)
    down, _ = drawn.coded(count, width, inner, format=formats[1], layouts=LAYOUTS)
    x, values = drawn.floats(tokens, width, dtype=dtype)
    weights, counts = drawn.floats(tokens, slots)
    biases, added = zip(*(drawn.bias(count, n) for n in (2 * inner, width)), strict=True)
    ids = drawn.rng.integers(-1, count, (tokens, slots)).astype(drawn.one_of(["int32", "int64"]))
    if ids.size and drawn.rng.random() < 0.1:
        ids[-1, -1] = count
    given, ids = drawn.integers(ids)
    named = dict(zip(("bias_gate_up", "bias_down"), biases, strict=True))
    got = yield (
        fits and (ids < count).all(),
        lambda: mx.moe(x, gate_up, down, given, weights, **named, **gate, **rules),
    )
    addends = [None if b is None else torch.from_numpy(b).float() for b in added]
    routing = torch.tensor(ids), torch.from_numpy(counts)
    expected, decided = composed(
        torch_of(values, dtype), gate_up, down, *routing, addends, **gate, **rules
    )
    same_bits(torch_of(values_of(got), "float32")[decided], expected[decided])


FUNCTIONS = (quantized, dequantized, multiplied, linear, grouped, mixed)


def called(function, seed):
    """Makes a call, and compares what it gives; or its error says what it got and expected."""
    claim = function(Drawn(seed))
    fits, call = next(claim)
    try:
        got = call()
    except REFUSALS as error:
        assert not fits and "got" in str(error) and "expected" in str(error), error
        return
    assert fits, "got a result, expected an error"
    with contextlib.suppress(StopIteration):
        claim.send(got)


@pytest.mark.cpu_only
@pytest.mark.parametrize("part", tiered(range(PARTS), first=[0]))
def test_every_call_is_right_or_refused_in_words(part):
    for seed in range(part * CALLS_OF_A_PART, (part + 1) * CALLS_OF_A_PART):
        function = FUNCTIONS[seed % len(FUNCTIONS)]
        try:
            with np.errstate(all="ignore"):
                called(function, seed)
        except Exception as error:
            error.add_note(f"{function.__name__}, seed {seed}")
            raise
