"""MXTensor around torch: offload, files, comparisons, DDP, averages of models, torchao."""

import copy
import gc
import io
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import accelerate
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad as fwd
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn
from torchao.quantization import quantize_

import mx_kernels as mx
from cases import DTYPES, FLOAT_FORMATS, FORMATS, LAYOUTS
from mx_kernels.integrations import torchao
from mx_kernels.integrations.offload import from_floats, in_floats
from mx_kernels.integrations.torch_distributed import Bucket

pytestmark = [
    pytest.mark.cpu_only,
    pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning"),
]
OPERANDS = [
    *((format, layout) for format in FORMATS for layout in LAYOUTS),
    *((format, "plain") for format in FLOAT_FORMATS),
]
SHAPES = [(1, 32), (18, 96), (2, 3, 160)]


def weights(*shape, layout="plain", format="mxfp4", dtype="float32", seed=7):
    torch.manual_seed(seed)
    q = mx.quantize(torch.randn(*shape, dtype=getattr(torch, dtype)), format=format)
    return q.preshuffle(device=LAYOUTS[layout]["device"]) if LAYOUTS[layout]["device"] else q


def assert_same(got, expected):
    assert repr(got) == repr(expected)
    assert torch.equal(got.codes, expected.codes) and torch.equal(got.scales, expected.scales)


# What accelerate does.


@pytest.mark.parametrize("format, layout", OPERANDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_survive_in_floats_of_the_logical_shape(shape, dtype, format, layout):
    q = weights(*shape, layout=layout, format=format, dtype=dtype)
    floats = in_floats(q)
    assert (type(floats), floats.shape, floats.dtype) == (torch.Tensor, q.shape, q.dtype)
    assert_same(mx.MXTensor(floats), q)


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_that_are_no_such_ones_are_refused(dtype):
    q = weights(4, 64, dtype=dtype)
    floats = in_floats(q)
    other = torch.float16 if q.dtype != torch.float16 else torch.bfloat16
    for wrong in (q.dequantize(), floats.view(2, 128), floats.view(-1), floats.to(other)):
        with pytest.raises(TypeError, match=r"codes: got .* without scales, expected"):
            mx.MXTensor(wrong)
    assert from_floats(floats)[3] == "plain"
    with pytest.raises(ValueError, match=r"offload: got shape \[0, 64\]"):
        in_floats(q[:0])


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_is_made_again_as_libraries_do(requires_grad):
    p = nn.Parameter(weights(4, 64, format="mxint8"), requires_grad=requires_grad)
    for value in (p.data, p, p.to("meta"), in_floats(p)):
        again = type(p)(value, requires_grad=p.requires_grad)
        assert isinstance(again, nn.Parameter) and again.requires_grad == requires_grad
        assert again.format == "mxint8" and again.device == value.device
    assert mx.MXTensor(p).codes.data_ptr() == p.codes.data_ptr()
    assert not isinstance(mx.MXTensor(p), nn.Parameter)


WRONG = {
    "another keyword": lambda q: mx.MXTensor(q, fromat="mxfp4"),
    "a format beside": lambda q: mx.MXTensor(q, format="mxint8"),
    "scales beside": lambda q: mx.MXTensor(q.codes, q.scales, requires_grad=False),
    "codes alone": lambda q: mx.MXTensor(q.codes),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_given_beside_a_tensor_is_not_ignored(case):
    with pytest.raises(TypeError, match=r"got .*, expected"):
        WRONG[case](weights(4, 64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["cpu", "disk", "one layer on disk"])
def test_accelerate_offloads_models(kind, dtype, tmp_path):
    net = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 32), nn.Linear(32, 64, False))
    net = mx.convert(net.to(getattr(torch, dtype)), keep=["3"])
    x = torch.randn(2, 96, dtype=getattr(torch, dtype))
    expected, net = net(x), copy.deepcopy(net)
    cpu = torch.device("cpu")
    if kind == "cpu":
        accelerate.cpu_offload(net, execution_device=cpu)
    elif kind == "disk":
        accelerate.disk_offload(net, tmp_path, execution_device=cpu)
    else:
        places = {"0": "cpu", "1": "cpu", "2": "disk", "3": "cpu"}
        accelerate.dispatch_model(net, places, main_device="cpu", offload_dir=tmp_path)
    for _ in range(2):
        assert torch.equal(net(x), expected)
    assert net[2].weight.device.type == "meta"
    accelerate.hooks.remove_hook_from_submodules(net)
    if kind != "one layer on disk":
        assert torch.equal(net(x), expected)


def test_accelerate_makes_empty_models():
    with accelerate.init_empty_weights():
        m = mx.MXLinear(weights(64, 96), torch.zeros(64))
    assert (m.weight.device.type, m.weight.format, m.weight.requires_grad) == (
        "meta",
        "mxfp4",
        False,
    )


def test_floats_that_hold_bytes_are_accelerates_alone():
    q = weights(4, 64, dtype="bfloat16")
    with pytest.raises(TypeError, match="numpy: got an MXTensor"):
        q.numpy()
    with pytest.raises(NotImplementedError, match="view: got an MXTensor"):
        q.view(torch.int16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_are_those_of_the_bytes(layout):
    q = weights(18, 96, layout=layout)
    assert q.nelement() * q.element_size() == pytest.approx(q.nbytes, rel=1e-12)
    assert q.data_ptr() == q.codes.data_ptr() != q.clone().data_ptr()
    assert q.new_empty(0, 96).element_size() == q.dtype.itemsize


# What torch itself does around modules.


@pytest.mark.filterwarnings("ignore:MXLinear")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("format", ["mxfp4", "mxint8", "mxfp6"])
def test_an_exported_module_is_saved_and_loaded(format, layout):
    m = mx.MXLinear(weights(32, 64, layout=layout, format=format), torch.ones(32))
    x, file = torch.randn(4, 64), io.BytesIO()
    torch.export.save(torch.export.export(m.eval(), (x,)), file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(x), m(x))


def test_torch_is_told_that_a_tensor_is_strided_and_others_its_layout():
    q = weights(32, 64, layout="preshuffled_cpu")
    assert q.layout == getattr(q, "layout") == "preshuffled_cpu"  # noqa: B009
    told = {}
    exec("layout = q.layout", {"q": q, "__name__": "torch.anything"}, told)
    assert told["layout"] is torch.strided
    exec("layout = q.layout", {"q": q, "__name__": "torchao"}, told)
    assert told["layout"] == "preshuffled_cpu"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_are_compared_as_torch_compares_them(layout):
    q = weights(18, 96, layout=layout)
    torch.testing.assert_close(q, q.clone())
    torch.testing.assert_close({"a": [q]}, {"a": [q.unshuffle()]}, rtol=0, atol=0)
    with pytest.raises(AssertionError, match=r"(?s)close.*Mismatched elements: \d+ / 1728"):
        torch.testing.assert_close(q, weights(18, 96, layout=layout, seed=99))
    for other, message in (
        (weights(18, 96, format="mxint8"), "mxfp4 != mxint8"),
        (q.half(), "dtype"),
        (weights(2, 96), "shape"),
        (q.dequantize(), "is_quantized"),
    ):
        with pytest.raises(AssertionError, match=message):
            torch.testing.assert_close(q, other)


# DistributedDataParallel.


class Adapted(nn.Module):
    """Frozen bases of two formats, floats of two dtypes beside them, and a buffer of codes."""

    def __init__(self, layout, seed):
        super().__init__()
        self.base = mx.MXLinear(weights(64, 96, layout=layout, seed=seed))
        self.other = mx.MXLinear(weights(18, 64, layout=layout, format="mxint8", seed=seed))
        self.fp8 = mx.MXLinear(weights(33, 96, format="fp8", seed=seed))
        self.half = mx.MXLinear(weights(33, 96, dtype="bfloat16", seed=seed))
        self.a, self.b = nn.Linear(96, 5, bias=False), nn.Linear(5, 64)
        self.register_buffer("table", weights(3, 32, seed=seed))

    def forward(self, x):
        return self.other(self.base(x) + self.b(self.a(x)))


def tensors_of(m):
    """What a module holds, as bytes and floats."""
    held = [*m.parameters(), *m.buffers()]
    parts = ((t.codes, t.scales) if isinstance(t, mx.MXTensor) else (t.detach(),) for t in held)
    return [part.clone() for group in parts for part in group]


@pytest.fixture
def process_group():
    """A group of one rank.

    A model that DDP wraps has to be gone before the group is: torch 2.13's reducer would be the
    last to let go of it, and wait, with the GIL, for a thread of gloo's that wants the GIL.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:MXLinear")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("process_group")
def test_ddp_trains_adapters_of_a_frozen_base(layout):
    m = Adapted(layout, seed=7)
    before, x = tensors_of(m), torch.randn(4, 96)
    expected = m(x)
    ddp = nn.parallel.DistributedDataParallel(m)
    assert torch.equal(ddp(x), expected)
    ddp(x).sum().backward()
    assert m.a.weight.grad is not None and m.base.weight.grad is None
    assert all(map(torch.equal, tensors_of(m), before))


@pytest.mark.filterwarnings("ignore:MXLinear")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bucket_bytes", [1, 4096, 1 << 28])
def test_what_a_module_holds_reaches_other_ranks(bucket_bytes, layout):
    store = dist.HashStore()
    ranks = [Adapted(layout, seed=rank) for rank in range(2)]
    expected = tensors_of(ranks[0])
    assert not any(map(torch.equal, tensors_of(ranks[1])[:2], expected[:2]))

    def send(rank):
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=30))
        whole = dist.ProcessGroup(store, rank, 2)
        whole._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        device = torch.device("cpu")
        whole._register_backend(device, dist.ProcessGroup.BackendType.GLOO, group)
        torch.distributed.utils._sync_module_states(ranks[rank], whole, bucket_bytes, 0, ())

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(send, range(2)))
    for m in ranks:
        assert all(map(torch.equal, tensors_of(m), expected))


def test_a_bucket_is_cut_where_its_parts_end():
    q, x = weights(4, 64), torch.randn(32)
    bucket = Bucket.of([q, x])
    assert bucket.shape == (288,) and bucket.dtype == q.dtype
    assert_same(bucket[:256].view(4, 64), q)
    assert torch.equal(bucket[256:].view(32), x)
    for call in (
        lambda: bucket[:64],
        lambda: bucket[::2],
        lambda: bucket.view(2, 144),
        lambda: bucket + 1,
        lambda: bucket.copy_(bucket),
        lambda: torch.cat([bucket, x.half()]),
        lambda: q.preshuffle("cpu").view(-1),
    ):
        with pytest.raises((NotImplementedError, ValueError), match=r"got .*, expected"):
            call()


# Averages of models.


@pytest.mark.filterwarnings("ignore:MXLinear")
@pytest.mark.parametrize("average", [get_ema_multi_avg_fn(0.5), get_swa_multi_avg_fn()])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_average_of_models_keeps_what_is_frozen(average, layout):
    m = Adapted(layout, seed=7)
    averaged, before, a = AveragedModel(m, multi_avg_fn=average), tensors_of(m), m.a.weight.clone()
    averaged.update_parameters(m)
    assert all(map(torch.equal, tensors_of(averaged.module), before))
    m.a.weight.data += 1
    averaged.update_parameters(m)
    torch.testing.assert_close(averaged.module.a.weight, a + 0.5)
    assert_same(averaged.module.base.weight, m.base.weight)


def test_weights_that_differ_have_no_average():
    q, other, floats = weights(4, 64), weights(4, 64, seed=99), torch.zeros(3)
    before = q.clone()
    for average in (
        lambda: torch._foreach_lerp_([floats, q], [torch.ones(3), other], 0.5),
        lambda: torch._foreach_lerp_([floats, q], [torch.ones(3), other], [0.5, 0.5]),
        lambda: q.lerp_(other, 0.5),
    ):
        with pytest.raises(ValueError, match=r"lerp_: got MXTensors of other numbers, expected"):
            average()
    with pytest.raises(TypeError, match="_foreach_lerp_: source: got Tensor"):
        torch._foreach_lerp_([floats, q], [torch.ones(3), q.dequantize()], 0.5)
    assert_same(q, before)
    assert not floats.any()
    torch._foreach_lerp_([q, floats], [other.copy_(q).preshuffle("cpu"), torch.ones(3)], [1.0, 0.5])
    assert floats.tolist() == [0.5] * 3
    with pytest.raises(NotImplementedError, match="multi_avg_fn=get_ema_multi_avg_fn"):
        q.mul_(0.5)


# Transforms.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("linear", [F.linear, lambda x, w, b: mx.linear(x, w, bias=b)])
def test_tangents_are_those_of_the_dequantized_weights(linear, layout):
    q, x, t, b = weights(18, 96, layout=layout), *torch.randn(2, 5, 96), torch.randn(18)
    expected = t @ q.dequantize().T
    out, tangent = torch.func.jvp(lambda x: linear(x, q, b), (x,), (t,))
    with fwd.dual_level():
        dual = fwd.unpack_dual(linear(fwd.make_dual(x, t), q, b))
    # torch's own linear multiplies tangents as it does activations, here quantized to MXINT8.
    for got in (tangent, dual.tangent):
        assert (got - expected).norm() < 0.02 * expected.norm()
    assert torch.equal(out, linear(x, q, b)) and torch.equal(dual.primal, out)


def test_what_transforms_cannot_do_is_said():
    q, x = weights(64, 64), torch.randn(2, 3, 64)
    experts = weights(2, 128, 64), weights(2, 64, 64)
    ids, counts = torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1)
    sizes = torch.tensor([1, 2], dtype=torch.int32)
    per_sample = torch.func.grad(lambda x: mx.linear(x, q).sum())
    assert torch.vmap(per_sample)(x).shape == x.shape
    assert torch.vmap(lambda x: mx.linear(x, q), in_dims=1)(x).shape == (3, 2, 64)
    for call in (
        lambda: torch.vmap(lambda x: F.linear(x, q), in_dims=1)(x),
        lambda: torch.vmap(lambda w: F.linear(x, w))(torch.stack([q, q])),
        lambda: torch.vmap(lambda w: mx.linear(x, w))(torch.stack([q, q])),
        lambda: torch.vmap(lambda b: mx.linear(x, q, bias=b))(torch.ones(3, 64)),
        lambda: torch.vmap(lambda x: mx.moe(x, *experts, ids, counts))(x),
        lambda: torch.vmap(lambda x: mx.grouped_linear(x, experts[0], sizes))(x),
        lambda: torch.func.jvp(lambda x: mx.moe(x, *experts, ids, counts), (x[0],), (x[1],)),
        lambda: torch.func.jvp(lambda x: mx.grouped_linear(x, experts[0], sizes), *[(x[0],)] * 2),
    ):
        with pytest.raises(NotImplementedError, match=r"got .*, expected"):
            call()


# torchao


def test_torchaos_quantize_makes_the_layers_that_convert_makes():
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)), torch.randn(5, 64)
    expected = mx.convert(copy.deepcopy(model), keep="2", format="mxfp8", activations="mxint8")
    config = torchao.MXConfig(format="mxfp8", activations="mxint8")
    quantize_(model, config, lambda module, name: name == "0")
    assert [type(layer) for layer in model] == [mx.MXLinear, nn.ReLU, nn.Linear]
    assert torch.equal(model(x), expected(x))
    first = model[0]
    quantize_(model, torchao.MXConfig())
    assert model[0] is first and type(model[2]) is mx.MXLinear
    assert (model[2].weight.format, model[2].activations) == ("mxfp4", "mxint8")


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: quantize_(nn.Sequential(nn.Linear(33, 64)), torchao.MXConfig()), "33"),
        (
            lambda: quantize_(nn.Sequential(Doubled(64, 64)), torchao.MXConfig()),
            "got Doubled, expe",
        ),
        (lambda: torchao.MXConfig(format="mxfp5"), "format: got 'mxfp5'"),
        (lambda: torchao.MXConfig(activations="mxfp5"), "activations: got 'mxfp5'"),
        (lambda: torchao.MXConfig(scale_rule="up"), "scale_rule: got 'up'"),
    ],
)
def test_what_torchao_cannot_have_is_named(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
