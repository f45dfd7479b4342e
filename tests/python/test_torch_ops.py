"""The operators inside torch: opcheck, compilation, fake tensors, whatever watches."""

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import mx_kernels as mx
from cases import DTYPES, FORMATS, LAYOUTS, ROUNDINGS, every_format, every_layout, on_every_device
from tests.python.torch_inputs import K, N, activations, bias_of, weights
from tests.tiers import deep, tiered

OPS = torch.ops.mx_kernels
# torch's own compiler still uses what its own TorchScript deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning"),
    on_every_device,
]
every_dtype = pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def samples():
    """Operators with what makes arguments: layouts, dtypes, ranks, with and without a bias."""

    def w(layout, format="mxfp4"):
        q = weights(layout, format)
        return q.codes, q.scales, format, layout, N

    def a(format="mxfp4"):
        q = mx.quantize(activations(2, 3), format=format)
        return q.codes, q.scales, format

    leaf = {"requires_grad": True}
    for scale_rule in ROUNDINGS:
        yield (
            OPS.quantize,
            lambda r=scale_rule: (activations(2, 3, dtype=torch.bfloat16), "mxfp4", r),
        )
    for format in FORMATS[1:]:
        other = FORMATS[FORMATS.index(format) - 1]
        yield OPS.quantize, lambda f=format: (activations(2, 3), f, "even")
        yield OPS.dequantize, lambda f=format: (*w("plain", f)[:2], [N, K], f, "plain", torch.float)
        yield (
            OPS.relayout,
            lambda f=format: (*w("plain", f)[:2], N, f, "plain", "preshuffled_cpu"),
        )
        yield (
            OPS.linear,
            lambda f=format, o=other: (
                *(activations(**leaf), *w("preshuffled_cpu", o)),
                *(bias_of(), "even", torch.float32, f),
            ),
        )
        yield OPS.matmul, lambda f=format, o=other: (*a(o), *w("plain", f), None, torch.float32)
    norm = (False, 1e-6, 0.0, "each"), (True, 1e-5, 1.0, "none")
    for format, residual, options in (("mxfp4", True, norm[0]), ("fp8", False, norm[1])):
        yield (
            OPS.norm_quantize,
            lambda f=format, r=residual, o=options: (
                *(activations(2, 3), activations(1)[0], None),
                *(activations(2, 3) if r else None, *o, f, "even", None),
            ),
        )
    for up, interleaved, format in ((True, None, "mxfp8"), (False, True, "nvfp4")):
        yield (
            OPS.gate_quantize,
            lambda u=up, i=interleaved, f=format: (
                *(activations(2, 3).repeat(1, 1, 1 if u else 2), activations(2, 3) if u else None),
                *("silu", i, 2.0, None, None, None, f, "even", None),
            ),
        )
    for layout in LAYOUTS:
        yield OPS.dequantize, lambda n=layout: (*w(n)[:2], [N, K], "mxfp4", n, torch.float16)
        for target in LAYOUTS:
            yield OPS.relayout, lambda n=layout, t=target: (*w(n)[:2], N, "mxfp4", n, t)
        for x, bias, scale_rule, out in (
            (activations(), bias_of(), "even", torch.bfloat16),
            (activations(2, 3, **leaf), None, "ceil", torch.float32),
            (activations(), bias_of(**leaf), "even", torch.float32),
        ):
            rest = (bias, scale_rule, out, "mxfp4")
            yield OPS.linear, lambda n=layout, x=x, rest=rest: (x, *w(n), *rest)
        for rest in ((None, torch.float32), (bias_of(**leaf), torch.bfloat16)):
            yield OPS.matmul, lambda n=layout, rest=rest: (*a(), *w(n), *rest)


def there(args, device):
    """Returns the arguments that `args` makes with their tensors on a device."""
    return [
        a.detach().to(device).requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in args()
    ]


def cases(every):
    """Returns the samples, of which one of `every` is in the first tier."""
    return [
        pytest.param(op, args, id=f"{i}-{op}", marks=[deep] if i % every else [])
        for i, (op, args) in enumerate(samples(), start=1)
    ]


SAMPLES = cases(every=1)


# Each operator takes turns with all it is given: a third has every kind of sample.
@pytest.mark.parametrize("op, args", cases(every=3))
def test_opcheck(op, args, device):
    torch.library.opcheck(op.default, tuple(there(args, device)))


@pytest.mark.parametrize("op, args", SAMPLES)
def test_operators_and_functions_give_the_same_bits(op, args, device):
    args = there(args, device)
    got = op(*args)
    if op is OPS.quantize:
        q = mx.quantize(args[0], format=args[1], scale_rule=args[2])
        expected = q.codes, q.scales
    elif op is OPS.dequantize:
        *parts, shape, format, layout, dtype = args
        expected = mx.MXTensor(*parts, shape=shape, format=format, layout=layout).dequantize(dtype)
    elif op is OPS.norm_quantize:
        x, weight, bias, residual, centered, eps, offset, rounds, *rules = args
        function = mx.layer_norm_quantize if centered else mx.rms_norm_quantize
        options = {"eps": eps, "weight_offset": offset, "rounds": rounds, "format": rules[0]}
        q = function(x, weight, residual=residual, **options)
        q, stream = q if isinstance(q, tuple) else (q, x.new_empty(0))
        expected = q.codes, q.scales, stream
    elif op is OPS.gate_quantize:
        x, up, hidden_act, interleaved, limit, *_ = args
        options = {"interleaved": interleaved, "limit": limit, "format": args[8]}
        q = mx.gate_quantize(x, up, hidden_act=hidden_act, **options)
        expected = q.codes, q.scales
    elif op is OPS.relayout:
        w = weights(args[5], args[3])
        expected = w.codes, w.scales
    elif op is OPS.linear:
        x, *parts, format, layout, n, bias, scale_rule, out_dtype, mode = args
        w = mx.MXTensor(*parts, shape=(n, K), format=format, layout=layout)
        rules = {"scale_rule": scale_rule, "out_dtype": out_dtype, "activations": mode}
        expected = mx.linear(x, w, bias=bias, **rules)
    else:
        a = mx.MXTensor(*args[:2], format=args[2])
        b = mx.MXTensor(*args[3:5], shape=(N, K), format=args[5], layout=args[6])
        expected = mx.matmul(a, b, bias=args[8], out_dtype=args[9])
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("op, args", SAMPLES)
def test_meta_tensors_give_shapes_and_dtypes(op, args, device):
    real_results = _list(op(*there(args, device)))
    for got, real in zip(_list(op(*there(args, "meta"))), real_results, strict=True):
        assert got.device.type == "meta"
        assert (got.shape, got.dtype) == (real.shape, real.dtype)


def _list(value):
    return [value] if isinstance(value, torch.Tensor) else value


def test_floats_by_floats_have_a_shape_and_validate_where_nothing_runs():
    a, b = (torch.empty(2, rows, 96, dtype=torch.float16, device="meta") for rows in (5, N))
    out = mx.matmul(a, b[0], out_dtype="float32")
    assert (out.shape, out.dtype, out.device.type) == ((2, 5, N), torch.float32, "meta")
    with pytest.raises(ValueError, match="expected one K"):
        OPS.matmul_floats(a, b[0, :, :64], None, torch.float16)


def test_operators_validate_too():
    w = weights()
    parts = (w.codes, w.scales, "mxfp4", "plain", N)
    a = (w.codes, w.scales[:1], "mxfp4")
    for call, message in (
        (lambda: OPS.linear(torch.ones(2, 64), *parts, None, "even", torch.float32, "mxfp4"),
         "K = 64"),
        (lambda: OPS.linear(activations(), *parts, None, "up", torch.float32, "mxfp4"),
         "scale_rule"),
        (lambda: OPS.linear(activations(), *parts, None, "even", torch.int8, "mxfp4"),
         "out_dtype"),
        (lambda: OPS.linear(activations(), *parts[:4], 49, None, "even", torch.float32,
                            "mxfp4"), r"hold \[48, 96\]"),
        (lambda: OPS.linear(activations(), *parts, None, "even", torch.float32, "fp6"),
         "activations"),
        (lambda: OPS.matmul(*a, *parts, None, torch.float32), "scales"),
        (lambda: OPS.matmul(*parts[:3], *parts[:2], "fp6", *parts[3:], None, torch.float32),
         "format"),
        (lambda: OPS.relayout(*parts[:2], N, "mxfp4", "plain", "shuffled"), "layout"),
        (lambda: OPS.dequantize(*parts[:2], [1, 2], "mxfp4", "plain", torch.float32), "shape"),
        (lambda: OPS.quantize(torch.ones(33), "mxfp4", "even"), "K = 33"),
        (lambda: OPS.quantize(activations(), "mxfp5", "even"), "format"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()


# Compilation.


@every_layout
@every_dtype
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_compiles_as_one_graph(layout, dtype, with_bias):
    w, x = weights(layout), activations(dtype=dtype)
    bias = bias_of() if with_bias else None

    def f(x):
        rule = {"scale_rule": "ceil", "activations": "mxfp4"}
        return mx.linear(x.relu(), w, bias=bias, out_dtype="float32", **rule) + 1

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), f(x))


def test_one_graph_serves_every_number_of_rows():
    w, graphs = weights("preshuffled_cpu"), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda x: mx.linear(x, w), fullgraph=True, backend=backend, dynamic=True
    )
    for rows in (2, 7, 64, 3):
        x = activations(rows)
        assert torch.equal(compiled(x), mx.linear(x, w))
    assert len(graphs) == 1


def test_every_operation_compiles_as_one_graph():
    def f(x, w, bias):
        q = mx.quantize(x, scale_rule="floor")
        packed = w.preshuffle(device="cpu")
        out = mx.matmul(q, packed, bias=bias, out_dtype=torch.float32)
        floats = mx.dequantize(packed.unshuffle(), out=torch.zeros(w.shape, dtype=torch.float16))
        return q, packed, out, floats, q.shape, w.nbytes

    x, w, bias = activations(2, 3), weights(), bias_of()
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(x, w, bias)
    expected = f(x, w, bias)
    for left, right in zip(got[:2], expected[:2], strict=True):
        assert (left.shape, left.layout) == (right.shape, right.layout)
        assert torch.equal(left.codes, right.codes)
        assert torch.equal(left.scales, right.scales)
    assert torch.equal(got[2], expected[2])
    assert torch.equal(got[3], expected[3])
    assert got[4:] == expected[4:]
    # What comes out of a graph is as good as any other.
    assert torch.equal(mx.linear(x, got[1]), mx.linear(x, w))


@every_format
def test_functions_of_any_format_compile_as_one_graph(format):
    def f(x, w):
        q = mx.quantize(x, format=format)
        return (
            mx.matmul(q, w),
            mx.linear(x, w.preshuffle(device="cpu"), activations=format),
            q.shape,
        )

    x, w = activations(2, 3), weights(format=FORMATS[-1])
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(x, w)
    for left, right in zip(got[:2], f(x, w)[:2], strict=True):
        assert torch.equal(left, right)
    assert got[2] == x.shape


def test_norms_gates_and_mlps_compile_as_one_graph():
    x, residual, w = activations(2, 3), activations(2, 3).flip(0), weights()
    down = mx.quantize(torch.randn(K, 64))

    def f(x, residual, gamma):
        q, stream = mx.rms_norm_quantize(x, gamma, residual=residual, format="mxint8")
        out = mx.matmul(q, w) + mx.matmul(mx.layer_norm_quantize(stream, gamma), w)
        hidden = mx.gate_quantize(stream, x, hidden_act="gelu_tanh", limit=3.0)
        return out, stream, mx.mlp(x, mx.quantize(gate_up), down), mx.dequantize(hidden)

    gate_up, gamma = torch.randn(128, K), torch.rand(K)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x, residual, gamma), f(x, residual, gamma), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("backend", tiered(["aot_eager", "inductor"], first=["aot_eager"]))
def test_a_model_compiles_with_its_gradient(backend):
    w = weights("preshuffled_cpu")

    def f(x):
        return mx.linear(x.relu(), w).square().sum()

    x, y = activations(requires_grad=True), activations(requires_grad=True)
    torch.compile(f, fullgraph=True, backend=backend)(x).backward()
    f(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_compiled_bad_call_says_what_is_wrong():
    compiled = torch.compile(mx.linear, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="expected one K"):
        compiled(torch.ones(2, 64), weights())


def test_export_takes_weights_as_an_input():
    class Model(torch.nn.Module):
        def forward(self, x, w):
            return mx.linear(x, w)

    x, w = activations(), weights()
    program = torch.export.export(Model(), (x, w))
    assert torch.equal(program.module()(x, w), mx.linear(x, w))
    assert "mx_kernels.linear" in str(program.graph)


# Whatever watches torch sees the operators.


def test_modes_see_the_operator():
    w, x = weights(), activations()

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        names = []  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Seen():
        mx.linear(x, w)
        out = torch.zeros(w.shape)
        assert torch.equal(mx.dequantize(w, out=out), w.dequantize("float32"))
        mx.matmul(mx.quantize(x), w.preshuffle())
    for name in ("linear", "quantize", "dequantize", "relayout", "matmul"):
        assert f"mx_kernels.{name}.default" in Seen.names


def test_function_modes_see_the_operator():
    class Seen(torch.overrides.TorchFunctionMode):
        called = []  # noqa: RUF012

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.called.append(func)
            return func(*args, **(kwargs or {}))

    with Seen():
        mx.linear(activations(), weights())
    assert OPS.linear in Seen.called or OPS.linear.default in Seen.called


def test_make_fx_records_the_operator():
    w, x = weights(), activations()
    graph = make_fx(lambda x: mx.linear(x, w))(x)
    assert "mx_kernels.linear" in graph.code
    y = activations(5).neg()
    assert torch.equal(graph(y), mx.linear(y, w))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_function_follows_its_input():
    w, x = weights(), activations()
    traced = torch.jit.trace(lambda x: mx.linear(x, w), (x,))
    assert torch.equal(traced(x.neg()), mx.linear(x.neg(), w))


def test_fake_tensors_stay_fake():
    with FakeTensorMode() as mode:
        x = torch.empty(5, K)
        w = mx.quantize(torch.empty(N, K)).preshuffle()
        out = mx.linear(x, w, out_dtype=torch.bfloat16)
        back = w.dequantize()
    assert mode.is_our_fake(out)
    assert (out.shape, out.dtype) == ((5, N), torch.bfloat16)
    assert (back.shape, w.codes.shape) == ((N, K), weights().preshuffle().codes.shape)


def test_meta_tensors_in_meta_tensors_out():
    w = weights("preshuffled_cpu").to("meta")
    out = mx.linear(activations(2, 3).to("meta"), w)
    assert (out.shape, out.device.type) == ((2, 3, N), "meta")
    assert mx.quantize(torch.empty(7, K, device="meta")).shape == (7, K)


def test_flop_counter_does_not_disturb():
    w, x = weights(), activations()
    with FlopCounterMode(display=False):
        out = mx.linear(x, w)
    assert torch.equal(out, mx.linear(x, w))


def test_a_default_device_does_not_move_the_result():
    w, x = weights(), activations()
    with torch.device("meta"):
        out = mx.linear(x, w)
    assert torch.equal(out, mx.linear(x, w))


def test_subclasses_are_not_seen_through():
    class Logged(torch.Tensor):
        pass

    w, x = weights(), activations()
    out = mx.linear(x.as_subclass(Logged), w)
    assert type(out) is Logged
    assert torch.equal(out.as_subclass(torch.Tensor), mx.linear(x, w))


@every_dtype
def test_autocast_leaves_the_call_alone(dtype):
    w, x = weights(), activations(dtype=dtype)
    plain, y = mx.linear(x, w), x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mx.linear(x, w), plain)
        out = mx.linear(y, w)
        out.sum().backward()
    assert out.dtype == dtype
    assert y.grad.dtype == dtype
    assert math.isfinite(y.grad.sum())
