"""No input crashes the process: every call gives a sound result or a TypeError or ValueError.

Arguments are drawn from what people pass by mistake, mixed with what is right, so that many
calls get past the first check. A crash would take pytest with it, which is the failure.
"""

import ml_dtypes
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mx_kernels as mx
from cases import DTYPES, FORMATS, LAYOUTS, ROUNDINGS, on_every_device
from mx_kernels._facts import facts

pytestmark = on_every_device
REFUSALS = (TypeError, ValueError)
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
    """Returns what `call` gives, or None if it refuses; anything else is a failure."""
    try:
        return call()
    except REFUSALS:
        return None


def assert_floats(out, shape):
    assert tuple(out.shape) == tuple(shape)
    assert str(out.dtype).removeprefix("torch.") in DTYPES


@many
@given(floats, formats, roundings)
def test_quantize(x, format, rounding):
    q = attempt(lambda: mx.quantize(x, format=format, rounding=rounding))
    if q is not None:
        assert tuple(q.shape) == tuple(x.shape)


@many
@given(floats, operands, biases, roundings, dtypes, modes)
def test_linear(x, w, bias, rounding, dtype, mode):
    rules = {"rounding": rounding, "out_dtype": dtype, "activations": mode}
    out = attempt(lambda: mx.linear(x, w, bias=bias, **rules))
    if out is not None:
        assert_floats(out, (*x.shape[:-1], w.shape[0]))


@many
@given(operands, operands, biases, dtypes)
def test_matmul(a, b, bias, dtype):
    out = attempt(lambda: mx.matmul(a, b, bias=bias, out_dtype=dtype))
    if out is not None:
        assert_floats(out, (*a.shape[:-1], b.shape[0]))


@many
@given(operands, dtypes, devices)
def test_dequantize_and_layouts(q, dtype, device):
    out = attempt(lambda: mx.dequantize(q, dtype=dtype))
    if out is not None:
        assert_floats(out, q.shape)
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
    device = LAYOUTS[data.draw(st.sampled_from(list(LAYOUTS)))]["device"]
    w = w.preshuffle(device=device) if device else w
    bias = torch.randn(n, dtype=dtype) if data.draw(st.booleans()) else None
    out = mx.linear(torch.randn(*lead, k, dtype=dtype), w, bias=bias, activations=mode)
    assert (out.shape, out.dtype) == ((*lead, n), dtype)
    assert facts().layouts[w.layout].device == device
