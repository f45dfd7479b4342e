"""MXTensor inside torch: parameters, products, copies, compilation, fake tensors, DTensor.

What is encoded has no gradient and no arithmetic; a product with it is that of `mx_kernels.linear`.
"""

import contextlib
import copy
import io

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import mx_kernels as mx
from cases import LAYOUTS, assert_products_agree, every_format, every_layout, on_every_device

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning"),
    on_every_device,
]
N, K = 48, 96
KEPT_ON_CUDA = "mxfp4", "mxfp6", "mxfp6_e3m2"
"""Weights whose activations stay floats there, unless somebody says otherwise."""
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.deep)]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def weights(layout="plain", *lead, format="mxfp4", seed=7):
    torch.manual_seed(seed)
    q = mx.quantize(torch.randn(*lead, N, K), format=format)
    device = LAYOUTS[layout]["device"]
    return q.preshuffle(device=device) if device else q


def x_of(*lead, **options):
    torch.manual_seed(8)
    return torch.randn(*lead, K, **options)


class Layer(nn.Module):
    """What knows nothing of MX: a weight, a bias, and torch's own linear."""

    def __init__(self, weight, bias=None):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = bias

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


# Products.


@every_layout
@every_format
@pytest.mark.parametrize("lead", [(5,), (2, 3), (), (0,), (2, 1, 3)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_of_torch_is_ours(layout, format, lead, with_bias, device):
    w, x = weights(layout, format=format), x_of(*lead)
    bias = torch.randn(N) if with_bias else None
    expected = mx.linear(x, w, bias=bias, activations=None)
    best = {"cpu": "mxint8", "cuda": "bf16" if format in KEPT_ON_CUDA else format}[device]
    assert torch.equal(expected, mx.linear(x, w, bias=bias, activations=best))
    for mode in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(F.linear(x, w, bias), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(Layer(w, bias)(x), F.linear(x, w, bias))


def test_other_spellings_of_the_product():
    w, x = weights("preshuffled_cpu"), x_of(5)
    expected = mx.linear(x, w, activations=None)
    for call in (
        lambda: x @ w.t(),
        lambda: x @ w.T,
        lambda: x @ w.mT,
        lambda: x @ w.transpose(0, 1),
        lambda: torch.mm(x, w.t().clone().detach()),
        lambda: torch.stack([w.mv(row) for row in x]),
    ):
        assert torch.equal(call(), expected)
    a = mx.quantize(x)
    assert torch.equal(a @ w.t(), mx.matmul(a, w, out_dtype=x.dtype))
    assert w.t().t().codes is not None


@every_layout
@pytest.mark.parametrize("lead", [(5,), (2, 3), ()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_gradient_of_torchs_linear_is_that_of_ours(layout, lead, dtype):
    w, bias = weights(layout), torch.randn(N, dtype=dtype)
    grads = []
    for call in (lambda x, b: F.linear(x, w, b), lambda x, b: mx.linear(x, w, bias=b)):
        x, b = x_of(*lead, dtype=dtype, requires_grad=True), bias.clone().requires_grad_()
        out = call(x, b)
        out.backward(torch.ones_like(out))
        grads.append((x.grad, b.grad))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*grads, rtol=tolerance, atol=3 * tolerance)


def test_a_parameter_that_asks_for_a_gradient_gets_none():
    w, x = nn.Parameter(weights()), x_of(5, requires_grad=True)
    assert w.requires_grad
    mx.linear(x, w).sum().backward()
    assert w.grad is None and x.grad is not None


def test_transforms_map_and_differentiate_torchs_linear():
    w, x, bias = weights("preshuffled_cpu"), x_of(5), torch.randn(N)
    expected = F.linear(x, w, bias)
    got = torch.func.vmap(lambda row: F.linear(row, w, bias))(x)
    torch.testing.assert_close(got, expected)
    dense = w.dequantize("float32")
    grad = torch.func.grad(lambda x: F.linear(x, w).sum())(x)
    torch.testing.assert_close(grad, dense.sum(0).expand(5, K))
    torch.testing.assert_close(torch.func.jacrev(lambda x: F.linear(x, w))(x[0]), dense)
    with pytest.raises(NotImplementedError, match="got an MXTensor"):
        torch.func.vmap(lambda w: F.linear(x, w))(torch.stack([w, w]))


def test_autocast_casts_what_torchs_linear_gets():
    w, x = weights(), x_of(5)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        got = F.linear(x, w)
    assert torch.equal(got, F.linear(x.bfloat16(), w))


# Everything else is refused.

ARITHMETIC = {
    "eq": lambda q: q == q,  # noqa: PLR0124
    "ne": lambda q: q != 1,
    "lt": lambda q: q < 1,
    "add": lambda q: q + 1,
    "radd": lambda q: 1 + q,
    "mul": lambda q: q * 2.0,
    "neg": lambda q: -q,
    "exp": torch.exp,
    "relu": torch.relu,
    "sum": lambda q: q.sum(),
    "abs": abs,
    "matmul": lambda q: q.t() @ q,
    "expand": lambda q: q.expand(2, *q.shape),
    "fill": lambda q: q.zero_(),
    "add in place": lambda q: q.add_(1),
    "as_strided": lambda q: q.as_strided((1, 32), (32, 1)),
    "bits": lambda q: q.view(torch.int16),
    "equal": lambda q: torch.equal(q, q),
    "isnan": torch.isnan,
    "resize": lambda q: q.resize_(1),
    "of the transposed": lambda q: q.t() + 1,
    "integers": lambda q: q.long(),
    "channels last": lambda q: q[None, None].clone(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_codes_are_not_computed_with(name):
    q = weights()
    before = q.codes.clone(), q.scales.clone()
    with pytest.raises((NotImplementedError, ValueError), match=r"got .* expected .*"):
        ARITHMETIC[name](q)
    assert torch.equal(q.codes, before[0]) and torch.equal(q.scales, before[1])


# Copies.


@every_layout
@pytest.mark.parametrize("source", LAYOUTS)
def test_copy_takes_any_layout(layout, source):
    to, other = weights(layout, 2), weights(source, 2, seed=99)
    address = to.codes.data_ptr()
    assert to.copy_(other) is to
    assert (to.layout, to.codes.data_ptr()) == (layout, address)
    assert torch.equal(to.dequantize(), other.dequantize())


WRONG_SOURCES = {
    "floats": (lambda: torch.ones(N, K), TypeError, "source: got Tensor"),
    "format": (lambda: weights(format="mxint8"), ValueError, "got format mxint8, expected mxfp4"),
    "shape": (lambda: weights()[:3], ValueError, r"got shape \[3, 96\], expected \[48, 96\]"),
}


@pytest.mark.parametrize("case", WRONG_SOURCES)
def test_copy_refuses_other_numbers_before_it_writes(case):
    make, error, message = WRONG_SOURCES[case]
    q = weights()
    before = q.codes.clone()
    with pytest.raises(error, match=message):
        q.copy_(make())
    assert torch.equal(q.codes, before)
    with pytest.raises(TypeError, match="self: got Tensor"):
        torch.ones(N, K).copy_(q)


def test_memory_of_the_same_kind():
    q = weights("preshuffled_cdna4", 2)
    for like in (torch.empty_like(q), q.new_empty(q.shape), torch.zeros_like(q)):
        assert (like.shape, like.dtype, like.layout) == (q.shape, q.dtype, q.layout)
        assert (like.codes.shape, like.scales.shape) == (q.codes.shape, q.scales.shape)
    assert not torch.zeros_like(q).dequantize().any()
    assert q.new_empty(7, 256).codes.shape == (16, 128)
    with pytest.raises(ValueError, match=r"new_empty: got shape \[7, 33\], expected"):
        q.new_empty(7, 33)
    assert not q.is_pinned()


def test_memory_is_pinned_where_there_is_a_device_to_copy_to():
    q = weights().cpu()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match=r"accelerator|NVIDIA driver"):
            q.pin_memory()
        return
    pinned = q.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True).cpu().codes, q.codes)


@pytest.mark.cpu_only
def test_memory_is_shared_with_other_processes():
    q = weights()
    assert not q.is_shared()
    m = Layer(q).share_memory()
    assert m.weight.is_shared() and m.weight.codes.is_shared()
    assert torch.equal(m(x_of(5)), F.linear(x_of(5), weights()))


def test_a_library_that_knows_no_subclasses_refuses_it():
    with pytest.raises(ValueError, match="'w'"):
        safetensors.torch.save({"w": weights()})


@every_layout
def test_a_state_dict_of_a_module_that_knows_nothing(layout):
    source, target, file = Layer(weights(layout)), Layer(weights(layout, seed=99)), io.BytesIO()
    torch.save(source.state_dict(), file)
    for assign in (False, True):
        file.seek(0)
        fresh = copy.deepcopy(target)
        assert not torch.equal(fresh(x_of(4)), source(x_of(4)))
        fresh.load_state_dict(torch.load(file, weights_only=True), assign=assign)
        assert torch.equal(fresh(x_of(4)), source(x_of(4)))
        assert isinstance(fresh.weight, nn.Parameter)


@every_layout
def test_a_module_moves_and_casts(layout):
    m = Layer(weights(layout))
    m.half().to("meta")
    assert (m.weight.dtype, m.weight.device.type, m.weight.layout) == (torch.half, "meta", layout)
    m.to_empty(device="cpu")
    assert (m.weight.codes.device.type, m.weight.scales.device.type) == ("cpu", "cpu")
    assert isinstance(m.weight, nn.Parameter)
    m.register_buffer("other", weights(layout))
    assert type(m.state_dict()["other"]) is mx.MXTensor


# Compilation.


@every_layout
@every_backend
def test_a_module_compiles_as_one_graph(layout, backend):
    m = nn.Sequential(Layer(weights(layout), torch.randn(N)), nn.ReLU())
    compiled = torch.compile(m, fullgraph=True, backend=backend)
    grads = []
    for call in (m, compiled):
        x = x_of(5, requires_grad=True)
        call(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(compiled(x_of(5)), m(x_of(5)))
    torch.testing.assert_close(*grads)


FUNCTIONS = {
    "an argument": lambda x, w: F.linear(x, w[0]),
    "experts": lambda x, w: sum(mx.linear(x, w[i]) for i in range(2)),
    "made inside": lambda x, w: F.linear(x, mx.quantize(x.sin()).preshuffle("cpu")),
    "constructed inside": lambda x, w: mx.linear(x, mx.MXTensor(w.codes[0], w.scales[0])),
    "returned": lambda x, w: (mx.quantize(x, format="mxint8"), w[1:], w[0].half(), w.clone()),
    "parts": lambda x, w: (w[..., 32:], torch.cat([w, w]), w.view(1, 2, N, K), w.unbind()),
    "what it is": lambda x, w: (w.shape, w.dtype, w.format, w.byte_layout, w.k, w.nbytes, w.rows),
    "bytes": lambda x, w: (w.codes + 1, w[1].scales, w.dequantize()),
}


@every_backend
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compile_as_one_graph(name, backend):
    x, w = x_of(16), weights("plain", 2)
    got = torch.compile(FUNCTIONS[name], fullgraph=True, backend=backend)(x, w)
    assert_same(got, FUNCTIONS[name](x, w))


def assert_same(got, expected):
    """Compares results of any kind, codes and scales by their bytes."""
    assert type(got) is type(expected)
    if isinstance(got, tuple | list):
        assert len(got) == len(expected)
        for pair in zip(got, expected, strict=True):
            assert_same(*pair)
    elif isinstance(got, mx.MXTensor):
        assert repr(got) == repr(expected)
        assert torch.equal(got.codes, expected.codes) and torch.equal(got.scales, expected.scales)
        assert torch.equal(got.dequantize(), expected.dequantize())
    elif isinstance(got, torch.Tensor):
        assert torch.equal(got, expected)
    else:
        assert got == expected


@every_backend
def test_writes_inside_a_graph_reach_its_inputs(backend):
    def f(w, v):
        w[0].copy_(v)
        own = w.clone()
        own[1] = own[0]
        return own.dequantize()

    results = []
    for call in (f, torch.compile(f, fullgraph=True, backend=backend)):
        w = weights("preshuffled_cpu", 2)
        results.append((call(w, weights(seed=99)), w.codes))
    assert_same(*results)


def test_a_compiled_function_sees_another_format_and_layout():
    compiled = torch.compile(mx.linear, fullgraph=True, backend="eager")
    for layout in LAYOUTS:
        for format in ("mxfp4", "mxint8"):
            w = weights(layout, format=format)
            assert_products_agree(compiled(x_of(5), w), mx.linear(x_of(5), w))


@every_layout
def test_fake_tensors_are_made_of_it(layout):
    w = weights(layout, 2)
    with FakeTensorMode() as mode:
        fake, x = mode.from_tensor(w), torch.empty(5, K)
        assert repr(fake) == repr(w)
        assert mode.is_our_fake(fake.codes)
        assert F.linear(x, fake[0]).shape == mx.linear(x, fake[0]).shape == (5, N)
        assert fake.unshuffle().dequantize().shape == w.shape


@every_layout
def test_meta_tensors_have_every_shape_and_no_memory(layout):
    w = weights(layout, 2).to("meta")
    assert F.linear(x_of(5).to("meta"), w[0]).shape == (5, N)
    for moved in (w, torch.empty_like(weights(layout, 2), device="meta"), w.half().clone()):
        assert (moved.codes.device.type, moved.device.type, moved.layout) == (
            "meta",
            "meta",
            layout,
        )
    assert w.dequantize().shape == w.unshuffle().shape == (2, N, K)


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_is_exported_with_its_weights(strict):
    m = Layer(weights("preshuffled_cpu"))
    program = torch.export.export(m, (x_of(5),), strict=strict)
    assert torch.equal(program.module()(x_of(5)), m(x_of(5)))


# Tensor parallelism. The backend "fake" sends nothing, so each rank is computed in turn.


@contextlib.contextmanager
def rank_of_two(rank):
    """Makes this process one of two."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (2,))
    finally:
        dist.destroy_process_group()


@pytest.mark.cpu_only
@pytest.mark.parametrize("layout", ["plain", "preshuffled_cpu", "preshuffled_cuda"])
@pytest.mark.parametrize("inference", [True, False])
def test_dtensor_shards_columns_and_rows(layout, inference):
    torch.manual_seed(5)
    device = LAYOUTS[layout]["device"]
    first, second = (mx.quantize(torch.randn(*shape)) for shape in ((128, 64), (64, 128)))
    if device:
        first, second = first.preshuffle(device=device), second.preshuffle(device=device)
    x, parts = torch.randn(4, 64), []
    expected = nn.Sequential(Layer(first), nn.ReLU(), Layer(second))(x)
    for rank in range(2):
        m = nn.Sequential(nn.Linear(64, 128, False), nn.ReLU(), nn.Linear(128, 64, False))
        for layer, weight in ((m[0], first), (m[2], second)):
            layer.weight = nn.Parameter(weight, requires_grad=False)
        with rank_of_two(rank) as mesh:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(m, mesh, plan, src_data_rank=None)
            assert isinstance(m[0].weight, DTensor)
            local = m[0].weight.to_local(), m[2].weight.to_local()
            assert [w.shape for w in local] == [(64, 64), (64, 64)]
            assert {w.layout for w in local} == {layout}
            with torch.inference_mode(inference):
                parts.append(m(x))
    torch.testing.assert_close(parts[0] + parts[1], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.cpu_only
def test_a_shard_that_would_cut_a_block_is_refused():
    with rank_of_two(0) as mesh, pytest.raises(ValueError, match="got K 0:48 of 96"):
        distribute_tensor(weights(), mesh, [Shard(1)], src_data_rank=None)
